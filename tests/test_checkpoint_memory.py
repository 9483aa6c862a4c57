"""What checkpoints keep and how often they compute, by count: a transformer with a frame around each block, and 1000 layers under nested
frames.
"""

from __future__ import annotations

import math

import pytest
import stowgrad as torch
from frames import NoCollector, ck, leaf, saved, storages

BLOCKS = 12


def peak_of(run):
    """The most that slots and frames held while `run()` ran, in bytes, over what they held before."""
    before = saved()
    torch.reset_peak_memory_stats()
    run()
    return torch.memory_stats()["saved"]["peak"] - before


def test_a_transformer_peaks_at_its_blocks_inputs_and_one_block():
    torch.manual_seed(0)
    blocks = [torch.nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.1, batch_first=True) for _ in range(BLOCKS)]
    x = torch.randn(2, 5, 16, requires_grad=True)
    parameters = [p for b in blocks for p in b.parameters()]

    def model(call):
        torch.manual_seed(1)
        h = x * 1.0
        for b in blocks:
            h = call(b, h)
        return h.sum()

    plain = torch.autograd.grad(model(lambda b, h: b(h)), [x, *parameters])
    before = saved()
    kept = blocks[0](x)
    one = saved() - before  # what one block saves; x is a leaf, and lives anyway
    inputs = x.nbytes
    del kept
    with NoCollector():
        y = model(ck)
        assert saved() - before == BLOCKS * inputs
        grads = []
        assert peak_of(lambda: grads.extend(torch.autograd.grad(y, [x, *parameters]))) == one
        assert saved() == before
    assert [g.tolist() for g in grads] == [g.tolist() for g in plain]


class Chain:
    """A chain of `n` layers that counts its runs and the storages alive inside it."""

    def __init__(self):
        self.runs = self.peak = 0
        self.before = storages()

    def layer(self, t):
        self.runs += 1
        y = t.sin()
        self.peak = max(self.peak, storages() - self.before)
        return y

    def row(self, start, end):
        def run(t):
            for _ in range(start, end):
                t = self.layer(t)
            return t

        return run

    def levels(self, start, end, size):
        """Frames of `size[0]` layers, each made of frames of `size[1]` layers, and so on."""
        if not size:
            return self.row(start, end)

        def run(t):
            for s in range(start, end, size[0]):
                t = ck(self.levels(s, s + size[0], size[1:]), t)
            return t

        return run

    def halves(self, start, end):
        def run(t):
            if end - start == 1:
                return self.layer(t)
            middle = (start + end) // 2
            return ck(self.halves(middle, end), ck(self.halves(start, middle), t))

        return run


N = 1000
SQRT, CUBE = math.isqrt(N), round(N ** (1 / 3))
SHAPES = {
    "one level of the square root": (lambda c: c.levels(0, N, (SQRT,)), 65, 2046),
    "two levels of the cube root": (lambda c: c.levels(0, N, (CUBE**2, CUBE)), 30, 2900),
    "halves down to one layer": (lambda c: lambda t: ck(c.halves(0, N), t), 13, 6932),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_nested_frames_over_a_thousand_layers(shape):
    make, peak, runs = SHAPES[shape]
    layers = SQRT * -(-N // SQRT) if peak == 65 else N  # the last row is a whole one
    x = leaf()
    want = x
    for _ in range(layers):
        want = want.sin()
    (want,) = torch.autograd.grad(want.sum(), x)
    with NoCollector():
        chain = Chain()
        h = make(chain)(x)
        (got,) = torch.autograd.grad(h.sum(), x)
        del h
        assert (chain.peak, chain.runs) == (peak, runs)
    assert got.tolist() == want.tolist()


def test_a_frame_around_each_layer_keeps_the_inputs():
    with NoCollector():
        chain = Chain()
        x = leaf()
        before = saved()
        y = chain.levels(0, 100, (1,))(x * 1.0)
        assert saved() - before == 100 * x.nbytes
        y.sum().backward()
        assert chain.runs == 200
        assert saved() == before
