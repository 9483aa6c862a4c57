"""Indexing, scans, normalisation, convolution, pools, resampling, padding: first and second derivatives against differences."""

from __future__ import annotations

import math

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from stowgrad.autograd import gradcheck, gradgradcheck

index = torch.tensor([[0, 1], [3, 2], [1, 0]])
rows = torch.tensor([2, 0])
mask = torch.tensor([[True, False, True, True], [False, False, True, False], [True, True, False, True]])


def filled(*shape: int, phase: float = 0.0) -> torch.Tensor:
    """Numbers without ties."""
    n = math.prod(shape)
    values = [2.0 * math.sin(1.7 * i + phase) + 0.001 * i for i in range(n)]
    return torch.tensor(values, dtype=torch.float64).view(shape).requires_grad_()


CASES = {
    "softmax": (lambda x: torch.softmax(x, 1), (3, 4)),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), (3, 4)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (2, 3, 4), (4,), (4,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 3, 2), (3,), (3,)),
    "batch_norm by running statistics": (
        lambda x, w, b: F.batch_norm(x, torch.zeros(3).double(), torch.ones(3).double(), w, b),
        (4, 3, 2),
        (3,),
        (3,),
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,)),
    "cumsum": (lambda x: x.cumsum(1), (3, 4)),
    "cumprod": (lambda x: x.cumprod(1), (3, 4)),
    "cumprod of zeros": (lambda x: (x * torch.tensor([1.0, 0, 1, 0, 1]).double()).cumprod(0), (5,)),
    "cummax": (lambda x: x.cummax(1)[0], (3, 4)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (3, 4)),
    "gather": (lambda x: x.gather(1, index), (3, 4)),
    "scatter": (lambda x, y: x.scatter(1, index, y), (3, 4), (3, 2)),
    "scatter_add": (lambda x, y: x.scatter_add(1, index, y), (3, 4), (3, 2)),
    "scatter_reduce": (lambda x, y: x.scatter_reduce(1, index, y, "prod"), (3, 4), (3, 2)),
    "index_select": (lambda x: x.index_select(0, rows), (3, 4)),
    "index_add": (lambda x, y: x.index_add(0, rows, y, alpha=2), (3, 4), (2, 4)),
    "index_copy": (lambda x, y: x.index_copy(0, rows, y), (3, 4), (2, 4)),
    "index_put": (lambda x, y: x.index_put((rows,), y), (3, 4), (4,)),
    "masked_select": (lambda x: x.masked_select(mask), (3, 4)),
    "masked_scatter": (lambda x, y: x.masked_scatter(mask, y), (3, 4), (9,)),
    "take": (lambda x: x.take(index), (3, 4)),
    "embedding": (lambda x: F.embedding(index, x), (4, 3)),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), (3, 4)),
    "rot90": (lambda x: x.rot90(-1, (1, 0)), (3, 4)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (3, 4)),
    "repeat_interleave": (lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 0), (3, 4)),
    "diag_embed": (lambda x: x.diag_embed(1, 0, 2), (3, 4)),
    "block_diag": (lambda x, y: torch.block_diag(x, y), (3, 2), (2,)),
    "unfold": (lambda x: x.unfold(1, 3, 2), (2, 7)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 1, 4, 2), (3, 5), (3, 2)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2), (2, 4, 9), (6, 4, 3), (6,)),
    "conv2d": (lambda x, w: F.conv2d(x, w, None, (1, 2), (0, 2), (2, 1), 2), (1, 4, 5, 4), (4, 2, 2, 2)),
    "conv2d of the same size": (lambda x, w: F.conv2d(x, w, padding="same"), (1, 2, 4, 5), (2, 2, 2, 4)),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, 2),
        (1, 4, 2, 3),
        (4, 2, 3, 3),
        (4,),
    ),
    "conv_transpose1d, more padding than stride": (
        lambda x, w: F.conv_transpose1d(x, w, None, 1, 1, 1, 1, 2),
        (1, 2, 4),
        (2, 3, 3),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 5, 6)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (1, 2, 5, 6)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (1, 2, 5, 7)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (1, 2, 5, 7)),
    "columns": (lambda x: F.unfold(x, (2, 3), 2, 1, 2), (1, 2, 5, 6)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=1.7), (1, 2, 7)),
    "bilinear": (lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), (1, 1, 4, 3)),
    "bicubic": (lambda x: F.interpolate(x, size=(5, 7), mode="bicubic", align_corners=True), (1, 1, 4, 3)),
    "constant pad": (lambda x: F.pad(x, (1, 2, -1, 1), value=2.0), (3, 4)),
    "reflection pad": (lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"), (1, 1, 4, 3)),
    "replication pad": (lambda x: F.pad(x, (1, 5, 0, 1), mode="replicate"), (1, 1, 4, 3)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    f, *shapes = CASES[name]
    xs = [filled(*shape, phase=i) for i, shape in enumerate(shapes)]
    assert gradcheck(f, xs)
    assert gradgradcheck(f, xs)


@pytest.mark.parametrize("name", CASES)
def test_gradients_do_not_depend_on_being_recorded(name: str) -> None:
    """Norms and others take a fused kernel in a plain backward and a composition in one that is differentiated."""
    f, *shapes = CASES[name]
    xs = [filled(*shape, phase=i) for i, shape in enumerate(shapes)]
    out = f(*xs)
    g = filled(*out.shape, phase=9.0).detach()
    plain = torch.autograd.grad(out, xs, g, retain_graph=True)
    recorded = torch.autograd.grad(out, xs, g, create_graph=True)
    for a, b in zip(plain, recorded, strict=True):
        torch.testing.assert_close(a, b.detach())


def test_batch_norm_moves_its_running_statistics_once() -> None:
    x = filled(6, 2)
    mean, var = torch.zeros(2).double(), torch.ones(2).double()
    y = F.batch_norm(x, mean, var, training=True, momentum=0.25)
    want_mean = 0.25 * x.detach().mean(0)
    torch.testing.assert_close(mean, want_mean)
    torch.testing.assert_close(var, 0.75 + 0.25 * x.detach().var(0))
    torch.testing.assert_close(y.grad_fn._saved_running_mean, want_mean)
    y.sum().backward()
    torch.testing.assert_close(mean, want_mean)


def test_in_place_forms() -> None:
    x = filled(3, 4)
    y = x * 1
    y.index_put_((rows,), torch.zeros(4).double())
    y.scatter_(1, index, 5.0)
    y.index_fill_(0, torch.tensor([1]), -1.0)
    y.sum().backward()
    assert x.grad.tolist() == [[0] * 4] * 3
    assert y[1].tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: torch.ones(3).scatter_(0, torch.tensor([5]), 1.0), RuntimeError, "out of bounds"),
        (lambda: torch.ones(2, 3).index_select(0, torch.tensor([5])), IndexError, "out of range"),
        (lambda: F.conv2d(torch.ones(1, 3, 5, 5), torch.ones(2, 4, 3, 3)), RuntimeError, "channels"),
        (lambda: F.conv2d(torch.ones(1, 3, 2, 2), torch.ones(2, 3, 3, 3)), RuntimeError, "Kernel size"),
        (lambda: F.conv2d(torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3), padding="no"), RuntimeError, "padding"),
        (lambda: F.max_pool2d(torch.ones(1, 1, 4, 4), 2, padding=2), RuntimeError, "pad should be at most half"),
        (lambda: F.layer_norm(torch.ones(2, 3), (4,)), RuntimeError, "normalized_shape"),
        (lambda: F.softmax(torch.ones(2), 3), IndexError, "range"),
        (lambda: F.avg_pool2d(torch.ones(1, 4, 4), 2, divisor_override=0), RuntimeError, "divisor"),
        (lambda: torch.meshgrid(torch.ones(2), indexing="no"), RuntimeError, "indexing"),
    ],
)
def test_refusals(call, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_padding_row_has_no_gradient() -> None:
    x = filled(4, 3)
    F.embedding(index, x, padding_idx=1).sum().backward()
    assert x.grad.tolist() == [[2] * 3, [0] * 3, [1] * 3, [1] * 3]


def test_scatter_joins() -> None:
    x = torch.ones(2, 3)
    x.scatter_(1, torch.tensor([[0, 0], [2, 1]]), 2.0, reduce="add")
    assert x.tolist() == [[5, 1, 1], [1, 3, 3]]
    assert x.scatter(1, torch.tensor([[0]]), torch.tensor([[3.0]]), reduce="multiply")[0].tolist() == [15, 1, 1]
