"""`DataParallel`: splits a batch over GPUs. There is none here, so that it calls its module."""

from __future__ import annotations

from stowgrad.nn.modules.module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["DataParallel", "data_parallel"]


class DataParallel(Module):
    """Calls `module` with the whole batch, as torch's does where no GPU is present; its state is under `module.`.

    >>> import stowgrad as torch
    >>> torch.nn.DataParallel(torch.nn.Identity())(3)
    3
    """

    def __init__(
        self, module: Module, device_ids: Sequence[Any] | None = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module = module
        self.device_ids: list[Any] = []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Calls `module` once with `inputs`, as DataParallel would."""
    if not isinstance(inputs, tuple):
        inputs = (inputs,)
    return module(*inputs, **(module_kwargs or {}))
