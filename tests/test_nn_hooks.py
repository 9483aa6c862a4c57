"""Module hooks run in torch's order, see torch's arguments, and may change what passes."""

import gc
import warnings
import weakref

import pytest
import stowgrad as torch
from stowgrad import nn
from stowgrad.nn.modules import module as hooks


def unit(n=2):
    """A linear layer of ones without bias."""
    layer = nn.Linear(n, n)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.0)
    return layer


def values(grads):
    return [None if g is None else g.tolist() for g in grads]


# ---- forward ----


def test_forward_hooks_run_in_order_and_replace_what_passes():
    m, log = unit(), []
    handles = [
        m.register_forward_pre_hook(lambda m, args: log.append(("pre", args[0].tolist()))),
        m.register_forward_pre_hook(lambda m, args: (args[0] * 2,), prepend=True),
        m.register_forward_pre_hook(lambda m, args: args[0] + 1),
        m.register_forward_hook(lambda m, args, out: log.append(("post", args[0].tolist(), out.tolist()))),
        m.register_forward_hook(lambda m, args, out: out * 3, prepend=True),
    ]
    out = m(torch.ones(1, 2))
    assert log == [("pre", [[2.0, 2.0]]), ("post", [[3.0, 3.0]], [[18.0, 18.0]])]
    assert out.tolist() == [[18.0, 18.0]]
    for h in handles:
        h.remove()
        h.remove()
    assert m(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
    assert len(log) == 2


def test_hooks_with_keywords_see_and_replace_them():
    class Add(nn.Module):
        def forward(self, a, *, b=0):
            return a + b

    m, log = Add(), []
    m.register_forward_pre_hook(lambda m, a, k: ((a[0] + 10,), {"b": k.get("b", 0) + 1}), with_kwargs=True)
    m.register_forward_hook(lambda m, a, k, out: log.append((a, k, out)), with_kwargs=True)
    assert m(1, b=2) == 14
    assert log == [((11,), {"b": 3}, 14)]
    m.register_forward_pre_hook(lambda m, a, k: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="None or a tuple"):
        m(1)


def test_a_hook_that_is_always_called_runs_once_whatever_happens():
    class Maybe(nn.Module):
        def forward(self, fail):
            if fail:
                raise ValueError("no")
            return fail

    m, log = Maybe(), []
    m.register_forward_hook(lambda m, a, out: log.append(("always", out)), always_call=True)
    m.register_forward_hook(lambda m, a, out: log.append("plain"))
    m(0)
    assert log == [("always", 0), "plain"]
    log.clear()
    with pytest.raises(ValueError, match="no"):
        m(1)
    assert log == [("always", None)]

    def breaks(m, a, out):
        raise KeyError("hook")

    m.register_forward_hook(breaks, always_call=True)
    with pytest.raises(ValueError, match="no"), pytest.warns(UserWarning, match="silenced"):
        m(1)


def test_a_hook_that_raises_leaves_the_module_usable():
    m = unit()
    handle = m.register_forward_hook(lambda m, a, out: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        m(torch.ones(1, 2))
    handle.remove()
    assert m(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]


def test_a_handle_removes_at_the_end_of_a_block():
    m = unit()
    with m.register_forward_hook(lambda m, a, out: out * 0):
        assert m(torch.ones(1, 2)).tolist() == [[0.0, 0.0]]
    assert m(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]


# ---- backward ----


def test_full_backward_hooks_see_and_replace_both_sides():
    m, log = unit(), []
    m.register_full_backward_hook(lambda m, gi, go: log.append(("full", values(gi), values(go))))
    m.register_full_backward_pre_hook(lambda m, go: log.append(("pre", values(go))))
    x = torch.ones(1, 2, requires_grad=True)
    m(x).sum().backward()
    assert log == [("pre", [[[1.0, 1.0]]]), ("full", [[[2.0, 2.0]]], [[[1.0, 1.0]]])]
    m.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    m.register_full_backward_hook(lambda m, gi, go: (gi[0] * 5,))
    x.grad = None
    m.zero_grad()
    m(x).sum().backward()
    assert x.grad.tolist() == [[20.0, 20.0]]
    assert m.weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_backward_hooks_mark_what_is_no_tensor_with_none():
    class Mixed(nn.Module):
        def forward(self, a, n, b):
            return a * b, a + 1, n

    m, log = Mixed(), []
    m.register_full_backward_hook(lambda m, gi, go: log.append((values(gi), values(go))))
    a, b = torch.ones(2, requires_grad=True), torch.full((2,), 2.0)
    first, second, n = m(a, 5, b)
    assert n == 5
    (first.sum() + second.sum()).backward()
    assert log == [([[3.0, 3.0], None, [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0], None])]


def test_backward_hooks_without_a_differentiable_input_run_at_the_output():
    m, log = unit(), []
    m.register_full_backward_hook(lambda m, gi, go: log.append((gi, values(go))))
    m(torch.ones(1, 2)).sum().backward()
    assert log == [((None,), [[[1.0, 1.0]]])]
    m.register_full_backward_hook(lambda m, gi, go: (torch.ones(1, 2),))
    with pytest.raises(RuntimeError, match="None for all gradients"):
        m(torch.ones(1, 2)).sum().backward()


def test_a_backward_hook_that_returns_too_few_gradients_is_refused():
    m = nn.Bilinear(2, 2, 1)
    m.forward = lambda a, b: a * b
    m.register_full_backward_hook(lambda m, gi, go: (gi[0],))
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="got 1, but expected 2"):
        m(a, b).sum().backward()


def test_backward_hooks_do_nothing_without_gradients_and_warn_of_outputs_they_cannot_watch():
    m, log = unit(), []
    m.register_full_backward_hook(lambda m, gi, go: log.append(1))
    with torch.no_grad():
        assert m(torch.ones(1, 2, requires_grad=True)).grad_fn is None

    class Dict(nn.Module):
        def forward(self, x):
            return {"x": x * 2}

    d = Dict()
    d.register_full_backward_hook(lambda m, gi, go: log.append(2))
    with pytest.warns(UserWarning, match="should be a Tensor or a tuple"):
        d(torch.ones(2, requires_grad=True))["x"].sum().backward()
    assert log == []


def test_a_second_derivative_runs_the_hook_for_each_gradient_that_passes():
    m, log = nn.Linear(2, 1), []
    with torch.no_grad():
        m.weight.fill_(1.0)
        m.bias.fill_(0.0)
    m.register_full_backward_hook(lambda m, gi, go: log.append((values(gi), values(go))))
    x = torch.ones(1, 2, requires_grad=True)
    (g,) = torch.autograd.grad((m(x) ** 3).sum(), x, create_graph=True)
    assert log == [([[[12.0, 12.0]]], [[[12.0]]])]
    g.sum().backward()
    assert x.grad.tolist() == [[24.0, 24.0]]
    assert len(log) == 2


def test_full_and_other_backward_hooks_do_not_mix():
    m = unit()
    m.register_full_backward_hook(lambda *a: None)
    with pytest.raises(RuntimeError, match="Cannot use both"):
        m.register_backward_hook(lambda *a: None)


def test_the_old_backward_hook_sees_the_last_node_and_warns_when_that_is_not_the_module():
    seen = []
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    m.register_backward_hook(lambda m, gi, go: seen.append((len(gi), values(go))))
    with pytest.warns(FutureWarning, match="register_full_backward_hook"):
        out = m(torch.ones(1, 2, requires_grad=True))
    out.sum().backward()
    assert seen == [(1, [[[1.0, 1.0]]])]


def test_hooks_keep_neither_the_module_nor_its_graph_alive():
    m = unit()
    m.register_full_backward_hook(lambda m, gi, go: None)
    x = torch.ones(1, 2, requires_grad=True)
    out = m(x)
    out.sum().backward()
    gone = weakref.ref(m), weakref.ref(out)
    del m, out
    gc.collect()
    assert [r() for r in gone] == [None, None]


# ---- everywhere ----


def test_global_hooks_run_around_every_module_until_they_are_removed():
    log = []
    handles = [
        hooks.register_module_forward_pre_hook(lambda m, a: log.append(("pre", type(m).__name__))),
        hooks.register_module_forward_hook(lambda m, a, out: log.append(("post", type(m).__name__))),
        hooks.register_module_full_backward_hook(lambda m, gi, go: log.append(("back", type(m).__name__))),
    ]
    try:
        m = nn.Sequential(unit(), nn.Tanh())
        m(torch.ones(1, 2, requires_grad=True)).sum().backward()
    finally:
        for h in handles:
            h.remove()
    assert log == [
        ("pre", "Sequential"),
        ("pre", "Linear"),
        ("post", "Linear"),
        ("pre", "Tanh"),
        ("post", "Tanh"),
        ("post", "Sequential"),
        ("back", "Tanh"),
        ("back", "Linear"),
        ("back", "Sequential"),
    ]
    m(torch.ones(1, 2))
    assert len(log) == 9
    assert not hooks._has_any_global_hook()


def test_registration_hooks_see_every_member_and_may_replace_it():
    log = []
    handles = [
        hooks.register_module_parameter_registration_hook(lambda m, n, p: log.append(n)),
        hooks.register_module_buffer_registration_hook(lambda m, n, b: log.append(n)),
        hooks.register_module_module_registration_hook(lambda m, n, s: nn.Tanh() if isinstance(s, nn.ReLU) else None),
    ]
    try:
        m = nn.Sequential(nn.BatchNorm1d(1), nn.ReLU())
    finally:
        for h in handles:
            h.remove()
    assert log == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert isinstance(m[1], nn.Tanh)


def test_a_module_without_hooks_runs_none_of_their_machinery(monkeypatch):
    def fail(self, args, kwargs):
        raise AssertionError("the slow way was taken")

    monkeypatch.setattr(hooks, "_global_call_hooks_used", False)
    monkeypatch.setattr(nn.Module, "_call_hooked", fail)
    m = nn.Sequential(unit(), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m(torch.ones(1, 2, requires_grad=True)).sum().backward()
    m.register_forward_hook(lambda *a: None)
    with pytest.raises(AssertionError, match="slow way"):
        m(torch.ones(1, 2))
