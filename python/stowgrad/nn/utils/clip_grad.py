"""Keeping gradients small. Everything here writes gradients in place, under no_grad."""

from __future__ import annotations

import warnings

import stowgrad
from stowgrad import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

Tensor = _C.Tensor

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _listed(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


@stowgrad.no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of the norms of all tensors: that of them as one vector. RuntimeError if asked to when it is not
    finite.
    """
    tensors = _listed(tensors)
    norm_type = float(norm_type)
    if not tensors:
        return _C.tensor(0.0)
    first = tensors[0].device
    norms = [t.norm(norm_type).to(first) for t in tensors]
    total = _C.stack(norms).norm(norm_type)
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite "
            f"({total.item()}), so it cannot "
            "be clipped; with error_if_nonfinite=False the gradients are scaled by it anyway"
        )
    return total


@stowgrad.no_grad()
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales the gradients by max_norm / (total_norm + 1e-6), or leaves them where that is above 1."""
    # The factor is used clamped and not tested, so that nothing waits for its value.
    factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    for param in _listed(parameters):
        if param.grad is not None:
            param.grad.mul_(factor.to(param.grad.device))


@stowgrad.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales the gradients so that their norm, as one vector, is at most `max_norm`; gives the norm from before.

    >>> import stowgrad as torch
    >>> p = torch.nn.Parameter(torch.zeros(2))
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> torch.nn.utils.clip_grad_norm_([p], 1.0).item()
    5.0
    >>> round(p.grad.norm().item(), 3)
    1.0
    """
    parameters = _listed(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    total = get_total_norm(grads, norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The old name of `clip_grad_norm_`."""
    warnings.warn(
        "`nn.utils.clip_grad_norm` is now deprecated in favor of `nn.utils.clip_grad_norm_`.",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


@stowgrad.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clips every element of the gradients to [-clip_value, clip_value]."""
    clip_value = float(clip_value)
    for param in _listed(parameters):
        if param.grad is not None:
            param.grad.clamp_(min=-clip_value, max=clip_value)
