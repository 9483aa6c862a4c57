"""Every op is called as torch's is: names and places of arguments, overloads, errors, `out=`, subclasses."""

import inspect
import pickle

import numpy as np
import pytest
import stowgrad as torch
from stowgrad import _C


def refused(call, kind=TypeError):
    with pytest.raises(kind) as e:
        call()
    return str(e.value)


x = torch.tensor([1.0, 2.0])


def test_arguments_are_found_under_torchs_names_and_numpys():
    m = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = [[3.0], [7.0]]
    for r in (m.sum(1, True), m.sum(dim=1, keepdim=True), m.sum(axis=1, keepdims=True), torch.sum(input=m, dim=(1,), keepdim=True)):
        assert r.tolist() == expected
    assert torch.add(x=x, x2=x).tolist() == torch.add(input=x, other=x).tolist() == [2.0, 4.0]


def test_sizes_are_taken_apart_or_together():
    m = torch.arange(6)
    for r in (m.view(2, 3), m.view((2, 3)), m.view([2, 3]), m.view(torch.Size([2, 3])), m.view(size=(2, 3))):
        assert r.shape == (2, 3)
    assert m.view(torch.tensor(2), 3).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: torch.add(x, "a"), "add(): argument 'other' (position 2) must be Tensor, not str"),
        (lambda: x.add("a"), "add(): argument 'other' (position 1) must be Tensor, not str"),
        (lambda: x.mm(mat2=3), "mm(): argument 'mat2' must be Tensor, not int"),
        (lambda: torch.sigmoid(), 'sigmoid() missing 1 required positional arguments: "input"'),
        (lambda: torch.sigmoid(x, x), "sigmoid() takes 1 positional argument but 2 were given"),
        (lambda: torch.mul(x, x, foo=1), "mul() got an unexpected keyword argument 'foo'"),
        (lambda: torch.mul(x, x, input=x), "mul() got multiple values for argument 'input'"),
        (lambda: x.permute(0.5), "permute(): argument 'dims' (position 1) must be tuple of ints, not float"),
        (lambda: x.permute((0.5,)), "permute(): argument 'dims' (position 1) must be tuple of ints, but found element of type float at pos 0"),
        (lambda: torch.cat([x, 1]), "cat(): argument 'tensors' (position 1) must be tuple of Tensors, but found element of type int at pos 1"),
        (lambda: torch.zeros(2, dtype="float"), "zeros(): argument 'dtype' must be torch.dtype, not str"),
    ],
)
def test_a_wrong_argument_is_named_with_its_place_and_type(call, text):
    assert refused(call) == text


def test_a_call_that_fits_no_overload_lists_them():
    text = refused(lambda: torch.sum(x, dim="a"))
    assert text.startswith("sum() received an invalid combination of arguments - got (Tensor, dim=str), but expected one of:\n * (Tensor input")
    assert text.count("\n * ") >= 2


def test_an_overload_for_tensors_comes_before_one_for_numbers():
    r = torch.tensor([1.0, 2.0], requires_grad=True)
    assert (r ** torch.tensor(2.0)).grad_fn.name() == "PowBackward1"
    assert (r**2).grad_fn.name() == "PowBackward0"


def test_in_place_names_are_methods_and_functions():
    y = x.clone()
    assert torch.relu_(y) is y
    assert y.mul_(2) is y
    assert y.tolist() == [2.0, 4.0]
    assert y.pow_(2).tolist() == [4.0, 16.0]


def test_out_is_written_resized_and_given_back():
    out = torch.empty(4)
    assert torch.cat([x, x], out=out) is out
    assert out.tolist() == [1.0, 2.0, 1.0, 2.0]
    small = torch.empty(0)
    torch.mul(x, x, out=small)
    assert small.tolist() == [1.0, 4.0]
    with pytest.warns(UserWarning, match="resized"):
        torch.mul(x, x, out=torch.ones(3))
    r = torch.ones(2, requires_grad=True)
    assert "out=" in refused(lambda: torch.mul(r, r, out=torch.empty(2)), RuntimeError)
    assert "can't be cast" in refused(lambda: torch.cat([x, x], out=torch.ones(4, dtype=torch.int64)), RuntimeError)
    values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.max(torch.tensor([[1.0, 5.0]]), 1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([5.0], [1])


def test_several_results_are_a_named_tuple():
    r = torch.tensor([[1.0, 5.0], [4.0, 2.0]]).max(1)
    assert (r.values.tolist(), r.indices.tolist()) == ([5.0, 4.0], [1, 0])
    assert repr(r) == "torch.return_types.max(\nvalues=tensor([5., 4.]),\nindices=tensor([1, 0]))"
    assert isinstance(r, tuple)


def test_builtins_have_signatures_and_docs():
    assert str(inspect.signature(torch.add)) == "(input, other, *, alpha=1, out=None)"
    assert str(inspect.signature(torch.Tensor.add)) == "(self, /, other, *, alpha=1)"
    assert "Elementwise sum" in torch.add.__doc__


def test_operators_take_numbers_from_either_side():
    assert (2 - x).tolist() == [1.0, 0.0]
    assert (2 / x).tolist() == [2.0, 1.0]
    assert (5 // x).tolist() == [5.0, 2.0]
    assert (5 % torch.tensor([3, 4])).tolist() == [2, 1]
    assert (2**x).tolist() == [2.0, 4.0]
    assert (1 << torch.tensor([1, 2])).tolist() == [2, 4]
    assert (3 & torch.tensor([1, 6])).tolist() == [1, 2]
    y = x.clone()
    y += 1
    y *= y
    y -= 1
    y /= 2
    assert y.tolist() == [1.5, 4.0]


def test_a_comparison_with_what_is_no_operand_is_pythons():
    assert (x == "a") is False
    assert (x != None) is True  # noqa: E711 - the operator is what is tested
    refused(lambda: x < "a")
    refused(lambda: x + "a")


class Plain(torch.Tensor):
    pass


def test_results_on_a_subclass_are_of_that_subclass():
    p = x.as_subclass(Plain)
    results = [p * 2, 2 - p, x + p, p.mul(p), torch.cat([x, p]), -p, p[0], p.sum(), p == p, *p.unbind(), p.view(2, 1)]
    assert {type(r) for r in results} == {Plain}
    assert type(x * x) is torch.Tensor
    same = p
    p += 1
    assert p is same
    x.sub_(1)


def test_a_parameter_gives_plain_tensors():
    p = torch.nn.Parameter(torch.ones(2))
    assert {type(r) for r in (p * 2, p.sum(), p[0], torch.add(p, p), p.detach())} == {torch.Tensor}


def test_a_class_may_intercept():
    seen = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append((func, types, len(args), kwargs))
            return super().__torch_function__(func, types, args, kwargs or {})

    t = torch.ones(2).as_subclass(Loud)
    r = torch.add(x, t, alpha=2)
    assert type(r) is Loud
    assert seen == [(torch.add, (Loud,), 2, {"alpha": 2})]
    seen.clear()
    assert type(t * 3) is Loud
    t.sum()
    t[0]
    assert [f for f, *_ in seen] == [torch.Tensor.mul, torch.Tensor.sum, torch.Tensor.__getitem__]
    seen.clear()
    with _C.DisableTorchFunctionSubclass():
        assert type(t * 3) is torch.Tensor
    assert not seen


def test_an_object_that_is_no_tensor_may_intercept():
    class Duck:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return f"duck {func.__name__}"

    assert torch.add(x, Duck()) == "duck add"
    assert torch.cat([x, Duck()]) == "duck cat"


def test_a_constructor_of_a_subclass_runs_once_and_keeps_its_attributes():
    class Tagged(torch.Tensor):
        def __new__(cls, data, tag):
            return super().__new__(cls, data)

        def __init__(self, data, tag):
            self.tag = tag

    t = Tagged([1.0, 2.0], "a")
    assert (type(t), t.tag, t.tolist()) == (Tagged, "a", [1.0, 2.0])
    made = torch.Tensor._make_subclass(Tagged, torch.ones(2), True)
    assert (type(made), made.requires_grad, made.is_leaf) == (Tagged, True, True)


def test_sizes_and_dtypes_are_pickled_by_name():
    for v in (torch.Size([2, 3]), torch.float32, torch.device("cuda", 1), torch.strided, torch.contiguous_format):
        assert pickle.loads(pickle.dumps(v)) == v


def test_arrays_are_compared_as_tensors():
    t, a = torch.tensor([1.0, 2.0]), np.array([1.0, 3.0])
    assert (t == a).tolist() == [True, False]
    assert (t != a).tolist() == [False, True]
    assert (t < a).tolist() == [False, True]
    assert (t >= a).tolist() == [True, False]
    assert (a == t).tolist() == [True, False]
    assert (torch.tensor(2) == np.array(2)).item() is True
    assert (t == "text") is False


def test_a_resize_to_the_same_size_is_no_write():
    t = torch.ones(3, requires_grad=True)
    h = t * 2
    y = h * h
    h.detach().resize_(3)
    y.sum().backward()
    assert t.grad.tolist() == [8.0] * 3
