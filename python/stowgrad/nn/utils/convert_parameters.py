"""Parameters as one vector, and back."""

from __future__ import annotations

from stowgrad import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

Tensor = _C.Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def _same_device(param: Tensor, device: object) -> object:
    if device is not None and param.device != device:
        raise TypeError(f"parameters on different devices ({device} and {param.device}) do not make one vector")
    return param.device


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements in one 1-d tensor, differentiably. TypeError for parameters on different devices.

    >>> import stowgrad as torch
    >>> torch.nn.utils.parameters_to_vector([torch.ones(2), torch.zeros(1)]).tolist()
    [1.0, 1.0, 0.0]
    """
    device = None
    flat = []
    for param in parameters:
        device = _same_device(param, device)
        flat.append(param.view(-1))
    return _C.cat(flat)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Lets each parameter hold its part of `vec`, in order. TypeError when `vec` is no tensor or devices differ."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    device = None
    at = 0
    for param in parameters:
        device = _same_device(param, device)
        count = param.numel()
        param.data = vec[at : at + count].view_as(param).data
        at += count
