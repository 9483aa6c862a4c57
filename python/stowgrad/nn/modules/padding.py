"""Padding layers: what stands beyond the edges is a number, the mirror image, the edge itself, or the other side."""

from __future__ import annotations

from stowgrad.nn import functional as F
from stowgrad.nn._sizes import _ntuple, _pair, _quadruple
from stowgrad.nn.modules.module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stowgrad._C import Tensor

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]

_sextuple = _ntuple(6, "_sextuple")


class _PadNd(Module):
    """`padding` is one width, or (left, right, top, bottom, front, back) as far as the layer has dimensions."""

    __constants__ = ["padding"]
    _widths: Callable[[Any], tuple[int, ...]]
    _mode: str

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = self._widths(padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPadNd(_PadNd):
    __constants__ = ["padding", "value"]

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPadNd):
    """Widens the last dimension by a number."""

    _widths = staticmethod(_pair)


class ConstantPad2d(_ConstantPadNd):
    """Widens the last two dimensions by a number."""

    _widths = staticmethod(_quadruple)


class ConstantPad3d(_ConstantPadNd):
    """Widens the last three dimensions by a number."""

    _widths = staticmethod(_sextuple)


class ZeroPad1d(ConstantPad1d):
    """Widens the last dimension by zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad2d(ConstantPad2d):
    """Widens the last two dimensions by zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad3d(ConstantPad3d):
    """Widens the last three dimensions by zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ReflectionPad1d(_PadNd):
    """Widens the last dimension of (N, C, L) or (C, L) by its mirror image."""

    _widths, _mode = staticmethod(_pair), "reflect"


class ReflectionPad2d(_PadNd):
    """Widens the last two dimensions of (N, C, H, W) or (C, H, W) by their mirror image."""

    _widths, _mode = staticmethod(_quadruple), "reflect"


class ReflectionPad3d(_PadNd):
    """Widens the last three dimensions by their mirror image."""

    _widths, _mode = staticmethod(_sextuple), "reflect"


class ReplicationPad1d(_PadNd):
    """Widens the last dimension of (N, C, L) or (C, L) by its edge."""

    _widths, _mode = staticmethod(_pair), "replicate"


class ReplicationPad2d(_PadNd):
    """Widens the last two dimensions of (N, C, H, W) or (C, H, W) by their edges."""

    _widths, _mode = staticmethod(_quadruple), "replicate"


class ReplicationPad3d(_PadNd):
    """Widens the last three dimensions by their edges."""

    _widths, _mode = staticmethod(_sextuple), "replicate"


class CircularPad1d(_PadNd):
    """Widens the last dimension of (N, C, L) or (C, L) by its other end."""

    _widths, _mode = staticmethod(_pair), "circular"


class CircularPad2d(_PadNd):
    """Widens the last two dimensions of (N, C, H, W) or (C, H, W) by their other ends."""

    _widths, _mode = staticmethod(_quadruple), "circular"


class CircularPad3d(_PadNd):
    """Widens the last three dimensions by their other ends."""

    _widths, _mode = staticmethod(_sextuple), "circular"
