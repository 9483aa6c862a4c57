"""What is written from the core's entries is committed as it is written today."""

from __future__ import annotations

import pathlib
import sys

import pytest
from stowgrad import _stubs

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="classes of other versions have other special methods")
def test_the_stubs_are_those_that_make_stubs_writes():
    assert (ROOT / "python/stowgrad/_C.pyi").read_text() == _stubs.stubs()


def test_the_page_of_operations_is_the_one_that_make_docs_writes():
    assert (ROOT / "docs/ops.md").read_text() == _stubs.operations()
