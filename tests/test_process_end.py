"""A process ends cleanly whatever the tape still holds."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "program",
    [
        "y = (x * 2).exp(); y.mul_(2)",  # a write to a saved value notes its line
        "h = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t); h.__enter__(); y = x.exp()",
        "y = x.exp(); y.foo = y; x.register_hook(lambda g: y)",
        "g = torch.autograd.graph.allow_mutation_on_saved_tensors(); g.__enter__(); y = x.exp() * x",
        "g = torch.autograd.graph.allow_mutation_on_saved_tensors()\nimport threading\n"
        "t = threading.Thread(target=lambda: (g.__enter__(), x.exp() * x)); t.start(); t.join()",
        "from stowgrad.utils.checkpoint import checkpoint; y = checkpoint(lambda t: t.exp() * x, x); x.foo = y",
        "import threading; t = threading.Thread(target=lambda: (x * 2).exp().mul_(2)); t.start(); t.join()",
    ],
)
def test_nothing_is_touched_after_the_interpreter_is_gone(program):
    code = f"import stowgrad as torch; x = torch.ones(3, requires_grad=True); {program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
