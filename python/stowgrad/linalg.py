"""`torch.linalg`: the decompositions of the core, and what is composed of them.

They are made for the matrices of models: every factor is computed in float64, none is blocked, and eigenvalues and
singular values come from Jacobi's methods, which are exact but slow beyond some hundred rows. Names that need complex
numbers (`eig`, `eigvals`) and other missing ones raise an AttributeError that says so.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad._C import LinAlgError

_room = _C._linalg
_of_the_core = {name.removeprefix("linalg_"): f for name, f in vars(_room).items() if not name.startswith("_")}
globals().update(_of_the_core)
# Those that the compositions below call, by name for who reads and for the linter.
inv, inv_ex, solve, svdvals, vector_norm = (
    _of_the_core[name] for name in ("inv", "inv_ex", "solve", "svdvals", "vector_norm")
)
__all__ = [
    "LinAlgError",
    "cond",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_rank",
    "multi_dot",
    "norm",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    *sorted(_of_the_core),
]
_inf = float("inf")


def _given_out(value, out):
    if out is None:
        return value
    if value.requires_grad:
        raise RuntimeError("linalg: functions with out=... arguments don't support automatic differentiation")
    if tuple(out.shape) != tuple(value.shape):
        out.resize_(value.shape)
    return out.copy_(value)


def _checked(A, name: str):
    if not isinstance(A, _C.Tensor):
        raise TypeError(f"linalg.{name}(): argument 'A' must be Tensor, not {type(A).__name__}")
    if not A.is_floating_point():
        raise RuntimeError(f"linalg.{name}: Expected a floating point or complex tensor as input. Got {A.dtype}")
    return A


def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim: bool = False, *, dtype=None, out=None):
    """The norm of matrices that lie in two dimensions: `"fro"`, `"nuc"`, 1, 2, inf, or the negative of a number.

    RuntimeError for integers, for another `ord`, and where `dim` is not two different dimensions.

    >>> import stowgrad as torch
    >>> torch.linalg.matrix_norm(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    tensor(5.)
    """
    A = _checked(A, "matrix_norm")
    if dtype is not None:
        A = A.to(dtype)
    dim = tuple(dim)
    if A.dim() < 2:
        raise RuntimeError(f"linalg.matrix_norm: The input tensor A must have at least 2 dimensions, not {A.dim()}")
    if len(dim) != 2 or dim[0] % A.dim() == dim[1] % A.dim():
        raise RuntimeError(f"linalg.matrix_norm: dim must be two different dimensions. Got {dim}")
    if ord == "fro":
        return _given_out(vector_norm(A, 2, dim, keepdim), out)
    rows, columns = (d % A.dim() for d in dim)
    if ord == "nuc" or (not isinstance(ord, str) and abs(ord) == 2):
        values = svdvals(A.movedim((rows, columns), (-2, -1)))
        value = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord > 0 else values.amin(-1)
        if keepdim:
            for d in sorted((rows, columns)):
                value = value.unsqueeze(d)
        return _given_out(value, out)
    if isinstance(ord, str) or abs(ord) not in (1, _inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported: give 'fro', 'nuc', 1, 2, inf, -1, -2 or -inf")
    across, along = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = A.abs().sum(across, keepdim=True)
    value = sums.amax(along, keepdim=True) if ord > 0 else sums.amin(along, keepdim=True)
    return _given_out(value if keepdim else value.squeeze((rows, columns)), out)


def norm(A, ord=None, dim=None, keepdim: bool = False, *, out=None, dtype=None):
    """The norm of vectors (`dim` is one dimension) or of matrices (two); without `ord` the root of the sum of squares.

    >>> import stowgrad as torch
    >>> torch.linalg.norm(torch.tensor([3.0, -4.0])), torch.linalg.norm(torch.tensor([3.0, -4.0]), 1)
    (tensor(5.), tensor(7.))
    """
    A = _checked(A, "norm")
    dims = (dim,) if isinstance(dim, int) else None if dim is None else tuple(dim)
    if ord is not None and dims is None:
        if A.dim() not in (1, 2):
            raise RuntimeError(
                f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {A.dim()}D."
            )
        dims = tuple(range(A.dim()))
    if ord is not None and len(dims) == 2:
        return matrix_norm(A, ord, dims, keepdim, dtype=dtype, out=out)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: Order {ord} is one of matrices: dim must be two dimensions, not {dims}")
    return _given_out(vector_norm(A, 2 if ord is None else ord, dims, keepdim, dtype=dtype), out)


def cond(A, p=None, *, out=None):
    """The condition number of each matrix in a norm (`matrix_norm`'s orders; 2 if None): norm(A) norm(A^-1).

    >>> import stowgrad as torch
    >>> torch.linalg.cond(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
    tensor(4.)
    """
    A = _checked(A, "cond")
    if p is None or (not isinstance(p, str) and abs(p) == 2):
        values = svdvals(A)
        high, low = values.amax(-1), values.amin(-1)
        return _given_out(low / high if p == -2 else high / low, out)
    if A.shape[-1] != A.shape[-2]:
        raise RuntimeError(f"linalg.cond: with p={p} the matrices must be square, not {tuple(A.shape[-2:])}")
    inverse, info = inv_ex(A)
    value = matrix_norm(A, p) * matrix_norm(inverse, p)
    return _given_out(_C.where(info != 0, _C.full_like(value, _inf), value), out)


def matrix_rank(A, tol=None, hermitian: bool = False, *, atol=None, rtol=None, out=None):
    """How many singular values are above max(atol, rtol * the largest).

    >>> import stowgrad as torch
    >>> torch.linalg.matrix_rank(torch.ones(3, 3))
    tensor(1)
    """
    A = _checked(A, "matrix_rank")
    values = svdvals(A.detach())
    atol = tol if tol is not None else 0.0 if atol is None else atol
    if rtol is None:
        given = not isinstance(atol, _C.Tensor) and atol > 0
        rtol = 0.0 if tol is not None or given else max(A.shape[-2:]) * _C.finfo(A.dtype).eps
    if values.shape[-1] == 0:
        return _given_out(_C.zeros(tuple(values.shape[:-1]), dtype=_C.int64), out)
    least = (values.amax(-1, keepdim=True) * rtol).clamp(min=atol)
    return _given_out((values > least).sum(-1), out)


def diagonal(A, *, offset: int = 0, dim1: int = -2, dim2: int = -1):
    """The diagonal of each matrix, as a view.

    >>> import stowgrad as torch
    >>> torch.linalg.diagonal(torch.eye(2))
    tensor([1., 1.])
    """
    return A.diagonal(offset, dim1, dim2)


def matmul(input, other, *, out=None):
    """`torch.matmul`.

    >>> import stowgrad as torch
    >>> torch.linalg.matmul(torch.ones(2), torch.ones(2))
    tensor(2.)
    """
    return _C.matmul(input, other, out=out)


def vecdot(x, y, *, dim: int = -1, out=None):
    """The dot products of vectors that lie along a dimension, with broadcasting.

    >>> import stowgrad as torch
    >>> torch.linalg.vecdot(torch.ones(2, 3), torch.ones(3))
    tensor([3., 3.])
    """
    return _given_out((x * y).sum(dim), out)


def multi_dot(tensors, *, out=None):
    """The product of several matrices (the first and the last may be vectors), in the order that costs least.

    >>> import stowgrad as torch
    >>> torch.linalg.multi_dot([torch.ones(1, 2), torch.ones(2, 3), torch.ones(3)])
    tensor([6.])
    """
    tensors = list(tensors)
    if len(tensors) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    first, last = tensors[0].dim() == 1, tensors[-1].dim() == 1
    if first:
        tensors[0] = tensors[0].unsqueeze(0)
    if last:
        tensors[-1] = tensors[-1].unsqueeze(-1)
    for i, t in enumerate(tensors):
        if t.dim() != 2:
            raise RuntimeError(f"multi_dot(): tensor {i} must be 2D but got {t.dim()}D")
        if i and tensors[i - 1].shape[1] != t.shape[0]:
            raise RuntimeError(
                f"multi_dot(): tensors {i - 1} and {i} with shapes {tuple(tensors[i - 1].shape)} and {tuple(t.shape)} "
                "cannot be multiplied"
            )
    n = len(tensors)
    sizes = [t.shape[0] for t in tensors] + [tensors[-1].shape[1]]
    cost, split = {(i, i): 0 for i in range(n)}, {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            ways = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
            split[i, j] = min(ways, key=ways.get)
            cost[i, j] = ways[split[i, j]]

    def product(i, j):
        return tensors[i] if i == j else product(i, split[i, j]) @ product(split[i, j] + 1, j)

    value = product(0, n - 1)
    value = value.squeeze(0) if first else value
    return _given_out(value.squeeze(-1) if last else value, out)


def tensorinv(A, ind: int = 2, *, out=None):
    """The inverse of a tensor seen as a matrix: its first `ind` dimensions are the rows.

    >>> import stowgrad as torch
    >>> torch.linalg.tensorinv(torch.eye(6).reshape(2, 3, 6), ind=2).shape
    torch.Size([6, 2, 3])
    """
    if ind <= 0:
        raise RuntimeError(f"tensorinv: expected ind to be strictly greater than zero, got {ind}")
    rows, columns = A.shape[:ind], A.shape[ind:]
    if rows.numel() != columns.numel():
        raise RuntimeError(f"tensorinv: the products of {tuple(rows)} and of {tuple(columns)} are not equal")
    value = inv(A.reshape(rows.numel(), columns.numel())).reshape((*columns, *rows))
    return _given_out(value, out)


def tensorsolve(A, B, dims=None, *, out=None):
    """What solves `tensordot(A, X, X.dim()) = B`; `dims` of A are moved to its end before.

    >>> import stowgrad as torch
    >>> torch.linalg.tensorsolve(torch.eye(6).reshape(2, 3, 6), torch.ones(2, 3)).shape
    torch.Size([6])
    """
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(-len(dims), 0)))
    columns = A.shape[B.dim() :]
    if columns.numel() != B.numel():
        raise RuntimeError(f"tensorsolve: A of shape {tuple(A.shape)} is no square system for B of shape {tuple(B.shape)}")
    value = solve(A.reshape(B.numel(), columns.numel()), B.reshape(-1)).reshape(tuple(columns))
    return _given_out(value, out)


def vander(x, *, N: int | None = None):
    """The powers 0 to N - 1 of each element, in a new last dimension (as many as there are elements if N is None).

    >>> import stowgrad as torch
    >>> torch.linalg.vander(torch.tensor([2, 3]))
    tensor([[1, 2],
            [1, 3]])
    """
    n = x.shape[-1] if N is None else N
    if n < 1:
        raise RuntimeError(f"N must be greater than 1, got {n}")
    columns = [_C.ones_like(x)]
    for _ in range(n - 1):
        columns.append(columns[-1] * x)
    return _C.stack(columns, -1)


def __getattr__(name: str):
    why = ": its results are complex numbers, which are left out" if name in ("eig", "eigvals") else ""
    raise AttributeError(f"stowgrad.linalg has no {name!r}{why or ': it is not implemented here'}", name=name)
