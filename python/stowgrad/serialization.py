"""`save` and `load`: torch's files, written so that torch reads them, read without running what they hold.

A file is a zip archive (or torch's older sequence of pickles): one pickle of the object, in which a tensor is a call that names
a storage by key, and one record of raw bytes a storage. Globals are written under torch's names, whatever module they live in here.

Invariants: a storage is written once however many tensors share it, and shared again after loading; bytes go between file and
storage without a copy in between; a path is replaced only by a complete file that is on the disk; nothing is allocated before
the archive is seen to hold as many bytes; with `weights_only` no code of the file is run (`_weights_only_unpickler`).
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import OrderedDict
from pickle import UnpicklingError
from struct import pack, unpack

from stowgrad import _C
from stowgrad._weights_only_unpickler import Allowed, Unpickler

__all__ = [
    "add_safe_globals",
    "clear_safe_globals",
    "get_safe_globals",
    "get_unsafe_globals_in_checkpoint",
    "load",
    "safe_globals",
    "save",
]

DEFAULT_PROTOCOL = 2
_ALIGNMENT = 64
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_CHUNK = 1 << 24

_STORAGE_NAMES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}
_DTYPES = {storage: name for name, storage in _STORAGE_NAMES.items()}
_ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1
}  # fmt: skip


# ---- storages, as bytes ----------------------------------------------------------------------------------------------


def _view(storage) -> memoryview:
    """The bytes of a storage, not copied, writable."""
    return memoryview(storage).cast("B")


def _new_storage(nbytes: int):
    return _C.UntypedStorage(nbytes)


def _copy_storage(storage):
    copy = _new_storage(storage.nbytes())
    if storage.nbytes():
        _view(copy)[:] = _view(storage)
    return copy


def _dtype_name(dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _tensor_on(storage, dtype, offset: int, size, stride):
    """A tensor over a storage. The place is checked here, since it may come from a file."""
    size, stride = tuple(size), tuple(stride)
    if len(size) != len(stride) or not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *size, *stride)):
        raise UnpicklingError(f"a tensor of size {size!r}, stride {stride!r}, offset {offset!r}: not a valid layout")
    numel = 1
    for n in size:
        numel *= n
    if numel >= 2**62:
        raise UnpicklingError(f"a tensor of size {size!r} has too many elements")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride)) if numel else -1
    if (last + 1) * dtype.itemsize > storage.nbytes():
        raise UnpicklingError(
            f"a tensor of size {size!r}, stride {stride!r}, offset {offset} and dtype {dtype} reaches beyond its storage of "
            f"{storage.nbytes()} bytes"
        )
    return _C.empty((0,), dtype=dtype).set_(storage, offset, size, stride)


class TypedStorage:
    """A storage as a file knows it: bytes with a dtype, counted in elements. `base` is where a view of a larger one begins."""

    __slots__ = ("_untyped_storage", "base", "dtype", "name", "numel")

    def __init__(self, untyped, name: str, numel: int, base: int = 0) -> None:
        self._untyped_storage = untyped
        self.name = name
        self.dtype = getattr(_C, name)
        self.numel = numel
        self.base = base

    def untyped(self):
        """The bytes."""
        return self._untyped_storage

    def size(self) -> int:
        """The number of elements."""
        return self.numel

    __len__ = size

    def tolist(self) -> list:
        """The elements as Python numbers."""
        return _tensor_on(self._untyped_storage, self.dtype, self.base, (self.numel,), (1,)).tolist()

    def __repr__(self) -> str:
        return f"TypedStorage(dtype={self.dtype}, size={self.numel})"


# ---- what a file may call, and what torch's names mean here -----------------------------------------------------------


def _typed(storage) -> TypedStorage:
    if type(storage) is _C.UntypedStorage:
        return TypedStorage(storage, "uint8", storage.nbytes())
    if type(storage) is not TypedStorage:
        raise UnpicklingError(f"a tensor is built on {type(storage).__name__}, not on a storage: refused")
    return storage


def _rebuild_tensor_v2(storage, offset, size, stride, requires_grad=False, backward_hooks=None, metadata=None):
    storage = _typed(storage)
    t = _tensor_on(storage.untyped(), storage.dtype, storage.base + offset, size, stride)
    if requires_grad:
        t.requires_grad_(True)
    return t


def _rebuild_tensor_v1(storage, offset, size, stride):
    return _rebuild_tensor_v2(storage, offset, size, stride)


def _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None):
    if type(dtype) is not _C.dtype:
        raise UnpicklingError(f"a tensor's dtype is {dtype!r}: refused")
    t = _tensor_on(_typed(storage).untyped(), dtype, offset, size, stride)
    if requires_grad:
        t.requires_grad_(True)
    return t


def _parameter_class():
    from stowgrad.nn.parameter import Parameter

    return Parameter


def _rebuild_parameter(data, requires_grad, backward_hooks):
    if not isinstance(data, _C.Tensor):
        raise UnpicklingError(f"a Parameter is built on {type(data).__name__}, not on a tensor: refused")
    return _parameter_class()(data, bool(requires_grad))


def _set_state(obj, state):
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
    return _set_state(_rebuild_parameter(data, requires_grad, backward_hooks), state)


def _rebuild_from_type(func, cls, args, state):
    t = func(*args)
    if type(t) is not cls:
        if not (isinstance(cls, type) and issubclass(cls, _C.Tensor) and isinstance(t, _C.Tensor)):
            raise UnpicklingError(f"{cls!r} is no tensor class: refused")
        t = _C.Tensor._make_subclass(cls, t.detach(), t.requires_grad)
    return _set_state(t, state)


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
    return set(items)


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
    return OrderedDict(items)


def _complex(*args):
    if not all(type(a) is float for a in args):
        raise UnpicklingError("a complex number of other things than floats: refused")
    return complex(*args)


class _StorageType:
    """What stands for a storage class named in a file."""

    __slots__ = ("name", "typed")

    def __init__(self, name: str, typed: bool = True) -> None:
        self.name = name
        self.typed = typed


_TENSOR_CALLS = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor_v1,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter_with_state,
    ("torch.serialization", "_get_layout"): _get_layout,
}
_FOREIGN = "complex sparse quantized nested meta float8 uint16 uint32 uint64 QInt8 QUInt8 QInt32 _rebuild_device".split()
_builtin_allowed: dict = {}
_safe_globals: list = []


def _allowed_table() -> dict:
    """(module, name) -> Allowed for everything that a file of plain data names. Made at the first load."""
    table = _builtin_allowed
    if table:
        return table

    def put(module, name, **what):
        table[module, name] = Allowed(f"{module}.{name}", **what)

    for (module, name), func in _TENSOR_CALLS.items():
        put(module, name, call=func, value=func if module == "torch._utils" else None)
    put("torch._tensor", "_rebuild_from_type_v2", call=_safe_rebuild_from_type)
    for name, storage in _STORAGE_NAMES.items():
        put("torch", storage, value=_StorageType(name))
        put("torch", name, value=getattr(_C, name))
    put("torch.storage", "UntypedStorage", value=_StorageType("uint8", typed=False))
    put("torch", "UntypedStorage", value=_StorageType("uint8", typed=False))
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
    if func not in _TENSOR_CALLS.values() or type(args) is not tuple:
        raise UnpicklingError("a tensor with attributes is built by something else than a tensor's function: refused")
    return _rebuild_from_type(func, cls, args, state)


def _find_safe(module: str, name: str) -> Allowed:
    found = _allowed_table().get((module, name))
    if found is not None:
        return found
    full = f"{module}.{name}"
    if full in ("torch.nn.parameter.Parameter", "torch.nn.Parameter"):
        return Allowed(full, value=_parameter_class())
    for item in _safe_globals:
        obj, names = item
        if full in names:
            is_class = isinstance(obj, type)
            return Allowed(full, value=obj, call=obj, new=obj.__new__ and (lambda *args: obj.__new__(obj, *args)) if is_class else None)
    if module.split(".")[0] == "torch" and any(word.lower() in name.lower() for word in _FOREIGN):
        raise UnpicklingError(f"Weights only load failed: the file names {full}, a kind of tensor or dtype that stowgrad does not have")
    raise UnpicklingError(
        f"Weights only load failed: GLOBAL {full} was not an allowed global by default; only tensors and plain containers are. "
        f"If you trust the file, allow it with stowgrad.serialization.add_safe_globals([...]) or load with weights_only=False, "
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


class _Builders:
    """BUILD is for exact types that the user allowed."""

    @staticmethod
    def get(kind):
        for obj, _ in _safe_globals:
            if obj is kind:
                return _restore_state
        return None


def add_safe_globals(safe_globals: list) -> None:
    """Lets `load(weights_only=True)` make objects of these classes and call these functions; a pair `(object, "module.name")` gives a name."""
    for item in safe_globals:
        obj, name = item if isinstance(item, tuple) else (item, None)
        if not callable(obj):
            raise TypeError(f"add_safe_globals takes classes and functions, not {type(obj).__name__}")
        own = f"{obj.__module__}.{obj.__qualname__}"
        names = {name} if name else {own}
        if not name and own.startswith("stowgrad."):
            names |= {"torch" + own[8:], ".".join(_torch_name(obj, obj.__module__, obj.__qualname__))}
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


def _find_ours(module: str, name: str):
    """Our object for torch's `module.name`; modules that are laid out otherwise here are looked for further up."""
    import importlib

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


# ---- writing ----------------------------------------------------------------------------------------------------------


class _Global:
    """A global that is written by name, without asking whether it can be imported here."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self):  # the pickler insists on something callable
        raise TypeError(f"{self.module}.{self.name} is only a name")


_TORCH_STORAGE = {name: _Global("torch", storage) for name, storage in _STORAGE_NAMES.items()}
_TORCH_UNTYPED = _Global("torch.storage", "UntypedStorage")
_TORCH_DTYPE = {name: _Global("torch", name) for name in _STORAGE_NAMES}
_TORCH_TENSOR = _Global("torch", "Tensor")
_TORCH_PARAMETER = _Global("torch.nn.parameter", "Parameter")
_TORCH_SIZE = _Global("torch", "Size")
_TORCH_DEVICE = _Global("torch", "device")
_TORCH_LAYOUT = _Global("torch.serialization", "_get_layout")
_TORCH_TENSOR_V2 = _Global("torch._utils", "_rebuild_tensor_v2")
_TORCH_PARAMETER_V1 = _Global("torch._utils", "_rebuild_parameter")
_TORCH_PARAMETER_STATE = _Global("torch._utils", "_rebuild_parameter_with_state")
_TORCH_FROM_TYPE = _Global("torch._tensor", "_rebuild_from_type_v2")


def _torch_name(obj, module: str, name: str) -> tuple:
    """Where torch has what lives in our `module`: under the shortest public path that leads to the very object."""
    parts = module.split(".")
    for n in range(1, len(parts)):
        owner = sys.modules.get(".".join(parts[: n + 1]))
        if owner is not None and "." not in name and owner.__dict__.get(name) is obj:
            return ".".join(["torch", *parts[1 : n + 1]]), name
    return ".".join(["torch", *parts[1:]]), name


class _StorageRef:
    """Where a storage stands in the pickle: written as a persistent id."""

    __slots__ = ("pid",)

    def __init__(self, pid: tuple) -> None:
        self.pid = pid


def _state_of(t):
    """The user's attributes of a tensor, as `_set_state` takes them; None where there are none."""
    state = dict(getattr(t, "__dict__", None) or {})
    slots = {}
    for cls in type(t).__mro__:
        if cls in (_C.Tensor, object):
            break
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(t, name):
                slots[name] = getattr(t, name)
    if slots:
        return state, slots
    return state or None


def _warn_hooks(t) -> None:
    if getattr(t, "_backward_hooks", None):
        from stowgrad.utils.hooks import warn_if_has_hooks

        warn_if_has_hooks(t)


def _is_parameter(t) -> bool:
    module = sys.modules.get("stowgrad.nn.parameter")
    return module is not None and isinstance(t, module.Parameter)


class _Storages:
    """The storages of one file: numbered as they are met, kept alive until they are written."""

    def __init__(self, legacy: bool) -> None:
        self.legacy = legacy
        self.records: dict = {}  # key -> (storage, nbytes)
        self.known: dict = {}  # address -> (key, dtype name, storage)

    def reference(self, storage, name: str, untyped: bool = False) -> _StorageRef:
        nbytes = storage.nbytes()
        numel = nbytes // _ITEMSIZE[name]
        address = storage.data_ptr() if nbytes else ("empty", name, untyped)
        key, kind = None, ("untyped" if untyped else name)
        if address in self.known:
            key, before, _ = self.known[address]
            if before != kind:
                raise RuntimeError(
                    f"Cannot save multiple tensors or storages that view the same data as different types: {before} and {kind}"
                )
        else:
            key = str(len(self.known))
            self.known[address] = (key, kind, storage)
            self.records[key] = (storage, numel * _ITEMSIZE[name])
        pid = ("storage", _TORCH_UNTYPED if untyped else _TORCH_STORAGE[name], key, "cpu", numel)
        return _StorageRef((*pid, None) if self.legacy else pid)


class _Reducers:
    """How objects that the pickler does not know are reduced: tensors by us, everything else as usual. Asked once an object."""

    def __init__(self, pickler, base: dict) -> None:
        self.pickler = pickler
        self.base = base

    def get(self, cls, default=None):
        if issubclass(cls, _C.Tensor):
            return self.pickler.reduce_tensor
        return self.base.get(cls, default)


def _pickler_class(base):
    """A pickler for torch's files over a Python-level pickler class (`pickle._Pickler`, or one that derives from it)."""

    class Pickler(base):
        dispatch = base.dispatch.copy()

        def __init__(self, file, protocol, storages) -> None:
            super().__init__(file, protocol)
            self.storages = storages
            self.dispatch_table = _Reducers(self, getattr(self, "dispatch_table", None) or __import__("copyreg").dispatch_table)

        def persistent_id(self, obj):
            return obj.pid if type(obj) is _StorageRef else None

        def write_global(self, module: str, name: str, obj) -> None:
            if self.proto >= 4:
                self.save(module)
                self.save(name)
                self.write(pickle.STACK_GLOBAL)
            else:
                self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
            self.memoize(obj)

        def save_named(self, obj) -> None:
            self.write_global(obj.module, obj.name, obj)

        dispatch[_Global] = save_named

        def save_dtype(self, obj) -> None:
            self.save(_TORCH_DTYPE[_dtype_name(obj)])

        def save_size(self, obj) -> None:
            self.save_reduce(_TORCH_SIZE, (tuple(obj),), obj=obj)

        def save_device(self, obj) -> None:
            self.save_reduce(_TORCH_DEVICE, (obj.type,) if obj.index is None else (obj.type, obj.index), obj=obj)

        def save_layout(self, obj) -> None:
            self.save_reduce(_TORCH_LAYOUT, (str(obj),), obj=obj)

        def save_storage(self, obj) -> None:
            self.save(self.storages.reference(obj, "uint8", untyped=True))

        dispatch[_C.dtype] = save_dtype
        dispatch[_C.Size] = save_size
        dispatch[_C.device] = save_device
        dispatch[_C.layout] = save_layout
        dispatch[_C.UntypedStorage] = save_storage

        def save_global(self, obj, name=None) -> None:
            name = name or getattr(obj, "__qualname__", None) or obj.__name__
            module = pickle.whichmodule(obj, name)
            if obj is _C.Tensor:
                self.write_global("torch", "Tensor", obj)
            elif module == "stowgrad" or module.startswith("stowgrad."):
                found = sys.modules.get(module)
                for attribute in name.split("."):
                    found = getattr(found, attribute, None)
                if found is not obj:
                    raise pickle.PicklingError(f"cannot save {obj!r}: it is not found as {module}.{name}")
                if module == "stowgrad.nn.parameter":
                    self.write_global("torch.nn.parameter", name, obj)
                else:
                    self.write_global(*_torch_name(obj, module, name), obj)
            else:
                super().save_global(obj, name)

        def save_type(self, obj) -> None:
            if obj in (type(None), type(...), type(NotImplemented)):
                base.save_type(self, obj)
            else:
                self.save_global(obj)

        dispatch[type] = save_type
        dispatch[type(_parts)] = save_global

        def plain(self, t) -> tuple:
            """The call that rebuilds the tensor without its class and attributes."""
            if t.device.type != "cpu":
                t = t.detach().cpu().requires_grad_(t.requires_grad)
            return (
                _TORCH_TENSOR_V2,
                (
                    self.storages.reference(t.untyped_storage(), _dtype_name(t.dtype)),
                    t.storage_offset(),
                    tuple(t.size()),
                    tuple(t.stride()),
                    t.requires_grad,
                    OrderedDict(),
                ),
            )

        def reduce_tensor(self, t) -> tuple:
            _warn_hooks(t)
            state = _state_of(t)
            if type(t) is not _C.Tensor and _is_parameter(t) and type(t) is _parameter_class():
                data = t.detach()
                if state is None:
                    return _TORCH_PARAMETER_V1, (data, t.requires_grad, OrderedDict())
                return _TORCH_PARAMETER_STATE, (data, t.requires_grad, OrderedDict(), state)
            if type(t) is _C.Tensor and state is None:
                return self.plain(t)
            func, args = self.plain(t)
            return _TORCH_FROM_TYPE, (func, type(t), args, state)

    return Pickler


def _parts():
    """Only its type is used: the type of functions."""


_FilePickler = None


def _pickled(obj, protocol: int, storages: _Storages, pickle_module=None) -> bytes:
    global _FilePickler
    if pickle_module is None or pickle_module is pickle:
        if _FilePickler is None:
            _FilePickler = _pickler_class(pickle._Pickler)
        cls = _FilePickler
    else:
        base = pickle_module.Pickler
        if not issubclass(base, pickle._Pickler):
            raise TypeError(
                f"save: {pickle_module.__name__}.Pickler is no Python-level pickler (it must derive from pickle._Pickler, as dill's does)"
            )
        cls = _pickler_class(base)
    out = io.BytesIO()
    cls(out, protocol, storages).dump(obj)
    return out.getvalue()


class _AtomicFile:
    """A new file beside `path` that takes its place when the block ends well, and is gone when it does not."""

    def __init__(self, path) -> None:
        self.path = os.path.realpath(os.fsdecode(os.fspath(path)))

    def __enter__(self):
        folder, name = os.path.split(self.path)
        if not os.path.isdir(folder):
            raise RuntimeError(f"Parent directory {folder} does not exist.")
        try:
            before = os.stat(self.path)
        except FileNotFoundError:
            before = None
        import stat

        if before is not None and stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(f"save: {self.path} is a directory")
        if before is not None and not stat.S_ISREG(before.st_mode):  # a pipe or a device cannot be replaced
            self.temporary = None
            self.file = open(self.path, "wb")
            return self.file
        self.temporary = os.path.join(folder, f".{name[:100]}.{os.urandom(6).hex()}.tmp")
        self.file = open(self.temporary, "xb")
        if before is not None:
            try:
                os.chmod(self.temporary, stat.S_IMODE(before.st_mode))
            except OSError:
                pass  # the mode is a courtesy
        return self.file

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        if self.temporary is None:
            self.file.close()
            return
        try:
            try:
                if exc_type is None:
                    self.file.flush()
                    os.fsync(self.file.fileno())
            finally:
                self.file.close()
            if exc_type is None:
                os.replace(self.temporary, self.path)
                self.temporary = None
        finally:
            if self.temporary is not None:
                try:
                    os.unlink(self.temporary)
                except OSError:
                    pass
        if self.temporary is None and hasattr(os, "O_DIRECTORY"):
            try:  # the new name is on the disk too
                folder = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                return
            try:
                os.fsync(folder)
            except OSError:
                pass
            finally:
                os.close(folder)


def _is_path(f) -> bool:
    return isinstance(f, (str, bytes, os.PathLike))


def save(
    obj,
    f,
    pickle_module=None,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Writes tensors, parameters, containers (and whatever pickles) to `f`, a path or a binary file, in torch's format.

    Strides, sharing of storages, `requires_grad` and attributes are kept; hooks and graphs are not. A path is replaced only once
    the new file is complete and on the disk: when anything fails, the old file is as it was. RuntimeError if the directory is missing.

    >>> import stowgrad as torch, io
    >>> f = io.BytesIO()
    >>> torch.save({"weight": torch.ones(2)}, f)
    >>> _ = f.seek(0)
    >>> torch.load(f)
    {'weight': tensor([1., 1.])}
    """
    if not _is_path(f) and not hasattr(f, "write"):
        raise AttributeError(
            f"save: expected 'f' to be string, path, or a file-like object with a 'write' attribute, not {type(f).__name__}"
        )
    if not 2 <= pickle_protocol <= pickle.HIGHEST_PROTOCOL:
        raise ValueError(f"save: pickle_protocol must be 2 to {pickle.HIGHEST_PROTOCOL}, not {pickle_protocol}")
    storages = _Storages(legacy=not _use_new_zipfile_serialization)
    data = _pickled(obj, pickle_protocol, storages, pickle_module)
    if not _use_new_zipfile_serialization:

        def write(file):
            _write_legacy(file, data, storages, pickle_protocol)

    else:
        name = "archive"
        if _is_path(f):
            stem = os.path.basename(os.fsdecode(os.fspath(f))).rpartition(".")
            stem = stem[0] or stem[2]
            name = stem if stem.isascii() and stem.isprintable() and stem.strip(".") and len(stem) < 200 else name

        def write(file):
            _write_zip(file, name, data, storages, not _disable_byteorder_record)

    if _is_path(f):
        with _AtomicFile(f) as file:
            write(file)
    else:
        write(f)


def _write_zip(file, name: str, data: bytes, storages: _Storages, byteorder: bool) -> None:
    import zipfile
    from hashlib import sha256

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:

        def put(record: str, content, nbytes: int) -> None:
            info = zipfile.ZipInfo(f"{name}/{record}", (1980, 1, 1, 0, 0, 0))
            info.file_size = nbytes
            large = nbytes * 1.05 > zipfile.ZIP64_LIMIT
            # the bytes begin at a multiple of 64, so that a mapped file can be computed on: an extra field pads the header
            begin = archive.fp.tell() + 30 + len(info.filename.encode()) + (20 if large else 0) + 4
            info.extra = b"FB" + pack("<H", -begin % _ALIGNMENT) + b"Z" * (-begin % _ALIGNMENT)
            with archive.open(info, "w", force_zip64=large) as out:
                if nbytes:
                    out.write(content)

        put("data.pkl", data, len(data))
        put(".format_version", b"1", 1)
        put(".storage_alignment", b"64", 2)
        if byteorder:
            put("byteorder", sys.byteorder.encode(), len(sys.byteorder))
        digest = sha256(data)
        for key, (storage, nbytes) in storages.records.items():
            put(f"data/{key}", _view(storage)[:nbytes] if nbytes else b"", nbytes)
            digest.update(pack("<Q", archive.infolist()[-1].CRC))
        put("version", b"3\n", 2)
        put(".data/serialization_id", f"{int.from_bytes(digest.digest()[:16], 'little'):040d}".encode(), 40)


def _write_legacy(file, data: bytes, storages: _Storages, protocol: int) -> None:
    sizes = {"short": 2, "int": 4, "long": 4}
    info = {"protocol_version": _LEGACY_VERSION, "little_endian": sys.byteorder == "little", "type_sizes": sizes}
    for part in (_LEGACY_MAGIC, _LEGACY_VERSION, info):
        file.write(pickle.dumps(part, protocol))
    file.write(data)
    file.write(pickle.dumps(list(storages.records), protocol))
    names = {key: name for key, name, _ in storages.known.values()}
    for key, (storage, nbytes) in storages.records.items():
        itemsize = 1 if names[key] == "untyped" else _ITEMSIZE[names[key]]
        file.write(pack("<q", nbytes // itemsize))
        if nbytes:
            file.write(_view(storage)[:nbytes])


# ---- reading ----------------------------------------------------------------------------------------------------------


def _restore(storage, location: str, map_location):
    """Where a storage goes that lay on `location`: the CPU, or an error that says what to do."""
    if callable(map_location):
        moved = map_location(storage, location)
        if moved is not None:
            return getattr(moved, "_untyped_storage", moved)
    elif isinstance(map_location, dict):
        location = map_location.get(location, location)
    elif map_location is not None:
        location = str(map_location)
    if str(location).split(":")[0] != "cpu":
        raise RuntimeError(
            f"Attempting to deserialize object on device {location!r}, which is not available here: "
            "pass map_location=torch.device('cpu') to load to map your storages to the CPU."
        )
    return storage


class _Archive:
    """A zip file of torch's, checked as it is opened: no record is longer than the file, none overlaps all others."""

    def __init__(self, file, mapped=None) -> None:
        import zipfile

        self.file = file
        self.mapped = mapped
        file.seek(0, io.SEEK_END)
        self.length = file.tell()
        try:
            self.zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, EOFError, OverflowError, NotImplementedError, UnicodeDecodeError, OSError) as e:
            raise RuntimeError(f"load: failed reading zip archive: {e}; the file is truncated or damaged") from e
        self.entries = {}
        total = 0
        for info in self.zip.infolist():
            if info.header_offset < 0 or info.header_offset + 30 + info.compress_size > self.length:
                raise RuntimeError(f"load: record {info.filename!r} goes beyond the end of the file: it is truncated or damaged")
            total += info.compress_size
            self.entries[info.filename] = info
        if total > self.length:
            raise RuntimeError("load: the archive's records overlap: the file is damaged")
        roots = [n[: -len("data.pkl")] for n in self.entries if n.endswith("/data.pkl") and n.count("/") == 1]
        if not roots:
            raise RuntimeError("load: the zip archive holds no data.pkl: it was not written by save")
        self.root = roots[0]
        if self.root + "constants.pkl" in self.entries:
            raise RuntimeError("load: this is a TorchScript archive (it holds constants.pkl); stowgrad has no jit")

    def has(self, name: str) -> bool:
        return self.root + name in self.entries

    def info(self, name: str):
        info = self.entries.get(self.root + name)
        if info is None:
            raise RuntimeError(f"load: the archive has no record {name!r}: it is truncated or damaged")
        if info.flag_bits & 1:
            raise RuntimeError(f"load: record {name!r} is encrypted")
        if info.compress_type not in (0, 8):
            raise RuntimeError(f"load: record {name!r} is compressed in a way that is not read (method {info.compress_type})")
        if info.file_size > (info.compress_size if info.compress_type == 0 else info.compress_size * 1032 + 64):
            raise RuntimeError(f"load: record {name!r} claims {info.file_size} bytes and holds {info.compress_size}: it is damaged")
        return info

    def read(self, name: str) -> bytes:
        info = self.info(name)
        out = bytearray(info.file_size)
        self.fill(name, info, memoryview(out))
        return bytes(out)

    def start(self, name: str, info) -> int:
        """Where a record's bytes begin, by its own header."""
        self.file.seek(info.header_offset)
        header = self.file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise RuntimeError(f"load: record {name!r} has no header: the file is damaged")
        name_len, extra_len = unpack("<HH", header[26:30])
        start = info.header_offset + 30 + name_len + extra_len
        if start + info.compress_size > self.length:
            raise RuntimeError(f"load: record {name!r} goes beyond the end of the file: it is truncated or damaged")
        return start

    def fill(self, name: str, info, view: memoryview) -> None:
        """Reads a whole record into `view`, checking its checksum."""
        import zlib

        if info.compress_type == 0:
            self.file.seek(self.start(name, info))
            source = self.file
        else:
            source = self.zip.open(info)
        crc = done = 0
        n = len(view)
        while done < n:
            part = view[done : done + _CHUNK]
            try:
                got = _read_into(source, part)
            except (OSError, EOFError, zlib.error) as e:
                raise RuntimeError(f"load: reading record {name!r} failed: {e}") from e
            except Exception as e:
                if type(e).__name__ != "BadZipFile":
                    raise
                raise RuntimeError(f"load: record {name!r} is damaged: {e}") from e
            if not got:
                raise RuntimeError(f"load: record {name!r} ends after {done} of {n} bytes: the file is truncated")
            crc = zlib.crc32(part[:got], crc)
            done += got
        if crc != info.CRC:
            raise RuntimeError(f"load: record {name!r} does not match its checksum: the file is damaged")

    def storage(self, name: str, nbytes: int):
        info = self.info(name)
        if info.file_size != nbytes:
            raise RuntimeError(f"load: storage {name!r} holds {info.file_size} bytes where the pickle says {nbytes}: the file is damaged")
        if self.mapped is not None and nbytes and info.compress_type == 0:
            start = self.start(name, info)
            return _C.frombuffer(self.mapped[start : start + nbytes], dtype=_C.uint8).untyped_storage()
        storage = _new_storage(nbytes)
        if nbytes:
            self.fill(name, info, _view(storage))
        return storage


def _read_into(source, view: memoryview) -> int:
    if hasattr(source, "readinto"):
        return source.readinto(view) or 0
    data = source.read(len(view))
    view[: len(data)] = data
    return len(data)


def _swap(storage, itemsize: int):
    """Turns big-endian bytes into little-endian ones, in place."""
    if itemsize > 1 and storage.nbytes():
        from array import array

        view = _view(storage)
        items = array({2: "H", 4: "I", 8: "Q"}[itemsize])
        items.frombytes(view)
        items.byteswap()
        view[:] = items.tobytes()


def _parse_pid(pid, legacy: bool) -> tuple:
    """(storage type, key, location, numel, view) of a persistent id, checked."""
    if type(pid) is not tuple or len(pid) not in ((6, 5) if legacy else (5,)) or pid[0] not in ("storage", b"storage"):
        raise UnpicklingError(f"a persistent id that names no storage: {str(pid)[:80]}: refused")
    kind, key, location, numel = pid[1:5]
    if type(kind) is not _StorageType:
        raise UnpicklingError(f"the type of storage {key!r} is {type(kind).__name__}: refused")
    if isinstance(location, bytes):
        location = location.decode("ascii", "replace")
    if not isinstance(key, (str, int)) or type(location) is not str or type(numel) is not int or not 0 <= numel < 2**60:
        raise UnpicklingError(f"storage {str(key)[:40]!r} of {str(numel)[:40]} elements on {str(location)[:40]!r}: not a valid reference")
    return kind, key, location, numel, pid[5] if len(pid) == 6 else None


def _run_pickle(data, persistent_load, weights_only: bool, pickle_module, load_args: dict):
    if weights_only:
        machine = Unpickler(data, _find_safe, persistent_load, _Builders, load_args.get("encoding", "utf-8"))
        return machine.load()
    return _code_unpickler(pickle_module)(io.BytesIO(data), persistent_load, **load_args).load()


def _code_unpickler(pickle_module):
    """The ordinary unpickler with torch's names turned into ours."""
    base = (pickle_module or pickle).Unpickler

    class CodeUnpickler(base):
        def __init__(self, file, load_storage, **load_args) -> None:
            super().__init__(file, **load_args)
            self.load_storage = load_storage

        def persistent_load(self, pid):
            return self.load_storage(pid)

        def find_class(self, module, name):
            if module.split(".")[0] != "torch":
                return super().find_class(module, name)
            if (module, name) in _TENSOR_CALLS:
                return _TENSOR_CALLS[module, name]
            if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
                return _rebuild_from_type
            if name in _DTYPES or name == "UntypedStorage":
                return _StorageType(_DTYPES.get(name, "uint8"), name in _DTYPES)
            return _find_ours(module, name)

    return CodeUnpickler


def load(f, map_location=None, pickle_module=None, *, weights_only: bool | None = None, mmap: bool | None = None, **pickle_load_args):
    """Reads what `save`, here or in torch, wrote to `f`: a path or a binary file that can seek.

    By default (`weights_only` None or True) only tensors, parameters, numbers, strings and plain containers are built, and
    anything else is a `pickle.UnpicklingError` that names it; with False code of the file is run: only for files you trust.
    `map_location` (a device, a dictionary, or a function of storage and location) says where storages go that were on another
    device. With `mmap=True` the file at the path is mapped and its pages are read when used. FileNotFoundError, RuntimeError
    (truncated or damaged files).

    >>> import stowgrad as torch, tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "x.pt")
    ...     torch.save([torch.arange(3), "text"], path)
    ...     torch.load(path)
    [tensor([0, 1, 2]), 'text']
    """
    weights_only = True if weights_only is None else weights_only
    if weights_only and pickle_module is not None:
        raise RuntimeError("load: a pickle_module can be given only with weights_only=False, since it runs code of the file")
    if mmap and not _is_path(f):
        raise ValueError("load: f must be a path in order to use the mmap argument")
    if _is_path(f):
        with open(f, "rb") as file:
            return _load(file, map_location, pickle_module, weights_only, bool(mmap), pickle_load_args)
    for method in ("seek", "tell", "read"):
        if not hasattr(f, method):
            raise AttributeError(
                f"{type(f).__name__!r} object has no attribute {method!r}. You can only load from a file that is seekable: "
                "read it into io.BytesIO and load from that."
            )
    return _load(f, map_location, pickle_module, weights_only, False, pickle_load_args)


def _load(file, map_location, pickle_module, weights_only: bool, mapped: bool, load_args: dict):
    begin = file.tell()
    head = file.read(4)
    file.seek(begin)
    if not head:
        raise EOFError("load: the file is empty")
    if head == b"PK\x03\x04":
        view = None
        if mapped:
            import mmap

            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return _load_zip(file, view, map_location, pickle_module, weights_only, load_args)
    if mapped:
        raise RuntimeError("load: mmap=True needs a file in the zip format; this one is older: load it and save it again")
    return _load_legacy(file, map_location, pickle_module, weights_only, load_args)


def _load_zip(file, view, map_location, pickle_module, weights_only: bool, load_args: dict):
    archive = _Archive(file, view)
    data = archive.read("data.pkl")
    order = archive.read("byteorder") if archive.has("byteorder") else b"little"
    if order not in (b"little", b"big"):
        raise RuntimeError(f"load: unknown byte order {order[:20]!r}")
    loaded: dict = {}

    def persistent_load(pid):
        kind, key, location, numel, _ = _parse_pid(pid, legacy=False)
        name = kind.name
        if key in loaded:
            typed = loaded[key]
            if typed.numel != numel or typed.name != name:
                raise UnpicklingError(f"storage {key!r} is named with two types or sizes: the file is damaged")
            return typed if kind.typed else typed.untyped()
        storage = archive.storage(f"data/{key}", numel * _ITEMSIZE[name])
        if order.decode() != sys.byteorder:
            _swap(storage, _ITEMSIZE[name])
        typed = loaded[key] = TypedStorage(_restore(storage, location, map_location), name, numel)
        return typed if kind.typed else typed.untyped()

    return _run_pickle(data, persistent_load, weights_only, pickle_module, load_args)


def _load_legacy(file, map_location, pickle_module, weights_only: bool, load_args: dict):
    """The format before the zip: magic number, version, system, object, keys, each a pickle; then the bytes of each storage."""
    data = memoryview(file.read())
    if bytes(data[257:262]) == b"ustar":
        raise RuntimeError("load: the file is a tar archive, torch's first format, which is not read: load and save it with torch")
    plain = Unpickler(data, _find_safe)
    try:
        magic = plain.load()
    except UnpicklingError:
        magic = None
    if magic != _LEGACY_MAGIC:
        raise UnpicklingError("load: the file is in none of torch's formats (no zip archive, no magic number): it is damaged, or no such file")
    version, info = plain.load(), plain.load()
    if version != _LEGACY_VERSION:
        raise RuntimeError(f"load: version {version!r} of the old format is not read")
    swap = isinstance(info, dict) and info.get("little_endian", True) != (sys.byteorder == "little")
    loaded: dict = {}
    claimed = 0

    def persistent_load(pid):
        nonlocal claimed
        if type(pid) is tuple and pid and pid[0] in ("module", b"module"):
            return pid[1]  # a class with its source, of very old files; whether it is allowed was decided where it was named
        kind, key, location, numel, part = _parse_pid(pid, legacy=True)
        name = kind.name
        if key not in loaded:
            claimed += numel * _ITEMSIZE[name]
            if claimed > len(data):
                raise UnpicklingError(f"the file's storages claim {claimed} bytes, the file has {len(data)}: it is truncated or damaged")
            storage = _restore(_new_storage(numel * _ITEMSIZE[name]), location, map_location)
            loaded[key] = TypedStorage(storage, name, numel)
        typed = loaded[key]
        if typed.numel != numel or typed.name != name:
            raise UnpicklingError(f"storage {key!r} is named with two types or sizes: the file is damaged")
        if part is None:
            return typed if kind.typed else typed.untyped()
        if type(part) is not tuple or len(part) != 3:
            raise UnpicklingError(f"the view of storage {key!r} is no triple: the file is damaged")
        view_key, offset, view_size = part
        if type(offset) is not int or type(view_size) is not int or not 0 <= offset <= offset + view_size <= typed.numel:
            raise UnpicklingError(f"storage {key!r} has a view outside itself: the file is damaged")
        return TypedStorage(typed.untyped(), typed.name, view_size, offset)

    if weights_only:
        machine = Unpickler(data[plain.pos :], _find_safe, persistent_load, _Builders, load_args.get("encoding", "utf-8"))
        result = machine.load()
        pos = plain.pos + machine.pos
    else:
        stream = io.BytesIO(data[plain.pos :])
        result = _code_unpickler(pickle_module)(stream, persistent_load, **load_args).load()
        pos = plain.pos + stream.tell()
    plain.pos = pos
    keys = plain.load()
    if type(keys) is not list:
        raise UnpicklingError("the list of storages is missing: the file is damaged")
    pos = plain.pos
    for key in keys:
        typed = loaded.get(key)
        if len(data) < pos + 8:
            raise UnpicklingError(f"the bytes of storage {key!r} are missing: the file is truncated")
        (numel,) = unpack("<q", data[pos : pos + 8])
        pos += 8
        if typed is None:
            raise UnpicklingError(f"storage {key!r} is not named by the pickle: the file is damaged")
        nbytes = numel * _ITEMSIZE[typed.name]
        if numel != typed.numel or pos + nbytes > len(data):
            raise UnpicklingError(
                f"storage {key!r} has {numel} elements where the pickle says {typed.numel}, and {len(data) - pos} bytes are left: "
                "the file is truncated or damaged"
            )
        if nbytes:
            _view(typed.untyped())[:] = data[pos : pos + nbytes]
        if swap:
            _swap(typed.untyped(), _ITEMSIZE[typed.name])
        pos += nbytes
    if set(loaded) - set(keys):
        raise UnpicklingError("some storages have no bytes: the file is truncated or damaged")
    return result


def get_unsafe_globals_in_checkpoint(f) -> list:
    """The globals named by a file of `save` that `load(weights_only=True)` would refuse, as 'module.name', without loading it."""
    import pickletools

    def globals_of(data) -> set:
        names, strings, memo, last = set(), [], {}, None
        for op, arg, _ in pickletools.genops(data):
            if op.name == "GLOBAL":
                names.add(arg.replace(" ", "."))
            elif op.name == "STACK_GLOBAL":
                names.add(".".join(strings[-2:]))
            if isinstance(arg, str) and op.name.endswith("UNICODE"):
                strings.append(arg)
                last = arg
            elif op.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
                memo[len(memo) if arg is None else arg] = last
            elif op.name in ("BINGET", "LONG_BINGET") and isinstance(memo.get(arg), str):
                strings.append(memo[arg])
                last = memo[arg]
            else:
                last = None
        return names

    if _is_path(f):
        with open(f, "rb") as file:
            return get_unsafe_globals_in_checkpoint(file)
    begin = f.tell()
    if f.read(4) != b"PK\x03\x04":
        raise ValueError("get_unsafe_globals_in_checkpoint reads files in the zip format that save writes")
    f.seek(begin)
    unsafe = []
    for full in sorted(globals_of(_Archive(f).read("data.pkl"))):
        module, _, name = full.rpartition(".")
        try:
            _find_safe(module, name)
        except UnpicklingError:
            unsafe.append(full)
    return unsafe


# ---- plain pickles and copies, asked for by the core -----------------------------------------------------------------


def _rebuild_storage(data):
    storage = _new_storage(memoryview(data).nbytes)
    if storage.nbytes():
        _view(storage)[:] = memoryview(data).cast("B")
    return storage


def _reduce_storage(storage, protocol: int) -> tuple:
    """`UntypedStorage.__reduce_ex__`: its bytes, out of band where the pickler can do that."""
    if protocol >= 5 and storage.nbytes():
        return _rebuild_storage, (pickle.PickleBuffer(_view(storage)),)
    return _rebuild_storage, (bytes(_view(storage)) if storage.nbytes() else b"",)


def _rebuild_tensor(cls, storage, dtype: str, offset: int, size, stride, requires_grad: bool, state):
    t = _tensor_on(storage, getattr(_C, dtype), offset, size, stride)
    if cls is not _C.Tensor:
        t = _C.Tensor._make_subclass(cls, t, requires_grad)
    elif requires_grad:
        t.requires_grad_(True)
    return _set_state(t, state)


def _reduce_tensor(t, protocol: int) -> tuple:
    """`Tensor.__reduce_ex__`: class, storage, layout, `requires_grad`, attributes; neither hooks nor graph."""
    _warn_hooks(t)
    host = t if t.device.type == "cpu" else t.detach().cpu()
    return _rebuild_tensor, (
        type(t),
        host.untyped_storage(),
        _dtype_name(t.dtype),
        host.storage_offset(),
        tuple(host.size()),
        tuple(host.stride()),
        t.requires_grad,
        _state_of(t),
    )


def _deepcopy_tensor(t, memo: dict):
    """`Tensor.__deepcopy__`: a leaf with its own storage (shared among the copies as among the originals), gradient and attributes."""
    if id(t) in memo:
        return memo[id(t)]
    if not t.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment; this one, of "
            f"shape {tuple(t.shape)}, is the result of {t.grad_fn.name()}: detach() or clone() it"
        )
    from copy import deepcopy

    storages = memo.setdefault("stowgrad storages", {})
    storage = t.untyped_storage()
    address = storage.data_ptr() if storage.nbytes() else id(storage)
    if address not in storages:
        storages[address] = (storage, _copy_storage(storage))  # the original stays alive, so that its address stays its own
    copy = _tensor_on(storages[address][1], t.dtype, t.storage_offset(), t.size(), t.stride())
    if type(t) is not _C.Tensor:
        copy = _C.Tensor._make_subclass(type(t), copy, t.requires_grad)
    elif t.requires_grad:
        copy.requires_grad_(True)
    memo[id(t)] = copy
    if t.grad is not None:
        copy.grad = deepcopy(t.grad, memo)
    state = _state_of(t)
    if state is not None:
        _set_state(copy, deepcopy(state, memo))
    return copy
