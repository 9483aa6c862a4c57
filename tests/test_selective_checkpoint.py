"""Selective checkpointing: what is kept, what runs again, and what stays."""

import functools
import gc
import weakref

import pytest
import stowgrad as torch
from stowgrad.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from stowgrad.utils._python_dispatch import TorchDispatchMode
from stowgrad.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
MM = aten.mm.default


class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def keeping(*ops):
    return functools.partial(create_selective_checkpoint_contexts, list(ops))


def inputs():
    torch.manual_seed(0)
    return torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)


def gradient(f, context_fn=None, times=1, **kwargs):
    """The gradient of the argument, and the operations that each backward call ran again before it needed a formula."""
    x, w = inputs()
    y = f(x, w) if context_fn is None else checkpoint(f, x, w, use_reentrant=False, context_fn=context_fn, **kwargs)
    for i in range(times):
        x.grad = None
        with Log() as log:
            y.sum().backward(retain_graph=i < times - 1)
    return x.grad, log.seen


def f_chain(x, w):
    return (x @ w).sin().exp()


@pytest.mark.parametrize(
    ("ops", "again"),
    [
        ((), {"mm": 1, "sin": 1, "exp": 1}),
        ((MM,), {"mm": 0, "sin": 1, "exp": 1}),
        ((aten.sin.default,), {"mm": 1, "sin": 0, "exp": 1}),
        ((MM, aten.sin.default, aten.exp.default), {"mm": 0, "sin": 0, "exp": 0}),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_kept_operations_do_not_run_again(ops, again, times):
    want, plain = gradient(f_chain)
    got, seen = gradient(f_chain, keeping(*ops), times)
    assert torch.equal(got, want)
    assert {n: seen.count(f"aten.{n}.default") - plain.count(f"aten.{n}.default") for n in again} == again


def test_a_policy_is_asked_once_for_each_operation_of_the_forward_pass():
    asked = []

    def policy(ctx, op, *args, **kwargs):
        assert isinstance(ctx, SelectiveCheckpointContext)
        asked.append((ctx.is_recompute, str(op), len(args)))
        return CheckpointPolicy.MUST_SAVE if op is MM else CheckpointPolicy.PREFER_RECOMPUTE

    gradient(f_chain, lambda: create_selective_checkpoint_contexts(policy), 2)
    assert asked == [(False, "aten.mm.default", 2), (False, "aten.sin.default", 1), (False, "aten.exp.default", 1)]


@pytest.mark.parametrize("policy", [*CheckpointPolicy, True, False])
def test_every_policy_gives_the_gradient(policy):
    want, _ = gradient(f_chain)
    got, seen = gradient(f_chain, lambda: create_selective_checkpoint_contexts(lambda *a, **k: policy))
    keeps = policy is True or (policy is not False and "RECOMPUTE" not in policy.name)
    assert torch.equal(got, want) and ("aten.sin.default" in seen) != keeps


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: (x @ w).sin_().exp(),
        lambda x, w: torch.selu_(x @ w).sin(),
        lambda x, w: (lambda m: (m[1:].mul_(3), m)[1])(x @ w).sin().exp(),
        lambda x, w: (x @ w).max(0)[0].exp() @ w,
        lambda x, w: torch.nn.functional.dropout(x @ w, 0.5, True).sin() * 2,
        lambda x, w: (x.t() @ w).view(-1).sin().exp(),
        lambda x, w: torch.stack([(x @ w).sin(), x.cos()]).exp(),
        lambda x, w: torch.nn.functional.layer_norm(x @ w, (3,)).exp(),
    ],
)
@pytest.mark.parametrize("all_kept", [False, True])
def test_writes_views_and_random_numbers_come_out_right(f, all_kept):
    def everything(*args, **kwargs):
        return CheckpointPolicy.MUST_SAVE

    context_fn = (lambda: create_selective_checkpoint_contexts(everything)) if all_kept else keeping(MM)
    torch.manual_seed(1)
    want, _ = gradient(f)
    torch.manual_seed(1)
    got, _ = gradient(f, context_fn, 2)
    assert torch.allclose(got, want)


def test_a_kept_output_may_be_written_after_the_region():
    x, w = inputs()
    stash = []

    def f(x, w):
        m = x @ w
        stash.append(m.detach())
        return m.sin()

    y = checkpoint(f, x, w, use_reentrant=False, context_fn=keeping(MM))
    stash[0].zero_()
    y.sum().backward()
    assert torch.equal(x.grad, gradient(lambda x, w: (x @ w).sin())[0])


def test_random_draws_that_are_kept_move_the_state_as_before():
    def f(x, w):
        return x * torch.rand(3, 3) + x.sin() * torch.rand(3, 3)

    torch.manual_seed(3)
    want, _ = gradient(f)
    torch.manual_seed(3)
    got, _ = gradient(f, keeping(aten.rand.default))
    assert torch.equal(got, want)
    keep_first = []

    def first_alone(ctx, op, *args, **kwargs):
        if op is aten.rand.default:
            keep_first.append(op)
            return len(keep_first) == 1
        return False

    got, _ = gradient(f, lambda: create_selective_checkpoint_contexts(first_alone))
    assert torch.equal(got, want)


def test_hooks_around_the_region_see_what_is_kept():
    packed, unpacked = [], []
    x, w = inputs()
    with saved_tensors_hooks(
        lambda t: (packed.append(tuple(t.shape)), t.detach().clone())[1], lambda t: (unpacked.append(tuple(t.shape)), t)[1]
    ):
        y = checkpoint(lambda t: (t @ w[:, :2]).sin(), x, use_reentrant=False, context_fn=keeping(MM))
    assert packed.count((3, 2)) == 1
    y.sum().backward()
    assert unpacked.count((3, 2)) == 1
    assert torch.equal(x.grad, gradient(lambda x, w: (x @ w[:, :2]).sin())[0])


def test_with_the_mutation_guard_and_inside_another_frame():
    want, _ = gradient(lambda x, w: f_chain(x, w).cos())
    x, w = inputs()
    with allow_mutation_on_saved_tensors():
        y = checkpoint(f_chain, x, w, use_reentrant=False, context_fn=keeping(MM)).cos()
        y.sum().backward()
    assert torch.equal(x.grad, want)
    x, w = inputs()

    def outer(x, w):
        return checkpoint(f_chain, x, w, use_reentrant=False, context_fn=keeping(MM)).cos()

    checkpoint(outer, x, w, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, want)
    x, w = inputs()
    checkpoint(
        lambda x, w: checkpoint(f_chain, x, w, use_reentrant=False).cos(), x, w, use_reentrant=False, context_fn=keeping(MM)
    ).sum().backward()
    assert torch.equal(x.grad, want)


def test_second_derivatives_go_through():
    def second(context_fn):
        x, w = inputs()
        y = checkpoint(f_chain, x, w, use_reentrant=False, context_fn=context_fn) if context_fn else f_chain(x, w)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(g.sin().sum(), x)[0]

    assert torch.equal(second(keeping(MM)), second(None))


def test_nothing_stays_when_the_graph_is_gone():
    def run(go_back):
        x, w = inputs()
        kept = []

        def f(x, w):
            m = x @ w
            kept.append(weakref.ref(m))
            return m.sin()

        y = checkpoint(f, x, w, use_reentrant=False, context_fn=keeping(MM))
        if go_back:
            y.sum().backward()
            x.grad = None
        return kept[0]

    def live():
        stats = torch.memory_stats()
        return stats["tensor"]["live"], stats["saved"]["live"], stats["storages"]

    run(True)
    gc.collect()
    before = live()
    for go_back in (False, True):
        ref = run(go_back)
        gc.collect()
        assert ref() is None
        assert live() == before


def test_without_grad_the_function_runs_once_and_keeps_nothing():
    x, w = inputs()
    with torch.no_grad(), Log() as log:
        checkpoint(f_chain, x, w, use_reentrant=False, context_fn=keeping(MM))
    assert log.seen == ["aten.mm.default", "aten.sin.default", "aten.exp.default"]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("mm", TypeError, "policy_fn_or_list must be either a function or a list of ops"),
        ([torch.sin], ValueError, "Expected op in `op_list` to be an OpOverload"),
        ([aten.mm], ValueError, "torch.ops.aten.mm.default"),
    ],
)
def test_wrong_policies_are_errors(given, error, text):
    with pytest.raises(error, match=text):
        create_selective_checkpoint_contexts(given)


def test_a_policy_that_answers_nonsense_is_an_error():
    x, w = inputs()
    with pytest.raises(TypeError, match="a checkpoint policy returns a CheckpointPolicy or a bool"):
        checkpoint(f_chain, x, w, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(lambda *a, **k: 7))


@pytest.mark.parametrize("last", [lambda h, y: h.sin(), torch.maximum], ids=["one value", "a value asked for twice"])
def test_under_a_guard_each_run_gets_the_value_as_it_was(last):
    def f(x, y):
        h = x * 1.0
        h.add_(y)
        return last(h, y)

    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mul.Tensor])
    x, y = torch.tensor([3.0], requires_grad=True), torch.tensor([-4.0], requires_grad=True)
    plain = [g.tolist() for g in torch.autograd.grad(f(x, y).sum(), [x, y])]
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        out = checkpoint(f, x, y, context_fn=contexts)
        for _ in range(3):
            assert [g.tolist() for g in torch.autograd.grad(out.sum(), [x, y], retain_graph=True)] == plain
