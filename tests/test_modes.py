"""Dispatch modes, the operations that they get, and what stays when they are left. What torch 2.13 shows a mode for each expression
in data/dispatch.json was recorded from it.
"""

import copy
import gc
import json
import pathlib
import pickle
import threading
import weakref

import pytest
import stowgrad as torch
from stowgrad.utils import _python_dispatch as modes
from stowgrad.utils._python_dispatch import TorchDispatchMode
from stowgrad.utils._pytree import tree_map

aten = torch.ops.aten
RECORDED = json.loads((pathlib.Path(__file__).parent / "data" / "dispatch.json").read_text())


class Log(TorchDispatchMode):
    def __init__(self, name="", log=None):
        super().__init__()
        self.name, self.seen = name, [] if log is None else log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(self.name + str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    assert modes._get_current_dispatch_mode() is None
    assert not modes.is_in_torch_dispatch_mode()


def shown(v):
    if isinstance(v, torch.Tensor):
        return list(v.shape)
    if isinstance(v, (list, tuple)):
        return [shown(u) for u in v]
    if v is None or isinstance(v, (int, float, str)):
        return v
    return str(v).replace("stowgrad", "torch")


@pytest.mark.parametrize("expression", RECORDED)
def test_a_mode_sees_the_operations_that_torch_shows(expression):
    torch.manual_seed(0)
    names = {
        "torch": torch,
        "x": torch.rand(3, 3, requires_grad=True),
        "y": torch.rand(3, 3) + 0.1,
        "z": torch.empty(3, 3),
        "m": torch.eye(3) > 0,
        "i": torch.tensor([0, 2]),
        "k": torch.tensor([[0], [1], [2]]),
        "a": torch.rand(1, 1, 4, 4),
        "b": torch.rand(1, 1, 2, 2),
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    names["p"].grad = torch.ones(2)
    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            hidden = ("device", "pin_memory", "memory_format")
            kw = {n: shown(v) for n, v in sorted((kwargs or {}).items()) if n not in hidden}
            seen.append([str(func), [shown(v) for v in args], kw])
            return func(*args, **(kwargs or {}))

    with Record():
        eval(expression, names)
    assert seen == RECORDED[expression]


def test_the_result_is_what_the_handler_gave_with_autograds_history():
    class Tag(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            r = func(*args, **(kwargs or {}))
            assert not r.requires_grad and r.grad_fn is None and torch.is_grad_enabled()
            r.tag = str(func)
            return r

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with Tag():
        y = x * 3
        v = x.view(2, 1)
    assert (y.tag, y.grad_fn.name(), y.is_leaf) == ("aten.mul.Tensor", "MulBackward0", False)
    assert v._is_view() and v._base is x and v.tag == "aten.view.default"
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_handler_gets_the_very_tensors_and_numbers_as_numbers():
    x = torch.ones(2, requires_grad=True)
    got = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            got.append((args[0] is x, args[1:], kwargs, types))
            return func(*args, **(kwargs or {}))

    with Look():
        torch.add(x, 2.5)
        torch.add(x, 1, alpha=3)
    assert got == [(True, (2.5,), {}, ()), (True, (1,), {"alpha": 3}, ())]


@pytest.mark.parametrize(
    "f", [lambda x: 2**x, lambda x: torch.addcdiv(x, x, x + 1, value=0.5), lambda x: 1 - x, lambda x: 3 / x, lambda x: x % 2]
)
def test_numbers_in_formulas_come_out_right(f):
    def grads(mode):
        x = torch.tensor([0.5, 1.5], dtype=torch.float32, requires_grad=True)
        with mode:
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            if g.requires_grad:
                (g,) = torch.autograd.grad(g.sum(), x)
        assert g.dtype == torch.float32
        return g

    assert torch.equal(grads(Log()), grads(_nothing()))


def test_what_the_handler_returns_is_the_value():
    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            r = func(*args, **(kwargs or {}))
            return r * 2 if func is aten.exp.default else r

    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with Double():
        y = x.exp()
    assert torch.equal(y.detach(), 2 * x.detach().exp())
    y.sum().backward()  # the formula reads the result as it is
    assert torch.equal(x.grad, y.detach())


def test_a_handler_may_give_an_input_back():
    class Skip(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return args[0]

    x = torch.ones(2, requires_grad=True)
    with Skip():
        y = x * 2
    assert y is not x and x.is_leaf and x.grad_fn is None and y.grad_fn.name() == "MulBackward0"
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_in_place_out_and_views_are_seen_and_versions_move_once():
    x, out = torch.ones(2, 2), torch.empty(2, 2)
    with Log() as log:
        x.add_(1)
        torch.sin(x, out=out)
        x[0] = 5.0
        x.t()
    assert log.seen == ["aten.add_.Tensor", "aten.sin.out", "aten.select.int", "aten.fill_.Tensor", "aten.t.default"]
    assert (x._version, out._version) == (2, 1)
    assert x.tolist() == [[5.0, 5.0], [2.0, 2.0]] and torch.equal(out, torch.full((2, 2), 2.0).sin())


def test_a_write_that_a_handler_leaves_out_still_moves_the_version():
    class Never(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return args[0]

    x = torch.ones(2)
    with Never():
        assert x.mul_(5) is x
    assert (x.tolist(), x._version) == ([1.0, 1.0], 1)


def test_in_place_operations_through_views_keep_their_gradients():
    def run(mode):
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        with mode:
            y = x * 1.0
            y[0].mul_(3)
            y.sin_()
            y.sum().backward()
        return x.grad

    assert torch.equal(run(Log()), run(_nothing()))


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None


def test_backward_and_double_backward_are_seen():
    x = torch.tensor([0.5], requires_grad=True)
    y = x.sin()
    with Log() as log:
        (g,) = torch.autograd.grad(y, x, torch.ones(1), create_graph=True)
        (h,) = torch.autograd.grad(g, x, torch.ones(1))
    assert "aten.cos.default" in log.seen and "aten.sin.default" in log.seen
    assert torch.allclose(h, -x.detach().sin())


def test_nested_modes_are_asked_from_the_inside_each_off_while_it_runs():
    log, tops = [], []

    class Mode(Log):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            top = modes._get_current_dispatch_mode()
            tops.append(top.name if top else None)
            return super().__torch_dispatch__(func, types, args, kwargs)

    x = torch.ones(2)
    with Mode("outer ", log) as outer, Mode("inner ", log) as inner:
        x + 1
        assert modes._get_current_dispatch_mode_stack() == [outer, inner]
    assert log == ["inner aten.add.Tensor", "outer aten.add.Tensor"]
    assert tops == ["outer ", None]


def test_the_same_mode_may_be_entered_twice():
    with Log() as log, log:
        torch.ones(2) + 1
    assert log.seen == ["aten.ones.default"] * 2 + ["aten.add.Tensor"] * 2


def test_an_exception_passes_and_leaves_the_stack_as_it_was():
    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise KeyError("no")

    x = torch.ones(2, requires_grad=True)
    with Log() as outer:
        with Refuse() as inner:
            with pytest.raises(KeyError):
                x * 2
            assert modes._get_current_dispatch_mode_stack() == [outer, inner]
        y = x * 2
    assert outer.seen == ["aten.mul.Tensor"] and y.requires_grad


def test_a_handler_that_leaves_modes_behind_does_not_break_the_stack():
    class Messy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Log().__enter__()
            return func(*args, **(kwargs or {}))

    with Messy() as mode:
        torch.ones(1)
        assert modes._get_current_dispatch_mode_stack() == [mode]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (NotImplemented, TypeError, "Multiple dispatch failed"),
        (3, RuntimeError, "Unable to cast 3 to Tensor"),
        ([], RuntimeError, "Unable to cast"),
    ],
)
def test_a_wrong_answer_is_an_error(answer, error, text):
    class Wrong(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return answer

    x = torch.ones(2)
    with Wrong(), pytest.raises(error, match=text):
        torch.sin(x)
    with Wrong(), pytest.raises(error):
        x.max(0)


def test_a_mode_without_a_method_says_so():
    class Bare(TorchDispatchMode):
        pass

    with Bare(), pytest.raises(NotImplementedError, match="Bare defines no __torch_dispatch__"):
        torch.ones(2)


def test_modes_belong_to_their_thread():
    other = []
    with Log() as log:
        t = threading.Thread(target=lambda: other.append((modes._get_current_dispatch_mode(), torch.ones(2) + 1)))
        t.start()
        t.join()
    assert log.seen == [] and other[0][0] is None


def test_modes_can_be_taken_off_for_a_while():
    with Log() as log:
        with modes._disable_current_modes() as off:
            assert off == [log] and modes._get_current_dispatch_mode() is None
            y = torch.ones(2, requires_grad=True) * 2
        with modes._pop_mode_temporarily() as one:
            assert one is log
            y + 1
        repr(y)  # printing computes, and is not shown
        with torch._C._DisableTorchDispatch():
            y + 1
    assert log.seen == [] and y.requires_grad


def test_nothing_is_recorded_inside_a_handler_and_grad_mode_is_what_it_was():
    seen = []

    class Inside(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            with torch.enable_grad():
                z = args[0] * 2
            seen.append((z.requires_grad, torch.is_grad_enabled(), modes.is_in_torch_dispatch_mode()))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    with Inside():
        x.sin()
        with torch.no_grad():
            x.sin()
    assert seen == [(False, True, True), (False, False, True)]
    assert not modes.is_in_torch_dispatch_mode()


def test_a_checkpoint_may_run_again_inside_a_handler():
    x = torch.tensor([0.3], requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False)

    class Inside(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            y.backward(retain_graph=True)
            return func(*args, **(kwargs or {}))

    with Inside():
        torch.ones(1)
    assert torch.allclose(x.grad, (x.cos() * x.sin().exp()).detach())


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_alpha_dropout", "dropout2d"])
def test_random_numbers_are_the_same_under_a_mode(name):
    f = getattr(torch.nn.functional, name)
    x = torch.randn(4, 6, 3)
    torch.manual_seed(1)
    plain = f(x, 0.3, True)
    torch.manual_seed(1)
    with Log() as log:
        seen = f(x, 0.3, True)
    assert torch.equal(plain, seen) and "aten.bernoulli_.float" in log.seen


def test_operations_with_outputs_for_backward_alone_give_them_to_the_handler():
    counts = {}

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            r = func(*args, **(kwargs or {}))
            counts[str(func)] = len(r) if isinstance(r, tuple) else 1
            return r

    x = torch.randn(3, 4, requires_grad=True)
    target = torch.tensor([0, 1, 2])
    want = torch.autograd.grad(torch.nn.functional.cross_entropy(x, target), x)[0]
    with Log(), Count(), Log():
        loss = torch.nn.functional.cross_entropy(x, target)
        got = torch.autograd.grad(loss, x)[0]
        torch.nn.functional.logsigmoid(x)
    assert counts["aten.nll_loss_forward.default"] == 2 and counts["aten.log_sigmoid_forward.default"] == 2
    assert torch.equal(got, want)


def test_a_training_step_is_equal_to_the_bit():
    def step(mode):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(27, 4)
        )
        opt = torch.optim.AdamW(net.parameters())
        x, t = torch.randn(2, 1, 8, 8), torch.tensor([1, 3])
        with mode:
            for _ in range(2):
                opt.zero_grad()
                torch.nn.functional.cross_entropy(net(x), t).backward()
                opt.step()
        return [p.detach() for p in net.parameters()] + list(net.buffers())

    with_mode, without = step(Log()), step(_nothing())
    assert all(torch.equal(a, b) for a, b in zip(with_mode, without, strict=True))


# ---- what an operation is -------------------------------------------------------------------------------------------


def test_overloads_print_and_compare_as_torchs():
    add = aten.add
    assert (str(add), repr(add), add.__name__) == ("aten.add", "<OpOverloadPacket(op='aten.add')>", "add")
    t = add.Tensor
    assert (str(t), repr(t)) == ("aten.add.Tensor", "<OpOverload(op='aten.add', overload='Tensor')>")
    assert (t.name(), t.__name__, t.namespace, t._overloadname, t._opname) == ("aten::add.Tensor", "add.Tensor", "aten", "Tensor", "add")
    assert t is torch.ops.aten.add.Tensor and t.overloadpacket is add and t == aten.add.Tensor and t != aten.add.out
    assert aten.mm.default in {aten.mm.default} and str(aten.mm.default) == "aten.mm.default"
    assert pickle.loads(pickle.dumps(t)) is t and copy.deepcopy(t) is t
    assert pickle.loads(pickle.dumps(add)) is add
    assert isinstance(t, torch._ops.OpOverload) and isinstance(add, torch._ops.OpOverloadPacket)
    assert add.overloads() == ["Tensor", "out"]


@pytest.mark.parametrize(
    "text",
    [
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
        "aten::mm(Tensor self, Tensor mat2) -> Tensor",
        "aten::sin.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        "aten::eq.Scalar(Tensor self, Scalar other) -> Tensor",
        "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
        "aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor(a!)",
        "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
        "aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        "aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]",
        "aten::cat(Tensor[] tensors, int dim=0) -> Tensor",
        "aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)",
        "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
        "aten::detach(Tensor(a) self) -> Tensor(a)",
        "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
        "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
        "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        "aten::gelu(Tensor self, *, str approximate=\"none\") -> Tensor",
        "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor",
        "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)",
        "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
        "aten::equal(Tensor self, Tensor other) -> bool",
        "aten::_local_scalar_dense(Tensor self) -> Scalar",
        "aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
    ],
)
def test_schemas_read_as_torchs(text):
    name, _, overload = text.partition("(")[0].removeprefix("aten::").partition(".")
    schema = torch._C._overload(name, overload)._schema
    shown = str(schema)
    if name == "ones":
        shown = shown.replace("Generator? generator=None, ", "")
    assert shown == text
    assert schema.name == f"aten::{name}" and schema.overload_name == overload


def test_schemas_say_what_is_written():
    s = aten.add_.Tensor._schema
    first, other, alpha = s.arguments
    assert first.alias_info.is_write and first.alias_info.before_set == {"a"} and s.is_mutable
    assert other.alias_info is None and not other.has_default_value()
    assert (alpha.name, alpha.kwarg_only, alpha.default_value, alpha.has_default_value()) == ("alpha", True, 1, True)
    assert s.returns[0].alias_info.is_write
    out = aten.add.out._schema.arguments[-1]
    assert out.is_out and out.alias_info.is_write and out.name == "out" and not first.is_out
    view = aten.view.default._schema
    assert not view.arguments[0].alias_info.is_write and view.returns[0].alias_info is not None and not view.is_mutable
    assert aten.split.Tensor._schema.arguments[0].alias_info.after_set == {"*"}
    assert all(aten.ones.out._schema.arguments[-1].is_out for _ in range(1))


def test_every_operation_has_a_schema_and_can_be_named():
    names = torch._C._packets()
    assert len(names) > 500
    for name in names:
        packet = getattr(aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            assert str(op._schema).startswith(op.name() + "("), name
            assert op._schema.is_mutable == ((name.endswith("_") and not name.endswith("__")) or "out" in overload.split("_")), str(op._schema)


def test_overloads_can_be_called():
    x = torch.ones(2)
    assert aten.add.Tensor(x, x, alpha=3).tolist() == [4.0, 4.0]
    assert aten.add(x, 1).tolist() == [2.0, 2.0]
    assert aten.add_.Tensor(x, 1) is x and x.tolist() == [2.0, 2.0]
    out = torch.empty(2)
    assert aten.mul.out(x, x, out=out) is out and out.tolist() == [4.0, 4.0]
    assert aten.max.dim(torch.tensor([[1.0, 3.0]]), 1).values.tolist() == [3.0]
    w = torch.ones(2, requires_grad=True)
    assert aten.mul.Tensor(w, 2).requires_grad
    with Log() as log:
        aten.mul.Tensor(w, 2)
    assert log.seen == ["aten.mul.Tensor"]


def test_wrong_calls_and_names_are_errors():
    with pytest.raises(RuntimeError, match=r"aten::add\(\) is missing value for argument 'other'. Declaration: aten::add.Tensor"):
        aten.add.Tensor(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"aten::mm\(\).*'mat2'.*Tensor.*int.*Declaration: aten::mm"):
        aten.mm.default(torch.ones(2, 2), 3)
    with pytest.raises(RuntimeError, match="out"):
        aten.add.out(torch.ones(2), 1)
    with pytest.raises(AttributeError, match="'_OpNamespace' 'aten' object has no attribute 'nothing'"):
        aten.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="has no overload name 'nothing'"):
        aten.add.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        torch.ops.mine.thing  # noqa: B018
    assert not hasattr(aten, "nothing") and hasattr(aten, "add")


# ---- garbage --------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_by_a_mode_that_was_left():
    def run():
        x = torch.ones(8, requires_grad=True)
        with Log() as log:
            y = (x * 2).sin_()
            y.sum().backward()
            torch.ones(3).t()
        return weakref.ref(x), weakref.ref(y), weakref.ref(log)

    run()
    gc.collect()

    def live():
        stats = torch.memory_stats()
        return stats["tensor"]["live"], stats["saved"]["live"], stats["storages"]

    before = live()
    refs = run()
    assert [r() for r in refs] == [None] * 3
    assert live() == before


def test_a_cycle_through_a_tagged_result_is_collected():
    class Tag(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            r = func(*args, **(kwargs or {}))
            r.me = [r]
            return r

    with Tag():
        y = torch.ones(2) + 1
    ref = weakref.ref(y.me[0])
    y.me.append(y)
    del y
    gc.collect()
    assert ref() is None


# ---- subclasses -----------------------------------------------------------------------------------------------------


class Watch(torch.Tensor):
    """Sees operations on its instances; their results are instances."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    seen: list = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append((str(func), types))
        r = super().__torch_dispatch__(func, types, args, kwargs)
        if func._schema.is_mutable:
            return modes.return_and_correct_aliasing(func, args, kwargs, r)
        return tree_map(lambda t: t.as_subclass(cls) if type(t) is torch.Tensor else t, r)


@pytest.fixture
def seen():
    Watch.seen.clear()
    yield Watch.seen
    Watch.seen.clear()


def test_a_subclass_takes_part_in_autograd(seen):
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    w = torch.Tensor._make_subclass(Watch, x.detach(), True)
    seen.clear()
    y = (w * 2).sin()
    assert seen == [("aten.mul.Tensor", (Watch,)), ("aten.sin.default", (Watch,))]
    assert type(y) is Watch and y.grad_fn.name() == "SinBackward0"
    y.sum().backward()
    (x * 2).sin().sum().backward()
    assert w.grad.tolist() == x.grad.tolist()


def test_a_subclass_survives_compositions(seen):
    w, m = torch.ones(2, 3).as_subclass(Watch), torch.ones(4, 3)
    seen.clear()
    y = torch.nn.functional.linear(w, m)
    assert type(y) is Watch and y.tolist() == [[3.0] * 4] * 2
    assert torch.nn.functional.gelu(w).tolist() == torch.nn.functional.gelu(torch.ones(2, 3)).tolist()
    assert w.mul_(5) is w and w.tolist() == [[5.0] * 3] * 2
    names = [n for n, _ in seen]
    assert "aten.mm.default" in names and "aten.mul_.Tensor" in names


def test_attributes_of_a_result_stay_with_it_inside_a_composition():
    class Tag(TorchDispatchMode):
        tags: list = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.tags.append((str(func), [getattr(a, "tag", None) for a in args if isinstance(a, torch.Tensor)]))
            r = func(*args, **(kwargs or {}))
            r.tag = str(func)
            return r

    with Tag() as mode:
        torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
    assert mode.tags[-1] == ("aten.mm.default", ["aten.ones.default", "aten.t.default"])


def test_modes_come_before_subclasses(seen):
    w = torch.ones(2).as_subclass(Watch)
    seen.clear()
    got = []

    class Types(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            got.append((str(func), types, len(seen)))
            return func(*args, **(kwargs or {}))

    with Types():
        y = w + 1
    assert got[0] == ("aten.add.Tensor", (Watch,), 0) and type(y) is Watch and seen[0][0] == "aten.add.Tensor"


def test_a_subclass_that_passes_everything_on_gives_plain_tensors():
    class Through(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return super().__torch_dispatch__(func, types, args, kwargs)

    y = torch.tensor([1.0, 4.0]).as_subclass(Through).sqrt()
    assert y.tolist() == [1.0, 2.0] and type(y) is torch.Tensor


def test_a_subclass_may_refuse():
    class Never(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    x = torch._C._DisableTorchDispatch()
    with x:
        t = torch.ones(2).as_subclass(Never)
    with pytest.raises(TypeError, match=r"Multiple dispatch failed for 'torch.ops.aten.sin.default'"):
        torch.sin(t)


def test_tensors_without_memory_are_refused_plainly():
    with pytest.raises(NotImplementedError, match="_make_wrapper_subclass"):
        torch.Tensor._make_wrapper_subclass(Watch, (2, 3))


def test_wrapping_classes_are_known_by_what_they_offer():
    class Pair(torch.Tensor):
        def __tensor_flatten__(self):
            return ["a"], None

        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            t = inner["a"].as_subclass(Pair)
            t.a = inner["a"]
            return t

    p = torch.ones(2).as_subclass(Pair)
    p.a = torch.ones(2)
    assert modes.is_traceable_wrapper_subclass(p) and modes.is_traceable_wrapper_subclass_type(Pair)
    assert not modes.is_traceable_wrapper_subclass(torch.ones(2))
    q = modes.transform_subclass(p, lambda name, t: t + 1)
    assert type(q) is Pair and q.a.tolist() == [2.0, 2.0]


def test_function_modes_and_switches():
    class Calls(torch.overrides.TorchFunctionMode):
        def __init__(self):
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Sub(torch.Tensor):
        pass

    x, s = torch.ones(2), torch.ones(2).as_subclass(Sub)
    with Calls() as mode:
        x.add(1)
        x.detach()
        with torch._C.DisableTorchFunctionSubclass():
            assert type(s + 1) is torch.Tensor
        with torch._C.DisableTorchFunction():
            x.mul(2)
            assert not torch.overrides.has_torch_function((x,))
        with torch.overrides._pop_mode_temporarily():
            x.div(2)
    assert mode.seen == ["add", "detach", "add"]
    assert torch.overrides.has_torch_function((s,)) and not torch.overrides.has_torch_function((x, 1))
    with torch._C.DisableTorchFunctionSubclass():
        assert not torch.overrides.has_torch_function((s,))


def test_functions_are_found_by_name():
    o = torch.overrides
    assert o.resolve_name(torch.add) == "torch.add"
    assert o.resolve_name(torch.Tensor.add) == "torch.Tensor.add"
    assert o.resolve_name(torch.Tensor.shape.__get__) == "torch.Tensor.shape.__get__"
    assert o.resolve_name(aten.add.Tensor) == "aten.add.Tensor"
    found = o.get_overridable_functions()
    assert torch.add in found[torch] and torch.Tensor.add in found[torch.Tensor]
    assert torch.manual_seed in o.get_ignored_functions()
    assert all(torch.manual_seed not in fs for fs in found.values())
    assert o.get_testing_overrides()[torch.add](1, 2) == -1
