"""hmmlearn's parameters and emic's machines as they come: every short word has its probability."""

from itertools import product

import numpy as np
import pytest
from emic.inference import CSSR, CSSRConfig
from emic.sources import EvenProcessSource, GoldenMeanSource, TakeN
from hmmlearn.hmm import CategoricalHMM

from mechmarkov.sources import HiddenMarkov, Observed

A = np.array([[0.7, 0.3], [0.4, 0.6]])
B = np.array([[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]])


def words(n_states, longest=4):
    return [word for n in range(1, longest + 1) for word in product(range(n_states), repeat=n)]


def probability(source, word):
    """By the source's predictor: of the first state, and of each that follows."""
    laws = source.best().probabilities(np.array([word]))[0]
    return source.pi[word[0]] * np.prod([laws[t, word[t + 1]] for t in range(len(word) - 1)])


def test_a_model_of_hmmlearn_emits_and_then_goes_on():
    model = CategoricalHMM(2)
    model.n_features = 3
    model.transmat_, model.emissionprob_ = A, B
    model.startprob_ = np.array([4, 3]) / 7  # the stationary law
    source = HiddenMarkov.from_parameters(model.startprob_, model.transmat_, model.emissionprob_)
    for word in words(3):
        assert probability(source, word) == pytest.approx(
            np.exp(model.score(np.array(word)[:, None])), abs=1e-12
        )


def test_a_model_that_hmmlearn_has_fitted_starts_where_its_data_did():
    model = CategoricalHMM(2, n_iter=3, random_state=0)
    model.fit(np.random.default_rng(0).integers(0, 3, (500, 1)))
    with pytest.warns(UserWarning, match="initial is left out: a source begins in its stationary law"):
        source = HiddenMarkov.from_parameters(model.startprob_, model.transmat_, model.emissionprob_)
    assert source.n_states == 3


@pytest.mark.parametrize(
    "process", [EvenProcessSource(p=0.5), GoldenMeanSource(p=0.3)], ids=["even", "golden mean"]
)
def test_a_machine_of_emic_emits_on_its_edges(process):
    machine = process.true_machine
    hidden = [state.id for state in machine.states]
    start = np.array([machine.stationary_distribution.probs[name] for name in hidden])
    source = HiddenMarkov.from_machine(machine)
    for word in words(2, 6):
        law = start
        for symbol in word:
            T = np.zeros((len(hidden), len(hidden)))
            for i, state in enumerate(machine.states):
                for edge in state.transitions:
                    T[i, hidden.index(edge.target)] += edge.probability * (edge.symbol == symbol)
            law = law @ T
        assert probability(source, word) == pytest.approx(law.sum(), abs=1e-12)


def test_a_machine_that_emic_infers_and_the_sequence_it_came_from():
    drawn = TakeN(5000)(EvenProcessSource(p=0.5, _seed=1))
    source = HiddenMarkov.from_machine(CSSR(CSSRConfig(max_history=4)).infer(drawn).machine)
    np.testing.assert_allclose(source.best().probabilities(np.array([[0, 1]]))[0, 1], [0, 1], atol=1e-9)
    assert Observed(list(drawn), order=1).pi == pytest.approx(source.pi, abs=0.03)
