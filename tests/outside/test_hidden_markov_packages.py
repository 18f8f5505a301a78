"""hmmlearn's parameters and emic's machines as they come: every short word has its probability."""

from itertools import product

import numpy as np
import pytest
import torch
from circle import LENGTH
from emic.inference import CSSR, CSSRConfig
from emic.sources import EvenProcessSource, GoldenMeanSource, TakeN
from hmmlearn.hmm import CategoricalHMM
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm
from mechmarkov.sources import HiddenMarkov, Observed

A = np.array([[0.7, 0.3], [0.4, 0.6]])
B = np.array([[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]])


def words(n_states, longest=4):
    return [word for n in range(1, longest + 1) for word in product(range(n_states), repeat=n)]


def log_probability(source, word):
    """In nats, by the source's predictor: of the first state, and of each that follows."""
    laws = source.best().probabilities(np.array([word]))[0]
    steps = laws[np.arange(len(word) - 1), np.array(word[1:], int)]
    with np.errstate(divide="ignore"):  # a word that cannot be
        return np.log(source.pi[word[0]]) + np.log(steps).sum()


def test_a_model_of_hmmlearn_emits_and_then_goes_on():
    model = CategoricalHMM(2)
    model.n_features = 3
    model.transmat_, model.emissionprob_ = A, B
    model.startprob_ = np.array([4, 3]) / 7  # the stationary law
    source = HiddenMarkov.from_parameters(model.startprob_, model.transmat_, model.emissionprob_)
    for word in words(3):
        expected = model.score(np.array(word)[:, None])
        assert log_probability(source, word) == pytest.approx(expected, abs=1e-12)


def test_a_model_that_hmmlearn_fits_starts_where_its_data_did():
    """From the stationary law on its forward algorithm and the source's give one likelihood."""
    drawn = HiddenMarkov.mess3().sample(8, 300, generator=torch.Generator().manual_seed(0)).numpy()
    model = CategoricalHMM(n_components=3, n_iter=4, random_state=0)
    model.fit(drawn.reshape(-1, 1), [300] * 8)
    with pytest.warns(UserWarning, match="initial is left out: a source begins in its stationary law"):
        source = HiddenMarkov.from_parameters(model.startprob_, model.transmat_, model.emissionprob_)
    model.startprob_ = np.linalg.matrix_power(model.transmat_, 4096)[0]
    for row in drawn[:3]:
        assert log_probability(source, row) == pytest.approx(model.score(row.reshape(-1, 1)), rel=1e-9)


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
        assert np.exp(log_probability(source, word)) == pytest.approx(law.sum(), abs=1e-12)


def test_a_transformer_is_trained_on_a_machine_that_emic_infers(tmp_path):
    """It finds two causal states of the even process; 1 always follows an odd run of ones."""
    sequence = list(TakeN(20000)(EvenProcessSource(p=0.5, _seed=1)))
    machine = CSSR(CSSRConfig(max_history=4)).infer(sequence).machine
    source = HiddenMarkov.from_machine(machine)
    assert len(machine) == 2
    np.testing.assert_allclose(source.best().probabilities(np.array([[0, 1]]))[0, 1], [0, 1], atol=1e-9)
    assert Observed(sequence, order=1).pi == pytest.approx(source.pi, abs=0.03)
    torch.manual_seed(0)
    sizes = {"vocab_size": 2, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = mm.Recorder(tmp_path / "run.pt", source=source, every=2)
    batches = torch.tensor(sequence)[: 16 * 4 * LENGTH].view(4, 16, LENGTH)
    for step, batch in enumerate(batches):
        recorder(step, model)
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    result = mm.probe(recorder.finish(4, model), ["behaviour"], sequences=64)
    assert result["behaviour"].scores["kl_best"].value > 0
