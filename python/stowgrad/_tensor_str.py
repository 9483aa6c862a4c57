"""How tensors print: torch's text, to the character.

The text depends only on the values that are shown, so values are taken out as Python numbers once (`tolist`, of the
first and last entries only when the tensor is summarised) and formatted without numpy. Invariants: printing records
nothing, changes nothing, and never computes on more than it shows.
"""

from __future__ import annotations

from math import ceil, inf, isfinite

from stowgrad import _C

__all__ = ["get_printoptions", "printoptions", "set_printoptions"]


class _PrinterOptions:
    __slots__ = ("edgeitems", "linewidth", "precision", "sci_mode", "threshold")

    def __init__(self) -> None:
        self.precision = 4
        self.threshold = 1000
        self.edgeitems = 3
        self.linewidth = 80
        self.sci_mode = None


PRINT_OPTS = _PrinterOptions()
_NAMES = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")
_PROFILES = {
    "default": (4, 1000, 3, 80),
    "short": (2, 1000, 2, 80),
    "full": (4, inf, 3, 80),
}


def set_printoptions(
    precision=None, threshold=None, edgeitems=None, linewidth=None, profile=None, sci_mode=None
) -> None:
    """Sets how tensors print: digits, size above which they are summarised, entries shown at each end, width of a
    line.

    `profile` ("default", "short", "full") sets the first four; single options win over it. `sci_mode` True or False
    forces or forbids scientific notation; None, which every call without it restores, lets the values decide.

    >>> import stowgrad as torch
    >>> torch.set_printoptions(precision=2)
    >>> torch.tensor([1.12345])
    tensor([1.12])
    >>> torch.set_printoptions(profile="default")
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"set_printoptions: profile must be one of {', '.join(_PROFILES)}, not {profile!r}")
        PRINT_OPTS.precision, PRINT_OPTS.threshold, PRINT_OPTS.edgeitems, PRINT_OPTS.linewidth = _PROFILES[profile]
    for name, value in (
        ("precision", precision),
        ("threshold", threshold),
        ("edgeitems", edgeitems),
        ("linewidth", linewidth),
    ):
        if value is not None:
            setattr(PRINT_OPTS, name, value)
    PRINT_OPTS.sci_mode = sci_mode


def get_printoptions() -> dict:
    """The print options in force, under the names that `set_printoptions` takes."""
    return {name: getattr(PRINT_OPTS, name) for name in _NAMES}


class printoptions:
    """Inside, tensors print with these options of `set_printoptions`.

    >>> import stowgrad as torch
    >>> with torch.printoptions(precision=1):
    ...     torch.tensor([0.25])
    tensor([0.2])
    """

    def __init__(self, **kwargs) -> None:
        self.options = kwargs

    def __enter__(self) -> None:
        self.before = get_printoptions()
        set_printoptions(**self.options)

    def __exit__(self, *args) -> None:
        set_printoptions(**self.before)


# ---- one number ------------------------------------------------------------------------------------------------------


class _Formatter:
    """Chooses one notation and width for all the numbers shown."""

    __slots__ = ("floating", "int_mode", "max_width", "precision", "sci_mode")

    def __init__(self, values: list, floating: bool) -> None:
        self.floating = floating
        self.int_mode = True
        self.sci_mode = False
        self.max_width = 1
        self.precision = precision = PRINT_OPTS.precision
        if not floating:
            for v in values:
                n = len(str(v))
                if n > self.max_width:
                    self.max_width = n
            return
        finite = [v for v in values if v and isfinite(v)]
        if not finite:
            return
        for v in finite:
            if v != ceil(v):
                self.int_mode = False
                break
        sizes = [abs(v) for v in finite]
        largest, smallest = max(sizes), min(sizes)
        wide = largest > 1000.0 * smallest if smallest * 1000.0 < inf else False
        scientific = wide or largest > 1.0e8 or (smallest < 1.0e-4 and not self.int_mode)
        if PRINT_OPTS.sci_mode is not None:
            scientific = PRINT_OPTS.sci_mode
        self.sci_mode = scientific
        form, extra = (f".{precision}e", 0) if scientific else (".0f", 1) if self.int_mode else (f".{precision}f", 0)
        self.max_width = max(1, max(len(format(v, form)) for v in finite) + extra)

    def format(self, value) -> str:
        if not self.floating:
            text = str(value)
        elif self.sci_mode:
            text = format(value, f".{self.precision}e")
        elif self.int_mode:
            text = format(value, ".0f")
            if isfinite(value):
                text += "."
        else:
            text = format(value, f".{self.precision}f")
        return text.rjust(self.max_width)


# ---- the shown values, and their layout ------------------------------------------------------------------------------

_GAP = object()  # stands for the entries left out


def _shown(t, depth: int, summarize: bool):
    """The values to show as nested lists, `_GAP` where entries are left out."""
    edge = PRINT_OPTS.edgeitems
    if depth == 0 or not summarize:
        return t.tolist()
    n = t.shape[0]
    if n <= 2 * edge:
        return t.tolist() if depth == 1 else [_shown(t[i], depth - 1, True) for i in range(n)]
    if edge == 0:
        return [_GAP]
    if depth == 1:
        return [*t[:edge].tolist(), _GAP, *t[n - edge :].tolist()]
    rows = [_shown(t[i], depth - 1, True) for i in range(edge)]
    return [*rows, _GAP, *[_shown(t[i], depth - 1, True) for i in range(n - edge, n)]]


def _flat(shown, out: list) -> list:
    for item in shown:
        if type(item) is list:
            _flat(item, out)
        elif item is not _GAP:
            out.append(item)
    return out


def _row(values: list, formatter: _Formatter, indent: int) -> str:
    per_line = max(1, (PRINT_OPTS.linewidth - indent) // (formatter.max_width + 2))
    texts = [" ..." if v is _GAP else formatter.format(v) for v in values]
    lines = [", ".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(shown, depth: int, formatter: _Formatter, indent: int) -> str:
    if depth == 0:
        return formatter.format(shown)
    if depth == 1:
        return _row(shown, formatter, indent)
    parts = ["..." if item is _GAP else _nested(item, depth - 1, formatter, indent + 1) for item in shown]
    return "[" + ("," + "\n" * (depth - 1) + " " * (indent + 1)).join(parts) + "]"


def _values_str(t, indent: int) -> str:
    depth = t.dim()
    shown = _shown(t, depth, t.numel() > PRINT_OPTS.threshold)
    values = [shown] if depth == 0 else shown if depth == 1 and _GAP not in shown else _flat(shown, [])
    return _nested(shown, depth, _Formatter(values, t.is_floating_point()), indent)


def _with_suffixes(text: str, suffixes: list, indent: int) -> str:
    parts = [text]
    last_line = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if last_line + len(suffix) + 2 > PRINT_OPTS.linewidth:
            parts.append(",\n" + " " * indent + suffix)
            last_line = indent + len(suffix)
        else:
            parts.append(", " + suffix)
            last_line += len(suffix) + 2
    parts.append(")")
    return "".join(parts)


def _str(t, *, tensor_contents: str | None = None) -> str:
    """The text of a tensor: `Tensor.__repr__` and `__str__`. `tensor_contents` stands in for the values if given. What is computed for it
    is hidden from dispatch modes.
    """
    with _C._DisableTorchDispatch():
        return _text(t, tensor_contents)


def _text(t, tensor_contents: str | None) -> str:
    cls = type(t)
    prefix = "tensor(" if cls is _C.Tensor else cls.__name__ + "("
    indent = len(prefix)
    suffixes = []
    if t.device.type != "cpu":
        suffixes.append(f"device='{t.device}'")
    plain = t.detach() if cls is _C.Tensor else t.detach().as_subclass(_C.Tensor)
    dtype = t.dtype
    default = dtype is _C.get_default_dtype() or dtype is _C.int64 or dtype is _C.bool
    if t.numel() == 0:
        if t.dim() != 1:
            suffixes.append(f"size={tuple(t.shape)}")
        if dtype is not _C.get_default_dtype():
            suffixes.append(f"dtype={dtype}")
        text = "[]" if tensor_contents is None else tensor_contents
    else:
        if not default:
            suffixes.append(f"dtype={dtype}")
        text = _values_str(plain, indent) if tensor_contents is None else tensor_contents
    node = t.grad_fn
    if node is not None:
        suffixes.append(f"grad_fn=<{node.name().rpartition('::')[2]}>")
    elif t.requires_grad:
        suffixes.append("requires_grad=True")
    return _with_suffixes(prefix + text, suffixes, indent)
