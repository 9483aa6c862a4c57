"""The pickler of torch's files: tensors as calls that name a storage by key, our classes under torch's names.

Invariants: a storage gets one key however many tensors share it, and stays alive until it is written; a global of ours
is written only if it can be found again.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections import OrderedDict

from stowgrad import _C
from stowgrad.serialization.names import parameter_class, torch_name
from stowgrad.serialization.storages import ITEMSIZE, STORAGE_NAMES, dtype_name


class _Global:
    """A global that is written by name, without asking whether it can be imported here."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self):  # the pickler insists on something callable
        raise TypeError(f"{self.module}.{self.name} is only a name")


_TORCH_STORAGE = {name: _Global("torch", storage) for name, storage in STORAGE_NAMES.items()}
_TORCH_UNTYPED = _Global("torch.storage", "UntypedStorage")
_TORCH_DTYPE = {name: _Global("torch", name) for name in STORAGE_NAMES}
_TORCH_TENSOR = _Global("torch", "Tensor")
_TORCH_PARAMETER = _Global("torch.nn.parameter", "Parameter")
_TORCH_SIZE = _Global("torch", "Size")
_TORCH_DEVICE = _Global("torch", "device")
_TORCH_LAYOUT = _Global("torch.serialization", "_get_layout")
_TORCH_TENSOR_V2 = _Global("torch._utils", "_rebuild_tensor_v2")
_TORCH_PARAMETER_V1 = _Global("torch._utils", "_rebuild_parameter")
_TORCH_PARAMETER_STATE = _Global("torch._utils", "_rebuild_parameter_with_state")
_TORCH_FROM_TYPE = _Global("torch._tensor", "_rebuild_from_type_v2")


class _StorageRef:
    """Where a storage stands in the pickle: written as a persistent id."""

    __slots__ = ("pid",)

    def __init__(self, pid: tuple) -> None:
        self.pid = pid


def state_of(t):
    """The user's attributes of a tensor, as `set_state` takes them; None where there are none."""
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


def warn_hooks(t) -> None:
    if getattr(t, "_backward_hooks", None):
        from stowgrad.utils.hooks import warn_if_has_hooks

        warn_if_has_hooks(t)


def _is_parameter(t) -> bool:
    module = sys.modules.get("stowgrad.nn.parameter")
    return module is not None and isinstance(t, module.Parameter)


class Storages:
    """The storages of one file: numbered as they are met, kept alive until they are written."""

    def __init__(self, legacy: bool) -> None:
        self.legacy = legacy
        self.records: dict = {}  # key -> (storage, nbytes)
        self.known: dict = {}  # address -> (key, dtype name, storage)

    def reference(self, storage, name: str, untyped: bool = False) -> _StorageRef:
        nbytes = storage.nbytes()
        numel = nbytes // ITEMSIZE[name]
        address = storage.data_ptr() if nbytes else ("empty", name, untyped)
        key, kind = None, ("untyped" if untyped else name)
        if address in self.known:
            key, before, _ = self.known[address]
            if before != kind:
                raise RuntimeError(
                    f"Cannot save multiple tensors or storages that view the same data as different types: {before} "
                    f"and {kind}"
                )
        else:
            key = str(len(self.known))
            self.known[address] = (key, kind, storage)
            self.records[key] = (storage, numel * ITEMSIZE[name])
        pid = ("storage", _TORCH_UNTYPED if untyped else _TORCH_STORAGE[name], key, "cpu", numel)
        return _StorageRef((*pid, None) if self.legacy else pid)


class _Reducers:
    """How objects that the pickler does not know are reduced: tensors by us, everything else as usual. Asked once an
    object.
    """

    def __init__(self, pickler, base: dict) -> None:
        self.pickler = pickler
        self.base = base

    def get(self, cls, default=None):
        if issubclass(cls, _C.Tensor):
            return self.pickler.reduce_tensor
        return self.base.get(cls, default)


def _pickler_class(base):
    """A pickler for torch's files over a Python-level pickler class (`pickle._Pickler` or one derived from it)."""

    class Pickler(base):
        dispatch = base.dispatch.copy()

        def __init__(self, file, protocol, storages) -> None:
            super().__init__(file, protocol)
            self.storages = storages
            self.dispatch_table = _Reducers(self, getattr(self, "dispatch_table", None) or copyreg.dispatch_table)

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
            self.save(_TORCH_DTYPE[dtype_name(obj)])

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
                    self.write_global(*torch_name(obj, module, name), obj)
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
                    self.storages.reference(t.untyped_storage(), dtype_name(t.dtype)),
                    t.storage_offset(),
                    tuple(t.size()),
                    tuple(t.stride()),
                    t.requires_grad,
                    OrderedDict(),
                ),
            )

        def reduce_tensor(self, t) -> tuple:
            warn_hooks(t)
            state = state_of(t)
            if type(t) is not _C.Tensor and _is_parameter(t) and type(t) is parameter_class():
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


def pickled(obj, protocol: int, storages: Storages, pickle_module=None) -> bytes:
    global _FilePickler
    if pickle_module is None or pickle_module is pickle:
        if _FilePickler is None:
            _FilePickler = _pickler_class(pickle._Pickler)
        cls = _FilePickler
    else:
        base = pickle_module.Pickler
        if not issubclass(base, pickle._Pickler):
            raise TypeError(
                f"save: {pickle_module.__name__}.Pickler is no Python-level pickler (it must derive from "
                "pickle._Pickler, as dill's does)"
            )
        cls = _pickler_class(base)
    out = io.BytesIO()
    cls(out, protocol, storages).dump(obj)
    return out.getvalue()
