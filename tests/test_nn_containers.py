"""Containers behave as the lists and dicts they are named after, and register what they hold."""

from collections import OrderedDict

import pytest
import stowgrad as torch
from stowgrad import nn


def kinds(modules):
    return [type(m).__name__ for m in modules]


def test_a_sequence_calls_its_modules_in_turn():
    m = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = torch.randn(4, 2)
    assert torch.equal(m(x), m[2](m[1](m[0](x))))
    assert nn.Sequential()(3) == 3


def test_a_sequence_edits_as_a_list():
    s = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid())
    assert (len(s), kinds(s), kinds(s[1:])) == (3, ["ReLU", "Tanh", "Sigmoid"], ["Tanh", "Sigmoid"])
    s[-1] = nn.ELU()
    del s[1]
    s.append(nn.ReLU())
    s.insert(0, nn.GELU())
    s.extend([nn.Mish()])
    assert kinds(s) == ["GELU", "ReLU", "ELU", "ReLU", "Mish"]
    assert list(s._modules) == ["0", "1", "2", "3", "4"]
    assert isinstance(s.pop(0), nn.GELU)
    del s[2:]
    assert kinds(s + nn.Sequential(nn.Tanh())) == ["ReLU", "ELU", "Tanh"]
    assert kinds(s * 2) == kinds(2 * s) == ["ReLU", "ELU"] * 2
    s += nn.Sequential(nn.Tanh())
    assert len(s) == 3


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("nn.Sequential(1)", TypeError),
        ("nn.Sequential(OrderedDict(a=3))", TypeError),
        ("nn.Sequential()[0]", IndexError),
        ("nn.Sequential() + 3", ValueError),
        ("nn.Sequential(nn.ReLU()) * 0", ValueError),
        ("nn.Sequential(nn.ReLU()) * 1.5", TypeError),
        ("nn.Sequential().insert(9, nn.ReLU())", IndexError),
        ("nn.ModuleList([3])", TypeError),
        ("nn.ModuleList()[0]", IndexError),
        ("nn.ModuleList().extend(3)", TypeError),
        ("nn.ModuleList()(1)", NotImplementedError),
        ("nn.ModuleDict().update(3)", TypeError),
        ("nn.ModuleDict().update([(1,)])", ValueError),
        ("nn.ModuleDict().update([3])", TypeError),
        ("nn.ModuleDict()['a']", KeyError),
        ("nn.ParameterList().extend(torch.ones(2))", TypeError),
        ("nn.ParameterList()[0]", IndexError),
        ("nn.ParameterList()(1)", RuntimeError),
        ("nn.ParameterDict()(1)", RuntimeError),
        ("nn.ParameterDict().update(3)", TypeError),
    ],
)
def test_what_does_not_fit_in_is_refused(expression, error):
    with pytest.raises(error):
        eval(expression, {"nn": nn, "torch": torch, "OrderedDict": OrderedDict})


def test_a_module_list_edits_as_a_list_and_prints_repeats_once():
    layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    layers.append(nn.ReLU()).extend([nn.ReLU()])
    layers.insert(1, nn.GELU())
    layers += [nn.ELU()]
    assert kinds(layers) == ["ReLU", "GELU", "Tanh", "ReLU", "ReLU", "ELU"]
    assert "(3-4): 2 x ReLU()" in repr(layers)
    assert repr(nn.ModuleList()) == "ModuleList()"
    layers[0] = nn.SELU()
    del layers[1:3]
    assert kinds(layers) == ["SELU", "ReLU", "ReLU", "ELU"]
    assert isinstance(layers.pop(-1), nn.ELU)
    assert isinstance(layers[1:], nn.ModuleList)
    assert len(layers + (nn.Tanh(),)) == 4
    assert len(list(nn.ModuleList([nn.Linear(1, 1)] * 2).parameters())) == 2


def test_a_module_dict_keeps_order():
    d = nn.ModuleDict({"b": nn.ReLU(), "a": nn.Tanh()})
    d["c"] = nn.ELU()
    d.update([("d", nn.GELU())])
    d.update(nn.ModuleDict({"e": nn.ReLU()}))
    assert list(d) == list(d.keys()) == ["b", "a", "c", "d", "e"]
    assert "a" in d
    assert isinstance(d.pop("a"), nn.Tanh)
    del d["b"]
    assert kinds(d.values()) == ["ELU", "GELU", "ReLU"]
    d.clear()
    assert len(d) == 0


def test_a_parameter_list_makes_tensors_parameters_and_keeps_the_rest():
    p = nn.ParameterList([torch.ones(1), torch.ones(2)])
    p.append(torch.ones(3))
    p += [nn.Parameter(torch.ones(4)), 5]
    assert [type(v).__name__ for v in p] == ["Parameter"] * 4 + ["int"]
    assert list(p.state_dict()) == ["0", "1", "2", "3"]
    p[0] = torch.zeros(1)
    assert p[0].tolist() == [0.0]
    assert len(p[1:3]) == 2
    assert repr(p[:1]) == "ParameterList(  (0): Parameter containing: [torch.float32 of size 1])"


def test_a_parameter_dict_behaves_as_a_dict():
    q = nn.ParameterDict({"b": torch.ones(2, 3), "a": 4})
    q["z"] = torch.ones(1)
    assert list(q) == ["a", "b", "z"]
    assert [n for n, _ in q.named_parameters()] == ["b", "z"]
    assert q.pop("a") == 4
    assert q.get("no", 7) == 7
    assert q.setdefault("n", 8) == 8
    assert list((q | nn.ParameterDict({"y": torch.ones(1)})).keys()) == ["b", "z", "n", "y"]
    assert q.popitem() == ("n", 8)
    assert list(reversed(q)) == ["z", "b"]
    assert list(q.copy()) == ["b", "z"]
    q.clear()
    assert len(q) == 0
