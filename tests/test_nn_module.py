"""A module is a tree of parameters, buffers and submodules, walked, converted, copied and printed as in torch."""

import copy
import pickle
from collections import OrderedDict

import pytest
import stowgrad as torch
from stowgrad import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("b", torch.zeros(1))
        self.register_buffer("t", torch.zeros(1), persistent=False)
        self.register_buffer("none", None)
        self.register_parameter("absent", None)
        self.sub = nn.Linear(1, 1)


def tree():
    shared = nn.Linear(1, 1)
    root = nn.Sequential(OrderedDict(a=shared, b=nn.Sequential(shared, nn.BatchNorm1d(1)), c=nn.Module()))
    root.c.w = shared.weight
    return root


# ---- assigning ----


def test_a_parameter_stands_in_one_table_wherever_it_is_assigned():
    m = nn.Module()
    m.x = 1
    m.x = nn.Parameter(torch.ones(1))
    assert "x" not in m.__dict__
    assert list(m._parameters) == ["x"]
    m.x = None
    assert m.x is None
    assert list(m._parameters) == ["x"]
    del m.x
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        _ = m.x


def test_what_may_not_stand_under_a_name_is_refused_and_leaves_it():
    m = Pair()
    for name, value in (("w", torch.ones(2)), ("sub", 3), ("b", "x")):
        before = getattr(m, name)
        with pytest.raises(TypeError, match=f"cannot assign .* '{name}'"):
            setattr(m, name, value)
        assert getattr(m, name) is before


@pytest.mark.parametrize("register", ["register_buffer", "register_parameter", "add_module", "register_module"])
@pytest.mark.parametrize(("name", "error"), [("a.b", KeyError), ("", KeyError), (3, TypeError), ("training", KeyError)])
def test_a_name_that_cannot_be_a_path_is_refused(register, name, error):
    with pytest.raises(error):
        getattr(nn.Module(), register)(name, None)


@pytest.mark.parametrize("value", [3, torch.ones(1)])
def test_only_parameters_are_registered_as_parameters(value):
    with pytest.raises(TypeError, match=r"torch\.nn\.Parameter or None"):
        nn.Module().register_parameter("p", value)


def test_a_computed_value_cannot_be_a_parameter():
    class Marked(torch.Tensor):
        pass

    p = nn.Parameter(torch.ones(1))
    doubled = (p * 2).as_subclass(Marked)
    doubled._is_param = True
    with pytest.raises(ValueError, match="non-leaf"):
        nn.Module().register_parameter("p", doubled)


def test_nothing_can_be_registered_before_init():
    class Parameters(nn.Module):
        def __init__(self):
            self.x = nn.Parameter(torch.ones(1))

    class Modules(nn.Module):
        def __init__(self):
            self.x = nn.ReLU()

    class Buffers(nn.Module):
        def __init__(self):
            self.register_buffer("x", None)

    class Numbers(nn.Module):
        def __init__(self):
            self.x = 3
            super().__init__()

    for cls in (Parameters, Modules, Buffers):
        with pytest.raises(AttributeError, match=r"before Module\.__init__"):
            cls()
    assert Numbers().x == 3


def test_a_buffer_that_is_assigned_keeps_how_it_is_saved():
    m = Pair()
    m.t = torch.ones(2)
    assert "t" not in m.state_dict()
    m.c = nn.Buffer(torch.ones(3), persistent=False)
    assert [n for n, _ in m.named_buffers()] == ["b", "t", "c"]
    assert "c" not in m.state_dict()
    m.register_buffer("c", torch.ones(3))
    assert "c" in m.state_dict()


def test_init_takes_no_arguments_unless_the_class_says_so():
    with pytest.raises(TypeError, match="positional"):
        nn.Module(3)
    with pytest.raises(TypeError, match="keyword"):
        nn.Module(x=3)

    class Other:
        def __init__(self, x):
            self.x = x

    class Both(nn.Module, Other):
        call_super_init = True

    assert Both(x=3).x == 3


def test_an_attribute_error_inside_a_property_names_what_was_missing():
    class P(nn.Module):
        @property
        def foo(self):
            return self.missing

    with pytest.raises(AttributeError, match=r"foo|missing"):
        _ = P().foo


# ---- walking ----


def test_shared_members_come_once_unless_asked():
    m = tree()
    assert [n for n, _ in m.named_parameters()] == ["a.weight", "a.bias", "b.1.weight", "b.1.bias"]
    every = [n for n, _ in m.named_parameters(remove_duplicate=False)]
    assert every == ["a.weight", "a.bias", "b.0.weight", "b.0.bias", "b.1.weight", "b.1.bias", "c.w"]
    assert [n for n, _ in m.named_modules()] == ["", "a", "b", "b.1", "c"]
    assert [n for n, _ in m.named_modules(prefix="q", remove_duplicate=False)][2:4] == ["q.b", "q.b.0"]
    assert [n for n, _ in m.named_buffers()] == ["b.1.running_mean", "b.1.running_var", "b.1.num_batches_tracked"]
    assert [n for n, _ in m.named_children()] == ["a", "b", "c"]
    assert list(m.named_parameters(recurse=False)) == []
    assert [n for n, _ in Pair().named_parameters(prefix="p", recurse=False)] == ["p.w"]


def test_paths_lead_to_members_and_say_where_they_end():
    m = tree()
    assert isinstance(m.get_submodule("b.1"), nn.BatchNorm1d)
    assert m.get_submodule("") is m
    assert m.get_parameter("b.0.weight") is m.a.weight
    assert m.get_buffer("b.1.running_mean") is m.b[1].running_mean
    for get, path in (
        (m.get_submodule, "b.7"),
        (m.get_submodule, "b.training"),
        (m.get_parameter, "b.0.x"),
        (m.get_parameter, "b.1.running_mean"),
        (m.get_buffer, "b.1.weight"),
    ):
        with pytest.raises(AttributeError):
            get(path)
    m.set_submodule("b.1", nn.Identity())
    m.set_submodule("b.new", nn.ReLU())
    assert list(m.b._modules) == ["0", "1", "new"]
    with pytest.raises(ValueError, match="empty"):
        m.set_submodule("", nn.ReLU())
    with pytest.raises(AttributeError):
        m.set_submodule("b.other", nn.ReLU(), strict=True)


def test_modes_and_functions_reach_every_module():
    m = tree()
    m.eval()
    assert [x.training for x in m.modules()] == [False] * 5
    assert m.train() is m
    assert all(x.training for x in m.modules())
    with pytest.raises(ValueError, match="boolean"):
        m.train("yes")
    seen = []
    m.apply(lambda x: seen.append(type(x).__name__))
    assert seen == ["Linear", "Linear", "BatchNorm1d", "Sequential", "Module", "Sequential"]
    m.requires_grad_(False)
    assert not any(p.requires_grad for p in m.parameters())


def test_dir_lists_members():
    assert {"w", "b", "sub", "forward", "training"} <= set(dir(Pair()))


# ---- converting ----


def test_a_cast_keeps_the_identity_of_parameters_and_casts_their_gradients():
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = list(m.parameters())
    m(torch.ones(3, 2)).sum().backward()
    m.double()
    assert all(a is b for a, b in zip(before, m.parameters(), strict=True))
    assert {p.dtype for p in m.parameters()} == {p.grad.dtype for p in m.parameters()} == {torch.float64}
    assert m[1].num_batches_tracked.dtype == torch.int64
    for cast, dtype in ((m.half, torch.float16), (m.bfloat16, torch.bfloat16), (m.float, torch.float32)):
        assert cast() is m
        assert m[0].weight.dtype == dtype


@pytest.mark.parametrize(
    "arguments",
    ["(torch.float64)", "('cpu', torch.float64)", "(torch.ones(1, dtype=torch.float64))", "(dtype=torch.float64)"],
)
def test_to_takes_a_dtype_in_every_way(arguments):
    m = eval("nn.Linear(1, 1).to" + arguments, {"nn": nn, "torch": torch})
    assert m.weight.dtype == torch.float64


def test_to_refuses_what_cannot_hold_a_gradient():
    with pytest.raises(TypeError, match="floating point"):
        nn.Linear(1, 1).to(torch.int32)
    with pytest.raises(TypeError):
        nn.Linear(1, 1).to(foo=1)


def test_zero_grad_drops_gradients_or_fills_them():
    m = nn.Linear(2, 2)
    m(torch.ones(1, 2)).sum().backward()
    kept = m.weight.grad
    m.zero_grad(set_to_none=False)
    assert m.weight.grad is kept
    assert not kept.any()
    m.zero_grad()
    assert [p.grad for p in m.parameters()] == [None, None]


# ---- copying and printing ----


def test_a_deep_copy_shares_nothing_and_keeps_what_was_shared():
    layer = nn.Linear(2, 2)
    m = nn.Sequential(layer, layer)
    c = copy.deepcopy(m)
    assert c[0] is c[1]
    assert c[0].weight is not layer.weight
    assert isinstance(c[0].weight, nn.Parameter)
    assert torch.equal(c[0].weight, layer.weight)
    assert copy.copy(m)[0] is layer


def test_a_module_pickles_with_its_parameters():
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2)).eval()
    back = pickle.loads(pickle.dumps(m))
    assert repr(back) == repr(m)
    assert torch.equal(back[0].weight, m[0].weight)
    assert isinstance(back[0].weight, nn.Parameter)
    assert not back.training


def test_a_module_pickled_without_newer_tables_still_works():
    old = {k: v for k, v in nn.Linear(1, 1).__dict__.items() if "hook" not in k or k == "_forward_hooks"}
    m = nn.Linear.__new__(nn.Linear)
    m.__setstate__(old)
    assert m(torch.ones(1, 1)).shape == (1, 1)
    assert list(m.state_dict()) == ["weight", "bias"]


def test_nested_modules_print_indented():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.ReLU())

        def extra_repr(self):
            return "first\nsecond"

    assert repr(Two()) == "Two(\n  first\n  second\n  (a): Sequential(\n    (0): ReLU()\n  )\n)"


# ---- calling ----


def test_a_call_reaches_forward_with_every_kind_of_argument():
    class Echo(nn.Module):
        def forward(self, *args, **kwargs):
            return args, kwargs

    m = Echo()
    assert m() == ((), {})
    assert m(1) == ((1,), {})
    assert m(None) == ((None,), {})
    assert m(1, 2, k=3) == ((1, 2), {"k": 3})
    assert m(input=1, self_=2) == ((), {"input": 1, "self_": 2})
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        nn.Module()(1)


def test_a_parameter_swapped_for_a_plain_attribute_is_what_a_layer_uses():
    m = nn.Linear(2, 1, bias=False)
    del m.weight
    m.weight = torch.full((1, 2), 3.0)
    assert m(torch.ones(1, 2)).item() == 6.0
