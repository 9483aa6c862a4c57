"""Random programs: frames nested to depth three, with inner gradients, keywords, containers, dropped outputs, custom functions, writes in
place through views, batch norm, random numbers, groups of backward calls; and programs under the guard whose saved values are overwritten.
First and second gradients are bit for bit those of plain code, and nothing is left.

`python tests/test_frames_programs.py 5000` runs as many; pytest runs a short selection.
"""

from __future__ import annotations

import gc
import random
import sys
from contextlib import nullcontext

import pytest
import stowgrad as torch
from frames import ck, saved, storages
from stowgrad.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from stowgrad.utils.checkpoint import GraphExecGroup

SHORT = 120
N = 4
DEPTH = 3
FLAT = "sin cos tanh mul add square custom inplace view dropout generator norm".split()
NESTED = "frame keywords containers pair grad hooks".split()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * t * t * 0.1

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * t * t * 0.3


def plain(function, *args, early_stop=True, determinism_check="default", **kwargs):
    return function(*args, **kwargs)


class Program:
    """One random program, made from its seed: run it under any way of calling regions."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(seed)
        self.leaves = [self.vector() for _ in range(4)]
        self.steps = self.build(0)

    def vector(self):
        return [self.random.uniform(-1, 1) for _ in range(N)]

    def build(self, depth):
        r = self.random
        steps = []
        for _ in range(r.randint(1, 4)):
            kind = r.choice(FLAT + NESTED if depth < DEPTH else FLAT)
            inner = self.build(depth + 1) if kind in NESTED else None
            steps.append((kind, inner, r.randrange(3), r.random() < 0.5, r.random() < 0.5))
        return steps

    def region(self, steps):
        def run(t):
            for step in steps:
                t = self.step(step, t)
            return t

        return run

    def step(self, step, t):
        kind, inner, i, flag, written = step
        w, call = self.ws[i], self.call
        g = self.region(inner) if inner is not None else None
        match kind:
            case "sin" | "cos" | "tanh":
                t = getattr(t, kind)()
            case "mul":
                t = t * w
            case "add":
                t = t + w
            case "square":
                t = t * t
            case "custom":
                t = Cube.apply(t)
            case "inplace":
                t = (t * 1.0).sin_() if flag else t.clone().mul_(w)
            case "view":
                t = t.clone()
                part = t.view(2, 2)[i % 2]
                part.mul_(w[:2])
                if flag:
                    t[1:3].tanh_()
            case "dropout":
                t = torch.nn.functional.dropout(t, 0.3, True)
            case "generator":
                t = t * torch.rand(N, generator=self.generator)
            case "norm":
                t = torch.nn.functional.batch_norm(t.view(N, 1), self.mean, self.var, training=True, momentum=0.1).view(N) + t
            case "frame":
                t = call(g, t, early_stop=flag)
            case "keywords":
                t = call(lambda a, b=None: g(a * b), t, b=t.cos())
            case "containers":
                t = call(lambda v: g(v[0][0] + v[1]["a"]), [[t], {"a": w.sin()}])
            case "pair":
                a, b = call(lambda u: (g(u), u.cos().sin()), t)
                t = a if flag else a + b
            case "grad":
                y = g(t * 1.0)
                if t.requires_grad and y.requires_grad:
                    (d,) = torch.autograd.grad(y.sum(), t, create_graph=flag, allow_unused=True, retain_graph=True)
                    y = y + d.tanh() if d is not None and flag else y
                t = y
            case "hooks":
                with saved_tensors_hooks(lambda v: v.detach().clone(), lambda v: v) if flag else nullcontext():
                    t = g(t)
        if self.guard is not None and written:
            kept = t.clone()
            if self.guard and t.grad_fn is not None:
                t.detach().mul_(3.0)
            t = kept
        return t

    def run(self, call, guard=None, group=False):
        """Gradients of first and second order. `guard`: under the mutation guard, True with writes to saved values, False without."""
        self.call, self.guard = call, guard
        torch.manual_seed(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.mean, self.var = torch.zeros(1), torch.ones(1)
        x, *self.ws = leaves = [torch.tensor(v, requires_grad=True) for v in self.leaves]
        with allow_mutation_on_saved_tensors() if guard else nullcontext(), GraphExecGroup() if group else nullcontext():
            out = self.region(self.steps)(x).sum()
            if not out.requires_grad:
                return []
            first = torch.autograd.grad(out, leaves, create_graph=True, allow_unused=True)
            wanted = [g.sum() for g in first if g is not None and g.requires_grad]
            result = [None if g is None else g.tolist() for g in first]
            if wanted:
                total = sum(wanted)
                for keep in (True, False):
                    second = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=keep)
                result += [None if g is None else g.tolist() for g in second]
        del self.ws
        return [*result, self.mean.tolist(), self.var.tolist()]


WAYS = {
    "frames": {"call": ck},
    "values": {"call": lambda f, *a, **k: ck(f, *a, determinism_check="values", **k)},
    "group": {"call": ck, "group": True},
    "guard": {"call": plain, "guard": True},
    "frames in a guard": {"call": ck, "guard": True},
}


def check(seed):
    """What is wrong with this program, if anything."""
    wrong = []
    gc.collect()
    before = storages(), saved()
    program = Program(seed)
    for way, how in WAYS.items():
        want = program.run(plain, None if "guard" not in how else False)
        try:
            got = program.run(**how)
        except Exception as e:
            wrong.append(f"{seed} {way}: {type(e).__name__}: {str(e)[:300]}")
            e.__traceback__ = None
            continue
        if repr(got) != repr(want):  # to the last bit, and nan is nan
            wrong.append(f"{seed} {way}: {got} is not {want}")
    del program
    gc.collect()
    if (storages(), saved()) != before:
        wrong.append(f"{seed}: {storages() - before[0]} storages and {saved() - before[1]} saved bytes are left")
    return wrong


@pytest.mark.parametrize("start", range(0, SHORT, 20))
def test_random_programs_have_the_gradients_of_plain_code(start):
    assert [w for seed in range(start, start + 20) for w in check(seed)] == []


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SHORT
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    bad = 0
    for seed in range(first, first + count):
        for w in check(seed):
            bad += 1
            print(w, flush=True)
    print(f"{count} programs in {len(WAYS)} ways: {bad} wrong")
    sys.exit(bool(bad))
