"""Gradients are clipped as one vector, and parameters become one."""

import math

import pytest
import stowgrad as torch
from stowgrad import nn
from stowgrad.nn import utils


def layer():
    m = nn.Linear(2, 2)
    for i, p in enumerate(m.parameters()):
        p.grad = torch.full(p.shape, 3.0 + i)
    return m


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_is_that_of_all_gradients_and_they_are_scaled_to_the_bound(norm_type):
    m = layer()
    flat = torch.cat([p.grad.flatten() for p in m.parameters()])
    want = flat.norm(norm_type).item()
    assert utils.clip_grad_norm_(m.parameters(), 1.0, norm_type).item() == pytest.approx(want, rel=1e-5)
    after = torch.cat([p.grad.flatten() for p in m.parameters()])
    assert after.norm(norm_type).item() == pytest.approx(1.0, rel=1e-4)
    assert torch.allclose(after / after[0], flat / flat[0])


def test_small_gradients_are_left_and_missing_ones_skipped():
    m = layer()
    m.bias.grad = None
    utils.clip_grad_norm_(m.parameters(), 100.0)
    assert m.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert utils.clip_grad_norm_([], 1.0).item() == 0.0
    assert utils.clip_grad_norm_(m.weight, 100.0).item() == pytest.approx(6.0)


def test_a_norm_that_is_not_finite_is_an_error_when_asked():
    m = layer()
    m.weight.grad.fill_(math.nan)
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)
    assert math.isnan(utils.clip_grad_norm_(m.parameters(), 1.0).item())


def test_values_are_clipped_in_place():
    m = layer()
    kept = m.bias.grad
    utils.clip_grad_value_(m.parameters(), 0.5)
    assert m.bias.grad is kept
    assert kept.tolist() == [0.5, 0.5]


def test_parameters_become_a_vector_and_come_back():
    m = layer()
    vec = utils.parameters_to_vector(m.parameters())
    assert vec.shape == (6,)
    assert vec.requires_grad
    before = list(m.parameters())
    utils.vector_to_parameters(torch.arange(6.0), m.parameters())
    assert m.weight.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert m.bias.tolist() == [4.0, 5.0]
    assert all(a is b for a, b in zip(before, m.parameters(), strict=True))
    with pytest.raises(TypeError):
        utils.vector_to_parameters(3, m.parameters())
