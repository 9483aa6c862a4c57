"""The profiler: torch's names, as contexts that do nothing but say so. What a run keeps for backward, `stowgrad.stow`
tells.
"""

from __future__ import annotations

__all__ = [
    "EnforceUnique",
    "emit_itt",
    "emit_nvtx",
    "load_nvprof",
    "profile",
    "record_function",
]


def _nothing_recorded(what: str) -> None:
    import warnings

    warnings.warn(
        f"autograd.profiler.{what}: stowgrad records no profile; the block runs as it would without", stacklevel=3
    )


class EventList(list):
    """The events of a profile: always empty here."""

    def table(self, sort_by=None, row_limit: int = 100, **options) -> str:
        """A text that says that nothing was recorded."""
        return "nothing was recorded: stowgrad has no profiler"

    def __str__(self) -> str:
        return self.table()

    def total_average(self):
        """An empty list."""
        return EventList()

    def key_averages(self, *args, **kwargs):
        """An empty list."""
        return EventList()

    def export_chrome_trace(self, path: str) -> None:
        """Writes an empty trace."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"traceEvents": []}\n')


class profile:
    """A context that records nothing, and warns of it once on entering; its results are empty.

    >>> import stowgrad as torch, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     with torch.autograd.profiler.profile() as p:
    ...         _ = torch.ones(2) * 2
    >>> len(p.function_events)
    0
    """

    def __init__(self, enabled: bool = True, **options) -> None:
        self.enabled = enabled
        self.function_events = EventList()

    def __enter__(self):
        if self.enabled:
            _nothing_recorded("profile")
        return self

    def __exit__(self, *args) -> bool:
        return False

    def __repr__(self) -> str:
        return "<autograd.profiler.profile: nothing recorded>"

    __str__ = __repr__

    def table(self, *args, **kwargs) -> str:
        """A text that says that nothing was recorded."""
        return self.function_events.table()

    def key_averages(self, *args, **kwargs) -> EventList:
        """An empty list."""
        return EventList()

    def total_average(self) -> EventList:
        """An empty list."""
        return EventList()

    def export_chrome_trace(self, path: str) -> None:
        """Writes an empty trace."""
        self.function_events.export_chrome_trace(path)

    @property
    def self_cpu_time_total(self) -> float:
        """Always 0."""
        return 0.0


class record_function:
    """Names a block for a profile: as a context or a decorator, without any effect.

    >>> import stowgrad as torch
    >>> with torch.autograd.profiler.record_function("forward"):
    ...     _ = torch.ones(2) * 2
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args

    def __enter__(self):
        return self

    def __exit__(self, *args) -> None:
        pass

    def __call__(self, func):
        return func


class emit_nvtx:
    """Marks for NVIDIA's profiler: entering is an error, there is no GPU runtime here."""

    _what = "emit_nvtx"

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled = enabled

    def __enter__(self):
        if self.enabled:
            raise RuntimeError(f"autograd.profiler.{self._what}: stowgrad cannot talk to that profiler")
        return self

    def __exit__(self, *args) -> bool:
        return False


class emit_itt(emit_nvtx):
    """Marks for Intel's profiler: entering is an error."""

    _what = "emit_itt"


def load_nvprof(path: str) -> EventList:
    """RuntimeError: traces of NVIDIA's profiler are not read."""
    raise RuntimeError("autograd.profiler.load_nvprof: stowgrad does not read traces of NVIDIA's profiler")


class EnforceUnique:
    """Raises RuntimeError when a key is seen twice."""

    def __init__(self) -> None:
        self.seen: set = set()

    def see(self, *key) -> None:
        """Notes a key."""
        if key in self.seen:
            raise RuntimeError(f"duplicate key: {key}")
        self.seen.add(key)
