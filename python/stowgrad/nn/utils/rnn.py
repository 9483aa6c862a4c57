"""Sequences of different lengths in one batch: padded, or packed step by step.

Invariants of a `PackedSequence`: `data` holds the rows of step 0 of every sequence, then of step 1, and so on, longest
sequence first; `batch_sizes[t]` sequences reach step t; sorted_indices says which sequence stands where,
unsorted_indices undoes it.
"""

from __future__ import annotations

import itertools
from collections import namedtuple

from stowgrad import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

Tensor = _C.Tensor

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class PackedSequence(namedtuple("PackedSequence_", ["data", "batch_sizes", "sorted_indices", "unsorted_indices"])):
    """Rows of many sequences, step by step: what the recurrent layers take. Made by `pack_padded_sequence`,
    `pack_sequence`.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if batch_sizes is None:
            if not isinstance(data, (tuple, list)) or len(data) != 2:
                raise ValueError("PackedSequence takes data and batch_sizes")
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The same with `data` moved or cast; batch_sizes stay on the CPU."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self

        def moved(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(data.device)

        return type(self)(data, self.batch_sizes, moved(self.sorted_indices), moved(self.unsorted_indices))

    def cpu(self) -> PackedSequence:
        """The same on the CPU."""
        return self.to("cpu")

    def double(self) -> PackedSequence:
        """The same in float64."""
        return self.to(dtype=_C.float64)

    def float(self) -> PackedSequence:
        """The same in float32."""
        return self.to(dtype=_C.float32)

    def half(self) -> PackedSequence:
        """The same in float16."""
        return self.to(dtype=_C.float16)

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on a GPU."""
        return self.data.device.type == "cuda"


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes another."""
    if permutation is None:
        return None
    inverse = _C.empty_like(permutation)
    inverse.scatter_(0, permutation, _C.arange(permutation.numel(), device=permutation.device))
    return inverse


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs (L, B, *), or (B, L, *) when batch_first, of which sequence i has `lengths[i]` steps.

    With enforce_sorted the lengths must not grow: RuntimeError otherwise, and for a length that is not in [1, L].
    """
    lengths = lengths.tolist() if isinstance(lengths, Tensor) else [int(n) for n in lengths]
    if batch_first:
        input = input.transpose(0, 1)
    steps, batch = input.size(0), input.size(1)
    if len(lengths) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={batch})"
        )
    if not lengths or min(lengths) <= 0:
        raise RuntimeError(f"Length of all samples has to be greater than 0, but found {lengths}")
    if max(lengths) > steps:
        raise RuntimeError(f"a length of {max(lengths)} is more than the {steps} steps of the input")
    sorted_indices = None
    if enforce_sorted:
        if any(a < b for a, b in itertools.pairwise(lengths)):
            raise RuntimeError(
                "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
                f"Pass enforce_sorted=False to have them sorted; got {lengths}"
            )
    else:
        order = sorted(range(batch), key=lambda i: -lengths[i])
        sorted_indices = _C.tensor(order, device=input.device)
        input = input.index_select(1, sorted_indices)
        lengths = [lengths[i] for i in order]
    batch_sizes = [sum(n > t for n in lengths) for t in range(lengths[0])]
    data = _C.cat([input[t, :size] for t, size in enumerate(batch_sizes)])
    return PackedSequence(data, _C.tensor(batch_sizes), sorted_indices, None)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The padded batch (L, B, *), or (B, L, *), and the length of each sequence. ValueError for a total_length that
    is too short.
    """
    sizes = [int(n) for n in sequence.batch_sizes.tolist()]
    steps, batch = len(sizes), sizes[0]
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in input, "
                f"but got total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    data = sequence.data
    rows = []
    for part in data.split(sizes):
        missing = batch - part.size(0)
        rows.append(_C.cat((part, data.new_full((missing, *data.shape[1:]), padding_value))) if missing else part)
    padded = _C.stack(rows)
    if steps > len(sizes):
        padded = _C.cat((padded, data.new_full((steps - len(sizes), *padded.shape[1:]), padding_value)))
    lengths = _C.tensor([sum(i < size for size in sizes) for i in range(batch)])
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.cpu()]
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Stacks tensors (L_i, *) into (L, B, *), or (B, L, *), with `padding_value` beyond the end, or before the start.

    >>> import stowgrad as torch
    >>> torch.nn.utils.rnn.pad_sequence([torch.ones(2), torch.ones(1)], batch_first=True).tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    if isinstance(sequences, Tensor):
        sequences = sequences.unbind(0)
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"padding_side should be one of 'right' or 'left', got {padding_side!r}")
    longest = max(s.size(0) for s in sequences)
    rows = []
    for s in sequences:
        fill = s.new_full((longest - s.size(0), *s.shape[1:]), padding_value)
        rows.append(_C.cat((s, fill) if padding_side == "right" else (fill, s)))
    return _C.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded batch, each cut to its length."""
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    return [s[: int(n)] for s, n in zip(padded_sequences, lengths, strict=False)]


def pack_sequence(sequences: Iterable[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs tensors (L_i, *), longest first unless enforce_sorted=False."""
    sequences = list(sequences)
    lengths = [s.size(0) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
