"""dtypes, devices, sizes and limits print, compare and fail as torch's do."""

import copy

import pytest
import stowgrad as torch


def test_a_dtype_is_one_object():
    assert repr(torch.float32) == "torch.float32"
    assert torch.float is torch.float32
    assert torch.ones(1).dtype is torch.float32
    assert (torch.float16.itemsize, torch.int8.is_signed, torch.uint8.is_signed, torch.bfloat16.is_floating_point) == (2, True, False, True)
    assert copy.deepcopy(torch.int64) is torch.int64
    with pytest.raises(TypeError):
        torch.dtype()


def test_devices_are_read_from_strings():
    assert repr(torch.device("cpu")) == "device(type='cpu')"
    assert repr(torch.device("cuda:1")) == repr(torch.device("cuda", 1)) == "device(type='cuda', index=1)"
    assert str(torch.device("cuda", 1)) == "cuda:1"
    assert torch.device("cpu") == torch.ones(1).device
    assert torch.device("cpu") != torch.device("cpu:0")
    assert torch.device("cpu") != "cpu"
    for wrong in ("nowhere", "cuda:x", "cuda:-1", "cpu:", "cuda:01", ""):
        with pytest.raises(RuntimeError):
            torch.device(wrong)
    for wrong in (None, 1.5):
        with pytest.raises(TypeError):
            torch.device(wrong)


def test_a_size_stays_a_size():
    s = torch.Size([2, 3])
    assert repr(s) == str(s) == "torch.Size([2, 3])"
    for r in (s[:1], s + (1,), (1,) + s, s * 2, 2 * s):
        assert type(r) is torch.Size
    assert s == (2, 3)
    assert hash(s) == hash((2, 3))
    assert s.numel() == 6
    assert torch.Size([torch.tensor(3)]) == (3,)
    with pytest.raises(TypeError, match="item 0 is 'str'"):
        torch.Size(["a"])
    with pytest.raises(TypeError, match="can only concatenate tuple"):
        s + [1]


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.float16, "finfo(resolution=0.001, min=-65504, max=65504, eps=0.000976562, smallest_normal=6.10352e-05, tiny=6.10352e-05, dtype=float16)"),
        (torch.bfloat16, "finfo(resolution=0.01, min=-3.38953e+38, max=3.38953e+38, eps=0.0078125, smallest_normal=1.17549e-38, tiny=1.17549e-38, dtype=bfloat16)"),
        (torch.float64, "finfo(resolution=1e-15, min=-1.79769e+308, max=1.79769e+308, eps=2.22045e-16, smallest_normal=2.22507e-308, tiny=2.22507e-308, dtype=float64)"),
    ],
)
def test_limits_of_floats(dtype, text):
    assert repr(torch.finfo(dtype)) == text


def test_limits_of_integers():
    assert repr(torch.iinfo(torch.int8)) == "iinfo(min=-128, max=127, dtype=int8)"
    assert (torch.iinfo(torch.uint8).max, torch.iinfo(torch.int64).min) == (255, -(2**63))
    with pytest.raises(TypeError):
        torch.iinfo(torch.float32)
    with pytest.raises(TypeError):
        torch.finfo(torch.int8)


def test_promotion():
    assert torch.result_type(torch.tensor([1]), 2.0) == torch.float32
    assert torch.result_type(torch.tensor([1.0]), torch.tensor(1.0, dtype=torch.float64)) == torch.float32
    assert torch.promote_types(torch.int8, torch.uint8) == torch.int16
    assert not torch.can_cast(torch.float32, torch.int8)


def test_the_default_dtype_is_floating_point():
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.tensor([1.5]).dtype == torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(TypeError, match="only floating-point types are supported as the default type"):
        torch.set_default_dtype(torch.int8)
