"""`autograd.Function`: operations whose backward the user writes.

The context object, what it saves and `apply` are native (`_C._FunctionBase`); here are the classes a user sees around
it. Invariants: every subclass of Function owns one subclass of BackwardCFunction, named after it, as `_backward_cls`;
its instances are at once `ctx` and the graph node (`y.grad_fn`), and `_forward_cls` leads back. `_has_setup_context`
says which of the two calling conventions `apply` must use. In backward the core calls
the user's function as `ctx.apply(*grads)` does.
"""

from __future__ import annotations

from stowgrad import _C

__all__ = [
    "BackwardCFunction",
    "Function",
    "FunctionCtx",
    "FunctionMeta",
    "InplaceFunction",
    "once_differentiable",
]


class FunctionCtx:
    """What `ctx` can do. The native context of `apply` comes first in the order of methods; alone, this class only
    takes notes.
    """

    def save_for_backward(self, *tensors) -> None:
        """Saves tensors (or None) for backward, through the saved-tensor hooks; read them as `ctx.saved_tensors`."""
        self.to_save = tensors

    def save_for_forward(self, *tensors) -> None:
        """Notes tensors for a forward-mode derivative; forward mode is not implemented, so nothing is kept alive for
        it.
        """
        self.saved_for_forward = tensors

    def mark_dirty(self, *args) -> None:
        """Says which inputs `forward` changed in place; each must be returned."""
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args) -> None:
        """Says which outputs carry no gradient."""
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing output gradients arrive in backward as zeros (True, the default) or as None."""
        self.materialize_grads = value


_HookMixin = FunctionCtx  # torch's name for the part with hooks; nodes have them natively


class BackwardCFunction(_C._FunctionBase, FunctionCtx):
    """The node of a custom function; one subclass a Function."""

    def apply(self, *grads):
        """Runs the user's backward: gradients of the outputs in, gradients of the inputs out."""
        forward_cls = self._forward_cls
        backward, vjp = forward_cls.backward, forward_cls.vjp
        if vjp is not Function.vjp:
            if backward is not Function.backward:
                raise RuntimeError(
                    "Implementing both 'backward' and 'vjp' for a custom Function is not allowed: "
                    f"{forward_cls.__name__} has both"
                )
            return vjp(self, *grads)
        return backward(self, *grads)


class FunctionMeta(type):
    """Makes the backward class of each Function as the Function is made."""

    def __init__(cls, name, bases, attrs):
        backward_cls = type(
            name + "Backward", (BackwardCFunction,), {"_forward_cls": cls, "__module__": cls.__module__}
        )
        cls._backward_cls = backward_cls
        base = globals().get("Function")
        cls._has_setup_context = base is not None and cls.setup_context is not base.setup_context
        super().__init__(name, bases, attrs)


class Function(_C._FunctionBase, FunctionCtx, metaclass=FunctionMeta):
    """An operation with a backward of your own: subclass it with static `forward` and `backward`, call it by `apply`.

    `forward(ctx, *args)`, or `forward(*args)` with `setup_context(ctx, inputs, output)`; `backward(ctx, *grads)` gives
    one gradient an argument (None where there is none). What `backward` computes with tensor operations can be
    differentiated again.

    >>> import stowgrad as torch
    >>> class Square(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return 2 * grad * x
    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> Square.apply(x).backward()
    >>> x.grad
    tensor([6.])
    """

    generate_vmap_rule = False

    def __init__(self, *args, **kwargs):
        import warnings

        warnings.warn(
            f"{type(self).__name__} should not be instantiated: the methods of an autograd function are static, call "
            f"{type(self).__name__}.apply",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args, **kwargs):
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated: make forward and backward static "
            "methods and "
            f"call {type(self).__name__}.apply(...)"
        )

    @staticmethod
    def forward(*args, **kwargs):
        """Computes the outputs; to be written by the subclass."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves what backward needs, when `forward` takes no `ctx`; to be written by the subclass."""
        raise NotImplementedError("setup_context is not implemented by this custom autograd.Function.")

    @staticmethod
    def backward(ctx, *grad_outputs):
        """Gives the gradients of the inputs; to be written by the subclass."""
        raise NotImplementedError(
            f"You must implement either the backward or vjp method of the custom autograd.Function {_name_of(ctx)} "
            "to differentiate it"
        )

    vjp = backward  # torch's other name for it

    @staticmethod
    def jvp(ctx, *grad_inputs):
        """Forward-mode derivative: not available in stowgrad."""
        raise NotImplementedError(
            f"jvp of the custom autograd.Function {_name_of(ctx)}: stowgrad has no forward-mode differentiation"
        )

    @staticmethod
    def vmap(info, in_dims, *args):
        """Batching rule: not available in stowgrad."""
        raise NotImplementedError("vmap of a custom autograd.Function: stowgrad has no vmap")


def _name_of(ctx) -> str:
    return getattr(getattr(ctx, "_forward_cls", None), "__name__", type(ctx).__name__)


class InplaceFunction(Function):
    """A Function with an `inplace` flag; kept for old code."""

    def __init__(self, inplace=False):
        self.inplace = inplace


_TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


class _Refuse(Function):
    """Passes tensors on, and refuses to be differentiated. `count` outputs come first; the rest only ties the node to
    its graph.
    """

    @staticmethod
    def forward(ctx, name, count, *tensors):
        ctx.function = name
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(f"{_TWICE}: {ctx.function}")


def once_differentiable(fn):
    """Decorates a `backward` that must not be differentiated itself: a second derivative through it is an error, not a
    wrong number.

    >>> import stowgrad as torch
    >>> from stowgrad.autograd.function import once_differentiable
    >>> class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2
    ...     @staticmethod
    ...     @once_differentiable
    ...     def backward(ctx, grad):
    ...         return grad * 2
    """
    from functools import wraps

    from stowgrad.autograd.grad_mode import no_grad

    @wraps(fn)
    def backward(ctx, *args):
        if not _C.is_grad_enabled():
            return fn(ctx, *args)
        with no_grad():
            outputs = fn(ctx, *args)
        tied = [a for a in args if isinstance(a, _C.Tensor) and a.requires_grad]
        if not tied:
            return outputs
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        tensors = [o for o in several if isinstance(o, _C.Tensor)]
        if not tensors:
            return outputs
        refused = iter(_Refuse.apply(_name_of(ctx), len(tensors), *tensors, *tied))
        several = tuple(next(refused) if isinstance(o, _C.Tensor) else o for o in several)
        return several if isinstance(outputs, tuple) else several[0]

    return backward
