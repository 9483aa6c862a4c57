"""Functions of torch's early days that programs still name."""

from __future__ import annotations

from stowgrad.autograd._functions import native
from stowgrad.autograd.function import Function

__all__ = ["Resize", "native"]


class Resize(Function):
    """`Resize.apply(x, sizes)`: a contiguous `x` seen in other sizes with as many elements; RuntimeError otherwise."""

    @staticmethod
    def forward(ctx, tensor, sizes):
        sizes = tuple(sizes)
        numel = 1
        for n in sizes:
            numel *= n
        if tensor.numel() != numel:
            raise RuntimeError(
                f"Resize: requested resize to {'x'.join(map(str, sizes))} ({numel} elements in total), but the given "
                "tensor has a size "
                f"of {'x'.join(map(str, tensor.size()))} ({tensor.numel()} elements)"
            )
        ctx.input_sizes = tensor.size()
        return tensor.contiguous().view(sizes)

    @staticmethod
    def backward(ctx, grad):
        return grad.contiguous().view(ctx.input_sizes), None
