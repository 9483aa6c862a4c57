"""Dispatch modes: contexts that see every operation of a thread below autograd.

The stack of modes is the core's, one for each thread; operations ask it themselves. Here are the base class, what looks at the stack, and
the helpers for subclasses of Tensor that wrap other tensors.
"""

from __future__ import annotations

from contextlib import contextmanager

from stowgrad import _C

__all__ = [
    "BaseTorchDispatchMode",
    "TorchDispatchMode",
    "TraceableWrapperSubclass",
    "is_in_torch_dispatch_mode",
    "is_traceable_wrapper_subclass",
    "is_traceable_wrapper_subclass_type",
    "return_and_correct_aliasing",
    "transform_subclass",
]

_len_torch_dispatch_stack = _C._len_torch_dispatch_stack
_get_dispatch_stack_at = _C._get_dispatch_stack_at
_push_on_torch_dispatch_stack = _C._push_on_torch_dispatch_stack
_pop_torch_dispatch_stack = _C._pop_torch_dispatch_stack


class TorchDispatchMode:
    """A context in which `__torch_dispatch__(func, types, args, kwargs)` of the object answers for every operation of the thread.

    `func` is an overload, such as `torch.ops.aten.add.Tensor`: it can be called, compared, printed, and its `_schema` says which arguments
    it writes. `args` and `kwargs` are those of the schema, without those that have their defaults. What the method returns is the result,
    of which autograd then makes a part of the graph; the method itself is below autograd, and while it runs the mode is off. Operations of
    backward are seen too, while the mode is active. Of nested modes the innermost is asked first, and those around it see what its method
    calls. An exception passes through and leaves the stack as it was.

    >>> import stowgrad as torch
    >>> class Names(TorchDispatchMode):
    ...     def __torch_dispatch__(self, func, types, args=(), kwargs=None):
    ...         print(func)
    ...         return func(*args, **(kwargs or {}))
    >>> x = torch.ones(2, requires_grad=True)
    >>> with Names():
    ...     y = (x * 3).sum()
    aten.mul.Tensor
    aten.sum.default
    >>> y.grad_fn.name()
    'SumBackward0'
    """

    def __init__(self, _dispatch_key=None) -> None:
        if _dispatch_key is not None:
            raise NotImplementedError("TorchDispatchMode: dispatch keys belong to torch's compiler; leave _dispatch_key out")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"{type(self).__name__} defines no __torch_dispatch__")

    def __enter__(self):
        _C._push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        _C._pop_torch_dispatch_stack()

    @classmethod
    def push(cls, *args, **kwargs):
        """An instance, to be entered by `with`."""
        return cls(*args, **kwargs)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether it belongs to torch's compiler: no."""
        return False


class BaseTorchDispatchMode(TorchDispatchMode):
    """A mode that passes everything on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _get_current_dispatch_mode():
    """The innermost mode of this thread, or None."""
    n = _C._len_torch_dispatch_stack()
    return _C._get_dispatch_stack_at(n - 1) if n else None


def _get_current_dispatch_mode_stack() -> list:
    """The modes of this thread, outermost first."""
    return [_C._get_dispatch_stack_at(i) for i in range(_C._len_torch_dispatch_stack())]


def is_in_torch_dispatch_mode(include_infra_modes: bool = True) -> bool:
    """Whether a mode is active on this thread, or its method is running."""
    return _C._len_torch_dispatch_stack() > 0 or _C._in_dispatch_handler()


def any_torch_dispatch_mode_on_stack(*, include_infra_modes: bool = True) -> bool:
    """Whether a mode is on the stack of this thread."""
    return _C._len_torch_dispatch_stack() > 0


def _push_mode(mode: TorchDispatchMode) -> None:
    _C._push_on_torch_dispatch_stack(mode)


def _pop_mode(k=None):
    return _C._pop_torch_dispatch_stack(k)


@contextmanager
def _pop_mode_temporarily(k=None):
    """Takes the innermost mode off for a while, and gives it."""
    mode = _pop_mode(k)
    try:
        yield mode
    finally:
        _push_mode(mode)


@contextmanager
def _disable_current_modes():
    """Takes every mode of this thread off for a while, and gives them, outermost first.

    >>> import stowgrad as torch
    >>> with BaseTorchDispatchMode(), _disable_current_modes() as modes:
    ...     print(len(modes), _get_current_dispatch_mode())
    1 None
    """
    modes = _get_current_dispatch_mode_stack()
    for _ in modes:
        _C._pop_torch_dispatch_stack()
    try:
        yield modes
    finally:
        for mode in modes:
            _C._push_on_torch_dispatch_stack(mode)


class TraceableWrapperSubclass(_C.Tensor):
    """What a subclass of Tensor that wraps other tensors offers: `__tensor_flatten__` names the attributes that hold them, and
    `__tensor_unflatten__` makes an instance of them. A class of types alone: none of its own is ever made.
    """

    def __tensor_flatten__(self):
        raise NotImplementedError(f"{type(self).__name__} defines no __tensor_flatten__")

    @staticmethod
    def __tensor_unflatten__(inner_tensors, flatten_spec, outer_size, outer_stride):
        raise NotImplementedError("this class defines no __tensor_unflatten__")


def is_traceable_wrapper_subclass_type(t: type) -> bool:
    """Whether a class is a subclass of Tensor with `__tensor_flatten__` and `__tensor_unflatten__`."""
    return (
        isinstance(t, type)
        and issubclass(t, _C.Tensor)
        and t is not _C.Tensor
        and hasattr(t, "__tensor_flatten__")
        and hasattr(t, "__tensor_unflatten__")
    )


def is_traceable_wrapper_subclass(t: object) -> bool:
    """Whether an object is a tensor that wraps others and can be taken apart (`__tensor_flatten__`, `__tensor_unflatten__`).

    >>> import stowgrad as torch
    >>> is_traceable_wrapper_subclass(torch.ones(2))
    False
    """
    return is_traceable_wrapper_subclass_type(type(t))


def transform_subclass(t, callback, outer_size=None, outer_stride=None):
    """A wrapper like `t` around `callback(name, tensor)` for each tensor that it holds."""
    names, context = t.__tensor_flatten__()
    inner = {name: callback(name, getattr(t, name)) for name in names}
    size = t.size() if outer_size is None else outer_size
    stride = t.stride() if outer_stride is None else outer_stride
    made = type(t).__tensor_unflatten__(inner, context, size, stride)
    if tuple(made.size()) != tuple(size):
        raise ValueError(f"transform_subclass(): {type(t).__name__} was made of size {tuple(made.size())}, not {tuple(size)}")
    return made


def return_and_correct_aliasing(func, args, kwargs, out):
    """What a handler of a subclass should return for `out`, its own result: where the operation writes to an argument and
    gives it back, the very argument; otherwise `out`.
    """
    kwargs = kwargs or {}
    schema = func._schema

    def written(result):
        alias = result.alias_info
        if alias is None or not alias.is_write:
            return None
        for i, a in enumerate(schema.arguments):
            if a.alias_info is not None and a.alias_info.is_write and a.alias_info.before_set == alias.before_set:
                return kwargs[a.name] if a.name in kwargs else args[i]
        return None

    if not schema.is_mutable:
        return out
    if len(schema.returns) == 1:
        target = written(schema.returns[0])
        return out if target is None else target
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return type(outs)(o if (t := written(r)) is None else t for r, o in zip(schema.returns, outs, strict=True))
