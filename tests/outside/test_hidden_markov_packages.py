"""Hidden Markov models that other packages fit or infer: their parameters are a source."""

import numpy as np
import torch
from circle import LENGTH
from emic.inference import CSSR, CSSRConfig
from emic.sources import EvenProcessSource, TakeN
from emic.types import EpsilonMachine
from hmmlearn.hmm import CategoricalHMM
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm


def log_likelihood(source: mm.HiddenMarkov, states: np.ndarray) -> float:
    """Of one sequence, in nats, by the source's own forward filter."""
    laws = source.predictors()["forward_filter"].probabilities(states[None])[0]
    first = source.pi[states[0]]
    return float(np.log(first) + np.log(laws[np.arange(len(states) - 1), states[1:]]).sum())


def test_an_hmm_that_hmmlearn_fits():
    """hmmlearn's forward algorithm and the source's give one likelihood."""
    truth = mm.HiddenMarkov.mess3()
    drawn = truth.sample(8, 300, generator=torch.Generator().manual_seed(0)).numpy()
    fitted = CategoricalHMM(n_components=3, n_iter=4, random_state=0)
    fitted.fit(drawn.reshape(-1, 1), [300] * 8)
    source = mm.HiddenMarkov(transitions=fitted.transmat_.tolist(), emissions=fitted.emissionprob_.tolist())
    fitted.startprob_ = np.linalg.matrix_power(fitted.transmat_, 4096)[0]  # where a source starts
    for row in drawn[:3]:
        assert np.isclose(log_likelihood(source, row), fitted.score(row.reshape(-1, 1)), rtol=1e-9)


def by_edges(machine: EpsilonMachine) -> mm.HiddenMarkov:
    """An epsilon-machine emits on its edges: each edge is a hidden state that emits its symbol."""
    edges = [
        (state.id, edge) for state in sorted(machine.states, key=lambda x: x.id) for edge in state.transitions
    ]
    onward = [[edge.probability * (before.target == state) for state, edge in edges] for _, before in edges]
    symbols = sorted(machine.alphabet)
    emitted = [[float(edge.symbol == symbol) for symbol in symbols] for _, edge in edges]
    return mm.HiddenMarkov(transitions=onward, emissions=emitted)


def even_process() -> tuple[list[int], EpsilonMachine]:
    sequence = list(TakeN(20000)(EvenProcessSource(p=0.5, _seed=1)))
    return sequence, CSSR(CSSRConfig(max_history=4)).infer(sequence).machine


def test_its_own_constructors_give_the_same_law():
    sequence, machine = even_process()
    source = by_edges(machine)
    states = np.array(sequence[:200])
    ours = log_likelihood(source, states)
    assert np.isclose(log_likelihood(mm.HiddenMarkov.from_machine(machine), states), ours, rtol=1e-9)
    parameters = (None, np.array(source.transitions), np.array(source.emissions))
    assert np.isclose(log_likelihood(mm.HiddenMarkov.from_parameters(*parameters), states), ours, rtol=1e-9)


def test_an_epsilon_machine_that_emic_infers_is_what_a_transformer_is_trained_on(tmp_path):
    """Of the even process it finds two causal states; 1 follows an odd run of ones surely."""
    sequence, machine = even_process()
    source = by_edges(machine)
    assert len(machine) == 2
    odd = source.predictors()["forward_filter"].probabilities(np.array([[0, 1]]))[0, -1]
    np.testing.assert_allclose(odd, [0, 1], atol=1e-9)
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
