"""Schedules set torch's rates (rows recorded from torch 2.13: data/optim.json), alone and together."""

import json
import pathlib
import pickle

import pytest
import stowgrad as torch
from stowgrad import optim
from stowgrad.optim import lr_scheduler

FACTS = json.loads((pathlib.Path(__file__).parent / "data" / "optim.json").read_text())
CLOSED = [
    "StepLR(opt, 2, 0.5)",
    "MultiStepLR(opt, [2, 2, 4], 0.1)",
    "ConstantLR(opt, 0.5, 3)",
    "LinearLR(opt, 0.2, 0.8, 4)",
    "ExponentialLR(opt, 0.9)",
    "PolynomialLR(opt, 40, 2.0)",
    "CosineAnnealingLR(opt, 3, 0.01)",
]


def sgd(lr=0.3, **options):
    return optim.SGD([torch.ones(1, requires_grad=True)], lr=lr, **options)


def made(rule, opt):
    return eval("lr_scheduler." + rule.removeprefix("lr_scheduler."), {"lr_scheduler": lr_scheduler, "opt": opt})


def rates(opt, schedule, epochs):
    seen = []
    for _ in range(epochs):
        seen.append(opt.param_groups[0]["lr"])
        assert schedule.get_last_lr() == [seen[-1]]
        opt.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("rule", FACTS["schedulers"])
def test_schedule_gives_the_recorded_rates(rule):
    opt = sgd()
    want = FACTS["schedulers"][rule]
    assert rates(opt, made(rule, opt), len(want)) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("rule", CLOSED)
def test_stepping_on_is_jumping_there(rule):
    opt, other = sgd(), sgd()
    stepped, jumped = made(rule, opt), made(rule, other)
    for epoch in range(1, 12):
        opt.step()
        stepped.step()
        other.step()
        with pytest.warns(UserWarning, match="epoch parameter"):
            jumped.step(epoch)
        assert opt.param_groups[0]["lr"] == pytest.approx(other.param_groups[0]["lr"], rel=1e-9, abs=1e-12), epoch


@pytest.mark.parametrize("rule", [*CLOSED, "CosineAnnealingWarmRestarts(opt, 2, 2)", "CyclicLR(opt, 0.1, 0.5, 3)"])
def test_a_state_that_is_saved_and_loaded_goes_on_the_same_way(rule):
    opt = sgd(momentum=0.9)
    schedule = made(rule, opt)
    rates(opt, schedule, 4)
    other = sgd(momentum=0.9)
    resumed = made(rule, other)
    other.load_state_dict(opt.state_dict())
    resumed.load_state_dict(pickle.loads(pickle.dumps(schedule.state_dict())))
    assert rates(other, resumed, 5) == pytest.approx(rates(opt, schedule, 5))


def test_chained_schedules_multiply():
    opt = sgd(1.0)
    chained = lr_scheduler.ChainedScheduler(
        [made("ConstantLR(opt, 0.1, 2)", opt), made("ExponentialLR(opt, 0.9)", opt)]
    )
    assert rates(opt, chained, 4) == pytest.approx([0.1, 0.09, 0.81, 0.729])


def test_a_sequence_starts_each_schedule_at_its_milestone():
    opt = sgd(1.0)
    parts = [made("ConstantLR(opt, 0.1, 2)", opt), made("ExponentialLR(opt, 0.9)", opt)]
    schedule = lr_scheduler.SequentialLR(opt, parts, [3])
    assert rates(opt, schedule, 6) == pytest.approx([0.1, 0.1, 1.0, 1.0, 0.9, 0.81])


def test_a_plateau_reduces_after_its_patience():
    opt = sgd(1.0)
    schedule = lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5, cooldown=1)
    seen = []
    for loss in (3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0):
        schedule.step(torch.tensor(loss))
        seen.append(opt.param_groups[0]["lr"])
    assert seen == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert (schedule.best, schedule.num_bad_epochs) == (1.0, 0)


def test_a_plateau_keeps_the_least_rate():
    opt = sgd(1.0)
    schedule = lr_scheduler.ReduceLROnPlateau(opt, "max", patience=0, factor=0.1, min_lr=0.05)
    for value in (1.0, 1.0, 1.0, 1.0):
        schedule.step(value)
    assert opt.param_groups[0]["lr"] == 0.05


def test_momentum_goes_the_other_way():
    opt = sgd(momentum=0.9)
    schedule = lr_scheduler.OneCycleLR(opt, 1.0, total_steps=10)
    pairs = []
    for _ in range(10):
        pairs.append((opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]))
        opt.step()
        if len(pairs) < 10:
            schedule.step()
    top = max(pairs)
    assert top == (1.0, pytest.approx(0.85))
    assert pairs[0][1] == pytest.approx(0.95)
    with pytest.raises(ValueError, match="total steps"):
        schedule.step()
    adam = optim.Adam([torch.ones(1, requires_grad=True)])
    lr_scheduler.CyclicLR(adam, 0.1, 0.2)
    assert adam.param_groups[0]["betas"] == (0.9, 0.999)


def test_a_rate_that_is_a_tensor_keeps_its_identity():
    rate = torch.tensor(0.5)
    opt = sgd(rate)
    schedule = lr_scheduler.ExponentialLR(opt, 0.5)
    opt.step()
    schedule.step()
    assert opt.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


def test_a_first_step_before_the_optimizers_is_warned_of():
    schedule = lr_scheduler.StepLR(sgd(), 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        schedule.step()
    with pytest.warns(UserWarning, match="get_last_lr"):
        schedule.get_lr()


def test_resuming_needs_the_first_rate():
    with pytest.raises(KeyError, match="initial_lr"):
        lr_scheduler.StepLR(sgd(), 1, last_epoch=3)
    opt = sgd()
    opt.param_groups[0]["initial_lr"] = 0.3
    assert lr_scheduler.ExponentialLR(opt, 0.5, last_epoch=3).last_epoch == 4


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("StepLR(3, 1)", TypeError),
        ("LambdaLR(opt, [lambda e: 1] * 3)", ValueError),
        ("ConstantLR(opt, 2.0)", ValueError),
        ("LinearLR(opt, 0.0)", ValueError),
        ("LinearLR(opt, 0.5, 2.0)", ValueError),
        ("CosineAnnealingWarmRestarts(opt, 0)", ValueError),
        ("CosineAnnealingWarmRestarts(opt, 1, 0)", ValueError),
        ("ReduceLROnPlateau(opt, factor=2.0)", ValueError),
        ("ReduceLROnPlateau(opt, mode='x')", ValueError),
        ("ReduceLROnPlateau(opt, min_lr=[1, 2])", ValueError),
        ("CyclicLR(opt, 0.1, 0.2, mode='x')", ValueError),
        ("OneCycleLR(opt, 0.1)", ValueError),
        ("OneCycleLR(opt, 0.1, total_steps=0)", ValueError),
        ("OneCycleLR(opt, 0.1, total_steps=10, pct_start=2.0)", ValueError),
        ("SequentialLR(opt, [], [])", ValueError),
        ("ChainedScheduler([])", ValueError),
    ],
)
def test_schedules_that_cannot_be_are_refused(rule, error):
    with pytest.raises(error):
        made(rule, sgd())


def test_momentum_is_refused_to_an_optimizer_without_one():
    opt = optim.Adadelta([torch.ones(1, requires_grad=True)])
    with pytest.raises(ValueError, match="momentum"):
        lr_scheduler.CyclicLR(opt, 0.1, 0.2)
    lr_scheduler.CyclicLR(opt, 0.1, 0.2, cycle_momentum=False)
