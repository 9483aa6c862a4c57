"""Recurrent layers and cells: RNN, LSTM, GRU.

Invariants: the parameters of layer k are weight_ih_lk, weight_hh_lk, bias_ih_lk, bias_hh_lk (then weight_hr_lk with a
projection), with `_reverse` at the end for the other direction, and stand in this order; gates stand in torch's order
along the first dimension (LSTM: input, forget, cell, output; GRU: reset, update, new). All are drawn from [-b, b), b =
1 / sqrt(hidden_size).

A layer is composed of public operations: the product with the input is one for all steps, the rest goes step by step.
"""

from __future__ import annotations

import math
import numbers
import warnings

from stowgrad import _C
from stowgrad.nn import functional as F
from stowgrad.nn import init
from stowgrad.nn.modules.module import Module
from stowgrad.nn.parameter import Parameter
from stowgrad.nn.utils.rnn import PackedSequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Tensor = _C.Tensor

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell", "RNNCellBase"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


# ---- one step: the product with the input is given, the state is a tuple of tensors ----


def _lstm_step(given: Tensor, state: tuple, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> tuple:
    h, c = state
    i, f, g, o = (given + F.linear(h, w_hh, b_hh)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if w_hr is None else F.linear(h, w_hr)), c


def _gru_step(given: Tensor, state: tuple, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> tuple:
    (h,) = state
    r_x, z_x, n_x = given.chunk(3, 1)
    r_h, z_h, n_h = F.linear(h, w_hh, b_hh).chunk(3, 1)
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = (n_x + r * n_h).tanh()
    return ((h - n) * z + n,)


def _tanh_step(given: Tensor, state: tuple, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> tuple:
    return ((given + F.linear(state[0], w_hh, b_hh)).tanh(),)


def _relu_step(given: Tensor, state: tuple, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None) -> tuple:
    return ((given + F.linear(state[0], w_hh, b_hh)).relu(),)


_STEPS = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN_TANH": _tanh_step, "RNN_RELU": _relu_step}


def _run(mode: str, x: Tensor, sizes: list[int], state: tuple, weights: list, reverse: bool) -> tuple[Tensor, tuple]:
    """One direction of one layer over the rows `x` (all steps, `sizes` rows each): the outputs, as rows, and the last
    state.

    Sizes do not grow from step to step. Forwards, sequences that end leave their state behind; backwards, they enter
    with theirs.
    """
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    step = _STEPS[mode]
    given = F.linear(x, w_ih, b_ih).split(sizes)
    outputs = []
    if reverse:
        first = state
        size = sizes[-1]
        state = tuple(s[:size] for s in first)
        for rows, now in zip(reversed(given), reversed(sizes), strict=False):
            if now > size:
                state = tuple(_C.cat((s, f[size:now])) for s, f in zip(state, first, strict=False))
                size = now
            state = step(rows, state, w_hh, b_hh, w_hr)
            outputs.append(state[0])
        outputs.reverse()
        return _C.cat(outputs), state
    left: list[tuple] = []
    size = sizes[0]
    for rows, now in zip(given, sizes, strict=False):
        if now < size:
            left.append(tuple(s[now:size] for s in state))
            state = tuple(s[:now] for s in state)
            size = now
        state = step(rows, state, w_hh, b_hh, w_hr)
        outputs.append(state[0])
    if left:
        left.append(state)
        left.reverse()
        state = tuple(_C.cat(parts) for parts in zip(*left, strict=False))
    return _C.cat(outputs), state


class RNNBase(Module):
    """What RNN, LSTM and GRU share: layers, directions, dropout between layers, packed sequences."""

    __constants__ = [
        "mode",
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "proj_size",
    ]

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout) if isinstance(dropout, numbers.Number) else dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being zeroed; "
                f"got {dropout!r}"
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"dropout acts between layers, so dropout={dropout} does nothing with num_layers=1", stacklevel=2
            )
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not isinstance(value, int):
                raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if value <= 0:
                raise ValueError(f"{name} must be greater than zero; got {value}")
        if proj_size < 0:
            raise ValueError(f"proj_size should be a positive integer or zero to disable projections; got {proj_size}")
        if proj_size >= hidden_size:
            raise ValueError(f"proj_size has to be smaller than hidden_size; got {proj_size} and {hidden_size}")
        if mode not in _GATES:
            raise ValueError(f"Unrecognized RNN mode: {mode}")

        rows = _GATES[mode] * hidden_size
        out = proj_size if proj_size > 0 else hidden_size
        directions = 2 if bidirectional else 1
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            for suffix in ("", "_reverse")[:directions]:
                columns = input_size if layer == 0 else out * directions
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns), "weight_hh": (rows, out)}
                if bias:
                    shapes.update(bias_ih=(rows,), bias_hh=(rows,))
                if proj_size > 0:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                names = []
                for kind, shape in shapes.items():
                    name = f"{kind}_l{layer}{suffix}"
                    setattr(self, name, Parameter(_C.empty(shape, device=device, dtype=dtype)))
                    names.append(name)
                self._all_weights.append(names)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws every weight and bias anew."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing: parameters need not lie in one block here."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [w for weights in self.all_weights for w in weights]

    def _weights(self, place: int) -> list[Tensor | None]:
        """w_ih, w_hh, b_ih, b_hh, w_hr of one layer and direction, None for those that it has not."""
        found: dict[str, Tensor] = {name.rsplit("_l", 1)[0]: getattr(self, name) for name in self._all_weights[place]}
        return [found.get(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")]

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of the state h: (layers * directions, batch, width)."""
        if batch_sizes is not None:
            batch = int(batch_sizes[0])
        else:
            batch = input.size(0) if self.batch_first else input.size(1)
        return self._state_shape(batch, self.proj_size if self.proj_size > 0 else self.hidden_size)

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of the state c: (layers * directions, batch, hidden_size)."""
        _, batch, _ = self.get_expected_hidden_size(input, batch_sizes)
        return self._state_shape(batch, self.hidden_size)

    def _state_shape(self, batch: int, width: int) -> tuple[int, int, int]:
        return self.num_layers * (2 if self.bidirectional else 1), batch, width

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """RuntimeError for a wrong width or number of dimensions, ValueError for a wrong dtype."""
        dtype = getattr(self, self._all_weights[0][0]).dtype
        if input.dtype != dtype:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({dtype}). "
                f"Convert input: input.to({dtype}), or convert model: model.to({input.dtype})"
            )
        expected = 2 if batch_sizes is not None else 3
        if input.dim() != expected:
            raise RuntimeError(f"input must have {expected} dimensions, got {input.dim()}")
        if input.size(-1) != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}"
            )

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: tuple[int, int, int], msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        """RuntimeError when a state has another shape."""
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """The state in another order of sequences."""
        if permutation is None:
            return hx
        if isinstance(hx, tuple):
            return tuple(h.index_select(1, permutation) for h in hx)
        return hx.index_select(1, permutation)

    def _first_state(self, hx: Any, batched: bool, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """The state to start from, as a tuple of (layers * directions, batch, width); zeros when there is none."""
        lstm = self.mode == "LSTM"
        shapes = [self._state_shape(batch, self.proj_size if self.proj_size > 0 else self.hidden_size)]
        if lstm:
            shapes.append(self._state_shape(batch, self.hidden_size))
        if hx is None:
            return tuple(_C.zeros(shape, dtype=like.dtype, device=like.device) for shape in shapes)
        states = tuple(hx) if lstm else (hx,)
        wanted = 3 if batched else 2
        if any(s.dim() != wanted for s in states):
            kind = "batched 3-D" if batched else "unbatched 2-D"
            dims = ", ".join(f"{s.dim()}-D" for s in states)
            names = "hx and cx" if lstm else "hx"
            raise RuntimeError(f"For {kind} input, {names} should also be {wanted}-D but got ({dims}) tensors")
        if not batched:
            states = tuple(s.unsqueeze(1) for s in states)
        for i, (s, shape) in enumerate(zip(states, shapes, strict=False)):
            which = f"hidden[{i}]" if lstm else "hidden"
            self.check_hidden_size(s, shape, f"Expected {which} size {{}}, got {{}}")
        return states

    def forward(self, input: Any, hx: Any = None) -> Any:
        packed = input if isinstance(input, PackedSequence) else None
        batched = True
        if packed is not None:
            rows, batch_sizes = packed.data, packed.batch_sizes
            self.check_input(rows, batch_sizes)
            sizes = [int(n) for n in batch_sizes.tolist()]
            batch = sizes[0]
            if hx is not None:
                hx = self.permute_hidden(hx, packed.sorted_indices)
        else:
            if input.dim() not in (2, 3):
                raise ValueError(f"{self._get_name()}: Expected input to be 2D or 3D, got {input.dim()}D instead")
            batched = input.dim() == 3
            if not batched:
                input = input.unsqueeze(0 if self.batch_first else 1)
            self.check_input(input, None)
            if self.batch_first:
                input = input.transpose(0, 1)
            steps, batch = input.size(0), input.size(1)
            if steps == 0:
                raise RuntimeError(f"{self._get_name()}: Expected sequence length to be larger than 0")
            rows, sizes = input.reshape(steps * batch, -1), [batch] * steps
        states = self._first_state(hx, batched, batch, rows)

        directions = 2 if self.bidirectional else 1
        last: list[tuple] = []
        for layer in range(self.num_layers):
            outs = []
            for direction in range(directions):
                place = layer * directions + direction
                first = tuple(s[place] for s in states)
                out, state = _run(self.mode, rows, sizes, first, self._weights(place), direction == 1)
                outs.append(out)
                last.append(state)
            rows = outs[0] if directions == 1 else _C.cat(outs, 1)
            if self.dropout and layer < self.num_layers - 1:
                rows = F.dropout(rows, self.dropout, self.training)
        states = tuple(_C.stack(parts) for parts in zip(*last, strict=False))

        if packed is not None:
            output = PackedSequence(rows, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            states = tuple(self.permute_hidden(s, packed.unsorted_indices) for s in states)
        else:
            output = rows.view(len(sizes), batch, -1)
            if self.batch_first:
                output = output.transpose(0, 1)
            if not batched:
                output = output.squeeze(0 if self.batch_first else 1)
                states = tuple(s.squeeze(1) for s in states)
        return output, (states if self.mode == "LSTM" else states[0])

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0,
            "bidirectional": False,
        }
        parts += [f"{name}={getattr(self, name)}" for name, d in defaults.items() if getattr(self, name) != d]
        return ", ".join(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("proj_size", 0)


class RNN(RNNBase):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or with relu: (L, N, input_size) to (L, N, directions * hidden_size).

    Arguments: input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
    bidirectional=False. Gives the outputs and the last state; takes packed sequences and input without N. Source: Elman
    1990.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("proj_size", 0) != 0:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if len(args) > 3:
            self_nonlinearity = args[3]
            args = args[:3] + args[4:]
        else:
            self_nonlinearity = kwargs.pop("nonlinearity", "tanh")
        if self_nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{self_nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__("RNN_TANH" if self_nonlinearity == "tanh" else "RNN_RELU", *args, **kwargs)
        self.nonlinearity = self_nonlinearity


class LSTM(RNNBase):
    """Long short-term memory: (L, N, input_size) to (L, N, directions * hidden_size), with state (h, c).

    Arguments: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False,
    proj_size=0. Source: Hochreiter and Schmidhuber 1997.

    >>> import stowgrad as torch
    >>> out, (h, c) = torch.nn.LSTM(3, 4)(torch.zeros(5, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent units: (L, N, input_size) to (L, N, directions * hidden_size).

    Arguments: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False.
    Source: Cho et al. 2014.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("proj_size", 0) != 0:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        super().__init__("GRU", *args, **kwargs)


# ---- cells ----


class RNNCellBase(Module):
    """One step of a recurrence: weight_ih, weight_hh, bias_ih, bias_hh."""

    __constants__ = ["input_size", "hidden_size", "bias"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(_C.empty((rows, input_size), device=device, dtype=dtype))
        self.weight_hh = Parameter(_C.empty((rows, hidden_size), device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            if bias:
                setattr(self, name, Parameter(_C.empty(rows, device=device, dtype=dtype)))
            else:
                self.register_parameter(name, None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws every weight and bias anew."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, mode: str, input: Tensor, state: tuple | None) -> tuple[Tensor, ...]:
        name = self._get_name()
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for s in state or ():
            if s.dim() not in (1, 2):
                raise ValueError(f"{name}: Expected hidden to be 1D or 2D, got {s.dim()}D instead")
        batched = input.dim() == 2
        if not batched:
            input = input.unsqueeze(0)
        if input.size(1) != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {input.size(1)} expected {self.input_size}")
        if state is None:
            zeros = _C.zeros((input.size(0), self.hidden_size), dtype=input.dtype, device=input.device)
            state = (zeros, zeros) if mode == "LSTM" else (zeros,)
        elif not batched:
            state = tuple(s.unsqueeze(0) for s in state)
        for i, s in enumerate(state):
            if s.size(0) != input.size(0):
                raise RuntimeError(f"Input batch size {input.size(0)} doesn't match hidden{i} batch size {s.size(0)}")
            if s.size(1) != self.hidden_size:
                raise RuntimeError(
                    f"hidden{i} has inconsistent hidden_size: got {s.size(1)}, expected {self.hidden_size}"
                )
        given = F.linear(input, self.weight_ih, self.bias_ih)
        state = _STEPS[mode](given, state, self.weight_hh, self.bias_hh, None)
        return state if batched else tuple(s.squeeze(0) for s in state)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        nonlinearity = self.__dict__.get("nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"


class RNNCell(RNNCellBase):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or with relu: (N, input_size), (N, hidden_size) to (N, hidden_size)."""

    __constants__ = ["input_size", "hidden_size", "bias", "nonlinearity"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=1, device=device, dtype=dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        mode = "RNN_TANH" if self.nonlinearity == "tanh" else "RNN_RELU"
        return self._step(mode, input, None if hx is None else (hx,))[0]


class LSTMCell(RNNCellBase):
    """One step of an LSTM: x (N, input_size), (h, c) of (N, hidden_size) each, to (h, c)."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=4, device=device, dtype=dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, ...]:
        return self._step("LSTM", input, None if hx is None else tuple(hx))


class GRUCell(RNNCellBase):
    """One step of a GRU: x (N, input_size), h (N, hidden_size) to h."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=3, device=device, dtype=dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step("GRU", input, None if hx is None else (hx,))[0]
