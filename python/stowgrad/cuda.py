"""`torch.cuda` on a machine without it: one may ask, and is told no; using it says what is missing."""

from __future__ import annotations

__all__ = ["current_device", "device_count", "empty_cache", "init", "is_available", "manual_seed", "manual_seed_all", "synchronize"]


def is_available() -> bool:
    """False: this build computes on the CPU.

    >>> import stowgrad as torch
    >>> torch.cuda.is_available()
    False
    """
    return False


def is_initialized() -> bool:
    return False


def is_bf16_supported() -> bool:
    return False


def device_count() -> int:
    return 0


def _missing(what: str):
    raise RuntimeError(f"torch.cuda.{what}: no CUDA support is built in; use the CPU (torch.cuda.is_available() is False)")


def init() -> None:
    _missing("init()")


def current_device() -> int:
    _missing("current_device()")


def synchronize(device=None) -> None:
    _missing("synchronize()")


def empty_cache() -> None:
    """Nothing is cached for a device that is not there."""


def manual_seed(seed: int) -> None:
    """Seeds the devices: none."""


def manual_seed_all(seed: int) -> None:
    """Seeds the devices: none."""


def __getattr__(name: str):
    raise AttributeError(f"stowgrad.cuda has no {name!r}: there is no CUDA support in this build", name=name)
