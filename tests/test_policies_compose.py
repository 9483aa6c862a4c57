"""Policies nest in each other in any order, and every pair of them gives the gradients of plain code, with the packs that it should make."""

from __future__ import annotations

import itertools
import weakref

import pytest
import stowgrad as torch
from frames import Counting, ck, gradients, leaf, saved, storages
from stowgrad.autograd.graph import allow_mutation_on_saved_tensors, disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from stowgrad.stow import compose, release


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * t

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return 2.0 * t * g


class Hooks:
    """A pair that counts, as a way of calling a function."""

    def __init__(self):
        self.packs = self.unpacks = 0

    def pack(self, t):
        self.packs += 1
        return t.tolist(), t.dtype

    def unpack(self, packed):
        self.unpacks += 1
        return torch.tensor(packed[0], dtype=packed[1])

    def __call__(self, f, t):
        with saved_tensors_hooks(self.pack, self.unpack):
            return f(t)


def on_cpu(f, t):
    with save_on_cpu():
        return f(t)


def pinned(f, t):
    with save_on_cpu(pin_memory=True):
        return f(t)


def custom(f, t):
    return f(Square.apply(t).sqrt())


def disabled(f, t):
    """Pairs are refused while `f` runs; frames are no pairs, and go on."""
    with disable_saved_tensors_hooks("not here"):
        return f(t)


def in_place(f, t):
    y = t * 1.0
    y[:2].mul_(t[2:])
    return f(y)


WAYS = {"frame": ck, "cpu": on_cpu, "pinned": pinned, "custom": custom, "views": in_place, "disabled": disabled}


def body(t):
    return (t.sin() * t).exp()


@pytest.mark.parametrize("names", list(itertools.product([*WAYS, "hooks"], repeat=2)), ids="-".join)
def test_each_pair_gives_plain_gradients(names):
    if names[0] == "disabled" and names[1] in ("hooks", "cpu", "pinned"):
        with pytest.raises(RuntimeError, match="not here"):
            disabled(lambda t: WAYS.get(names[1], Hooks())(body, t), leaf())
        return
    if names[1] == "disabled" and names[0] in ("hooks", "cpu", "pinned", "frame"):  # a policy is open: as in torch, that is refused
        with pytest.raises(RuntimeError, match="not here"):
            WAYS.get(names[0], Hooks())(lambda t: disabled(body, t), leaf())
        return
    identity = {n: (lambda f, t: f(t)) for n in ("frame", "cpu", "pinned", "hooks", "disabled")}
    outer, inner = (WAYS.get(n) or Hooks() for n in names)
    plain_outer, plain_inner = (identity.get(n) or WAYS[n] for n in names)
    before = storages()
    got = gradients(lambda t: outer(lambda u: inner(body, u), t), leaf())
    want = gradients(lambda t: plain_outer(lambda u: plain_inner(body, u), t), leaf())
    assert got == want
    assert storages() == before


# not `save_on_cpu()`: on the CPU its pack keeps the very tensor, which is its own affair
@pytest.mark.parametrize("names", list(itertools.product(["frame", "pinned", "custom", "views", "hooks"], repeat=2)), ids="-".join)
def test_each_pair_gives_plain_gradients_under_a_guard_that_copies(names):
    identity = {n: (lambda f, t: f(t)) for n in ("frame", "pinned", "hooks")}
    outer, inner = (WAYS.get(n) or Hooks() for n in names)
    plain_outer, plain_inner = (identity.get(n) or WAYS[n] for n in names)
    x = leaf()
    want = torch.autograd.grad(plain_outer(lambda u: plain_inner(body, u), x * 1.0).sum(), x)[0].tolist()
    with allow_mutation_on_saved_tensors():
        h = x * 1.0
        y = outer(lambda u: inner(body, u), h).sum()
        h.zero_()
        got = torch.autograd.grad(y, x)[0].tolist()
    assert got == want


class TestHooksAndFrames:
    def test_hooks_around_see_arguments_alone(self):
        hooks = Hooks()
        x = leaf()
        y = hooks(lambda t: ck(lambda u: ck(body, u * 2.0).cos(), t), x * 1.0)
        assert (hooks.packs, hooks.unpacks) == (1, 0)
        got = torch.autograd.grad(y.sum(), x)[0].tolist()
        assert hooks.unpacks == 1
        assert got == torch.autograd.grad(body(x * 2.0).cos().sum(), x)[0].tolist()

    def test_hooks_inside_are_the_innermost_and_leave_the_frame_nothing_to_forget(self):
        hooks, f = Hooks(), Counting(body)
        x = leaf()
        y = ck(lambda t: hooks(f, t), x)
        assert hooks.packs == 4  # sin: t; mul: two; exp: its result
        y.sum().backward()
        assert (f.runs, hooks.packs, hooks.unpacks) == (1, 4, 4)

    def test_hooks_between_see_the_inner_frames_argument(self):
        hooks, f = Hooks(), Counting(body)
        x = leaf()
        y = ck(lambda t: hooks(lambda u: ck(f, u), t * 1.0), x)
        assert hooks.packs == 1
        got = torch.autograd.grad(y.sum(), x)[0].tolist()
        assert got == torch.autograd.grad(body(x * 1.0).sum(), x)[0].tolist()

    def test_a_hook_may_run_a_frame_itself(self):
        runs = Counting(torch.exp)

        def pack(t):
            with torch.enable_grad(), saved_tensors_hooks(lambda v: v, lambda v: v):
                z = leaf()
                ck(lambda u: runs(u).sin(), z).sum().backward()
            return t.detach().clone()

        x = leaf()
        with saved_tensors_hooks(pack, lambda t: ck(torch.clone, t)):
            y = (x * x).sum()
        assert runs.runs == 4
        y.backward()
        assert x.grad.tolist() == (2 * x).tolist()

    def test_a_hook_on_a_gradient_may_run_a_frame_and_backward(self):
        x, z, f = leaf(), leaf(), Counting(body)
        y = ck(body, x)

        def hook(g):
            with torch.enable_grad():
                ck(f, z).sum().backward()

        y.register_hook(hook)
        y.sum().backward()
        want = torch.autograd.grad(body(z).sum(), z)[0].tolist()
        assert (x.grad.tolist(), z.grad.tolist(), f.runs) == (want, want, 2)

    def test_custom_functions_save_into_the_frame_around(self):
        x = leaf()
        before = saved()
        y = ck(lambda t: Square.apply(Square.apply(t.sin())), x)
        assert saved() == before
        y.sum().backward()
        assert x.grad.tolist() == torch.autograd.grad(Square.apply(Square.apply(x.sin())).sum(), x)[0].tolist()

    def test_disabling_hooks_inside_a_frame(self):
        def f(t):
            with disable_saved_tensors_hooks("not here"):
                return t.exp()

        # the frame itself is on the stack of policies, which the context does not let be
        with pytest.raises(RuntimeError, match="not here"):
            ck(f, leaf())


class TestCompose:
    def lists(self, log=None):
        def pack(t):
            if log is not None:
                log.append(("pack", t.dtype))
            return t.tolist(), t.dtype

        def unpack(packed):
            if log is not None:
                log.append(("unpack", packed[1]))
            return torch.tensor(packed[0], dtype=packed[1])

        return pack, unpack

    def halves(self):
        return (lambda t: t.to(torch.float64)), (lambda t: t.to(torch.float32))

    def test_the_second_sees_what_the_first_packed(self):
        log, x = [], leaf(1.0, 2.0)
        with compose(self.halves(), self.lists(log)):
            y = (x * x).sum()
        assert log == [("pack", torch.float64)] * 2
        y.backward()
        assert log[2:] == [("unpack", torch.float64)] * 2
        assert x.grad.tolist() == [2.0, 4.0]

    def test_what_is_no_tensor_stays_with_the_first(self):
        log, x = [], leaf(1.0, 2.0)
        with compose(self.lists(), self.lists(log)):
            y = (x * x).sum()
        y.backward()
        assert log == []
        assert x.grad.tolist() == [2.0, 4.0]

    def test_contexts_and_compositions_are_pairs_too(self):
        log, x = [], leaf(1.0, 2.0)
        pair = compose(saved_tensors_hooks(*self.halves()), compose((torch.neg, torch.neg), saved_tensors_hooks(*self.lists(log))))
        got = gradients(lambda t: with_pair(pair, body, t), x)
        assert got == gradients(body, x)
        assert log.count(("pack", torch.float64)) > 0
        assert {d for _, d in log} == {torch.float64}

    def test_around_and_inside_frames(self):
        log, x = [], leaf()
        pair = compose(self.halves(), self.lists(log))
        got = gradients(lambda t: with_pair(pair, lambda u: ck(body, u), t * 1.0), x)
        assert got == gradients(lambda t: body(t * 1.0), x)
        got = gradients(lambda t: ck(lambda u: with_pair(pair, body, u), t), x)
        assert got == gradients(body, x)

    def test_the_seconds_answer_is_checked(self):
        for wrong, error, text in (
            (lambda p: p[:1], RuntimeError, r"unpacked a tensor of shape \(1,\) and dtype stowgrad.float64|shape \(1,\)"),
            (lambda p: p.float(), RuntimeError, "float32, but it packed"),
            (lambda p: 3, TypeError, "unpacked int, but it packed a tensor"),
        ):
            with compose(self.halves(), (lambda t: t.clone(), wrong)):
                y = leaf().exp().sum()
            with pytest.raises(error, match=text):
                y.backward()
        for wrong in (3, (1, 2), (torch.neg,)):
            with pytest.raises(TypeError, match="second must be"):
                compose(self.halves(), wrong)

    def test_nothing_is_left(self):
        before = storages(), saved()
        with compose(self.halves(), (lambda t: t.clone(), lambda t: t)):
            y = (leaf() * leaf()).sum()
        assert saved() - before[1] > 0
        y.backward()
        del y
        assert (storages(), saved()) == before


def with_pair(pair, f, t):
    with pair:
        return f(t)


class TestRelease:
    def test_everything_reachable_is_let_go(self):
        before = saved()
        x = leaf()
        a = x.exp()
        y, z = (a * a).sum(), a.sin().sum()
        release(y)
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            z.backward()
        release(y, z)
        assert saved() == before
        release(torch.ones(2))
        with pytest.raises(TypeError, match="expected a Tensor or a GradientEdge"):
            release(3)

    def test_frames_and_packed_objects_go_too(self):
        gone = []

        class Packed:
            def __init__(self, t):
                self.t = t.detach()

            def __del__(self):
                gone.append(1)

        with saved_tensors_hooks(Packed, lambda p: p.t):
            y = (ck(body, leaf() * 1.0) * leaf()).sum()
        assert gone == []
        release(y)
        # the frame's argument, and the frame's output for the gradient of the factor
        assert len(gone) == 3


class TestSidePaths:
    """A call with `inputs=` frees the side paths that nobody can run any more, and leaves alone those that somebody can."""

    def graph(self):
        """A set of the packed objects that live, and a pair that packs into them."""

        class Packed:
            def __init__(self, t):
                self.t = t.detach()

        packs = weakref.WeakSet()

        def pack(t):
            p = Packed(t)
            packs.add(p)
            return p

        return packs, saved_tensors_hooks(pack, lambda p: p.t)

    def test_a_side_path_that_only_freed_nodes_reach_is_freed(self):
        packs, pair = self.graph()
        x, w, v = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True), torch.ones(5, 2, requires_grad=True)
        with pair:
            y = ((x @ w.exp().tanh()) @ v).sum()
        assert len(packs) > 2
        torch.autograd.grad(y, x)
        assert len(packs) == 0

    def test_a_side_path_that_a_tensor_leads_to_stays(self):
        packs, pair = self.graph()
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
        with pair:
            h = w.exp().tanh()
            y = (x @ h).sum()
        assert len(packs) == 4
        torch.autograd.grad(y, x)
        # the output of exp; that of tanh is `h`, which lives anyway and is kept as it is
        assert len(packs) == 1
        h.sum().backward()
        assert len(packs) == 0
        assert w.grad.tolist() == torch.autograd.grad(w.exp().tanh().sum(), w)[0].tolist()

    def test_what_a_policy_holds_besides_a_living_tensor_goes(self):
        packs, pair = self.graph()
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
        with pair:
            h = w.exp()
            y = (x @ h).sum()
        torch.autograd.grad(y, x)
        assert len(packs) == 0
        z = h * 2
        del h
        z.sum().backward()
        assert w.grad.tolist() == (2 * w.exp()).tolist()

    def test_what_was_packed_stays_if_the_living_tensor_was_written(self):
        packs, pair = self.graph()
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)

        def clone(t):
            packed = pair.pack_hook(t.clone())
            return packed

        with saved_tensors_hooks(clone, pair.unpack_hook):
            h = w.exp()
            y = (x @ h).sum()
        with torch.no_grad():
            h.zero_()
        torch.autograd.grad(y, x)
        assert len(packs) == 1
        torch.autograd.grad(h.sum(), w)

    @pytest.mark.parametrize("write", [lambda h: h.data.add_(1), lambda h: h.detach().add_(1), lambda h: h.detach().numpy().fill(7.0)])
    def test_what_is_kept_instead_is_what_was_packed_whoever_writes(self, write):
        packs, pair = self.graph()
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
        with saved_tensors_hooks(lambda t: pair.pack_hook(t.clone()), pair.unpack_hook):
            h = w.exp()
            y = (x @ h).sum()
        torch.autograd.grad(y, x)
        assert len(packs) == 0
        write(h)
        h.sum().backward()
        assert w.grad.tolist() == w.exp().tolist()

    def test_a_view_or_one_of_several_outputs_that_lives(self):
        packs, pair = self.graph()
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
        with pair:
            h, _ = w.sort(dim=1)
            y = (x @ h).sum()
        torch.autograd.grad(y, x)
        assert len(packs) == 0
        assert torch.autograd.grad(h.sum(), w)[0].tolist() == torch.ones(4, 5).tolist()

    def test_a_side_path_below_nodes_that_save_nothing_stays(self):
        x, w = leaf(), leaf()
        y = (x + w.exp()).sum()
        torch.autograd.grad(y, x)
        assert torch.autograd.grad(y, w)[0].tolist() == w.exp().tolist()

    def test_a_generator_and_its_critic(self):
        critic, generator = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)
        fake = generator(torch.ones(3, 2)).tanh()
        critic(fake).sigmoid().mean().backward(inputs=list(critic.parameters()))
        critic(fake).sigmoid().mean().backward(inputs=list(generator.parameters()))
        assert all(p.grad is not None for p in generator.parameters())

    def test_with_retain_graph_everything_stays(self):
        x, w = leaf(), leaf()
        y = (x * w.exp()).exp().sum()
        torch.autograd.grad(y, x, retain_graph=True)
        assert torch.autograd.grad(y, w)[0] is not None
