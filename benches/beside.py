"""The same small operations on stowgrad and on torch, in turn, each module in a process of its own; prints nanoseconds and the ratio.

    python benches/beside.py --against-python .venv-torch/bin/python [--rounds 5]

`ratio` is torch's time over ours, the median of the rounds: above 1 we are faster. One thread each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time

SETUP = {
    "x": lambda t: t.ones(4),
    "a": lambda t: t.ones(4).requires_grad_(),
    "m": lambda t: t.ones(8, 8),
}
WORKS = {
    "product, not recorded": "x * x",
    "product, recorded": "a * a",
    "sum with a number": "x + 1.5",
    "view": "x.view(2, 2)",
    "element": "x[1]",
    "sum in place": "x.add_(0.0)",
    "sum of all": "x.sum()",
    "matrix product": "m @ m",
    "forward and backward": "(a * a).sum().backward()",
}


def worker(module: str) -> None:
    torch = importlib.import_module(module)
    torch.set_num_threads(1)
    names = {name: make(torch) for name, make in SETUP.items()}
    print("ready", flush=True)
    for line in sys.stdin:
        code = compile(f"for _ in range(2000):\n    {WORKS[line.strip()]}", "work", "exec")
        exec(code, names)
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            exec(code, names)
            best = min(best, time.perf_counter() - start)
        print(json.dumps(best / 2000 * 1e9), flush=True)


class Peer:
    def __init__(self, python: str, module: str):
        command = [python, __file__, "--worker", module]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{module} does not start under {python}")

    def ask(self, name: str) -> float:
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against-python", required=True, help="an interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ours, other = Peer(sys.executable, "stowgrad"), Peer(options.against_python, "torch")
    print(f"{'work':24s} {'stowgrad':>12s} {'torch':>12s} {'ratio':>7s}")
    for name in WORKS:
        pairs = [(ours.ask(name), other.ask(name)) for _ in range(options.rounds)]
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{name:24s} {min(a for a, _ in pairs):9.0f} ns {min(b for _, b in pairs):9.0f} ns {ratio:7.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    else:
        main()
