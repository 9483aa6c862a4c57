"""Tensors print as torch prints them, to the character. The rows were recorded from torch 2.13 (data/repr.json,
data/printing.json).
"""

import json
import pathlib

import pytest
import stowgrad as torch

DATA = pathlib.Path(__file__).parent / "data"
REPR = json.loads((DATA / "repr.json").read_text())
ROWS = json.loads((DATA / "printing.json").read_text())


@pytest.fixture(autouse=True)
def default_options():
    yield
    torch.set_printoptions(profile="default")


@pytest.mark.parametrize("expression", REPR)
def test_prints_what_torch_prints(expression):
    assert repr(eval(expression, {"torch": torch})).replace("stowgrad.", "torch.") == REPR[expression]


@pytest.mark.parametrize("i", range(len(ROWS)))
def test_every_option_dtype_and_shape_prints_as_recorded(i):
    row = ROWS[i]
    values = [float(v) if isinstance(v, str) else v for v in row["values"]]
    x = torch.tensor(values, dtype=torch.float64 if "float" in row["dtype"] else torch.int64)
    x = x.to(getattr(torch, row["dtype"])).reshape(row["shape"])
    if row["requires_grad"]:
        x.requires_grad_()
    torch.set_printoptions(profile="default")
    torch.set_printoptions(**row["options"])
    assert repr(x) == row["text"]
    assert str(x) == row["text"]


def test_options_in_a_block_end_with_it():
    before = torch._tensor_str.get_printoptions()
    with torch._tensor_str.printoptions(precision=1, sci_mode=True):
        assert repr(torch.tensor([0.25])) == "tensor([2.5e-01])"
    assert torch._tensor_str.get_printoptions() == before
    assert repr(torch.tensor([0.25])) == "tensor([0.2500])"


def test_an_unknown_profile_is_refused_by_name():
    with pytest.raises(ValueError, match="loud"):
        torch.set_printoptions(profile="loud")


def test_a_subclass_prints_under_its_own_name():
    class Money(torch.Tensor):
        pass

    assert repr(torch.ones(2).as_subclass(Money)) == "Money([1., 1.])"


def test_printing_records_nothing_and_changes_nothing():
    x = torch.ones(2, 3, requires_grad=True)
    y = x * 2
    version, packed = y._version, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        assert repr(y).endswith("grad_fn=<MulBackward0>)")
    assert y._version == version and not packed


def test_what_prints_can_be_evaluated_again():
    for x in (torch.tensor([1.5, -2.0]), torch.tensor([[1, 2], [3, 4]]), torch.tensor(2.5, dtype=torch.float64)):
        again = eval("torch." + repr(x), {"torch": torch})
        assert torch.equal(again, x) and again.dtype == x.dtype
