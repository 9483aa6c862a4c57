"""`Variable`: what tensors with gradients were called once. Only the name is left, and the engine's handle that hangs
on it.
"""

from __future__ import annotations

from stowgrad import _C

__all__ = ["Variable", "VariableMeta"]


class _ExecutionEngine:
    """The handle of the backward engine under the name programs use for it."""

    __slots__ = ()

    @staticmethod
    def queue_callback(callback) -> None:
        """Calls `callback()` once, at the end of the backward that is running in this thread; outside of one it is an
        error.
        """
        _C._queue_callback(callback)

    @staticmethod
    def run_backward(
        tensors, grad_tensors, keep_graph, create_graph, inputs=(), allow_unreachable=False, accumulate_grad=False
    ):
        """Runs the engine; `autograd.backward` and `autograd.grad` are the ways in that check their arguments."""
        return _C._engine_run_backward(
            tuple(tensors),
            tuple(grad_tensors),
            keep_graph,
            create_graph,
            tuple(inputs),
            allow_unreachable,
            accumulate_grad,
        )

    @staticmethod
    def is_checkpoint_valid() -> bool:
        """Whether a reentrant checkpoint could run now: not inside a backward with `inputs=`."""
        return _C._autograd._is_checkpoint_valid()


class VariableMeta(type):
    """Every tensor is a Variable."""

    def __instancecheck__(cls, other):
        return isinstance(other, _C.Tensor)


class Variable(metaclass=VariableMeta):
    """`Variable(data, requires_grad=False)` gives a tensor that shares its data with `data`, a leaf.

    >>> import stowgrad as torch
    >>> x = torch.autograd.Variable(torch.ones(2), requires_grad=True)
    >>> x
    tensor([1., 1.], requires_grad=True)
    """

    _execution_engine = _ExecutionEngine()

    def __new__(cls, data=None, requires_grad=False, volatile=None):
        if data is None:
            data = _C.empty(0)
        if not isinstance(data, _C.Tensor):
            raise TypeError(f"Variable(data): data must be a Tensor, not {type(data).__name__}")
        if volatile:
            import warnings

            warnings.warn("volatile was removed: use `with no_grad():` around the computation", stacklevel=2)
        out = data.detach()
        if requires_grad:
            out.requires_grad_(True)
        return out
