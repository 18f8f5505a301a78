"""The context-conditioned source: its law, its draws, and the attention layer that is the same."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from enumeration import EXACT, generator
from scipy.special import softmax

import mechmarkov as mm
from mechmarkov.models.constructions.context_conditioned import (
    TRAINED,
    context_conditioned_model,
    context_conditioned_weights,
    read_scores,
)

BASE = np.array([[0.2, 0.5, 0.3], [0.4, 0.15, 0.45], [0.5, 0.3, 0.2]])
SOURCE = mm.sources.ContextConditionedChain(BASE)


def probability(sequence):
    """Of a sequence of at least three tokens, from the definition."""
    if sorted(sequence[:3]) != [0, 1, 2]:
        return 0.0
    found = 1 / 6
    for t in range(3, len(sequence)):
        weights = [sequence[:t].count(k) * BASE[sequence[t - 1]][k] for k in range(3)]
        found *= weights[sequence[t]] / sum(weights)
    return found


def test_the_best_predictor_is_the_conditional_law_of_every_sequence():
    tokens = np.array(
        [[*first, *rest] for first, rest in product(permutations(range(3)), product(range(3), repeat=3))]
    )
    found = SOURCE.best().probabilities(tokens)
    total = 0.0
    for row, laws in zip(tokens.tolist(), found, strict=True):
        total += probability(row)
        np.testing.assert_allclose(laws.sum(-1), 1, **EXACT)
        assert [laws[t][row[t + 1]] for t in range(2)] == pytest.approx([0.5, 1.0])
        for t in range(2, 5):
            after = [probability([*row[: t + 1], k]) for k in range(3)]
            np.testing.assert_allclose(laws[t], np.array(after) / sum(after), **EXACT)
    assert total == pytest.approx(1, abs=1e-12)


def test_draws_have_that_law():
    tokens = SOURCE.sample(40_000, 5, generator=generator())
    found, times = np.unique(tokens.numpy(), axis=0, return_counts=True)
    for row, n in zip(found.tolist(), times, strict=True):
        p = probability(row)
        assert abs(n - 40_000 * p) < 5 * np.sqrt(40_000 * p)
    again = SOURCE.sample(40_000, 5, generator=generator())
    assert torch.equal(tokens, again)
    assert SOURCE.sample(2, 2, generator=generator()).shape == (2, 2)


def test_data_make_the_same_source_and_a_zero_is_refused():
    assert mm.sources.source_from_data(SOURCE.model_dump(mode="json")) == SOURCE
    with pytest.raises(ValueError, match=r"P\[0\]\[1\] is 0.0, expected a number above 0"):
        mm.sources.ContextConditionedChain([[1.0, 0.0], [0.5, 0.5]])


def test_the_attention_layer_is_the_law_and_its_scores_are_the_base_chain():
    tokens = torch.tensor(list(product(range(3), repeat=6)))
    model = context_conditioned_model(BASE, n_ctx=6, dtype=torch.float64)
    with torch.no_grad():
        found = model(tokens).numpy()
    counts = np.eye(3)[tokens.numpy()].cumsum(1)
    weights = counts * BASE[tokens.numpy()]
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True), **EXACT)
    scores = read_scores(model.get_parameter(TRAINED)).detach().numpy()
    np.testing.assert_allclose(softmax(scores, axis=1), BASE, **EXACT)


def test_trained_from_zero_it_learns_the_base_chain_and_nothing_else_moves():
    run = mm.train("context-conditioned-k3", seed=0, progress=False)
    scores = read_scores(run.states[TRAINED][-1]).double().numpy()
    # The noise of its steps: 0.007 over five seeds, 0.013 at most.
    assert np.abs(softmax(scores, axis=1) - run.source.base).max() < 0.03
    for name, values in run.states.items():
        if name != TRAINED:
            start = context_conditioned_weights(3).get(name, torch.zeros(()))
            assert torch.equal(values[-1], start.expand_as(values[-1])), name


def test_a_recipe_that_reads_another_way_is_refused():
    with pytest.raises(
        ValueError, match=r"objective\.kind is 'cross_entropy', but this model's outputs are a law"
    ):
        mm.load_recipe("context-conditioned-k3").with_set(["objective.kind=cross_entropy"])
