"""What torch keeps in its native modules (`torch._C`, `torch._VF`) and what is written in Python here; loaded when first named.

`lookup` answers for names that `stowgrad._C` lacks.
"""

from __future__ import annotations

import types
import weakref

from stowgrad import _C

__all__ = ["lookup"]

has_lapack = False  # decompositions are the core's own
has_mkl = has_openmp = has_cuda = has_mps = False


class _WeakTensorRef:
    """A weak reference to a tensor that can only be asked whether the tensor is gone.

    >>> import stowgrad as torch
    >>> x = torch.ones(1)
    >>> ref = torch._C._WeakTensorRef(x)
    >>> ref.expired()
    False
    >>> del x
    >>> ref.expired()
    True
    """

    __slots__ = ("_ref",)

    def __init__(self, tensor):
        if not isinstance(tensor, _C.Tensor):
            raise TypeError(f"_WeakTensorRef takes a Tensor, not {type(tensor).__name__}")
        self._ref = weakref.ref(tensor)

    def expired(self) -> bool:
        return self._ref() is None


def _unique2(input, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False):
    """`(values, inverse, counts)` of `unique`; what is not asked for is empty."""
    values, inverse, counts = _C.unique(input, sorted, True, True)
    none = _C.empty(0, dtype=_C.int64)
    return values, inverse if return_inverse else none, counts if return_counts else none


def _unique(input, sorted: bool = True, return_inverse: bool = False):
    """`(values, inverse)` of `unique`."""
    return _unique2(input, sorted, return_inverse)[:2]


def _unique_dim(input, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False):
    """`(values, inverse, counts)` of `unique` along a dimension."""
    values, inverse, counts = _C.unique(input, sorted, True, True, dim)
    none = _C.empty(0, dtype=_C.int64)
    return values, inverse if return_inverse else none, counts if return_counts else none


class _Functions(types.ModuleType):
    """`torch._C`'s functions by name: what the package does not override is the core's."""

    def __getattr__(self, name: str):
        return getattr(_C, name)


_VF = _Functions("stowgrad._VF")
_VF.unique_dim = _unique_dim
_VF._unique2 = _unique2


def lookup(name: str):
    if name == "_functions":
        from stowgrad.autograd import _functions

        return _functions.native
    if name in ("_WeakTensorRef", "has_lapack", "has_mkl", "has_openmp", "has_cuda", "has_mps"):
        return globals()[name]
    if name in ("_unique", "_unique2"):
        return globals()[name]
    raise AttributeError(f"stowgrad._C has no {name!r}", name=name, obj=_C)
