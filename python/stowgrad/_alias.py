"""`import torch` answered by stowgrad, by who imports: the code behind `python -m stowgrad run`.

A script and whatever it imports get stowgrad under the name torch; code of stowgrad itself and code inside a real
torch, when one is loaded, get the real one. Imports are answered where they are made (`builtins.__import__`,
`importlib.import_module`, `importlib.util.find_spec`), so that `sys.modules["torch"]` stays free for a real torch.

Invariants: no module exists twice (`torch.nn` is the very object `stowgrad.nn`, with its own name and `__spec__`);
imports of anything else behave as before; `uninstall` puts everything back.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys

__all__ = ["install", "installed", "real_torch", "uninstall"]

_real_import = builtins.__import__
_real_import_module = importlib.import_module
_real_find_spec = importlib.util.find_spec
_OURS = "stowgrad"
_INSIDE_TORCH = frozenset(
    ("stowgrad", "torch", "torchgen", "functorch")
)  # packages whose own imports of torch mean the real one


def _named_torch(name) -> bool:
    return type(name) is str and (name == "torch" or name[:6] == "torch.")


def _means_real(module_globals) -> bool:
    """Whether code with these globals belongs to stowgrad or to a real torch."""
    if not module_globals:
        return False
    name = module_globals.get("__name__")
    if type(name) is not str or name.partition(".")[0] not in _INSIDE_TORCH:
        return False
    if name.partition(".")[0] == _OURS:
        return name != "stowgrad.__main__"
    return "torch" in sys.modules or name == "torch"


def _lacking(name: str, *, attribute: str | None = None) -> ImportError:
    what = f"{name}.{attribute}" if attribute else name
    if attribute:
        return ImportError(
            f"cannot import name {attribute!r} from {name!r}: stowgrad, which answers for torch here, has no {what}",
            name=name,
        )
    return ModuleNotFoundError(
        f"No module named {name!r}: stowgrad, which answers for torch here, has no {what}", name=name
    )


def _load(name: str):
    """Our module for torch's `name`."""
    ours = _OURS + name[5:]
    found = sys.modules.get(ours)
    if found is not None:
        return found
    try:
        return _real_import_module(ours)
    except ModuleNotFoundError as e:
        if e.name is None or not (ours == e.name or ours.startswith(e.name + ".")):
            raise  # something else is missing: say that
        found = sys.modules.get(ours.rpartition(".")[0])  # not a file, but perhaps something the parent makes up
        made = getattr(found, ours.rpartition(".")[2], None) if found is not None else None
        if isinstance(made, type(sys)):
            return made
        raise _lacking(name) from None


def _torch_import(name, globals=None, locals=None, fromlist=(), level=0):
    if level or not _named_torch(name) or _means_real(globals):
        return _real_import(name, globals, locals, fromlist, level)
    if fromlist is not None and type(fromlist) is list and not fromlist:
        return _real_import(name, globals, locals, fromlist, level)  # from C code, which reads sys.modules afterwards
    module = _load(name)
    if not fromlist:
        return module if name == "torch" else _load("torch")
    for attribute in fromlist:
        if attribute == "*" or hasattr(module, attribute):
            continue
        try:
            _load(f"{name}.{attribute}")
        except ModuleNotFoundError as e:
            if e.name is not None and e.name.startswith("torch"):
                raise _lacking(name, attribute=attribute) from None
            raise
    return module


def _caller_means_real() -> bool:
    return _means_real(sys._getframe(2).f_globals)


def _torch_import_module(name, package=None):
    if not _named_torch(name) or _caller_means_real():
        return _real_import_module(name, package)
    return _load(name)


def _torch_find_spec(name, package=None):
    if not _named_torch(name) or _caller_means_real():
        return _real_find_spec(name, package)
    try:
        return _load(name).__spec__
    except ModuleNotFoundError:
        return None


def install() -> None:
    """From now on, in this process, code outside stowgrad and torch that imports torch gets stowgrad. Does nothing
    twice.
    """
    builtins.__import__ = _torch_import
    importlib.import_module = _torch_import_module
    importlib.util.find_spec = _torch_find_spec


def uninstall() -> None:
    """Puts the imports back as they were before `install`."""
    if builtins.__import__ is _torch_import:
        builtins.__import__ = _real_import
    if importlib.import_module is _torch_import_module:
        importlib.import_module = _real_import_module
    if importlib.util.find_spec is _torch_find_spec:
        importlib.util.find_spec = _real_find_spec


def installed() -> bool:
    """Whether the alias is in force."""
    return builtins.__import__ is _torch_import


def real_torch():
    """The real torch, whatever the alias says; ModuleNotFoundError if it is not installed."""
    return _real_import("torch", {"__name__": "stowgrad._alias"}, None, None, 0)
