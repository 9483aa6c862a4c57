"""What programs look for under `torch.utils`. Everything loads when it is asked for."""

from __future__ import annotations

_MODULES = ("_contextlib", "_mode_utils", "_python_dispatch", "_pytree", "checkpoint", "data", "hooks")


def __getattr__(name: str):
    if name in _MODULES:
        import importlib

        try:
            return importlib.import_module("stowgrad.utils." + name)
        except ModuleNotFoundError as e:
            if e.name != "stowgrad.utils." + name:
                raise
    import sys

    raise AttributeError(f"stowgrad.utils has no {name!r}", name=name, obj=sys.modules[__name__])
