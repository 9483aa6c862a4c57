"""Automatic mixed precision, as a CPU without it has it: the names are there, and nothing is cast."""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd.grad_mode import _DecoratorContextManager

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """False: no device casts by itself here."""
    return False


class autocast(_DecoratorContextManager):
    """A region in which torch would choose dtypes by operation. Here it does nothing: every operation computes in the
    dtypes it is given, float32 stays float32. Asking for a lower precision warns once a context, so that no one
    believes to have measured it; cast by `Tensor.to` or `Module.to` instead.

    RuntimeError for a `device_type` other than "cpu" or "cuda", which is accepted as the device that is not there.

    >>> import stowgrad as torch
    >>> with torch.autocast("cpu", enabled=False):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """

    def __init__(self, device_type: str, dtype=None, enabled: bool = True, cache_enabled=None) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if device_type not in ("cpu", "cuda"):
            raise RuntimeError(f"User specified an unsupported autocast device_type {device_type!r}: here it is 'cpu'")
        self.device = device_type
        self.fast_dtype = _C.bfloat16 if dtype is None else dtype
        self.enabled = enabled
        self.cache_enabled = cache_enabled
        if enabled and device_type == "cpu" and self.fast_dtype is not _C.float32:
            import warnings

            warnings.warn(
                "autocast does nothing in stowgrad: operations compute in the dtypes they are given", stacklevel=2
            )

    def __enter__(self):
        return self

    def __exit__(self, *args) -> None:
        return None

    def clone(self):
        return self


class GradScaler:
    """Scales losses where float16 gradients would underflow. Here it is always disabled: it passes losses through and
    steps the optimizer.

    >>> import stowgrad as torch
    >>> scaler = torch.amp.GradScaler()
    >>> scaler.is_enabled()
    False
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled = False

    def is_enabled(self) -> bool:
        return self._enabled

    def scale(self, outputs):
        """The losses as they are."""
        return outputs

    def unscale_(self, optimizer) -> None:
        """Gradients were never scaled."""

    def step(self, optimizer, *args, **kwargs):
        """What `optimizer.step` gives."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale=None) -> None:
        """There is no scale to move."""

    def get_scale(self) -> float:
        return 1.0

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        """A disabled scaler has no state."""


def _as_it_is(fwd=None, **kwargs):
    if fwd is None:
        return lambda f: f
    return fwd


def custom_fwd(fwd=None, *, device_type: str = "cpu", cast_inputs=None):
    """Decorates a Function's forward for autocast: gives it back."""
    return _as_it_is(fwd)


def custom_bwd(bwd=None, *, device_type: str = "cpu"):
    """Decorates a Function's backward for autocast: gives it back."""
    return _as_it_is(bwd)
