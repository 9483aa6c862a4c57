"""`torch.compile`, which compiles nothing here, and the questions programs ask of a compiler."""

from __future__ import annotations

__all__ = ["compile", "disable", "is_compiling", "is_dynamo_compiling", "reset"]

_warned = False


def compile(model=None, *, fullgraph=False, dynamic=None, backend="inductor", mode=None, options=None, disable=False):
    """Gives `model` back as it is: operations run as they are called. Warns once in a process.

    >>> import warnings
    >>> import stowgrad as torch
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     f = torch.compile(lambda x: x * 2)
    >>> f(torch.ones(1))
    tensor([2.])
    """
    global _warned
    if not _warned and not disable:
        import warnings

        _warned = True
        warnings.warn("stowgrad compiles nothing: torch.compile gives the function back as it is", stacklevel=2)
    if model is None:
        return lambda f: f
    return model


def is_compiling() -> bool:
    """False: nothing is ever compiled."""
    return False


def is_dynamo_compiling() -> bool:
    """False: nothing is ever compiled."""
    return False


def disable(fn=None, recursive: bool = True, *, reason=None):
    """Keeps a function from the compiler: gives it back."""
    if fn is None:
        return lambda f: f
    return fn


def reset() -> None:
    """Forgets what was compiled: nothing."""
