"""Parameters start with torch's numbers for the same seed: recorded from torch 2.13 (data/init.json)."""

import json
import pathlib

import numpy as np
import pytest
import stowgrad as torch
from stowgrad.nn import init

ROWS = json.loads((pathlib.Path(__file__).parent / "data" / "init.json").read_text())


@pytest.mark.parametrize("expression", ROWS)
@pytest.mark.filterwarnings("ignore")
def test_fill_draws_what_torch_draws(expression):
    torch.manual_seed(5)
    filled = eval(expression, {"I": init, "t": torch.empty(5, 4), "u": torch.empty(4, 2, 3)})
    assert np.allclose(filled.flatten().tolist(), ROWS[expression], rtol=1e-5, atol=1e-6)


def test_filling_records_nothing_and_gives_back_the_tensor_it_wrote():
    t = torch.empty(3, 3, requires_grad=True)
    version = t._version
    assert init.xavier_uniform_(t) is t
    assert t.requires_grad
    assert t.grad_fn is None
    assert t._version > version
    assert torch.is_grad_enabled()


def test_a_generator_of_ones_own_leaves_the_global_one_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    draws = []
    for _ in range(2):
        g = torch.Generator()
        g.manual_seed(3)
        draws.append(init.kaiming_normal_(torch.empty(4, 4), generator=g))
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (0.5, 0.8)])
def test_truncated_numbers_stay_within_their_bounds(bounds):
    torch.manual_seed(0)
    t = init.trunc_normal_(torch.empty(2000), a=bounds[0], b=bounds[1])
    assert t.min().item() >= bounds[0] - 1e-6
    assert t.max().item() <= bounds[1] + 1e-6
    assert t.std().item() > 0.05


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("eye_(torch.empty(2, 2, 2))", ValueError),
        ("dirac_(torch.empty(2, 2))", ValueError),
        ("dirac_(torch.empty(4, 2, 3), 3)", ValueError),
        ("xavier_uniform_(torch.empty(3))", ValueError),
        ("kaiming_uniform_(torch.empty(3, 3), mode='x')", ValueError),
        ("calculate_gain('x')", ValueError),
        ("calculate_gain('leaky_relu', True)", ValueError),
        ("sparse_(torch.empty(2, 2, 2), 0.1)", ValueError),
        ("orthogonal_(torch.empty(3))", ValueError),
    ],
)
def test_a_fill_that_does_not_fit_is_refused(expression, error):
    with pytest.raises(error):
        eval("init." + expression, {"init": init, "torch": torch})


def test_a_weight_without_elements_is_left_with_a_warning():
    with pytest.warns(UserWarning, match="no-op"):
        init.kaiming_uniform_(torch.empty(0, 3))


def test_old_names_still_fill_and_say_what_is_new():
    with pytest.warns(FutureWarning, match="xavier_uniform_"):
        init.xavier_uniform(torch.empty(2, 2))
