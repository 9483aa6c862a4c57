"""Grad mode: the contexts that switch recording on and off, each also a decorator.

Invariants: the mode lives in the native core, one per thread; an object here only remembers what to put back. One
object may be entered again before it is left (what it found is kept as a chain, innermost first). Nothing here imports
outside the core.
"""

from __future__ import annotations

from _thread import _local

from stowgrad import _C

__all__ = [
    "enable_grad",
    "enforce_grad_layout_policy",
    "inference_mode",
    "no_grad",
    "set_grad_enabled",
    "set_multithreading_enabled",
]

_is_grad_enabled = _C.is_grad_enabled
_set = _C._set_grad_enabled
_GENERATOR = 0x20  # inspect.CO_GENERATOR


def _is_generator_function(func) -> bool:
    while hasattr(func, "func") and not hasattr(func, "__code__"):  # functools.partial
        func = func.func
    code = getattr(func, "__code__", None) or getattr(getattr(func, "__func__", None), "__code__", None)
    return bool(code is not None and code.co_flags & _GENERATOR)


def _wrapped_generator(make_context, func):
    """A generator function whose body, and only its body, runs in the context: the mode is left at every yield."""
    from functools import wraps

    @wraps(func)
    def generator(*args, **kwargs):
        gen = func(*args, **kwargs)
        resume, value = gen.send, None
        try:
            while True:
                with make_context():
                    item = resume(value)
                try:
                    value = yield item
                    resume = gen.send
                except GeneratorExit:
                    with make_context():
                        gen.close()
                    raise
                except BaseException as error:  # thrown in by the caller: hand it to the body
                    value, resume = error, gen.throw
        except StopIteration as stop:
            return stop.value

    return generator


def context_decorator(make_context, func):
    """`func` with every call inside a fresh context of `make_context()`; generator functions are entered at each
    resumption.
    """
    if isinstance(func, type):
        import warnings

        warnings.warn(
            f"a gradient context decorates the class {func.__name__}: only its construction runs inside the context, "
            "and the "
            "name no longer is a class. Decorating classes is deprecated: decorate its __init__ or the methods meant",
            FutureWarning,
            stacklevel=3,
        )
        cls = func

        def func(*args, **kwargs):
            return cls(*args, **kwargs)

    elif not callable(func):
        raise TypeError(f"a gradient context decorates a function, not {type(func).__name__}")
    if _is_generator_function(func):
        return _wrapped_generator(make_context, func)
    from functools import wraps

    @wraps(func)
    def decorated(*args, **kwargs):
        with make_context():
            return func(*args, **kwargs)

    return decorated


class _DecoratorContextManager:
    """A context manager that can decorate functions; `clone` gives the fresh context of each call."""

    __slots__ = ()

    def __call__(self, orig_func):
        return context_decorator(self.clone, orig_func)

    def __enter__(self):
        raise NotImplementedError(f"{type(self).__name__} does not say what to do on entering")

    def __exit__(self, exc_type, exc_value, traceback):
        raise NotImplementedError(f"{type(self).__name__} does not say what to do on leaving")

    def clone(self):
        return type(self)()


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """The same for contexts without arguments: `@no_grad` does what `@no_grad()` does."""

    __slots__ = ()

    def __new__(cls, orig_func=None):
        if orig_func is None:
            return object.__new__(cls)
        return context_decorator(cls, orig_func)


class no_grad(_NoParamDecoratorContextManager):
    """Records nothing inside: results have `requires_grad=False`. Context or decorator, per thread.

    >>> import stowgrad as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    __slots__ = ("prev",)

    def __enter__(self):
        self.prev = (_is_grad_enabled(), getattr(self, "prev", None))
        _set(False)

    def __exit__(self, exc_type, exc_value, traceback):
        enabled, self.prev = self.prev
        _set(enabled)


class enable_grad(_NoParamDecoratorContextManager):
    """Records inside, also within `no_grad`. Context or decorator, per thread.

    >>> import stowgrad as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad(), torch.enable_grad():
    ...     y = x * 2
    >>> y.requires_grad
    True
    """

    __slots__ = ("prev",)

    def __enter__(self):
        self.prev = (_is_grad_enabled(), getattr(self, "prev", None))
        _set(True)

    def __exit__(self, exc_type, exc_value, traceback):
        enabled, self.prev = self.prev
        _set(enabled)


class set_grad_enabled(_DecoratorContextManager):
    """Switches recording at once; as a context, puts the old mode back on leaving. Also a decorator.

    >>> import stowgrad as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.set_grad_enabled(False):
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    __slots__ = ("mode", "prev")

    def __init__(self, mode: bool) -> None:
        self.prev = _is_grad_enabled()
        self.mode = mode
        _set(mode)

    def __call__(self, orig_func):
        _set(self.prev)  # decorating is not entering
        return context_decorator(self.clone, orig_func)

    def __enter__(self) -> None:
        _set(self.mode)

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        _set(self.prev)

    def clone(self) -> set_grad_enabled:
        return type(self)(self.mode)

    def __str__(self) -> str:
        return f"{type(self).__name__}(mode={self.mode})"

    __repr__ = __str__


class inference_mode(_DecoratorContextManager):
    """Like `no_grad`, and tensors made inside can never be saved for backward later. Context or decorator, per thread.

    >>> import stowgrad as torch
    >>> with torch.inference_mode():
    ...     y = torch.ones(2) * 2
    >>> y.is_inference()
    True
    """

    __slots__ = ("mode", "prev")

    def __new__(cls, mode=True):
        if isinstance(mode, bool):
            return object.__new__(cls)
        return context_decorator(cls, mode)

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode
        self.prev = None

    def __enter__(self) -> None:
        self.prev = (_C._set_inference_mode(self.mode), self.prev)

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        enabled, self.prev = self.prev
        _C._set_inference_mode(enabled)

    def clone(self) -> inference_mode:
        return type(self)(self.mode)


class _Flag(_DecoratorContextManager):
    """A per-thread switch that torch has for its own engine. It is remembered, and changes nothing here."""

    __slots__ = ("mode", "prev")
    _name = ""
    _default = True

    def __init__(self, mode: bool) -> None:
        self.prev = _get_flag(self._name, self._default)
        self.mode = bool(mode)
        _set_flag(self._name, self.mode)

    def __enter__(self) -> None:
        _set_flag(self._name, self.mode)

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        _set_flag(self._name, self.prev)

    def __call__(self, orig_func):
        _set_flag(self._name, self.prev)
        return context_decorator(self.clone, orig_func)

    def clone(self):
        return type(self)(self.mode)


_flags = _local()


def _get_flag(name: str, default: bool) -> bool:
    return getattr(_flags, name, default)


def _set_flag(name: str, value: bool) -> None:
    setattr(_flags, name, value)


class set_multithreading_enabled(_Flag):
    """Whether backward may use several threads. Backward here runs on the calling thread: the setting is kept, and
    changes nothing.
    """

    __slots__ = ()
    _name = "multithreading"


class _force_original_view_tracking(_Flag):
    """Whether views are replayed by their own functions or by `as_strided`. The setting is kept, and changes nothing
    here.
    """

    __slots__ = ()
    _name = "view_replay"
    _default = False


class enforce_grad_layout_policy(_Flag):
    """Whether an accumulated gradient must have its parameter's strides. The setting is kept, and changes nothing
    here.
    """

    __slots__ = ()
    _name = "grad_layout"

    def __init__(self, enable: bool = True) -> None:
        _Flag.__init__(self, enable)


def is_multithreading_enabled() -> bool:
    """What `set_multithreading_enabled` last set in this thread (True at first)."""
    return _get_flag("multithreading", True)


def is_view_replay_enabled() -> bool:
    """What `_force_original_view_tracking` last set in this thread (False at first)."""
    return _get_flag("view_replay", False)


class _unsafe_preserve_version_counter(_DecoratorContextManager):
    """Puts the version counters of tensors back on leaving, so that writes inside go unnoticed: wrong gradients are
    then yours.
    """

    __slots__ = ("tensors", "versions")

    def __init__(self, tensors) -> None:
        self.tensors = (tensors,) if isinstance(tensors, _C.Tensor) else tuple(tensors)
        self.versions = ()

    def __enter__(self) -> None:
        self.versions = tuple(t._version for t in self.tensors)

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        _C._autograd._unsafe_set_version_counter(self.tensors, self.versions)

    def clone(self):
        return type(self)(self.tensors)
