"""The probes are tested on the runs that the probing layer is tested on; what is recorded is shared."""

import sys
from functools import cache
from pathlib import Path

import pytest
from mechmarkov.probes.program import fit

from mechmarkov.objectives import Objective
from mechmarkov.probing import subject as subjects
from mechmarkov.utils import kept_data

sys.path += [str(Path(__file__).parents[1] / room) for room in ("probing", "models", "report")]

NEXT_TOKEN = Objective()


@pytest.fixture(scope="session")
def recorded():
    """Subjects on 8 sequences of random runs, by shape, objective, number of steps, and the steps probed."""
    from probing_cases import random_run, subject_of  # found by the line above

    @cache
    def subject(shape, objective=NEXT_TOKEN, n_steps=2, steps=None):
        run = random_run(shape, n_steps=n_steps, objective=objective)
        return subject_of(run, "all" if steps is None else list(steps), sequences=8)

    return subject


@pytest.fixture
def eight_nulls(monkeypatch):
    """Fewer null models, for a test that asserts nothing of a null."""
    monkeypatch.setattr(subjects, "NULL_MODELS", 8)


@pytest.fixture
def one_term(monkeypatch):
    """Programs of one term, for a test that asserts nothing of the best; no null of theirs is kept."""
    monkeypatch.setattr(fit, "MAX_TERMS", 1)
    monkeypatch.setenv(kept_data.VARIABLE, "off")
