"""What the tests of checkpoint frames and the mutation guard share: small leaves, counts, and a way to call `checkpoint`."""

from __future__ import annotations

import gc

import stowgrad as torch
from stowgrad.utils.checkpoint import checkpoint


def ck(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def leaf(*values, grad=True):
    return torch.tensor(list(values) or [0.3, 0.7, 1.1, 1.5], requires_grad=grad)


# A few numbers used as operands are kept for the next use: fill their places, so that counts of storages are exact.
for _i in range(1000):
    torch.ones(1) * (0.01 + 0.37 * _i)


def storages() -> int:
    """Live storages, collected or not."""
    return torch.memory_stats()["storages"]


def saved() -> int:
    """Bytes that slots hold."""
    return torch.memory_stats()["saved"]["live"]


def gradients(function, *leaves):
    """First gradients of `function(*leaves)`, and the gradients of their sum, as lists; None where there is none."""
    first = torch.autograd.grad(function(*leaves).sum(), leaves, create_graph=True, allow_unused=True)
    wanted = [g.sum() for g in first if g is not None and g.requires_grad]
    second = torch.autograd.grad(sum(wanted), leaves, allow_unused=True) if wanted else ()
    return [None if g is None else g.tolist() for g in (*first, *second)]


class Counting:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.runs = 0

    def __call__(self, *args, **kwargs):
        self.runs += 1
        return self.function(*args, **kwargs)


class NoCollector:
    """Inside, nothing but reference counts frees."""

    def __enter__(self):
        gc.collect()
        self.was = gc.isenabled()
        gc.disable()

    def __exit__(self, *args):
        if self.was:
            gc.enable()
