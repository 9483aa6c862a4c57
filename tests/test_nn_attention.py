"""Attention and transformers: masks, and the two ways to the same output."""

import pytest
import stowgrad as torch
from stowgrad import nn


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nn.MultiheadAttention(4, 2)


@pytest.fixture
def xy():
    torch.manual_seed(1)
    return torch.randn(3, 2, 4), torch.randn(5, 2, 4)


def test_the_output_does_not_depend_on_whether_weights_are_asked_for(layer, xy):
    x, y = xy
    out, weights = layer(x, y, y)
    assert weights.shape == (2, 3, 5)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3), atol=1e-5)
    without, none = layer(x, y, y, need_weights=False)
    assert none is None
    assert torch.allclose(out, without, atol=1e-5)
    _, each = layer(x, y, y, average_attn_weights=False)
    assert each.shape == (2, 2, 3, 5)
    assert torch.allclose(each.mean(1), weights, atol=1e-6)


def test_a_padded_key_gets_no_weight(layer, xy):
    x, y = xy
    padding = torch.tensor([[False] * 4 + [True], [False] * 5])
    out, weights = layer(x, y, y, key_padding_mask=padding)
    assert (weights[0, :, 4] == 0).all()
    assert (weights[1, :, 4] != 0).all()
    without, _ = layer(x, y, y, key_padding_mask=padding, need_weights=False)
    assert torch.allclose(out, without, atol=1e-5)


def test_bool_float_and_causal_masks_agree(layer, xy):
    x, _ = xy
    later = torch.triu(torch.ones(3, 3), 1) > 0
    added = nn.Transformer.generate_square_subsequent_mask(3)
    assert added.tolist() == [[0.0, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]
    outs = [
        layer(x, x, x, attn_mask=later)[0],
        layer(x, x, x, attn_mask=added)[0],
        layer(x, x, x, attn_mask=added, need_weights=False)[0],
        layer(x, x, x, attn_mask=added, need_weights=False, is_causal=True)[0],
    ]
    assert all(torch.allclose(outs[0], out, atol=1e-5) for out in outs[1:])


def test_input_without_a_batch_is_a_batch_of_one(layer, xy):
    x, y = xy
    out, weights = layer(x[:, 0], y[:, 0], y[:, 0])
    many, many_weights = layer(x, y, y)
    assert torch.allclose(out, many[:, 0], atol=1e-5)
    assert torch.allclose(weights, many_weights[0], atol=1e-5)


def test_separate_widths_and_extra_keys_are_projected():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True, add_zero_attn=True)
    names = set(layer.state_dict())
    assert {"q_proj_weight", "k_proj_weight", "v_proj_weight", "bias_k", "bias_v"} <= names
    out, weights = layer(torch.randn(3, 2, 4), torch.randn(6, 2, 3), torch.randn(6, 2, 5))
    assert out.shape == (3, 2, 4)
    assert weights.shape == (2, 3, 8)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("(x, x, y)", AssertionError),
        ("(x[0, 0], x, x)", AssertionError),
        ("(x, x, x, torch.ones(3))", AssertionError),
        ("(x, x, x, None, True, torch.ones(2, 2))", RuntimeError),
        ("(x, x, x, None, True, torch.ones(3, 3, dtype=torch.int32))", AssertionError),
        ("(torch.ones(3, 2, 5), x, x)", AssertionError),
        ("(x, x, x, None, True, None, True, True)", RuntimeError),
    ],
)
def test_arguments_that_do_not_fit_are_refused(layer, xy, arguments, error):
    x, y = xy
    with pytest.raises(error):
        layer(*eval(arguments, {"x": x, "y": y, "torch": torch}))


def test_a_later_token_does_not_change_what_comes_before_under_a_causal_mask():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 2)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    x = torch.randn(4, 1, 4)
    changed = x.clone()
    changed[3] += 1
    before, after = model(x, mask=mask), model(changed, mask=mask)
    assert torch.allclose(before[:3], after[:3], atol=1e-6)
    assert not torch.allclose(before[3], after[3])


def test_clones_of_a_layer_share_nothing():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)
    a, b = model.layers[0].linear1.weight, model.layers[1].linear1.weight
    assert a is not b
    assert torch.equal(a, b)
    assert a.data_ptr() != b.data_ptr()


def test_an_encoder_and_a_decoder_train_together():
    torch.manual_seed(0)
    model = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0)
    out = model(torch.randn(5, 3, 4), torch.randn(2, 3, 4))
    assert out.shape == (2, 3, 4)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(RuntimeError, match="batch number"):
        model(torch.randn(5, 3, 4), torch.randn(2, 2, 4))
    with pytest.raises(RuntimeError, match="feature number"):
        model(torch.randn(5, 3, 3), torch.randn(2, 3, 4))
