"""Names that programs written for torch ask of the package: legacy classes, flags of libraries, small questions."""

from __future__ import annotations

import importlib
import warnings

import pytest
import stowgrad as torch


def test_every_name_that_the_package_lists_is_there():
    for name in dir(torch):
        if name != "linalg":
            getattr(torch, name)


@pytest.mark.parametrize(
    "name, dtype", [("FloatTensor", torch.float32), ("LongTensor", torch.int64), ("BoolTensor", torch.bool)]
)
def test_a_legacy_class_makes_and_recognises_tensors_of_its_dtype(name, dtype):
    kind = getattr(torch, name)
    assert kind().shape == (0,)
    assert kind(2, 3).shape == (2, 3)
    made = kind([1, 0])
    assert made.dtype is dtype
    assert isinstance(made, kind)
    assert not isinstance(torch.ones(1, dtype=torch.int16), kind)
    assert type(made) is torch.Tensor


def test_shapes_broadcast_without_tensors():
    assert torch.broadcast_shapes((2, 1), 3, ()) == (2, 3)
    assert torch.broadcast_shapes((0, 1), (1, 4)) == (0, 4)
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        torch.broadcast_shapes((2,), (3,))
    with pytest.raises(RuntimeError, match="negative"):
        torch.broadcast_shapes((-1,))


def test_one_element_is_zero_or_not_and_several_are_an_error():
    assert torch.is_nonzero(torch.tensor([[-0.5]]))
    assert not torch.is_nonzero(torch.tensor(False))
    for several in (torch.ones(2), torch.ones(0)):
        with pytest.raises(RuntimeError, match="ambiguous"):
            torch.is_nonzero(several)


def test_the_default_dtype_follows_a_legacy_class():
    was = torch.get_default_dtype()
    try:
        torch.set_default_tensor_type(torch.DoubleTensor)
        assert torch.ones(1).dtype is torch.float64
        torch.set_default_tensor_type("torch.FloatTensor")
        assert torch.ones(1).dtype is torch.float32
        for wrong in (torch.LongTensor, "torch.cuda.FloatTensor", int):
            with pytest.raises(TypeError):
                torch.set_default_tensor_type(wrong)
    finally:
        torch.set_default_dtype(was)


def test_compile_gives_the_function_back_and_autocast_casts_nothing():
    def f(x):
        return x @ x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.compile(f) is f
        assert torch.compile()(f) is f
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert f(torch.ones(2, 2)).dtype is torch.float32
    assert not torch.compiler.is_compiling()


def test_libraries_that_are_not_there_say_so():
    for name in ("cudnn", "mkl", "mps", "openmp"):
        assert not importlib.import_module(f"stowgrad.backends.{name}").is_available()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark = False
    assert not torch.distributed.is_available()
    with pytest.raises(RuntimeError, match="TorchScript"):
        torch.jit.script(len)


def test_special_functions_are_the_cores_with_derivatives():
    x = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    for f in (torch.special.expit, torch.special.entr, torch.special.ndtr, torch.special.ndtri):
        assert torch.autograd.gradcheck(f, (x,))
    assert torch.allclose(torch.special.ndtri(torch.special.ndtr(x)), x)
    zero = torch.special.xlog1py(torch.zeros(1), torch.tensor([-1.0]))
    assert zero.tolist() == [0.0]
