"""Which dtypes a call takes and gives, and with which class of error it refuses the others: as torch, for every dtype and for pairs
of them.
"""

from __future__ import annotations

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from facts import dtype_name, recorded

DATA = recorded("dtypes.json.gz")
# Per call, what differs and why.
DIFFERENT = {
    "x.histc()": ({"float16", "bfloat16"}, "no kernel for 16-bit floats"),
    "F.interpolate(x[None],2)": ({"uint8"}, "no kernel for integers"),
    "F.avg_pool1d(x,1)": ({"int64"}, "no kernel for integers"),
    "torch.cdist(x,y)": ({"float16", "bfloat16", "bfloat16,float32", "bfloat16,float16"}, "takes 16-bit floats"),
    "torch.bmm(x[None],y[None])": ({"bool,int64", "bool,float64"}, "tells of the dtypes first"),
    "torch.cross(x,y)": ({"bool,int64", "bool,float64"}, "tells of the dtypes first"),
    "x.clone().cumsum_(0)": ({"bool"}, "refused, as a result that cannot be written"),
}
ABSENT = ("x.cov()", "x.corrcoef()", "torch.ldexp(", "torch.nextafter(", "torch.gcd(", "torch.lcm(")


def operand(name, values):
    return torch.tensor(values, dtype=torch.float32).to(getattr(torch, name))


def outcome(expression, dtypes):
    first, _, second = dtypes.partition(",")
    scope = {"torch": torch, "F": F}
    scope["x"] = operand(first, [[1, 0, 1], [0, 1, 1], [1, 1, 0]])
    scope["y"] = operand(second or first, [[1, 1, 1]] * 3)
    try:
        result = eval(expression, scope)
    except Exception as e:
        return type(e).__name__
    parts = result if isinstance(result, (tuple, list)) else [result]
    return " ".join(dtype_name(p.dtype) if isinstance(p, torch.Tensor) else type(p).__name__ for p in parts)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", [e for e in DATA if not e.startswith(ABSENT)])
def test_dtypes_are_taken_given_and_refused_as_by_torch(expression):
    known, _ = DIFFERENT.get(expression, (set(), ""))
    wrong = {
        dtypes: (outcome(expression, dtypes), want)
        for want, all_dtypes in DATA[expression].items()
        for dtypes in all_dtypes
        if outcome(expression, dtypes) != want
    }
    assert set(wrong) == known, wrong
