"""Writes what is derived from the core's entries: `python -m stowgrad._stubs` the type stubs of `_C`, `--ops` the page of operations.

Both outputs are committed; a test compares them with what this module writes, so they cannot drift.
"""

from __future__ import annotations

import keyword
import re
import sys

from stowgrad import _C

_HEAD = '''"""Type stubs of the native core, written by `make stubs` from its entries. Not edited by hand."""
# fmt: off
# ruff: noqa
from collections.abc import Callable, Sequence
from builtins import bool as _bool, float as _float, int as _int, str as _str
from typing import Any, SupportsFloat, SupportsIndex

Number = SupportsFloat | SupportsIndex | _bool
'''
_HINTS = {"Tensor | Number": "Tensor | Number", "dtype": "dtype", "float": "float", "object": "Any"}


def _hint(hint: str) -> str:
    known = {"Tensor", "Number", "None", "int", "float", "bool", "str", "dtype", "device", "Size", "Generator"}
    text = _HINTS.get(hint, hint)
    # the module has dtypes named int, float and bool: the builtins go by other names
    words = text.replace("Sequence[", " ").replace("]", " ").replace("|", " ").replace(",", " ").split()
    if not all(w in known for w in words):
        return "Any"
    return re.sub(r"\b(int|float|bool|str)\b", r"_\1", text)


def _returns(row: dict) -> str:
    if row["node"] is None:
        return "Any"
    return "Tensor"


def _signature(row: dict, method: bool, inplace: bool = False) -> str:
    parts, star = [], False
    for i, (name, hint, default, keyword_only) in enumerate(row["params"]):
        if i == 0 and method:
            parts.append("self")
            continue
        if keyword_only and not star:
            star = True
            parts.append("*")
        shown = "input" if name == "self" else name
        if keyword.iskeyword(shown):
            shown += "_"
        text = f"{shown}: {_hint(hint)}"
        if default is not None:
            text += " | None = ..." if default == "None" and "None" not in text else " = ..."
        parts.append(text)
    if row["out"] and not method and not inplace:
        parts += ([] if star else ["*"]) + ["out: Tensor | None = ..."]
    # an argument without default after one with a default (overloads aside) is keyword-only in effect
    return ", ".join(parts)


def _functions(rows: list[dict], method: bool) -> list[str]:
    by_name: dict[str, list[str]] = {}
    for row in rows:
        if method and not row["method"]:
            continue
        if not method and not (row["function"] or row["private"]):
            continue
        name = row["name"] if not row["private"] or row["function"] else "_" + row["name"].lstrip("_")
        by_name.setdefault(name, []).append(f"({_signature(row, method)}) -> {_returns(row)}")
        if row["inplace"]:
            by_name.setdefault(row["inplace"], []).append(f"({_signature(row, method, True)}) -> Tensor")
    lines = []
    for name, signatures in sorted(by_name.items()):
        if keyword.iskeyword(name):
            continue
        unique = list(dict.fromkeys(signatures))
        if len(unique) == 1 and _orderly(unique[0]):
            lines.append(f"def {name}{unique[0]}: ...")
        else:
            self_part = "self, " if method else ""
            lines.append(f"def {name}({self_part}*args: Any, **kwargs: Any) -> Any: ...")
    return lines


def _orderly(signature: str) -> bool:
    """Does no argument without default follow one with a default?"""
    seen = False
    for part in signature[1 : signature.index(") ->")].split(", "):
        if part == "*":
            seen = False
        elif " = " in part:
            seen = True
        elif seen and ":" in part:
            return False
    return True


def stubs() -> str:
    rows = _C._registry()
    out = [_HEAD]
    methods = _functions(rows, True)
    taken = {line.split("(")[0].removeprefix("def ") for line in methods}
    for name, value in sorted(vars(_C).items()):
        if not isinstance(value, type) or name.startswith("__"):
            continue
        base = "tuple[_int, ...]" if name == "Size" else ""
        out.append(f"class {name}({base}):" if base else f"class {name}:")
        body = [f"    {line}" for line in methods] if value is _C.Tensor else []
        for attribute in sorted(vars(value)):
            if (attribute in taken and value is _C.Tensor) or attribute in ("__doc__", "__module__", "__dict__"):
                continue
            member = vars(value)[attribute]
            if attribute.startswith("__") and attribute in vars(object) | vars(tuple) and name == "Size":
                continue
            if attribute in ("__hash__", "__eq__", "__ne__", "__new__", "__weakref__", "__class_getitem__"):
                continue
            if type(member).__name__ == "getset_descriptor":
                body.append(f"    {attribute}: Any")
            elif callable(member) or isinstance(member, staticmethod | classmethod):
                body.append(f"    def {attribute}(self, *args: Any, **kwargs: Any) -> Any: ...")
        out.extend(body or ["    ..."])
        out.append("")
    free = _functions(rows, False)
    out.extend(free)
    taken = {line.split("(")[0].removeprefix("def ") for line in free}
    for name, value in sorted(vars(_C).items()):
        if name.startswith("__") or name in taken or isinstance(value, type):
            continue
        if callable(value):
            out.append(f"def {name}(*args: Any, **kwargs: Any) -> Any: ...")
        elif type(value).__name__ in ("dtype", "layout", "memory_format"):
            out.append(f"{name}: {type(value).__name__}")
        else:
            out.append(f"{name}: Any")
    out.append("__version__: _str")
    return "\n".join(out) + "\n"


def operations() -> str:
    """The page of operations: one row a block."""
    rows = [r for r in _C._registry() if not r["private"]]
    lines = [
        "# Operations",
        "",
        "Written by `make docs` from the declarations in `src/ops`. A node name means that the operation is differentiable;",
        "*saves* lists what a graph keeps for it, if a gradient that needs it is asked for.",
        "",
        "| operation | node | saves | effect |",
        "|---|---|---|---|",
    ]
    for r in rows:
        where = {None: ""}.get(r["room"], f"{r['room']}.")
        params = ", ".join(n + ("" if d is None else "=...") for n, _, d, _ in r["params"])
        effect = r["doc"].split("\n")[0].replace("|", "\\|")
        saves = ", ".join(r["saves"] or [])
        lines.append(f"| `{where}{r['name']}({params})` | {r['node'] or ''} | {saves} | {effect} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(operations() if "--ops" in sys.argv[1:] else stubs())
