"""assert_close says what differs, where and by how much; make_tensor makes what is asked for."""

import numpy as np
import pytest
import stowgrad as torch
from stowgrad.testing import assert_close, make_tensor


def message(actual, expected, **options):
    with pytest.raises(AssertionError) as e:
        assert_close(actual, expected, **options)
    return str(e.value)


@pytest.mark.parametrize(
    "a, b, options",
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-6]), {}),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), {}),
        (torch.ones(2, requires_grad=True), torch.ones(2), {}),
        (torch.ones(2), torch.ones(2).double(), {"check_dtype": False}),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), {"equal_nan": True}),
        (torch.tensor(float("inf")), torch.tensor(float("inf")), {}),
        (torch.empty(0), torch.empty(0), {}),
        (1.0, 1.0 + 1e-9, {}),
        (True, True, {}),
        (None, None, {}),
        ([1, {"a": torch.ones(1)}], [1, {"a": torch.ones(1)}], {}),
        ((1,), [1], {}),
        (np.ones(2), np.ones(2), {}),
        (torch.tensor([1.0]), torch.tensor([2.0]), {"rtol": 0, "atol": 1.5}),
        (1, 1.0, {"check_dtype": False}),
    ],
)
def test_what_is_close_passes(a, b, options):
    assert assert_close(a, b, **options) is None


def test_a_difference_is_counted_and_located():
    text = message(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
    assert text.splitlines() == [
        "Tensor-likes are not close!",
        "",
        "Mismatched elements: 1 / 3 (33.3%)",
        "Greatest absolute difference: 1.0 at index (2,) (up to 1e-05 allowed)",
        "Greatest relative difference: 0.25 at index (2,) (up to 1.3e-06 allowed)",
    ]
    text = message(torch.zeros(2, 3), torch.tensor([[0.0, 0, 0], [0, 5, 0]]))
    assert "at index (1, 1)" in text
    assert message(torch.tensor([1, 2]), torch.tensor([1, 3])).startswith("Tensor-likes are not equal!")
    assert "at index (1,)" in message(torch.tensor([True, False]), torch.tensor([True, True]))


def test_numbers_say_what_was_expected():
    assert message(1.0, 2.0).startswith(
        "Scalars are not close!\n\nExpected 2.0 but got 1.0.\nAbsolute difference: 1.0 (up to 1e-07"
    )
    assert message(1, 2).startswith("Scalars are not equal!")
    assert message(torch.tensor(1.0), torch.tensor(2.0)).startswith("Scalars are not close!")
    assert "are not close" in message(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert "are not close" in message(torch.tensor([float("inf")]), torch.tensor([-float("inf")]))


@pytest.mark.parametrize(
    "a, b, words",
    [
        (torch.ones(2), torch.ones(3), "attribute 'shape'"),
        (torch.ones(2), torch.ones(2).double(), "attribute 'dtype'"),
        (1.0, 2, "types do not match"),
        ([1], [1, 2], "length of the sequences mismatch: 1 != 2"),
        ({"a": 1}, {"b": 1}, "Missing keys in the actual mapping: ['b']"),
        (None, 1, "None mismatch"),
        (True, False, "Booleans mismatch"),
    ],
)
def test_what_cannot_be_equal_is_named(a, b, words):
    assert words in message(a, b)


def test_strides_are_compared_when_asked():
    assert_close(torch.ones(4)[::2], torch.ones(2))
    assert "stride" in message(torch.ones(4)[::2], torch.ones(2), check_stride=True)


def test_the_place_in_a_container_is_told():
    text = message([{"a": [1, torch.ones(1)]}], [{"a": [1, torch.zeros(1)]}])
    assert text.endswith("The failure occurred for item [0]['a'][1]")


def test_a_message_of_ones_own_replaces_or_wraps():
    assert message(1, 2, msg="no") == "no"
    assert message(1, 2, msg=lambda text: "before: " + text).startswith("before: Scalars")


def test_things_that_cannot_be_compared_are_type_errors():
    for a, b in ((torch.ones(1), 1.0), ("a", "a"), (torch.ones(1), [1.0]), (np.ones(1), torch.ones(1))):
        with pytest.raises(TypeError, match="comparison"):
            assert_close(a, b)
    with pytest.raises(ValueError, match="got no atol"):
        assert_close(1.0, 1.0, rtol=1)


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_made_tensors_have_their_dtype_shape_and_range(name):
    dtype = getattr(torch, name)
    x = make_tensor((4, 5), dtype=dtype, device="cpu")
    assert x.shape == (4, 5) and x.dtype == dtype
    low, high = (0, 2) if name == "bool" else (0, 10) if name == "uint8" else (-9, 9.01)
    assert all(low <= v <= high for v in x.double().reshape(-1).tolist())
    y = make_tensor(200, dtype=dtype, device="cpu", low=0, high=2)
    assert (
        set(y.double().tolist()) == {0.0, 1.0}
        if not dtype.is_floating_point
        else all(0 <= v <= 2 for v in y.double().tolist())
    )


def test_made_tensors_have_gaps_gradients_and_no_zeros_when_asked():
    x = make_tensor(3, 4, dtype=torch.float64, device="cpu", noncontiguous=True, requires_grad=True)
    assert not x.is_contiguous() and x.requires_grad and x.is_leaf and x.shape == (3, 4)
    assert bool((make_tensor(500, dtype=torch.int64, device="cpu", low=0, high=2, exclude_zero=True) != 0).all())
    with pytest.raises(ValueError, match="less than"):
        make_tensor(2, dtype=torch.float32, device="cpu", low=1, high=0)
    with pytest.raises(ValueError, match="requires_grad"):
        make_tensor(2, dtype=torch.int64, device="cpu", requires_grad=True)
