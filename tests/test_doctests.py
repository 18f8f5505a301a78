"""The examples in docstrings, each module once."""

import doctest
import importlib
import pkgutil

import pytest

import mechmarkov
import mechmarkov.probes

PACKAGES = [(mechmarkov.__path__, "mechmarkov."), (mechmarkov.probes.__path__, "mechmarkov.probes.")]
# Written in Triton, which is not on every machine, and has no examples.
KERNELS = {"mechmarkov.models.fast.gpu_kernels"}
NAMES = {found.name for path, prefix in PACKAGES for found in pkgutil.walk_packages(path, prefix)} - KERNELS


@pytest.mark.parametrize("name", sorted({"mechmarkov", *NAMES}))
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {name: finder.find(importlib.import_module(name)) for name in NAMES}
    assert sum(bool(test.examples) for tests in found.values() for test in tests) > 100
