"""Anomaly mode: backward errors that name the forward line, and a check of every gradient for NaN. The state is the
core's.
"""

from __future__ import annotations

from stowgrad import _C

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class detect_anomaly:
    """Inside, each node remembers the line that made it, and (`check_nan`) a backward that gives NaN is an error.
    Slow: for debugging.

    >>> import stowgrad as torch
    >>> import warnings
    >>> x = torch.zeros(1, requires_grad=True)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     with torch.autograd.detect_anomaly():
    ...         torch.exp(x).sum().backward()
    """

    def __init__(self, check_nan: bool = True) -> None:
        import warnings

        self.prev = _C.is_anomaly_enabled()
        self.check_nan = check_nan
        self.prev_check_nan = _C.is_anomaly_check_nan_enabled()
        warnings.warn(
            "Anomaly Detection has been enabled: every operation now remembers its source line, which costs time. "
            "Use it for debugging only.",
            stacklevel=2,
        )

    def __enter__(self) -> None:
        _C._set_anomaly_enabled(True, self.check_nan)

    def __exit__(self, *args) -> None:
        _C._set_anomaly_enabled(self.prev, self.prev_check_nan)


class set_detect_anomaly:
    """Switches anomaly mode at once; as a context, puts the old state back on leaving.

    >>> import stowgrad as torch
    >>> with torch.autograd.set_detect_anomaly(True):
    ...     torch.is_anomaly_enabled()
    True
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.prev = _C.is_anomaly_enabled()
        self.prev_check_nan = _C.is_anomaly_check_nan_enabled()
        _C._set_anomaly_enabled(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args) -> None:
        _C._set_anomaly_enabled(self.prev, self.prev_check_nan)
