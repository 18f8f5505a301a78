"""What every test shares."""

import gc
import os
import sys
from functools import cache

import pytest
import torch
from hypothesis import settings

from mechmarkov.utils import plugins

# The same examples in every run of the gate; `make fuzz` draws others with --hypothesis-profile=random.
settings.register_profile("gate", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile("gate")

# Ten thousand tests are collected in two thirds of the time if nobody looks through them for garbage.
gc.disable()


def pytest_collection_finish():
    """Leave what was collected out of every search for garbage, and search seldom: results are trees."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _null_folder(tmp_path_factory):
    """Kept nulls of this test run alone, for the commands that it starts too."""
    os.environ["MECHMARKOV_CACHE"] = str(tmp_path_factory.mktemp("nulls"))
    yield
    del os.environ["MECHMARKOV_CACHE"]


@pytest.fixture(scope="session", autouse=True)
def _installed_read_once():
    """Each probing and each recipe asks what is installed: here once for each list of folders."""
    entry_points = plugins.entry_points

    @cache
    def read_once(folders, group):
        return entry_points(group=group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "entry_points", lambda *, group: read_once(tuple(sys.path), group))
        yield


@pytest.fixture
def few_nulls(monkeypatch):
    """Two null models, for a test that asserts nothing of a null."""
    monkeypatch.setattr("mechmarkov.probing.subject.NULL_MODELS", 2)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Toy models on a shared machine: a second thread costs more than it gives, and spins."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
