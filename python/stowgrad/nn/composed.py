"""Operations of `nn.functional` composed from others, each for as long as the core has no kernel of its own for it.

What is known here: shapes, windows as strided views, and public operations. What must not be known here: modules and
`nn.functional`, which looks an operation up in the core first and here last.

Invariants: names and arguments are those of torch's kernels, so that a kernel takes an operation's place with no other
edit. Values, gradients of any order and error classes are torch's; node names and saved values are those of the parts.
"""

from __future__ import annotations

import math

import stowgrad
from stowgrad import _C
from stowgrad.nn._sizes import _pair, _single, _triple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

Tensor = _C.Tensor

_MANY = (_single, _pair, _triple)


def _sizes(given: Any, n: int) -> tuple[int, ...]:
    """`given` for n dimensions: one number counts for all. RuntimeError for another length."""
    found = _MANY[n - 1](given)
    if len(found) == 1:
        found *= n
    if len(found) != n:
        raise RuntimeError(f"expected 1 or {n} sizes, got {list(found)}")
    return tuple(int(s) for s in found)


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


# ---- padding ----


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Widens the last dimensions by `value`; negative widths cut. RuntimeError for widths that do not fit."""
    n = len(pad) // 2
    if len(pad) % 2 or n > input.dim():
        raise RuntimeError(f"Length of pad must be even and no more than twice the {input.dim()} dimensions; got {pad}")
    shape, source, target = list(input.shape), [slice(None)] * input.dim(), [slice(None)] * input.dim()
    for i in range(n):
        dim, left, right = input.dim() - 1 - i, pad[2 * i], pad[2 * i + 1]
        size = input.size(dim)
        if left + size + right < 0:
            raise RuntimeError(f"The input size {size}, plus negative padding {left} and {right}, resulted in a negative output size")
        shape[dim] = left + size + right
        source[dim] = slice(max(-left, 0), size - max(-right, 0))
        target[dim] = slice(max(left, 0), shape[dim] - max(right, 0))
    out = input.new_full(shape, value)
    out[tuple(target)] = input[tuple(source)]
    return out


def _pad_by_index(input: Tensor, padding: Sequence[int], place: Callable[[int, int], int], reflect: bool) -> Tensor:
    n = len(padding) // 2
    for i in range(n):
        dim, left, right = input.dim() - 1 - i, padding[2 * i], padding[2 * i + 1]
        size = input.size(dim)
        if reflect and (left >= size or right >= size):
            raise RuntimeError(
                "Padding size should be less than the corresponding input dimension, but got: padding "
                f"({left}, {right}) at dimension {dim} of input {list(input.shape)}"
            )
        index = _C.tensor([place(j, size) for j in range(-left, size + right)], device=input.device)
        input = input.index_select(dim, index)
    return input


def _mirrored(j: int, size: int) -> int:
    j = abs(j)
    return 2 * (size - 1) - j if j >= size else j


def _nearest(j: int, size: int) -> int:
    return min(max(j, 0), size - 1)


def reflection_pad1d(input: Tensor, padding: Sequence[int]) -> Tensor:
    """Widens the last dimension by its mirror image."""
    return _pad_by_index(input, padding, _mirrored, True)


def replication_pad1d(input: Tensor, padding: Sequence[int]) -> Tensor:
    """Widens the last dimension by its edge."""
    return _pad_by_index(input, padding, _nearest, False)


reflection_pad2d = reflection_pad3d = reflection_pad1d
replication_pad2d = replication_pad3d = replication_pad1d


# ---- windows ----


def _windows(x: Tensor, outs: Sequence[int], kernel: Sequence[int], stride: Sequence[int], gap: Sequence[int]) -> Tensor:
    """Every window of the last dimensions as a view: (*, *outs, *kernel)."""
    n = len(kernel)
    x = x.contiguous()
    lead, steps = x.dim() - n, x.stride()
    strides = [*steps[:lead], *(s * t for s, t in zip(steps[lead:], stride, strict=True))]
    strides += [s * g for s, g in zip(steps[lead:], gap, strict=True)]
    return x.as_strided((*x.shape[:lead], *outs, *kernel), strides, x.storage_offset())


def _pooled_size(size: int, kernel: int, stride: int, edge: int, gap: int, ceil_mode: bool) -> int:
    reach = gap * (kernel - 1) + 1
    room = size + 2 * edge - reach
    out = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (out - 1) * stride >= size + edge:
        out -= 1  # a last window that would begin beyond the input is not taken
    return out


def _pool(
    name: str, n: int, input: Tensor, kernel: Any, stride: Any, edge: Any, gap: Any, ceil_mode: bool, fill: float
) -> tuple[Tensor, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The windows of a pool over the padded input, its output sizes, and its (kernel, stride, padding, dilation)."""
    if input.dim() not in (n + 1, n + 2):
        raise RuntimeError(f"{name}: expected {n + 1}D or {n + 2}D input, got {list(input.shape)}")
    kernel = _sizes(kernel, n)
    stride = kernel if stride is None or stride == () or stride == [] else _sizes(stride, n)
    edge, gap = _sizes(edge, n), _sizes(gap, n)
    if min(kernel) <= 0 or min(stride) <= 0 or min(gap) <= 0:
        raise RuntimeError(f"{name}: kernel {kernel}, stride {stride} and dilation {gap} must be greater than zero")
    if any(p < 0 or 2 * p > k for p, k in zip(edge, kernel, strict=True)):
        raise RuntimeError(f"{name}: pad should be at most half of effective kernel size, but got {edge} for {kernel}")
    sizes = input.shape[-n:]
    outs = tuple(_pooled_size(*numbers, ceil_mode) for numbers in zip(sizes, kernel, stride, edge, gap, strict=True))
    if min(outs) < 1:
        raise RuntimeError(f"{name}: Given input size {list(sizes)}. Calculated output size {list(outs)} is too small")
    widths: list[int] = []
    for i in range(n - 1, -1, -1):
        reach = (outs[i] - 1) * stride[i] + gap[i] * (kernel[i] - 1) + 1
        widths += [edge[i], max(reach - sizes[i] - edge[i], 0)]
    padded = constant_pad_nd(input, widths, fill) if any(widths) else input
    return _windows(padded, outs, kernel, stride, gap), outs, (kernel, stride, edge, gap)


def _max_pool(name: str, n: int, input: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    kernel, stride, edge, gap, ceil_mode = options
    least = float("-inf") if input.is_floating_point() else stowgrad.iinfo(input.dtype).min
    windows, outs, (kernel, stride, edge, gap) = _pool(name, n, input, kernel, stride, edge, gap, ceil_mode, least)
    values, where = windows.flatten(-n).max(-1)
    # Where the window begins, plus the place within it, in the plane of the input.
    sizes = input.shape[-n:]
    indices, inside = _C.zeros_like(where), where
    scale = 1
    for i in range(n - 1, -1, -1):
        along = [1] * n
        along[i] = outs[i]
        start = (_C.arange(outs[i], device=input.device) * stride[i] - edge[i]).view(along)
        place = start + inside % kernel[i] * gap[i]
        indices = indices + place * scale
        inside = inside // kernel[i]
        scale *= sizes[i]
    return values, indices


def max_pool2d_with_indices(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima of windows of the last two dimensions, and where they lie in the plane."""
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d_with_indices(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima of windows of the last three dimensions, and where they lie in the volume."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode)


def _avg_pool(name: str, n: int, input: Tensor, *options: Any) -> Tensor:
    kernel, stride, edge, ceil_mode, count_include_pad, divisor = options
    if divisor == 0:
        raise RuntimeError(f"{name}: divisor must be not zero")
    windows, outs, (kernel, stride, edge, _) = _pool(name, n, input, kernel, stride, edge, 1, ceil_mode, 0)
    total = windows.sum(tuple(range(-n, 0)))
    if divisor is not None:
        return total / divisor
    count = None
    for i in range(n):
        size, counts = input.size(i - n), []
        for o in range(outs[i]):
            start = o * stride[i] - edge[i]
            end = min(start + kernel[i], size + edge[i])
            counts.append(end - start if count_include_pad else min(end, size) - max(start, 0))
        along = [1] * n
        along[i] = outs[i]
        here = _C.tensor(counts, dtype=input.dtype, device=input.device).view(along)
        count = here if count is None else count * here
    return total / count


def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Means of windows of the last two dimensions."""
    return _avg_pool("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Means of windows of the last three dimensions."""
    return _avg_pool("avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _bounds(size: int, out: int) -> list[tuple[int, int]]:
    """Where each of `out` windows that cover `size` evenly begins and ends."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_avg_pool(input: Tensor, output_size: Sequence[int]) -> Tensor:
    n = len(output_size)
    for i, out in enumerate(output_size):
        dim = input.dim() - n + i
        parts = [input.narrow(dim, a, b - a).mean(dim) for a, b in _bounds(input.size(dim), out)]
        input = _C.stack(parts, dim)
    return input


def adaptive_avg_pool2d(input: Tensor, output_size: Sequence[int]) -> Tensor:
    """Means of windows that cover the last two dimensions evenly."""
    return _adaptive_avg_pool(input, _sizes(output_size, 2))


def adaptive_avg_pool3d(input: Tensor, output_size: Sequence[int]) -> Tensor:
    """Means of windows that cover the last three dimensions evenly."""
    return _adaptive_avg_pool(input, _sizes(output_size, 3))


def _adaptive_max_pool(input: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    n = len(output_size)
    sizes = input.shape[-n:]
    plane = _C.arange(math.prod(sizes), device=input.device).view(tuple(sizes))
    cells: list[tuple[slice, ...]] = [()]
    for size, out in zip(sizes, output_size, strict=True):
        cells = [(*cell, slice(a, b)) for cell in cells for a, b in _bounds(size, out)]
    values, indices = [], []
    for cell in cells:
        value, where = input[(..., *cell)].flatten(-n).max(-1)
        values.append(value)
        indices.append(plane[cell].flatten()[where])
    shape = (*input.shape[:-n], *output_size)
    return _C.stack(values, -1).view(shape), _C.stack(indices, -1).view(shape)


def adaptive_max_pool2d(input: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of windows that cover the last two dimensions evenly, and where they lie."""
    return _adaptive_max_pool(input, _sizes(output_size, 2))


def adaptive_max_pool3d(input: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of windows that cover the last three dimensions evenly, and where they lie."""
    return _adaptive_max_pool(input, _sizes(output_size, 3))


def _max_unpool(input: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    n = len(output_size)
    flat = input.new_zeros((*input.shape[:-n], math.prod(output_size)))
    out = flat.scatter(-1, indices.flatten(-n), input.flatten(-n))
    return out.view((*input.shape[:-n], *output_size))


def max_unpool2d(input: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Puts values back where they were found in the plane, zeros elsewhere."""
    return _max_unpool(input, indices, _sizes(output_size, 2))


def max_unpool3d(input: Tensor, indices: Tensor, output_size: Sequence[int], stride: Any = 1, padding: Any = 0) -> Tensor:
    """Puts values back where they were found in the volume, zeros elsewhere."""
    return _max_unpool(input, indices, _sizes(output_size, 3))


def im2col(input: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Every window of (N, C, H, W) or (C, H, W) as a column."""
    kernel, gap, edge, step = (_sizes(s, 2) for s in (kernel_size, dilation, padding, stride))
    if input.dim() == 3:
        return im2col(input.unsqueeze(0), kernel, gap, edge, step).squeeze(0)
    outs = [_pooled_size(*numbers, False) for numbers in zip(input.shape[-2:], kernel, step, edge, gap, strict=True)]
    if min(outs) < 1:
        raise RuntimeError(f"unfold: windows {kernel} do not fit into {list(input.shape[-2:])} with padding {edge}")
    padded = constant_pad_nd(input, (edge[1], edge[1], edge[0], edge[0])) if any(edge) else input
    windows = _windows(padded, outs, kernel, step, gap)
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(input.size(0), -1, outs[0] * outs[1])


def col2im(input: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Sums columns (N, C * kernel elements, windows), or without N, back into the windows they came from."""
    size, kernel, gap, edge, step = (_sizes(s, 2) for s in (output_size, kernel_size, dilation, padding, stride))
    if input.dim() == 2:
        return col2im(input.unsqueeze(0), size, kernel, gap, edge, step).squeeze(0)
    outs = [_pooled_size(*numbers, False) for numbers in zip(size, kernel, step, edge, gap, strict=True)]
    if input.size(1) % math.prod(kernel) or input.size(2) != math.prod(outs):
        raise RuntimeError(f"fold: columns of shape {list(input.shape)} are not {math.prod(outs)} windows of {kernel} in {list(size)}")
    padded = [s + 2 * p for s, p in zip(size, edge, strict=True)]
    plane = _C.arange(padded[0] * padded[1], device=input.device).view(padded)
    where = _windows(plane, outs, kernel, step, gap).permute(2, 3, 0, 1).flatten()
    channels = input.size(1) // math.prod(kernel)
    flat = input.new_zeros((input.size(0), channels, padded[0] * padded[1]))
    image = flat.index_add(2, where, input.reshape(input.size(0), channels, -1)).view(-1, channels, *padded)
    return image[:, :, edge[0] : edge[0] + size[0], edge[1] : edge[1] + size[1]]


# ---- convolution ----


def _convolution(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """A correlation with a kernel, by one matrix product over windows."""
    name = f"conv{n}d"
    if input.dim() == n + 1:
        return _convolution(n, input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    if input.dim() != n + 2 or weight.dim() != n + 2:
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {name} and a {n + 2}D weight, "
            "but got input of "
            f"size: {list(input.shape)} and weight of size: {list(weight.shape)}"
        )
    if input.size(1) != weight.size(1) * groups or weight.size(0) % groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(input.shape)} to have "
            f"{weight.size(1) * groups} channels, but got {input.size(1)} channels instead"
        )
    kernel, step, gap = tuple(weight.shape[2:]), _sizes(stride, n), _sizes(dilation, n)
    if isinstance(padding, str):
        total = [g * (k - 1) if padding == "same" else 0 for g, k in zip(gap, kernel, strict=True)]
        before = [t // 2 for t in total]
        after = [t - b for t, b in zip(total, before, strict=True)]
    else:
        before = after = list(_sizes(padding, n))
    if any(before) or any(after):
        widths = [w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair]
        input = constant_pad_nd(input, widths)
    outs = [_pooled_size(*numbers, 0, g, False) for *numbers, g in zip(input.shape[2:], kernel, step, gap, strict=True)]
    if min(outs) < 1:
        raise RuntimeError(
            f"Calculated padded input size per channel: {list(input.shape[2:])}. Kernel size: {list(kernel)}. "
            "Kernel size can't be greater than actual input size"
        )
    batch, spatial = input.size(0), math.prod(outs)
    windows = _windows(input, outs, kernel, step, gap)
    order = (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    columns = windows.permute(order).reshape(batch, groups, -1, spatial)
    rows = weight.reshape(groups, weight.size(0) // groups, -1)
    out = _C.matmul(rows, columns).reshape(batch, weight.size(0), *outs)
    return out if bias is None else out + bias.view(-1, *[1] * n)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The correlation of (N, C, L) or (C, L) with a kernel."""
    return _convolution(1, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The correlation of (N, C, D, H, W) or (C, D, H, W) with a kernel."""
    return _convolution(3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Tensor:
    """A convolution of the input with zeros between its elements, by the mirrored kernel."""
    if input.dim() == n + 1:
        options = (stride, padding, output_padding, groups, dilation)
        return _conv_transpose(n, input.unsqueeze(0), weight, bias, *options).squeeze(0)
    if input.dim() != n + 2 or weight.dim() != n + 2 or input.size(1) != weight.size(0):
        raise RuntimeError(f"conv_transpose{n}d: weight of size {list(weight.shape)} does not fit input of size {list(input.shape)}")
    step, edge, more, gap = (_sizes(s, n) for s in (stride, padding, output_padding, dilation))
    if any(m >= max(s, g) for m, s, g in zip(more, step, gap, strict=True)):
        raise RuntimeError(f"output padding must be smaller than either stride or dilation, but got {more}, {step} and {gap}")
    sizes = [(size - 1) * s + 1 for size, s in zip(input.shape[2:], step, strict=True)]
    if any(s != 1 for s in step):
        spread = input.new_zeros((*input.shape[:2], *sizes))
        spread[(slice(None), slice(None), *(slice(None, None, s) for s in step))] = input
        input = spread
    widths: list[int] = []
    for i in range(n - 1, -1, -1):
        reach = gap[i] * (weight.size(2 + i) - 1)
        widths += [reach - edge[i], reach - edge[i] + more[i]]
    input = constant_pad_nd(input, widths)
    each = weight.reshape(groups, weight.size(0) // groups, *weight.shape[1:]).transpose(1, 2)
    kernel = each.reshape(-1, weight.size(0) // groups, *weight.shape[2:]).flip(tuple(range(2, 2 + n)))
    convolve = getattr(_C, "conv2d", None) if n == 2 else None
    if convolve is not None:
        return convolve(input, kernel, bias, 1, 0, gap, groups)
    return _convolution(n, input, kernel, bias, 1, 0, gap, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv1d by its input, as an operation."""
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv2d by its input, as an operation."""
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv3d by its input, as an operation."""
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


# ---- resizing ----


def _resized(input: Tensor, size: Any, factors: Any) -> list[tuple[int, int, int, float | None]]:
    """(dimension, old size, new size, factor) for each dimension after the first two."""
    n = input.dim() - 2
    if size is None:
        size = [math.floor(input.size(2 + i) * factors[i]) for i in range(n)]
    if min(size) < 1:
        raise RuntimeError(f"Input and output sizes should be greater than 0, but got {list(input.shape)} to {size}")
    return [(2 + i, input.size(2 + i), int(size[i]), factors[i] if factors else None) for i in range(n)]


def _upsample_nearest(input: Tensor, output_size: Any, scale_factors: Any = None, shift: float = 0.0) -> Tensor:
    for dim, old, new, factor in _resized(input, output_size, scale_factors):
        ratio = 1 / factor if factor else old / new
        index = [min(math.floor((i + shift) * ratio), old - 1) for i in range(new)]
        input = input.index_select(dim, _C.tensor(index, device=input.device))
    return input


def upsample_nearest1d(input: Tensor, output_size: Any, scale_factors: Any = None) -> Tensor:
    """Takes the element that lies at or before each place."""
    return _upsample_nearest(input, output_size, scale_factors)


def _upsample_nearest_exact1d(input: Tensor, output_size: Any, scale_factors: Any = None) -> Tensor:
    """Takes the element whose middle is nearest to that of each place."""
    return _upsample_nearest(input, output_size, scale_factors, 0.5)


upsample_nearest2d = upsample_nearest3d = upsample_nearest1d
_upsample_nearest_exact2d = _upsample_nearest_exact3d = _upsample_nearest_exact1d


def _blended(input: Tensor, output_size: Any, align_corners: bool, factors: Any, taps: Callable[[float, int], list]) -> Tensor:
    """Each new element as a sum of old ones: `taps(place, size)` gives (index, weight) pairs."""
    for dim, old, new, factor in _resized(input, output_size, factors):
        if align_corners:
            ratio = (old - 1) / (new - 1) if new > 1 else 0.0
            places = [i * ratio for i in range(new)]
        else:
            ratio = 1 / factor if factor else old / new
            places = [(i + 0.5) * ratio - 0.5 for i in range(new)]
        pairs = [taps(place, old) for place in places]
        along = [1] * input.dim()
        along[dim] = new
        total = None
        for tap in zip(*pairs, strict=True):
            index = _C.tensor([i for i, _ in tap], device=input.device)
            weights = _C.tensor([w for _, w in tap], dtype=input.dtype, device=input.device).view(along)
            part = input.index_select(dim, index) * weights
            total = part if total is None else total + part
        input = total
    return input


def _linear_taps(place: float, size: int) -> list[tuple[int, float]]:
    place = max(place, 0.0)
    low = min(int(place), size - 1)
    high = min(low + 1, size - 1)
    part = min(max(place - low, 0.0), 1.0)
    return [(low, 1 - part), (high, part)]


def _cubic_taps(place: float, size: int) -> list[tuple[int, float]]:
    """Keys' cubic convolution with a = -0.75; beyond the edges the edge counts on."""
    a = -0.75
    low = math.floor(place)
    t = place - low

    def near(x: float) -> float:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [(min(max(low - 1 + j, 0), size - 1), w) for j, w in enumerate(weights)]


def upsample_linear1d(input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None) -> Tensor:
    """Blends the two elements around each place, dimension by dimension."""
    return _blended(input, output_size, align_corners, scale_factors, _linear_taps)


upsample_bilinear2d = upsample_trilinear3d = upsample_linear1d


def upsample_bicubic2d(input: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None) -> Tensor:
    """Blends the four elements around each place, dimension by dimension. Source: Keys 1981."""
    return _blended(input, output_size, align_corners, scale_factors, _cubic_taps)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(*, C r r, H, W) to (*, C, H r, W r). RuntimeError when r * r does not divide the channels."""
    r = upscale_factor
    if input.dim() < 3 or r <= 0 or input.size(-3) % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            "upscale_factor, but "
            f"got {list(input.shape)} and {r}"
        )
    *lead, channels, height, width = input.shape
    n = len(lead)
    split = input.reshape(*lead, channels // (r * r), r, r, height, width)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return split.permute(order).reshape(*lead, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(*, C, H r, W r) to (*, C r r, H, W). RuntimeError when r does not divide height and width."""
    r = downscale_factor
    if input.dim() < 3 or r <= 0 or input.size(-2) % r or input.size(-1) % r:
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but got {list(input.shape)} and {r}"
        )
    *lead, channels, height, width = input.shape
    n = len(lead)
    split = input.reshape(*lead, channels, height // r, r, width // r, r)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return split.permute(order).reshape(*lead, channels * r * r, height // r, width // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Takes one channel of each of `groups` in turn. RuntimeError when the groups do not divide the channels."""
    if input.dim() < 3 or groups <= 0 or input.size(1) % groups:
        raise RuntimeError(f"Number of channels must be divisible by groups: input {list(input.shape)}, groups {groups}")
    split = input.reshape(input.size(0), groups, input.size(1) // groups, *input.shape[2:])
    return split.transpose(1, 2).reshape(input.shape)


native_channel_shuffle = channel_shuffle


# ---- normalisation, activation, attention ----


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalises each group of channels of each sample. RuntimeError when the groups do not divide the channels."""
    batch, channels = input.size(0), input.size(1)
    if channels % num_groups:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={num_groups}"
        )
    rows = input.reshape(batch, num_groups, -1)
    out = _C.layer_norm(rows, rows.shape[2:], None, None, eps).reshape(input.shape)
    along = (-1, *[1] * (input.dim() - 2))
    if weight is not None:
        out = out * weight.view(along)
    return out if bias is None else out + bias.view(along)


def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """A random slope for every element that is not positive; the mean slope when not training."""
    if not training:
        return _C._nn.leaky_relu(input, (lower + upper) / 2)
    below = input <= 0
    # One draw for each such element, in order, in double precision: the numbers of torch's loop.
    drawn = _C.empty(int(below.sum()), dtype=_C.float64).uniform_(lower, upper)
    slope = _C.ones_like(input)
    slope[below] = drawn.to(input.dtype)
    return input * slope


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """rrelu in place."""
    return input.copy_(rrelu(input.clone(), lower, upper, training))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias, in one addmm where the input is a matrix."""
    if bias is not None and input.dim() == 2:
        return _C.addmm(bias, input, weight.t())
    out = _C.matmul(input, weight.t())
    return out if bias is None else out + bias


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1 @ weight[k] @ x2 + bias[k] for every output k. RuntimeError when the shapes do not fit."""
    if input1.shape[:-1] != input2.shape[:-1] or (input1.size(-1), input2.size(-1)) != tuple(weight.shape[1:]):
        raise RuntimeError(
            f"bilinear(): inputs of shapes {list(input1.shape)} and {list(input2.shape)} do not fit a weight of shape {list(weight.shape)}"
        )
    left = _C.matmul(input1.unsqueeze(-2).unsqueeze(-2), weight).squeeze(-2)
    out = (left * input2.unsqueeze(-2)).sum(-1)
    return out if bias is None else out + bias


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q k' * scale + mask) v over the last two dimensions; scale is 1 / sqrt(width) by default.

    A bool mask is True where attention is allowed. `enable_gqa` repeats key and value heads. RuntimeError for a mask
    together with is_causal.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    # Half of the scale on each side: the product of large queries and keys would overflow first.
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.size(-1)))
    scores = _C.matmul(query * root, (key * root).transpose(-2, -1))
    if is_causal:
        attn_mask = _C.ones((query.size(-2), key.size(-2)), dtype=_C.bool, device=query.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype == _C.bool:
            attn_mask = _C.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
        scores = scores + attn_mask
    weights = _C.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = _C.dropout(weights, dropout_p, True)
    return _C.matmul(weights, value)


# ---- losses ----


def soft_margin_loss(input: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """log(1 + exp(-target * input))."""
    return _reduced(_C.log1p(_C.exp(-target * input)), reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """max(0, margin - input[target] + input[i])**p over the other classes, over their number."""
    flat = input.dim() < 2
    x, t = (input.reshape(1, -1), target.reshape(1)) if flat else (input, target)
    if x.dim() != 2 or t.shape != x.shape[:1]:
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}")
    index = t.unsqueeze(1)
    over = (margin - x.gather(1, index) + x).clamp_min(0)
    if p == 2:
        over = over * over
    if weight is not None:
        over = over * weight[t].unsqueeze(1)
    others = _C.ones_like(x).scatter(1, index, 0.0)
    loss = (over * others).sum(1) / x.size(1)
    return _reduced(loss.reshape(()) if flat else loss, reduction)


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """The hinge between every target class (those before the first -1) and every other class, over their number."""
    if input.shape != target.shape or input.dim() > 2:
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}")
    flat = input.dim() < 2
    x, t = (input.reshape(1, -1), target.reshape(1, -1)) if flat else (input, target)
    named = (t < 0).to(_C.int64).cumsum(1) == 0
    classes = x.size(1)
    # One column more than there are classes takes what comes after the first -1.
    mask = _C.zeros((x.size(0), classes + 1), dtype=x.dtype, device=x.device)
    mask = mask.scatter(1, _C.where(named, t, classes), 1.0)[:, :classes]
    picked = x.gather(1, t.clamp_min(0))
    over = (1 - picked.unsqueeze(2) + x.unsqueeze(1)).clamp_min(0)
    loss = (over * named.to(x.dtype).unsqueeze(2) * (1 - mask).unsqueeze(1)).sum((1, 2)) / classes
    return _reduced(loss.reshape(()) if flat else loss, reduction)


def pdist(input: Tensor, p: float = 2) -> Tensor:
    """The p-norm distance of every pair of rows, in order."""
    if input.dim() != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.dim()}D")
    n = input.size(0)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    first = _C.tensor([i for i, _ in pairs], dtype=_C.int64, device=input.device)
    second = _C.tensor([j for _, j in pairs], dtype=_C.int64, device=input.device)
    return (input.index_select(0, first) - input.index_select(0, second)).norm(p, 1)


# ---- bags ----


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums (mode 0), means (1) or maxima (2) of bags of rows; also the bag of each row, bag sizes, and no maxima.

    RuntimeError when the first offset is not 0 or offsets go beyond the indices.
    """
    starts = offsets.tolist()
    if starts and (starts[0] != 0 or max(starts) > indices.numel()):
        raise RuntimeError(f"offsets begin at 0 and end within the {indices.numel()} indices; got {starts}")
    ends = [*starts[1:], indices.numel()]
    if include_last_offset:
        starts, ends = starts[:-1], ends[:-1]
    bags = _C.tensor(
        [b for b, (a, z) in enumerate(zip(starts, ends, strict=True)) for _ in range(a, z)],
        dtype=_C.int64,
        device=indices.device,
    )
    used = indices[: bags.numel()]
    rows = _C.embedding(weight, used, -1, scale_grad_by_freq, False)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    kept = _C.ones(used.shape, dtype=_C.bool, device=used.device) if padding_idx is None else used != padding_idx
    sizes = _C.zeros(len(starts), dtype=_C.int64, device=indices.device).index_add(0, bags, kept.to(_C.int64))
    if mode == 2:
        parts = []
        for b in range(len(starts)):
            mine = rows[(bags == b) & kept]
            parts.append(mine.max(0)[0] if mine.size(0) else weight.new_zeros(weight.size(1)))
        return _C.stack(parts), bags, sizes, sizes
    rows = rows * kept.to(rows.dtype).unsqueeze(1)
    out = rows.new_zeros((len(starts), weight.size(1))).index_add(0, bags, rows)
    if mode == 1:
        out = out / sizes.clamp_min(1).to(out.dtype).unsqueeze(1)
    return out, bags, sizes, sizes


# ---- sequences ----


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution of (time, batch, channels) with (kernel, channels, outputs): (time', batch, outputs)."""
    if input.dim() != 3 or weight.dim() != 3 or bias.dim() != 1:
        raise RuntimeError(
            f"conv_tbc: input and weight must have 3 dimensions and bias 1, but they have {input.dim()}, {weight.dim()} and {bias.dim()}"
        )
    return _C.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)


_NEVER = -1e30  # the logarithm of no chance at all: finite, so that its gradient is 0 and not NaN


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log-probability of the targets under all alignments, by the forward recursion of Graves et al. 2006.

    log_probs (T, N, C) or (T, C); targets (N, S), or all of them one after the other. RuntimeError for lengths that do
    not fit.
    """
    flat = log_probs.dim() == 2
    if flat:
        log_probs = log_probs.unsqueeze(1)
    steps, batch, classes = log_probs.shape
    ins = [int(n) for n in (input_lengths.reshape(-1).tolist() if isinstance(input_lengths, Tensor) else input_lengths)]
    outs = [int(n) for n in (target_lengths.reshape(-1).tolist() if isinstance(target_lengths, Tensor) else target_lengths)]
    if len(ins) != batch or len(outs) != batch:
        raise RuntimeError(f"input_lengths and target_lengths must be of size {batch}, not {len(ins)} and {len(outs)}")
    if any(n > steps for n in ins):
        raise RuntimeError(f"Expected input_lengths to have value at most {steps}, but got value {max(ins)}")
    if not 0 <= blank < classes:
        raise RuntimeError(f"blank must be in label range: {blank} is not below {classes}")
    if targets.dim() == 2:
        if targets.size(0) != batch or any(n > targets.size(1) for n in outs):
            raise RuntimeError(f"Expected targets to hold {batch} rows of at least {max(outs)}; got {tuple(targets.shape)}")
        labels = [targets[i, :n].tolist() for i, n in enumerate(outs)]
    else:
        if targets.numel() != sum(outs):
            raise RuntimeError(f"Expected {sum(outs)} targets, the sum of target_lengths, but got {targets.numel()}")
        ends = [sum(outs[: i + 1]) for i in range(batch)]
        labels = [targets[e - n : e].tolist() for e, n in zip(ends, outs, strict=True)]
    width = 2 * max(outs, default=0) + 1
    spelled = [([blank, *(w for c in row for w in (int(c), blank))] + [blank] * width)[:width] for row in labels]
    # From two places before, one may come only to a label that differs from the last one.
    skips = [[s > 1 and row[s] != blank and row[s] != row[s - 2] for s in range(width)] for row in spelled]
    at = _C.tensor(spelled, dtype=_C.int64)
    skip = _C.tensor(skips, dtype=_C.bool)
    each = log_probs.gather(2, at.unsqueeze(0).expand(steps, batch, width))
    never = each.new_full((batch, 1), _NEVER)
    alpha = _C.cat([each[0, :, :2], each.new_full((batch, max(width - 2, 0)), _NEVER)], 1)[:, :width]
    lattice = [alpha]
    for t in range(1, steps):
        one = _C.cat([never, alpha[:, :-1]], 1)
        two = _C.where(skip, _C.cat([never, never, alpha[:, :-2]], 1)[:, :width], _NEVER)
        alpha = _C.stack([alpha, one, two]).logsumexp(0).clamp_min(_NEVER) + each[t]
        lattice.append(alpha)
    losses = []
    for i, (t, n) in enumerate(zip(ins, outs, strict=True)):
        if t == 0:
            losses.append(each.new_zeros(()) if n == 0 else each.new_full((), -_NEVER))
            continue
        last = lattice[t - 1][i, max(2 * n - 1, 0) : 2 * n + 1]
        losses.append(-last.logsumexp(0))
    loss = _C.stack(losses)
    impossible = loss > -_NEVER / 2
    loss = loss.masked_fill(impossible, 0.0 if zero_infinity else math.inf)
    if reduction == 1:
        return (loss / _C.tensor([max(n, 1) for n in outs], dtype=loss.dtype)).mean()
    return loss.sum() if reduction == 2 else loss.squeeze(0) if flat else loss


# ---- places named by numbers ----


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Places mirrored at the edges until they lie within [low, high]."""
    if high == low:
        return x * 0
    span = high - low
    away = (x - low).abs()
    turns = _C.floor(away / span).detach()
    rest = away - turns * span
    return _C.where(turns % 2 == 0, rest + low, span - rest + low)


def _placed(x: Tensor, size: int, padding: int, corners: bool) -> Tensor:
    """Places beyond the edges, as the padding has them."""
    if padding == 2:
        x = _reflected(x, 0.0, size - 1.0) if corners else _reflected(x, -0.5, size - 0.5)
    return x.clamp(0, size - 1) if padding else x


def _read(input: Tensor, places: list[Tensor]) -> Tensor:
    """The elements at whole places (one tensor a dimension), 0 outside: (N, C, *places)."""
    sizes, index, inside = input.shape[2:], 0, None
    for x, size in zip(places, sizes, strict=True):
        x = x.detach()
        here = (x >= 0) & (x <= size - 1)
        inside = here if inside is None else inside & here
        index = index * size + x.clamp(0, size - 1).to(_C.int64)
    batch, channels = input.shape[:2]
    picked = input.reshape(batch, channels, -1).gather(2, index.reshape(batch, 1, -1).expand(batch, channels, -1))
    return picked.reshape((batch, channels, *index.shape[1:])).masked_fill(~inside.unsqueeze(1), 0)


def grid_sampler(input: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """The input at the places that the grid names: mode 0 linear, 1 nearest, 2 cubic; padding 0 zeros, 1 edge, 2 mirror.

    RuntimeError for shapes that do not belong together, and for mode 2 in three dimensions.
    """
    n = input.dim() - 2
    if n not in (2, 3) or grid.dim() != n + 2:
        raise RuntimeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but got input with sizes "
            f"{list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.size(0) != grid.size(0) or grid.size(-1) != n:
        raise RuntimeError(
            f"grid_sampler(): expected grid of batch size {input.size(0)} and size {n} in last dimension, but got {list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(f"grid_sampler(): expected input to have non-empty spatial dimensions, got {list(input.shape)}")
    if mode == 2 and n == 3:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    sizes = list(input.shape[2:])
    places = []
    for d, size in enumerate(sizes):
        x = grid[..., n - 1 - d]  # x, the last dimension, comes first
        places.append((x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2)
    if mode == 2:
        return _cubic_sample(input, places, sizes, padding, align_corners)
    places = [_placed(x, size, padding, align_corners) for x, size in zip(places, sizes, strict=True)]
    if mode == 1:
        whole = [x.round() for x in places]
        # The grid decides what is read, with a derivative of 0.
        return _read(input, whole) + sum(x - x.detach() for x in whole).unsqueeze(1)
    low = [x.floor().detach() for x in places]
    out = None
    for corner in range(2**n):
        weight, at = None, []
        for d in range(n):
            up = corner >> d & 1
            part = places[d] - low[d]
            part = part if up else 1 - part
            weight = part if weight is None else weight * part
            at.append(low[d] + up)
        term = _read(input, at) * weight.unsqueeze(1)
        out = term if out is None else out + term
    return out


def _cubic_sample(input: Tensor, places: list[Tensor], sizes: list[int], padding: int, corners: bool) -> Tensor:
    """Keys' cubic convolution with a = -0.75, over 4 by 4 neighbours."""
    low = [x.floor().detach() for x in places]

    def weights(t: Tensor) -> list[Tensor]:
        a = -0.75
        far = [((a * x - 5 * a) * x + 8 * a) * x - 4 * a for x in (t + 1, 2 - t)]
        near = [((a + 2) * x - (a + 3)) * x * x + 1 for x in (t, 1 - t)]
        return [far[0], near[0], near[1], far[1]]

    rows, columns = (weights(x - f) for x, f in zip(places, low, strict=True))
    out = None
    for i in range(4):
        for j in range(4):
            at = [_placed(low[0] + (i - 1), sizes[0], padding, corners), _placed(low[1] + (j - 1), sizes[1], padding, corners)]
            term = _read(input, at) * (rows[i] * columns[j]).unsqueeze(1)
            out = term if out is None else out + term
    return out


def _fractional_max_pool(input: Tensor, kernel: Sequence[int], output: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    n = len(kernel)
    flat = input.dim() == n + 1
    x = input.unsqueeze(0) if flat else input
    sizes = list(x.shape[2:])
    index = None
    for d in range(n):
        size, k, out = sizes[d], kernel[d], output[d]
        if out < 1 or out + k - 1 > size:
            raise RuntimeError(f"fractional_max_pool{n}d(): pool of {k} and {out} outputs do not fit dimension {d} of size {size}")
        # torch gives 2-d pools their samples x first, 3-d pools in order
        sample = samples[..., n - 1 - d if n == 2 else d].detach().unsqueeze(-1)
        starts = (_C.arange(out - 1, dtype=sample.dtype) + sample) * ((size - k) / (out - 1) if out > 1 else 0.0)
        starts = starts.to(_C.int64) - (sample * ((size - k) / (out - 1) if out > 1 else 0.0)).to(_C.int64)
        starts = _C.cat([starts, starts.new_full((*starts.shape[:-1], 1), size - k)], -1)
        rows = starts.unsqueeze(-1) + _C.arange(k)  # (N, C, out, k)
        if index is None:
            index = rows
        else:
            index = index.reshape((*index.shape[:2], *index.shape[2:], 1, 1)) * size + rows.reshape(
                (*rows.shape[:2], *[1] * (index.dim() - 2), out, k)
            )
    # outputs before the places in their windows
    order = [0, 1, *[2 + 2 * d for d in range(n)], *[3 + 2 * d for d in range(n)]]
    index = index.permute(order).expand((x.size(0), x.size(1), *index.permute(order).shape[2:]))
    index = index.flatten(2 + n)
    picked = x.flatten(2).gather(2, index.flatten(2)).reshape(index.shape)
    values, which = picked.max(-1)
    places = index.gather(-1, which.unsqueeze(-1)).squeeze(-1)
    return (values.squeeze(0), places.squeeze(0)) if flat else (values, places)


def fractional_max_pool2d(input: Tensor, kernel_size: Any, output_size: Any, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima of windows whose places the samples shift, and their places in the plane."""
    return _fractional_max_pool(input, _sizes(kernel_size, 2), _sizes(output_size, 2), samples)


def fractional_max_pool3d(input: Tensor, kernel_size: Any, output_size: Any, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima of windows whose places the samples shift, and their places in the volume."""
    return _fractional_max_pool(input, _sizes(kernel_size, 3), _sizes(output_size, 3), samples)
