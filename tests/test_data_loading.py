"""Batches come in torch's order for the same seed, and are put together as torch does."""

from collections import namedtuple

import numpy as np
import pytest
import stowgrad as torch
from stowgrad.utils import data

Pair = namedtuple("Pair", "a b")
X, Y = torch.arange(10.0), torch.arange(10)


def batches(**options):
    return [[t.tolist() for t in batch] for batch in data.DataLoader(data.TensorDataset(X, Y), **options)]


def test_batches_come_in_order_with_a_shorter_last_one():
    assert [b[1] for b in batches(batch_size=4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [b[1] for b in batches(batch_size=4, drop_last=True)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(data.DataLoader(range(10), batch_size=4)) == 3
    assert [b[1] for b in batches(batch_size=None)] == list(range(10))


def test_shuffles_are_torchs_for_the_same_seed():
    torch.manual_seed(5)
    assert [b[1] for b in batches(batch_size=4, shuffle=True)] == SHUFFLED
    torch.manual_seed(5)
    assert list(data.RandomSampler(range(10), replacement=True, num_samples=12)) == REPLACED
    torch.manual_seed(5)
    assert [list(s) for s in data.random_split(range(10), [0.5, 0.3, 0.2])] == SPLIT


# recorded from torch 2.13
SHUFFLED = [[8, 3, 0, 5], [9, 1, 6, 2], [4, 7]]
REPLACED = [7, 4, 9, 4, 6, 8, 2, 2, 1, 8, 2, 5]
SPLIT = [[1, 4, 9, 6, 3], [5, 0, 2], [8, 7]]


def test_a_generator_of_ones_own_repeats():
    def order():
        return batches(batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1))

    assert order() == order()


def test_samplers_and_batch_samplers_are_followed():
    assert [b[1] for b in batches(batch_size=2, sampler=[3, 1, 2])] == [[3, 1], [2]]
    assert [b[1] for b in batches(batch_sampler=[[1, 2], [3]])] == [[1, 2], [3]]
    assert sorted(data.SubsetRandomSampler([3, 5, 7])) == [3, 5, 7]
    assert set(data.WeightedRandomSampler([0.0, 1.0], 5)) == {1}


def test_samples_are_collated_by_kind():
    got = data.default_collate([{"a": np.ones(2), "b": Pair(1, 2.0), "c": "s", "d": (True, [torch.ones(1)])}] * 2)
    assert got["a"].dtype == torch.float64 and got["a"].shape == (2, 2)
    assert isinstance(got["b"], Pair) and got["b"].b.dtype == torch.float64 and got["c"] == ["s", "s"]
    assert got["d"][0].dtype == torch.bool and got["d"][1][0].shape == (2, 1)
    with pytest.raises(TypeError, match="object"):
        data.default_collate([object()])
    with pytest.raises(RuntimeError, match="equal size"):
        data.default_collate([(1, 2), (1,)])


def test_datasets_are_joined_cut_and_chained():
    both = data.TensorDataset(X) + data.TensorDataset(X * 2)
    assert len(both) == 20 and both[12][0] == 4 and both[-1][0] == 18
    assert [v.item() for (v,) in data.Subset(both, [0, 19])] == [0, 18]

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert [b.tolist() for b in data.DataLoader(data.ChainDataset([Stream(), Stream()]), batch_size=4)] == [
        [0, 1, 2, 0],
        [1, 2],
    ]
    assert data.StackDataset(a=X, b=Y)[3]["b"] == 3


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"num_workers": -1},
        {"timeout": -1},
    ],
)
def test_options_that_exclude_each_other_are_refused(options):
    with pytest.raises(ValueError):
        data.DataLoader(range(3), **options)


def test_workers_are_announced_as_not_started():
    with pytest.warns(UserWarning, match="calling process"):
        loader = data.DataLoader(range(3), num_workers=2)
    assert [b.item() for b in loader] == [0, 1, 2] and data.get_worker_info() is None
