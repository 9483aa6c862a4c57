"""The functions behind the layers: activations, losses, normalisation, convolution, pooling, attention.

What is known here: native operations and how torch composes the rest from them; a composition keeps torch's node names
and saves the same tensors. What must not be known here: modules.

Invariants: arguments, their order, defaults and exception classes are torch's. An operation that not every build has a
kernel for is looked up in `_kernels`, on first use: the core's, or else the one that `composed` makes.
"""

from __future__ import annotations

import math
import warnings

import stowgrad
from stowgrad import _C
from stowgrad.nn import _reduction as _Reduction
from stowgrad.nn import composed
from stowgrad.nn._sizes import _list_with_default, _pair, _single, _triple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    _Ints = int | Sequence[int]

Tensor = _C.Tensor
_nn = _C._nn


class _Kernels:
    """The operations by name: the core's where it has one, else what `composed` makes of others."""

    def __getattr__(self, name: str) -> Any:
        for owner in (_nn, _C, composed):
            found = getattr(owner, name, None)
            if found is not None:
                self.__dict__[name] = found
                return found
        raise AttributeError(f"nn.functional needs the operation '{name}', which this build does not have")


_kernels = _Kernels()

# Functions that are an operation of the same name, or of the one on the right, and nothing more.
_AS_THEY_ARE = {
    name: name
    for name in (
        "avg_pool2d avg_pool3d bilinear celu_ channel_shuffle conv1d conv2d conv3d conv_tbc conv_transpose1d "
        "conv_transpose2d conv_transpose3d elu_ hardshrink hardtanh_ leaky_relu_ native_channel_shuffle one_hot pdist "
        "pixel_shuffle pixel_unshuffle prelu relu_ rrelu_ scaled_dot_product_attention selu_ softplus softshrink "
        "threshold_"
    ).split()
} | {"logsigmoid": "log_sigmoid"}

# The two that every model calls are bound at once.
linear = _kernels.linear
gelu = _kernels.gelu


def __getattr__(name: str) -> Any:
    native = _AS_THEY_ARE.get(name)
    if native is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = globals()[name] = getattr(_kernels, native)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_AS_THEY_ARE})


def _loss_reduction(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """The reduction to use when the old flags may be given."""
    if size_average is None and reduce is None:
        return reduction
    return _Reduction.legacy_get_string(size_average, reduce)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    """The mean, the sum, or the elements of a loss. ValueError for another reduction."""
    kind = _Reduction.get_enum(reduction)
    if kind == 1:
        return _C.mean(loss)
    return _C.sum(loss) if kind == 2 else loss


def _same_size(input: Tensor, target: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Both broadcast to one shape, with a warning when they differ."""
    if input.shape == target.shape:
        return input, target
    warnings.warn(
        f"Using a target size ({target.size()}) that is different to the input size ({input.size()}) in {loss}. "
        "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
        stacklevel=3,
    )
    return stowgrad.broadcast_tensors(input, target)


def _weighted(loss: Tensor, weight: Tensor, input: Tensor, reduction: str) -> Tensor:
    """An elementwise loss times a weight; its mean is by the sum of the weights."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"Invalid reduction mode: {reduction}. Expected one of 'none', 'mean', 'sum'.")
    if weight.shape != input.shape:
        raise ValueError(
            f"Weights and input must have the same size; got {tuple(weight.shape)} and {tuple(input.shape)}"
        )
    loss = loss * weight
    if reduction == "mean":
        return _C.sum(loss) / _C.sum(weight)
    return _C.sum(loss) if reduction == "sum" else loss


# ---- activations ----


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """`input` where it is above `threshold`, `value` elsewhere."""
    return _C.threshold_(input, threshold, value) if inplace else _C.threshold(input, threshold, value)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0), elementwise.

    >>> import stowgrad as torch
    >>> torch.nn.functional.relu(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return _C.relu_(input) if inplace else _C.relu(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the halves of `input` along `dim`. RuntimeError for an odd size or 0
    dimensions.
    """
    if input.dim() == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    return _nn.glu(input, dim)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """`input` clipped to [min_val, max_val]. ValueError when min_val > max_val."""
    if min_val > max_val:
        raise ValueError(f"min_val cannot be greater than max_val; got {min_val} and {max_val}")
    return _nn.hardtanh_(input, min_val, max_val) if inplace else _nn.hardtanh(input, min_val, max_val)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(input, 0), 6), elementwise."""
    return _nn.hardtanh_(input, 0.0, 6.0) if inplace else _nn.hardtanh(input, 0.0, 6.0)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`input` where positive, alpha * (exp(input) - 1) elsewhere. Source: Clevert et al. 2015."""
    return _nn.elu_(input, alpha) if inplace else _nn.elu(input, alpha)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The self-normalising ELU, with its two fixed constants. Source: Klambauer et al. 2017."""
    return _C.selu_(input) if inplace else _C.selu(input)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)). Source: Barron 2017."""
    return _C.celu_(input, alpha) if inplace else _C.celu(input, alpha)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """`input` where positive, negative_slope * input elsewhere."""
    return _nn.leaky_relu_(input, negative_slope) if inplace else _nn.leaky_relu(input, negative_slope)


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """leaky_relu with a slope drawn from [lower, upper) for each element when training, their mean otherwise."""
    return _kernels.rrelu_(input, lower, upper, training) if inplace else _kernels.rrelu(input, lower, upper, training)


def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input)."""
    return input - input.tanh()


def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|)."""
    return input / (input.abs() + 1)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return _C.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""
    return _C.sigmoid(input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """relu6(input + 3) / 6."""
    return _nn.hardsigmoid_(input) if inplace else _nn.hardsigmoid(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """input * sigmoid(input). Source: Hendrycks and Gimpel 2016."""
    return _nn.silu_(input) if inplace else _nn.silu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * tanh(softplus(input)). Source: Misra 2019."""
    return _nn.mish_(input) if inplace else _nn.mish(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * relu6(input + 3) / 6. Source: Howard et al. 2019."""
    return _nn.hardswish_(input) if inplace else _nn.hardswish(input)


def _get_softmax_dim(name: str, ndim: int, stacklevel: int) -> int:
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument.",
        stacklevel=stacklevel,
    )
    return 0 if ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(input) over its sum along `dim`; with `dtype` the input is cast first. IndexError for a wrong dim.

    >>> import stowgrad as torch
    >>> torch.nn.functional.softmax(torch.zeros(2), dim=0).tolist()
    [0.5, 0.5]
    """
    if dim is None:
        dim = _get_softmax_dim("softmax", input.dim(), _stacklevel)
    return _C.softmax(input, dim) if dtype is None else _C.softmax(input, dim, dtype=dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-input)."""
    if dim is None:
        dim = _get_softmax_dim("softmin", input.dim(), _stacklevel)
    return _C.softmax(-input, dim) if dtype is None else _C.softmax(-input, dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """log(softmax(input)), computed without the quotient. IndexError for a wrong dim."""
    if dim is None:
        dim = _get_softmax_dim("log_softmax", input.dim(), _stacklevel)
    return _C.log_softmax(input, dim) if dtype is None else _C.log_softmax(input, dim, dtype=dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A differentiable sample of one-hot rows; `hard` gives true one-hot values with the soft gradient.

    Sources: Jang et al. 2016; Maddison et al. 2016.
    """
    if eps != 1e-10:
        warnings.warn("`eps` parameter is deprecated and has no effect.", stacklevel=2)
    noise = -_C.empty_like(logits).exponential_().log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    index = soft.max(dim, keepdim=True)[1]
    return _C.zeros_like(logits).scatter_(dim, index, 1.0) - soft.detach() + soft


# ---- dropout ----


def _check_probability(p: float) -> None:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Sets each element to zero with probability `p` and divides the rest by 1 - p; the input itself when not training.

    ValueError unless 0 <= p <= 1. Source: Hinton et al. 2012.
    """
    if p < 0.0 or p > 1.0:
        _check_probability(p)
    return _C.dropout_(input, p, training) if inplace else _C.dropout(input, p, training)


def _noise_dropout(input: Tensor, p: float, training: bool, inplace: bool, feature: bool, alpha: bool) -> Tensor:
    """Dropout by a product with noise: whole channels when `feature`, mean and variance kept when `alpha`."""
    _check_probability(p)
    if p == 0 or not training or input.numel() == 0:
        return input
    if p == 1:
        zeros = _C.zeros([], dtype=input.dtype, device=input.device)
        return input.mul_(zeros) if inplace else input.mul(zeros)
    if feature:
        if input.dim() < 2:
            raise RuntimeError(f"feature dropout requires at least 2 dimensions in the input; got {input.dim()}")
        noise = input.new_empty((input.size(0), input.size(1)) + (1,) * (input.dim() - 2))
    else:
        noise = _C.empty_like(input)
    noise.bernoulli_(1 - p)
    if not alpha:
        noise.div_(1 - p)
        return input.mul_(noise) if inplace else input.mul(noise)
    # The value of a dropped element and the affine map that restores mean 0 and variance 1: Klambauer et al. 2017.
    saturation = 1.7580993408473766
    a = 1.0 / math.sqrt((saturation * saturation * p + 1) * (1 - p))
    b = noise.add(-1).mul_(saturation * a).add_(saturation * a * p)
    noise.mul_(a)
    return input.mul_(noise).add_(b) if inplace else input.mul(noise).add(b)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean 0 and variance 1, to be used with selu. ValueError unless 0 <= p <= 1."""
    return _noise_dropout(input, p, training, inplace, feature=False, alpha=True)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """alpha_dropout of whole channels (dimension 1). ValueError unless 0 <= p <= 1."""
    return _noise_dropout(input, p, training, inplace, feature=True, alpha=True)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (N, C, L) or (C, L). RuntimeError for other numbers of dimensions."""
    if input.dim() not in (2, 3):
        raise RuntimeError(f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input")
    if input.dim() == 3:
        return _noise_dropout(input, p, training, inplace, feature=True, alpha=False)
    return _noise_dropout(input.unsqueeze(0), p, training, inplace, feature=True, alpha=False).squeeze(0)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels (dimension 1) of (N, C, H, W). Source: Tompson et al. 2014."""
    _check_probability(p)
    if input.dim() not in (3, 4):
        warnings.warn(
            f"dropout2d: Received a {input.dim()}-D input; 3-D or 4-D is expected, others drop along "
            "dimension 1 as well",
            stacklevel=2,
        )
    return _noise_dropout(input, p, training, inplace, feature=True, alpha=False)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout of whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    _check_probability(p)
    if input.dim() not in (4, 5):
        warnings.warn(
            f"dropout3d: Received a {input.dim()}-D input; 4-D or 5-D is expected, others drop along "
            "dimension 1 as well",
            stacklevel=2,
        )
    if input.dim() != 4:
        return _noise_dropout(input, p, training, inplace, feature=True, alpha=False)
    return _noise_dropout(input.unsqueeze(0), p, training, inplace, feature=True, alpha=False).squeeze(0)


# ---- embedding ----


@stowgrad.no_grad()
def _no_grad_embedding_renorm_(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scales, in place, the rows of `weight` that `input` names and that are longer than `max_norm`."""
    rows = stowgrad.unique(input.reshape(-1))
    values = weight[rows]
    norms = _C.norm(values, norm_type, 1, True)
    weight[rows] = _C.where(norms > max_norm, values * (max_norm / (norms + 1e-7)), values)
    return weight


def _padding_row(padding_idx: int | None, rows: int) -> int:
    """`padding_idx` counted from 0, or -1 for none. AssertionError when it is out of range."""
    if padding_idx is None:
        return -1
    if not -rows <= padding_idx < rows:
        raise AssertionError(f"padding_idx must be within num_embeddings: {padding_idx} with {rows} rows")
    return padding_idx + rows if padding_idx < 0 else padding_idx


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` (V, D) that the integers `input` (*) name: (*, D).

    The row `padding_idx` gets no gradient; with `max_norm` the named rows are scaled in place first. IndexError for an
    index out of range, RuntimeError for an input that is no integer.

    >>> import stowgrad as torch
    >>> torch.nn.functional.embedding(torch.tensor([1]), torch.eye(2)).tolist()
    [[0.0, 1.0]]
    """
    padding_idx = _padding_row(padding_idx, weight.size(0))
    if max_norm is not None:
        input = input.contiguous()
        _no_grad_embedding_renorm_(weight, input, max_norm, norm_type)
    return _C.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)


_BAG_MODES = {"sum": 0, "mean": 1, "max": 2}


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of bags of rows of `weight`, without the rows themselves.

    `input` is (B, N), or flat with `offsets` where each bag begins. ValueError and RuntimeError for arguments that do
    not fit.
    """
    if weight.dtype == _C.int64 and input.is_floating_point():
        warnings.warn("Argument order of nn.functional.embedding_bag was changed: it is (input, weight)", stacklevel=2)
        weight, input = input, weight
    if per_sample_weights is not None and input.size() != per_sample_weights.size():
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({tuple(per_sample_weights.shape)}) is not None, then "
            "it must have the "
            f"same shape as the input ({tuple(input.shape)})"
        )
    if weight.dim() != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}")
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is a mini-batch of fixed length bags"
            )
        offsets = _C.arange(0, input.numel(), input.size(1), dtype=input.dtype, device=input.device)
        input = input.reshape(-1)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.reshape(-1)
    elif input.dim() == 1:
        if offsets is None:
            raise ValueError("offsets has to be a 1D Tensor but got None")
        if offsets.dim() != 1:
            raise ValueError(f"offsets has to be a 1D Tensor, but got Tensor of dimension {offsets.dim()}")
    else:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
    number = _BAG_MODES.get(mode)
    if number is None:
        raise ValueError(f"mode has to be one of sum, mean or max; got {mode!r}")
    if mode == "max" and (scale_grad_by_freq or sparse):
        which = "scaling the gradient by the frequency" if scale_grad_by_freq else "sparse weights"
        raise ValueError(f"max mode does not support {which}")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for "
            f"mode='sum' (got mode='{mode}')"
        )
    if padding_idx is not None:
        padding_idx = _padding_row(padding_idx, weight.size(0))
    if max_norm is not None:
        _no_grad_embedding_renorm_(weight, input, max_norm, norm_type)
    bags = _kernels.embedding_bag(
        weight, input, offsets, scale_grad_by_freq, number, sparse, per_sample_weights, include_last_offset, padding_idx
    )
    return bags[0]


# ---- normalisation ----


def _verify_batch_size(size: Sequence[int]) -> None:
    """ValueError when there is but one value a channel, whose variance is none."""
    if size[0] * math.prod(size[2:]) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {size}")


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel (dimension 1) less its mean, over its standard deviation; then weight and bias.

    Training takes the statistics of the batch and moves the running ones towards them by `momentum`. ValueError when
    training on one value a channel. Source: Ioffe and Szegedy 2015.
    """
    if training:
        _verify_batch_size(input.size())
    return _C.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, True)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """batch_norm of each sample on its own. ValueError when a channel of a sample is one value.

    Source: Ulyanov et al. 2016.
    """
    if use_input_stats and math.prod(input.shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.size()}")
    if not use_input_stats and (running_mean is None or running_var is None):
        raise RuntimeError("Expected running_mean and running_var to be defined when use_input_stats is false")
    batch, channels = input.size(0), input.size(1)

    def for_each(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.repeat(batch)

    mean, var = for_each(running_mean), for_each(running_var)
    flat = input.contiguous().view((1, batch * channels, *input.shape[2:]))
    out = _C.batch_norm(flat, for_each(weight), for_each(bias), mean, var, use_input_stats, momentum, eps, True)
    if use_input_stats:
        # The running statistics are the mean over the samples of what each one moved.
        with stowgrad.no_grad():
            if running_mean is not None:
                running_mean.copy_(mean.view(batch, channels).mean(0))
            if running_var is not None:
                running_var.copy_(var.view(batch, channels).mean(0))
    return out.view(input.shape)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The last dimensions, `normalized_shape`, less their mean, over their standard deviation; then weight and bias.

    RuntimeError when the shapes do not fit. Source: Ba et al. 2016.
    """
    return _C.layer_norm(input, normalized_shape, weight, bias, eps)


_WIDER = (_C.float16, _C.bfloat16)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """`input` over the root of the mean of its squares along `normalized_shape`, times `weight`.

    `eps` defaults to the smallest step of the dtype computed in. Computed in float32 for half precision.
    RuntimeError when the shapes do not fit. Source: Zhang and Sennrich 2019.
    """
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], "
            f"but got input of size {list(input.shape)}"
        )
    if weight is not None and tuple(weight.shape) != shape:
        raise RuntimeError(
            f"Expected weight to be of same shape as normalized_shape, but got weight of shape {list(weight.shape)} "
            f"and normalized_shape={list(shape)}"
        )
    if not input.is_floating_point():
        raise NotImplementedError(f"rms_norm: input is {input.dtype}, and must be of a floating point dtype")
    wide = input.float() if input.dtype in _WIDER else input
    if eps is None:
        eps = _C.finfo(wide.dtype).eps
    dims = tuple(range(-len(shape), 0))
    normed = wide.mul(wide.pow(2).mean(dims, keepdim=True).add_(eps).rsqrt())
    if weight is not None:
        normed = normed.mul(weight)
    return normed if wide is input else normed.to(input.dtype)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalises each of `num_groups` groups of channels of each sample; then weight and bias a channel.

    RuntimeError for fewer than two dimensions or channels that the groups do not divide; ValueError when a group is one
    value. Source: Wu and He 2018.
    """
    if input.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    _verify_batch_size([input.size(0) * input.size(1) // num_groups, num_groups, *input.shape[2:]])
    return _kernels.group_norm(input, num_groups, weight, bias, eps, True)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """input / (k + alpha * mean of squares over `size` neighbouring channels) ** beta.

    ValueError below three dimensions. Source: Krizhevsky et al. 2012.
    """
    dim = input.dim()
    if dim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {dim} dimensions)")
    if input.numel() == 0:
        return input
    around = (size // 2, (size - 1) // 2)
    squares = input.mul(input)
    if dim == 3:
        squares = pad(squares.unsqueeze(1), (0, 0, *around))
        squares = _kernels.avg_pool2d(squares, (size, 1), stride=1).squeeze(1)
    else:
        sizes = input.size()
        squares = squares.view(sizes[0], 1, sizes[1], sizes[2], -1)
        squares = pad(squares, (0, 0, 0, 0, *around))
        squares = _kernels.avg_pool3d(squares, (size, 1, 1), stride=1).squeeze(1).view(sizes)
    return input / squares.mul(alpha).add(k).pow(beta)


def normalize(
    input: Tensor, p: float | None = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """`input` over its p-norm along `dim`, or over `eps` where the norm is smaller.

    >>> import stowgrad as torch
    >>> torch.nn.functional.normalize(torch.tensor([[3.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """
    length = input.norm(p, dim, keepdim=True).clamp_min(eps).expand_as(input)
    return input / length if out is None else _C.div(input, length, out=out)


# ---- losses ----


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probability of the target class: input (C), (N, C) or (N, C, d1, ..), target without the C.

    `weight` (C) scales classes; targets equal to `ignore_index` count for nothing. IndexError for a class out of range.
    """
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    return _nn.nll_loss_nd(input, target, weight, _Reduction.get_enum(reduction), ignore_index)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """nll_loss of log_softmax(input, 1); the target may be class indices or probabilities of the input's shape.

    IndexError for a class out of range; ValueError when the batch sizes differ; RuntimeError for label_smoothing
    outside [0, 1].

    >>> import stowgrad as torch
    >>> round(torch.nn.functional.cross_entropy(torch.zeros(1, 4), torch.tensor([2])).item(), 4)
    1.3863
    """
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    return _nn.cross_entropy_loss(input, target, weight, _Reduction.get_enum(reduction), ignore_index, label_smoothing)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input, or input - target * log(input + eps); `full` adds Stirling's term for targets
    above 1.
    """
    reduction = _loss_reduction(reduction, size_average, reduce)
    if log_input:
        product = target * input  # torch's order, which pack hooks see
        loss = _C.exp(input) - product
    else:
        loss = input - target * _C.log(input + eps)
    if full:
        stirling = target * _C.log(target) - target + 0.5 * _C.log(2 * math.pi * target)
        loss = loss + stirling.masked_fill(target <= 1, 0)
    return _reduced(loss, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """0.5 * (log(var) + (input - target)**2 / var), with var at least `eps`; `full` adds the constant.

    `var` is a number, or has the input's shape, or that with the last dimension 1 or missing. ValueError for another
    shape or a negative value. Source: Nix and Weigend 1994.
    """
    if isinstance(var, (int, float)):
        if var < 0:
            raise ValueError(f"var has negative entry/entries: {var}")
        var = var * _C.ones_like(input)
    elif var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif not (input.shape[:-1] == var.shape[:-1] and var.size(-1) == 1):
            raise ValueError(f"var is of incorrect size: {tuple(var.shape)} for an input of {tuple(input.shape)}")
    kind = _Reduction.get_enum(reduction)
    if (var < 0).any():
        raise ValueError("var has negative entry/entries")
    var = var.clone()
    with stowgrad.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (_C.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _C.mean(loss) if kind == 1 else _C.sum(loss) if kind == 2 else loss


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target * (log(target) - input), where `input` holds log-probabilities, and with `log_target` the target too.

    `reduction="batchmean"` divides the sum by the batch size, which is the divergence; "mean" divides by all elements.
    """
    if size_average is not None or reduce is not None:
        reduction = _Reduction.legacy_get_string(size_average, reduce)
    elif reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size. "
            "'batchmean' divides only by the batch size, and aligns with the KL div math definition.",
            stacklevel=2,
        )
    if not input.is_floating_point():
        raise RuntimeError(f"kl_div: Integral inputs not supported: input is {input.dtype}")
    loss = _C.exp(target) * (target - input) if log_target else _C.xlogy(target, target) - target * input
    if reduction == "batchmean":
        total = _C.sum(loss)
        return total / input.size(0) if input.dim() else total
    return _reduced(loss, reduction)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(target * log(input) + (1 - target) * log(1 - input)), each log at least -100.

    ValueError when the shapes differ; RuntimeError for an input outside [0, 1].
    """
    kind = _Reduction.get_enum(_loss_reduction(reduction, size_average, reduce))
    if target.size() != input.size():
        raise ValueError(
            f"Using a target size ({target.size()}) that is different to the input size ({input.size()}) "
            "is deprecated. "
            "Please ensure they have the same size."
        )
    if weight is not None and weight.shape != target.shape:
        weight = weight.expand(stowgrad.broadcast_shapes(weight.shape, target.shape))
    return _nn.binary_cross_entropy(input, target, weight, kind)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), without its overflow; `pos_weight` scales the term of the target.

    ValueError when the shapes differ.
    """
    kind = _Reduction.get_enum(_loss_reduction(reduction, size_average, reduce))
    if target.size() != input.size():
        raise ValueError(f"Target size ({target.size()}) must be the same as input size ({input.size()})")
    return _C.binary_cross_entropy_with_logits(input, target, weight, pos_weight, kind)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """0.5 * d**2 / beta where d = |input - target| is below beta, d - 0.5 * beta elsewhere; l1_loss for beta 0.

    RuntimeError for a negative beta. Source: Girshick 2015.
    """
    reduction = _loss_reduction(reduction, size_average, reduce)
    input, target = _same_size(input, target, "smooth_l1_loss")
    if beta == 0.0:
        return _reduced(_C.abs(input - target), reduction)
    return _nn.smooth_l1_loss(input, target, _Reduction.get_enum(reduction), beta)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """0.5 * d**2 where d = |input - target| is below delta, delta * (d - 0.5 * delta) elsewhere; times `weight`.

    RuntimeError for a delta that is not positive, ValueError for a weight of another shape. Source: Huber 1964.
    """
    input, target = _same_size(input, target, "huber_loss")
    if weight is None:
        return _nn.huber_loss(input, target, _Reduction.get_enum(reduction), delta)
    if weight.shape != input.shape:
        raise ValueError(
            f"Weights and input must have the same size; got {tuple(weight.shape)} and {tuple(input.shape)}"
        )
    return _reduced(_nn.huber_loss(input, target, _Reduction.get_enum("none"), delta) * weight, reduction)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|; its weighted mean is by the sum of the weights."""
    reduction = _loss_reduction(reduction, size_average, reduce)
    input, target = _same_size(input, target, "l1_loss")
    loss = _C.abs(input - target)
    return _reduced(loss, reduction) if weight is None else _weighted(loss, weight, input, reduction)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target)**2; its weighted mean is by the sum of the weights.

    >>> import stowgrad as torch
    >>> torch.nn.functional.mse_loss(torch.zeros(2), torch.tensor([1.0, 3.0])).item()
    5.0
    """
    reduction = _loss_reduction(reduction, size_average, reduce)
    input, target = _same_size(input, target, "mse_loss")
    if weight is None:
        return _nn.mse_loss(input, target, _Reduction.get_enum(reduction))
    return _weighted(_nn.mse_loss(input, target, 0), weight, input, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -target * (input1 - input2) + margin), where target is 1 or -1. RuntimeError for differing dimensions."""
    reduction = _loss_reduction(reduction, size_average, reduce)
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.size()}, input2: {input2.size()}, target: {target.size()} "
        )
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`input` where the target is 1, max(0, margin - input) where it is -1."""
    reduction = _loss_reduction(reduction, size_average, reduce)
    zeros = _C.zeros_like(input)
    apart = _C.where(target != 1, (margin - input).clamp_min(0), zeros)
    together = _C.where(target != -1, input, zeros)
    return _reduced(apart + together, reduction)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * input)), where target is 1 or -1."""
    return _kernels.soft_margin_loss(
        input, target, _Reduction.get_enum(_loss_reduction(reduction, size_average, reduce))
    )


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The hinge between every target class (those before the first -1) and every other class."""
    kind = _Reduction.get_enum(_loss_reduction(reduction, size_average, reduce))
    return _kernels.multilabel_margin_loss(input, target, kind)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of binary_cross_entropy_with_logits, in log-sigmoids."""
    kind = _Reduction.get_enum(_loss_reduction(reduction, size_average, reduce))
    loss = -(target * _nn.log_sigmoid(input) + (1 - target) * _nn.log_sigmoid(-input))
    if weight is not None:
        loss = loss * weight
    loss = loss.sum(dim=input.dim() - 1) / input.size(input.dim() - 1)
    return loss if kind == 0 else loss.mean() if kind == 1 else loss.sum()


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(input1, input2) where the target is 1, max(0, cos - margin) where it is -1.

    RuntimeError unless target (N) goes with inputs (N, D), or target () with inputs (D).
    """
    reduction = _loss_reduction(reduction, size_average, reduce)
    if target.dim() > 1 or input1.dim() != target.dim() + 1 or input2.dim() != target.dim() + 1:
        raise RuntimeError(
            "cosine_embedding_loss takes a 0D target with 1D inputs or a 1D target with 2D inputs, multi-target not "
            f"supported; got target {tuple(target.shape)}, inputs {tuple(input1.shape)} and {tuple(input2.shape)}"
        )
    dim, tiny = target.dim(), 1e-12
    dot = (input1 * input2).sum(dim)
    square1 = (input1 * input1).sum(dim) + tiny
    square2 = (input2 * input2).sum(dim) + tiny
    cos = dot / (square1 * square2).sqrt()
    zeros = _C.zeros_like(cos)
    together = _C.where(target == 1, 1 - cos, zeros)
    apart = _C.where(target == -1, (cos - margin).clamp_min(0), zeros)
    return _reduced(together + apart, reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The hinge max(0, margin - input[target] + input[i])**p over the other classes. ValueError unless p is 1 or 2."""
    kind = _Reduction.get_enum(_loss_reduction(reduction, size_average, reduce))
    if p not in (1, 2):
        raise ValueError(f"only p == 1 and p == 2 supported; got {p}")
    if weight is not None and weight.dim() != 1:
        raise ValueError(f"weight must be one-dimensional; got shape {tuple(weight.shape)}")
    return _kernels.multi_margin_loss(input, target, p, margin, weight, kind)


def _paired(
    distance: Callable, anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, swap: bool
) -> Tensor:
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = _C.minimum(far, distance(positive, negative))
    return _C.clamp_min(margin + near - far, 0)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + |anchor - positive| - |anchor - negative|), in p-norms.

    `swap` takes the positive as anchor where that is nearer to the negative. RuntimeError for differing dimensions,
    ValueError for a margin that is not positive. Source: Balntas et al. 2016.
    """
    reduction = _loss_reduction(reduction, size_average, reduce)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            "triplet_margin_loss: the anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.dim()}D, positive {positive.dim()}D, and negative "
            f"{negative.dim()}D inputs"
        )

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return _reduced(_paired(distance, anchor, positive, negative, margin, swap), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """triplet_margin_loss with any distance; pairwise_distance by default."""
    kind = _Reduction.get_enum(reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            "triplet_margin_loss: the anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.dim()}D, positive {positive.dim()}D, and negative "
            f"{negative.dim()}D inputs"
        )
    loss = _paired(distance_function or pairwise_distance, anchor, positive, negative, margin, swap)
    return loss if kind == 0 else loss.mean() if kind == 1 else loss.sum()


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log-probability that a sequence of outputs spells the target. Source: Graves et al. 2006."""
    return _kernels.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, _Reduction.get_enum(reduction), zero_infinity
    )


# ---- distances ----


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last dimension."""
    return _C._plain_norm(x1 - x2 + eps, p, -1, keepdim)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 along `dim`; norms are at least `eps`.

    >>> import stowgrad as torch
    >>> torch.nn.functional.cosine_similarity(torch.ones(1, 4), -torch.ones(1, 4)).tolist()
    [-1.0]
    """
    if x1.shape != x2.shape:
        x1, x2 = stowgrad.broadcast_tensors(x1, x2)

    def length(x: Tensor) -> Tensor:
        norm = x.norm(2, dim, True).clone()
        with stowgrad.no_grad():
            norm.clamp_min_(eps)
        return norm

    # Each quotient on its own: the product of two large norms would overflow.
    length1, length2 = length(x1), length(x2)
    direction2 = x2 / length2  # torch's order, which pack hooks see
    return ((x1 / length1) * direction2).sum(dim)


# ---- pooling ----


def fractional_max_pool2d_with_indices(
    input: Tensor,
    kernel_size: _Ints,
    output_size: _Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Maxima over regions of random place that tile the plane, and where they lie. Source: Graham 2014."""
    return _fractional(input, kernel_size, output_size, output_ratio, _random_samples, 2)


def fractional_max_pool3d_with_indices(
    input: Tensor,
    kernel_size: _Ints,
    output_size: _Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Maxima over regions of random place that tile the volume, and where they lie."""
    return _fractional(input, kernel_size, output_size, output_ratio, _random_samples, 3)


def _fractional(
    input: Tensor, kernel_size: Any, output_size: Any, output_ratio: Any, samples: Tensor | None, n: int
) -> tuple[Tensor, Tensor]:
    if output_size is None and output_ratio is None:
        raise ValueError(f"fractional_max_pool{n}d requires specifying either an output_size or an output_ratio")
    many = (_pair, _triple)[n - 2]
    if output_size is None:
        ratios = many(output_ratio)
        if len(ratios) > n:
            raise ValueError(f"fractional_max_pool{n}d requires output_ratio to be a single number or {n} of them")
        output_size = [int(input.size(i - n) * ratios[i]) for i in range(n)]
    if samples is None:
        batch = 1 if input.dim() == n + 1 else input.size(0)
        samples = _C.rand(batch, input.size(-n - 1), n, dtype=input.dtype, device=input.device)
    pool = _kernels.fractional_max_pool2d if n == 2 else _kernels.fractional_max_pool3d
    return pool(input, many(kernel_size), many(output_size), samples)


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: _Ints,
    output_size: _Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """fractional_max_pool2d_with_indices, the indices only when `return_indices`."""
    found = _fractional(input, kernel_size, output_size, output_ratio, _random_samples, 2)
    return found if return_indices else found[0]


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: _Ints,
    output_size: _Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """fractional_max_pool3d_with_indices, the indices only when `return_indices`."""
    found = _fractional(input, kernel_size, output_size, output_ratio, _random_samples, 3)
    return found if return_indices else found[0]


def _window(kernel_size: Any, stride: Any) -> Any:
    """The stride of a pool, which is its kernel unless one is given."""
    return kernel_size if stride is None or stride == () or stride == [] else stride


def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    dilation: _Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima of windows of the last dimension, and where they lie."""
    if input.dim() not in (2, 3):
        raise RuntimeError(f"max_pool1d: Expected 2D or 3D input tensor, but got {list(input.shape)}")
    (kernel,), (step,) = _single(kernel_size), _single(_window(kernel_size, stride))
    (edge,), (gap,) = _single(padding), _single(dilation)
    # A pool of rows of height one, as torch computes it.
    out, indices = _kernels.max_pool2d_with_indices(
        input.unsqueeze(-2), (1, kernel), (1, step), (0, edge), (1, gap), ceil_mode
    )
    return out.squeeze(-2), indices.squeeze(-2)


def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    dilation: _Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima of windows of the last two dimensions, and where they lie in the plane."""
    return _kernels.max_pool2d_with_indices(
        input, kernel_size, _window(kernel_size, stride), padding, dilation, ceil_mode
    )


def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    dilation: _Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima of windows of the last three dimensions, and where they lie in the volume."""
    return _kernels.max_pool3d_with_indices(
        input, kernel_size, _window(kernel_size, stride), padding, dilation, ceil_mode
    )


def max_pool1d(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    dilation: _Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool1d_with_indices, the indices only when `return_indices`."""
    found = max_pool1d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
    return found if return_indices else found[0]


def max_pool2d(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    dilation: _Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Maxima of windows of the last two dimensions; with `return_indices` where they lie too.

    RuntimeError when padding is more than half the kernel.

    >>> import stowgrad as torch
    >>> torch.nn.functional.max_pool2d(torch.arange(4.0).view(1, 1, 2, 2), 2).item()
    3.0
    """
    found = _kernels.max_pool2d_with_indices(
        input, kernel_size, _window(kernel_size, stride), padding, dilation, ceil_mode
    )
    return found if return_indices else found[0]


def max_pool3d(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    dilation: _Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool3d_with_indices, the indices only when `return_indices`."""
    found = _kernels.max_pool3d_with_indices(
        input, kernel_size, _window(kernel_size, stride), padding, dilation, ceil_mode
    )
    return found if return_indices else found[0]


def _unpool_output_size(
    input: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], output_size: Any
) -> list[int]:
    """The spatial sizes of an unpool: the least that fit, or `output_size` if it is near them. ValueError if not."""
    n = len(kernel_size)
    sizes = input.shape[-n:]
    default = [(sizes[d] - 1) * stride[d] + kernel_size[d] - 2 * padding[d] for d in range(n)]
    if output_size is None:
        return default
    given = list(output_size)
    if len(given) == n + 2:
        given = given[2:]
    if len(given) != n:
        raise ValueError(
            f"output_size should be a sequence containing {n} or {n + 2} elements, but it has a length "
            f"of '{len(output_size)}'"
        )
    for d in range(n):
        low, high = default[d] - stride[d], default[d] + stride[d]
        if not low < given[d] < high:
            raise ValueError(f'invalid output_size "{given}" (dim {d} must be between {low} and {high})')
    return given


def _unpool(
    n: int, input: Tensor, indices: Tensor, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Any:
    many = (_single, _pair, _triple)[n - 1]
    kernel, step, edge = many(kernel_size), many(_window(kernel_size, stride)), many(padding)
    size = _unpool_output_size(input, kernel, step, edge, output_size)
    if n == 3:
        return _kernels.max_unpool3d(input, indices, size, step, edge)
    if n == 2:
        return _kernels.max_unpool2d(input, indices, size)
    return _kernels.max_unpool2d(input.unsqueeze(-1), indices.unsqueeze(-1), [*size, 1]).squeeze(-1)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: _Ints, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Puts values back where max_pool1d found them, zeros elsewhere."""
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: _Ints, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Puts values back where max_pool2d found them, zeros elsewhere."""
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: _Ints, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """Puts values back where max_pool3d found them, zeros elsewhere."""
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


def avg_pool1d(
    input: Tensor,
    kernel_size: _Ints,
    stride: _Ints | None = None,
    padding: _Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Means of windows of the last dimension of (N, C, L) or (C, L)."""
    if input.dim() not in (2, 3):
        raise RuntimeError(f"avg_pool1d: Expected 2D or 3D input tensor, but got {list(input.shape)}")
    (kernel,), (step,), (edge,) = _single(kernel_size), _single(_window(kernel_size, stride)), _single(padding)
    rows = _kernels.avg_pool2d(input.unsqueeze(-2), (1, kernel), (1, step), (0, edge), ceil_mode, count_include_pad)
    return rows.squeeze(-2)


def _lp_pooled(pooled: Tensor, window: int, norm_type: float) -> Tensor:
    return (_C.sign(pooled) * relu(_C.abs(pooled))).mul(window).pow(1.0 / norm_type)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: int, stride: _Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over windows of the last dimension."""
    pooled = avg_pool1d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return _lp_pooled(pooled, _single(kernel_size)[0], norm_type)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: _Ints, stride: _Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over windows of the last two dimensions."""
    kernel = _pair(kernel_size)
    pooled = _kernels.avg_pool2d(input.pow(norm_type), kernel, _window(kernel, stride), 0, ceil_mode)
    return _lp_pooled(pooled, math.prod(kernel), norm_type)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: _Ints, stride: _Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over windows of the last three dimensions."""
    kernel = _triple(kernel_size)
    pooled = _kernels.avg_pool3d(input.pow(norm_type), kernel, _window(kernel, stride), 0, ceil_mode)
    return _lp_pooled(pooled, math.prod(kernel), norm_type)


def adaptive_max_pool1d_with_indices(
    input: Tensor, output_size: _Ints, return_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima of `output_size` windows that cover the last dimension evenly, and where they lie."""
    (size,) = _single(output_size)
    out, indices = _kernels.adaptive_max_pool2d(input.unsqueeze(-2), (1, size))
    return out.squeeze(-2), indices.squeeze(-2)


def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima of windows that cover the last two dimensions evenly, and where they lie; None keeps a size."""
    return _kernels.adaptive_max_pool2d(input, _list_with_default(_pair(output_size), input.size()))


def adaptive_max_pool3d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima of windows that cover the last three dimensions evenly, and where they lie; None keeps a size."""
    return _kernels.adaptive_max_pool3d(input, _list_with_default(_triple(output_size), input.size()))


def adaptive_max_pool1d(input: Tensor, output_size: _Ints, return_indices: bool = False) -> Any:
    """adaptive_max_pool1d_with_indices, the indices only when `return_indices`."""
    found = adaptive_max_pool1d_with_indices(input, output_size)
    return found if return_indices else found[0]


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """adaptive_max_pool2d_with_indices, the indices only when `return_indices`."""
    found = adaptive_max_pool2d_with_indices(input, output_size)
    return found if return_indices else found[0]


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """adaptive_max_pool3d_with_indices, the indices only when `return_indices`."""
    found = adaptive_max_pool3d_with_indices(input, output_size)
    return found if return_indices else found[0]


def adaptive_avg_pool1d(input: Tensor, output_size: _Ints) -> Tensor:
    """Means of `output_size` windows that cover the last dimension evenly."""
    (size,) = _single(output_size)
    return adaptive_avg_pool2d(input.unsqueeze(-2), (1, size)).squeeze(-2)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means of windows that cover the last two dimensions evenly; None keeps a size.

    >>> import stowgrad as torch
    >>> torch.nn.functional.adaptive_avg_pool2d(torch.arange(4.0).view(1, 1, 2, 2), 1).item()
    1.5
    """
    size = _list_with_default(_pair(output_size), input.size())
    if size[0] == 1 and size[1] == 1:
        return input.mean((-1, -2), keepdim=True)
    return _kernels.adaptive_avg_pool2d(input, size)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Means of windows that cover the last three dimensions evenly; None keeps a size."""
    size = _list_with_default(_triple(output_size), input.size())
    if size[0] == size[1] == size[2] == 1:
        return input.mean((-1, -2, -3), keepdim=True)
    return _kernels.adaptive_avg_pool3d(input, size)


# ---- padding, shuffling, resizing ----

_PADS = {
    "reflect": ("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    "replicate": ("replication_pad1d", "replication_pad2d", "replication_pad3d"),
}


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Widens the last dimensions: `pad` is (left, right) of the last one, then of the one before, and so on.

    mode "constant" writes `value` (0 by default) and takes any number of dimensions, negative widths cut; "reflect",
    "replicate" and "circular" take the widths of one, two or three dimensions of an input with a channel and perhaps a
    batch dimension: NotImplementedError for others.

    >>> import stowgrad as torch
    >>> torch.nn.functional.pad(torch.ones(2), (1, 0)).tolist()
    [0.0, 1.0, 1.0]
    """
    if mode == "constant":
        return _kernels.constant_pad_nd(input, pad, 0 if value is None else value)
    if value is not None and value != 0:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    n = len(pad) // 2
    if len(pad) % 2 or n not in (1, 2, 3) or input.dim() not in (n + 1, n + 2):
        raise NotImplementedError(
            f"pad with mode '{mode}' takes 2, 4 or 6 widths for the last 1, 2 or 3 dimensions of an "
            "input that has one or two "
            f"dimensions more; got {len(pad)} widths for an input of shape {tuple(input.shape)}"
        )
    if mode == "circular":
        return _circular_pad(input, pad)
    if mode not in _PADS:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    return getattr(_kernels, _PADS[mode][n - 1])(input, pad)


def _circular_pad(input: Tensor, pad: Sequence[int]) -> Tensor:
    """Copies the input into the middle of a larger tensor, then its edges around it, dimension by dimension."""
    n = len(pad) // 2
    first = input.dim() - n
    shape = list(input.shape)
    for i in range(n):
        left, right = pad[2 * (n - 1 - i)], pad[2 * (n - 1 - i) + 1]
        size = input.size(first + i)
        if left > size or right > size:
            raise RuntimeError(
                f"Padding value causes wrapping around more than once: widths {left}, {right} of a "
                f"dimension of size {size}"
            )
        if left + size + right < 0:
            raise RuntimeError(
                f"Negative padding value is resulting in an empty dimension: {left}, {right} of size {size}"
            )
        shape[first + i] = left + size + right
    out = input.new_empty(shape)
    inner_out: list[slice] = [slice(None)] * first
    inner_in: list[slice] = [slice(None)] * first
    for i in range(n):
        left, right = pad[2 * (n - 1 - i)], pad[2 * (n - 1 - i) + 1]
        inner_out.append(slice(max(left, 0), shape[first + i] - max(right, 0)))
        inner_in.append(slice(max(-left, 0), input.size(first + i) - max(-right, 0)))
    out[tuple(inner_out)].copy_(input[tuple(inner_in)])
    for dim in range(input.dim() - 1, first - 1, -1):
        left, right = pad[2 * (input.dim() - 1 - dim)], pad[2 * (input.dim() - 1 - dim) + 1]
        size = shape[dim]
        if left > 0:
            out.narrow(dim, 0, left).copy_(out.narrow(dim, size - left - max(right, 0), left))
        if right > 0:
            out.narrow(dim, size - right, right).copy_(out.narrow(dim, max(left, 0), right))
    return out


_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
_NEAREST_EXACT = ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_SMOOTH = {
    (3, "linear"): "upsample_linear1d",
    (4, "bilinear"): "upsample_bilinear2d",
    (5, "trilinear"): "upsample_trilinear3d",
    (4, "bicubic"): "upsample_bicubic2d",
}


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes the dimensions after the first two to `size`, or by `scale_factor`.

    Modes: nearest, nearest-exact, area, linear (3-d), bilinear and bicubic (4-d), trilinear (5-d). ValueError for
    arguments that do not fit each other, NotImplementedError for a mode that does not fit the dimensions.
    """
    exact = mode in ("nearest", "area", "nearest-exact")
    if exact and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    n = input.dim() - 2
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is None and scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")

    def spread(given: Any, what: str) -> list[Any]:
        if not isinstance(given, (list, tuple)):
            return [given] * n
        if len(given) != n:
            raise ValueError(
                f"Input and {what} must have the same number of spatial dimensions, but got input with "
                "spatial dimensions of "
                f"{list(input.shape[2:])} and {what} of {given}."
            )
        return list(given)

    if size is not None:
        sizes, factors = [int(s) for s in spread(size, "output size")], None
        if recompute_scale_factor:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    else:
        sizes, factors = None, [float(f) for f in spread(scale_factor, "scale_factor")]
        if recompute_scale_factor or mode == "area":
            sizes, factors = [math.floor(input.size(i + 2) * factors[i]) for i in range(n)], None
    if antialias and not (mode in ("bilinear", "bicubic") and input.dim() == 4):
        raise ValueError(
            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input"
        )
    if n in (1, 2, 3):
        if mode == "area":
            return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[n - 1](input, sizes)
        if exact:
            return getattr(_kernels, (_NEAREST if mode == "nearest" else _NEAREST_EXACT)[n - 1])(input, sizes, factors)
        name = _SMOOTH.get((input.dim(), mode))
        if name is not None:
            native = getattr(_kernels, f"_{name}_aa" if antialias else name)
            return native(input, sizes, bool(align_corners), factors)
    raise NotImplementedError(
        f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.dim()}D) for the modes: "
        "nearest | linear | "
        f"bilinear | bicubic | trilinear | area | nearest-exact (got {mode}): linear is of 3D, bilinear "
        "and bicubic of 4D, "
        "trilinear of 5D"
    )


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """The old name of `interpolate`."""
    warnings.warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2)
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate with mode="nearest"."""
    warnings.warn(
        "`nn.functional.upsample_nearest` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2
    )
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate with mode="bilinear" and align_corners=True."""
    warnings.warn(
        "`nn.functional.upsample_bilinear` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=2
    )
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


_GRID_MODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
_GRID_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """The input read at the places that `grid` names, in coordinates from -1 to 1 (x first).

    input (N, C, H, W), grid (N, H', W', 2): (N, C, H', W'); likewise with one dimension more. ValueError for another
    mode.
    """
    if mode not in _GRID_MODES:
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
        )
    if padding_mode not in _GRID_PADDINGS:
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', "
            f"but got: '{padding_mode}'"
        )
    if align_corners is None:
        warnings.warn(
            "Default grid_sample behavior is align_corners=False: name it to silence this warning", stacklevel=2
        )
    return _kernels.grid_sampler(input, grid, _GRID_MODES[mode], _GRID_PADDINGS[padding_mode], bool(align_corners))


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid for grid_sample that the maps `theta` make: (N, 2, 3) gives (N, H, W, 2), (N, 3, 4) gives (N, D, H, W,
    3).

    ValueError when theta does not fit `size` or is not floating, or a size is not positive; NotImplementedError for
    other numbers of dimensions.
    """
    if align_corners is None:
        warnings.warn(
            "Default affine_grid behavior is align_corners=False: name it to silence this warning", stacklevel=2
        )
    size = list(size)
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    n = len(size) - 2
    if n not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. "
            f"Got size {size}."
        )
    if theta.dim() != 3 or tuple(theta.shape[-2:]) != (n, n + 1):
        raise ValueError(
            f"Expected a batch of {n}D affine matrices of shape Nx{n}x{n + 1} for size {size}. Got "
            f"{tuple(theta.shape)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {size}")

    def places(length: int) -> Tensor:
        if length <= 1:
            return _C.zeros(length, dtype=theta.dtype, device=theta.device)
        at = _C.linspace(-1, 1, length, dtype=theta.dtype, device=theta.device)
        return at if align_corners else at * ((length - 1) / length)

    batch, spatial = size[0], size[2:]
    columns = []
    for i in range(n - 1, -1, -1):
        shape = [1] * n
        shape[i] = spatial[i]
        columns.append(places(spatial[i]).view(shape).expand(spatial))
    columns.append(_C.ones(spatial, dtype=theta.dtype, device=theta.device))
    base = _C.stack(columns, -1).view(1, -1, n + 1).expand(batch, -1, n + 1)
    return base.bmm(theta.transpose(1, 2)).view(batch, *spatial, n)


def unfold(input: Tensor, kernel_size: _Ints, dilation: _Ints = 1, padding: _Ints = 0, stride: _Ints = 1) -> Tensor:
    """Every window of (N, C, H, W) as a column: (N, C * kernel elements, windows)."""
    return _kernels.im2col(input, _pair(kernel_size), _pair(dilation), _pair(padding), _pair(stride))


def fold(
    input: Tensor,
    output_size: _Ints,
    kernel_size: _Ints,
    dilation: _Ints = 1,
    padding: _Ints = 0,
    stride: _Ints = 1,
) -> Tensor:
    """Sums columns back into the windows they came from: the transpose of `unfold`."""
    return _kernels.col2im(
        input, _pair(output_size), _pair(kernel_size), _pair(dilation), _pair(padding), _pair(stride)
    )


def assert_int_or_pair(arg: Any, arg_name: str, message: str) -> None:
    """AssertionError unless `arg` is an int or a pair."""
    if not (isinstance(arg, int) or len(arg) == 2):
        raise AssertionError(message.format(arg_name))


# ---- attention ----


def _canonical_mask(
    mask: Tensor | None, mask_name: str, other_type: Any, other_name: str, target_type: Any, check_other: bool = True
) -> Tensor | None:
    """A mask as numbers to add: -inf where a bool mask is True. AssertionError unless it is bool or floating."""
    if mask is None:
        return None
    if mask.dtype != _C.bool and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {mask_name} are supported; got {mask.dtype}")
    if check_other and other_type is not None and mask.dtype != other_type:
        warnings.warn(
            f"Support for mismatched {mask_name} and {other_name} is deprecated. Use same type for both instead.",
            stacklevel=3,
        )
    if mask.is_floating_point():
        return mask
    return _C.zeros_like(mask, dtype=target_type).masked_fill_(mask, float("-inf"))


def _none_or_dtype(input: Tensor | None) -> Any:
    return None if input is None else input.dtype


def _mha_shape_check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
) -> bool:
    """Whether the input has a batch dimension. AssertionError when the shapes do not fit."""
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
        )
    batched = query.dim() == 3
    kind = "batched (3-D)" if batched else "unbatched (2-D)"
    if key.dim() != query.dim() or value.dim() != query.dim():
        raise AssertionError(
            f"For {kind} `query`, expected `key` and `value` to be {query.dim()}-D "
            f"but found {key.dim()}-D and {value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != query.dim() - 1:
        raise AssertionError(
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {query.dim() - 1}-D "
            f"but found {key_padding_mask.dim()}-D tensor instead"
        )
    if attn_mask is not None:
        if attn_mask.dim() not in (2, 3):
            raise AssertionError(
                f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found "
                f"{attn_mask.dim()}-D tensor instead"
            )
        if not batched and attn_mask.dim() == 3:
            expected = (num_heads, query.shape[0], key.shape[0])
            if tuple(attn_mask.shape) != expected:
                raise AssertionError(f"Expected `attn_mask` shape to be {expected} but got {tuple(attn_mask.shape)}")
    return batched


def _in_projection_packed(q: Tensor, k: Tensor, v: Tensor, w: Tensor, b: Tensor | None = None) -> list[Tensor]:
    """q, k and v through the three blocks of one weight: one product where they are one tensor."""
    width = q.size(-1)
    if k is v:
        if q is k:
            joined = linear(q, w, b).unflatten(-1, (3, width))
            joined = joined.unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
            return [joined[0], joined[1], joined[2]]
        w_q, w_kv = w.split([width, width * 2])
        b_q, b_kv = (None, None) if b is None else b.split([width, width * 2])
        joined = linear(k, w_kv, b_kv).unflatten(-1, (2, width))
        joined = joined.unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
        return [linear(q, w_q, b_q), joined[0], joined[1]]
    blocks = w.chunk(3)
    biases = (None, None, None) if b is None else b.chunk(3)
    return [linear(t, block, bias) for t, block, bias in zip((q, k, v), blocks, biases, strict=False)]


def _in_projection(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    b_q: Tensor | None = None,
    b_k: Tensor | None = None,
    b_v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each through a weight of its own."""
    return linear(q, w_q, b_q), linear(k, w_k, b_k), linear(v, w_v, b_v)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention in several heads: query (L, N, E), key and value (S, N, E), or all without N; gives (L, N, E) and the
    weights.

    The weights are (N, L, S), the mean over heads, or (N, heads, L, S); None without `need_weights`. AssertionError for
    shapes that do not fit, RuntimeError for a mask of the wrong shape. Source: Vaswani et al. 2017.
    """
    batched = _mha_shape_check(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        # A batch of one; identity is kept, since one tensor for all three takes one product.
        one = query.unsqueeze(1)
        key_one = one if key is query else key.unsqueeze(1)
        value = key_one if value is key else value.unsqueeze(1)
        query, key = one, key_one
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    length, batch, width = query.shape
    source = key.size(0)
    key_padding_mask = _canonical_mask(
        key_padding_mask, "key_padding_mask", _none_or_dtype(attn_mask), "attn_mask", query.dtype
    )
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None  # the kernel makes the triangle itself
    else:
        attn_mask = _canonical_mask(attn_mask, "attn_mask", None, "", query.dtype, check_other=False)
        if key_padding_mask is not None:
            is_causal = False
    _expect(width == embed_dim_to_check, f"was expecting embedding dimension of {embed_dim_to_check}, but got {width}")
    head_dim = width // num_heads
    _expect(head_dim * num_heads == width, f"embed_dim {width} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight:
        _expect(
            key.shape[:2] == value.shape[:2],
            f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}",
        )
        for name, w in (("q", q_proj_weight), ("k", k_proj_weight), ("v", v_proj_weight)):
            _expect(w is not None, f"use_separate_proj_weight is True but {name}_proj_weight is None")
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = _in_projection(query, key, value, q_proj_weight, k_proj_weight, v_proj_weight, *biases)
    else:
        _expect(key.shape == value.shape, f"key shape {key.shape} does not match value shape {value.shape}")
        _expect(in_proj_weight is not None, "use_separate_proj_weight is False but in_proj_weight is None")
        q, k, v = _in_projection_packed(query, key, value, in_proj_weight, in_proj_bias)
    if attn_mask is not None:
        expected = (length, source) if attn_mask.dim() == 2 else (batch * num_heads, length, source)
        if tuple(attn_mask.shape) != expected:
            raise RuntimeError(
                f"The shape of the {attn_mask.dim()}D attn_mask is {tuple(attn_mask.shape)}, but should be {expected}."
            )
        if attn_mask.dim() == 2:
            attn_mask = attn_mask.unsqueeze(0)
    if bias_k is not None and bias_v is not None:
        _expect(static_k is None and static_v is None, "bias cannot be added to static key or value.")
        k = _C.cat([k, bias_k.repeat(1, batch, 1)])
        v = _C.cat([v, bias_v.repeat(1, batch, 1)])
        attn_mask = None if attn_mask is None else pad(attn_mask, (0, 1))
        key_padding_mask = None if key_padding_mask is None else pad(key_padding_mask, (0, 1))
    else:
        _expect(bias_k is None and bias_v is None, "bias_k and bias_v go together")
    rows = batch * num_heads
    q = q.view(length, rows, head_dim).transpose(0, 1)
    k, v = (
        projected.view(projected.size(0), rows, head_dim).transpose(0, 1) if static is None else static
        for projected, static in ((k, static_k), (v, static_v))
    )
    for name, t in (("static_k", static_k), ("static_v", static_v)):
        if t is not None:
            _expect(
                t.size(0) == rows and t.size(2) == head_dim,
                f"expecting {name} of {rows} x _ x {head_dim}, but got {tuple(t.shape)}",
            )
    if add_zero_attn:
        k = _C.cat([k, _C.zeros((rows, 1, head_dim), dtype=k.dtype, device=k.device)], dim=1)
        v = _C.cat([v, _C.zeros((rows, 1, head_dim), dtype=v.dtype, device=v.device)], dim=1)
        attn_mask = None if attn_mask is None else pad(attn_mask, (0, 1))
        key_padding_mask = None if key_padding_mask is None else pad(key_padding_mask, (0, 1))
    source = k.size(1)
    if key_padding_mask is not None:
        _expect(
            tuple(key_padding_mask.shape) == (batch, source),
            f"expecting key_padding_mask shape of {(batch, source)}, but got {tuple(key_padding_mask.shape)}",
        )
        per_row = key_padding_mask.view(batch, 1, 1, source).expand(-1, num_heads, -1, -1).reshape(rows, 1, source)
        attn_mask = per_row if attn_mask is None else attn_mask + per_row
    if not training:
        dropout_p = 0.0

    if need_weights:
        if is_causal and attn_mask is None:
            raise AssertionError("is_causal with need_weights takes an attn_mask")
        q = q * math.sqrt(1.0 / float(head_dim))
        scores = _C.bmm(q, k.transpose(-2, -1))
        if attn_mask is not None:
            scores = _C.baddbmm(attn_mask, q, k.transpose(-2, -1))
        weights = softmax(scores, dim=-1)
        if dropout_p > 0.0:
            weights = dropout(weights, p=dropout_p)
        out = _C.bmm(weights, v).transpose(0, 1).contiguous().view(length * batch, width)
        out = linear(out, out_proj_weight, out_proj_bias)
        out = out.view(length, batch, out.size(1))
        weights = weights.view(batch, num_heads, length, source)
        if average_attn_weights:
            weights = weights.mean(dim=1)
        return (out, weights) if batched else (out.squeeze(1), weights.squeeze(0))

    if attn_mask is not None:
        whole = attn_mask.size(0) == 1 and attn_mask.dim() == 3
        attn_mask = attn_mask.unsqueeze(0) if whole else attn_mask.view(batch, num_heads, -1, source)
    out = _kernels.scaled_dot_product_attention(
        q.view(batch, num_heads, length, head_dim),
        k.view(batch, num_heads, source, head_dim),
        v.view(batch, num_heads, source, head_dim),
        attn_mask,
        dropout_p,
        is_causal,
    )
    out = out.permute(2, 0, 1, 3).contiguous().view(batch * length, width)
    out = linear(out, out_proj_weight, out_proj_bias)
    out = out.view(length, batch, out.size(1))
    return (out, None) if batched else (out.squeeze(1), None)
