"""What the paper says of base chains, against loops over all short sequences."""

from itertools import pairwise, product

import numpy as np
import pytest

from experiments.context_conditioned.theory import determined, invades, two_state_counts


def by_hand(sequence, base):
    """The law of what follows, from the definition."""
    weights = [sequence.count(k) * base[sequence[-1]][k] for k in range(len(base))]
    return np.array(weights) / sum(weights)


@pytest.mark.parametrize("stays", [(0.7, 0.7), (0.3, 0.2), (0.8, 0.4)])
def test_counts_of_two_states_are_sums_over_all_sequences(stays):
    base = np.array([[stays[0], 1 - stays[0]], [1 - stays[1], stays[1]]])
    found = two_state_counts(base, 8)
    np.testing.assert_allclose(found.sum((1, 2)), 1, atol=1e-14)
    expected = np.zeros_like(found)
    for rest in product(range(2), repeat=6):
        for first in ((0, 1), (1, 0)):
            sequence, weight = list(first), 0.5
            for token in rest:
                weight *= by_hand(sequence, base)[token]
                sequence.append(token)
            expected[-1, sum(sequence), sequence[-1]] += weight
    np.testing.assert_allclose(found[-1], expected[-1], atol=1e-14)


@pytest.mark.parametrize("stays", list(product((0.2, 0.45, 0.55, 0.9), repeat=2)))
def test_a_rare_state_grows_iff_the_other_prefers_it_to_itself(stays):
    base = np.array([[stays[0], 1 - stays[0]], [1 - stays[1], stays[1]]])
    for rare, other in ((1, 0), (0, 1)):
        share = np.where(np.arange(2) == rare, 1e-6, 1 - 1e-6)
        step = share * base / (share * base).sum(1, keepdims=True)
        growth = np.linalg.matrix_power(step, 1000)[0, rare] / share[rare] - 1  # once stationary
        assert (growth > 0) == invades(base)[other, rare]
        assert growth == pytest.approx(base[other, rare] / base[other, other] - 1, rel=1e-4)


def test_what_prompts_determine_is_the_rank_of_their_likelihood():
    """The Fisher information of each row, whose rank is the number of states less that of its parts."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(100):
        prompts = rng.integers(0, 4, (rng.integers(1, 12), rng.integers(1, 4)))
        parts = determined(prompts, 4)
        base = rng.dirichlet(np.ones(4), 4)
        for q in range(4):
            laws = [by_hand(p, base) for p in prompts.tolist() if p[-1] == q]
            information = sum((np.diag(law) - np.outer(law, law) for law in laws), np.zeros((4, 4)))
            rank = np.linalg.matrix_rank(information, tol=1e-9)
            assert rank == 4 - len(set(parts[q]))
            seen.add(int(rank))
    assert seen == {0, 1, 2, 3}


def test_neighbours_in_the_graph_of_a_state_are_in_one_prompt_that_ends_there():
    prompts = np.array([[0, 1, 2], [3, 1, 2], [0, 3, 3]])
    parts = determined(prompts, 4)
    assert len(set(parts[2])) == 1
    assert parts[3][0] == parts[3][3] != parts[3][1]
    assert all(a != b for a, b in pairwise(sorted(parts[0])))  # no prompt ends in 0
