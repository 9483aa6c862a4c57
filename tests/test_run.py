"""`python -m stowgrad run` runs scripts written for torch; `info` says what is installed."""

import os
import subprocess
import sys
import textwrap

import pytest


def run(*args, cwd, env=None):
    full = dict(os.environ, **(env or {}))
    return subprocess.run(
        [sys.executable, "-m", "stowgrad", *args],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env=full,
        check=False,
    )


def write(path, text):
    path.write_text(textwrap.dedent(text))
    return path


def test_a_script_gets_stowgrad_for_torch(tmp_path):
    write(
        tmp_path / "s.py",
        """
        import sys
        import torch
        import torch.autograd.graph as g
        from torch.autograd import Function
        from torch.utils import hooks
        import torch.nn as nn
        print(torch.__name__, sys.argv, __name__, __file__)
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        print(x.grad)
        """,
    )
    done = run("run", "s.py", "a", "-b", cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["stowgrad ['s.py', 'a', '-b'] __main__ s.py", "tensor([2., 2.])"]
    assert done.returncode == 0


def test_no_module_exists_twice_and_each_keeps_its_spec(tmp_path):
    write(
        tmp_path / "s.py",
        """
        import importlib, sys
        import torch, stowgrad, torch.autograd.graph, stowgrad.autograd.graph
        import torch.utils.hooks as a
        from stowgrad.utils import hooks as b
        assert torch is stowgrad and torch.autograd.graph is stowgrad.autograd.graph and a is b
        assert importlib.import_module("torch.utils.hooks") is a
        assert a.__spec__.name == "stowgrad.utils.hooks" and torch.__spec__.name == "stowgrad"
        assert importlib.util.find_spec("torch").name == "stowgrad"
        assert importlib.util.find_spec("torch.nosuch") is None
        files = [getattr(m, "__file__", None) or "" for m in list(sys.modules.values())]
        files = [f for f in files if "/stowgrad/" in f]
        assert len(files) - len(set(files)) <= 1, "a file was loaded twice"  # __main__ is one of them
        """,
    )
    done = run("run", "s.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_modules_that_the_script_imports_get_stowgrad_too(tmp_path):
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg" / "__init__.py", "from .inner import name")
    write(tmp_path / "pkg" / "inner.py", "import torch\nname = torch.__name__")
    write(tmp_path / "s.py", "import pkg; print(pkg.name)")
    assert run("run", "s.py", cwd=tmp_path).stdout == "stowgrad\n"


def test_code_inside_a_real_torch_gets_the_real_torch(tmp_path):
    """A stand-in for an installed torch, which stowgrad loads for tensors on a GPU."""
    fake = tmp_path / "site" / "torch"
    (fake / "nn").mkdir(parents=True)
    write(fake / "__init__.py", "marker = 'real'\nimport torch.nn\n")
    write(
        fake / "nn" / "__init__.py",
        "import torch\nfrom torch import marker\nimport importlib\nimportlib.import_module('torch')\n",
    )
    write(
        tmp_path / "s.py",
        """
        import torch
        assert torch.__name__ == "stowgrad"
        from stowgrad._alias import real_torch
        real = real_torch()
        assert real.marker == "real" and real.nn.marker == "real"
        import torch.nn
        assert torch.__name__ == "stowgrad" and not hasattr(torch, "marker")
        print("ok")
        """,
    )
    done = run(
        "run",
        "s.py",
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize(
    "line, kind, name",
    [
        ("import torch.nosuch", "ModuleNotFoundError", "torch.nosuch"),
        ("from torch import nosuch", "ImportError", "torch.nosuch"),
        ("from torch.autograd import nosuch", "ImportError", "torch.autograd.nosuch"),
        ("import torch; torch.autograd.nosuch", "AttributeError", "torch.autograd.nosuch"),
        ("import torch; torch.nosuch", "AttributeError", "torch.nosuch"),
    ],
)
def test_what_is_missing_is_named_plainly(tmp_path, line, kind, name):
    write(tmp_path / "s.py", line)
    done = run("run", "s.py", cwd=tmp_path)
    assert done.returncode == 1
    assert kind in done.stderr and name in done.stderr and "stowgrad" in done.stderr


def test_a_missing_module_of_the_users_stays_a_missing_module(tmp_path):
    write(tmp_path / "s.py", "import nosuchmodule")
    done = run("run", "s.py", cwd=tmp_path)
    assert "No module named 'nosuchmodule'" in done.stderr and "torch" not in done.stderr


def test_a_module_is_run_by_name(tmp_path):
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg" / "__init__.py", "")
    write(tmp_path / "pkg" / "tool.py", "import sys, torch\nprint(torch.__name__, __name__, sys.argv[1:])")
    done = run("run", "-m", "pkg.tool", "--flag", cwd=tmp_path)
    assert done.stdout == "stowgrad __main__ ['--flag']\n", done.stderr


def test_exit_status_and_tracebacks_are_the_scripts(tmp_path):
    write(tmp_path / "exits.py", "raise SystemExit(7)")
    assert run("run", "exits.py", cwd=tmp_path).returncode == 7
    write(tmp_path / "fails.py", "def f():\n    raise KeyError('gone')\nf()")
    done = run("run", "fails.py", cwd=tmp_path)
    assert done.returncode == 1 and "KeyError: 'gone'" in done.stderr
    assert "__main__.py" not in done.stderr and done.stderr.count('File "') == 2


def test_classes_of_the_script_pickle(tmp_path):
    write(
        tmp_path / "s.py",
        """
        import io, pickle, torch
        class A:
            def __init__(self): self.x = torch.ones(2)
        assert pickle.loads(pickle.dumps(A())).x.tolist() == [1, 1]
        f = io.BytesIO(); torch.save(A(), f); f.seek(0)
        assert torch.load(f, weights_only=False).x.tolist() == [1, 1]
        """,
    )
    done = run("run", "s.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_use_shows_the_usage(tmp_path):
    for args in ((), ("run",), ("run", "-m"), ("frobnicate",)):
        done = run(*args, cwd=tmp_path)
        assert done.returncode == 2 and "run SCRIPT" in done.stderr
    done = run("run", "missing.py", cwd=tmp_path)
    assert done.returncode == 2 and "missing.py" in done.stderr
    assert run("--help", cwd=tmp_path).returncode == 0


def test_info_tells_versions_instruction_set_threads_allocator_and_torch(tmp_path):
    done = run("info", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = {line.split("  ")[0].strip() for line in done.stdout.splitlines()}
    assert {"stowgrad", "python", "numpy", "torch", "SIMD level", "threads"} <= facts
