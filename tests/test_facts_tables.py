"""Result dtypes, random numbers and classes of errors are torch's, row by row."""

from __future__ import annotations

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from facts import dtype_name, recorded, rows
from stowgrad import nn


def operand(text):
    """ "int16[2]" is a tensor of one dimension, "int16[]" of none, "int" a number."""
    if text in ("bool", "int", "float"):
        return {"bool": True, "int": 2, "float": 2.5}[text]
    name, _, shape = text.partition("[")
    return torch.ones((2,) if shape == "2]" else (), dtype=getattr(torch, name))


def result_dtype(row):
    first, second, *third = row.split()
    if first in ("sum", "exp"):
        return getattr(operand(f"{second}[2]"), first)().dtype
    if third:
        t = operand(f"{first}[2]")
        return (t / t if second == "/" else t > t).dtype
    return torch.result_type(operand(first), operand(second))


@pytest.mark.parametrize("row, want", rows("promotion", [(k, k, v) for k, v in recorded("promotion.json").items()]))
def test_result_dtypes_are_torchs(row, want):
    assert dtype_name(result_dtype(row)) == want


@pytest.mark.parametrize("row, want", rows("random", [(k, k, v) for k, v in recorded("random.json").items()]))
def test_a_seed_gives_torchs_random_numbers(row, want):
    torch.manual_seed(want["seed"])
    got = eval(row.strip(), {"torch": torch}).flatten().tolist()
    assert [float(v) for v in got] == pytest.approx(want["data"], rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("row, want", rows("errors", [(k, k, v) for k, v in recorded("errors.json").items()]))
def test_errors_have_torchs_classes_and_say_something(row, want):
    scope = {"torch": torch, "nn": nn, "F": F}
    if want is None:
        eval(row, scope)
        return
    with pytest.raises(Exception) as caught:
        eval(row, scope)
    assert want in [c.__name__ for c in type(caught.value).__mro__]
    assert (want == "AttributeError") == isinstance(caught.value, AttributeError)
    assert str(caught.value).strip()
