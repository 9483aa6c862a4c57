"""Short programs log what they log under torch: hooks, saved values, checkpoints, modes, threads. None of them leaves
saved bytes behind.
"""

from __future__ import annotations

import gc
import json

import pytest
import stowgrad as torch
from facts import recorded, rows
from stowgrad import _alias

PROGRAMS = [(p["name"], p["name"], p["source"], p["log"]) for p in recorded("traces.json.gz")["programs"]]


@pytest.fixture
def torch_is_stowgrad():
    was = _alias.installed()
    _alias.install()
    yield
    if not was:
        _alias.uninstall()


def live():
    gc.collect()
    return torch.memory_stats()["saved"]["live"]


def run(name, source):
    scope = {}
    exec(compile(source, name, "exec"), scope)
    log = []
    scope[name](torch, log)
    return json.loads(json.dumps(log))


def attempt(name, source):
    """Runs the program to its end or its error, and lets go of it."""
    try:
        run(name, source)
    except Exception as e:
        e.__traceback__ = None  # its frames hold the tensors of the program


@pytest.mark.parametrize("name, source, log", rows("traces", PROGRAMS))
def test_a_program_logs_what_it_logs_under_torch(name, source, log, torch_is_stowgrad):
    assert run(name, source) == log


@pytest.mark.parametrize("name, source", rows("saved bytes", [p[:3] for p in PROGRAMS]))
def test_a_program_leaves_no_saved_bytes(name, source, torch_is_stowgrad):
    attempt(name, source)
    before = live()
    attempt(name, source)
    assert live() == before
