"""A forced state: predictions become the exact law under it, and everything is undone."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.bench.circuits import hidden_belief
from mechmarkov.interventions.belief import fit_reading

SOURCE = mm.HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[0.8, 0.2], [0.3, 0.7]])
TOKENS = SOURCE.sample(16, 5, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model():
    return hidden_belief(SOURCE, 5)


@pytest.mark.parametrize("state", [0, 1])
def test_predictions_become_the_law_under_the_state_and_come_back(model, state):
    before = model(TOKENS)
    with mm.force_belief(model, 0, state, source=SOURCE):
        forced = model(TOKENS).softmax(-1).detach().numpy()
    law = np.array(SOURCE.transitions)[state] @ np.array(SOURCE.emissions)
    np.testing.assert_allclose(forced, np.broadcast_to(law, forced.shape), atol=1e-5)
    assert torch.equal(model(TOKENS), before)


def test_it_is_undone_after_an_exception(model):
    before = model(TOKENS)
    with pytest.raises(KeyError), mm.force_belief(model, 0, 1, source=SOURCE):
        raise KeyError
    assert torch.equal(model(TOKENS), before)


def test_a_move_as_long_in_a_random_direction_is_as_long_and_misses(model):
    streams = {}

    def note(name):
        return [("blocks.0.hook_resid_post", lambda x, hook: streams.update({name: x.detach().clone()}))]

    law = np.array(SOURCE.transitions)[1] @ np.array(SOURCE.emissions)
    off = []
    for name, options in {"clean": None, "belief": {}, "random": {"control": 0}}.items():
        if options is None:
            model.run_with_hooks(TOKENS, fwd_hooks=note(name))
            continue
        with mm.force_belief(model, 0, 1, source=SOURCE, **options):
            scores = model.run_with_hooks(TOKENS, fwd_hooks=note(name))
        off.append(np.abs(scores.softmax(-1).detach().numpy() - law).max())
    lengths = [(streams[name] - streams["clean"]).norm(dim=-1) for name in ("belief", "random")]
    torch.testing.assert_close(*lengths, rtol=1e-4, atol=1e-5)
    assert off[0] < 1e-5 < 0.05 < off[1]


def test_a_reading_is_least_squares_and_its_move_reads_as_told():
    noise = np.random.default_rng(0)
    belief = noise.dirichlet(np.ones(3), size=200)
    stream = belief @ noise.normal(size=(3, 6)) + 0.3 * noise.normal(size=(200, 6))
    reading = fit_reading(stream, belief)
    columns = np.hstack([stream, np.ones((200, 1))])
    expected = columns @ np.linalg.solve(columns.T @ columns, columns.T @ belief)
    np.testing.assert_allclose(reading.read(stream), expected, atol=1e-9)
    said = reading.read(stream) - belief.mean(0)
    expected = said @ np.linalg.lstsq(said, stream - stream.mean(0), rcond=1e-9)[0]
    np.testing.assert_allclose(said @ reading.pattern, expected, atol=1e-9)  # how the stream goes with it
    moved = stream + reading.moves(stream, np.array([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(reading.read(moved), np.tile([0.0, 1.0, 0.0], (200, 1)), atol=1e-9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer": 2}, "layer is 2, expected -1 to 1"),
        ({"state": 2}, "state is 2, expected 0 to 1"),
        ({"source": mm.Binary(p=0.2, q=0.3)}, "source is 'binary', expected one with something hidden"),
        ({"source": mm.HiddenMarkov.mess3()}, "model reads 2 tokens, expected the source's 3"),
    ],
)
def test_what_cannot_be_forced_is_refused_by_name(model, change, said):
    arguments = {"layer": 0, "state": 0, "source": SOURCE} | change
    with pytest.raises(ValueError, match=said), mm.force_belief(model, **arguments):
        pass


def test_a_stack_and_a_run_are_refused(model):
    with (
        pytest.raises(ValueError, match="model is a stack of 2"),
        mm.force_belief(type(model).stack([model, model]), 0, 0, source=SOURCE),
    ):
        pass
    with pytest.raises(TypeError, match="expected a HookedDecoder"), mm.force_belief(3, 0, 0, source=SOURCE):
        pass
