"""`torch.linalg`: what the core has of it.

Names that are missing raise an AttributeError that says so.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad._C import LinAlgError

_room = _C._linalg
globals().update({name: value for name, value in vars(_room).items() if not name.startswith("_")})
__all__ = ["LinAlgError", *sorted(name for name in vars(_room) if not name.startswith("_"))]


def qr(A, mode: str = "reduced"):
    """The QR decomposition of a matrix or a batch of them, by LAPACK (through numpy); `mode` is "reduced", "complete" or "r".

    NotImplementedError where a gradient would have to be recorded.

    >>> import stowgrad as torch
    >>> q, r = torch.linalg.qr(torch.tensor([[3.0, 1.0], [4.0, 2.0]]))
    >>> torch.allclose(q @ r, torch.tensor([[3.0, 1.0], [4.0, 2.0]]), atol=1e-6)
    True
    """
    import numpy as np

    if A.requires_grad and _C.is_grad_enabled():
        raise NotImplementedError("linalg.qr has no derivative here; call it under no_grad() or on detach()")
    if mode == "r":
        r = _C.from_numpy(np.ascontiguousarray(np.linalg.qr(A.detach().numpy(), mode="r")))
        return A.new_empty(0), r
    q, r = np.linalg.qr(A.detach().numpy(), mode=mode)
    return _C.from_numpy(np.ascontiguousarray(q)), _C.from_numpy(np.ascontiguousarray(r))


__all__ += ["qr"]


def __getattr__(name: str):
    raise AttributeError(f"stowgrad.linalg has no {name!r}: it is not implemented here", name=name)
