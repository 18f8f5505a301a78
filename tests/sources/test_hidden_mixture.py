"""One of several hidden chains a sequence: against the sum over tasks and hidden paths."""

import numpy as np
import pytest
from enumeration import EXACT, assert_exact, assert_posterior, generator, hidden_paths, weights_of

from mechmarkov.sources import HiddenMarkov, HiddenMixture

E = [[0.8, 0.15, 0.05], [0.1, 0.2, 0.7]]
STAYS = {"transitions": [[0.9, 0.1], [0.3, 0.7]], "emissions": E}
TURNS = {"transitions": [[0.2, 0.8], [0.6, 0.4]], "emissions": E}
THREE = {
    "transitions": [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]],
    "emissions": [[1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.5, 0.5, 0.0]],
}
CASES = [
    HiddenMixture(tasks=[STAYS, TURNS]),
    HiddenMixture(tasks=[STAYS, THREE], weights=[0.7, 0.3]),
    HiddenMixture(tasks=[TURNS, STAYS, THREE]),
]


def with_each_task(source):
    """The joint probability of a sequence and each task."""
    parts = [*zip(weights_of(source.weights, len(source.tasks)), source.tasks, strict=True)]
    return lambda x: [weight * sum(p for _, p in hidden_paths(task, x)) for weight, task in parts]


@pytest.mark.parametrize("source", CASES, ids=["two", "weighted", "three"])
def test_laws_draws_and_best_against_all_short_sequences(source):
    assert_exact(source, lambda x: sum(with_each_task(source)(x)), 4)


@pytest.mark.parametrize("source", CASES, ids=["two", "weighted", "three"])
def test_the_posterior_is_that_of_the_task(source):
    tokens = source.sample(6, 4, generator=generator()).numpy()
    assert_posterior(source.posterior(tokens), tokens, with_each_task(source))


def test_parts_are_the_task_and_the_state():
    source = CASES[0]
    beliefs = source.beliefs(np.array([[0, 2, 1]]))[0, -1]
    assert list(source.parts) == ["task", "state"]
    np.testing.assert_allclose(beliefs @ source.parts["state"], beliefs[:2] + beliefs[2:], **EXACT)
    assert list(CASES[1].parts) == ["task"]


def test_without_the_task_the_prior_weighs_each_filter():
    source = CASES[1]
    tokens = source.sample(5, 8, generator=generator(1)).numpy()
    law = source.predictors()["without_task"].probabilities(tokens)
    each = [HiddenMarkov(**task).best().probabilities(tokens) for task in (STAYS, THREE)]
    np.testing.assert_allclose(law, 0.7 * each[0] + 0.3 * each[1], **EXACT)


def test_a_sequence_keeps_its_task():
    source = CASES[0]
    _, hidden = source.sample_with_hidden(200, 50, generator=generator())
    task = hidden // 2
    assert (task == task[:, :1]).all()
    assert 70 < int(task[:, 0].sum()) < 130
