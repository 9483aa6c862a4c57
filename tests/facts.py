"""What was recorded from torch 2.13 (data/facts), and how a row of it becomes a test.

Invariant: a row that differs is named in data/known_differences.json with its reason; its test is a strict xfail, so
the row must leave the list when it starts to agree.
"""

from __future__ import annotations

import gzip
import json
import math
import pathlib

import pytest
import stowgrad as torch

DATA = pathlib.Path(__file__).parent / "data"
KNOWN = json.loads((DATA / "known_differences.json").read_text())


def recorded(name: str):
    """The rows of a file under data/facts."""
    path = DATA / "facts" / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)


def rows(part: str, named):
    """Parameters of a test: one a row of (name, value) pairs, with the name as its id."""
    params, seen = [], {}
    for name, *values in named:
        seen[name] = n = seen.get(name, 0) + 1
        row = name.strip() + (f" (row {n})" if n > 1 else "") if name == name.strip() else f"{name.strip()} (again)"
        reason = KNOWN[part].get(row)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        params.append(pytest.param(*values, id=row, marks=marks))
    stale = set(KNOWN[part]) - {p.id for p in params}
    assert not stale, f"known_differences.json names rows of {part} that do not exist: {sorted(stale)}"
    return params


def tensor(record):
    """The tensor that a record describes."""
    data = [float(v) if isinstance(v, str) else v for v in record["data"]]
    return torch.tensor(data, dtype=getattr(torch, record["dtype"])).reshape(record["shape"])


def dtype_name(dtype) -> str:
    return str(dtype).rpartition(".")[2]


def same(got, record, what: str):
    """Fails unless `got` is the recorded value: shape, dtype, and elements within 1e-8 (float64) or 1e-5."""
    if record is None:  # torch gave no gradient: none, or one of zeros
        assert got is None or not got.any(), f"{what}: torch gives none"
        return
    if "py" in record:
        assert got == record["py"], what
        return
    want = [float(v) for v in record["data"]]
    if got is None:
        assert not any(want), f"{what}: none"
        return
    assert (list(got.shape), dtype_name(got.dtype)) == (record["shape"], record["dtype"]), what
    tol = 1e-8 if record["dtype"] == "float64" else 1e-5
    for i, (a, b) in enumerate(zip(got.detach().flatten().tolist(), want, strict=True)):
        a = float(a)
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        assert abs(a - b) <= tol * (1 + abs(b)), f"{what}: element {i} is {a!r}, torch gives {b!r}"


def weights(shape, dtype):
    """The fixed weights by which the recording summed first gradients before it took the second."""
    n = math.prod(shape)
    values = [4.0 * (math.sin(12.9898 * (i + 42) + 78.233) * 43758.5453 % 1.0) - 2.0 for i in range(n)]
    return torch.tensor(values, dtype=dtype).reshape(shape)
