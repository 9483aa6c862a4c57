"""`autograd.functional` and batches of gradients give what torch gave for the same call: values, structure, whether the results can be
differentiated again, and the class of the error where torch refuses.
"""

from __future__ import annotations

import itertools

import pytest
import stowgrad as torch
import stowgrad.autograd.functional as functional
from facts import recorded

f64 = torch.float64
DATA = recorded("functional.json.gz")
MAKE = {
    "X": lambda grad=False: torch.tensor([[0.5, -1.0], [2.0, 0.3]], dtype=f64, requires_grad=grad),
    "Y": lambda grad=False: torch.tensor([1.5, 0.7], dtype=f64, requires_grad=grad),
    "S": lambda grad=False: torch.tensor(0.8, dtype=f64, requires_grad=grad),
}
FUNCTIONS = {
    "sq": (lambda x: x * x, "X"),
    "sum": (lambda x: x.sum(), "X"),
    "cube": (lambda x: (x**3).sum(), "X"),
    "const": (lambda x: torch.ones(2, dtype=f64), "X"),
    "lin": (lambda x: 3 * x, "X"),
    "linsum": (lambda x: (3 * x).sum(), "X"),
    "two": (lambda x, y: x @ y, "XY"),
    "twosum": (lambda x, y: (x @ y).sin().sum(), "XY"),
    "tup": (lambda x, y: (x @ y, y.exp()), "XY"),
    "onlyx": (lambda x, y: x.exp().sum(), "XY"),
    "tup1": (lambda x: (x * x,), "X"),
    "list": (lambda x, y: [x.sum(), y.sum()], "XY"),
    "scalar": (lambda s: s * s * s, "S"),
    "scalarin": (lambda s: s * torch.ones(2, dtype=f64), "S"),
    "detached": (lambda x: x.detach().sum(), "X"),
    "one": (lambda x: (x**2).sum().reshape(1), "X"),
    "ident": (lambda x: x, "X"),
    "inpl": (lambda x: x.clone().mul_(2).sum(), "X"),
    "nontensor": (lambda x: 3.0, "X"),
    "int": (lambda x: (x * 2).to(torch.int64), "X"),
    "float32": (lambda x: x.float().sum(), "X"),
    "none": (lambda x: None, "X"),
}
OF_TWO = {
    "mm": lambda x, y: x @ y,
    "x": lambda x, y: x * x,
    "sum": lambda x, y: (x @ y).sum(),
    "tup": lambda x, y: (x @ y, y * y),
    "none": lambda x, y: x.detach(),
}


def tuple_of(x):
    return x if isinstance(x, tuple) else (x,)


def single(ts):
    return ts[0] if len(ts) == 1 else ts


def arguments(spec, grad):
    return single(tuple(MAKE[c](grad) for c in spec))


def vector(kind, like):
    like = tuple_of(like)
    if kind == "none":
        return None
    if kind == "ones":
        return single(tuple(torch.ones_like(t) * 0.5 for t in like))
    if kind == "wrongshape":
        return single(tuple(torch.ones(5, dtype=f64) for _ in like))
    return tuple(torch.ones_like(t) for t in like) + (torch.ones(1, dtype=f64),)


def weights(kind, outputs):
    outputs = tuple_of(outputs)
    lead = {"3": (3,), "0": (0,), "bad": ()}
    if kind == "None":
        return None
    if kind == "arange":
        return tuple(torch.arange(2.0 * t.numel(), dtype=f64).reshape((2, *t.shape)) for t in outputs)
    scale = 0.5 if kind == "3" else 1.0
    return tuple(torch.ones((*lead[kind], *t.shape), dtype=f64) * scale for t in outputs)


def calls():
    """(label, call): the labels are those of the recording."""
    flags = (False, True)
    for name, (f, spec) in FUNCTIONS.items():
        for cg, st, rg in itertools.product(flags, flags, flags):
            given = dict(create_graph=cg, strict=st)
            for ve in flags:
                for which in ("jacobian", "hessian"):
                    yield (
                        f"{which} {name} cg={cg} st={st} ve={ve} rg={rg}",
                        lambda w=which, f=f, s=spec, rg=rg, g=given, ve=ve: getattr(functional, w)(f, arguments(s, rg), vectorize=ve, **g),
                    )
            for kind in ("none", "ones", "wrongshape", "wrongn"):
                for which in ("jvp", "vhp", "hvp"):
                    yield (
                        f"{which} {name} cg={cg} st={st} v={kind} rg={rg}",
                        lambda w=which, f=f, s=spec, rg=rg, g=given, k=kind: getattr(functional, w)(
                            f, arguments(s, rg), vector(k, arguments(s, False)), **g
                        ),
                    )
                yield f"vjp {name} cg={cg} st={st} v={kind} rg={rg}", lambda f=f, s=spec, rg=rg, g=given, k=kind: vjp(f, s, rg, g, k)
    for name, f in OF_TWO.items():
        for cg in flags:
            for kind in ("3", "0", "bad", "None", "arange"):
                for unused in (None, True, False):
                    yield f"batched {name} cg={cg} au={unused} {kind}", lambda f=f, c=cg, k=kind, u=unused: batched(f, k, c, u)
                yield f"batched {name} cg={cg} mat {kind}", lambda f=f, c=cg, k=kind: batched(f, k, c, None, True)


def vjp(f, spec, rg, given, kind):
    args = arguments(spec, rg)
    out = f(*tuple_of(args))
    out = tuple(out) if isinstance(out, list) else out
    try:
        v = vector(kind, out)
    except Exception:
        v = None
    return functional.vjp(f, args, v, **given)


def batched(f, kind, create_graph, unused, zeros=False):
    x, y = MAKE["X"](True), MAKE["Y"](True)
    out = f(x, y)
    return torch.autograd.grad(
        out, (x, y), weights(kind, out), is_grads_batched=True, create_graph=create_graph, allow_unused=unused, materialize_grads=zeros
    )


def described(r):
    if r is None:
        return None
    if isinstance(r, (tuple, list)):
        return [type(r).__name__, *map(described, r)]
    values = [round(v, 9) for v in r.detach().double().reshape(-1).tolist()]
    return [str(r.dtype).split(".")[-1], list(r.shape), values, r.requires_grad]


def same(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, abs=1e-8, nan_ok=True)
    return a == b


# Vectorised, torch gives zeros that claim to require grad; and without weights it makes ones for scalars, batch or no batch.
DIFFERENT = {
    *(f"{w} cg=True st=False ve=True rg={rg}" for w in ("jacobian tup", "hessian onlyx") for rg in (False, True)),
    *(f"batched {f} cg={cg} {u} None" for f in ("sum", "none") for cg in (False, True) for u in ("au=None", "au=True", "au=False", "mat")),
}
GROUPS: dict[str, list] = {}
for _label, _call in calls():
    GROUPS.setdefault(" ".join(_label.split()[:2]), []).append((_label, _call))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", GROUPS)
def test_calls_give_what_torch_gave(group):
    wrong = {}
    for label, call in GROUPS[group]:
        try:
            got = described(call())
        except Exception as e:
            got = type(e).__name__
        if not same(got, DATA[label]):
            wrong[label] = (got, DATA[label])
    assert set(wrong) == {label for label, _ in GROUPS[group] if label in DIFFERENT}, wrong


def test_every_recorded_call_is_made():
    assert set(DATA) == {label for label, _ in calls()}
