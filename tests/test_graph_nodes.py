"""What a node shows of the graph, and what holds it alive."""

from __future__ import annotations

import pytest
import stowgrad as torch
from frames import leaf, saved
from stowgrad.autograd.graph import Node


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, number, u):
        return t * number + u

    @staticmethod
    def backward(ctx, g):
        return tuple(g if needed else None for needed in ctx.needs_input_grad)


def names(y):
    return [n and n.name().rsplit("::")[-1] for n, _ in y.grad_fn.next_functions]


INDEX = torch.tensor([0, 1])
A, B = leaf(), torch.ones(4)
# as torch 2.13 answers
EDGES = {
    "mul": (lambda: A * B, ["AccumulateGrad", None]),
    "mul by a number": (lambda: A * 2, ["AccumulateGrad", None]),
    "add": (lambda: B + A, [None, "AccumulateGrad"]),
    "pow": (lambda: A**2, ["AccumulateGrad"]),
    "pow of a number": (lambda: 2**A, ["AccumulateGrad"]),
    "where": (lambda: torch.where(B > 0, A, B), ["AccumulateGrad", None]),
    "gather": (lambda: A.gather(0, INDEX), ["AccumulateGrad"]),
    "index": (lambda: A[INDEX], ["AccumulateGrad"]),
    "masked_fill": (lambda: A.masked_fill(B > 0, 2.0), ["AccumulateGrad"]),
    "scatter": (lambda: A.scatter(0, INDEX, torch.ones(2)), ["AccumulateGrad", None]),
    "index_add": (lambda: A.index_add(0, INDEX, torch.ones(2)), ["AccumulateGrad", None]),
    "index_put": (lambda: A.index_put((INDEX,), torch.ones(2)), ["AccumulateGrad", None]),
    "embedding": (lambda: torch.nn.functional.embedding(INDEX, torch.ones(4, 3, requires_grad=True)), ["AccumulateGrad"]),
    "nll_loss": (lambda: torch.nn.functional.nll_loss(torch.ones(2, 3, requires_grad=True), INDEX), ["AccumulateGrad"]),
    "cat": (lambda: torch.cat([B, A]), [None, "AccumulateGrad"]),
    "batch_norm": (
        lambda: torch.nn.functional.batch_norm(torch.ones(2, 3, requires_grad=True), torch.zeros(3), torch.ones(3), training=True),
        ["AccumulateGrad", None, None],
    ),
    "layer_norm": (lambda: torch.nn.functional.layer_norm(A, (4,)), ["AccumulateGrad", None, None]),
    "item assignment": (lambda: assigned(A.clone()), ["CloneBackward0", None]),
    "a custom function": (lambda: Double.apply(A, 3, B), ["AccumulateGrad", None]),
}


def assigned(t):
    t[0] = B[0]
    return t


@pytest.mark.parametrize("name", EDGES)
def test_edges_are_those_of_inputs_with_a_derivative(name):
    make, want = EDGES[name]
    assert names(make()) == want


@pytest.mark.parametrize("name", EDGES)
def test_hooks_get_as_many_gradients_as_there_are_edges(name):
    make, want = EDGES[name]
    y, seen = make(), []
    handle = y.grad_fn.register_hook(lambda inputs, outputs: seen.append([g is not None for g in inputs]))
    y.sum().backward()
    handle.remove()
    assert seen == [[n is not None for n in want]]
    A.grad = None


def test_a_hook_may_replace_what_it_was_shown():
    x = leaf()
    y = x.masked_fill(B > 2, 2.0)
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10.0,))
    y.sum().backward()
    assert x.grad.tolist() == [10.0] * 4
    z = x.masked_fill(B > 2, 2.0)
    z.grad_fn.register_hook(lambda inputs, outputs: (inputs[0], None))
    with pytest.raises(RuntimeError, match="returned 2 gradients, but it has 1 inputs"):
        z.sum().backward()


def test_a_product_leaves_alone_the_gradient_that_somebody_looks_at():
    x = leaf()
    seen = []
    y = x * B * B
    z = y * B * B
    y.retain_grad()
    z.register_hook(seen.append)
    (z * leaf()).sum().backward()
    y, seen[0] = y.grad.tolist(), seen[0].tolist()

    shown = []
    w = leaf() * leaf() * leaf()
    w.grad_fn.next_functions[0][0].register_hook(lambda _, g: shown.append(g[0].tolist()))
    ((w * leaf()) * torch.full((4,), 3.0)).sum().backward()
    assert shown == [(torch.full((4,), 3.0) * A.detach() * A.detach()).tolist()]
    assert seen == [A.tolist()] and y == A.tolist()


def test_each_kind_of_node_has_a_class():
    y, z = A * B, A + B
    assert type(y.grad_fn).__name__ == "MulBackward0"
    assert type(y.grad_fn) is type((A * 2).grad_fn)
    assert type(y.grad_fn) is not type(z.grad_fn)
    assert y.grad_fn is y.grad_fn
    v = A.clone()
    v[0] = 1.0
    made = {type(n).__name__ for n in (v.grad_fn, Double.apply(A, 3, B).grad_fn, y.grad_fn.next_functions[0][0])}
    assert made == {"CopySlices", "DoubleBackward", "AccumulateGrad"}
    for n in (y.grad_fn, v.grad_fn, y.grad_fn.next_functions[0][0]):
        assert isinstance(n, Node)
        assert repr(n).startswith(f"<{type(n).__name__} object at 0x")
        with pytest.raises(AttributeError):
            n.anything = 1
    with pytest.raises(TypeError, match="operations make them"):
        type(y.grad_fn)()


def test_a_raw_saved_value_does_not_hold_its_node():
    y = A.exp()
    raw = y.grad_fn._raw_saved_result
    assert raw.data.tolist() == y.tolist()
    del y
    for use in (lambda: raw.register_hooks(lambda t: t, lambda t: t), lambda: raw.data):
        with pytest.raises(RuntimeError, match="is gone"):
            use()


def test_a_retained_gradient_moves_along_with_writes_in_place():
    x = leaf(1.0, 2.0)
    y = x * 1.0
    y.retain_grad()
    y.mul_(3.0)
    y.sin_()
    y.sum().backward()
    assert y.retains_grad
    assert y.grad.tolist() == [1.0, 1.0]
    base = x * 1.0
    base.retain_grad()
    base[0] = 5.0
    (base * torch.tensor([2.0, 3.0])).sum().backward()
    assert base.grad.tolist() == [2.0, 3.0]


def test_a_tensor_hook_stays_with_what_the_tensor_was():
    x, seen = leaf(1.0, 2.0), []
    y = x * 1.0
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.mul_(3.0)
    y.sum().backward()
    assert seen == [[3.0, 3.0]]


def test_parameters_and_their_views_are_not_counted_as_saved():
    linear = torch.nn.Linear(64, 32)
    x = torch.ones(3, 64)
    before = saved()
    y = linear(x.requires_grad_())
    assert saved() == before
    h = linear(x * 1.0)
    assert saved() - before == x.nbytes
    w = torch.ones(4, 4, requires_grad=True)
    z = (w.t() * w[1:].sum()) @ w.view(2, 8)[:, :4].t()
    inner = z.grad_fn._saved_self.nbytes
    assert saved() - before == x.nbytes + inner + 4
    del y, h, z
    assert saved() == before


class Stash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mode):
        m = x * 2
        mask = (x > 0).to(x.dtype)
        values = {"inner": (x, m), "mask": (x, mask), "output": (x, m)}
        ctx.save_for_backward(*values[mode])
        ctx.mode = mode
        out = m**2 if mode != "mask" else x**2 * mask
        return (out, m) if mode == "output" else out

    @staticmethod
    def backward(ctx, g, gm=None):
        x, m = ctx.saved_tensors
        if ctx.mode == "mask":
            return 2 * x * m * g, None
        return (2 * m + 4 * x) * g + (0 if gm is None else 2 * gm), None


class TestInnerValuesOfCustomFunctions:
    def second(self, mode):
        x = leaf(3.0)
        out = Stash.apply(x, mode)
        out = out[0] if mode == "output" else out
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        return g.item(), torch.autograd.grad(g, x)[0].item()

    def test_a_second_derivative_through_one_is_an_error_not_a_wrong_number(self):
        with pytest.raises(RuntimeError, match=r"StashBackward: a second derivative through saved_tensors\[1\], of shape \[1\], is not known"):
            self.second("inner")

    def test_first_derivatives_are_as_they_were(self):
        x = leaf(3.0)
        assert torch.autograd.grad(Stash.apply(x, "inner"), x, create_graph=True)[0].item() == 24

    def test_what_does_not_depend_on_the_inputs_is_constant(self):
        assert self.second("mask") == (6.0, 2.0)

    def test_as_an_output_it_is_differentiated(self):
        assert self.second("output") == (24.0, 8.0)

    def test_looked_at_from_outside_it_is_the_value(self):
        y = Stash.apply(leaf(3.0), "inner")
        assert not y.grad_fn.saved_tensors[1].requires_grad


class TestDirtyOutputs:
    """What a custom function wrote and returns leads to the output that it is."""

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.mark_dirty(a, b)
            return a.mul_(2), b.mul_(3)

        @staticmethod
        def backward(ctx, g, k):
            return g * 2, k * 3

    def test_each_is_the_output_of_its_number(self):
        x, z = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        h, q = x * 1, z * 1
        p, r = self.Both.apply(h, q)
        assert (p.output_nr, r.output_nr) == (0, 1)
        assert [g.item() for g in torch.autograd.grad(p.sum() + 10 * r.sum(), [x, z], retain_graph=True)] == [2.0, 30.0]
        assert [g.item() for g in torch.autograd.grad(h.sum() + 10 * q.sum(), [x, z])] == [2.0, 30.0]

    def test_in_another_order_and_among_others(self):
        class Mixed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.mark_dirty(b)
                b.mul_(3)
                return a * 2, b

            @staticmethod
            def backward(ctx, g, k):
                return g * 2, k * 3

        a, z = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        _, q = Mixed.apply(a, z * 1)
        assert [g.item() for g in torch.autograd.grad(q.sum(), [a, z])] == [0.0, 3.0]

    def test_a_view_may_be_written_by_a_function_with_one_output_alone(self):
        x = torch.ones(3, requires_grad=True)
        h, k = x * 1, x * 1
        with pytest.raises(RuntimeError, match="cannot return more than one Tensor"):
            self.Both.apply(h[:2], k[1:])
