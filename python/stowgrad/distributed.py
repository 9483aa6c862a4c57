"""`torch.distributed` in one process: one may ask whether it is there, and is told no."""

from __future__ import annotations

__all__ = ["is_available", "is_initialized", "is_torchelastic_launched"]


def is_available() -> bool:
    """False: there is one process.

    >>> import stowgrad as torch
    >>> torch.distributed.is_available()
    False
    """
    return False


def is_initialized() -> bool:
    """False: there are no process groups."""
    return False


def is_torchelastic_launched() -> bool:
    """False: no launcher started this process."""
    return False


def __getattr__(name: str):
    raise AttributeError(
        f"stowgrad.distributed has no {name!r}: there is one process, and no process groups", name=name
    )
