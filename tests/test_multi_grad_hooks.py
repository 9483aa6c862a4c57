"""A hook over several tensors runs once a backward call, with what that call computes, and leaves nothing in the graph."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import stowgrad as torch
from frames import ck, leaf
from stowgrad.autograd.graph import register_multi_grad_hook


def graph():
    a = leaf(1.0, 2.0)
    m = a * 2.0
    return a, m, m.sin()


def test_once_a_call_with_all_gradients():
    a, m, n = graph()
    seen = []
    register_multi_grad_hook((m, n, a), seen.append)
    y = n.sum()
    for _ in range(3):
        y.backward(retain_graph=True)
    assert [len(s) for s in seen] == [3, 3, 3]
    assert [g.tolist() for g in seen[0]] == [g.tolist() for g in torch.autograd.grad(y, [m, n, a])]


def test_gradients_that_a_call_does_not_reach_are_none():
    a, m, n = graph()
    seen = []
    register_multi_grad_hook((m, n), lambda grads: seen.append([g is not None for g in grads]))
    m.sum().backward(retain_graph=True)
    torch.autograd.grad(n.sum(), m, retain_graph=True)
    torch.autograd.grad(n.sum(), a)
    assert seen == [[True, False], [True, True], [True, True]]


def test_any_runs_with_the_first():
    _a, m, n = graph()
    seen = []
    register_multi_grad_hook((m, n), lambda g: seen.append(g.tolist()), mode="any")
    n.sum().backward(retain_graph=True)
    assert seen == [[1.0, 1.0]]
    m.sum().backward()
    assert seen == [[1.0, 1.0], [1.0, 1.0]]


def test_a_call_that_fails_leaves_no_count_behind():
    _a, m, n = graph()
    seen, failing = [], [True]
    register_multi_grad_hook((m, n), seen.append)

    def fail(g):
        if failing[0]:
            raise ValueError("stop")

    m.register_hook(fail)
    y = n.sum()
    with pytest.raises(ValueError, match="stop"):
        y.backward(retain_graph=True)
    failing[0] = False
    seen.clear()
    y.backward()
    assert len(seen) == 1


def test_nested_calls_are_counted_apart():
    _a, m, n = graph()
    seen, deep = [], []
    register_multi_grad_hook((m, n), seen.append)
    y = n.sum()

    def again(g):
        if not deep:
            deep.append(1)
            y.backward(retain_graph=True)

    n.register_hook(again)
    y.backward(retain_graph=True)
    assert len(seen) == 2


def test_threads_are_counted_apart():
    a, m, n = graph()
    out = []
    register_multi_grad_hook((m, n, a), lambda grads: out.append(all(g is not None for g in grads)))
    y = n.sum()

    def work():
        for _ in range(100):
            torch.autograd.grad(y, a, retain_graph=True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out == [True] * 400


def test_around_and_inside_frames():
    seen = []
    x = leaf(1.0, 2.0)

    def f(t):
        u = t.sin()
        v = u.exp()
        if u.requires_grad:
            register_multi_grad_hook((u, v), lambda grads: seen.append(len(grads)))
        return v * t

    y = ck(f, x)
    register_multi_grad_hook((y, x), lambda grads: seen.append("outside"))
    y.sum().backward()
    # the hook of the first run is on the graph that backward walks; the second run's graph is never walked
    assert seen == [2, "outside"]


def test_handles_remove_and_hold_nothing():
    _a, m, n = graph()
    seen = []
    handle = register_multi_grad_hook((m, n), seen.append)
    with register_multi_grad_hook((m, n), seen.append):
        n.sum().backward(retain_graph=True)
    assert len(seen) == 2
    handle.remove()
    handle.remove()
    n.sum().backward()
    assert len(seen) == 2

    class Token:
        pass

    token = Token()
    alive = weakref.ref(token)
    _, p, q = graph()
    kept = register_multi_grad_hook((p, q), lambda grads, token=token: None)
    del p, q, token
    gc.collect()
    assert alive() is None
    kept.remove()


def test_bad_calls():
    a, m, _ = graph()
    with pytest.raises(ValueError, match="mode to be one of"):
        register_multi_grad_hook((a, m), print, mode="some")
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        register_multi_grad_hook((a, torch.ones(2)), print)
    with pytest.raises(TypeError, match="takes Tensors"):
        register_multi_grad_hook((a, 3), print)
