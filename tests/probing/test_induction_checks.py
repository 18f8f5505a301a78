"""The interventions, against single models edited and read one at a time."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.induction import checks
from probing_cases import RAW_LOG, config_of, random_run, randomise, run_of, subject_of
from scipy.special import stdtrit
from transformer_lens.head_detector import (
    compute_head_attention_similarity_score,
    get_induction_head_detection_pattern,
)

from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import Batch
from mechmarkov.sources import Chain, DirichletChains

pytestmark = pytest.mark.tl

LAST = Objective(read="last")
STICKY = Chain([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
CASES = [
    ({"shape": "plain"}, Objective()),
    ({"shape": "window", "window": 7}, Objective()),
    ({"shape": "plain"}, LAST),
    ({"shape": "LN and MLP"}, RAW_LOG),
]
IDS = ["all", "window", "last", "query"]


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_edits_change_a_query_and_a_predecessor_and_nothing_else(shape, objective):
    subject = subject_of(random_run(**shape, objective=objective, n_ctx=12), sequences=30)
    batch, window = subject.batch, subject.config.window
    edits = checks._edits(batch, window)
    assert len(edits.key) >= 8
    originals = batch.tokens.tolist()
    shift = batch.parent_lag
    drawn = zip(edits.tokens, edits.query.tolist(), edits.key.tolist(), edits.ideal, strict=True)
    for tokens, query, s, ideal in drawn:
        t = query - shift
        assert query in batch.read
        assert 3 <= s < t
        assert window is None or query - s <= window
        v, w = int(tokens[0, 0, t]), int(tokens[1, 1, t])
        assert v != w
        wanted = 0.0
        for a, token in enumerate((v, w)):
            for c, predecessor in enumerate((v, w)):
                assert (int(tokens[a, c, t]), int(tokens[a, c, s - 1])) == (token, predecessor)
            keys = [k for k in range(1, s - 1) if window is None or query - k <= window]
            matches = sum(int(tokens[a, a, k - 1]) == token for k in keys)
            assert matches > 0
            wanted += 0.5 / (1 + matches)
        assert float(ideal) == pytest.approx(wanted)
        rest = torch.arange(batch.tokens.shape[1])
        rest = rest[(rest != t) & (rest != s - 1)]
        assert bool((tokens[:, :, rest] == tokens[0, 0, rest]).all())
        kept = tokens[0, 0, rest].tolist()
        assert any(x[t] == v and [x[i] for i in rest] == kept for x in originals)


def interaction(model, tokens, query, s):
    """Of token and predecessor, on the attention of each layer and head, with each edit run by itself."""
    f = np.zeros((2, 2, 2, 2))
    for a, c in np.ndindex(2, 2):
        _, cache = model.run_with_cache(tokens[a, c][None])
        for layer in range(2):
            row = cache[f"blocks.{layer}.attn.hook_pattern"][0, :, query].double().detach().numpy()
            f[a, c, layer] = row[:, s] / (row[:, s] + row[:, : s - 1].sum(-1))
    return (f[0, 0] - f[0, 1] + f[1, 1] - f[1, 0]) / 2


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_the_effect_is_the_interaction_of_token_and_predecessor(shape, objective):
    run = random_run(**shape, n_steps=2, objective=objective, n_ctx=12)
    subject = subject_of(run, sequences=9)
    edits = checks._edits(subject.batch, subject.config.window)
    found = checks.predecessor_effect(subject.decoder, subject.batch)
    models = [run.model(step=step) for step in (0, 10)]
    each = list(zip(edits.tokens, edits.query.tolist(), edits.key.tolist(), strict=True))
    all_moved = np.array([[interaction(model, *edit) for edit in each] for model in models])
    for member, layer, head in np.ndindex(2, 2, 2):
        moved, ideal, n = all_moved[member, :, layer, head], edits.ideal.numpy(), len(each)
        effect = np.sum(moved) / ideal.sum()
        error = stdtrit(n - 1, 0.975) * np.std(moved - effect * ideal) * n / np.sqrt(n - 1) / ideal.sum()
        assert found.effect[member, layer, head] == pytest.approx(effect, abs=1e-5)
        assert found.low[member, layer, head] == pytest.approx(effect - error, abs=1e-5)
        assert found.high[member, layer, head] == pytest.approx(effect + error, abs=1e-5)


@pytest.mark.parametrize("shape", ["plain", "rotary", "relative", "relative bias", "ALiBi", "LN and MLP"])
def test_what_is_behind_a_query_is_not_computed(shape, monkeypatch):
    subject, read, lengths = subject_of(random_run(shape, n_ctx=24), sequences=20), checks.by_layer, []

    def watched(decoder, tokens, *given):
        lengths.append(tokens.numel())
        return read(decoder, tokens, *given)

    monkeypatch.setattr(checks, "by_layer", watched)
    whole = checks.predecessor_effect(subject.decoder, subject.batch)
    monkeypatch.setattr(checks, "QUERIES_TOGETHER", 6)
    part = checks.predecessor_effect(subject.decoder, subject.batch)
    assert len(lengths) == 5
    assert sum(lengths[1:]) < 0.85 * lengths[0]
    for end in ("effect", "low", "high"):
        np.testing.assert_allclose(getattr(part, end), getattr(whole, end), atol=1e-5)


def test_in_the_first_layer_no_predecessor_moves_a_key():
    deep = subject_of(random_run(n_ctx=12), sequences=9)  # measured, up to rounding of float32
    assert np.abs(checks.predecessor_effect(deep.decoder, deep.batch).effect[:, 0]).max() < 1e-6
    one = subject_of(random_run(n_ctx=12, n_layers=1), sequences=9)
    found = checks.predecessor_effect(one.decoder, one.batch)
    assert (found.effect == 0).all()
    assert (found.high == 0).all()


@pytest.mark.parametrize("source", [STICKY, DirichletChains(n_states=3)], ids=["sticky", "redrawn"])
def test_it_is_one_for_an_ideal_head_and_nothing_for_what_only_looks_like_one(source):
    for decoder, expected in (
        (induction_pair(3, 20), 1.0),
        (induction_pair(3, 20, lags=(2,)), 0.0),
        (duplicate_token_head(3, 20, n_layers=2), 0.0),
    ):
        subject = subject_of(run_of(decoder, source=source), sequences=64)
        found = checks.predecessor_effect(subject.decoder, subject.batch)
        assert found.effect[0, 1, 0] == pytest.approx(expected, abs=1e-6)
        assert found.effect[0, 0] == pytest.approx(0, abs=1e-6)
        assert found.low[0, 1, 0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "shape", ["plain", "LN and MLP", "rotary", "relative", "relative bias", "RMSPre, tied"]
)
def test_no_head_of_a_single_layer_is_moved_by_a_predecessor(shape):
    """Whatever it prefers: what draws attention to or from a neighbour does not count."""
    decoder = randomise(HookedDecoder(config_of(shape, n_layers=1, n_ctx=12)), scale=2.0)
    subject = subject_of(run_of(decoder), sequences=40)
    found = checks.predecessor_effect(subject.decoder, subject.batch)
    assert found.effect == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("shape", ["two tokens of context", "window of itself alone"])
def test_where_nothing_can_be_edited_there_is_no_effect_to_tell(shape):
    subject = subject_of(random_run(shape), sequences=20)
    assert np.isnan(checks.predecessor_effect(subject.decoder, subject.batch).effect).all()


def test_one_state_over_and_over_leaves_nothing_to_edit():
    subject = subject_of(random_run(n_ctx=9), sequences=20)
    b = subject.batch
    constant = Batch(b.tokens * 0, b.history * 0, b.following * 0, b.read, b.known)
    assert np.isnan(checks.predecessor_effect(subject.decoder, constant).low).all()


def test_repeated_sequences_are_shuffled_states_said_twice():
    history = torch.arange(200)[:, None].expand(200, 9) + 1000 * torch.arange(9)
    read = torch.arange(9)
    states = checks.repeated_sequences(Batch(history, history, history, read, read))
    assert states.shape == (32, 9)
    assert torch.equal(states[:, 5:], states[:, :4])
    position, sequence = states[:, :5] // 1000, states[:, :5] % 1000
    assert torch.equal(position, torch.arange(5).expand(32, 5))
    assert all(len(set(column)) == 32 for column in sequence.T.tolist())
    neighbours = (sequence[:, 1:] == sequence[:, :-1]).double().mean()
    assert float(neighbours) < 0.05


@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "shortformer"])
def test_the_repeated_score_is_transformer_lens_own_less_uniform_attention(shape):
    run = random_run(shape, n_steps=2)
    subject = subject_of(run, sequences=12)
    states = checks.repeated_sequences(subject.batch)
    found, chance = checks.repeated_score(subject.decoder, subject.batch)
    uniform = torch.tril(torch.ones(7, 7)) / torch.arange(1, 8)[:, None]

    def detect(pattern: torch.Tensor, x: torch.Tensor) -> float:
        return compute_head_attention_similarity_score(
            pattern,
            get_induction_head_detection_pattern(x[None]),
            exclude_bos=False,
            exclude_current_token=False,
            error_measure="mul",
        )

    assert chance == pytest.approx(np.mean([detect(uniform, x) for x in states]), abs=1e-6)
    for member, layer, head in np.ndindex(2, 2, 2):
        _, cache = run.model(step=10 * member).run_with_cache(states)
        patterns = cache[f"blocks.{layer}.attn.hook_pattern"][:, head].detach()
        wanted = np.mean([detect(pattern, x) for pattern, x in zip(patterns, states, strict=True)])
        assert found[member, layer, head] == pytest.approx(wanted - chance, abs=1e-6)


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_uniform_attention_scores_nothing_on_repeated_sequences(shape, objective):
    run = random_run(**shape, objective=objective)
    for name in ("W_Q", "b_Q"):
        for layer in range(2):
            run.states[f"blocks.{layer}.attn.{name}"].zero_()
    subject = subject_of(run, sequences=12)
    found, chance = checks.repeated_score(subject.decoder, subject.batch)
    assert chance > 0.05
    assert found == pytest.approx(0, abs=1e-6)


def test_chunks_change_nothing():
    run = random_run(n_steps=3, n_ctx=12)
    subject = subject_of(run, sequences=15)
    whole = checks.predecessor_effect(subject.decoder, subject.batch).effect
    repeated = checks.repeated_score(subject.decoder, subject.batch)[0]
    chunks = (subject.decoder, subject.batch, 2 * 144 * 7)
    assert checks.predecessor_effect(*chunks).effect == pytest.approx(whole, abs=1e-6)
    assert checks.repeated_score(*chunks)[0] == pytest.approx(repeated, abs=1e-6)
