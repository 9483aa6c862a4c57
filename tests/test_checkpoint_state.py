"""Random numbers are drawn again as they were, state that operations declare moves once, and nobody else notices."""

from __future__ import annotations

import threading

import pytest
import stowgrad as torch
from frames import ck, leaf
from stowgrad.nn import functional as F


def test_the_thread_draws_the_same_again_and_the_process_goes_on():
    x = leaf()
    torch.manual_seed(7)
    y = ck(lambda t: F.dropout(t.exp(), 0.5, True) * torch.rand(4) * t, x)
    state = torch.get_rng_state()
    (got,) = torch.autograd.grad(y.sum(), x)
    assert torch.get_rng_state().tolist() == state.tolist()
    torch.manual_seed(7)
    (want,) = torch.autograd.grad((F.dropout(x.exp(), 0.5, True) * torch.rand(4) * x).sum(), x)
    assert got.tolist() == want.tolist()


def test_numbers_that_another_thread_draws_meanwhile_are_drawn_once():
    x = leaf()
    drawn, stop = [], threading.Event()

    def draw():
        while not stop.is_set():
            drawn.append(torch.rand(1, dtype=torch.float64).item())

    def f(t):
        for _ in range(50):
            t = t * torch.rand(4)
        return t.exp()

    worker = threading.Thread(target=draw)
    worker.start()
    for _ in range(30):
        ck(f, x).sum().backward()
    stop.set()
    worker.join()
    assert len(set(drawn)) == len(drawn) > 0


class TestGenerators:
    """`generator=` names a source: its state when the region first met it is kept with the frame."""

    def region(self, g):
        def f(t):
            a = t * torch.rand(4, generator=g)
            return (a.exp() * torch.randn(4, generator=g)).sin()

        return f

    def test_it_draws_the_same_again_and_its_own_state_stays(self):
        g, x = torch.Generator().manual_seed(3), leaf()
        y = ck(self.region(g), x, determinism_check="values")
        state = g.get_state().tolist()
        (got,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        (again,) = torch.autograd.grad(y.sum(), x)
        assert g.get_state().tolist() == state
        g.manual_seed(3)
        (want,) = torch.autograd.grad(self.region(g)(x).sum(), x)
        assert got.tolist() == again.tolist() == want.tolist()

    def test_nested_frames(self):
        g, x = torch.Generator().manual_seed(3), leaf()

        def f(t):
            t = t * torch.rand(4, generator=g)
            return ck(self.region(g), t, determinism_check="values") * torch.rand(4, generator=g)

        (got,) = torch.autograd.grad(ck(lambda t: ck(f, t).exp(), x, determinism_check="values").sum(), x)
        g.manual_seed(3)
        h = x * torch.rand(4, generator=g)
        h = self.region(g)(h) * torch.rand(4, generator=g)
        assert got.tolist() == torch.autograd.grad(h.exp().sum(), x)[0].tolist()

    def test_a_region_that_seeds_it_seeds_only_its_own_again(self):
        g, x = torch.Generator().manual_seed(3), leaf()

        def f(t):
            g.manual_seed(11)
            return (t * torch.rand(4, generator=g)).exp()

        y = ck(f, x, determinism_check="values")
        torch.rand(4, generator=g)
        state = g.get_state().tolist()
        y.sum().backward()
        assert g.get_state().tolist() == state

    def test_two_of_them_are_told_apart(self):
        g, h, x = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), leaf()

        def f(t):
            return (t * torch.rand(4, generator=g)).exp() * torch.rand(4, generator=h) * torch.rand(4, generator=g)

        (got,) = torch.autograd.grad(ck(f, x, determinism_check="values").sum(), x)
        g.manual_seed(1), h.manual_seed(2)
        assert got.tolist() == torch.autograd.grad(f(x).sum(), x)[0].tolist()

    def test_backward_inside_the_open_region(self):
        g, x = torch.Generator().manual_seed(5), leaf()

        def f(t):
            y = (t * torch.rand(4, generator=g)).exp()
            (d,) = torch.autograd.grad(y.sum(), t, create_graph=True)
            return d * torch.rand(4, generator=g) * t

        (got,) = torch.autograd.grad(ck(f, x).sum(), x)
        g.manual_seed(5)
        assert got.tolist() == torch.autograd.grad(f(x).sum(), x)[0].tolist()

    def test_without_preserve_rng_state_it_draws_on(self):
        g, x = torch.Generator().manual_seed(3), leaf()
        y = ck(self.region(g), x, preserve_rng_state=False)
        state = g.get_state().tolist()
        y.sum().backward()
        assert g.get_state().tolist() != state


class TestBatchNorm:
    def statistics(self, m):
        return m.running_mean.tolist(), m.running_var.tolist()

    @pytest.mark.parametrize("depth", [1, 2])
    def test_running_statistics_move_once(self, depth):
        torch.manual_seed(0)
        plain, framed = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
        x = torch.randn(5, 3, requires_grad=True)
        want = torch.autograd.grad((plain(x).sin() * x).sum(), [x, plain.weight, plain.bias])

        def call(t):
            return framed(t).sin() * t

        function = call
        for _ in range(depth - 1):
            inner = function

            def function(t, inner=inner):
                return ck(inner, t)

        y = ck(function, x)
        after = self.statistics(framed)
        assert after == self.statistics(plain)
        got = torch.autograd.grad(y.sum(), [x, framed.weight, framed.bias], retain_graph=True)
        torch.autograd.grad(y.sum(), [x])
        assert self.statistics(framed) == after
        assert [g.tolist() for g in got] == [g.tolist() for g in want]

    def test_a_module_used_twice(self):
        torch.manual_seed(0)
        m, x = torch.nn.BatchNorm1d(3), torch.randn(5, 3, requires_grad=True)
        y = ck(m, ck(m, x).exp())
        after = self.statistics(m)
        y.sum().backward()
        assert self.statistics(m) == after
        # a counter that the module's own code writes moves in each run
        assert m.num_batches_tracked.item() == 4

    def test_in_evaluation_they_are_read_and_a_write_is_found(self):
        m = torch.nn.BatchNorm1d(3).eval()
        x = torch.ones(5, 3, requires_grad=True)
        y = ck(lambda t: m(t).exp(), x)
        y.sum().backward()
        assert x.grad is not None
        z = ck(lambda t: m(t).exp(), x, determinism_check="values")
        m.running_mean.add_(1.0)
        with pytest.raises(RuntimeError, match="running_mean|other values"):
            z.sum().backward()
