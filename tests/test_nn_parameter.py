"""A Parameter is a leaf that shares the memory it was made of, and gives plain tensors."""

import copy
import pickle

import pytest
import stowgrad as torch
from stowgrad import nn


def test_a_parameter_shares_memory_and_its_operations_are_plain():
    t = torch.ones(2)
    p = nn.Parameter(t)
    assert p.data_ptr() == t.data_ptr()
    assert p.is_leaf
    assert p.requires_grad
    assert isinstance(p, torch.Tensor)
    assert {type(v) for v in (p * 2, p.detach(), p.data, p[0], p.clone())} == {torch.Tensor}
    assert not isinstance(t, nn.Parameter)


def test_a_parameter_prints_as_one():
    assert repr(nn.Parameter(torch.ones(2))) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    assert repr(nn.Parameter()) == "Parameter containing:\ntensor([], requires_grad=True)"


def test_integers_cannot_have_a_gradient():
    with pytest.raises(RuntimeError):
        nn.Parameter(torch.ones(2, dtype=torch.int64))
    assert not nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False).requires_grad
    with pytest.raises(TypeError):
        nn.Parameter(3)


def test_a_subclass_stays_of_its_class_and_counts_as_a_parameter():
    class Marked(torch.Tensor):
        pass

    p = nn.Parameter(torch.ones(1).as_subclass(Marked))
    assert type(p) is Marked
    assert isinstance(p, nn.Parameter)
    assert p.requires_grad
    m = nn.Module()
    m.p = p
    assert list(m._parameters) == ["p"]


def test_copies_and_pickles_are_parameters_with_the_same_flags():
    p = nn.Parameter(torch.ones(2), requires_grad=False)
    p.note = "kept"
    for other in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert type(other) is nn.Parameter
        assert not other.requires_grad
        assert other.data_ptr() != p.data_ptr()
    assert pickle.loads(pickle.dumps(p)).note == "kept"
    memo = {}
    assert copy.deepcopy([p, p], memo)[0] is copy.deepcopy(p, memo)


def test_a_buffer_is_a_plain_tensor_that_says_how_it_is_saved():
    t = torch.ones(2)
    b = nn.Buffer(t, persistent=False)
    assert type(b) is torch.Tensor
    assert b.data_ptr() == t.data_ptr()
    assert not b.persistent
    assert isinstance(b, nn.Buffer)
    assert not isinstance(t, nn.Buffer)
