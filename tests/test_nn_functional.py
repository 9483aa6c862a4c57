"""Functions are composed as torch composes them: same nodes, same values saved, same refusals."""

import inspect

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from stowgrad.autograd.graph import saved_tensors_hooks


def nodes(out):
    """The names of the nodes from `out` to the leaves, along first inputs."""
    names, node = [], out.grad_fn
    while node is not None and not node.name().endswith("AccumulateGrad"):
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return names


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True)


@pytest.mark.parametrize(
    ("expression", "packs"),
    [
        ("F.softsign(x)", 3),
        ("F.tanhshrink(x)", 1),
        ("F.relu6(x)", 1),
        ("F.softmin(x, 1)", 1),
        ("F.normalize(x, dim=1)", 5),
        ("F.l1_loss(x, y)", 1),
        ("F.margin_ranking_loss(x, y, y.sign(), margin=0.3)", 2),
        ("F.poisson_nll_loss(x, y.abs())", 2),
        ("F.rms_norm(x, (4,), w)", 6),
    ],
)
def test_composition_saves_as_many_values_as_torchs(x, expression, packs):
    seen = []
    env = {"F": F, "x": x, "y": torch.ones(3, 4), "w": torch.ones(4, requires_grad=True)}
    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        eval(expression, env)
    assert len(seen) == packs


def test_compositions_end_in_torchs_nodes(x):
    assert nodes(F.softsign(x))[0] == "DivBackward0"
    assert nodes(F.tanhshrink(x))[0] == "SubBackward0"
    assert nodes(F.relu6(x)) == ["HardtanhBackward0"]
    assert nodes(F.l1_loss(x, torch.ones(3, 4))) == ["MeanBackward0", "AbsBackward0", "SubBackward0"]
    assert nodes(F.cosine_similarity(x, torch.ones(3, 4)))[:2] == ["SumBackward1", "MulBackward0"]
    target = torch.tensor([0, 1, 2])
    assert nodes(F.cross_entropy(x, target)) == ["NllLossBackward0", "LogSoftmaxBackward0"]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_reduction_is_that_of_the_elements(x, reduction):
    y = torch.ones(3, 4)
    reduce = {"none": lambda t: t, "mean": torch.mean, "sum": torch.sum}[reduction]
    for loss in (F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.hinge_embedding_loss):
        assert torch.allclose(loss(x, y, reduction=reduction), reduce(loss(x, y, reduction="none"))), loss.__name__


def test_the_old_reduction_flags_still_work_and_say_what_is_new(x):
    y = torch.ones(3, 4)
    with pytest.warns(UserWarning, match="reduction='sum'"):
        assert torch.equal(F.mse_loss(x, y, size_average=False), F.mse_loss(x, y, reduction="sum"))


def test_a_weighted_mean_divides_by_the_weights():
    x, y, w = torch.tensor([1.0, 2.0, 4.0]), torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    assert F.mse_loss(x, y, weight=w).item() == pytest.approx(57 / 6)
    assert F.l1_loss(x, y, weight=w).item() == pytest.approx(17 / 6)
    with pytest.raises(ValueError, match="same size"):
        F.mse_loss(x, y, weight=torch.ones(2))


def test_losses_of_different_shapes_broadcast_with_a_warning():
    with pytest.warns(UserWarning, match="target size"):
        loss = F.mse_loss(torch.ones(2, 3), torch.zeros(3))
    assert loss.item() == 1.0


def test_cross_entropy_is_the_loss_of_log_probabilities(x):
    target = torch.tensor([3, 0, 1])
    picked = -x.log_softmax(1)[torch.arange(3), target]
    assert torch.allclose(F.cross_entropy(x, target), picked.mean())
    assert torch.allclose(F.cross_entropy(x, target, ignore_index=0), (picked[0] + picked[2]) / 2)
    one_hot = F.one_hot(target, 4).to(x.dtype)
    assert torch.allclose(F.cross_entropy(x, one_hot), picked.mean())
    smooth = 0.9 * picked.mean() - 0.1 * x.log_softmax(1).mean()
    assert torch.allclose(F.cross_entropy(x, target, label_smoothing=0.1), smooth)


def test_dropout_keeps_the_mean_and_nothing_changes_without_training():
    torch.manual_seed(0)
    x = torch.ones(20000)
    assert F.dropout(x, 0.3).mean().item() == pytest.approx(1.0, abs=0.03)
    assert F.dropout(x, 0.3, training=False) is x
    assert not F.dropout(x, 1.0).any()
    whole = F.dropout2d(torch.ones(50, 40, 2, 2), 0.5)
    assert set(whole.flatten(2).std(2).flatten().tolist()) == {0.0}
    kept = F.alpha_dropout(torch.randn(20000), 0.3, training=True)
    assert kept.mean().item() == pytest.approx(0.0, abs=0.05)
    assert kept.std().item() == pytest.approx(1.0, abs=0.05)


def test_gumbel_samples_are_one_hot_and_differentiable():
    torch.manual_seed(0)
    logits = torch.zeros(100, 3, requires_grad=True)
    hard = F.gumbel_softmax(logits, hard=True)
    assert torch.allclose(hard.sum(1), torch.ones(100))
    assert torch.allclose(hard.max(1)[0], torch.ones(100))
    (hard * torch.arange(3.0)).sum().backward()
    assert logits.grad.abs().sum().item() > 0


def test_softmax_without_a_dimension_warns_and_takes_torchs():
    for shape, dim in (((3,), 0), ((2, 3), 1), ((2, 3, 4), 0), ((2, 3, 4, 5), 1)):
        t = torch.randn(*shape)
        with pytest.warns(UserWarning, match="Implicit dimension"):
            assert torch.equal(F.softmax(t), F.softmax(t, dim))


def test_circular_padding_shows_the_other_side():
    t = torch.arange(4.0).view(1, 1, 4)
    assert F.pad(t, (1, 2), mode="circular").tolist() == [[[3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0]]]
    assert F.pad(t, (-1, 1), mode="circular").tolist() == [[[1.0, 2.0, 3.0, 1.0]]]
    with pytest.raises(RuntimeError, match="wrapping around"):
        F.pad(t, (5, 0), mode="circular")


def test_a_global_mean_pool_is_a_mean():
    t = torch.randn(2, 3, 4, 5, requires_grad=True)
    out = F.adaptive_avg_pool2d(t, 1)
    assert nodes(out) == ["MeanBackward1"]
    assert torch.allclose(out, t.mean((2, 3), keepdim=True))


def test_affine_grid_of_the_identity_is_the_grid_of_pixel_centres():
    theta = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    grid = F.affine_grid(theta, (1, 1, 2, 4), align_corners=False)
    assert grid[0, 0, :, 0].tolist() == pytest.approx([-0.75, -0.25, 0.25, 0.75])
    assert grid[0, :, 0, 1].tolist() == pytest.approx([-0.5, 0.5])
    assert F.affine_grid(theta, (1, 1, 2, 4), align_corners=True)[0, 0, :, 0].tolist()[0] == -1.0


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("F.linear(torch.ones(2, 3), torch.ones(4, 5))", RuntimeError),
        ("F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 3]))", IndexError),
        ("F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1, 2]))", ValueError),
        ("F.nll_loss(torch.ones(2, 3), torch.tensor([0.0, 1.0]))", RuntimeError),
        ("F.embedding(torch.tensor([9]), torch.ones(5, 3))", IndexError),
        ("F.embedding(torch.tensor([0.5]), torch.ones(5, 3))", RuntimeError),
        ("F.layer_norm(torch.ones(2, 3), (4,))", RuntimeError),
        ("F.rms_norm(torch.ones(2, 3), (4,))", RuntimeError),
        ("F.batch_norm(torch.ones(1, 3), torch.zeros(3), torch.ones(3), training=True)", ValueError),
        ("F.softmax(torch.ones(2), 3)", IndexError),
        ("F.dropout(torch.ones(2), 1.5)", ValueError),
        ("F.interpolate(torch.ones(1, 1, 4, 4))", ValueError),
        ("F.interpolate(torch.ones(1, 1, 4, 4), size=2, scale_factor=2)", ValueError),
        ("F.interpolate(torch.ones(1, 1, 4, 4), size=2, align_corners=True)", ValueError),
        ("F.interpolate(torch.ones(1, 1, 4), size=2, mode='bilinear')", NotImplementedError),
        ("F.pad(torch.ones(2, 2), (1, 1, 1, 1), mode='reflect')", NotImplementedError),
        ("F.pad(torch.ones(1, 1, 2), (1, 1), mode='reflect', value=1.0)", ValueError),
        ("F.hardtanh(torch.ones(1), 2, 1)", ValueError),
        ("F.binary_cross_entropy(torch.ones(1), torch.ones(2))", ValueError),
        ("F.binary_cross_entropy_with_logits(torch.ones(1), torch.ones(2))", ValueError),
        ("F.triplet_margin_loss(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), margin=-1)", ValueError),
        ("F.cosine_embedding_loss(torch.ones(2), torch.ones(2), torch.ones(2))", RuntimeError),
        ("F.gaussian_nll_loss(torch.ones(2), torch.ones(2), torch.ones(3))", ValueError),
        ("F.gaussian_nll_loss(torch.ones(2), torch.ones(2), -torch.ones(2))", ValueError),
        ("F.grid_sample(torch.ones(1, 1, 2, 2), torch.ones(1, 2, 2, 2), mode='x')", ValueError),
        ("F.local_response_norm(torch.ones(2, 2), 2)", ValueError),
        ("F.nosuch", AttributeError),
    ],
)
def test_arguments_that_do_not_fit_have_torchs_error(expression, error):
    with pytest.raises(error) as caught:
        eval(expression, {"F": F, "torch": torch})
    assert str(caught.value).strip()


def test_every_function_says_what_it_does():
    functions = [f for n, f in vars(F).items() if inspect.isfunction(f) and not n.startswith("_")]
    assert len(functions) > 90
    assert [f.__name__ for f in functions if not f.__doc__] == []
