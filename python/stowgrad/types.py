"""Names for annotations, as `torch.types` has them."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import IO, Union

from stowgrad import _C

__all__ = ["Device", "FileLike", "Number", "Storage"]

_TensorOrTensors = Union[_C.Tensor, Sequence[_C.Tensor]]  # noqa: UP007 - a value, read at run time by 3.10 too
_dtype = _C.dtype
_device = _C.device
_size = Union[_C.Size, list[builtins.int], tuple[builtins.int, ...]]  # noqa: UP007
_int, _float, _bool = builtins.int, builtins.float, builtins.bool
Number = Union[builtins.int, builtins.float, builtins.bool]  # noqa: UP007
Device = Union[_C.device, str, builtins.int, None]  # noqa: UP007
FileLike = Union[str, os.PathLike, IO[bytes]]  # noqa: UP007
Storage = _C.UntypedStorage
