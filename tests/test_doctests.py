"""The examples in docstrings, each module once."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import mechmarkov
import mechmarkov.probes

PACKAGES = [(mechmarkov.__path__, "mechmarkov."), (mechmarkov.probes.__path__, "mechmarkov.probes.")]
# Written in Triton, which is not on every machine, and has no examples.
KERNELS = {"mechmarkov.models.fast.gpu_kernels"}
FOUND = [found for path, prefix in PACKAGES for found in pkgutil.walk_packages(path, prefix)]
NAMES = {found.name for found in FOUND} - KERNELS


def has_examples(found: pkgutil.ModuleInfo) -> bool:
    spec = found.module_finder.find_spec(found.name, None)
    return ">>>" in Path(spec.origin).read_text("utf-8")


@pytest.mark.parametrize("name", sorted(found.name for found in FOUND if has_examples(found)))
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {name: finder.find(importlib.import_module(name)) for name in NAMES}
    assert sum(bool(test.examples) for tests in found.values() for test in tests) > 100
