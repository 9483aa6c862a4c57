"""What the names in a file mean here: the calls that rebuild tensors, what a file of plain data may name, what the
user allowed.

Invariant: whatever `find_safe` gives can be called with any arguments that a file may hold: each call checks its own.
"""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from functools import partial
from pickle import UnpicklingError

from stowgrad import _C
from stowgrad.serialization.machine import Allowed, as_key
from stowgrad.serialization.storages import STORAGE_NAMES, TypedStorage, tensor_on


def _typed(storage) -> TypedStorage:
    if type(storage) is _C.UntypedStorage:
        return TypedStorage(storage, "uint8", storage.nbytes())
    if type(storage) is not TypedStorage:
        raise UnpicklingError(f"a tensor is built on {type(storage).__name__}, not on a storage: refused")
    return storage


def _rebuild_tensor_v2(storage, offset, size, stride, requires_grad=False, backward_hooks=None, metadata=None):
    storage = _typed(storage)
    t = tensor_on(storage.untyped(), storage.dtype, storage.base + offset, size, stride)
    if requires_grad:
        t.requires_grad_(True)
    return t


def _rebuild_tensor_v1(storage, offset, size, stride):
    return _rebuild_tensor_v2(storage, offset, size, stride)


def _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None):
    if type(dtype) is not _C.dtype:
        raise UnpicklingError(f"a tensor's dtype is {dtype!r}: refused")
    t = tensor_on(_typed(storage).untyped(), dtype, offset, size, stride)
    if requires_grad:
        t.requires_grad_(True)
    return t


def parameter_class():
    from stowgrad.nn.parameter import Parameter

    return Parameter


def _rebuild_parameter(data, requires_grad, backward_hooks):
    if not isinstance(data, _C.Tensor):
        raise UnpicklingError(f"a Parameter is built on {type(data).__name__}, not on a tensor: refused")
    return parameter_class()(data, bool(requires_grad))


def set_state(obj, state):
    """Puts back the attributes that `_reduced` took down: a dictionary, or that and the values of slots."""
    slots = None
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    for part in (state, slots):
        if part is None:
            continue
        if type(part) is not dict or any(type(k) is not str or k[:2] == "__" for k in part):
            raise UnpicklingError("the attributes of a tensor are no dictionary of names: refused")
        for name, value in part.items():
            setattr(obj, name, value)
    return obj


def _rebuild_parameter_with_state(data, requires_grad, backward_hooks, state):
    return set_state(_rebuild_parameter(data, requires_grad, backward_hooks), state)


def rebuild_from_type(func, cls, args, state):
    t = func(*args)
    if type(t) is not cls:
        if not (isinstance(cls, type) and issubclass(cls, _C.Tensor) and isinstance(t, _C.Tensor)):
            raise UnpicklingError(f"{cls!r} is no tensor class: refused")
        t = _C.Tensor._make_subclass(cls, t.detach(), t.requires_grad)
    return set_state(t, state)


def _get_layout(name):
    if name != "torch.strided":
        raise UnpicklingError(f"layout {name!r}: stowgrad has strided tensors only")
    return _C.strided


def _size(items=()):
    if type(items) is not tuple or not all(type(n) is int for n in items):
        raise UnpicklingError("a Size of other things than integers: refused")
    return _C.Size(items)


def _device(kind="cpu", index=None):
    return _C.device(kind) if index is None else _C.device(kind, index)


def _encode(text, encoding="latin1"):
    if type(text) is not str or encoding not in ("latin1", "utf-8"):
        raise UnpicklingError("_codecs.encode of other things than text: refused")
    return text.encode(encoding)


def _bytearray(*args):
    if args and not (type(args[0]) in (str, bytes) and len(args) <= 2):
        raise UnpicklingError("a bytearray of other things than bytes: refused")
    if not args:
        return bytearray()
    return bytearray(args[0] if type(args[0]) is bytes else _encode(*args))


def _plain_set(items=()):
    if type(items) not in (list, tuple, set):
        raise UnpicklingError("a set of other things than a list: refused")
    return set(map(as_key, items))


def _plain_frozenset(items=()):
    return frozenset(_plain_set(items))


def _counter(items=None):
    from collections import Counter

    if items is not None and type(items) is not dict:
        raise UnpicklingError("a Counter of other things than a dictionary: refused")
    return Counter(items)


def _ordered_dict(items=()):
    if type(items) not in (list, tuple, dict):
        raise UnpicklingError("an OrderedDict of other things than pairs: refused")
    pairs = items.items() if type(items) is dict else items
    return OrderedDict((as_key(key), value) for key, value in pairs)


def _complex(*args):
    if not all(type(a) is float for a in args):
        raise UnpicklingError("a complex number of other things than floats: refused")
    return complex(*args)


class StorageType:
    """What stands for a storage class named in a file."""

    __slots__ = ("name", "typed")

    def __init__(self, name: str, typed: bool = True) -> None:
        self.name = name
        self.typed = typed


TENSOR_CALLS = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor_v1,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter_with_state,
    ("torch.serialization", "_get_layout"): _get_layout,
}
_FOREIGN = [
    "complex",
    "sparse",
    "quantized",
    "nested",
    "meta",
    "float8",
    "uint16",
    "uint32",
    "uint64",
    "QInt8",
    "QUInt8",
    "QInt32",
    "_rebuild_device",
]
_builtin_allowed: dict = {}
_safe_globals: list = []


def _allowed_table() -> dict:
    """(module, name) -> Allowed for everything that a file of plain data names. Made at the first load."""
    table = _builtin_allowed
    if table:
        return table

    def put(module, name, **what):
        table[module, name] = Allowed(f"{module}.{name}", **what)

    for (module, name), func in TENSOR_CALLS.items():
        put(module, name, call=func, value=func if module == "torch._utils" else None)
    put("torch._tensor", "_rebuild_from_type_v2", call=_safe_rebuild_from_type)
    for name, storage in STORAGE_NAMES.items():
        put("torch", storage, value=StorageType(name))
        put("torch", name, value=getattr(_C, name))
    put("torch.storage", "UntypedStorage", value=StorageType("uint8", typed=False))
    put("torch", "UntypedStorage", value=StorageType("uint8", typed=False))
    put("torch", "Size", call=_size, new=_size)
    put("torch", "device", call=_device)
    put("torch", "Tensor", value=_C.Tensor)
    put("collections", "OrderedDict", call=_ordered_dict, new=_ordered_dict)
    put("collections", "Counter", call=_counter)
    put("_codecs", "encode", call=_encode)
    for module in ("builtins", "__builtin__"):
        put(module, "set", call=_plain_set)
        put(module, "frozenset", call=_plain_frozenset)
        put(module, "bytearray", call=_bytearray)
        put(module, "complex", call=_complex)
    return table


def _safe_rebuild_from_type(func, cls, args, state):
    if func not in TENSOR_CALLS.values() or type(args) is not tuple:
        raise UnpicklingError("a tensor with attributes is built by something else than a tensor's function: refused")
    return rebuild_from_type(func, cls, args, state)


def find_safe(module: str, name: str) -> Allowed:
    found = _allowed_table().get((module, name))
    if found is not None:
        return found
    full = f"{module}.{name}"
    if full in ("torch.nn.parameter.Parameter", "torch.nn.Parameter"):
        return Allowed(full, value=parameter_class())
    for obj, names in _safe_globals:
        if full in names:
            return Allowed(full, value=obj, call=obj, new=partial(obj.__new__, obj) if isinstance(obj, type) else None)
    if module.split(".")[0] == "torch" and any(word.lower() in name.lower() for word in _FOREIGN):
        raise UnpicklingError(
            f"Weights only load failed: the file names {full}, a kind of tensor or dtype that stowgrad does not have"
        )
    raise UnpicklingError(
        f"Weights only load failed: GLOBAL {full} was not an allowed global by default; only tensors and plain "
        "containers are. "
        "If you trust the file, allow it with stowgrad.serialization.add_safe_globals([...]) or load with "
        "weights_only=False, "
        "which runs code of the file"
    )


def _restore_state(obj, state):
    """BUILD for objects of classes that the user allowed."""
    if hasattr(type(obj), "__setstate__"):
        obj.__setstate__(state)
        return
    slots = None
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    if state:
        obj.__dict__.update(state)
    for name, value in (slots or {}).items():
        setattr(obj, name, value)


class Builders:
    """BUILD is for exact types that the user allowed."""

    @staticmethod
    def get(kind):
        for obj, _ in _safe_globals:
            if obj is kind:
                return _restore_state
        return None


def torch_name(obj, module: str, name: str) -> tuple:
    """Where torch has what lives in our `module`: under the shortest public path that leads to the very object."""
    parts = module.split(".")
    for n in range(1, len(parts)):
        owner = sys.modules.get(".".join(parts[: n + 1]))
        if owner is not None and "." not in name and owner.__dict__.get(name) is obj:
            return ".".join(["torch", *parts[1 : n + 1]]), name
    return ".".join(["torch", *parts[1:]]), name


def add_safe_globals(safe_globals: list) -> None:
    """Lets `load(weights_only=True)` make objects of these classes and call these functions; a pair `(object,
    "module.name")` gives a name.
    """
    for item in safe_globals:
        obj, name = item if isinstance(item, tuple) else (item, None)
        if not callable(obj):
            raise TypeError(f"add_safe_globals takes classes and functions, not {type(obj).__name__}")
        own = f"{obj.__module__}.{obj.__qualname__}"
        names = {name} if name else {own}
        if not name and own.startswith("stowgrad."):
            names |= {"torch" + own[8:], ".".join(torch_name(obj, obj.__module__, obj.__qualname__))}
        _safe_globals.append((obj, frozenset(names)))


def get_safe_globals() -> list:
    """What `add_safe_globals` allowed so far."""
    return [obj for obj, _ in _safe_globals]


def clear_safe_globals() -> None:
    """Takes back all that `add_safe_globals` allowed."""
    _safe_globals.clear()


class safe_globals:
    """Inside, `load` may also use these classes and functions.

    >>> import stowgrad as torch, io
    >>> from fractions import Fraction
    >>> f = io.BytesIO()
    >>> torch.save(Fraction(1, 2), f)
    >>> _ = f.seek(0)
    >>> with torch.serialization.safe_globals([Fraction]):
    ...     torch.load(f)
    Fraction(1, 2)
    """

    def __init__(self, safe_globals: list) -> None:
        self.safe_globals = safe_globals

    def __enter__(self) -> None:
        self.before = list(_safe_globals)
        add_safe_globals(self.safe_globals)

    def __exit__(self, *args) -> None:
        _safe_globals[:] = self.before


def find_ours(module: str, name: str):
    """Our object for torch's `module.name`; modules that are laid out otherwise here are looked for further up."""

    parts = module.split(".")
    tried = parts[:]
    while tried:
        try:
            owner = importlib.import_module(".".join(["stowgrad", *tried[1:]]))
            for attribute in name.split("."):
                owner = getattr(owner, attribute)
            return owner
        except (ImportError, AttributeError):
            tried.pop()
    raise AttributeError(f"the file names {module}.{name}, which stowgrad does not have")
