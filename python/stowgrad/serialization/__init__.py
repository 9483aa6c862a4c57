"""`save` and `load`: torch's files, written so that torch reads them, read without running what they hold.

A file is a zip archive (or torch's older sequence of pickles): one pickle of the object, in which a tensor is a call
that names a storage by key, and one record of raw bytes a storage. Globals are written under torch's names, whatever
module they live in here.

The rooms: `storages` (bytes, and tensors over them), `names` (what the names in a file mean), `machine` (the unpickler
that only builds plain data), `pickler`, `archive`, `pickles` (plain pickles and copies of tensors).
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from pickle import UnpicklingError
from struct import pack, unpack

from stowgrad.serialization.archive import Archive, AtomicFile, write_zip
from stowgrad.serialization.machine import Unpickler
from stowgrad.serialization.names import (
    TENSOR_CALLS,
    Builders,
    StorageType,
    add_safe_globals,
    clear_safe_globals,
    find_ours,
    find_safe,
    get_safe_globals,
    rebuild_from_type,
    safe_globals,
)
from stowgrad.serialization.pickler import Storages, pickled
from stowgrad.serialization.storages import DTYPES, ITEMSIZE, TypedStorage, new_storage, swap_bytes, view_of

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
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001


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
    """Writes tensors, parameters, containers (and whatever pickles) to `f`, a path or a binary file, in torch's
    format.

    Strides, sharing of storages, `requires_grad` and attributes are kept; hooks and graphs are not. A path is replaced
    only once the new file is complete and on the disk: when anything fails, the old file is as it was. RuntimeError if
    the directory is missing.

    >>> import stowgrad as torch, io
    >>> f = io.BytesIO()
    >>> torch.save({"weight": torch.ones(2)}, f)
    >>> _ = f.seek(0)
    >>> torch.load(f)
    {'weight': tensor([1., 1.])}
    """
    if not _is_path(f) and not hasattr(f, "write"):
        raise AttributeError(
            "save: expected 'f' to be string, path, or a file-like object with a 'write' attribute, not "
            f"{type(f).__name__}"
        )
    if not 2 <= pickle_protocol <= pickle.HIGHEST_PROTOCOL:
        raise ValueError(f"save: pickle_protocol must be 2 to {pickle.HIGHEST_PROTOCOL}, not {pickle_protocol}")
    storages = Storages(legacy=not _use_new_zipfile_serialization)
    data = pickled(obj, pickle_protocol, storages, pickle_module)
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
            write_zip(file, name, data, storages, not _disable_byteorder_record)

    if _is_path(f):
        with AtomicFile(f) as file:
            write(file)
    else:
        write(f)


def _write_legacy(file, data: bytes, storages: Storages, protocol: int) -> None:
    sizes = {"short": 2, "int": 4, "long": 4}
    info = {"protocol_version": _LEGACY_VERSION, "little_endian": sys.byteorder == "little", "type_sizes": sizes}
    for part in (_LEGACY_MAGIC, _LEGACY_VERSION, info):
        file.write(pickle.dumps(part, protocol))
    file.write(data)
    file.write(pickle.dumps(list(storages.records), protocol))
    names = {key: name for key, name, _ in storages.known.values()}
    for key, (storage, nbytes) in storages.records.items():
        itemsize = 1 if names[key] == "untyped" else ITEMSIZE[names[key]]
        file.write(pack("<q", nbytes // itemsize))
        if nbytes:
            file.write(view_of(storage)[:nbytes])


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


def _parse_pid(pid, legacy: bool) -> tuple:
    """(storage type, key, location, numel, view) of a persistent id, checked."""
    if type(pid) is not tuple or len(pid) not in ((6, 5) if legacy else (5,)) or pid[0] not in ("storage", b"storage"):
        raise UnpicklingError(f"a persistent id that names no storage: {str(pid)[:80]}: refused")
    kind, key, location, numel = pid[1:5]
    if type(kind) is not StorageType:
        raise UnpicklingError(f"the type of storage {key!r} is {type(kind).__name__}: refused")
    if isinstance(location, bytes):
        location = location.decode("ascii", "replace")
    if not isinstance(key, (str, int)) or type(location) is not str or type(numel) is not int or not 0 <= numel < 2**60:
        raise UnpicklingError(
            f"storage {str(key)[:40]!r} of {str(numel)[:40]} elements on {str(location)[:40]!r}: not a valid reference"
        )
    return kind, key, location, numel, pid[5] if len(pid) == 6 else None


def _run_pickle(data, persistent_load, weights_only: bool, pickle_module, load_args: dict):
    if weights_only:
        machine = Unpickler(data, find_safe, persistent_load, Builders, load_args.get("encoding", "utf-8"))
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
            if (module, name) in TENSOR_CALLS:
                return TENSOR_CALLS[module, name]
            if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
                return rebuild_from_type
            if name in DTYPES or name == "UntypedStorage":
                return StorageType(DTYPES.get(name, "uint8"), name in DTYPES)
            return find_ours(module, name)

    return CodeUnpickler


def load(
    f,
    map_location=None,
    pickle_module=None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args,
):
    """Reads what `save`, here or in torch, wrote to `f`: a path or a binary file that can seek.

    By default (`weights_only` None or True) only tensors, parameters, numbers, strings and plain containers are built,
    and anything else is a `pickle.UnpicklingError` that names it; with False code of the file is run: only for files
    you trust. `map_location` (a device, a dictionary, or a function of storage and location) says where storages go
    that were on another device. With `mmap=True` the file at the path is mapped and its pages are read when used.
    FileNotFoundError, RuntimeError (truncated or damaged files).

    >>> import stowgrad as torch, tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "x.pt")
    ...     torch.save([torch.arange(3), "text"], path)
    ...     torch.load(path)
    [tensor([0, 1, 2]), 'text']
    """
    weights_only = True if weights_only is None else weights_only
    if weights_only and pickle_module is not None:
        raise RuntimeError(
            "load: a pickle_module can be given only with weights_only=False, since it runs code of the file"
        )
    if mmap and not _is_path(f):
        raise ValueError("load: f must be a path in order to use the mmap argument")
    if _is_path(f):
        with open(f, "rb") as file:
            return _load(file, map_location, pickle_module, weights_only, bool(mmap), pickle_load_args)
    for method in ("seek", "tell", "read"):
        if not hasattr(f, method):
            raise AttributeError(
                f"{type(f).__name__!r} object has no attribute {method!r}. You can only load from a file that is "
                "seekable: "
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
        raise RuntimeError(
            "load: mmap=True needs a file in the zip format; this one is older: load it and save it again"
        )
    return _load_legacy(file, map_location, pickle_module, weights_only, load_args)


def _load_zip(file, view, map_location, pickle_module, weights_only: bool, load_args: dict):
    archive = Archive(file, view)
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
        storage = archive.storage(f"data/{key}", numel * ITEMSIZE[name])
        if order.decode() != sys.byteorder:
            swap_bytes(storage, ITEMSIZE[name])
        typed = loaded[key] = TypedStorage(_restore(storage, location, map_location), name, numel)
        return typed if kind.typed else typed.untyped()

    return _run_pickle(data, persistent_load, weights_only, pickle_module, load_args)


def _load_legacy(file, map_location, pickle_module, weights_only: bool, load_args: dict):
    """The format before the zip: magic number, version, system, object, keys, each a pickle; then the bytes of each
    storage.
    """
    data = memoryview(file.read())
    if bytes(data[257:262]) == b"ustar":
        raise RuntimeError(
            "load: the file is a tar archive, torch's first format, which is not read: load and save it with torch"
        )
    plain = Unpickler(data, find_safe)
    try:
        magic = plain.load()
    except UnpicklingError:
        magic = None
    if magic != _LEGACY_MAGIC:
        raise UnpicklingError(
            "load: the file is in none of torch's formats (no zip archive, no magic number): it is damaged, or no "
            "such file"
        )
    version, info = plain.load(), plain.load()
    if version != _LEGACY_VERSION:
        raise RuntimeError(f"load: version {version!r} of the old format is not read")
    swap = isinstance(info, dict) and info.get("little_endian", True) != (sys.byteorder == "little")
    loaded: dict = {}
    claimed = 0

    def persistent_load(pid):
        nonlocal claimed
        if type(pid) is tuple and pid and pid[0] in ("module", b"module"):
            return pid[
                1
            ]  # a class with its source, of very old files; whether it is allowed was decided where it was named
        kind, key, location, numel, part = _parse_pid(pid, legacy=True)
        name = kind.name
        if key not in loaded:
            claimed += numel * ITEMSIZE[name]
            if claimed > len(data):
                raise UnpicklingError(
                    f"the file's storages claim {claimed} bytes, the file has {len(data)}: it is truncated or damaged"
                )
            storage = _restore(new_storage(numel * ITEMSIZE[name]), location, map_location)
            loaded[key] = TypedStorage(storage, name, numel)
        typed = loaded[key]
        if typed.numel != numel or typed.name != name:
            raise UnpicklingError(f"storage {key!r} is named with two types or sizes: the file is damaged")
        if part is None:
            return typed if kind.typed else typed.untyped()
        if type(part) is not tuple or len(part) != 3:
            raise UnpicklingError(f"the view of storage {key!r} is no triple: the file is damaged")
        _, offset, view_size = part
        if (
            type(offset) is not int
            or type(view_size) is not int
            or not 0 <= offset <= offset + view_size <= typed.numel
        ):
            raise UnpicklingError(f"storage {key!r} has a view outside itself: the file is damaged")
        return TypedStorage(typed.untyped(), typed.name, view_size, offset)

    if weights_only:
        machine = Unpickler(data[plain.pos :], find_safe, persistent_load, Builders, load_args.get("encoding", "utf-8"))
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
        nbytes = numel * ITEMSIZE[typed.name]
        if numel != typed.numel or pos + nbytes > len(data):
            raise UnpicklingError(
                f"storage {key!r} has {numel} elements where the pickle says {typed.numel}, and {len(data) - pos} "
                "bytes are left: "
                "the file is truncated or damaged"
            )
        if nbytes:
            view_of(typed.untyped())[:] = data[pos : pos + nbytes]
        if swap:
            swap_bytes(typed.untyped(), ITEMSIZE[typed.name])
        pos += nbytes
    if set(loaded) - set(keys):
        raise UnpicklingError("some storages have no bytes: the file is truncated or damaged")
    return result


def get_unsafe_globals_in_checkpoint(f) -> list:
    """The globals named by a file of `save` that `load(weights_only=True)` would refuse, as 'module.name', without
    loading it.
    """
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
    for full in sorted(globals_of(Archive(f).read("data.pkl"))):
        module, _, name = full.rpartition(".")
        try:
            find_safe(module, name)
        except UnpicklingError:
            unsafe.append(full)
    return unsafe
