"""Storages as bytes, and tensors over them.

What is known here: how a storage's bytes are reached without a copy, which name a dtype has in torch's files.
Invariant: a tensor is laid over a storage only after its place was seen to lie inside, since the numbers may come from
a file.
"""

from __future__ import annotations

from pickle import UnpicklingError

from stowgrad import _C

__all__ = [
    "DTYPES",
    "ITEMSIZE",
    "STORAGE_NAMES",
    "TypedStorage",
    "copy_storage",
    "dtype_name",
    "new_storage",
    "swap_bytes",
    "tensor_on",
    "view_of",
]


STORAGE_NAMES = {
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
DTYPES = {storage: name for name, storage in STORAGE_NAMES.items()}
ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


def view_of(storage) -> memoryview:
    """The bytes of a storage, not copied, writable."""
    return memoryview(storage).cast("B")


def new_storage(nbytes: int):
    return _C.UntypedStorage(nbytes)


def copy_storage(storage):
    copy = new_storage(storage.nbytes())
    if storage.nbytes():
        view_of(copy)[:] = view_of(storage)
    return copy


def dtype_name(dtype) -> str:
    return str(dtype).rpartition(".")[2]


def tensor_on(storage, dtype, offset: int, size, stride):
    """A tensor over a storage. The place is checked here, since it may come from a file."""
    size, stride = tuple(size), tuple(stride)
    if len(size) != len(stride) or not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *size, *stride)):
        raise UnpicklingError(f"a tensor of size {size!r}, stride {stride!r}, offset {offset!r}: not a valid layout")
    numel = 1
    for n in size:
        numel *= n
    if numel >= 2**62:
        raise UnpicklingError(f"a tensor of size {size!r} has too many elements")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if numel else -1
    if (last + 1) * dtype.itemsize > storage.nbytes():
        raise UnpicklingError(
            f"a tensor of size {size!r}, stride {stride!r}, offset {offset} and dtype {dtype} reaches beyond its "
            "storage of "
            f"{storage.nbytes()} bytes"
        )
    return _C.empty((0,), dtype=dtype).set_(storage, offset, size, stride)


class TypedStorage:
    """A storage as a file knows it: bytes with a dtype, counted in elements. `base` is where a view of a larger one
    begins.
    """

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
        return tensor_on(self._untyped_storage, self.dtype, self.base, (self.numel,), (1,)).tolist()

    def __repr__(self) -> str:
        return f"TypedStorage(dtype={self.dtype}, size={self.numel})"


def swap_bytes(storage, itemsize: int):
    """Turns big-endian bytes into little-endian ones, in place."""
    if itemsize > 1 and storage.nbytes():
        from array import array

        view = view_of(storage)
        items = array({2: "H", 4: "I", 8: "Q"}[itemsize])
        items.frombytes(view)
        items.byteswap()
        view[:] = items.tobytes()
