"""More of what follows from all short sequences with their probabilities, and counts of transitions."""

import numpy as np
from enumeration import EXACT, assert_optimal, assert_stationary
from scipy import stats


def assert_conditional(rule, joint, window):
    """The rule gives the law of the next state given the states at `window(t)`, wherever those can be."""
    n_states, length = joint.shape[0], joint.ndim
    paths = np.indices(joint.shape).reshape(length, -1).T
    found = rule.probabilities(paths[:, :-1])
    for t in range(length - 1):
        seen = window(t)
        others = tuple(axis for axis in range(length) if axis not in (*seen, t + 1))
        known = joint.sum(axis=others).reshape(-1, n_states)
        row = np.ravel_multi_index(tuple(paths[:, seen].T), (n_states,) * len(seen)) if seen else 0
        total = known.sum(-1)[row] + np.zeros(len(paths))
        possible = total > 1e-12
        expected = known[row] / np.where(possible, total, 1)[:, None]
        np.testing.assert_allclose(found[possible, t], expected[possible], **EXACT)


def assert_rules_of_one_token(source, joint):
    """Uniform, unigram, bigram and the k-step rules, at every position."""
    rules = source.predictors()
    assert list(rules)[:6] == ["uniform", "unigram", "bigram", "step_2", "step_3", "step_4"]
    assert all(rule.exact and rule.name == name and "\n" not in rule.label for name, rule in rules.items())
    assert_conditional(rules["unigram"], joint, lambda t: [])
    assert_conditional(rules["bigram"], joint, lambda t: [t])
    for k in (2, 3, 4):
        assert_conditional(rules[f"step_{k}"], joint, lambda t, k=k: [t + 1 - k] if t + 1 >= k else [])


def assert_entropy_rate(source, joint):
    """A block of one state more has so much more entropy, once it is longer than the memory."""
    rate = stats.entropy(joint.ravel()) - stats.entropy(joint.sum(-1).ravel())
    np.testing.assert_allclose(source.entropy_rate, rate, **EXACT)


def assert_step_laws(source):
    """One after the other they are the same."""
    for m, law in zip(range(8), source.step_laws(), strict=False):
        np.testing.assert_allclose(source.step_law(m), law, **EXACT)


def assert_laws(source, joint):
    """Stationary law, best and other predictors, entropy rate and laws of steps, by enumeration."""
    assert_stationary(source, joint)
    assert_optimal(source, joint)
    assert_rules_of_one_token(source, joint)
    assert_entropy_rate(source, joint)
    assert_step_laws(source)


def assert_calibrated(P, counts):
    """Transitions said to have probability about x happen a share x of the time, for each tenth of x.

    Given the past, what is counted minus what was expected has mean 0 and variance P (1 - P) at each visit,
    so sums over many visits lie within five standard deviations of 0. (Cells of one row compete, which
    makes the variance of a sum less.) Chi-square of the whole: ten bins, each with at most unit variance.
    """
    visits = counts.sum(axis=-1, keepdims=True)
    excess, variance = counts - visits * P, visits * P * (1 - P)
    bins = np.minimum((P * 10).astype(int), 9)
    z = [excess[bins == b].sum() / np.sqrt(variance[bins == b].sum()) for b in range(10) if (bins == b).any()]
    assert np.abs(z).max() < 5
    assert np.square(z).sum() < stats.chi2(len(z)).ppf(1 - 1e-4)
    cells = excess.sum(axis=0) / np.sqrt(variance.sum(axis=0))
    assert np.abs(cells).max() < 5
