"""A layer that interleaves groups of channels."""

from __future__ import annotations

from stowgrad.nn import functional as F
from stowgrad.nn.modules.module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stowgrad._C import Tensor

__all__ = ["ChannelShuffle"]


class ChannelShuffle(Module):
    """Takes one channel of each of `groups` in turn. Source: Zhang et al. 2017."""

    __constants__ = ["groups"]

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"
