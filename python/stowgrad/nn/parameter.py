"""Parameters and buffers: tensors that a module registers by being assigned one.

What is known here: `Parameter`, a Tensor subclass whose operations give plain tensors, `Buffer`, and how both pickle.
What must not be known here: modules.

Invariants: a `Parameter` made from a plain tensor shares its storage and is a leaf; a tensor of another subclass stays
of its class and is marked by `_is_param`, which `isinstance(t, Parameter)` honours.
"""

from __future__ import annotations

from collections import OrderedDict

from stowgrad import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Buffer", "Parameter"]

Tensor = _C.Tensor


class _ParameterMeta(type(Tensor)):
    """Lets `isinstance` answer for tensors of other subclasses that were made parameters."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if super().__instancecheck__(instance):
            return True
        return cls is Parameter and isinstance(instance, Tensor) and getattr(instance, "_is_param", False)


class Parameter(Tensor, metaclass=_ParameterMeta):
    """A tensor that a module lists among its `parameters()` when it is assigned as an attribute.

    `data` is wrapped without a copy (an empty float tensor when None); `requires_grad` defaults to True. Operations on
    a Parameter give plain tensors. RuntimeError when a gradient is asked of an integer or bool tensor.

    >>> import stowgrad as torch
    >>> p = torch.nn.Parameter(torch.ones(2))
    >>> p
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    >>> type(p * 2) is torch.Tensor
    True
    """

    __torch_function__ = _C._disabled_torch_function_impl

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = _C.empty(0)
        if type(data) is Tensor or type(data) is Parameter:
            return Tensor._make_subclass(cls, data, requires_grad)
        if not isinstance(data, Tensor):
            raise TypeError(f"Parameter wraps a Tensor; {type(data).__name__} is none: make one by torch.tensor(...)")
        marked = data.detach().requires_grad_(requires_grad)
        if type(marked) is not type(data):
            raise RuntimeError(
                f"Parameter of a {type(data).__name__}: its detach() gave a {type(marked).__name__}; a tensor subclass "
                "that is to be a parameter must keep its class under detach()"
            )
        marked._is_param = True
        return marked

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        known = memo.get(id(self))
        if known is not None:
            return known
        copied = type(self)(self.data.clone(), self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        plain = Tensor._make_subclass(Tensor, self.data, self.requires_grad)
        return "Parameter containing:\n" + Tensor.__repr__(plain)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if not state:
            return _rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        return _rebuild_parameter_with_state, (self.data, self.requires_grad, OrderedDict(), state)


if hasattr(_C, "_register_parameter_class"):  # a core that knows the class need not ask it for its overrides
    _C._register_parameter_class(Parameter)


def _rebuild_parameter(data: Tensor, requires_grad: bool, backward_hooks: Any) -> Parameter:
    """Unpickles a Parameter; hooks are never pickled, the third argument stands for torch's file format."""
    return Parameter(data, requires_grad)


def _rebuild_parameter_with_state(data: Tensor, requires_grad: bool, backward_hooks: Any, state: Any) -> Parameter:
    """Unpickles a Parameter that carried attributes of its own."""
    param = Parameter(data, requires_grad)
    plain = state[0] if isinstance(state, tuple) else state
    for name, value in (plain or {}).items():
        setattr(param, name, value)
    return param


class _BufferMeta(type(Tensor)):
    def __instancecheck__(cls, instance: Any) -> bool:
        if super().__instancecheck__(instance):
            return True
        return cls is Buffer and isinstance(instance, Tensor) and getattr(instance, "_is_buffer", False)


class Buffer(Tensor, metaclass=_BufferMeta):
    """Marks a tensor that a module registers as a buffer when it is assigned as an attribute.

    Gives a tensor of the class of `data`, sharing its storage. With `persistent=False` it stays out of `state_dict()`.

    >>> import stowgrad as torch
    >>> m = torch.nn.Module()
    >>> m.steps = torch.nn.Buffer(torch.zeros(1))
    >>> list(m.state_dict())
    ['steps']
    """

    __torch_function__ = _C._disabled_torch_function_impl

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Tensor:
        if data is None:
            data = _C.empty(0)
        marked = data.detach().requires_grad_(data.requires_grad)
        marked.persistent = persistent
        marked._is_buffer = True
        return marked
