"""What the tests of experiments share: what is trained once per session, and changed training."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mechmarkov as mm
from experiments.harness import keep_runs, trained

sys.path.append(str(Path(__file__).parents[1] / "probing"))  # circuits set by hand


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory):
    """Where the session keeps what it trains; the folder of a worker lies in that of the session."""
    session = tmp_path_factory.getbasetemp()
    session = session.parent if "PYTEST_XDIST_WORKER" in os.environ else session
    return session / "runs"


@pytest.fixture
def shared_runs(runs_folder):
    """What a measurement trains is trained at most once per session; not with `change_training`."""
    with keep_runs(runs_folder):
        yield


@pytest.fixture(scope="session")
def small_runs(runs_folder):
    """Called with a recipe and seeds: runs that are trained at most once per session."""

    def runs(recipe, seeds=(0,)):
        with keep_runs(runs_folder):
            return trained([recipe], seeds)[0]

    return runs


@pytest.fixture
def change_training(monkeypatch):
    """Called with a function of recipes: from then on every training takes the recipe that it returns."""
    train, train_members = mm.train, mm.training.train_members

    def change(changed):
        def changed_train(recipe, *args, **kwargs):
            return train(changed(mm.load_recipe(recipe)), *args, **kwargs)

        def changed_members(members, **kwargs):
            return train_members([replace(one, recipe=changed(one.recipe)) for one in members], **kwargs)

        monkeypatch.setattr(mm, "train", changed_train)
        monkeypatch.setattr(mm.training, "train_members", changed_members)

    return change
