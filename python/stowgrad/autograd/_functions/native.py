"""`torch._C._functions`: nodes that programs make or ask for by class."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd.function import Function

__all__ = ["AccumulateGrad", "DelayedError", "UndefinedGrad"]


class _IsAccumulation(type):
    def __instancecheck__(cls, instance) -> bool:
        return isinstance(instance, _C.Node) and instance.name() == "torch::autograd::AccumulateGrad"


class AccumulateGrad(metaclass=_IsAccumulation):
    """The nodes that add a gradient to a leaf's `.grad`: `isinstance(node, AccumulateGrad)`.

    >>> import stowgrad as torch
    >>> y = torch.ones(1, requires_grad=True) * 2
    >>> isinstance(y.grad_fn.next_functions[0][0], torch._C._functions.AccumulateGrad)
    True
    """

    def __new__(cls, *args):
        raise TypeError("AccumulateGrad nodes are made by the graph: ask for one with x.view_as(x).grad_fn.next_functions")


class Error(Function):
    """Passes its inputs on; a gradient that arrives is a RuntimeError with the given message."""

    @staticmethod
    def forward(ctx, message, *tensors):
        ctx.message = message
        out = tuple(t.detach() for t in tensors)
        return out[0] if len(out) == 1 else out

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(ctx.message)


class DelayedError:
    """`DelayedError(message, n)(*tensors)` gives `n` tensors on; differentiating through them raises `message`.

    >>> import stowgrad as torch
    >>> y = torch._C._functions.DelayedError("not differentiable twice", 1)(torch.ones(1, requires_grad=True))
    >>> y.sum().backward()
    Traceback (most recent call last):
        ...
    RuntimeError: not differentiable twice
    """

    def __init__(self, message: str, num_inputs: int):
        self.message, self.num_inputs = message, num_inputs

    def __call__(self, *tensors):
        if len(tensors) != self.num_inputs:
            raise RuntimeError(f"DelayedError: expected {self.num_inputs} tensors, got {len(tensors)}")
        return Error.apply(self.message, *tensors)


class _Undefined(Function):
    @staticmethod
    def forward(ctx, *tensors):
        out = tuple(t.detach() for t in tensors)
        return out[0] if len(out) == 1 else out

    @staticmethod
    def backward(ctx, *grads):
        return (None,) * len(grads)


class UndefinedGrad:
    """`UndefinedGrad()(*tensors)` passes tensors on; what arrives there as a gradient is dropped.

    >>> import stowgrad as torch
    >>> x = torch.ones(1, requires_grad=True)
    >>> (torch._C._functions.UndefinedGrad()(x) + x).backward()
    >>> x.grad
    tensor([1.])
    """

    def __call__(self, *tensors):
        return _Undefined.apply(*tensors)
