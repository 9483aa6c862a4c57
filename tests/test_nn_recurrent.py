"""Recurrent layers: states, directions, and sequences of different lengths."""

import pytest
import stowgrad as torch
from stowgrad import nn
from stowgrad.nn.utils import rnn

LENGTHS = (3, 5, 1)


@pytest.fixture
def sequences():
    return [torch.arange(1.0, n + 1).view(n, 1) / 5 for n in LENGTHS]


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_give_what_each_gives_alone(make, bidirectional, sequences):
    torch.manual_seed(0)
    layer = make(1, 3, num_layers=2, bidirectional=bidirectional)
    packed_out, packed_state = layer(rnn.pack_sequence(sequences, enforce_sorted=False))
    out, lengths = rnn.pad_packed_sequence(packed_out)
    assert lengths.tolist() == list(LENGTHS)
    for i, s in enumerate(sequences):
        alone, state = layer(s)
        assert torch.allclose(out[: len(s), i], alone, atol=1e-6)
        for many, one in zip(*(t if isinstance(t, tuple) else (t,) for t in (packed_state, state)), strict=True):
            assert torch.allclose(many[:, i], one, atol=1e-6)


@pytest.mark.parametrize(("make", "cell"), [(nn.LSTM, nn.LSTMCell), (nn.GRU, nn.GRUCell), (nn.RNN, nn.RNNCell)])
def test_a_layer_of_one_direction_is_its_cell_step_by_step(make, cell):
    torch.manual_seed(0)
    layer, step = make(2, 3), cell(2, 3)
    step.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    x, state = torch.randn(4, 5, 2), None
    out, last = layer(x)
    for t in range(4):
        state = step(x[t], state)
        assert torch.allclose(out[t], state[0] if isinstance(state, tuple) else state, atol=1e-6)
    first = last[0] if isinstance(last, tuple) else last
    assert torch.allclose(first[0], out[-1])


def test_batch_first_only_changes_where_the_batch_stands():
    torch.manual_seed(0)
    layer = nn.GRU(2, 3)
    other = nn.GRU(2, 3, batch_first=True)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(4, 5, 2)
    assert torch.allclose(layer(x)[0].transpose(0, 1), other(x.transpose(0, 1))[0])


def test_a_state_that_is_given_is_where_the_sequence_starts():
    torch.manual_seed(0)
    layer = nn.LSTM(2, 3)
    x = torch.randn(6, 1, 2)
    whole, _ = layer(x)
    first, state = layer(x[:4])
    second, _ = layer(x[4:], state)
    assert torch.allclose(whole, torch.cat((first, second)), atol=1e-6)


def test_dropout_acts_between_layers_while_training_alone():
    torch.manual_seed(0)
    layer = nn.RNN(2, 8, num_layers=2, dropout=0.5)
    x = torch.randn(3, 1, 2)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    with pytest.warns(UserWarning, match="between layers"):
        nn.RNN(2, 3, dropout=0.5)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("nn.LSTM(3, 4)(torch.ones(2, 2, 5))", RuntimeError),
        ("nn.LSTM(3, 4)(torch.ones(5))", ValueError),
        ("nn.LSTM(3, 4)(torch.ones(0, 2, 3))", RuntimeError),
        ("nn.GRU(3, 4)(torch.ones(2, 2, 3), torch.ones(1, 3, 4))", RuntimeError),
        ("nn.RNN(3, 4)(torch.ones(2, 2, 3, dtype=torch.float64))", ValueError),
        ("nn.LSTM(3, 4)(torch.ones(2, 2, 3), (torch.ones(1, 2, 4), torch.ones(1, 1, 4)))", RuntimeError),
        ("nn.LSTM(3, 4)(torch.ones(2, 2, 3), (torch.ones(2, 4), torch.ones(2, 4)))", RuntimeError),
        ("nn.GRUCell(3, 4)(torch.ones(2, 2, 2))", ValueError),
        ("nn.GRUCell(3, 4)(torch.ones(2, 2))", RuntimeError),
        ("nn.GRUCell(3, 4)(torch.ones(2, 3), torch.ones(3, 4))", RuntimeError),
        ("nn.RNNCell(3, 4, nonlinearity='x')(torch.ones(2, 3))", RuntimeError),
    ],
)
def test_inputs_and_states_that_do_not_fit_are_refused(call, error):
    with pytest.raises(error):
        eval(call, {"nn": nn, "torch": torch})


def test_packing_keeps_every_row_and_padding_gives_them_back(sequences):
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 2, 2, 1, 1]
    assert packed.data.shape == (sum(LENGTHS), 1)
    assert packed.sorted_indices.tolist() == [1, 0, 2]
    padded, lengths = rnn.pad_packed_sequence(packed, batch_first=True, padding_value=9.0, total_length=6)
    assert padded.shape == (3, 6, 1)
    for row, n, s in zip(padded, lengths.tolist(), sequences, strict=True):
        assert torch.equal(row[:n], s)
        assert (row[n:] == 9).all()
    assert [t.shape for t in rnn.unpack_sequence(packed)] == [s.shape for s in sequences]


def test_padding_on_the_left_puts_the_fill_before():
    got = rnn.pad_sequence([torch.ones(2), torch.ones(1)], batch_first=True, padding_value=5.0, padding_side="left")
    assert got.tolist() == [[1.0, 1.0], [5.0, 1.0]]


def test_lengths_that_cannot_be_are_refused(sequences):
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        rnn.pack_sequence(sequences)
    with pytest.raises(RuntimeError, match="greater than 0"):
        rnn.pack_padded_sequence(torch.ones(2, 2, 1), [2, 0])
    with pytest.raises(RuntimeError, match="more than the 2 steps"):
        rnn.pack_padded_sequence(torch.ones(2, 2, 1), [3, 1])
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)
    with pytest.raises(ValueError, match="total_length"):
        rnn.pad_packed_sequence(packed, total_length=2)
