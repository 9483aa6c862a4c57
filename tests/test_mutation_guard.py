"""Inside `allow_mutation_on_saved_tensors()` a saved value is copied at the first write that would change it, by whatever route, and never
otherwise.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import stowgrad as torch
from frames import Counting, ck, leaf, storages
from stowgrad.autograd.graph import allow_mutation_on_saved_tensors


def held(guard):
    return len(guard.original), len(guard.cloned)


WRITES = {
    "in place": lambda b: b.mul_(5.0),
    "item": lambda b: b.__setitem__(0, 9.0),
    "copy_": lambda b: b.copy_(torch.zeros(4)),
    "fill_": lambda b: b.fill_(2.0),
    "out": lambda b: torch.add(torch.ones(4), torch.ones(4), out=b),
    "another view": lambda b: b.view(2, 2)[0].zero_(),
    "a detached alias": lambda b: b.detach().zero_(),
    "data": lambda b: b.data.mul_(5.0),
    "an index": lambda b: b.index_fill_(0, torch.tensor([1]), 7.0),
    "random": lambda b: b.uniform_(),
    "set data": lambda b: setattr(b, "data", torch.zeros(4)),
    "normal_": lambda b: torch.nn.init.normal_(b),
}


@pytest.mark.parametrize("route", WRITES)
def test_each_route_of_a_write_copies_once(route):
    w = leaf()
    with allow_mutation_on_saved_tensors() as guard:
        b = torch.tensor([1.0, 2.0, 3.0, 4.0])
        y = (w * b).sum() + (w * b).sum()
        assert held(guard) == (1, 0)
        WRITES[route](b)
        assert held(guard) == (0, 1)
        assert guard.cloned.bytes == 16
        WRITES[route](b)
        assert held(guard) == (0, 1)
        y.backward()
        assert held(guard) == (0, 0)
    assert w.grad.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_write_to_other_bytes_copies_nothing():
    with allow_mutation_on_saved_tensors() as guard:
        b, w = torch.tensor([1.0, 2.0, 3.0, 4.0]), leaf(1.0, 1.0)
        y = (w * b[:2]).sum()
        b[2:].zero_()
        assert held(guard) == (1, 0)
        y.backward()
    assert w.grad.tolist() == [1.0, 2.0]


def test_one_region_saved_often_is_one_entry_until_it_is_written():
    with allow_mutation_on_saved_tensors() as guard:
        b, w = torch.ones(4), leaf()
        heads = [(w * b).sum() for _ in range(5)]
        assert held(guard) == (1, 0)
        b.mul_(2.0)
        heads.append((w * b).sum())
        assert held(guard) == (1, 1)
        got = [torch.autograd.grad(y, w)[0].tolist() for y in heads]
        assert held(guard) == (0, 0)
    assert got == [[1.0] * 4] * 5 + [[2.0] * 4]


def test_a_graph_that_is_gone_is_not_asked():
    w, b = leaf(), torch.tensor([1.0, 2.0, 3.0, 4.0])
    with allow_mutation_on_saved_tensors() as guard:
        before = storages()
        y = [w * b for _ in range(50)]
        z = (w * b).sum()
        assert held(guard) == (1, 0)
        del y[::2]
        z.backward(retain_graph=True)
        del y, z
        b.mul_(2)
        assert held(guard) == (0, 0)
        w.grad = None
        assert storages() == before


def test_one_write_makes_one_copy_for_operations_functions_and_arguments():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, by):
            ctx.save_for_backward(by)
            return t * by

        @staticmethod
        def backward(ctx, g):
            (by,) = ctx.saved_tensors
            return g * by, None

    w, b = leaf(1.0, 1.0), torch.tensor([2.0, 4.0])
    with allow_mutation_on_saved_tensors() as guard:
        y = (w * b).sum() + Scale.apply(w, b).sum() + (w / b).sum()
        assert held(guard) == (1, 0)
        b.zero_()
        assert held(guard) == (0, 1)
        assert guard.cloned.bytes == 8
        y.backward()
        assert held(guard) == (0, 0)
    assert w.grad.tolist() == [4.5, 8.25]


def test_second_derivatives_of_what_was_overwritten():
    def grads(write):
        w = leaf(0.5, 1.5)
        h = w * 2
        y = (h.exp() * h).sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        if write:
            with torch.no_grad():
                h.zero_()
                g.detach().mul_(1)
        return torch.autograd.grad(g.sum(), w)[0].tolist()

    expected = grads(False)
    with allow_mutation_on_saved_tensors():
        assert grads(True) == expected


def test_a_look_at_what_was_saved():
    w = leaf(1.0, 2.0)
    with allow_mutation_on_saved_tensors():
        h = w * 3
        y = h * h
        assert y.grad_fn._saved_self is h
        with torch.no_grad():
            h.zero_()
        assert y.grad_fn._saved_self.tolist() == [3.0, 6.0]
    with pytest.raises(AssertionError, match="outside of the"):
        _ = y.grad_fn._saved_self


def test_threads_that_save_and_write_under_one_guard():
    import threading

    b, done = torch.ones(4), []
    with allow_mutation_on_saved_tensors() as guard:
        w = leaf()
        graphs = [(w * b).sum() for _ in range(20)]

        def work(k):
            b.add_(1)
            done.append(torch.autograd.grad(graphs[k], w)[0].tolist())

        threads = [threading.Thread(target=work, args=(k,)) for k in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert done == [[1.0] * 4] * 20
        assert held(guard) == (0, 0)


LAYOUTS = {
    "t_": lambda t: t.t_(),
    "unsqueeze_": lambda t: t.unsqueeze_(0),
    "squeeze_": lambda t: t.squeeze_(),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "resize_": lambda t: t.detach().resize_(4),
    "set data": lambda t: setattr(t, "data", torch.zeros(3, 2)),
}


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("change", LAYOUTS)
def test_a_tensor_that_changes_its_layout_after_the_save(change, write):
    w = torch.ones(2, 3, requires_grad=True)
    with allow_mutation_on_saved_tensors() as guard:
        y = w * 2
        z = y * y
        with torch.no_grad():
            LAYOUTS[change](y)
            if write:
                y.mul_(5)
        z.sum().backward()
        assert held(guard) == (0, 0)
    assert w.grad.tolist() == [[8.0] * 3] * 2


def test_views_of_one_region_share_their_entry_and_others_do_not():
    w = leaf(1.0, 1.0, 1.0, 1.0)
    with allow_mutation_on_saved_tensors() as guard:
        b = torch.tensor([1.0, 2.0, 3.0, 4.0])
        y = (w * b).sum() + (w * b.detach()).sum() + (w * b.view(4)).sum()
        assert held(guard) == (1, 0)
        z = (w[:2] * b[:2]).sum() + (w.view(2, 2) * b.view(2, 2)).sum()
        assert held(guard) == (3, 0)
        b.zero_()
        assert held(guard) == (0, 3)
        (y + z).backward()
        assert held(guard) == (0, 0)
    assert w.grad.tolist() == [5.0, 10.0, 12.0, 16.0]


def test_an_unwritten_value_is_the_very_tensor():
    with allow_mutation_on_saved_tensors():
        b = torch.ones(4)
        y = leaf() * b
        assert y.grad_fn._saved_other is b
        b.add_(1.0)
        assert y.grad_fn._saved_other is not b
        assert y.grad_fn._saved_other.tolist() == [1.0] * 4


def test_optimizers_may_step_while_a_graph_lives():
    def steps(guarded):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(8, 4)
        first, second = (model(x) ** 2).mean(), (model(x) ** 4).mean()
        parameters = list(model.parameters())
        late = None if guarded else torch.autograd.grad(second, parameters)
        first.backward()
        optimizer.step()
        return [g.tolist() for g in (late or torch.autograd.grad(second, parameters))]

    with allow_mutation_on_saved_tensors():
        got = steps(True)
    assert got == steps(False)


def test_in_place_through_views_inside():
    def f(t):
        y = t.clone()
        v = y.view(2, 2)
        z = v.sin()
        v[0].mul_(t[:2])
        y[1:3].exp_()
        return (z * v).sum() + y.sum()

    x = leaf()
    with allow_mutation_on_saved_tensors():
        got = torch.autograd.grad(f(x), x)[0].tolist()

    def pure(t):
        y = t.clone()
        z = y.view(2, 2).sin()
        y = torch.cat([y[:2] * t[:2], y[2:]])
        y = torch.cat([y[:1], y[1:3].exp(), y[3:]])
        return (z * y.view(2, 2)).sum() + y.sum()

    assert got == torch.autograd.grad(pure(x), x)[0].tolist()


def test_values_saved_before_are_not_its_affair():
    a = leaf()
    b = a * 1.0
    y = (b * b).sum()
    with allow_mutation_on_saved_tensors(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.mul_(5.0)
        y.backward()


def test_it_ends_with_its_block_and_does_not_nest():
    with pytest.raises(ZeroDivisionError), allow_mutation_on_saved_tensors():
        y = (leaf() * torch.ones(4)).sum()
        raise ZeroDivisionError
    with pytest.raises(AssertionError, match="outside of the 'allow_mutation_on_saved_tensors' context"):
        y.backward()
    with allow_mutation_on_saved_tensors(), pytest.raises(RuntimeError, match="cannot be nested"), allow_mutation_on_saved_tensors():
        pass
    with torch.autograd.graph.disable_saved_tensors_hooks("no pairs here"), pytest.raises(RuntimeError, match="no pairs here"):
        allow_mutation_on_saved_tensors().__enter__()
    with allow_mutation_on_saved_tensors():
        pass


def test_clear_lets_go_and_what_is_saved_later_is_kept_apart():
    with allow_mutation_on_saved_tensors() as guard:
        w, b = leaf(), torch.ones(4)
        old = (w * b).sum()
        guard.clear()
        assert held(guard) == (0, 0)
        new = (w * (b * 2.0)).sum()
        with pytest.raises(AssertionError, match=r"clear\(\) was called"):
            old.backward(retain_graph=True)
        del old
        new.backward()
    assert w.grad.tolist() == [2.0] * 4


class TestWithFrames:
    def test_around(self):
        x = leaf(0.5)
        f = Counting(lambda t: t.sin().exp())
        with allow_mutation_on_saved_tensors() as guard:
            h = x * 1.0
            y = ck(f, h)
            h.mul_(100.0)
            assert held(guard) == (0, 1)  # the frame's argument, parked with the guard
            y.sum().backward()
        assert f.runs == 2
        assert x.grad.tolist() == torch.autograd.grad(x.sin().exp(), x)[0].tolist()

    def test_inside(self):
        x = leaf(0.5)

        def f(t):
            with allow_mutation_on_saved_tensors():
                h = t * 1.0
                y = h.sin()
                h.mul_(3.0)
                return y.exp()

        got = torch.autograd.grad(ck(f, x), x)[0].tolist()
        assert got == torch.autograd.grad(x.sin().exp(), x)[0].tolist()

    def test_a_write_to_what_a_frame_captured_stays_an_error(self):
        with allow_mutation_on_saved_tensors():
            c = torch.ones(4)
            y = ck(lambda t: (t + c).sin(), leaf())
            c.add_(1.0)
            with pytest.raises(torch.utils.checkpoint.CheckpointError, match="read from outside"):
                y.sum().backward()


class TestNumpy:
    """Writes through a numpy array are announced to nobody: the guard copies beforehand what an array could change."""

    def test_an_array_made_after_the_save_copies_then(self):
        with allow_mutation_on_saved_tensors() as guard:
            b, w = torch.ones(4), leaf()
            y = (w * b).sum()
            assert held(guard) == (1, 0)
            array = b.numpy()
            assert held(guard) == (0, 1)
            array[:] = 7.0
            y.backward()
        assert w.grad.tolist() == [1.0] * 4

    @pytest.mark.parametrize("lend", [lambda b: b.numpy(), np.asarray, lambda b: b.view(2, 2).numpy()], ids=["numpy", "asarray", "view"])
    def test_while_it_lives_saves_copy(self, lend):
        with allow_mutation_on_saved_tensors() as guard:
            b, w = torch.ones(4), leaf()
            array = lend(b)
            first = (w * b).sum()
            array[...] = 3.0
            second = (w * b).sum()
            assert held(guard) == (0, 2)
            del array
            third = (w * b).sum()
            assert held(guard) == (1, 2)
            got = [torch.autograd.grad(y, w)[0].tolist() for y in (first, second, third)]
        assert got == [[1.0] * 4, [3.0] * 4, [3.0] * 4]

    def test_a_slice_of_the_array_keeps_the_loan(self):
        with allow_mutation_on_saved_tensors() as guard:
            b, w = torch.ones(4), leaf()
            part = b.numpy()[1:]
            y = (w * b).sum()
            assert held(guard) == (0, 1)
            part[:] = 9.0
            y.backward()
        assert w.grad.tolist() == [1.0] * 4

    def test_memory_borrowed_from_numpy(self):
        with allow_mutation_on_saved_tensors() as guard:
            array, w = np.ones(4, dtype=np.float32), leaf()
            y = (w * torch.from_numpy(array)).sum()
            assert held(guard) == (0, 1)
            array[:] = 7.0
            y.backward()
        assert w.grad.tolist() == [1.0] * 4

    def test_read_only_memory_needs_no_copy(self):
        array = np.ones(4, dtype=np.float32)
        array.flags.writeable = False
        with allow_mutation_on_saved_tensors() as guard, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once a process
            y = (leaf() * torch.from_numpy(array)).sum()
            assert held(guard) == (1, 0)
            y.backward()

    def test_outside_nothing_changes(self):
        b, w = torch.ones(4), leaf()
        y = (w * b).sum()
        before = storages()
        array = b.numpy()
        assert storages() == before
        array[:] = 2.0
        assert b._version == 0
        assert y.grad_fn.next_functions[0][0]._saved_other is b
        y.backward()
        assert w.grad.tolist() == [2.0] * 4  # as the docstring of numpy() says
        assert "wrong gradient" in torch.Tensor.numpy.__doc__
        assert array.base.tensor.tolist() == [2.0] * 4

