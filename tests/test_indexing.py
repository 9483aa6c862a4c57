"""`x[..]` reads and writes as torch's does: what torch 2.13 answers, recorded by hand."""

import numpy as np
import pytest
import stowgrad as torch


@pytest.fixture
def x():
    return torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("1", [3.0, 4.0, 5.0]),
        ("-1", [3.0, 4.0, 5.0]),
        ("0, 1", 1.0),
        ("True, 0", [[0.0, 1.0, 2.0]]),
        ("0, True", [[0.0, 1.0, 2.0]]),
        ("np.int64(1)", [3.0, 4.0, 5.0]),
        ("np.array(1)", [3.0, 4.0, 5.0]),
        ("torch.tensor(1)", [3.0, 4.0, 5.0]),
        ("torch.tensor(1), 0", 3.0),
        (":, 1", [1.0, 4.0]),
        ("..., -1", [2.0, 5.0]),
        ("1:", [[3.0, 4.0, 5.0]]),
        ("torch.tensor(1):", [[3.0, 4.0, 5.0]]),
        (":, ::2", [[0.0, 2.0], [3.0, 5.0]]),
        ("-100:100", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        ("5:", []),
        ("None, 0", [[0.0, 1.0, 2.0]]),
        ("0, ..., None", [[0.0], [1.0], [2.0]]),
        ("()", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        ("[1, 0]", [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]),
        ("[True, False]", [[0.0, 1.0, 2.0]]),
        ("[]", []),
        ("range(1)", [[0.0, 1.0, 2.0]]),
        ("np.array([True, False])", [[0.0, 1.0, 2.0]]),
        ("[0, 1], [1, 0]", [1.0, 3.0]),
        (":, torch.tensor([[0, 1], [1, 2]])", [[[0.0, 1.0], [1.0, 2.0]], [[3.0, 4.0], [4.0, 5.0]]]),
        ("torch.tensor([1], dtype=torch.int32)", [[3.0, 4.0, 5.0]]),
        ("x > 2", [3.0, 4.0, 5.0]),
        ("True", [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]),
        ("torch.tensor(True)", [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]),
        ("False", []),
    ],
)
def test_reading(x, index, expected):
    assert eval(f"x[{index}]", {"x": x, "np": np, "torch": torch}).tolist() == expected


def test_a_mask_takes_the_place_of_its_dimensions():
    x = torch.arange(24.0).view(2, 3, 4)
    m = x[:, :, 0] > 4
    assert x[m].shape == (4, 4)
    assert x[m, 0:2].shape == (4, 2)
    assert x[m, 0].tolist() == [8.0, 12.0, 16.0, 20.0]
    assert x[m, None].shape == (4, 1, 4)
    assert x[None, m].shape == (1, 4, 4)
    assert x[m, torch.tensor([0])].tolist() == [8.0, 12.0, 16.0, 20.0]


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        ("0, 0, 0", IndexError, "too many indices for tensor of dimension 2"),
        ("5", IndexError, "index 5 is out of bounds for dimension 0 with size 2"),
        ("0, 5", IndexError, "index 5 is out of bounds for dimension 1 with size 3"),
        ("torch.tensor([7])", IndexError, "index 7 is out of bounds"),
        ("torch.tensor([0.5])", IndexError, "tensors used as indices must be"),
        ("::-1", ValueError, "step must be greater than zero"),
        ("::0", ValueError, "slice step cannot be zero"),
        ("1.5", IndexError, "only integers, slices"),
        ("object()", IndexError, "only integers, slices"),
        ("'a'", TypeError, "invalid data type 'str'"),
        ("1.0:", TypeError, "slice indices must be integers"),
    ],
)
def test_wrong_indices_are_refused(x, index, kind, text):
    with pytest.raises(kind, match=text):
        eval(f"x[{index}]", {"x": x, "torch": torch})
    with pytest.raises(kind, match=text):
        exec(f"x[{index}] = 0", {"x": x, "torch": torch})


def test_a_tensor_without_dimensions_takes_no_index():
    with pytest.raises(IndexError, match="invalid index of a 0-dim tensor"):
        torch.tensor(1.0)[0]
    assert torch.tensor(1.0)[None].tolist() == [1.0]
    assert torch.tensor(1.0)[...].tolist() == 1.0


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("x[0] = 9", [[9.0, 9.0, 9.0], [3.0, 4.0, 5.0]]),
        ("x[...] = 5", [[5.0] * 3] * 2),
        ("x[:] = torch.ones(3)", [[1.0] * 3] * 2),
        ("x[0] = torch.ones(1, 1, 3)", [[1.0, 1.0, 1.0], [3.0, 4.0, 5.0]]),
        ("x[0, 1] = torch.tensor([[9]])", [[0.0, 9.0, 2.0], [3.0, 4.0, 5.0]]),
        ("x[0] = True", [[1.0, 1.0, 1.0], [3.0, 4.0, 5.0]]),
        ("x[0] = np.float64(7)", [[7.0, 7.0, 7.0], [3.0, 4.0, 5.0]]),
        ("x[[0]] = 8", [[8.0, 8.0, 8.0], [3.0, 4.0, 5.0]]),
        ("x[[0, 1], [0, 1]] = torch.tensor([7.0, 8.0])", [[7.0, 1.0, 2.0], [3.0, 8.0, 5.0]]),
        ("x[x > 2] = 0", [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]),
        ("x[x > 2] = torch.ones(3)", [[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]]),
        ("x[True] = 3", [[3.0] * 3] * 2),
        ("x[False] = 3", [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
        ("x[:, torch.tensor([0])] = torch.ones(1, 2, 1)", [[1.0, 1.0, 2.0], [1.0, 4.0, 5.0]]),
        ("x[0] += 1", [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]),
    ],
)
def test_writing(x, statement, expected):
    before = x._version
    exec(statement, {"x": x, "np": np, "torch": torch})
    assert x.tolist() == expected
    assert x._version > before or "False" in statement


@pytest.mark.parametrize("value", ["[1, 2, 3]", "np.ones(3)", "'a'", "None"])
def test_only_tensors_and_numbers_are_assigned(x, value):
    with pytest.raises(TypeError, match=r"can't assign a .* to a torch.FloatTensor"):
        exec(f"x[0] = {value}", {"x": x, "np": np})


def test_each_index_is_the_op_that_torch_records(x):
    x.requires_grad_()
    names = {
        "0": "Select",
        ":": "Slice",
        ":, 0": "Select",
        "...": "Alias",
        "()": "Alias",
        "0:2, 0:3": "Alias",
        "None": "Unsqueeze",
        "[0]": "Index",
        "True": "Index",
    }
    for index, name in names.items():
        assert eval(f"x[{index}]").grad_fn.name() == f"{name}Backward0", index


def test_gradients_come_back_to_where_they_were_read(x):
    x.requires_grad_()
    (x[0, 1] * 2 + x[:, [0, 0]].sum() + x[x > 3].sum()).backward()
    assert x.grad.tolist() == [[2.0, 2.0, 0.0], [2.0, 1.0, 1.0]]


def test_a_tensor_is_a_container(x):
    assert len(x) == 2
    assert [r.tolist() for r in x] == x.tolist()
    assert 2 in x
    assert torch.tensor(9.0) not in x
    with pytest.raises(RuntimeError, match="only supports Tensor or scalar"):
        "a" in x  # noqa: B015 - it raises
    with pytest.raises(TypeError, match="0-d"):
        len(torch.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        iter(torch.tensor(1))
    with pytest.raises(TypeError, match="deleting"):
        del x[0]
    assert range(5)[torch.tensor(2)] == 2
    assert hash(x) == hash(x)


def test_a_tensor_of_one_element_is_a_number():
    assert (int(torch.tensor(2.5)), float(torch.ones(1, 1)), bool(torch.zeros(1)), complex(torch.ones(1))) == (2, 1.0, False, 1)
    assert f"{torch.tensor(1.5):.3f}" == "1.500"
    for convert in (int, float):
        with pytest.raises(ValueError, match="only one element tensors can be converted to Python scalars"):
            convert(torch.ones(2))
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        bool(torch.ones(2))
    with pytest.raises(RuntimeError, match="no values is ambiguous"):
        bool(torch.ones(0))
    with pytest.raises(TypeError, match="only integer tensors of a single element can be converted to an index"):
        [1][torch.ones(())]
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        torch.ones(2).item()
    with pytest.raises(TypeError, match="unsupported format string"):
        format(torch.ones(2), ".3f")
    with pytest.raises(OverflowError):
        int(torch.tensor(float("inf")))
