"""State dicts: what is in them, what loading does, and that everything wrong is said at once."""

from collections import OrderedDict

import pytest
import stowgrad as torch
from stowgrad import nn


class Whole(nn.Module):
    """A parameter, buffers of both kinds, a submodule and extra state."""

    _version = 3

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("b", torch.zeros(1))
        self.register_buffer("t", torch.zeros(1), persistent=False)
        self.register_buffer("none", None)
        self.sub = nn.Linear(1, 1)
        self.loaded = []

    def get_extra_state(self):
        return {"e": 1}

    def set_extra_state(self, state):
        self.loaded.append(state)


def test_a_state_dict_lists_parameters_then_buffers_then_extra_state_then_submodules():
    m = Whole()
    sd = m.state_dict()
    assert isinstance(sd, OrderedDict)
    assert list(sd) == ["w", "b", "_extra_state", "sub.weight", "sub.bias"]
    assert dict(sd._metadata) == {"": {"version": 3}, "sub": {"version": 1}}
    assert next(iter(m.state_dict(prefix="x."))) == "x.w"


def test_values_share_memory_and_are_detached_unless_asked():
    m = Whole()
    sd = m.state_dict()
    assert type(sd["w"]) is torch.Tensor
    assert not sd["w"].requires_grad
    assert m.state_dict(keep_vars=True)["w"] is m.w
    sd["w"].fill_(7)
    assert m.w.tolist() == [7.0, 7.0]


def test_loading_copies_into_the_same_parameters():
    m, other = Whole(), Whole()
    with torch.no_grad():
        m.w.fill_(5)
        m.sub.weight.fill_(6)
    w = other.w
    assert repr(other.load_state_dict(m.state_dict())) == "<All keys matched successfully>"
    assert other.w is w
    assert (w.tolist(), other.sub.weight.item()) == ([5.0, 5.0], 6.0)
    assert other.loaded == [{"e": 1}]


def test_assigning_puts_the_given_tensors_in_place():
    m, other = Whole(), Whole()
    sd = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in m.state_dict().items()}
    other.load_state_dict(sd, assign=True)
    assert isinstance(other.w, nn.Parameter)
    assert other.w.requires_grad
    assert other.w.data_ptr() == sd["w"].data_ptr()
    assert other.b is sd["b"]


def test_everything_wrong_is_said_in_one_error():
    m = Whole()
    sd = OrderedDict(m.state_dict())
    del sd["b"], sd["_extra_state"]
    sd["w"] = torch.ones(3)
    sd["sub.weight"] = "text"
    sd["more"] = sd["sub.more"] = sd["sub.deep.er"] = torch.ones(1)
    with pytest.raises(RuntimeError) as caught:
        m.load_state_dict(sd)
    for phrase in (
        "Error(s) in loading state_dict for Whole",
        'Missing key(s) in state_dict: "b", "_extra_state"',
        'Unexpected key(s) in state_dict: "more", "sub.more", "sub.deep.er"',
        "size mismatch for w",
        'While copying the parameter named "sub.weight"',
    ):
        assert phrase in str(caught.value)


def test_loading_that_is_not_strict_reports_keys_and_still_refuses_shapes():
    m = Whole()
    sd = OrderedDict(m.state_dict())
    del sd["b"]
    sd["more"] = torch.ones(1)
    missing, unexpected = m.load_state_dict(sd, strict=False)
    assert (missing, unexpected) == (["b"], ["more"])
    sd["w"] = torch.ones(3)
    with pytest.raises(RuntimeError, match="size mismatch"):
        m.load_state_dict(sd, strict=False)
    with pytest.raises(TypeError, match="dict-like"):
        m.load_state_dict([1])


def test_hooks_run_before_and_after_saving():
    m, log = Whole(), []
    m.register_state_dict_pre_hook(lambda m, prefix, keep: log.append(("pre", prefix, keep)))
    m.register_state_dict_post_hook(lambda m, sd, prefix, meta: sd.update(z=torch.ones(1)))
    m.sub._register_state_dict_hook(lambda m, sd, prefix, meta: log.append((prefix, meta)))
    assert "z" in m.state_dict()
    assert log == [("pre", "", False), ("sub.", {"version": 1})]
    m.register_state_dict_post_hook(lambda m, sd, prefix, meta: sd)
    with pytest.raises(RuntimeError, match="must return None"):
        m.state_dict()


def test_hooks_run_before_and_after_loading():
    m, log = Whole(), []
    sd = m.state_dict()
    m.sub.register_load_state_dict_pre_hook(lambda m, sd, prefix, *rest: log.append((type(m).__name__, prefix)))
    m.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    m.register_load_state_dict_post_hook(lambda m, keys: log.append("post"))
    del sd["b"]
    assert m.load_state_dict(sd).missing_keys == []
    assert log == [("Linear", "sub."), "post"]


def test_a_number_loads_from_a_vector_of_one():
    m = nn.Module()
    m.n = nn.Parameter(torch.tensor(1.0))
    m.load_state_dict({"n": torch.tensor([4.0])})
    assert m.n.item() == 4.0


def test_extra_state_must_be_readable_where_it_is_writable():
    class Half(nn.Module):
        def get_extra_state(self):
            return 1

    sd = Half().state_dict()
    with pytest.raises(RuntimeError, match="_extra_state"):
        Half().load_state_dict(sd)
