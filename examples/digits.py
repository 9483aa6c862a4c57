"""Trains one small network on real handwritten digits under several ways of keeping the values saved for backward.

    python examples/digits.py [--out demo.png] [--epochs 3]

The data are the 1797 digits of 8 x 8 pixels that scikit-learn ships (Alpaydin and Kaynak 1998). Each way is a few
lines of user code: a pair of pack and unpack functions, checkpoints around layers, or the mutation guard, under which
the optimizer may write while the graph still lives. The network, the data, the order of batches and the seed are the
same in all of them, so a way that loses nothing ends with exactly the same loss.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

import numpy as np
import stowgrad as torch
from sklearn.datasets import load_digits
from stowgrad import nn
from stowgrad.utils.checkpoint import checkpoint

hooks = torch.autograd.graph.saved_tensors_hooks
counts = {"pack": 0, "unpack": 0, "run": 0}


def counted(pack, unpack):
    """The pair, counted."""

    def counting_pack(t):
        counts["pack"] += 1
        return pack(t)

    def counting_unpack(p):
        counts["unpack"] += 1
        return unpack(p)

    return hooks(counting_pack, counting_unpack)


# ---- the ways: each gives a context for a training step, and may say how layers are called ----
class KeepAll:
    """No hooks: the graph keeps what it saved."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def identity():
    return counted(lambda t: t, lambda t: t)


def on_cpu():
    pair = torch.autograd.graph.save_on_cpu()
    return counted(pair.pack_hook, pair.unpack_hook)


class TemporaryFile:
    """A value on disk; the file goes when the graph lets go of it."""

    folder = tempfile.TemporaryDirectory()
    number = 0

    def __init__(self, t):
        TemporaryFile.number += 1
        self.name = os.path.join(self.folder.name, f"{TemporaryFile.number}.pt")
        torch.save(t, self.name)

    def __del__(self):
        os.remove(self.name)


def files():
    """Large values to temporary files (the saved-tensor tutorial's example); small ones and parameters stay."""

    def pack(t):
        return t if t.numel() < 4096 or t.is_leaf else TemporaryFile(t)

    return counted(pack, lambda p: torch.load(p.name) if isinstance(p, TemporaryFile) else p)


def is_activation(t):
    return t.dtype == torch.float32 and not t.is_leaf and t.dim() == 2


def bfloat16():
    """Half the bytes, three significant digits."""
    return counted(
        lambda t: t.to(torch.bfloat16) if is_activation(t) else t,
        lambda p: p.to(torch.float32) if p.dtype == torch.bfloat16 else p,
    )


def int8_rows():
    """A quarter of the bytes: each row scaled to -127..127."""

    def pack(t):
        if not is_activation(t):
            return t
        scale = t.detach().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        return (t.detach() / scale).round().to(torch.int8), scale

    return counted(pack, lambda p: p[0].to(torch.float32) * p[1] if isinstance(p, tuple) else p)


def one_by_one(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def each_checkpointed(layers, x):
    """Each layer forgets what it saved, and runs again for backward."""
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


def halves_checkpointed(layers, x):
    """Checkpoints in checkpoints: each half of the layers is one, down to single layers."""
    if len(layers) == 1:
        return layers[0](x)
    middle = len(layers) // 2
    for half in (layers[:middle], layers[middle:]):
        x = checkpoint(halves_checkpointed, half, x, use_reentrant=False)
    return x


def step_and_look_back(loss, optimizer):
    """The optimizer writes the parameters while the graph lives; backward through it still gives the gradients of then."""
    loss.backward(retain_graph=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    first = [p.grad.clone() for p in parameters]
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    if not all(torch.equal(p.grad, g) for p, g in zip(parameters, first, strict=True)):
        raise AssertionError("gradients after the step differ from those before")


def back_and_step(loss, optimizer):
    loss.backward()
    optimizer.step()


CALLS = {"checkpoint a layer": each_checkpointed, "nested checkpoints": halves_checkpointed}
STEPS = {"step, graph alive": step_and_look_back}
WAYS = {
    "keep all": KeepAll,
    "identity hooks": identity,
    "save_on_cpu": on_cpu,
    "files above 4096": files,
    "bfloat16": bfloat16,
    "int8 per row": int8_rows,
    "checkpoint a layer": KeepAll,
    "nested checkpoints": KeepAll,
    "step, graph alive": torch.autograd.graph.allow_mutation_on_saved_tensors,
}


def network():
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 10)
    )


def bar(done: int, total: int, text: str) -> None:
    """A progress bar on a terminal; silent in a log."""
    if sys.stderr.isatty():
        filled = 30 * done // total
        sys.stderr.write("\r" + text.ljust(18) + "[" + "#" * filled + "." * (30 - filled) + f"] {done}/{total}")
        sys.stderr.write("\n" if done == total else "")
        sys.stderr.flush()


def saved_bytes() -> int:
    return torch.memory_stats()["saved"]["live"]


def train(name: str, way, data, epochs: int) -> dict:
    x, y, x_test, y_test = data
    torch.manual_seed(0)
    counts.update(pack=0, unpack=0, run=0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    batches = [(e, at) for e in range(epochs) for at in range(0, len(x) - 255, 128)]
    losses, times, marks = [], [], []
    call, finish = CALLS.get(name, one_by_one), STEPS.get(name, back_and_step)
    torch.reset_peak_memory_stats()
    start = saved_bytes()

    def watched(layer):
        """A layer that counts its runs, and looks at the saved bytes after the first of the last step."""

        def run(t):
            counts["run"] += 1
            out = layer(t)
            if last and len(marks) < len(model):
                marks.append(saved_bytes() - start)
            return out

        return run

    layers = [watched(layer) for layer in model]
    for step, (_, at) in enumerate(batches):
        begin = time.perf_counter()
        optimizer.zero_grad()
        last = step == len(batches) - 1
        with way():
            out = call(layers, x[at : at + 128])
            loss = loss_fn(out, y[at : at + 128])
            if last:
                marks.append(saved_bytes() - start)
                out.register_hook(lambda g: marks.append(saved_bytes() - start))
            finish(loss, optimizer)
            if last:
                marks.append(saved_bytes() - start)
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
        bar(step + 1, len(batches), name)
    peak = torch.memory_stats()["saved"]["peak"] - start
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    return {
        "way": name, "peak": peak, "packs": counts["pack"], "unpacks": counts["unpack"], "runs": counts["run"],
        "ms": 1e3 * float(np.median(times)), "accuracy": accuracy, "losses": losses, "profile": marks, "left": saved_bytes() - start,
    }


def table(rows: list[dict]) -> str:
    names = ["way", "saved at peak", "packs", "unpacks", "layer runs", "ms a step", "accuracy", "loss as keep all"]
    lines = ["{:18s} {:>14s} {:>7s} {:>8s} {:>10s} {:>10s} {:>9s}  {}".format(*names)]
    for r in rows:
        same = "yes, bit for bit" if r["losses"] == rows[0]["losses"] else f"ends {r['losses'][-1] - rows[0]['losses'][-1]:+.1e} apart"
        counted = f"{r['peak'] / 1024:10.0f} KiB {r['packs']:7d} {r['unpacks']:8d} {r['runs']:10d}"
        lines.append(f"{r['way']:18s} {counted} {r['ms']:10.2f} {r['accuracy']:9.3f}  {same}")
    return "\n".join(lines)


def picture(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    for i, r in enumerate(rows):
        style = {"lw": max(0.9, 2.6 - 0.3 * i), "ls": ["-", "--", "-.", ":"][i % 4], "label": r["way"]}
        left.plot(r["losses"], **style)
        right.plot([b / 1024 for b in r["profile"]], marker="o", ms=4, **style)
    left.set(xlabel="step", ylabel="training loss", yscale="log", title="The same training")
    right.set(xlabel="layer by layer, then backward", ylabel="saved for backward, KiB", title="Saved bytes over one step")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle("stowgrad: one network, several ways of keeping the values saved for backward")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="demo.png", help="where the picture goes")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.from_numpy((digits.data[order] / 16).astype(np.float32))
    labels = torch.from_numpy(digits.target[order].astype(np.int64))
    data = pixels[:1400], labels[:1400], pixels[1400:], labels[1400:]
    print(f"1400 digits to train on, 397 to test on; {options.epochs} epochs of batches of 128")
    rows = [train(name, way, data, options.epochs) for name, way in WAYS.items()]
    print(table(rows))
    left = {r["way"]: r["left"] for r in rows if r["left"]}
    print("saved bytes left after training: " + (str(left) if left else "none, in every way"))
    picture(rows, options.out)
    print(f"picture: {options.out}")


if __name__ == "__main__":
    main()
