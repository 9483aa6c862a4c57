"""Small helpers around modes, under the names that programs look for."""

from __future__ import annotations

from stowgrad import _C

__all__ = ["all_same_mode", "no_dispatch"]


def no_dispatch():
    """A context in which neither dispatch modes nor subclasses intercept operations."""
    return _C._DisableTorchDispatch()


def all_same_mode(modes) -> bool:
    """Whether all of these modes are one."""
    modes = list(modes)
    return all(m is modes[0] for m in modes)
