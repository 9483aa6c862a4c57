"""Special functions under the names of `torch.special`; each is an op of the core, with its derivatives."""

from __future__ import annotations

from stowgrad import _C

# torch.special's name: the core's
_NAMES = {
    "digamma": "digamma",
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erfinv",
    "exp2": "exp2",
    "expit": "sigmoid",
    "expm1": "expm1",
    "gammaln": "lgamma",
    "log1p": "log1p",
    "log_softmax": "log_softmax",
    "logit": "logit",
    "logsumexp": "logsumexp",
    "polygamma": "polygamma",
    "psi": "digamma",
    "round": "round",
    "sinc": "sinc",
    "softmax": "softmax",
    "xlogy": "xlogy",
}
globals().update({name: getattr(_C, core) for name, core in _NAMES.items() if hasattr(_C, core)})


def entr(input):
    """Entropy by element, -x ln(x); 0 at 0 and -inf below."""
    return _C.where(input >= 0, -_C.xlogy(input, input), -float("inf"))


def xlog1py(input, other):
    """input * log1p(other), 0 where input is 0 and other no NaN."""
    return _C.xlogy(input, 1 + other) if not isinstance(other, _C.Tensor) else _xlog1py(input, other)


def _xlog1py(input, other):
    zero = _C.logical_and(_C.as_tensor(input) == 0, _C.logical_not(_C.isnan(other)))
    return _C.where(zero, 0.0, input * _C.log1p(_C.where(zero, 0.0, other)))


def ndtr(input):
    """The area under the standard normal's density left of each element.

    >>> import stowgrad as torch
    >>> torch.special.ndtr(torch.tensor([0.0]))
    tensor([0.5000])
    """
    return 0.5 * _C.erfc(-input * 0.7071067811865476)


def ndtri(input):
    """The inverse of `ndtr`."""
    return 1.4142135623730951 * _C.erfinv(2 * input - 1)


__all__ = sorted([n for n in _NAMES if n in globals()] + ["entr", "ndtr", "ndtri", "xlog1py"])


def __getattr__(name: str):
    raise AttributeError(f"stowgrad.special has no {name!r}: that function is not implemented here", name=name)
