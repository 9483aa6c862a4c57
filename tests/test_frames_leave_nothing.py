"""When its graph is gone, nothing of a frame, a guard or a hook is left: at once where no cycle is, through the collector where one is."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import stowgrad as torch
from frames import NoCollector, ck, leaf, saved, storages
from stowgrad.autograd.graph import allow_mutation_on_saved_tensors, register_multi_grad_hook, saved_tensors_hooks


def f(t):
    return ((t * 2.0).sin().exp() * t).sin().exp()


class Stop(Exception):
    pass


def stop(_):
    raise Stop


def stopped(call):
    try:
        call()
    except Stop as e:
        e.__traceback__ = None
        return
    raise AssertionError("did not stop")


SITUATIONS = {}


def situation(f):
    SITUATIONS[f.__name__] = f
    return f


@situation
def dropped_without_backward():
    ck(f, leaf())


@situation
def an_output_dropped_inside_a_chain():
    x = leaf()
    ck(f, x * 2.0)
    y = ck(f, x)  # noqa: F841 - dropped with the frame


@situation
def backward():
    ck(f, leaf()).sum().backward()


@situation
def retained_and_run_twice():
    y = ck(f, leaf()).sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)


@situation
def error_at_the_start_of_backward():
    y = ck(f, leaf())
    y.register_hook(stop)
    stopped(y.sum().backward)


@situation
def error_half_way():
    m = leaf() * 2.0
    m.register_hook(stop)
    y = ck(f, m)
    stopped(lambda: y.sum().backward(retain_graph=True))


@situation
def error_in_the_second_run():
    n = []

    def h(t):
        n.append(1)
        u = t.sin().exp()
        if len(n) == 2:
            raise Stop
        return u.sin()

    y = ck(h, leaf())
    stopped(y.sum().backward)


@situation
def error_in_the_first_run():
    def h(t):
        u = t.sin().exp()  # noqa: F841 - saved, and then the error
        raise Stop

    stopped(lambda: ck(h, leaf()))


@situation
def a_look():
    y = ck(f, leaf())
    assert y.grad_fn._saved_result is not None


@situation
def nested():
    def h(t):
        return ck(f, ck(f, t) * 0.1)

    ck(lambda t: ck(h, t) * 0.1, leaf()).sum().backward()


@situation
def second_derivatives():
    x = leaf()
    y = ck(lambda t: ck(f, t) * t, x)
    (d,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.autograd.grad(d.sum(), x)


@situation
def part_of_the_inputs():
    x, z = leaf(), leaf()
    y = ck(lambda a, b: a.sin().exp() + b.cos().exp(), x, z)
    torch.autograd.grad(y.sum(), [x], retain_graph=True)
    before = storages()
    torch.autograd.grad(y.sum(), [x], retain_graph=True)
    assert storages() == before, "values of branches that did not run stayed"


@situation
def a_custom_function_in_a_frame():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx, g):
            return 2.0 * ctx.saved_tensors[0] * g

    x = leaf()
    ck(lambda t: Square.apply(t.sin()).exp(), x).sum().backward()


@situation
def in_place_through_views_in_a_frame():
    def h(t):
        y = t.clone()
        y.view(2, 2)[0].mul_(t[:2]).exp_()
        return y.sin()

    ck(h, leaf()).sum().backward()


@situation
def guarded():
    with allow_mutation_on_saved_tensors() as held:
        h = leaf() * 2.0
        y = (h * h).sum()
        h.mul_(3.0)
        y.backward()
        del h
        assert len(held.original) == len(held.cloned) == 0


@situation
def a_guard_left_by_an_error():
    def body():
        with allow_mutation_on_saved_tensors():
            h = leaf() * 2.0
            y = (h * h).sum()  # noqa: F841 - saved, and then the error
            h.mul_(3.0)
            raise Stop

    stopped(body)


@situation
def a_guard_around_frames_around_hooks():
    with allow_mutation_on_saved_tensors():
        h = leaf() * 2.0

        def region(t):
            with saved_tensors_hooks(lambda v: v.tolist(), torch.tensor):
                return t.sin().exp()

        y = ck(region, h).sum()
        h.zero_()
        y.backward()


@situation
def a_multi_hook_in_a_call_that_fails():
    m = leaf() * 2.0
    n = m.sin()
    register_multi_grad_hook((m, n), lambda grads: None)
    m.register_hook(stop)
    stopped(n.sum().backward)


HANDLES = []


@situation
def a_multi_hook_whose_handle_lives():
    m = leaf() * 2.0
    HANDLES.append(register_multi_grad_hook((m, m.sin()), lambda grads: None))


@situation
def a_chain_of_100_000_frames():
    h = leaf()
    for _ in range(100_000):
        h = ck(lambda t: t * 0.999, h)


@situation
def a_chain_of_10_000_frames_that_runs():
    h = leaf()
    for _ in range(10_000):
        h = ck(torch.sin, h)
    h.sum().backward()


@situation
def another_threads_frames():
    def work():
        ck(lambda t: ck(f, t), leaf()).sum().backward()

    t = threading.Thread(target=work)
    t.start()
    t.join()


@pytest.mark.parametrize("name", SITUATIONS)
def test_nothing_is_left_and_nothing_waits_for_the_collector(name):
    with NoCollector():
        before = storages(), saved()
        SITUATIONS[name]()
        assert (storages(), saved()) == before
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    with pytest.raises(RuntimeError, match="no saved-tensor hooks are open"):
        torch._C._autograd._pop_saved_tensors_default_hooks()


def test_leaving_a_guard_lets_go_of_what_it_holds():
    x = leaf()
    before = storages()
    with allow_mutation_on_saved_tensors():
        h = x * 2.0
        y = (h * h).sum()
        h.mul_(3.0)
        del h
    assert storages() - before == 1  # y itself
    assert y.shape == ()


class Token:
    pass


CYCLES = {}


def cycle(f):
    CYCLES[f.__name__] = f
    return f


@cycle
def a_closure_that_holds_its_output(token, x):
    box = [token]
    box.append(ck(lambda t: (box, f(t))[1], x))


@cycle
def a_module_that_keeps_its_last_output(token, x):
    class Module:
        def f(self, t):
            return (t.sin().exp() * t).exp()

    m = Module()
    m.token = token
    m.out = ck(m.f, x)


@cycle
def an_argument_list_that_holds_the_output(token, x):
    values = [token]
    values.append(ck(lambda a, b: a.sin().exp(), x, values))


@cycle
def a_nested_closure(token, x):
    box = [token]
    box.append(ck(lambda t: ck(lambda u: (box, u.sin().exp())[1], t).cos().exp(), x))


@cycle
def a_context_that_holds_the_output(token, x):
    class Context:
        def __enter__(self):
            pass

        def __exit__(self, *args):
            pass

    first, again = Context(), Context()
    again.token = token
    again.out = ck(f, x, context_fn=lambda: (first, again))


@cycle
def a_hook_on_the_output(token, x):
    y = (x * x).exp()
    y.register_hook(lambda g: (token, y))


@cycle
def a_hook_on_a_saved_value_closing_over_the_head(token, x):
    a = x * 2.0
    y = a.sin()  # keeps a in a slot, and an edge to its node
    a.register_hook(lambda g: (token, y))


@cycle
def a_hook_on_a_saved_value_closing_over_itself_and_the_head(token, x):
    a = x * 2.0
    y = a.sin()
    a.register_hook(lambda g: (token, a, y))


@cycle
def a_hook_on_a_value_saved_twice(token, x):
    a = x * 2.0
    y, z = a.sin(), a * a
    a.register_hook(lambda g: (token, y, z, a))


@cycle
def a_hook_far_down_a_chain_of_saved_values(token, x):
    a = h = x * 2.0
    for _ in range(20):
        h = h.sin()
    a.grad_fn.register_hook(lambda gi, go: (token, h))


@cycle
def a_packed_object_that_holds_the_output(token, x):
    box = [token]
    with saved_tensors_hooks(lambda t: (t.detach(), box), lambda p: p[0]):
        box.append((x * x).exp())


@cycle
def an_attribute_of_a_saved_value(token, x):
    a = x * 2.0
    y = a * a
    a.note = (token, y)


@cycle
def an_attribute_of_the_gradient(token, x):
    (x * x).sum().backward()
    x.grad.note = (token, x)


@cycle
def a_guards_original(token, x):
    with allow_mutation_on_saved_tensors():
        a = x * 2.0
        y = a.sin()
        a.note = (token, y)


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_is_collected(name):
    gc.collect()
    before = storages()
    token = Token()
    CYCLES[name](token, leaf())
    alive = weakref.ref(token)
    del token
    gc.collect()
    assert alive() is None
    assert storages() == before


class TestWhatLivesIsLeftAlone:
    """The collector's walk must not take what another owner still reaches."""

    def test_another_output_of_the_frame(self):
        x = leaf()

        def make():
            token = Token()
            box = [token]
            a, b = ck(lambda t: (box[0], t.sin().exp(), t.cos().exp())[1:], x)
            box.append(a)
            return weakref.ref(token), b

        alive, b = make()
        gc.collect()
        assert alive() is not None
        b.sum().backward()
        assert x.grad.tolist() == torch.autograd.grad(x.cos().exp().sum(), x)[0].tolist()
        del b
        gc.collect()
        assert alive() is None

    def test_a_hook_on_a_value_that_a_living_node_reaches_and_a_dead_one_saved(self):
        calls = []

        def make():
            a = leaf() * 2.0
            y = a.sin()  # saves a
            a.register_hook(lambda g: calls.append(y))
            a.me = a
            return (a * 3.0).sum()  # saves the number alone

        kept = make()
        gc.collect()
        kept.backward()
        assert len(calls) == 1

    def test_a_hook_on_a_value_that_went_over_to_another_node(self):
        calls = []
        a = leaf() * 2.0
        y = a.sin().sum()
        a.register_hook(lambda g: calls.append(1))
        a.detach_()
        a.me = a
        del a
        gc.collect()
        y.backward()
        assert calls == [1]

    def test_a_hook_on_a_value_that_its_consumer_no_longer_keeps(self):
        calls = []
        a = leaf() * 2.0
        z = a.sin()
        a.register_hook(lambda g: calls.append(1))
        torch.autograd.grad(z.sum(), leaf(), allow_unused=True)
        torch.autograd.grad(z.sum(), a)  # lets go of the slot: the edge is an owner of its own now
        assert calls == [1]
        a.me = a
        del a
        gc.collect()
        (node, nr) = z.grad_fn.next_functions[0]
        edge = torch.autograd.graph.GradientEdge(node, nr)
        torch.autograd.backward([edge], [torch.ones(4)])
        assert calls == [1, 1]
