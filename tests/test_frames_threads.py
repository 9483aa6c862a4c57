"""Threads that free, recompute, write and look at the same frames and guard at once: no crash, no deadlock, nothing left."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import stowgrad as torch
from frames import ck, leaf, storages
from stowgrad.autograd.graph import allow_mutation_on_saved_tensors

ROUNDS = 60


@pytest.fixture
def quick_switches():
    was = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(was)


def together(*work):
    errors = []

    def guarded(f):
        try:
            f()
        except RuntimeError as e:  # backward through values that another thread freed
            errors.append(str(e))

    threads = [threading.Thread(target=guarded, args=(f,)) for f in work]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert not any(t.is_alive() for t in threads), "deadlock"
    return errors


def test_frames(quick_switches):
    def one(seed):
        x, w = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)

        def inner(t):
            return (t * w).sin().exp()

        y = ck(lambda t: ck(inner, t).cos() + ck(inner, t * 0.5), x * 1.0)
        heads = [(y * float(i + 1)).sum() for i in range(4)]
        looks = [y.grad_fn.next_functions[0][0]]

        def look():
            looks[0]._saved_self  # noqa: B018 - what is tested
            heads[3].backward(retain_graph=True)

        def back(i):
            return lambda: heads[i].backward(retain_graph=(seed + i) % 2 == 0)

        return together(back(0), back(1), back(2), look)

    gc.collect()
    before = storages()
    errors = [e for seed in range(ROUNDS) for e in one(seed)]
    gc.collect()
    assert storages() == before
    assert all("second time" in e for e in errors), sorted(set(errors))


def test_a_guard_that_other_threads_write_under(quick_switches):
    def one():
        with allow_mutation_on_saved_tensors():
            b, w = torch.ones(64), torch.ones(64, requires_grad=True)
            heads = [(w * b).sum()]

            def write():
                for _ in range(50):
                    b.add_(1.0)

            t = threading.Thread(target=write)
            t.start()
            heads.extend((w * b).sum() for _ in range(50))
            t.join()
            for y in heads:
                (g,) = torch.autograd.grad(y, w)
                assert len(set(g.tolist())) == 1, "a torn value"

    gc.collect()
    before = storages()
    for _ in range(ROUNDS):
        one()
    gc.collect()
    assert storages() == before


def test_groups_of_calls_belong_to_their_thread():
    from stowgrad.utils.checkpoint import GraphExecGroup

    seen = []
    with GraphExecGroup():
        t = threading.Thread(target=lambda: seen.append(GraphExecGroup._get_current_group()))
        t.start()
        t.join()
    assert seen == [None]


def test_frames_made_in_one_thread_run_in_another():
    x = leaf()
    y = ck(lambda t: ck(torch.sin, t).exp(), x).sum()
    assert together(y.backward) == []
    assert x.grad.tolist() == torch.autograd.grad(x.sin().exp().sum(), x)[0].tolist()
