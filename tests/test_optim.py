"""Optimizers move parameters as torch's do, in place, and remember as torch does.

The paths were recorded from torch 2.13 (data/optim.json).
"""

import copy
import json
import math
import pathlib
import pickle
import warnings

import numpy as np
import pytest
import stowgrad as torch
from stowgrad import optim
from stowgrad.optim import optimizer as hooks

FACTS = json.loads((pathlib.Path(__file__).parent / "data" / "optim.json").read_text())
RULES = [
    "SGD(ps, lr=0.1)",
    "SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)",
    "Adam(ps, lr=0.1, amsgrad=True)",
    "AdamW(ps, lr=0.1)",
    "RMSprop(ps, lr=0.1, momentum=0.5, centered=True)",
    "Adagrad(ps, lr=0.1)",
    "Adadelta(ps)",
    "Adamax(ps)",
    "NAdam(ps)",
    "RAdam(ps)",
    "ASGD(ps)",
    "Rprop(ps)",
]


def filling(n, phase=0.0):
    return [-2.0 + 4.0 * ((math.sin(12.9898 * (i + 1 + phase) + 78.233) * 43758.5453) % 1.0) for i in range(n)]


def two(dtype=torch.float64):
    shaped = torch.tensor(filling(6), dtype=dtype).reshape(3, 2).requires_grad_()
    return [shaped, torch.tensor(filling(4, phase=3), dtype=dtype).requires_grad_()]


def descend(opt, ps):
    opt.zero_grad()
    (ps[0].exp().sum() * 0.1 + (ps[1] ** 4).sum() * 0.05 + (ps[0].sum() * ps[1].sum()) * 0.02).backward()
    opt.step()


def made(rule, ps):
    return eval("optim." + rule, {"optim": optim, "ps": ps})


# ---- rules ----


@pytest.mark.parametrize("rule", FACTS["optimizers"])
def test_rule_follows_the_recorded_path(rule):
    ps = two()
    opt = made(rule, ps)
    for state in FACTS["optimizers"][rule]:
        descend(opt, ps)
        for p, want in zip(ps, state, strict=True):
            assert np.allclose(p.detach().flatten().tolist(), want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_the_fused_step_is_the_composed_one(name, monkeypatch):
    module = __import__(f"stowgrad.optim.{name.lower()}", fromlist=[name])
    if module._fused is None:
        pytest.skip("this build has no fused step")
    rules = {
        "SGD": ["SGD(ps, 0.1)", "SGD(ps, 0.1, 0.9, 0.3, 0.1, maximize=True)", "SGD(ps, 0.1, 0.9, nesterov=True)"],
        "Adam": [
            "Adam(ps, 0.1)",
            "Adam(ps, 0.1, (0.5, 0.6), 1e-3, 0.1, True, maximize=True)",
            "AdamW(ps, 0.1, weight_decay=0.3)",
        ],
    }[name]
    for rule in rules:
        for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            fused, composed = two(dtype), two(dtype)
            a = made(rule, fused)
            for _ in range(4):
                descend(a, fused)
            with monkeypatch.context() as m:
                m.setattr(module, "_fused", None)
                b = made(rule, composed)
                for _ in range(4):
                    descend(b, composed)
            for p, q in zip(fused, composed, strict=True):
                assert np.allclose(p.detach().tolist(), q.detach().tolist(), rtol=close, atol=close), rule


@pytest.mark.parametrize("rule", RULES)
def test_a_step_writes_in_place_and_records_nothing(rule):
    ps = two()
    opt = made(rule, ps)
    where, versions = [p.data_ptr() for p in ps], [p._version for p in ps]
    descend(opt, ps)
    assert [p.data_ptr() for p in ps] == where
    assert all(p._version > v for p, v in zip(ps, versions, strict=True))
    assert all(p.is_leaf and p.requires_grad and p.grad.grad_fn is None for p in ps)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("rule", RULES)
def test_parameters_without_a_gradient_are_left_and_not_remembered(rule):
    ps = [*two(), torch.ones(2, requires_grad=True)]
    opt = made(rule, ps)
    for p in ps[:2]:
        p.grad = torch.ones_like(p)
    opt.step()
    assert ps[2].tolist() == [1.0, 1.0]
    if "Adagrad" not in rule:  # its sums exist from the start
        assert ps[2] not in opt.state


@pytest.mark.parametrize("rule", RULES)
def test_a_state_that_is_saved_and_loaded_goes_on_the_same_way(rule):
    ps = two()
    opt = made(rule, ps)
    for _ in range(3):
        descend(opt, ps)
    others = [p.detach().clone().requires_grad_() for p in ps]
    resumed = made(rule, others)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for _ in range(2):
        descend(opt, ps)
        descend(resumed, others)
    assert all(torch.equal(p, q) for p, q in zip(ps, others, strict=True))


@pytest.mark.parametrize("rule", ["SGD(ps, 0.1, momentum=0.5)", "Adam(ps)", "RMSprop(ps)"])
def test_maximizing_is_minimizing_the_negative(rule):
    ps, others = two(), two()
    up = made(rule[:-1] + ", maximize=True)", ps)
    down = made(rule, others)
    for _ in range(3):
        for p, q in zip(ps, others, strict=True):
            p.grad = p.detach().sin()
            q.grad = -q.detach().sin()
        up.step()
        down.step()
    assert all(torch.allclose(p, q) for p, q in zip(ps, others, strict=True))


def test_a_differentiable_step_can_be_differentiated():
    x = torch.ones(2, requires_grad=True)
    p = x.clone()
    p.grad = x * 3
    optim.SGD([p], 0.1, differentiable=True).step()
    (g,) = torch.autograd.grad(p.sum(), x)
    assert g.tolist() == pytest.approx([0.7, 0.7])


def test_a_rate_that_is_a_tensor_counts_as_its_number():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    a.grad, b.grad = torch.ones(2), torch.ones(2)
    optim.Adam([a], lr=torch.tensor(0.5)).step()
    optim.Adam([b], lr=0.5).step()
    assert torch.equal(a, b)


# ---- the state ----


def test_counts_are_numbers_in_tensors_and_sgd_without_momentum_remembers_nothing():
    ps = two(torch.float32)
    adam = optim.Adam(ps)
    descend(adam, ps)
    state = adam.state_dict()["state"]
    assert sorted(state) == [0, 1]
    assert sorted(state[0]) == ["exp_avg", "exp_avg_sq", "step"]
    assert state[0]["step"].item() == 1.0
    assert state[0]["step"].dtype == torch.float32
    sgd = optim.SGD(ps, 0.1)
    descend(sgd, ps)
    assert sgd.state_dict()["state"] == {}


def test_loaded_values_take_the_dtype_of_the_parameter_and_counts_keep_theirs():
    ps = two(torch.float32)
    opt = optim.Adam(ps)
    descend(opt, ps)
    doubled = [p.detach().double().requires_grad_() for p in ps]
    other = optim.Adam(doubled)
    other.load_state_dict(opt.state_dict())
    assert other.state[doubled[0]]["exp_avg"].dtype == torch.float64
    assert other.state[doubled[0]]["step"].dtype == torch.float32


def test_a_state_dict_names_parameters_by_place_and_keeps_the_options():
    a, b, c = (torch.ones(1, requires_grad=True) for _ in range(3))
    opt = optim.SGD([{"params": [a, b]}, {"params": c, "lr": 0.5}], lr=0.1)
    groups = opt.state_dict()["param_groups"]
    assert [g["params"] for g in groups] == [[0, 1], [2]]
    assert [g["lr"] for g in groups] == [0.1, 0.5]
    assert list(groups[0]) == [
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "maximize",
        "foreach",
        "differentiable",
        "fused",
        "params",
    ]


def test_states_of_other_groups_are_refused():
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    one = optim.SGD([a], 0.1)
    with pytest.raises(ValueError, match="size of optimizer's group"):
        one.load_state_dict(optim.SGD([a, b], 0.1).state_dict())
    with pytest.raises(ValueError, match="number of parameter groups"):
        one.load_state_dict(optim.SGD([{"params": [a]}, {"params": [b]}], 0.1).state_dict())


def test_an_optimizer_pickles_and_copies():
    ps = two()
    opt = optim.Adam(ps)
    descend(opt, ps)
    for other in (pickle.loads(pickle.dumps(opt)), copy.deepcopy(opt)):
        assert repr(other) == repr(opt)
        (p, *_) = other.param_groups[0]["params"]
        assert other.state[p]["step"].item() == 1.0
        p.grad = torch.ones_like(p)
        other.step()


def test_it_prints_its_groups():
    text = repr(optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1))
    assert text.startswith("SGD (\nParameter Group 0\n    dampening: 0\n")
    assert text.endswith("    weight_decay: 0\n)")


# ---- groups ----


def test_a_group_that_is_added_has_its_own_options():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    opt = optim.SGD([a], lr=0.1)
    opt.add_param_group({"params": b, "lr": 0.5})
    a.grad, b.grad = torch.ones(2), torch.ones(2)
    opt.step()
    assert a.tolist() == pytest.approx([0.9, 0.9])
    assert b.tolist() == pytest.approx([0.5, 0.5])


def test_names_come_along_when_they_are_given():
    ps = torch.nn.Linear(1, 1)
    opt = optim.SGD(ps.named_parameters(), lr=0.1)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="names"):
        opt.add_param_group({"params": [torch.ones(1, requires_grad=True)]})


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("SGD([], lr=0.1)", ValueError),
        ("SGD(a, lr=0.1)", TypeError),
        ("SGD([3], lr=0.1)", TypeError),
        ("SGD([a * 2], lr=0.1)", ValueError),
        ("SGD([{'params': {a}}], lr=0.1)", TypeError),
        ("SGD([{'params': [a]}, {'params': [a]}], lr=0.1)", ValueError),
        ("SGD([a], lr=0.1).add_param_group(3)", TypeError),
        ("SGD([a], lr=-1)", ValueError),
        ("SGD([a], lr=0.1, momentum=-1)", ValueError),
        ("SGD([a], lr=0.1, weight_decay=-1)", ValueError),
        ("SGD([a], lr=0.1, nesterov=True)", ValueError),
        ("Adam([a], eps=-1)", ValueError),
        ("Adam([a], betas=(1.0, 0.9))", ValueError),
        ("Adam([a], betas=(0.9, 1.0))", ValueError),
        ("Adam([a], lr=torch.ones(2))", ValueError),
        ("Adam([a], foreach=True, fused=True)", RuntimeError),
        ("Adam([a], fused=True, differentiable=True)", RuntimeError),
        ("Rprop([a], etas=(2, 3))", ValueError),
        ("Adadelta([a], rho=2)", ValueError),
        ("RMSprop([a], alpha=-1)", ValueError),
        ("Adagrad([a], lr_decay=-1)", ValueError),
        ("NAdam([a], momentum_decay=-1)", ValueError),
        ("Optimizer([a], {}).step()", NotImplementedError),
    ],
)
def test_options_that_cannot_be_are_refused(expression, error):
    with pytest.raises(error) as caught:
        eval("optim." + expression, {"optim": optim, "torch": torch, "a": torch.ones(2, requires_grad=True)})
    assert "[a]" in expression or str(caught.value).strip()


# ---- closures, gradients, hooks ----


def test_a_closure_is_called_once_with_gradients_on_and_its_loss_returned():
    a, calls = torch.ones(2, requires_grad=True), []
    opt = optim.SGD([a], lr=0.1)

    def closure():
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        loss = (a**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert opt.step(closure).item() == 2.0
        assert not torch.is_grad_enabled()
    assert calls == [True]
    assert a.tolist() == pytest.approx([0.8, 0.8])


def test_a_step_that_raises_leaves_gradients_on():
    a = torch.ones(2, requires_grad=True)
    opt = optim.SGD([a], lr=0.1)
    a.grad = torch.ones(2)
    opt.param_groups[0]["lr"] = "fast"
    with pytest.raises(Exception):  # noqa: B017 - whichever the arithmetic raises
        opt.step()
    assert torch.is_grad_enabled()


def test_zero_grad_drops_gradients_or_fills_them():
    a = torch.ones(2, requires_grad=True)
    opt = optim.SGD([a], lr=0.1)
    a.grad = kept = torch.ones(2)
    opt.zero_grad(set_to_none=False)
    assert a.grad is kept
    assert kept.tolist() == [0.0, 0.0]
    opt.zero_grad()
    assert a.grad is None


def test_hooks_run_around_a_step_in_order():
    a, log = torch.ones(2, requires_grad=True), []
    a.grad = torch.ones(2)
    opt = optim.SGD([a], lr=0.1)
    handles = [
        opt.register_step_pre_hook(lambda o, args, kwargs: log.append(("pre", args == (o,), kwargs))),
        opt.register_step_post_hook(lambda o, args, kwargs: log.append("post")),
        hooks.register_optimizer_step_pre_hook(lambda o, args, kwargs: log.append("global pre")),
        hooks.register_optimizer_step_post_hook(lambda o, args, kwargs: log.append("global post")),
    ]
    opt.step()
    for h in handles:
        h.remove()
    opt.step()
    assert log == ["global pre", ("pre", True, {}), "post", "global post"]
    opt.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: 5), {}))
    assert opt.step() == 5
    opt.register_step_pre_hook(lambda o, args, kwargs: 3)
    with pytest.raises(RuntimeError, match="None or a tuple"):
        opt.step()


def test_hooks_run_around_saving_and_loading():
    log = []
    opt = optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    opt.register_state_dict_pre_hook(lambda o: log.append("save"))
    opt.register_state_dict_post_hook(lambda o, sd: {**sd, "extra": 1})
    opt.register_load_state_dict_pre_hook(lambda o, sd: log.append(sorted(sd)))
    opt.register_load_state_dict_post_hook(lambda o: log.append("loaded"))
    opt.load_state_dict(opt.state_dict())
    assert log == ["save", ["extra", "param_groups", "state"], "loaded"]


def test_an_optimizer_of_ones_own_gets_hooks_and_groups():
    class Mine(optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1.0})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])
            return "done"

    a, log = torch.ones(2, requires_grad=True), []
    a.grad = torch.ones(2)
    opt = Mine([a])
    opt.register_step_post_hook(lambda *args: log.append(1))
    assert opt.step() == "done"
    assert (a.tolist(), log) == ([0.0, 0.0], [1])


def test_duplicates_in_a_group_warn():
    a = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optim.SGD([a, a], lr=0.1)
    assert "duplicate" in str(caught[0].message)
