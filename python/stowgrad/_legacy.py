"""The tensor classes from before dtypes: constructors such as `torch.FloatTensor(2, 3)`, and `isinstance` by dtype.

Invariant: no tensor has one of these as its type; they make plain tensors and answer by dtype.
"""

from __future__ import annotations

from stowgrad import _C

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]


class _LegacyTensorType(type):
    """The type of the legacy classes: makes them callable as constructors, and `isinstance` a question of dtype."""

    dtype: object

    def __instancecheck__(cls, instance) -> bool:
        return isinstance(instance, _C.Tensor) and instance.dtype is cls.dtype

    def __subclasscheck__(cls, subclass) -> bool:
        return subclass is cls

    def __call__(cls, *args, device=None):
        """Sizes give an uninitialised tensor, a sequence, an array or a storage its data; nothing gives an empty one.

        >>> import stowgrad as torch
        >>> torch.LongTensor([1, 2])
        tensor([1, 2])
        >>> torch.FloatTensor(2, 3).shape
        torch.Size([2, 3])
        >>> isinstance(torch.ones(1), torch.FloatTensor)
        True
        """
        if device is not None and _C.device(device).type != "cpu":
            raise RuntimeError(f"legacy constructor expects device type: cpu, but device type: {device} was passed")
        if not args:
            return _C.empty(0, dtype=cls.dtype)
        first = args[0]
        if len(args) == 1 and not _is_size(first):
            if isinstance(first, _C.Size):
                return _C.empty(first, dtype=cls.dtype)
            if isinstance(first, _C.Tensor):
                if first.dtype is not cls.dtype:
                    raise TypeError(
                        f"expected {cls.__name__} (got {first.type()}): the legacy constructor does not convert; "
                        f"use tensor.to({cls.dtype})"
                    )
                return first.detach()
            if isinstance(first, _C.UntypedStorage):
                return _C.empty(0, dtype=cls.dtype).set_(first)
            return _C.tensor(first, dtype=cls.dtype)
        for size in args:
            if not _is_size(size):
                raise TypeError(
                    f"new(): sizes must be ints, but {type(size).__name__} came in {args!r}; pass data as one list"
                )
        return _C.empty(tuple(int(a) for a in args), dtype=cls.dtype)

    def __repr__(cls) -> str:
        return f"<class 'torch.{cls.__name__}'>"


def _is_size(value) -> bool:
    if isinstance(value, (bool, float, str, _C.Tensor)):
        return False
    return hasattr(value, "__index__")


def _new(dtype, args: tuple):
    """`tensor.new(*args)`: what the legacy class of the dtype would make."""
    return _LegacyTensorType.__call__(_class("Tensor", dtype), *args)


def _class(name: str, dtype):
    return _LegacyTensorType(
        name,
        (),
        {
            "dtype": dtype,
            "__module__": "torch",
            "__doc__": f"Makes and recognises tensors of {dtype}.",
            "is_cuda": False,
        },
    )


FloatTensor = _class("FloatTensor", _C.float32)
DoubleTensor = _class("DoubleTensor", _C.float64)
HalfTensor = _class("HalfTensor", _C.float16)
BFloat16Tensor = _class("BFloat16Tensor", _C.bfloat16)
LongTensor = _class("LongTensor", _C.int64)
IntTensor = _class("IntTensor", _C.int32)
ShortTensor = _class("ShortTensor", _C.int16)
CharTensor = _class("CharTensor", _C.int8)
ByteTensor = _class("ByteTensor", _C.uint8)
BoolTensor = _class("BoolTensor", _C.bool)
