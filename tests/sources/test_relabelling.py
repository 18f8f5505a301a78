"""A source whose states have other numbers has the same law, with those numbers."""

import numpy as np
import pytest
from enumeration import EXACT, generator

from mechmarkov import sources as s

G = np.array([2, 0, 1])  # state i is called G[i]
G4 = np.array([2, 0, 3, 1])
P3 = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]
P4 = [[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.4, 0.1], [0.4, 0.1, 0.1, 0.4], [0.3, 0.3, 0.2, 0.2]]
TRANSIENT = [[0.0, 0.5, 0.5], [0.0, 0.25, 0.75], [0.0, 1.0, 0.0]]
ONE_WAY = [[0.0, 3.0, 1.0], [0.0, 1.0, 1.0], [2.0, 0.0, 0.0]]
ORDER_2 = np.random.default_rng(0).dirichlet(np.ones(3), (3, 3))
A, E = [[0.9, 0.1], [0.3, 0.7]], np.array([[0.8, 0.15, 0.05], [0.1, 0.2, 0.7]])
OUTPUTS = np.array([0.25, 0, 0.75, 0])


def called(table, g):
    """A table over states on every axis, with the states' new numbers."""
    back = np.argsort(g)
    return np.array(table)[np.ix_(*[back] * np.ndim(table))]


def triggered(g, **options):
    rows, outputs = called(P4, g), called(OUTPUTS, g)
    return s.TriggerBigram(rows, triggers=g[[1, 3]], outputs=outputs, **options)


MAKERS = {
    "chain": (G, lambda g: s.Chain(called(P3, g))),
    "chain mixture": (G, lambda g: s.ChainMixture(chains=[called(P, g) for P in (P3, TRANSIENT)])),
    "graph": (G, lambda g: s.Graph(weights=called(ONE_WAY, g), directed=True)),
    "hidden markov": (G, lambda g: s.HiddenMarkov(transitions=A, emissions=E[:, np.argsort(g)])),
    "lagged chain": (G, lambda g: s.LaggedChain(called(P3, g), lag=2)),
    "order k": (G, lambda g: s.OrderK(called(ORDER_2, g))),
    "selective lag": (G, lambda g: s.SelectiveLag(called(P3, g), lags=[1, 2])),
    "trigger bigram": (G4, lambda g: triggered(g)),
    "trigger bigram, global": (G4, lambda g: triggered(g, start="global")),
}


@pytest.mark.parametrize("name", MAKERS)
def test_other_numbers_of_states_are_the_same_law(name):
    g, make = MAKERS[name]
    source, image = make(np.arange(len(g))), make(g)
    if hasattr(source, "step_law"):
        np.testing.assert_allclose(image.pi[g], source.pi, rtol=1e-13)
        for m in range(5):
            law = image.step_law(m)[np.ix_(g, g)]
            np.testing.assert_allclose(law, source.step_law(m), rtol=0, atol=1e-14)
    tokens = source.sample(6, 20, generator=generator()).numpy()
    for rule, theirs in zip(source.predictors().values(), image.predictors().values(), strict=True):
        relabelled = theirs.probabilities(g[tokens])[..., g]
        np.testing.assert_allclose(relabelled, rule.probabilities(tokens), **EXACT)
    if hasattr(source, "in_context_mask"):
        np.testing.assert_array_equal(image.in_context_mask(g[tokens]), source.in_context_mask(tokens))
    if hasattr(source, "posterior"):
        np.testing.assert_allclose(image.posterior(g[tokens]), source.posterior(tokens), **EXACT)
