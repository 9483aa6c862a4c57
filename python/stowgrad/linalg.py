"""`torch.linalg`: what the core has of it.

Names that are missing raise an AttributeError that says so.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad._C import LinAlgError

_room = _C._linalg
globals().update({name: value for name, value in vars(_room).items() if not name.startswith("_")})
__all__ = ["LinAlgError", *sorted(name for name in vars(_room) if not name.startswith("_"))]


def __getattr__(name: str):
    raise AttributeError(f"stowgrad.linalg has no {name!r}: it is not implemented here", name=name)
