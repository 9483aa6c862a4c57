"""`python -m stowgrad`: runs scripts written for torch, and says what this installation is.

    python -m stowgrad run SCRIPT [ARGS]       run a script with `import torch` answered by stowgrad
    python -m stowgrad run -m MODULE [ARGS]    the same for a module
    python -m stowgrad info                    versions, instruction set, threads, allocator, torch

Invariant: a script run here sees what it would see under `python SCRIPT`: its arguments, its folder first on the path,
itself as `__main__`, its own exit status, and tracebacks that begin in it.
"""

from __future__ import annotations

import sys

USAGE = __doc__.split("\n\n")[1]


def _without(tb, hidden: tuple):
    """A traceback without the frames of these files and of runpy."""
    kept = []
    while tb is not None:
        frame = tb.tb_frame
        if frame.f_code.co_filename not in hidden and frame.f_globals.get("__name__") != "runpy":
            kept.append(tb)
        tb = tb.tb_next
    for this, following in zip(kept, [*kept[1:], None], strict=True):
        this.tb_next = following
    return kept[0] if kept else None


def _report(error: BaseException) -> int:
    """Prints the traceback as Python would, without the runner's frames; then what stowgrad lacks, if that was it."""
    from stowgrad import _alias

    shown: BaseException | None = error
    seen: set = set()
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        shown.__traceback__ = _without(shown.__traceback__, (__file__, _alias.__file__))
        shown = shown.__cause__ or shown.__context__
    sys.excepthook(type(error), error, error.__traceback__)
    owner = getattr(error, "obj", None)
    name = getattr(error, "name", None)
    if isinstance(error, AttributeError) and name and owner is not None:
        where = (
            owner.__name__ if isinstance(owner, type(sys)) else f"{type(owner).__module__}.{type(owner).__qualname__}"
        )
        if where == "torch" or where.split(".")[0] in ("stowgrad", "torch"):
            where = "torch" + where[8:] if where.startswith("stowgrad") else where
            print(f"stowgrad, which answers for torch here, lacks {where}.{name}", file=sys.stderr)
    return 1


def _as_main(module) -> None:
    sys.modules["__main__"] = module


def _run_script(path: str) -> None:
    import io
    import os

    if os.path.isdir(path) or (os.path.isfile(path) and _is_zip(path)):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    with io.open_code(path) as file:
        source = file.read()
    module = type(sys)("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__
    module.__loader__ = None
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    _as_main(module)
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            return False
    import zipfile

    return zipfile.is_zipfile(path)


def run(args: list) -> int:
    """Runs `SCRIPT [ARGS]` or `-m MODULE [ARGS]` under the alias and returns the exit status."""
    if not args or (args[0] == "-m" and len(args) < 2):
        print(f"usage:\n{USAGE}", file=sys.stderr)
        return 2
    from stowgrad import _alias

    _alias.install()
    try:
        if args[0] == "-m":
            import os
            import runpy

            sys.argv = args[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = args
            _run_script(args[0])
    except FileNotFoundError as e:
        if args[0] != "-m" and e.filename == args[0] and e.__traceback__.tb_next.tb_next is None:
            print(f"python -m stowgrad run: can't open file {args[0]!r}: {e.strerror}", file=sys.stderr)
            return 2
        return _report(e)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as e:
        return _report(e)
    return 0


def _torch_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not installed (only needed for tensors on a GPU)"


def _bytes(n: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if n < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def _lines(name: str, stats: dict) -> list:
    rows = []
    for key, value in stats.items():
        if isinstance(value, dict):
            rows += _lines(f"{name}, {key}", value)
        elif isinstance(value, (int, float)):
            rows.append((f"{name}, {key}", _bytes(value)))
    return rows


def info() -> int:
    """Prints what this installation is, one fact a line."""
    import os
    import platform

    import stowgrad
    from stowgrad import _C

    try:
        from importlib import metadata

        numpy = metadata.version("numpy")
    except Exception:
        numpy = "not installed"
    rows = [
        ("stowgrad", getattr(stowgrad, "__stowgrad_version__", None) or stowgrad.__version__),
        ("core", getattr(_C, "__file__", "unknown")),
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("platform", platform.platform()),
        ("numpy", numpy),
        ("torch", _torch_version()),
        ("SIMD level", str(_C.simd_level())),
        ("threads", f"{_C.get_num_threads()} of {os.cpu_count()} processors"),
        *_lines("allocator", dict(_C.memory_stats())),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 0


def main(argv: list) -> int:
    """Dispatches `run` and `info`."""
    if argv and argv[0] == "run":
        return run(argv[1:])
    if argv == ["info"]:
        return info()
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    print(f"usage:\n{USAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
