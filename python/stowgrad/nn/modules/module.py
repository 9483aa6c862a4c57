"""`Module`: a tree of parameters, buffers and submodules with one `forward`.

What is known here: parameters, hooks, state dicts. What must not be known here: any particular layer.

Invariants:
- a parameter, buffer or submodule stands in exactly one of `_parameters`, `_buffers`, `_modules`, never in the instance
dict;
- a call with no hook anywhere costs five truth tests and one call of `forward`: all else is in `_call_hooked`;
- tables of hooks are ordered by registration (`prepend=True` puts a hook first) and keyed by the id of their handle.
"""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Mapping

import stowgrad
from stowgrad import _C
from stowgrad.nn.modules.module_hooks import BackwardHook
from stowgrad.nn.parameter import Buffer, Parameter
from stowgrad.utils.hooks import RemovableHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]

Tensor = _C.Tensor
_ABSENT = object()
_EXTRA_STATE_KEY_SUFFIX = "_extra_state"


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """What `load_state_dict` found missing and unexpected."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


# ---- hooks on every module ----

_global_parameter_registration_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_module_registration_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_buffer_registration_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_backward_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_backward_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_is_full_backward_hook: bool | None = None
_global_forward_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_forward_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_forward_hooks_always_called: OrderedDict[int, bool] = OrderedDict()
_global_forward_hooks_with_kwargs: OrderedDict[int, bool] = OrderedDict()
# True once any of the four global tables that a call looks at was ever filled: spares four tests a call until then.
_global_call_hooks_used = False


def _has_any_global_hook() -> bool:
    return bool(
        _global_backward_pre_hooks or _global_backward_hooks or _global_forward_pre_hooks or _global_forward_hooks
    )


def _register(table: OrderedDict, hook: Callable, *flags: OrderedDict, prepend: bool = False) -> RemovableHandle:
    """Puts `hook` into `table` and its id into each table of flags; the handle clears them all."""
    handle = RemovableHandle(table, extra_dict=list(flags))
    table[handle.id] = hook
    for flag in flags:
        flag[handle.id] = True
    if prepend:
        table.move_to_end(handle.id, last=False)
    return handle


def register_module_parameter_registration_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, name, param)` before any module registers a parameter; what it returns, if not None, is
    registered.
    """
    return _register(_global_parameter_registration_hooks, hook)


def register_module_module_registration_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, name, submodule)` before any module registers a submodule; a value other than None replaces
    it.
    """
    return _register(_global_module_registration_hooks, hook)


def register_module_buffer_registration_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, name, buffer)` before any module registers a buffer; what it returns, if not None, is
    registered.
    """
    return _register(_global_buffer_registration_hooks, hook)


def register_module_forward_pre_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, args)` before every module's forward; a value other than None replaces the arguments."""
    global _global_call_hooks_used
    _global_call_hooks_used = True
    return _register(_global_forward_pre_hooks, hook)


def register_module_forward_hook(
    hook: Callable, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Calls `hook(module, args, output)` after every module's forward; a value other than None replaces the output.

    `with_kwargs` passes the keyword arguments as a third argument; `always_call` calls it even when the forward raised.
    """
    global _global_call_hooks_used
    _global_call_hooks_used = True
    flags = [_global_forward_hooks_with_kwargs] * with_kwargs + [_global_forward_hooks_always_called] * always_call
    return _register(_global_forward_hooks, hook, *flags)


def _use_global_backward_hooks(full: bool) -> None:
    global _global_is_full_backward_hook, _global_call_hooks_used
    if _global_is_full_backward_hook is (not full):
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a global Module hook. "
            "Please use only one of them."
        )
    _global_is_full_backward_hook = full
    _global_call_hooks_used = True


def register_module_backward_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, grad_input, grad_output)` at the last node of every module's output: prefer the full hook."""
    _use_global_backward_hooks(False)
    return _register(_global_backward_hooks, hook)


def register_module_full_backward_pre_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, grad_output)` before the gradients of every module's inputs are computed."""
    global _global_call_hooks_used
    _global_call_hooks_used = True
    return _register(_global_backward_pre_hooks, hook)


def register_module_full_backward_hook(hook: Callable) -> RemovableHandle:
    """Calls `hook(module, grad_input, grad_output)` when the gradients of every module's inputs are known."""
    _use_global_backward_hooks(True)
    return _register(_global_backward_hooks, hook)


class _WrappedHook:
    """A hook that gets its module as first argument without keeping it alive."""

    def __init__(self, hook: Callable, module: Module | None = None) -> None:
        self.hook = hook
        functools.update_wrapper(self, hook)
        self.with_module = module is not None
        if module is not None:
            self.module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.with_module:
            return self.hook(*args, **kwargs)
        module = self.module()
        if module is None:
            raise RuntimeError("hook called after the module that registered it was freed")
        return self.hook(module, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "hook": self.hook,
            "with_module": self.with_module,
            "module": self.module() if self.with_module else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["hook"], state["module"] if state["with_module"] else None)


class _NodeHook:
    """A non-full backward hook of a module, as the hook of a node."""

    def __init__(self, hook: Callable, module: Module) -> None:
        self.hook, self.module = hook, module

    def __call__(self, grad_input: Any, grad_output: Any) -> Any:
        return self.hook(self.module, grad_input, grad_output)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ in ("", "builtins") else f"{kind.__module__}.{kind.__qualname__}"


def _addindent(text: str, spaces: int) -> str:
    """`text` with every line but the first moved right."""
    return text.replace("\n", "\n" + " " * spaces)


def _parse_to(args: tuple, kwargs: dict) -> tuple[Any, Any, bool, Any]:
    """The device, dtype, non_blocking and memory format that a call of `to` names."""
    device = kwargs.pop("device", None)
    dtype = kwargs.pop("dtype", None)
    non_blocking = kwargs.pop("non_blocking", False)
    memory_format = kwargs.pop("memory_format", None)
    other = kwargs.pop("tensor", kwargs.pop("other", None))
    rest = list(args)
    if rest and isinstance(rest[0], Tensor):
        other = rest.pop(0)
    elif rest and isinstance(rest[0], _C.dtype):
        dtype = rest.pop(0)
    elif rest:
        device = rest.pop(0)
        if rest and (rest[0] is None or isinstance(rest[0], _C.dtype)):
            dtype = rest.pop(0)
    if other is not None:
        device, dtype = other.device, other.dtype
    if rest and isinstance(rest[0], bool):
        non_blocking = rest.pop(0)
    if rest and isinstance(rest[0], bool):  # copy: a module copies only what changes
        rest.pop(0)
    if rest or kwargs or not (dtype is None or isinstance(dtype, _C.dtype)):
        raise TypeError(
            f"to() received an invalid combination of arguments: {args}, {kwargs or ''}; "
            "it takes (device, dtype, non_blocking), (dtype, non_blocking), (tensor, non_blocking) or "
            "(memory_format=...)"
        )
    if device is not None:
        device = _C.device(device)
    return device, dtype, non_blocking, memory_format


class Module:
    """Base class of all layers and models.

    A subclass calls `super().__init__()` before it assigns parameters, buffers or submodules, and defines `forward`.
    Calling the module runs its hooks and `forward`.

    >>> import stowgrad as torch
    >>> class Shift(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.by = torch.nn.Parameter(torch.ones(2))
    ...
    ...     def forward(self, x):
    ...         return x + self.by
    >>> m = Shift()
    >>> [name for name, _ in m.named_parameters()]
    ['by']
    >>> m(torch.zeros(2)).tolist()
    [1.0, 1.0]
    """

    dump_patches = False
    _version = 1
    call_super_init = False
    training: bool
    _compiled_call_impl = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self.call_super_init is False:
            if kwargs:
                raise TypeError(
                    f"{type(self).__name__}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'"
                )
            if args:
                raise TypeError(
                    f"{type(self).__name__}.__init__() takes 1 positional argument but {len(args) + 1} were given"
                )
        d = self.__dict__
        d["training"] = True
        d["_parameters"] = {}
        d["_buffers"] = {}
        d["_non_persistent_buffers_set"] = set()
        d["_backward_pre_hooks"] = OrderedDict()
        d["_backward_hooks"] = OrderedDict()
        d["_is_full_backward_hook"] = None
        d["_forward_hooks"] = OrderedDict()
        d["_forward_hooks_with_kwargs"] = OrderedDict()
        d["_forward_hooks_always_called"] = OrderedDict()
        d["_forward_pre_hooks"] = OrderedDict()
        d["_forward_pre_hooks_with_kwargs"] = OrderedDict()
        d["_state_dict_hooks"] = OrderedDict()
        d["_state_dict_pre_hooks"] = OrderedDict()
        d["_load_state_dict_pre_hooks"] = OrderedDict()
        d["_load_state_dict_post_hooks"] = OrderedDict()
        d["_modules"] = {}
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *input: Any) -> Any:
        """The computation of this module: every subclass defines it. NotImplementedError here."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    # ---- calls ----

    def __call__(self, input: Any = _ABSENT, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the hooks of this module and its `forward`."""
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or _global_call_hooks_used
        ):
            return self._call_hooked(args if input is _ABSENT else (input, *args), kwargs)
        if not args and not kwargs and input is not _ABSENT:
            return self.forward(input)
        if input is _ABSENT:
            return self.forward(**kwargs)
        return self.forward(input, *args, **kwargs)

    _call_impl = __call__
    _wrapped_call_impl = __call__

    def _call_hooked(self, args: tuple, kwargs: dict) -> Any:
        called: set[int] = set()
        result = None
        try:
            args, kwargs = self._run_forward_pre_hooks(args, kwargs)
            full, non_full = self._get_backward_hooks()
            pre = self._get_backward_pre_hooks()
            around = BackwardHook(self, full, pre) if full or pre else None
            if around is not None:
                args = around.setup_input_hook(args)
            result = self.forward(*args, **kwargs)
            for id_, hook, with_kwargs, always in self._forward_hooks_in_order():
                if always:
                    called.add(id_)
                given = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                if given is not None:
                    result = given
            if around is not None:
                if not isinstance(result, (Tensor, tuple)):
                    warnings.warn(
                        "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but "
                        f"{type(self).__name__} gave a {type(result).__name__}",
                        stacklevel=3,
                    )
                result = around.setup_output_hook(result)
            if non_full:
                self._hook_last_node(args, result, non_full)
            return result
        except Exception:
            for id_, hook, with_kwargs, always in self._forward_hooks_in_order():
                if not always or id_ in called:
                    continue
                try:
                    given = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                    if given is not None:
                        result = given
                except Exception as e:  # the error of the forward is the one to report
                    warnings.warn(
                        f"forward hook with always_call=True raised {e!r}, which was silenced as another "
                        "error was raised "
                        f"in the forward of {type(self).__name__}",
                        stacklevel=3,
                    )
            raise

    def _run_forward_pre_hooks(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        for hook in list(_global_forward_pre_hooks.values()):
            given = hook(self, args)
            if given is not None:
                args = given if isinstance(given, tuple) else (given,)
        for id_, hook in list(self._forward_pre_hooks.items()):
            if id_ in self._forward_pre_hooks_with_kwargs:
                given = hook(self, args, kwargs)
                if given is None:
                    continue
                if not (isinstance(given, tuple) and len(given) == 2):
                    raise RuntimeError(
                        "forward pre-hook must return None or a tuple of (new_args, new_kwargs), "
                        f"but {hook!r} of {type(self).__name__} gave {given!r}"
                    )
                args, kwargs = given
            else:
                given = hook(self, args)
                if given is not None:
                    args = given if isinstance(given, tuple) else (given,)
        return args, kwargs

    def _forward_hooks_in_order(self) -> list[tuple[int, Callable, bool, bool]]:
        """(id, hook, with_kwargs, always_call) of each forward hook, global ones first."""
        found = [
            (i, hook, i in _global_forward_hooks_with_kwargs, i in _global_forward_hooks_always_called)
            for i, hook in _global_forward_hooks.items()
        ]
        found += [
            (i, hook, i in self._forward_hooks_with_kwargs, i in self._forward_hooks_always_called)
            for i, hook in self._forward_hooks.items()
        ]
        return found

    def _get_backward_hooks(self) -> tuple[list[Callable], list[Callable]]:
        """The full and the non-full backward hooks that apply to this module."""
        full: list[Callable] = []
        non_full: list[Callable] = []
        if _global_backward_hooks:
            (full if _global_is_full_backward_hook else non_full).extend(_global_backward_hooks.values())
        if self._backward_hooks:
            (full if self._is_full_backward_hook else non_full).extend(self._backward_hooks.values())
        return full, non_full

    def _get_backward_pre_hooks(self) -> list[Callable]:
        return [*_global_backward_pre_hooks.values(), *self._backward_pre_hooks.values()]

    def _hook_last_node(self, args: tuple, result: Any, hooks: list[Callable]) -> None:
        first = result
        while not isinstance(first, Tensor):
            first = next(v for v in first.values() if isinstance(v, Tensor)) if isinstance(first, Mapping) else first[0]
        node = first.grad_fn
        if node is None:
            return
        for hook in hooks:
            node.register_hook(_NodeHook(hook, self))
        self._maybe_warn_non_full_backward_hook(args, result, node)

    def _maybe_warn_non_full_backward_hook(self, inputs: Any, result: Any, grad_fn: Any) -> None:
        outputs = result if isinstance(result, tuple) else (result,)
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        if not all(isinstance(t, Tensor) for t in (*outputs, *inputs)):
            reason = "some inputs or outputs are not tensors"
        elif len({t.grad_fn for t in outputs if t.grad_fn is not None}) > 1:
            reason = "its outputs come from several nodes"
        else:
            ends = {node for node, _ in grad_fn.next_functions if node is not None}
            starts = {t.grad_fn for t in inputs if t.grad_fn is not None}
            starts |= {node for node in ends if node.name() == "torch::autograd::AccumulateGrad"}
            if ends <= starts:
                return
            reason = "its forward is several operations, and the hook sees the inputs of the last one only"
        warnings.warn(
            f"Using a non-full backward hook on {type(self).__name__}: {reason}, so grad_input may be incomplete. "
            "Use register_full_backward_hook.",
            FutureWarning,
            stacklevel=4,
        )

    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, args)` before `forward`; a value other than None replaces the arguments.

        With `with_kwargs` the call is `hook(module, args, kwargs)` and a replacement is a pair (args, kwargs).
        """
        flags = [self._forward_pre_hooks_with_kwargs] * with_kwargs
        return _register(self._forward_pre_hooks, hook, *flags, prepend=prepend)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Calls `hook(module, args, output)` after `forward`; a value other than None replaces the output.

        With `with_kwargs` the call is `hook(module, args, kwargs, output)`; with `always_call` it comes even after an
        error.
        """
        flags = [self._forward_hooks_with_kwargs] * with_kwargs + [self._forward_hooks_always_called] * always_call
        return _register(self._forward_hooks, hook, *flags, prepend=prepend)

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Calls `hook(module, grad_output)` when the gradients of the outputs are known; a tuple replaces them."""
        return _register(self._backward_pre_hooks, hook, prepend=prepend)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Calls `hook(module, grad_input, grad_output)` when the gradients of the inputs are known; a tuple replaces
        them.

        >>> import stowgrad as torch
        >>> m = torch.nn.Identity()
        >>> _ = m.register_full_backward_hook(lambda module, gi, go: (gi[0] * 3,))
        >>> x = torch.ones(2, requires_grad=True)
        >>> m(x).sum().backward()
        >>> x.grad.tolist()
        [3.0, 3.0]
        """
        self._use_backward_hooks(True)
        return _register(self._backward_hooks, hook, prepend=prepend)

    def register_backward_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(module, grad_input, grad_output)` at the node of the output: prefer
        `register_full_backward_hook`.
        """
        self._use_backward_hooks(False)
        return _register(self._backward_hooks, hook)

    def _use_backward_hooks(self, full: bool) -> None:
        if self._is_full_backward_hook is (not full):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. "
                "Please use only one of them."
            )
        self._is_full_backward_hook = full

    # ---- registering ----

    def _check_new_name(self, name: Any, what: str, known: Mapping[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {_type_name(name)}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain "."; got {name!r}')
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')
        if name not in known and hasattr(self, name):
            raise KeyError(f"attribute '{name}' already exists")

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that belongs to the state but is not trained; `persistent=False` keeps it out of `state_dict`.

        KeyError for a name with a dot, an empty one, or one that an attribute has; TypeError for a value that is no
        tensor.
        """
        if "_buffers" not in self.__dict__:
            raise AttributeError("cannot assign buffer before Module.__init__() call")
        self._check_new_name(name, "buffer", self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{_type_name(tensor)}' object to buffer '{name}' (torch Tensor or None required)"
            )
        for hook in _global_buffer_registration_hooks.values():
            given = hook(self, name, tensor)
            if given is not None:
                tensor = given
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter, reachable as attribute `name`; None reserves the name.

        KeyError for a name with a dot, an empty one, or one that an attribute has; TypeError for a value that is no
        Parameter; ValueError for a Parameter that has a `grad_fn`.
        """
        if "_parameters" not in self.__dict__:
            raise AttributeError("cannot assign parameter before Module.__init__() call")
        self._check_new_name(name, "parameter", self._parameters)
        if param is not None:
            if not isinstance(param, Parameter):
                raise TypeError(
                    f"cannot assign '{_type_name(param)}' object to parameter '{name}' (torch.nn.Parameter "
                    "or None required)"
                )
            if param.grad_fn is not None:
                raise ValueError(
                    f"Cannot assign non-leaf Tensor to parameter '{name}': it was computed by {param.grad_fn.name()}; "
                    "model parameters are leaves: compute the value in forward() instead"
                )
            for hook in _global_parameter_registration_hooks.values():
                given = hook(self, name, param)
                if given is not None:
                    param = given
        self._parameters[name] = param

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a submodule, reachable as attribute `name`. TypeError, KeyError as `register_parameter`."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{_type_name(module)} is not a Module subclass")
        self._check_new_name(name, "module", self._modules)
        self._modules[name] = self._module_as_hooks_give(name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    def _module_as_hooks_give(self, name: str, module: Module | None) -> Module | None:
        for hook in _global_module_registration_hooks.values():
            given = hook(self, name, module)
            if given is not None:
                module = given
        return module

    # ---- attributes ----

    def __getattr__(self, name: str) -> Any:
        d = self.__dict__
        table = d.get("_parameters")
        if table is not None and name in table:
            return table[name]
        table = d.get("_modules")
        if table is not None and name in table:
            return table[name]
        table = d.get("_buffers")
        if table is not None and name in table:
            return table[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        d = self.__dict__
        params = d.get("_parameters")
        is_tensor = isinstance(value, Tensor)  # spares what is no tensor the look into the metaclass
        if is_tensor and isinstance(value, Parameter):
            if params is None:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, d, d["_buffers"], d["_modules"])
            self.register_parameter(name, value)
            return
        if params is not None and name in params:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as parameter '{name}' (torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, None)
            return
        modules = d.get("_modules")
        if isinstance(value, Module):
            if modules is None:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, d, params, d["_buffers"])
            modules[name] = self._module_as_hooks_give(name, value)
            return
        if modules is not None and name in modules:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as child module '{name}' (torch.nn.Module or None expected)"
                )
            modules[name] = self._module_as_hooks_give(name, None)
            return
        buffers = d.get("_buffers")
        if buffers is not None and name in buffers:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as buffer '{name}' (torch.nn.Buffer, torch.Tensor "
                    "or None expected)"
                )
            persistent = value.persistent if isinstance(value, Buffer) else name not in self._non_persistent_buffers_set
            self.register_buffer(name, value, persistent)
            return
        if is_tensor and isinstance(value, Buffer):
            if buffers is None:
                raise AttributeError("cannot assign buffer before Module.__init__() call")
            self._forget(name, d, params, modules)
            self.register_buffer(name, value, value.persistent)
            return
        object.__setattr__(self, name, value)

    def _forget(self, name: str, *tables: dict[str, Any]) -> None:
        for table in tables:
            table.pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __delattr__(self, name: str) -> None:
        if name in self._parameters:
            del self._parameters[name]
        elif name in self._buffers:
            del self._buffers[name]
            self._non_persistent_buffers_set.discard(name)
        elif name in self._modules:
            del self._modules[name]
        else:
            object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *self.__dict__, *self._parameters, *self._modules, *self._buffers}
        return sorted(name for name in names if not name[0].isdigit())

    # ---- finding by path ----

    def get_submodule(self, target: str) -> Module:
        """The submodule at the dotted path `target`, itself for "". AttributeError when the path leads nowhere.

        >>> import stowgrad as torch
        >>> m = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU()))
        >>> m.get_submodule("0.0")
        ReLU()
        """
        module = self
        for item in target.split(".") if target else ():
            if not hasattr(module, item):
                raise AttributeError(
                    f"{type(module).__name__} has no attribute `{item}`, on the way to submodule '{target}'"
                )
            module = getattr(module, item)
            if not isinstance(module, Module):
                raise AttributeError(f"`{item}` is not an nn.Module, on the way to submodule '{target}'")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Puts `module` at the dotted path `target`; with `strict` something must be there already.

        ValueError for an empty path or a value that is no Module; AttributeError when the path leads nowhere.
        """
        if target == "":
            raise ValueError("set_submodule needs the path of a submodule; got an empty one")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {_type_name(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{type(parent).__name__} has no attribute `{name}` to replace")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` of {type(parent).__name__} is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at the dotted path `target`. AttributeError when there is none."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        param = getattr(module, name)
        if not isinstance(param, Parameter):
            raise AttributeError(f"`{name}` of {type(module).__name__} is not an nn.Parameter")
        return param

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at the dotted path `target`. AttributeError when there is none."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        if name not in module._buffers:
            raise AttributeError(f"`{name}` of {type(module).__name__} is not a buffer")
        return module._buffers[name]

    # ---- walking ----

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) of this module and all below it, each module once unless `remove_duplicate=False`."""
        if memo is None:
            memo = set()
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all below it, each once unless `remove_duplicate=False`."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the direct submodules, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct submodules, each once."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self, get_members_fn: Callable, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, member in get_members_fn(module):
                if member is None or member in seen:
                    continue
                if remove_duplicate:
                    seen.add(member)
                yield (f"{path}.{name}" if path else name), member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(path, parameter) of this module and, with `recurse`, of all below it; a shared parameter comes once."""
        yield from self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and, with `recurse`, of all below it, each once."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(path, buffer) of this module and, with `recurse`, of all below it; a shared buffer comes once."""
        yield from self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, of all below it, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    # ---- modes and conversions ----

    def train(self, mode: bool = True) -> Module:
        """Sets `training` here and below: what dropout and batch norm look at. ValueError when `mode` is no bool."""
        if not isinstance(mode, bool):
            raise ValueError(f"training mode is expected to be boolean; got {mode!r}")
        self.training = mode
        for module in self._modules.values():
            if module is not None:
                module.train(mode)
        return self

    def eval(self) -> Module:
        """The same as `train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Sets whether gradients are wanted for every parameter here and below."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradient of every parameter here and below, or fills it with zeros when `set_to_none=False`."""
        for param in self.parameters():
            if param.grad is None:
                continue
            if set_to_none:
                param.grad = None
            else:
                if param.grad.grad_fn is not None:
                    param.grad.detach_()
                else:
                    param.grad.requires_grad_(False)
                param.grad.zero_()

    def apply(self, fn: Callable[[Module], None]) -> Module:
        """Calls `fn` with every module below and then with this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
        """Replaces what every parameter, gradient and buffer holds by `fn` of it; parameters keep their identity."""
        if recurse:
            for module in self.children():
                module._apply(fn)
        for param in self._parameters.values():
            if param is None:
                continue
            with stowgrad.no_grad():
                param.data = fn(param)
                if param.grad is not None:
                    param.grad.data = fn(param.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Module:
        """Moves or casts parameters and buffers in place: `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`.

        A dtype must be floating, and changes floating parameters and buffers alone: TypeError otherwise.
        """
        device, dtype, non_blocking, memory_format = _parse_to(args, dict(kwargs))
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")

        def convert(t: Tensor) -> Tensor:
            cast = dtype if t.is_floating_point() else None
            if memory_format is not None and t.dim() in (4, 5):
                return t.to(device, cast, non_blocking, memory_format=memory_format)
            return t.to(device, cast, non_blocking)

        return self._apply(convert)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Module:
        """Gives parameters and buffers new memory on `device`, with no values in it."""
        return self._apply(lambda t: _C.empty_like(t, device=device), recurse=recurse)

    def type(self, dst_type: Any) -> Module:
        """Casts all parameters and buffers to `dst_type`."""
        return self._apply(lambda t: t.type(dst_type))

    def float(self) -> Module:
        """Casts floating parameters and buffers to float32."""
        return self._apply(lambda t: t.float() if t.is_floating_point() else t)

    def double(self) -> Module:
        """Casts floating parameters and buffers to float64."""
        return self._apply(lambda t: t.double() if t.is_floating_point() else t)

    def half(self) -> Module:
        """Casts floating parameters and buffers to float16."""
        return self._apply(lambda t: t.half() if t.is_floating_point() else t)

    def bfloat16(self) -> Module:
        """Casts floating parameters and buffers to bfloat16."""
        return self._apply(lambda t: t.bfloat16() if t.is_floating_point() else t)

    def cpu(self) -> Module:
        """Moves parameters and buffers to the CPU."""
        return self._apply(lambda t: t.cpu())

    def cuda(self, device: Any = None) -> Module:
        """Moves parameters and buffers to a GPU, which needs torch; the error of `Tensor.cuda` where it is missing."""
        return self._apply(lambda t: t.cuda(device))

    def share_memory(self) -> Module:
        """Moves parameters and buffers to shared memory."""
        return self._apply(lambda t: t.share_memory_())

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Does what `stowgrad.compile` does: nothing, with one warning."""
        stowgrad.compile(self, *args, **kwargs)

    # ---- state ----

    def get_extra_state(self) -> Any:
        """What a subclass adds to `state_dict`, by defining this and `set_extra_state`. RuntimeError here."""
        raise RuntimeError(
            f"{type(self).__name__}.get_extra_state() is not defined, though the module is asked for extra state"
        )

    def set_extra_state(self, state: Any) -> None:
        """Takes back what `get_extra_state` gave. RuntimeError here."""
        raise RuntimeError(
            f"{type(self).__name__}.set_extra_state() is not defined, though the state dict holds extra state"
        )

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """An ordered dict of every parameter and persistent buffer by path; values share memory with the module.

        They are detached unless `keep_vars`. Versions stand in its attribute `_metadata`.

        >>> import stowgrad as torch
        >>> list(torch.nn.Linear(2, 3).state_dict())
        ['weight', 'bias']
        """
        if args:
            warnings.warn("state_dict takes its arguments by keyword: positional ones are deprecated", FutureWarning, 2)
            destination = args[0] if destination is None else destination
            prefix = args[1] if len(args) > 1 and prefix == "" else prefix
            keep_vars = args[2] if len(args) > 2 and keep_vars is False else keep_vars
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        local_metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local_metadata
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            given = hook(self, destination, prefix, local_metadata)
            if getattr(hook, "_from_public_api", False):
                if given is not None:
                    raise RuntimeError(f"state_dict post-hook must return None; {hook!r} gave {type(given).__name__}")
            elif given is not None:
                destination = given
        return destination

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Writes what this module alone holds; subclasses extend it."""
        for name, param in self._parameters.items():
            if param is not None:
                destination[prefix + name] = param if keep_vars else param.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent_buffers_set:
                destination[prefix + name] = buffer if keep_vars else buffer.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[prefix + _EXTRA_STATE_KEY_SUFFIX] = self.get_extra_state()

    def _register_state_dict_hook(self, hook: Callable) -> RemovableHandle:
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "this hook was registered by register_state_dict_post_hook: it cannot be registered again here"
            )
        return _register(self._state_dict_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(module, state_dict, prefix, local_metadata)` after this module wrote its state; it may change
        the dict.
        """
        hook._from_public_api = True
        return _register(self._state_dict_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(module, prefix, keep_vars)` before this module writes its state."""
        return _register(self._state_dict_pre_hooks, hook)

    def _register_load_state_dict_pre_hook(self, hook: Callable, with_module: bool = False) -> RemovableHandle:
        return _register(self._load_state_dict_pre_hooks, _WrappedHook(hook, self if with_module else None))

    def register_load_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(module, state_dict, prefix, local_metadata, strict, missing, unexpected, errors)` before
        loading here.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """Calls `hook(module, incompatible_keys)` after loading here and below; it may edit the two lists in place."""
        return _register(self._load_state_dict_post_hooks, hook)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copies values by path into parameters and buffers, or with `assign` puts the given tensors in their place.

        Gives (missing_keys, unexpected_keys). RuntimeError that lists all that differs: missing and unexpected keys
        when `strict`, and shapes that do not fit always; TypeError when `state_dict` is no mapping.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {_type_name(state_dict)}.")
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        metadata = getattr(state_dict, "_metadata", None)
        state_dict = OrderedDict(state_dict)
        if metadata is not None:
            state_dict._metadata = metadata

        def load(module: Module, local: Any, prefix: str) -> None:
            local_metadata = {} if metadata is None else metadata.get(prefix[:-1], {})
            if assign:
                local_metadata["assign_to_params_buffers"] = assign
            module._load_from_state_dict(local, prefix, local_metadata, True, missing, unexpected, errors)
            for name, child in module._modules.items():
                if child is not None:
                    below = f"{prefix}{name}."
                    load(child, {k: v for k, v in local.items() if k.startswith(below)}, below)
            found = _IncompatibleKeys(missing, unexpected)
            for hook in module._load_state_dict_post_hooks.values():
                if hook(module, found) is not None:
                    raise AssertionError("a load_state_dict post-hook edits the given keys in place: it returns None")

        load(self, state_dict, "")
        if strict:
            if unexpected:
                errors.insert(0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
            if missing:
                errors.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
        if errors:
            raise RuntimeError(
                "Error(s) in loading state_dict for {}:\n\t{}".format(type(self).__name__, "\n\t".join(errors))
            )
        return _IncompatibleKeys(missing, unexpected)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Reads what this module alone holds, adding to the three lists; subclasses extend it."""
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        kept = ((n, b) for n, b in self._buffers.items() if n not in self._non_persistent_buffers_set)
        own = {name: t for name, t in itertools.chain(self._parameters.items(), kept) if t is not None}
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, param in own.items():
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            given = state_dict[key]
            if not isinstance(given, Tensor):
                error_msgs.append(
                    f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from '
                    f"checkpoint but received {type(given)}"
                )
                continue
            if param.dim() == 0 and given.dim() == 1:
                given = given[0]  # scalars were saved with one dimension by very old files
            if given.shape != param.shape:
                error_msgs.append(
                    f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, "
                    f"the shape in current model is {param.shape}."
                )
                continue
            try:
                with stowgrad.no_grad():
                    if not assign:
                        param.copy_(given)
                        continue
                    if isinstance(param, Parameter):
                        if not isinstance(given, Parameter):
                            given = Parameter(given, requires_grad=param.requires_grad)
                        else:
                            given.requires_grad_(param.requires_grad)
                    setattr(self, name, given)
            except Exception as e:  # every key is reported, not the first alone
                error_msgs.append(
                    f'While copying the parameter named "{key}", whose dimensions in the model are {param.size()} and '
                    f"whose dimensions in the checkpoint are {given.size()}, an exception occurred : {e.args}."
                )
        extra_key = prefix + _EXTRA_STATE_KEY_SUFFIX
        if type(self).set_extra_state is not Module.set_extra_state:
            if extra_key in state_dict:
                self.set_extra_state(state_dict[extra_key])
            elif strict:
                missing_keys.append(extra_key)
        elif strict and extra_key in state_dict:
            unexpected_keys.append(extra_key)
        if strict:
            for key in state_dict:
                if key.startswith(prefix) and key != extra_key:
                    name, _, below = key[len(prefix) :].partition(".")
                    if name not in self._modules if below else name not in own:
                        unexpected_keys.append(key)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A module pickled by an older version lacks tables that came later.
        for name in _HOOK_TABLES:
            self.__dict__.setdefault(name, OrderedDict())
        self.__dict__.setdefault("_non_persistent_buffers_set", set())
        self.__dict__.setdefault("_is_full_backward_hook", None)

    def _replicate_for_data_parallel(self) -> Module:
        replica = self.__new__(type(self))
        replica.__dict__ = self.__dict__.copy()
        replica._parameters = {}
        replica._buffers = replica._buffers.copy()
        replica._modules = replica._modules.copy()
        replica._is_replica = True
        return replica

    # ---- printing ----

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What a subclass prints between its parentheses, one line or several."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        child_lines = [f"({name}): {_addindent(repr(module), 2)}" for name, module in self._modules.items()]
        lines = extra_lines + child_lines
        if len(extra_lines) == 1 and not child_lines:
            inside = extra_lines[0]
        else:
            inside = "\n  " + "\n  ".join(lines) + "\n" if lines else ""
        return f"{self._get_name()}({inside})"


_HOOK_TABLES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)
