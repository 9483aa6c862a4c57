"""Names that public programs about autograd use (data/api_names.tsv: how often, in tests of the autograd core and of what
surrounds it) exist here. What such a name means is tested where its behaviour is; here stand the rarely used ones.
"""

from __future__ import annotations

import gc
import importlib
import pathlib

import pytest
import stowgrad as torch

FILE = pathlib.Path(__file__).parent / "data" / "api_names.tsv"
NAMES = {name: (int(core), int(around)) for name, core, around in (r.split("\t") for r in FILE.read_text().splitlines()[1:])}
# Used somewhere, and not here.
MISSING = {
    "torch.lobpcg": "eigenvectors by iteration: of no use for small matrices",
    "torch.unique_dim": "torch itself has no such name any more: torch.unique(dim=)",
}


def leaf():
    return torch.tensor([1.0, 2.0], requires_grad=True)


class Kept(torch.autograd.Function):
    context = None

    @staticmethod
    def forward(ctx, x):
        Kept.context = ctx
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g


def find(name):
    """What a name of the table names; AttributeError or ImportError if nothing."""
    first, *rest = name.split(".")
    node = (leaf() * leaf()).grad_fn
    if first == "Tensor":
        return getattr(torch.Tensor, rest[0]) if hasattr(torch.Tensor, rest[0]) else getattr(torch.ones(2, 2), rest[0])
    if first == "Node":
        if rest[0].endswith("*"):
            return getattr(node, next(n for n in dir(node) if n.startswith(rest[0][:-1])))
        return getattr(node, rest[0]) if hasattr(node, rest[0]) else getattr(Kept.apply(leaf()).grad_fn, rest[0])
    if first == "SavedTensor":
        return getattr(node._raw_saved_self, rest[0])
    if first == "ctx":
        Kept.apply(leaf())
        return getattr(Kept.context, rest[0])
    found, path = torch, "stowgrad"
    for part in rest:
        path += f".{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            # a module that a function of its name hides, or a name in one
            parent, _, last = path.rpartition(".")
            hidden = importlib.import_module(parent)
            found = getattr(hidden, last) if hasattr(hidden, last) else importlib.import_module(path)
    return found


@pytest.mark.parametrize("name", [n for n, (core, around) in NAMES.items() if core or around])
def test_every_name_that_programs_use_is_there(name):
    if name in MISSING:
        with pytest.raises((AttributeError, ImportError)):
            find(name)
    else:
        find(name)


def test_the_table_is_the_whole_one():
    assert len(NAMES) > 400 and sum(core > 0 for core, _ in NAMES.values()) > 150 and set(MISSING) < set(NAMES)


def test_a_delayed_error_is_raised_by_the_gradient():
    x, y = leaf(), leaf()
    delayed = torch._C._functions.DelayedError("differentiated once too often", 2)
    a, b = delayed(x, y)
    assert a.requires_grad and a.tolist() == x.tolist() and b.tolist() == y.tolist()
    with pytest.raises(RuntimeError, match="once too often"):
        a.sum().backward()
    with pytest.raises(RuntimeError, match="expected 2 tensors"):
        delayed(x)


def test_an_undefined_gradient_stops_there():
    x = leaf()
    y = torch._C._functions.UndefinedGrad()(x)
    (y * 2 + x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    x.grad = None
    torch._C._functions.UndefinedGrad()(x).sum().backward()
    assert x.grad is None


def test_accumulation_nodes_are_known_by_class():
    y = leaf() * 2
    accumulation = torch._C._functions.AccumulateGrad
    assert isinstance(y.grad_fn.next_functions[0][0], accumulation)
    assert not isinstance(y.grad_fn, accumulation)


def test_a_weak_reference_knows_when_its_tensor_is_gone():
    x = torch.ones(1)
    ref = torch._C._WeakTensorRef(x)
    assert not ref.expired()
    del x
    gc.collect()
    assert ref.expired()


def test_the_order_of_a_running_backward_is_told():
    x, y = leaf(), leaf()
    product = x * y
    total = product.sin() + x
    seen = []
    product.register_hook(lambda g: seen.extend(torch._C._current_graph_task_execution_order()))
    total.sum().backward()
    names = [n.name().rpartition(":")[2] for n in seen]
    assert names == ["SumBackward0", "AddBackward0", "SinBackward0", "MulBackward0", "AccumulateGrad", "AccumulateGrad"]
    with pytest.raises(RuntimeError, match="during a backward"):
        torch._C._current_graph_task_execution_order()
    seen.clear()
    total = (product.detach().requires_grad_() * 2).sum() + y.exp().sum()
    y.register_hook(lambda g: seen.extend(torch._C._current_graph_task_execution_order()))
    torch.autograd.grad(total, y)
    assert "MulBackward0" not in [n.name() for n in seen]  # only what leads to the input runs


def test_whether_the_running_backward_keeps_its_graph():
    x, kept = leaf(), []
    y = x * 2
    y.register_hook(lambda g: kept.append(torch._C._autograd._get_current_graph_task_keep_graph()))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert kept == [True, False]


def test_versions_can_be_put_back():
    x = torch.ones(2)
    x.add_(1)
    torch._C._autograd._unsafe_set_version_counter((x,), (0,))
    assert x._version == 0
    with torch.autograd._unsafe_preserve_version_counter(x):
        x.add_(1)
    assert x._version == 0 and x.tolist() == [3.0, 3.0]


def test_unsafe_pieces_share_memory_and_no_history():
    x = torch.arange(6.0, requires_grad=True)
    y = x * 1
    pieces = y.unsafe_chunk(2)
    assert [p._is_view() for p in pieces] == [False, False]
    pieces[0].mul_(3)
    assert pieces[0].grad_fn.name() == "MulBackward0" and pieces[1].grad_fn.name() == "UnsafeSplitBackward0"
    assert ([p._version for p in pieces], y._version) == ([1, 0], 0)
    (pieces[0].sum() + pieces[1].sum()).backward()
    assert x.grad.tolist() == [3.0] * 3 + [1.0] * 3
    a, b = torch.arange(6.0).unsafe_split_with_sizes([1, 5])
    assert (a.tolist(), b.tolist()) == ([0.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert [p.shape[0] for p in torch.ones(5).unsafe_split(2)] == [2, 2, 1]
    with pytest.raises(RuntimeError, match="sum exactly"):
        torch.ones(3).unsafe_split_with_sizes([1, 1])


def test_the_constructor_from_before_dtypes_keeps_the_dtype():
    x = torch.ones(1, dtype=torch.float64)
    assert x.new([1, 2]).dtype is torch.float64 and x.new([1, 2]).tolist() == [1.0, 2.0]
    assert x.new(2, 3).shape == (2, 3) and x.new(torch.Size([2])).shape == (2,) and x.new().shape == (0,)
    assert torch.ones(1).type_as(x).dtype is torch.float64 and not x.volatile


def test_distinct_values_under_their_native_names():
    x = torch.tensor([3, 1, 1])
    assert [t.tolist() for t in torch._unique2(x, True, True, True)] == [[1, 3], [1, 0, 0], [2, 1]]
    assert [t.tolist() for t in torch._unique2(x)] == [[1, 3], [], []]
    assert [t.tolist() for t in torch._unique(x)] == [[1, 3], []]
    rows = torch._VF.unique_dim(torch.tensor([[3, 1], [3, 1]]), 0, True, True, True)
    assert [t.tolist() for t in rows] == [[[3, 1]], [0, 0], [2]]


def test_real_tensors_are_their_own_real_part_and_conjugate():
    x = torch.ones(2)
    for f in (torch.real, torch.conj, torch.resolve_conj, torch.resolve_neg):
        assert f(x) is x
    assert not torch.is_conj(x) and not torch.is_neg(x) and not torch.is_inference(x)
    with pytest.raises(RuntimeError, match="non-complex"):
        torch.imag(x)
