"""Datasets: what can be asked for its `i`-th sample, or iterated. No tensor is copied before a sample is asked for."""

from __future__ import annotations

from stowgrad import _C

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]


class Dataset:
    """Samples by index: a subclass defines `__getitem__`, and `__len__` for the samplers."""

    def __getitem__(self, index):
        raise NotImplementedError(f"{type(self).__name__} defines no __getitem__")

    def __add__(self, other):
        return ConcatDataset([self, other])

    def __class_getitem__(cls, item):
        return cls


class IterableDataset(Dataset):
    """Samples in order: a subclass defines `__iter__`."""

    def __add__(self, other):
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """The rows of tensors of equal length: sample `i` is the tuple of their `i`-th entries. ValueError for other
    lengths.

    >>> import stowgrad as torch
    >>> data = TensorDataset(torch.arange(3), torch.tensor([0.5, 1.5, 2.5]))
    >>> data[1]
    (tensor(1), tensor(1.5000))
    """

    def __init__(self, *tensors) -> None:
        if not tensors or any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise ValueError(
                f"TensorDataset: Size mismatch between tensors: first dimensions {[t.shape[0] for t in tensors]}"
            )
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class StackDataset(Dataset):
    """Several datasets side by side: samples are tuples, or dictionaries if the datasets are given by keyword."""

    def __init__(self, *args, **kwargs) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset: give datasets either by position or by keyword, and at least one")
        self.datasets = kwargs or args
        lengths = {len(d) for d in (kwargs.values() if kwargs else args)}
        if len(lengths) != 1:
            raise ValueError(f"StackDataset: Size mismatch between datasets: lengths {sorted(lengths)}")
        (self._length,) = lengths

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {key: d[index] for key, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset):
    """Datasets one after the other. AssertionError without any, or for iterable ones."""

    def __init__(self, datasets) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("ConcatDataset: datasets should not be an empty iterable")
        self.cumulative_sizes = []
        total = 0
        for d in self.datasets:
            if isinstance(d, IterableDataset):
                raise AssertionError("ConcatDataset does not support IterableDataset: use ChainDataset")
            total += len(d)
            self.cumulative_sizes.append(total)

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        from bisect import bisect_right

        n = len(self)
        if not -n <= index < n:
            raise ValueError(
                f"ConcatDataset: absolute value of index should not exceed dataset length {n}, and it is {index}"
            )
        index %= n
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset):
    """Iterable datasets one after the other."""

    def __init__(self, datasets) -> None:
        self.datasets = datasets

    def __iter__(self):
        for d in self.datasets:
            yield from d

    def __len__(self) -> int:
        return sum(len(d) for d in self.datasets)


class Subset(Dataset):
    """The samples of a dataset at given indices."""

    def __init__(self, dataset, indices) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices) -> list:
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self.dataset.__getitems__([self.indices[i] for i in indices])
        return [self.dataset[self.indices[i]] for i in indices]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset, lengths, generator=None) -> list:
    """Subsets of these lengths, or of these fractions of the whole, drawn without overlap. ValueError if they do not
    add up.

    >>> import stowgrad as torch
    >>> parts = random_split(range(10), [0.7, 0.3], torch.Generator().manual_seed(0))
    >>> [len(p) for p in parts]
    [7, 3]
    """
    from math import floor, isclose

    n = len(dataset)
    lengths = list(lengths)
    if isclose(sum(lengths), 1) and sum(lengths) <= 1:
        fractions = lengths
        for i, fraction in enumerate(fractions):
            if not 0 <= fraction <= 1:
                raise ValueError(f"random_split: fraction {i} is {fraction}, not between 0 and 1")
        lengths = [floor(n * fraction) for fraction in fractions]
        for i in range(n - sum(lengths)):
            lengths[i % len(lengths)] += 1
        for i, length in enumerate(lengths):
            if length == 0:
                import warnings

                warnings.warn(f"random_split: part {i} is empty", stacklevel=2)
    if sum(lengths) != n:
        raise ValueError(
            f"random_split: Sum of input lengths does not equal the length of the input dataset: {sum(lengths)} for {n}"
        )
    order = _C.randperm(n, generator=_C.default_generator if generator is None else generator).tolist()
    parts, start = [], 0
    for length in lengths:
        parts.append(Subset(dataset, order[start : start + length]))
        start += length
    return parts
