"""Forward-mode differentiation: torch's names, which say that stowgrad differentiates backward only."""

from __future__ import annotations

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]

_current_level = -1


def _no_forward_mode(what: str):
    raise NotImplementedError(
        f"forward_ad.{what}: stowgrad has no forward-mode differentiation; autograd.functional.jvp computes "
        "jacobian-vector products by two backward walks"
    )


def enter_dual_level():
    """NotImplementedError."""
    _no_forward_mode("enter_dual_level")


def exit_dual_level(*, level=None):
    """NotImplementedError."""
    _no_forward_mode("exit_dual_level")


def make_dual(tensor, tangent, *, level=None):
    """NotImplementedError."""
    _no_forward_mode("make_dual")


def unpack_dual(tensor, *, level=None):
    """NotImplementedError."""
    _no_forward_mode("unpack_dual")


class UnpackedDualTensor(tuple):
    """A value and its tangent; never made here."""

    __slots__ = ()

    def __new__(cls, primal, tangent):
        return tuple.__new__(cls, (primal, tangent))

    @property
    def primal(self):
        return self[0]

    @property
    def tangent(self):
        return self[1]


class dual_level:
    """NotImplementedError on entering."""

    def __enter__(self):
        _no_forward_mode("dual_level")

    def __exit__(self, *args) -> None:
        pass


def _is_fwd_grad_enabled() -> bool:
    return False


class _set_fwd_grad_enabled:
    """Whether forward mode is on: it never is, so asking for False is granted."""

    def __init__(self, mode: bool) -> None:
        if mode:
            _no_forward_mode("_set_fwd_grad_enabled")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args) -> None:
        pass
