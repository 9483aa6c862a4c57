"""Every layer starts, prints, computes and differentiates as torch's: recorded from torch 2.13 (data/layers.json)."""

import json
import math
import pathlib

import numpy as np
import pytest
import stowgrad as torch
from stowgrad import nn

ROWS = json.loads((pathlib.Path(__file__).parent / "data" / "layers.json").read_text())


def filling(shape, phase=0.0):
    n = math.prod(shape)
    values = [-2.0 + 4.0 * ((math.sin(12.9898 * (i + 1 + phase) + 78.233) * 43758.5453) % 1.0) for i in range(n)]
    return torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))


def inputs(make, shapes):
    loss = "Loss" in make
    ins = [filling(s, 100 * k) for k, s in enumerate(shapes)]
    if loss and any(word in make for word in ("Embedding", "SoftMargin", "Ranking")):
        ins[1:] = [ins[1].sign(), *[t.sign() for t in ins[2:]]]
    if "BCE" in make:
        ins[1] = ins[1].sigmoid()
    if "Poisson" in make:
        ins[1] = ins[1].abs()
    if "CrossEntropy" in make:
        ins[1] = ins[1].softmax(1)
    return [t.requires_grad_(not loss or k == 0) for k, t in enumerate(ins)]


def tensors(out):
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in out for t in tensors(part)] if isinstance(out, (tuple, list)) else []


def thinned(values):
    return values if len(values) <= 40 else values[:: len(values) // 40 + 1]


def same(got, want):
    return np.allclose(got, [float(v) for v in want], rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['make']}{row['shapes']}")
@pytest.mark.filterwarnings("ignore")
def test_layer_starts_prints_computes_and_differentiates_as_recorded(row):
    torch.manual_seed(7)
    layer = eval(row["make"], {"nn": nn}).double()
    assert repr(layer) == row["repr"]
    assert {k: list(v.shape) for k, v in layer.state_dict().items()} == row["state"]
    ins = inputs(row["make"], row["shapes"])
    torch.manual_seed(11)
    outs = tensors(layer(*([t + 0 for t in ins] if "inplace=True" in row["make"] else ins)))
    assert len(outs) == len(row["outputs"])
    for out, want in zip(outs, row["outputs"], strict=True):
        assert list(out.shape) == want["shape"]
        assert same(thinned(out.detach().flatten().tolist()), want["data"])
    weighted = [(u * filling(u.shape, 17 + 5 * j)).sum() for j, u in enumerate(outs) if u.requires_grad]
    sum(weighted[1:], weighted[0]).backward()
    for t, want in zip(ins, row["input_grads"], strict=True):
        if want is None:
            assert t.grad is None or not t.grad.any()
        else:
            assert same(thinned(t.grad.flatten().tolist()), want)
    for name, param in layer.named_parameters():
        if name in row["param_grads"]:
            assert same([param.grad.sum().item(), param.grad.abs().sum().item()], row["param_grads"][name]), name
    for name, buffer in layer.named_buffers():
        if name in row["buffers"]:
            assert same(buffer.flatten().tolist(), row["buffers"][name]), name


def test_evaluating_changes_neither_input_nor_statistics():
    layer = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.AlphaDropout(0.5)).eval()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    x = torch.ones(4, 3)
    assert torch.equal(layer(x), layer(x))
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


def test_batch_norm_counts_batches_and_takes_their_plain_mean_without_momentum():
    layer = nn.BatchNorm1d(1, momentum=None)
    for mean in (1.0, 2.0, 6.0):
        layer(torch.tensor([[mean - 1], [mean + 1]]))
    assert layer.num_batches_tracked.item() == 3
    assert layer.running_mean.item() == pytest.approx(3.0)
    layer.reset_running_stats()
    assert (layer.num_batches_tracked.item(), layer.running_mean.item(), layer.running_var.item()) == (0, 0.0, 1.0)


def test_batch_norm_of_one_value_a_channel_is_refused_while_training():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(3)(torch.ones(1, 3))
    assert nn.BatchNorm1d(3).eval()(torch.ones(1, 3)).shape == (1, 3)


def test_a_file_of_the_first_version_of_batch_norm_loads_without_its_count():
    layer = nn.BatchNorm1d(2)
    state = {k: torch.full((2,), 3.0) for k in ("weight", "bias", "running_mean", "running_var")}
    assert repr(layer.load_state_dict(state)) == "<All keys matched successfully>"
    assert layer.num_batches_tracked.item() == 0


def test_the_padding_row_of_an_embedding_starts_as_zeros_and_gets_no_gradient():
    layer = nn.Embedding(4, 2, padding_idx=-1)
    assert layer.padding_idx == 3
    assert layer.weight[3].tolist() == [0.0, 0.0]
    layer(torch.tensor([[0, 3], [3, 1]])).sum().backward()
    assert layer.weight.grad.sum(1).tolist() == [2.0, 2.0, 0.0, 0.0]


def test_a_pretrained_embedding_is_frozen_unless_told_otherwise():
    assert not nn.Embedding.from_pretrained(torch.eye(2)).weight.requires_grad
    assert nn.Embedding.from_pretrained(torch.eye(2), freeze=False).weight.requires_grad


def test_an_embedding_with_max_norm_scales_the_rows_it_looks_up_and_no_others():
    layer = nn.Embedding.from_pretrained(torch.tensor([[3.0, 4.0], [30.0, 40.0]]), max_norm=1.0)
    assert layer(torch.tensor([0])).norm().item() == pytest.approx(1.0, abs=1e-5)
    assert layer.weight[1].tolist() == [30.0, 40.0]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        ("nn.Conv2d(3, 4, 3, groups=2)", ValueError),
        ("nn.Conv2d(3, 4, 3, padding='x')", ValueError),
        ("nn.Conv2d(3, 4, 3, padding='same', stride=2)", ValueError),
        ("nn.Conv2d(3, 4, 3, padding_mode='x')", ValueError),
        ("nn.ConvTranspose2d(3, 4, 3, padding_mode='reflect')", ValueError),
        ("nn.GroupNorm(3, 4)", ValueError),
        ("nn.Dropout(2)", ValueError),
        ("nn.Hardtanh(2, 1)", AssertionError),
        ("nn.TripletMarginLoss(margin=-1)", ValueError),
        ("nn.MultiMarginLoss(p=3)", ValueError),
        ("nn.Unflatten(1, 3)", TypeError),
        ("nn.Bilinear(0, 1, 1)", ValueError),
        ("nn.Embedding(5, 3, padding_idx=5)", AssertionError),
        ("nn.MultiheadAttention(5, 2)", AssertionError),
        ("nn.MultiheadAttention(0, 2)", ValueError),
        ("nn.LSTM(0, 4)", ValueError),
        ("nn.RNN('a', 4)", TypeError),
        ("nn.RNN(3, 4, dropout=2)", ValueError),
        ("nn.RNN(3, 4, nonlinearity='x')", ValueError),
        ("nn.GRU(3, 4, proj_size=2)", ValueError),
        ("nn.LSTM(3, 4, proj_size=5)", ValueError),
        ("nn.TransformerEncoderLayer(8, 2, activation='x')", RuntimeError),
        ("nn.AdaptiveLogSoftmaxWithLoss(8, 10, [6, 4])", ValueError),
        ("nn.L1Loss(reduction='x')(torch.ones(1), torch.ones(1))", ValueError),
        ("nn.Upsample()(torch.ones(1, 1, 2))", ValueError),
        ("nn.Upsample(size=2, mode='bilinear')(torch.ones(1, 1, 2))", NotImplementedError),
        ("nn.BatchNorm2d(2)(torch.ones(1, 3))", ValueError),
        ("nn.InstanceNorm1d(2)(torch.ones(1, 2, 1))", ValueError),
        ("nn.Softmax2d()(torch.ones(2, 2))", ValueError),
    ],
)
def test_a_layer_that_cannot_be_says_so(make, error):
    with pytest.raises(error) as caught:
        eval(make, {"nn": nn, "torch": torch})
    assert str(caught.value).strip()


def test_data_parallel_without_a_gpu_calls_its_module_and_keeps_its_state_under_module():
    inner = nn.Linear(2, 3)
    wrapped = nn.DataParallel(inner, device_ids=[0])
    x = torch.ones(4, 2)
    assert torch.equal(wrapped(x), inner(x))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]


def test_adaptive_softmax_gives_the_log_probabilities_of_a_distribution():
    torch.manual_seed(0)
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4, 6], div_value=2.0)
    x, target = torch.randn(6, 8), torch.tensor([0, 3, 5, 9, 7, 4])
    every = layer.log_prob(x)
    assert torch.allclose(every.exp().sum(1), torch.ones(6), atol=1e-5)
    output, loss = layer(x, target)
    assert torch.allclose(output, every[torch.arange(6), target], atol=1e-5)
    assert torch.allclose(loss, -output.mean())
    assert torch.equal(layer.predict(x), every.argmax(1))
    with pytest.raises(RuntimeError, match="Target values should be in"):
        layer(x, target + 9)
