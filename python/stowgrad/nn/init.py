"""Filling parameters before training.

What is known here: shapes and random fills. Invariants: every function writes in place under no_grad and gives the
tensor back; it draws in torch's order, so that a seed gives torch's numbers.

Sources: Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming), Saxe et al. 2013 (orthogonal), Martens 2010
(sparse).
"""

from __future__ import annotations

import functools
import math
import warnings

import stowgrad
from stowgrad import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

Tensor = _C.Tensor

_GAIN_ONE = frozenset(
    ["linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid"]
)


def _without_grad(fill: Any) -> Any:
    """Runs `fill` with gradients off."""

    @functools.wraps(fill)
    def filled(*args: Any, **kwargs: Any) -> Tensor:
        was = _C.is_grad_enabled()
        _C._set_grad_enabled(False)
        try:
            return fill(*args, **kwargs)
        finally:
            _C._set_grad_enabled(was)

    return filled


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance of values through a nonlinearity. ValueError for an unknown name.

    >>> import stowgrad as torch
    >>> round(torch.nn.init.calculate_gain("relu"), 4)
    1.4142
    """
    if nonlinearity in _GAIN_ONE:
        return 1
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        if param is None:
            slope = 0.01
        elif isinstance(param, (int, float)) and not isinstance(param, bool):
            slope = param
        else:
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """How many inputs feed one output of a weight, and the reverse. ValueError below two dimensions."""
    if tensor.dim() < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions; "
            f"got shape {tuple(tensor.shape)}"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.size(1) * field, tensor.size(0) * field


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]


@_without_grad
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fills with numbers drawn evenly from [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@_without_grad
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fills with normal numbers."""
    return tensor.normal_(mean, std, generator=generator)


@_without_grad
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Tensor:
    """Fills with normal numbers conditioned on lying in [a, b], by rejection: of normal numbers, or where few would
    fall in the interval, of even ones.
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            f"mean is more than 2 std from [a, b] in nn.init.trunc_normal_: mean {mean}, std {std}, a {a}, b {b}; "
            "the numbers may not follow the distribution",
            stacklevel=3,
        )

    def below(x: float) -> float:
        return (1.0 + math.erf((x - mean) / std / math.sqrt(2.0))) / 2.0

    if below(b) - below(a) > 0.3:
        # Bounds as the dtype holds them: what rounds onto a bound is inside.
        low, high = _C.tensor([a, b], dtype=tensor.dtype).tolist()

        def draw() -> tuple[Tensor, Tensor]:
            drawn = _C.empty_like(tensor).normal_(mean, std, generator=generator)
            return drawn, (drawn < low) | (drawn > high)
    else:
        peak = -0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2

        def draw() -> tuple[Tensor, Tensor]:
            drawn = _C.empty_like(tensor).uniform_(a, b, generator=generator)
            log_density = drawn.sub(mean).div_(std).pow_(2).mul_(-0.5).sub_(peak)
            return drawn, _C.empty_like(tensor).uniform_(generator=generator).log_() > log_density

    # Every round draws for every element, so that the numbers of a seed do not depend on which were refused.
    kept, refused = draw()
    while refused.any():
        drawn, again = draw()
        kept = _C.where(refused, drawn, kept)
        refused = refused & again
    return tensor.copy_(kept)


@_without_grad
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills with one value."""
    return tensor.fill_(val)


@_without_grad
def ones_(tensor: Tensor) -> Tensor:
    """Fills with ones."""
    return tensor.fill_(1.0)


@_without_grad
def zeros_(tensor: Tensor) -> Tensor:
    """Fills with zeros."""
    return tensor.zero_()


@_without_grad
def eye_(tensor: Tensor) -> Tensor:
    """Writes the identity into a matrix. ValueError unless it has two dimensions."""
    if tensor.dim() != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported; got shape {tuple(tensor.shape)}")
    return tensor.copy_(_C.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


@_without_grad
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Makes a convolution weight pass its input channels through, in each of `groups`.

    ValueError unless the weight has 3 to 5 dimensions and its first one is divisible by `groups`.
    """
    if tensor.dim() not in (3, 4, 5):
        raise ValueError(f"Only tensors with 3, 4, or 5 dimensions are supported; got shape {tuple(tensor.shape)}")
    if tensor.size(0) % groups:
        raise ValueError(f"dim 0 must be divisible by groups; {tensor.size(0)} is not by {groups}")
    per_group = tensor.size(0) // groups
    centre = tuple(n // 2 for n in tensor.shape[2:])
    tensor.zero_()
    for group in range(groups):
        for channel in range(min(per_group, tensor.size(1))):
            tensor[(group * per_group + channel, channel, *centre)] = 1
    return tensor


@_without_grad
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fills evenly from [-a, a), a = gain * sqrt(6 / (fan_in + fan_out)). ValueError below two dimensions."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    a = math.sqrt(3.0) * (gain * math.sqrt(2.0 / (fan_in + fan_out)))
    return tensor.uniform_(-a, a, generator=generator)


@_without_grad
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fills with normal numbers of std gain * sqrt(2 / (fan_in + fan_out)). ValueError below two dimensions."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return tensor.normal_(0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator=generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


@_without_grad
def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """Fills evenly from [-b, b), b = gain * sqrt(3 / fan). A weight without elements is left as it is, with a
    warning.
    """
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor.uniform_(-bound, bound, generator=generator)


@_without_grad
def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """Fills with normal numbers of std gain / sqrt(fan). A weight without elements is left as it is, with a warning."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return tensor
    return tensor.normal_(0, _kaiming_std(tensor, a, mode, nonlinearity), generator=generator)


@_without_grad
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """Fills with a (semi-)orthogonal matrix times `gain`; trailing dimensions count as columns.

    ValueError below two dimensions.
    """
    if tensor.dim() < 2:
        raise ValueError(f"Only tensors with 2 or more dimensions are supported; got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.size(0)
    columns = tensor.numel() // rows
    flat = tensor.new_empty((rows, columns)).normal_(0, 1, generator=generator)
    if rows < columns:
        flat.t_()
    q, r = stowgrad.linalg.qr(flat)
    # The signs of R's diagonal make the matrix evenly distributed (Mezzadri 2007).
    q *= r.diagonal().sign()
    if rows < columns:
        q.t_()
    tensor.view_as(q).copy_(q)
    return tensor.mul_(gain)


@_without_grad
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Fills a matrix with normal numbers and sets the part `sparsity` of each column to zero. ValueError unless 2-d."""
    if tensor.dim() != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported; got shape {tuple(tensor.shape)}")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    tensor.normal_(0, std, generator=generator)
    for column in range(columns):
        tensor[_C.randperm(rows)[:zeros], column] = 0
    return tensor


def _deprecated(fill: Any) -> Any:
    old, new = fill.__name__[:-1], fill.__name__

    def renamed(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new}`.", FutureWarning, stacklevel=2)
        return fill(*args, **kwargs)

    renamed.__name__ = renamed.__qualname__ = old
    renamed.__doc__ = f"The old name of `{new}`."
    return renamed


uniform = _deprecated(uniform_)
normal = _deprecated(normal_)
constant = _deprecated(constant_)
eye = _deprecated(eye_)
dirac = _deprecated(dirac_)
xavier_uniform = _deprecated(xavier_uniform_)
xavier_normal = _deprecated(xavier_normal_)
kaiming_uniform = _deprecated(kaiming_uniform_)
kaiming_normal = _deprecated(kaiming_normal_)
orthogonal = _deprecated(orthogonal_)
sparse = _deprecated(sparse_)
