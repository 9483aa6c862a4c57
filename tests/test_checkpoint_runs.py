"""A frame runs its function again when a value is needed, as far as needed, and gives plain code's gradients whatever user code does
meanwhile: exceptions caught, generators, inner gradients, nesting, containers, hooks.
"""

from __future__ import annotations

import inspect
import pickle
import threading

import pytest
import stowgrad as torch
from frames import Counting, ck, gradients, leaf
from stowgrad.utils.checkpoint import GraphExecGroup, checkpoint, checkpoint_sequential, set_checkpoint_early_stop

PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


@program
def catches_exceptions_around_the_last_save(t):
    y = t.sin()
    try:
        z = y.exp()
    except Exception:
        z = y
    return z.cos()


@program
def catches_everything_and_goes_on(t):
    y = t.sin()
    try:
        z = y.exp().cos()
    except BaseException:
        z = y
    return z


@program
def turns_everything_into_its_own_error(t):
    class Mine(Exception):
        pass

    try:
        return t.sin().exp()
    except BaseException as e:
        raise Mine("converted") from e


@program
def returns_in_finally(t):
    y = t.sin()
    try:
        y = y.exp()
    finally:
        return y  # noqa: B012 - what is tested


@program
def computes_in_finally(t):
    y = t.sin()
    try:
        z = y.exp()
    finally:
        w = y.cos()
    return z + w


@program
def yields_from_a_generator(t):
    def parts():
        for i in range(3):
            yield t.sin() * (i + 1.0)

    return sum(parts()).exp()


@program
def leaves_grad_mode_for_a_while(t):
    with torch.no_grad():
        c = t.exp()
    return (t * c).sin()


@program
def differentiates_inside_and_keeps_the_graph(t):
    z = t.sin().exp()
    (d,) = torch.autograd.grad(z.sum(), t, create_graph=True)
    return d * t.exp()


@program
def differentiates_inside_and_frees(t):
    z = (t.sin() * t).exp()
    (d,) = torch.autograd.grad(z.sum(), t)
    return (t.cos() * d).exp()


@program
def writes_in_place(t):
    y = t * 2.0
    y.sin_()
    y[1:].mul_(3.0)
    return y.exp()


@program
def writes_through_views_of_views(t):
    y = t.clone()
    v = y.view(2, -1)[1]
    v.mul_(t[:2]).exp_()
    return y * v.sum()


@program
def nests(t):
    def inner(u):
        return ck(lambda v: v.sin().exp(), u).cos() * u

    return ck(lambda u: ck(inner, u) + ck(torch.tanh, u), t * 0.5)


@program
def passes_containers(t):
    def inner(pair, scale=None, more=None):
        return pair[0] * pair[1]["a"] + scale.exp() * more[0]

    return ck(inner, [t, {"a": t.cos()}], scale=t.sin(), more=(t,))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"early_stop": False}, {"determinism_check": "values"}, {"determinism_check": "none"}], ids=str)
def test_a_checkpointed_program_has_the_gradients_of_the_plain_one(name, options):
    function = PROGRAMS[name]
    if name == "differentiates_inside_and_frees":  # its second derivative is not that of a fixed function of t
        x = leaf()
        want = torch.autograd.grad(function(x).sum(), x)[0].tolist()
        assert torch.autograd.grad(ck(function, x, **options).sum(), x)[0].tolist() == want
        return
    assert gradients(lambda x: ck(function, x, **options), leaf()) == gradients(function, leaf())


def test_how_it_is_called():
    x = leaf()
    assert "*args" in str(inspect.signature(checkpoint))
    assert checkpoint(function=torch.sin, input=x).tolist() == x.sin().tolist()
    assert checkpoint(lambda t, *, scale: t * scale, x, scale=3.0).tolist() == (x * 3).tolist()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'function'"):
        checkpoint()
    with pytest.raises(TypeError, match="multiple values for argument 'function'"):
        checkpoint(torch.sin, x, function=2)
    with pytest.raises(TypeError, match="must be callable, not Tensor"):
        checkpoint(x, x)
    with pytest.raises(ValueError, match="determinism_check should be one of"):
        checkpoint(torch.sin, x, determinism_check=3)
    with pytest.raises(TypeError):
        checkpoint(torch.sin, x, nosuch=1)
    assert pickle.loads(pickle.dumps(checkpoint)) is checkpoint


def test_one_container_stays_one_and_may_hold_itself():
    def grown(a, b):
        a.append(a[0] * 3)
        return b[-1].sin()

    x = leaf(1.0)
    for call in (lambda f, v: f(v, v), lambda f, v: f(v, b=v), lambda f, v: f(*(v,) * 2)):
        shared = [x * 2]
        (plain,) = torch.autograd.grad(call(grown, [x * 2]), x)
        y = call(lambda *a, **k: checkpoint(grown, *a, **k), shared)
        assert torch.autograd.grad(y, x)[0].tolist() == plain.tolist()

    own = [x]
    own.append(own)
    table = {"x": x}
    table["self"] = table
    deep = [x]
    for _ in range(100_000):
        deep = [deep]
    seen = []

    def first(v, d, deep):
        seen.append((v[1] is v, d["self"] is d))
        return v[0].sin() * d["x"].cos()

    checkpoint(first, own, d=table, deep=deep).backward()
    assert seen == [(True, True)] * 2
    assert abs(x.grad.item() - torch.tensor(2.0).cos().item()) < 1e-6
    while deep:  # taken apart here: the interpreter would go down by recursion
        deep = deep[0] if isinstance(deep, list) and isinstance(deep[0], list) else None


def test_settings_are_those_of_their_thread():
    x, runs = leaf(), []

    def two(t):
        runs.append(threading.get_ident())
        y = t.sin()
        runs.append("between")
        return y.exp().cos(), y.detach()

    def run():
        checkpoint(two, x)[0].sum().backward()

    with torch.utils.checkpoint.set_checkpoint_early_stop(False), torch.utils.checkpoint.set_checkpoint_debug_enabled(True):
        other = threading.Thread(target=run)
        other.start()
        other.join()
        flag = [True]
        y = checkpoint(lambda t: t.sin() if flag[0] else t.cos(), x)
        flag[0] = False
        with pytest.raises(torch.utils.checkpoint.CheckpointError, match="Saved during the forward pass"):
            y.sum().backward()
    flag[0] = True
    y = checkpoint(lambda t: t.sin() if flag[0] else t.cos(), x)
    flag[0] = False
    with pytest.raises(torch.utils.checkpoint.CheckpointError, match="Pass debug=True"):
        y.sum().backward()
    assert len(runs) == 4


def test_forward_runs_once_and_each_backward_once():
    f = Counting(lambda t: (t.sin().exp() * t).exp())
    x = leaf()
    y = ck(f, x).sum()
    assert f.runs == 1
    y.backward(retain_graph=True)
    assert f.runs == 2
    y.backward()
    assert f.runs == 3


def test_nothing_runs_again_where_nothing_is_saved():
    f = Counting(lambda t: t + t)
    ck(f, leaf()).sum().backward()
    assert f.runs == 1
    g = Counting(torch.exp)
    with torch.no_grad():
        assert not ck(g, leaf()).requires_grad
    assert g.runs == 1


@pytest.mark.parametrize("stop, ran", [(True, "ab"), (False, "abc")])
def test_a_run_stops_at_the_last_value_that_lives(stop, ran):
    log = []

    def f(t):
        log.append("a")
        first = t.sin().exp()
        log.append("b")
        second = (first * 2.0).cos().exp()
        log.append("c")
        return first, second

    with set_checkpoint_early_stop(stop):
        first, second = ck(f, leaf())
    log.clear()
    second.sum().backward(retain_graph=True)
    assert "".join(log) == ran
    log.clear()
    del second
    first.sum().backward()
    assert "".join(log) == ("a" if stop else "abc")


def test_a_look_at_a_saved_value_runs_up_to_it_and_keeps_nothing():
    f = Counting(lambda t: t.sin().exp().cos().exp())
    y = ck(f, leaf())
    node = y.grad_fn
    assert node._saved_result.tolist() == y.tolist()
    assert node._saved_result is not node._saved_result
    assert f.runs == 4


def test_a_value_asked_for_twice_in_one_backward_is_computed_again():
    f = Counting(lambda t: t.sin().exp())
    y = ck(f, leaf())
    node = y.grad_fn
    seen = []
    y.register_hook(lambda g: seen.append((node._saved_result.tolist(), node._saved_result.tolist())))
    y.sum().backward()
    assert seen == [(y.tolist(), y.tolist())]
    # the hook's two looks, and the value that backward itself needs
    assert f.runs == 4


def test_only_the_part_asked_for_runs():
    f = Counting(lambda t, u: t.sin().exp() + u.cos().exp())
    x, z = leaf(), leaf()
    y = ck(f, x, z)
    (dx,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    assert f.runs == 2
    assert torch.autograd.grad(y.sum(), [x, z])[0].tolist() == dx.tolist()
    assert f.runs == 3


def test_an_error_in_the_second_run_passes_through_and_the_graph_stays_usable():
    n = []

    def f(t):
        n.append(1)
        y = t.sin()
        if len(n) == 2:
            raise ValueError("second")
        return y.exp()

    x = leaf()
    y = ck(f, x).sum()
    with pytest.raises(ValueError, match="second"):
        y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == torch.autograd.grad(x.sin().exp().sum(), x)[0].tolist()


def test_an_interrupt_is_never_taken_for_the_end_of_a_run():
    n = []

    def f(t):
        n.append(1)
        y = t.sin()
        try:
            return y.exp()
        except BaseException as stopped:
            raise KeyboardInterrupt from stopped

    y = ck(f, leaf())
    with pytest.raises(KeyboardInterrupt):
        y.sum().backward()


def test_backward_may_run_under_no_grad():
    x = leaf()
    y = ck(lambda t: t.sin().exp(), x).sum()
    with torch.no_grad():
        y.backward()
    assert x.grad.tolist() == torch.autograd.grad(x.sin().exp().sum(), x)[0].tolist()


def test_arguments_are_rebuilt_for_each_run():
    w = leaf(3.0)

    def f(values, more=None):
        values.append(values[-1] * w)
        more["x"] = values[-1]
        return (values[-1] * values[0]).sin()

    def run(call):
        x = leaf(2.0)
        values, more = [x * 1.0], {}
        y = call(f, values, more=more)
        y.sum().backward()
        return len(values), list(more), x.grad.tolist(), w.grad.tolist()

    plain = run(lambda f, *a, **k: f(*a, **k))
    w.grad = None
    got = run(ck)
    assert got[2:] == plain[2:]
    # the function was given its own containers only in the run for backward: the first call has the caller's
    assert got[:2] == plain[:2]


def test_threads_that_share_a_frame_get_right_gradients():
    x = leaf(*(0.1 * i for i in range(8)))

    def trunk(t):
        for _ in range(4):
            t = t.sin() + t.cos()
        return torch.nn.functional.dropout(t, 0.5, True) * t

    h = ck(trunk, x)
    want = torch.autograd.grad(h.sum(), x, retain_graph=True)[0].tolist()
    heads = [(h * float(2**i)).sum() for i in range(4)]
    wrong = []

    def work(i):
        try:
            for _ in range(30):
                (g,) = torch.autograd.grad(heads[i], x, retain_graph=True)
                if [v / 2**i for v in g.tolist()] != want:
                    wrong.append(i)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_frames_nest_to_forty():
    def nest(depth):
        return torch.sin if depth == 0 else lambda t: ck(nest(depth - 1), t).sin()

    x = leaf()
    want = x
    for _ in range(41):
        want = want.sin()
    assert torch.autograd.grad(ck(nest(40), x).sum(), x)[0].tolist() == torch.autograd.grad(want.sum(), x)[0].tolist()


def test_sequential_checkpoints_all_but_the_last_part():
    steps = [Counting(f) for f in (torch.sin, torch.cos, torch.exp, torch.tanh)]
    x = leaf()
    y = checkpoint_sequential(steps, 2, x, use_reentrant=False)
    y.sum().backward()
    assert [s.runs for s in steps] == [2, 2, 1, 1]
    assert x.grad.tolist() == torch.autograd.grad(x.sin().cos().exp().tanh().sum(), x)[0].tolist()


def test_the_old_variant_warns_and_refuses_what_it_cannot_do():
    linear = torch.nn.Linear(3, 3)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        assert not checkpoint(linear, torch.ones(2, 3), use_reentrant=True).requires_grad
    x = leaf()
    y = checkpoint(torch.exp, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match=r"incompatible with .grad\(\)"):
        torch.autograd.grad(y.sum(), x)
    checkpoint(torch.exp, x, use_reentrant=True).sum().backward()
    assert x.grad.tolist() == x.exp().tolist()


def test_contexts_for_both_runs():
    log = []

    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append("+" + self.name)

        def __exit__(self, kind, value, trace):
            log.append("-" + self.name)

    y = ck(lambda t: t.sin().exp(), leaf(), context_fn=lambda: (Context("first"), Context("again")))
    assert log == ["+first", "-first"]
    y.sum().backward()
    assert log == ["+first", "-first", "+again", "-again"]
    with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
        checkpoint(torch.sin, leaf(), use_reentrant=True, debug=True)


class TestGroups:
    def test_calls_of_a_group_share_one_run(self):
        f = Counting(lambda t: (t.sin().exp(), t.cos().exp(), t.tanh()))
        x = leaf()
        want = [torch.autograd.grad(o.sum(), x)[0].tolist() for o in f.function(x)]
        a, b, c = ck(f, x)
        got = []
        with GraphExecGroup():
            for i, o in enumerate((a, b, c)):
                got.append(torch.autograd.grad(o.sum(), x, retain_graph=i < 2)[0].tolist())
        assert (got, f.runs) == (want, 2)

    def test_without_one_each_call_runs_the_region(self):
        f = Counting(lambda t: (t.sin().exp(), t.cos().exp()))
        x = leaf()
        a, b = ck(f, x)
        a.sum().backward(retain_graph=True)
        b.sum().backward()
        assert f.runs == 3

    def test_what_is_left_over_goes_with_the_group(self):
        x = leaf()
        a, _b = ck(lambda t: (t.sin().exp(), t.cos().exp()), x)
        before = torch.memory_stats()["storages"]
        with GraphExecGroup() as group:
            assert GraphExecGroup._get_current_group() is group
            torch.autograd.grad(a.sum(), x, retain_graph=True)
            assert torch.memory_stats()["storages"] > before
        assert GraphExecGroup._get_current_group() is None
        assert torch.memory_stats()["storages"] == before

    def test_a_part_used_twice_is_computed_again(self):
        f = Counting(lambda t: t.sin().exp())
        x = leaf()
        y = ck(f, x).sum()
        with GraphExecGroup():
            (first,) = torch.autograd.grad(y, x, retain_graph=True)
            (again,) = torch.autograd.grad(y, x)
        assert first.tolist() == again.tolist()
        assert f.runs > 2

    def test_nested_frames_share_too(self):
        f = Counting(torch.exp)
        x = leaf()

        def outer(t):
            return ck(f, t.sin()), ck(f, t.cos())

        want = [torch.autograd.grad(o.sum(), x)[0].tolist() for o in (x.sin().exp(), x.cos().exp())]
        a, b = ck(outer, x)
        runs = f.runs
        with GraphExecGroup():
            got = [torch.autograd.grad(a.sum(), x, retain_graph=True)[0].tolist(), torch.autograd.grad(b.sum(), x)[0].tolist()]
        assert got == want
        shared = f.runs - runs
        c, d = ck(outer, x)
        runs = f.runs
        torch.autograd.grad(c.sum(), x, retain_graph=True)
        torch.autograd.grad(d.sum(), x)
        assert shared < f.runs - runs

    def test_one_inside_another_is_an_error_and_exits_leave_none_open(self):
        with GraphExecGroup():
            with pytest.raises(RuntimeError, match="nested"), GraphExecGroup():
                pass
        with pytest.raises(ZeroDivisionError), GraphExecGroup():
            raise ZeroDivisionError
        with GraphExecGroup():
            pass
