"""`__torch_function__`: tensors and modes that take over functions.

The core asks tensors and modes itself; here is what functions written in Python need to do the same, and the base
class of modes. The stack of modes is the core's, one per thread.
"""

from __future__ import annotations

from contextlib import contextmanager

from stowgrad import _C

__all__ = [
    "BaseTorchFunctionMode",
    "TorchFunctionMode",
    "enable_reentrant_dispatch",
    "get_default_nowrap_functions",
    "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides",
    "handle_torch_function",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
    "is_tensor_like",
    "is_tensor_method_or_property",
    "resolve_name",
    "wrap_torch_function",
]

_Tensor = _C.Tensor
_disabled_torch_function_impl = _C._disabled_torch_function_impl


def _overrides(x) -> bool:
    cls = type(x)
    if cls is _Tensor:
        return False
    method = getattr(cls, "__torch_function__", None)
    return method is not None and method is not _disabled_torch_function_impl


def _mode_waits() -> bool:
    return _C._len_torch_function_stack() > 0 and not _C._is_torch_function_all_disabled()


def has_torch_function(relevant_args) -> bool:
    """Whether one of the arguments, or an active mode, takes over functions. Inside `DisableTorchFunctionSubclass` arguments do not, inside
    `DisableTorchFunction` nobody does.
    """
    return _mode_waits() or (_C._is_torch_function_enabled() and any(map(_overrides, relevant_args)))


def has_torch_function_unary(x) -> bool:
    """`has_torch_function` for one argument."""
    return has_torch_function((x,))


def has_torch_function_variadic(*args) -> bool:
    """`has_torch_function` for several arguments."""
    return has_torch_function(args)


def _takers(relevant_args) -> list:
    """The overriding arguments in the order in which they are asked: left to right, subclasses before their bases."""
    takers: list = []
    types: set = set()
    if not _C._is_torch_function_enabled():
        return takers
    for x in relevant_args:
        cls = type(x)
        if cls in types or not _overrides(x):
            continue
        types.add(cls)
        at = next((i for i, other in enumerate(takers) if issubclass(cls, type(other))), len(takers))
        takers.insert(at, x)
    return takers


def handle_torch_function(public_api, relevant_args, *args, **kwargs):
    """Lets the innermost mode, then each overriding argument, answer for `public_api(*args, **kwargs)`. TypeError if
    none does.

    >>> import stowgrad as torch
    >>> class Loud(torch.Tensor):
    ...     @classmethod
    ...     def __torch_function__(cls, func, types, args=(), kwargs=None):
    ...         return f"called {func.__name__}"
    >>> def double(x):
    ...     if has_torch_function_unary(x):
    ...         return handle_torch_function(double, (x,), x)
    ...     return x * 2
    >>> double(torch.ones(1).as_subclass(Loud))
    'called double'
    """
    takers = _takers(relevant_args)
    types = tuple(map(type, takers))
    if _mode_waits():
        mode = _C._pop_torch_function_stack()
        try:
            result = mode.__torch_function__(public_api, types, args, kwargs)
        finally:
            _C._push_on_torch_function_stack(mode)
        if result is not NotImplemented:
            return result
    for x in takers:
        result = type(x).__torch_function__(public_api, types, args, kwargs)
        if result is not NotImplemented:
            return result
    name = f"{public_api.__module__}.{getattr(public_api, '__qualname__', public_api)}"
    raise TypeError(
        f"no implementation found for {name!r} on types that implement __torch_function__: "
        f"{[t.__name__ for t in types]}"
    )


def wrap_torch_function(dispatcher):
    """A decorator that makes a function overridable; `dispatcher` takes its arguments and returns those that may
    override it.
    """
    from functools import wraps

    def decorate(func):
        @wraps(func)
        def wrapped(*args, **kwargs):
            relevant = dispatcher(*args, **kwargs)
            if has_torch_function(relevant):
                return handle_torch_function(wrapped, relevant, *args, **kwargs)
            return func(*args, **kwargs)

        return wrapped

    return decorate


def is_tensor_like(x) -> bool:
    """Whether `x` is a tensor, or of a class with `__torch_function__`."""
    return type(x) is _Tensor or hasattr(x, "__torch_function__")


def is_tensor_method_or_property(func) -> bool:
    """Whether a function that a mode or a subclass got is a method or the getter of a property of Tensor."""
    if getattr(func, "__name__", None) == "__get__":
        return True
    return getattr(_Tensor, getattr(func, "__name__", ""), None) is func


def resolve_name(f) -> str | None:
    """Under which name a function is found, such as `torch.add` or `torch.Tensor.add`; None if nowhere."""
    import stowgrad

    if isinstance(f, str):
        return f
    if isinstance(f, (_C.OpOverload, _C.OpOverloadPacket)):
        return str(f)
    name = getattr(f, "__name__", None)
    if name in ("__get__", "__set__"):
        of = getattr(getattr(f, "__self__", None), "__name__", None)
        return None if of is None else f"torch.Tensor.{of}.{name}"
    for owner, prefix in (
        (_Tensor, "torch.Tensor"),
        (stowgrad, "torch"),
        (stowgrad.nn.functional, "torch.nn.functional"),
    ):
        if name is not None and getattr(owner, name, None) is f:
            return f"{prefix}.{name}"
    return None


def get_ignored_functions() -> set:
    """Functions that never reach `__torch_function__`: they take no tensors, or are not about values."""
    import stowgrad

    names = (
        "typename is_tensor is_storage set_default_tensor_type set_default_dtype get_default_dtype manual_seed initial_seed seed "
        "get_rng_state set_rng_state save load set_printoptions set_num_threads get_num_threads is_grad_enabled "
        "set_grad_enabled no_grad enable_grad inference_mode promote_types result_type can_cast finfo iinfo memory_stats "
        "is_inference_mode_enabled compile fork_rng use_deterministic_algorithms are_deterministic_algorithms_enabled"
    )
    found = (getattr(stowgrad, name, None) for name in names.split())
    return {f for f in found if f is not None and getattr(f, "__hash__", None) is not None}


def get_overridable_functions() -> dict:
    """The functions and methods that modes and subclasses may take over, by the module or class that holds them.

    >>> import stowgrad as torch
    >>> torch.add in torch.overrides.get_overridable_functions()[torch]
    True
    """
    import stowgrad

    ignored = get_ignored_functions()
    found: dict = {}
    for owner in (stowgrad, stowgrad.nn.functional, stowgrad.linalg, stowgrad.special, _Tensor):
        names = getattr(owner, "__all__", None) or vars(owner)
        for name in sorted(names):
            if name.startswith("_"):
                continue
            f = getattr(owner, name, None)
            if isinstance(f, type) or not callable(f) or f in ignored:
                continue
            found.setdefault(owner, []).append(f)
    return found


def get_testing_overrides() -> dict:
    """For each function that may be taken over, one that takes any arguments and gives -1."""
    return {f: (lambda *args, **kwargs: -1) for fs in get_overridable_functions().values() for f in fs}


def get_default_nowrap_functions() -> set:
    """Getters whose results are not made instances of the subclass they were asked of."""
    names = ("_base", "grad", "_grad")
    return {getattr(_Tensor, name).__get__ for name in names if hasattr(_Tensor, name)}


class TorchFunctionMode:
    """A context in which `__torch_function__(func, types, args, kwargs)` of the object answers for every function on
    tensors.

    Inside `__torch_function__` the mode is off. Of nested modes the innermost is asked first.

    >>> import stowgrad as torch
    >>> class Names(torch.overrides.TorchFunctionMode):
    ...     def __torch_function__(self, func, types, args=(), kwargs=None):
    ...         print(func.__name__)
    ...         return func(*args, **(kwargs or {}))
    >>> with Names():
    ...     _ = torch.add(torch.ones(1), 1)
    ones
    add
    """

    def __init__(self) -> None:
        pass

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"{type(self).__name__} defines no __torch_function__")

    def __enter__(self):
        _C._push_on_torch_function_stack(self)
        return self

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        _C._pop_torch_function_stack()

    @classmethod
    def push(cls, *args, **kwargs):
        """An instance, to be entered by `with`."""
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that passes everything on."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _push_mode(mode: TorchFunctionMode) -> None:
    _C._push_on_torch_function_stack(mode)


def _pop_mode() -> TorchFunctionMode:
    return _C._pop_torch_function_stack()


@contextmanager
def _pop_mode_temporarily():
    """Takes the innermost mode off for a while, and gives it."""
    mode = _pop_mode()
    try:
        yield mode
    finally:
        _push_mode(mode)


def _get_current_function_mode():
    """The innermost mode, or None."""
    n = _C._len_torch_function_stack()
    return _C._get_function_stack_at(n - 1) if n else None


def _get_current_function_mode_stack() -> list:
    """The modes, outermost first."""
    return [_C._get_function_stack_at(i) for i in range(_C._len_torch_function_stack())]


class enable_reentrant_dispatch:
    """Inside a mode's method, lets functions reach the modes and subclasses again; they do here anyway."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args) -> None:
        pass
