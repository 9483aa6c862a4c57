"""Runs every example that a docstring or a page shows. Prints pytest's kind of closing line; exit 1 if one is wrong."""

from __future__ import annotations

import doctest
import importlib
import pathlib
import pkgutil
import sys

import stowgrad

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules():
    yield stowgrad
    for info in pkgutil.walk_packages(stowgrad.__path__, "stowgrad."):
        if not info.name.endswith("__main__") and not info.name.startswith("stowgrad._C"):
            yield importlib.import_module(info.name)


def native_examples():
    """Docstrings of the core's functions and of its classes' methods."""
    finder = doctest.DocTestFinder(recurse=False)
    for owner, values in (("_C", vars(stowgrad._C)), ("_C.Tensor", vars(stowgrad.Tensor))):
        for name, value in sorted(values.items()):
            doc = getattr(value, "__doc__", None)
            if isinstance(doc, str) and ">>>" in doc:
                yield from finder.find(value, f"{owner}.{name}", module=False, globs={})


def main() -> int:
    tried = failed = 0
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for module in list(modules()):  # all loaded first: a module that loads another when asked would change while it is searched
        for test in doctest.DocTestFinder(exclude_empty=True).find(module):
            runner.run(test)
    for test in native_examples():
        runner.run(test)
    failed, tried = runner.summarize(verbose=False)
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        if page.exists():
            result = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
            failed, tried = failed + result.failed, tried + result.attempted
    print(f"{tried - failed} passed, {failed} failed")
    return 1 if failed or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
