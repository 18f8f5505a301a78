"""What the tests of experiments share: what is trained once per session, and changed training."""

from dataclasses import replace

import pytest

import mechmarkov as mm
from experiments.harness import keep_runs, trained


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory):
    """Runs of a recipe and seeds, trained at most once per session."""
    folder = tmp_path_factory.mktemp("runs")

    def runs(recipe, seeds=(0,)):
        with keep_runs(folder):
            return trained([recipe], seeds)[0]

    return runs


@pytest.fixture
def change_training(monkeypatch):
    """Called with a function of recipes: from then on every training takes the recipe that it returns."""
    train, train_members = mm.train, mm.train_members

    def change(changed):
        def changed_train(recipe, *args, **kwargs):
            return train(changed(mm.load_recipe(recipe)), *args, **kwargs)

        def changed_members(members, **kwargs):
            return train_members([replace(one, recipe=changed(one.recipe)) for one in members], **kwargs)

        monkeypatch.setattr(mm, "train", changed_train)
        monkeypatch.setattr(mm, "train_members", changed_members)

    return change
