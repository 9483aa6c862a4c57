"""For tests: comparing results, and making inputs.

`assert_close` walks two structures side by side and compares tensors, numbers and containers; what differs, where and
by how much is in the message. Invariants: nothing is converted silently (types, dtypes, shapes and lengths must match
unless said otherwise); a comparison computes in the arguments' own precision or better and records nothing.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad.autograd.grad_mode import no_grad

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

_Tensor = _C.Tensor
_TOLERANCES = {  # relative, absolute; dtypes not listed are compared exactly
    _C.float16: (1e-3, 1e-5),
    _C.bfloat16: (1.6e-2, 1e-5),
    _C.float32: (1.3e-6, 1e-5),
    _C.float64: (1e-7, 1e-7),
}


def default_tolerances(*inputs) -> tuple:
    """`(rtol, atol)` for comparing these tensors, arrays or dtypes: the loosest of theirs."""
    dtypes = [x if type(x) is _C.dtype else x.dtype for x in inputs]
    pairs = [_TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
    return max(r for r, _ in pairs), max(a for _, a in pairs)


class _Options:
    def __init__(self, **options) -> None:
        self.__dict__.update(options)


def _fail(kind, text: str, where: tuple, msg):
    if where:
        text += "\n\nThe failure occurred for item " + "".join(f"[{key!r}]" for key in where)
    if msg is not None and issubclass(kind, AssertionError):
        text = msg(text) if callable(msg) else msg
    raise kind(text)


def _is_array(x) -> bool:
    return type(x).__module__ == "numpy" and hasattr(x, "__array__") and hasattr(x, "shape")


def _compare(actual, expected, where: tuple, o: _Options) -> None:
    from collections.abc import Mapping, Sequence

    msg = o.msg
    if actual is None or expected is None:
        if actual is not expected:
            _fail(AssertionError, f"None mismatch: {actual!r} is not {expected!r}", where, msg)
    elif isinstance(actual, bool) and isinstance(expected, bool):
        if actual is not expected:
            _fail(AssertionError, f"Booleans mismatch: {actual!r} is not {expected!r}", where, msg)
    elif isinstance(actual, (int, float, complex)) and isinstance(expected, (int, float, complex)):
        _compare_numbers(actual, expected, where, o)
    elif isinstance(actual, _Tensor) and isinstance(expected, _Tensor):
        if not o.allow_subclasses and type(actual) is not type(expected):
            _fail(
                TypeError, f"types {type(actual)} and {type(expected)} differ, and allow_subclasses=False", where, msg
            )
        _compare_tensors(actual, expected, where, o)
    elif _is_array(actual) and _is_array(expected):
        _compare_tensors(_C.as_tensor(actual), _C.as_tensor(expected), where, o)
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        missing, extra = [k for k in expected if k not in actual], [k for k in actual if k not in expected]
        if missing or extra:
            text = "The keys of the mappings do not match:"
            text += f"\nMissing keys in the actual mapping: {missing}" if missing else ""
            text += f"\nAdditional keys in the actual mapping: {extra}" if extra else ""
            _fail(AssertionError, text, where, msg)
        for key in expected:
            _compare(actual[key], expected[key], (*where, key), o)
    elif _is_sequence(actual, Sequence) and _is_sequence(expected, Sequence):
        if len(actual) != len(expected):
            _fail(AssertionError, f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", where, msg)
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            _compare(a, b, (*where, i), o)
    else:
        _fail(
            TypeError,
            f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.",
            where,
            msg,
        )


def _is_sequence(x, sequence) -> bool:
    return isinstance(x, sequence) and not isinstance(x, (str, bytes))


def _tolerances(o: _Options, *dtypes) -> tuple:
    if o.rtol is not None:
        return o.rtol, o.atol
    return default_tolerances(*dtypes)


def _number_dtype(x):
    return _C.int64 if isinstance(x, int) else _C.float64


def _scalar_text(actual, expected, difference: float, relative: float, rtol: float, atol: float) -> str:
    exact = rtol == atol == 0
    return (
        f"Scalars are not {'equal' if exact else 'close'}!\n\nExpected {expected} but got {actual}."
        f"\nAbsolute difference: {difference}"
        + ("" if exact else f" (up to {atol} allowed)")
        + f"\nRelative difference: {relative}"
        + ("" if exact else f" (up to {rtol} allowed)")
    )


def _numbers_close(a, b, rtol: float, atol: float, equal_nan: bool) -> bool:
    if a != a or b != b:
        return equal_nan and a != a and b != b
    if a == b:
        return True
    difference = abs(a - b)
    return difference <= atol + rtol * abs(b) and difference != float("inf")


def _compare_numbers(actual, expected, where: tuple, o: _Options) -> None:
    if o.check_dtype and type(actual) is not type(expected):
        _fail(AssertionError, f"The (d)types do not match: {type(actual)} != {type(expected)}.", where, o.msg)
    rtol, atol = _tolerances(o, _number_dtype(actual), _number_dtype(expected))
    if not _numbers_close(actual, expected, rtol, atol, o.equal_nan):
        difference = abs(actual - expected)
        relative = difference / abs(expected) if expected else float("inf")
        _fail(AssertionError, _scalar_text(actual, expected, difference, relative, rtol, atol), where, o.msg)


def _compare_tensors(actual, expected, where: tuple, o: _Options) -> None:
    def attribute(name: str, a, b) -> None:
        if a != b:
            _fail(AssertionError, f"The values for attribute '{name}' do not match: {a} != {b}.", where, o.msg)

    attribute("shape", actual.shape, expected.shape)
    if o.check_layout:
        attribute("layout", actual.layout, expected.layout)
    if o.check_device:
        attribute("device", actual.device, expected.device)
    if o.check_dtype:
        attribute("dtype", actual.dtype, expected.dtype)
    if o.check_stride:
        attribute("stride()", actual.stride(), expected.stride())
    rtol, atol = _tolerances(o, actual.dtype, expected.dtype)
    with no_grad():
        actual, expected = actual.detach(), expected.detach()
        if actual.device != expected.device:
            actual, expected = actual.cpu(), expected.cpu()
        if actual.dtype != expected.dtype:
            dtype = _C.promote_types(actual.dtype, expected.dtype)
            actual, expected = actual.to(dtype), expected.to(dtype)
        matches = _C.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=o.equal_nan)
        if bool(matches.all()):
            return
        _fail(AssertionError, _mismatch_text(actual, expected, matches, rtol, atol), where, o.msg)


def _mismatch_text(actual, expected, matches, rtol: float, atol: float) -> str:
    if actual.dtype == _C.bool:
        actual, expected = actual.to(_C.uint8), expected.to(_C.uint8)
    if not actual.is_floating_point():
        actual, expected = actual.to(_C.int64), expected.to(_C.int64)
    exact = rtol == atol == 0
    difference = (actual - expected).abs()
    relative = difference / expected.abs()
    if actual.dim() == 0:
        return _scalar_text(actual.item(), expected.item(), difference.item(), relative.item(), rtol, atol)
    total = actual.numel()
    wrong = total - int(matches.sum().item())

    def worst(values, allowed: float, name: str) -> str:
        values = values.masked_fill(matches, 0).reshape(-1)
        at = int(values.argmax().item())
        index = []
        for size in reversed(actual.shape):
            index.append(at % size)
            at //= size
        at = int(values.argmax().item())
        return f"Greatest {name} difference: {values[at].item()} at index {tuple(reversed(index))}" + (
            "" if exact else f" (up to {allowed} allowed)"
        )

    return "\n".join(
        (
            f"Tensor-likes are not {'equal' if exact else 'close'}!",
            "",
            f"Mismatched elements: {wrong} / {total} ({wrong / total:.1%})",
            worst(difference, atol, "absolute"),
            worst(relative, rtol, "relative"),
        )
    )


def assert_close(
    actual,
    expected,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg=None,
) -> None:
    """Raises AssertionError unless `|actual - expected| <= atol + rtol * |expected|` everywhere, in tensors, numbers,
    and containers of them.

    Tolerances default by dtype (float32: 1.3e-6 and 1e-5; float64: 1e-7; integers: exact). Shapes and types must
    match, and device, layout, dtype unless switched off. `msg` replaces the message, or is called with it. ValueError
    if only one of `rtol` and `atol` is given; TypeError for things that cannot be compared.

    >>> import stowgrad as torch
    >>> torch.testing.assert_close(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-7]))
    """
    if (rtol is None) != (atol is None):
        missing = "rtol" if rtol is None else "atol"
        raise ValueError(f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}.")
    o = _Options(
        allow_subclasses=allow_subclasses,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        check_device=check_device,
        check_dtype=check_dtype,
        check_layout=check_layout,
        check_stride=check_stride,
        msg=msg,
    )
    _compare(actual, expected, (), o)


def assert_allclose(actual, expected, rtol=None, atol=None, equal_nan: bool = True, msg: str = "") -> None:
    """The older, laxer comparison: numbers and lists are made tensors, dtypes may differ, NaN equals NaN."""
    if not isinstance(actual, _Tensor):
        actual = _C.as_tensor(actual)
    if not isinstance(expected, _Tensor):
        expected = _C.as_tensor(expected, dtype=actual.dtype)
    if rtol is None and atol is None:
        rtol, atol = default_tolerances(actual, expected)
    assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        check_device=True,
        check_dtype=False,
        msg=msg or None,
    )


_INTEGER_RANGES = {
    _C.uint8: (0, 10),
    _C.int8: (-9, 10),
    _C.int16: (-9, 10),
    _C.int32: (-9, 10),
    _C.int64: (-9, 10),
    _C.bool: (0, 2),
}


def make_tensor(
    *shape,
    dtype,
    device="cpu",
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format=None,
):
    """A tensor of random values between `low` (included) and `high` (not), by default -9 to 9, or 0 to 9, or both
    bools.

    `noncontiguous` gives one with gaps between its elements, `exclude_zero` replaces zeros. ValueError for an
    impossible range, and for an integer tensor that shall require grad.

    >>> import stowgrad as torch
    >>> x = torch.testing.make_tensor((2, 3), dtype=torch.float32, device="cpu", low=0, high=1)
    >>> x.shape, bool((x >= 0).all())
    (torch.Size([2, 3]), True)
    """
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    if noncontiguous and memory_format is not None:
        raise ValueError(f"make_tensor: noncontiguous and memory_format={memory_format} exclude each other")
    integer = dtype in _INTEGER_RANGES
    if requires_grad and integer:
        raise ValueError(
            f"make_tensor: requires_grad must be False for integral and boolean tensors, and dtype is {dtype}"
        )
    default_low, default_high = _INTEGER_RANGES.get(dtype, (-9, 9))
    low = default_low if low is None else low
    high = default_high if high is None else high
    if low > high or low != low or high != high:
        raise ValueError(f"make_tensor: `low` must be less than `high`, but got {low} >= {high}")
    made = (*shape[:-1], shape[-1] * 2) if noncontiguous and shape else shape
    with no_grad():
        if integer:
            from math import ceil

            low, high = max(ceil(low), _C.iinfo(dtype).min if dtype != _C.bool else 0), ceil(high)
            high = min(high, (_C.iinfo(dtype).max if dtype != _C.bool else 1) + 1)
            if low == high:
                high += 1
            t = _C.randint(low, high, made).to(dtype)
            smallest = 1
        else:
            info = _C.finfo(dtype)
            low, high = max(low, info.min), min(high, info.max)
            t = (_C.rand(made, dtype=_C.float64) * (high - low) + low).to(dtype)
            smallest = info.smallest_normal
        if exclude_zero:
            t = t.masked_fill(_C.eq(t, 0), smallest)
        if noncontiguous and shape:
            t = t[..., ::2]
        if memory_format is not None:
            t = t.clone(memory_format=memory_format)
        t = t.to(device)
    return t.requires_grad_() if requires_grad else t
