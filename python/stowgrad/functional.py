"""Small questions and shapes that torch offers as free functions and that need no kernel of their own.

Invariant: a name that the native core has is the core's, here as in the package; the rest is composed from public ops.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad._C import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block_diag,
    broadcast_tensors,
    cartesian_prod,
    einsum,
    meshgrid,
    norm,
    tensordot,
)

__all__ = [
    "are_deterministic_algorithms_enabled",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_shapes",
    "broadcast_tensors",
    "cartesian_prod",
    "conj",
    "conj_physical",
    "einsum",
    "get_num_interop_threads",
    "imag",
    "is_complex",
    "is_conj",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_floating_point",
    "is_inference",
    "is_neg",
    "is_nonzero",
    "is_storage",
    "is_tensor",
    "meshgrid",
    "norm",
    "numel",
    "pdist",
    "real",
    "resolve_conj",
    "resolve_neg",
    "set_default_tensor_type",
    "set_flush_denormal",
    "set_num_interop_threads",
    "spmm",
    "tensordot",
    "typename",
    "use_deterministic_algorithms",
]

Tensor = _C.Tensor


def _real_part(name: str, doc: str):
    def same(input):
        return _tensor_of(input, name)

    same.__name__ = same.__qualname__ = name
    same.__doc__ = doc
    return same


# There are no complex dtypes: a tensor is its own real part and its own conjugate.
real = _real_part("real", "The real part of a tensor: the tensor itself.")
conj = _real_part("conj", "The conjugate of a tensor: the tensor itself.")
conj_physical = _real_part("conj_physical", "The conjugate of a tensor: the tensor itself.")
resolve_conj = _real_part("resolve_conj", "The tensor with its conjugate bit resolved: the tensor itself.")
resolve_neg = _real_part("resolve_neg", "The tensor with its negative bit resolved: the tensor itself.")


def imag(input):
    """The imaginary part. RuntimeError: a real tensor has none."""
    return _tensor_of(input, "imag").imag


def is_conj(input) -> bool:
    """Whether the tensor is a conjugate view: never."""
    _tensor_of(input, "is_conj")
    return False


def is_neg(input) -> bool:
    """Whether the tensor is a negated view: never."""
    _tensor_of(input, "is_neg")
    return False


def is_inference(input) -> bool:
    """Whether the tensor was made under `inference_mode`.

    >>> import stowgrad as torch
    >>> with torch.inference_mode():
    ...     torch.is_inference(torch.ones(1))
    True
    """
    return _tensor_of(input, "is_inference").is_inference()


def pdist(input, p: float = 2.0):
    """Distances of order `p` between every two rows of a matrix, in the order of `combinations`: [n (n - 1) / 2].

    >>> import stowgrad as torch
    >>> torch.pdist(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([5.])
    """
    from stowgrad.nn.functional import pdist as distances

    return distances(input, p)


def spmm(mat1, mat2):
    """The product of two matrices: `mm`. (There are no sparse tensors.)"""
    return _C.mm(mat1, mat2)


def _tensor_of(input, what: str) -> Tensor:
    if not isinstance(input, Tensor):
        raise TypeError(f"{what}(): argument 'input' must be Tensor, not {type(input).__name__}")
    return input


def broadcast_shapes(*shapes):
    """The shape that tensors of these shapes broadcast to, as a `Size`; a shape is an int or a sequence of ints.

    RuntimeError when two sizes differ and neither is 1, or when one is negative.

    >>> import stowgrad as torch
    >>> torch.broadcast_shapes((2,), (3, 1), (1, 1, 1))
    torch.Size([1, 3, 2])
    """
    rows = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    out = [1] * max(map(len, rows), default=0)
    for row in rows:
        for i in range(-1, -1 - len(row), -1):
            size = row[i]
            if size < 0:
                raise RuntimeError(f"broadcast_shapes: a size of {size} in {row}: sizes cannot be negative")
            if size in (1, out[i]):
                continue
            if out[i] != 1:
                raise RuntimeError(
                    "Shape mismatch: objects cannot be broadcast to a single shape: "
                    f"{', '.join(map(str, rows))} disagree in dimension {i} ({out[i]} and {size})"
                )
            out[i] = size
    return _C.Size(out)


def is_tensor(obj) -> bool:
    """Whether `obj` is a Tensor, of whatever subclass.

    >>> import stowgrad as torch
    >>> torch.is_tensor(torch.ones(2)), torch.is_tensor([1.0])
    (True, False)
    """
    return isinstance(obj, Tensor)


def is_storage(obj) -> bool:
    """Whether `obj` is a storage.

    >>> import stowgrad as torch
    >>> torch.is_storage(torch.ones(2).untyped_storage())
    True
    """
    return isinstance(obj, _C.UntypedStorage)


def is_floating_point(input) -> bool:
    """Whether the tensor's dtype is a floating point one. TypeError if `input` is no tensor.

    >>> import stowgrad as torch
    >>> torch.is_floating_point(torch.ones(2)), torch.is_floating_point(torch.tensor(1))
    (True, False)
    """
    return _tensor_of(input, "is_floating_point").is_floating_point()


def is_complex(input) -> bool:
    """False for every tensor here: there are no complex dtypes. TypeError if `input` is no tensor."""
    return _tensor_of(input, "is_complex").is_complex()


def is_nonzero(input) -> bool:
    """Whether the one element of `input` differs from zero. RuntimeError if there are more elements, or none.

    >>> import stowgrad as torch
    >>> torch.is_nonzero(torch.tensor([0.0])), torch.is_nonzero(torch.tensor(3))
    (False, True)
    """
    count = _tensor_of(input, "is_nonzero").numel()
    if count != 1:
        shape = tuple(input.shape)
        raise RuntimeError(
            f"Boolean value of Tensor with {'more than one value' if count else 'no values'} is ambiguous: "
            f"is_nonzero() asks one element, the tensor of shape {shape} has {count}; use any() or all()"
        )
    return bool(input.item() != 0)


def numel(input) -> int:
    """The number of elements. TypeError if `input` is no tensor.

    >>> import stowgrad as torch
    >>> torch.numel(torch.ones(2, 3))
    6
    """
    return _tensor_of(input, "numel").numel()


def typename(obj) -> str:
    """The name of the type of `obj`: of a tensor what `Tensor.type()` says, else module and class.

    >>> import stowgrad as torch
    >>> torch.typename(torch.tensor([1, 2]))
    'torch.LongTensor'
    """
    if isinstance(obj, Tensor):
        return obj.type()
    module = getattr(obj, "__module__", None) or getattr(type(obj), "__module__", "")
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__qualname__
    return name if module in ("", "builtins") else f"{module}.{name}"


def set_default_tensor_type(t) -> None:
    """Makes the dtype of a legacy tensor class, given as class or name, the default dtype.

    TypeError if it is no floating point class, or of a device that is not there. `set_default_dtype` says the same.
    """
    from stowgrad import _legacy

    kind = t
    if isinstance(t, str):
        kind = getattr(_legacy, t.removeprefix("torch."), None)
    if not isinstance(kind, _legacy._LegacyTensorType):
        raise TypeError(
            f"set_default_tensor_type: {t!r} is no tensor type here; say torch.FloatTensor or torch.DoubleTensor"
        )
    if not kind.dtype.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, not {kind.__name__}")
    _C.set_default_dtype(kind.dtype)


_deterministic = {"mode": False, "warn_only": False}


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Asks for results that are the same run after run. They are in any case; the wish is only remembered."""
    _deterministic.update(mode=bool(mode), warn_only=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was last told.

    >>> import stowgrad as torch
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    return _deterministic["mode"]


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """The `warn_only` that `use_deterministic_algorithms` was last told."""
    return _deterministic["warn_only"]


def set_flush_denormal(mode: bool) -> bool:
    """False: denormal numbers are computed as such, and that cannot be changed here. The answer False is how torch says
    that a machine does not support flushing.
    """
    return False


_interop = 1


def get_num_interop_threads() -> int:
    """The number of threads between operations: operations run one after the other, in the caller's thread."""
    return _interop


def set_num_interop_threads(threads: int) -> None:
    """Remembers the wish; operations still run one after the other. RuntimeError unless `threads` is positive."""
    global _interop
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise TypeError(f"set_num_interop_threads expects an int, but got {type(threads).__name__}")
    if threads <= 0:
        raise RuntimeError(f"set_num_interop_threads expects a positive number of threads, got {threads}")
    _interop = threads
