"""Pairs of hooks see what torch's see, as often; nothing is left behind by what they raise."""

import gc
import threading
import weakref

import pytest
import stowgrad as torch
from stowgrad.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks


def saved():
    return torch.memory_stats()["saved"]["live"]


class Count:
    """A pair that counts its calls."""

    def __init__(self):
        self.packs = self.unpacks = 0
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, t):
        self.packs += 1
        return t

    def unpack(self, t):
        self.unpacks += 1
        return t

    def calls(self):
        return self.packs, self.unpacks


def leaf(n=3):
    return torch.arange(1.0, n + 1, requires_grad=True)


def test_each_save_packs_once_and_each_use_unpacks_once():
    count, a, b = Count(), leaf(), leaf()
    with count.hooks:
        y = (a * b).exp()
    assert count.calls() == (3, 0)
    y.sum().backward(retain_graph=True)
    assert count.calls() == (3, 3)
    y.sum().backward()
    assert count.calls() == (3, 6)
    assert torch.equal(a.grad, 2 * b.detach() * (a.detach() * b.detach()).exp())


def test_only_what_a_wanted_formula_reads_is_packed():
    count, a, c = Count(), leaf(), torch.ones(3)
    with count.hooks:
        y = a * c + 1.0
        _ = c * c
    assert count.calls() == (1, 0)
    y.sum().backward()
    assert count.calls() == (1, 1)


def test_of_nested_pairs_the_innermost_takes_the_save():
    outer, inner, a = Count(), Count(), leaf()
    with outer.hooks:
        x = a.exp()
        with inner.hooks:
            y = x.tanh()
        z = y.exp()
    z.sum().backward()
    assert (outer.calls(), inner.calls()) == ((2, 2), (1, 1))


def test_pairs_belong_to_their_thread():
    count, seen = Count(), []

    def work():
        other = leaf()
        other.exp().sum().backward()
        seen.append(count.calls())

    with count.hooks:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [(0, 0)]
        leaf().exp()
    assert count.calls() == (1, 0)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_what_pack_raises_passes_through_and_leaves_nothing(error):
    a, before = leaf(), saved()

    def pack(t):
        raise error

    with saved_tensors_hooks(pack, lambda t: t), pytest.raises(type(error)):
        a.exp()
    assert saved() == before
    count = Count()
    with count.hooks:
        a.exp().sum().backward()
    assert count.calls() == (1, 1)


def test_what_unpack_raises_passes_through_and_the_graph_can_be_walked_again():
    a, fail = leaf(), [True]

    def unpack(t):
        if fail:
            fail.pop()
            raise ValueError("mine")
        return t

    with saved_tensors_hooks(lambda t: t, unpack):
        y = a.exp().sum()
    with pytest.raises(ValueError, match="mine"):
        y.backward()
    assert a.grad is None
    y.backward()
    assert torch.equal(a.grad, a.detach().exp())


@pytest.mark.parametrize(
    ("unpacked", "error", "text"),
    [
        (lambda t: None, TypeError, "unpack_hook expected to be a Tensor but got result of type NoneType"),
        (lambda t: t[:2], RuntimeError, "shape"),
        (lambda t: t.double(), RuntimeError, "float64"),
    ],
)
def test_what_is_not_what_was_packed_is_refused(unpacked, error, text):
    a, before = leaf(), saved()
    with saved_tensors_hooks(lambda t: t.detach().clone(), unpacked):
        y = a.exp().sum()
    with pytest.raises(error, match=text):
        y.backward()
    del y
    assert saved() == before


def test_pack_may_not_write_to_its_argument():
    with saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t), pytest.raises(RuntimeError, match="modifying its input"):
        leaf().exp()


def test_pack_runs_without_grad_and_any_object_will_do():
    a, modes, alive = leaf(), [], []

    class Packed:
        def __init__(self, t):
            modes.append(torch.is_grad_enabled())
            self.numbers = t.tolist()
            alive.append(weakref.ref(self))

    with saved_tensors_hooks(Packed, lambda p: torch.tensor(p.numbers)):
        y = a.exp().sum()
    gc.disable()
    try:
        assert modes == [False] and alive[0]() is not None
        y.backward()
        assert alive[0]() is None, "what pack returned lives as long as the slot"
    finally:
        gc.enable()
    assert torch.allclose(a.grad, a.detach().exp())


def test_values_on_the_cpu_stay_where_they_are_and_are_checked():
    a = leaf(1000)
    plain = a.exp()
    whole = saved()
    del plain
    before = saved()
    with save_on_cpu():
        y = a.exp()
    assert saved() - before == whole - before == 4000
    y.sum().backward(retain_graph=True)
    assert torch.equal(a.grad, a.detach().exp())
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_save_on_cpu_is_the_innermost_pair():
    count = Count()
    with count.hooks, save_on_cpu():
        leaf().exp().sum().backward()
    assert count.calls() == (0, 0)


def test_pinned_memory_is_a_copy():
    a = leaf()
    with save_on_cpu(pin_memory=True):
        y = a.exp()
    with torch.no_grad():
        y.add_(1)
    y.sum().backward()
    assert torch.equal(a.grad, a.detach().exp())


def test_disabled_hooks_refuse_every_pair():
    with disable_saved_tensors_hooks("not here"):
        for pair in (Count().hooks, save_on_cpu(), save_on_cpu(pin_memory=True)):
            with pytest.raises(RuntimeError, match="not here"):
                pair.__enter__()
    with Count().hooks, pytest.raises(RuntimeError, match="nor with one open"):
        disable_saved_tensors_hooks("nor with one open").__enter__()


def test_indices_that_an_operation_saved_have_no_history():
    a = torch.rand(2, 1, 4, 4, requires_grad=True)
    y = torch.nn.functional.max_pool2d(a, 2)
    indices = y.grad_fn._saved_result1
    assert indices.dtype is torch.int64 and not indices.requires_grad and indices.grad_fn is None
