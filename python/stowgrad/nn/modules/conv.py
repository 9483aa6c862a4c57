"""Convolution layers and their transposes.

Invariants: weights are (out, in / groups, *kernel), for a transpose (in, out / groups, *kernel), and are drawn in
torch's order.
"""

from __future__ import annotations

import math

from stowgrad import _C
from stowgrad.nn import functional as F
from stowgrad.nn import init
from stowgrad.nn._sizes import _pair, _reverse_repeat_tuple, _single, _triple
from stowgrad.nn.modules.module import Module
from stowgrad.nn.parameter import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    __constants__ = [
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
        "output_padding",
        "in_channels",
        "out_channels",
        "kernel_size",
    ]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: Any,
        dilation: tuple[int, ...],
        transposed: bool,
        output_padding: tuple[int, ...],
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError(f"groups must be a positive integer; got {groups}")
        if in_channels % groups != 0:
            raise ValueError(f"in_channels must be divisible by groups; {in_channels} is not by {groups}")
        if out_channels % groups != 0:
            raise ValueError(f"out_channels must be divisible by groups; {out_channels} is not by {groups}")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of 'same', 'valid'")
            if padding == "same" and any(s != 1 for s in stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(f"padding_mode must be one of {_PADDING_MODES}, but got padding_mode='{padding_mode}'")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.transposed = transposed
        self.output_padding = output_padding
        self.groups = groups
        self.padding_mode = padding_mode
        # What F.pad takes for the modes other than zeros: (left, right) of each dimension, the last one first.
        if isinstance(padding, str):
            widths: list[int] = []
            for d, k in zip(reversed(dilation), reversed(kernel_size), strict=False):
                total = d * (k - 1) if padding == "same" else 0
                widths += [total // 2, total - total // 2]
            self._reversed_padding_repeated_twice = widths
        else:
            self._reversed_padding_repeated_twice = _reverse_repeat_tuple(padding, 2)
        channels = (in_channels, out_channels // groups) if transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(_C.empty((*channels, *kernel_size), device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(_C.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias anew from [-b, b), b = 1 / sqrt(inputs of one output)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in != 0:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        n = len(self.kernel_size)
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        if self.padding != (0,) * n:
            parts.append(f"padding={self.padding}")
        if self.dilation != (1,) * n:
            parts.append(f"dilation={self.dilation}")
        if self.output_padding != (0,) * n:
            parts.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("padding_mode", "zeros")


class _Conv(_ConvNd):
    """A convolution over as many dimensions as its kernel has; subclasses say how sizes are read and what computes
    it.
    """

    _sizes: Callable[[Any], tuple[int, ...]]
    _convolve: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        many = self._sizes
        super().__init__(
            in_channels,
            out_channels,
            many(kernel_size),
            many(stride),
            padding if isinstance(padding, str) else many(padding),
            many(dilation),
            False,
            many(0),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            return self._convolve(input, weight, bias, self.stride, self._sizes(0), self.dilation, self.groups)
        return self._convolve(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def forward(self, input: Tensor) -> Tensor:
        try:
            params = self._parameters
            weight, bias = params["weight"], params["bias"]
        except KeyError:
            weight, bias = self.weight, self.bias
        return self._conv_forward(input, weight, bias)


class Conv1d(_Conv):
    """(N, in_channels, L) or without N, to (N, out_channels, L'): the correlation with a kernel, plus bias.

    L' = (L + 2 padding - dilation (kernel_size - 1) - 1) / stride + 1, rounded down. ValueError for arguments that do
    not fit.
    """

    _sizes = staticmethod(_single)

    def _convolve(self, *args: Any) -> Tensor:
        return F.conv1d(*args)


class Conv2d(_Conv):
    """(N, in_channels, H, W) or without N, to (N, out_channels, H', W'): the correlation with a kernel, plus bias.

    Sizes as for Conv1d. ValueError for arguments that do not fit.

    >>> import stowgrad as torch
    >>> torch.nn.Conv2d(3, 8, 3, padding=1)(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    _sizes = staticmethod(_pair)

    def _convolve(self, *args: Any) -> Tensor:
        return F.conv2d(*args)


class Conv3d(_Conv):
    """(N, in_channels, D, H, W) or without N, to (N, out_channels, D', H', W')."""

    _sizes = staticmethod(_triple)

    def _convolve(self, *args: Any) -> Tensor:
        return F.conv3d(*args)


class _ConvTransposeNd(_ConvNd):
    _sizes: Callable[[Any], tuple[int, ...]]
    _convolve: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}; got {padding_mode!r}')
        many = self._sizes
        super().__init__(
            in_channels,
            out_channels,
            many(kernel_size),
            many(stride),
            many(padding),
            many(dilation),
            True,
            many(output_padding),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _output_padding(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """The extra width at the end of each dimension that gives `output_size`. ValueError when none does."""
        if output_size is None:
            return self.output_padding
        n = len(self.kernel_size)
        sizes = list(output_size)
        if len(sizes) == n + 2 or (len(sizes) == n + 1 and input.dim() == n + 1):
            sizes = sizes[-n:]
        if len(sizes) != n:
            raise ValueError(
                f"{type(self).__name__}: for {input.dim()}D input, output_size must have {n} or {input.dim()} elements "
                f"(got {len(output_size)})"
            )
        least = [
            (input.size(i - n) - 1) * self.stride[i]
            - 2 * self.padding[i]
            + self.dilation[i] * (self.kernel_size[i] - 1)
            + 1
            for i in range(n)
        ]
        extra = tuple(want - low for want, low in zip(sizes, least, strict=False))
        if any(e < 0 or e >= s for e, s in zip(extra, self.stride, strict=False)):
            most = [low + s - 1 for low, s in zip(least, self.stride, strict=False)]
            raise ValueError(
                f"requested an output size of {list(output_size)}, but valid sizes range from {least} to {most} "
                f"(for an input of {list(input.shape[-n:])})"
            )
        return extra

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        return self._convolve(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self._output_padding(input, output_size),
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(_ConvTransposeNd):
    """The gradient of a Conv1d by its input, as a layer: (N, in_channels, L) to (N, out_channels, L')."""

    _sizes = staticmethod(_single)

    def _convolve(self, *args: Any) -> Tensor:
        return F.conv_transpose1d(*args)


class ConvTranspose2d(_ConvTransposeNd):
    """The gradient of a Conv2d by its input, as a layer: (N, in_channels, H, W) to (N, out_channels, H', W').

    H' = (H - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1. Source: Zeiler et al. 2010.
    """

    _sizes = staticmethod(_pair)

    def _convolve(self, *args: Any) -> Tensor:
        return F.conv_transpose2d(*args)


class ConvTranspose3d(_ConvTransposeNd):
    """The gradient of a Conv3d by its input, as a layer."""

    _sizes = staticmethod(_triple)

    def _convolve(self, *args: Any) -> Tensor:
        return F.conv_transpose3d(*args)
