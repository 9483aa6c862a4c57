"""`torch.jit`: there is no compiler of scripts here. What only marks code is there and does nothing; what would compile
says so.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Final", "export", "ignore", "is_scripting", "is_tracing", "load", "save", "script", "trace", "unused"]


def _missing(what: str):
    raise RuntimeError(
        f"torch.jit.{what}: stowgrad has no TorchScript; call the function or module itself, keep it by torch.save"
    )


def script(obj=None, *args, **kwargs):
    """RuntimeError: nothing can be scripted."""
    _missing("script")


def trace(func=None, *args, **kwargs):
    """RuntimeError: nothing can be traced."""
    _missing("trace")


def load(f, *args, **kwargs):
    """RuntimeError: archives of TorchScript are not read."""
    _missing("load")


def save(m, f, *args, **kwargs):
    """RuntimeError: there are no script modules to save."""
    _missing("save")


def is_scripting() -> bool:
    """False, always.

    >>> import stowgrad as torch
    >>> torch.jit.is_scripting()
    False
    """
    return False


def is_tracing() -> bool:
    """False, always."""
    return False


def ignore(drop=False, **kwargs):
    """Marks a function that a compiler of scripts is to leave in Python: gives it back."""
    return drop if callable(drop) else lambda fn: fn


def unused(fn):
    """Marks a function that a compiler of scripts is not to read: gives it back."""
    return fn


def export(fn):
    """Marks a method that a compiler of scripts is to read: gives it back."""
    return fn


def __getattr__(name: str):
    raise AttributeError(f"stowgrad.jit has no {name!r}: there is no TorchScript here", name=name)
