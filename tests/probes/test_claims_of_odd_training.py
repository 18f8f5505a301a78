"""Models of odd sources, tables and trainings: what their pages told that was not so."""

from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.behaviour.contexts import are_apart
from mechmarkov.probes.belief.claims import _parts as of_parts
from mixed_models import LONG, P, lag, log_of, reading, with_direct_table
from more_models import P4, mlps, only_after
from probing_cases import probe_quickly, run_of
from reading_aloud import sentences as split

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table
from mechmarkov.probing.score import Score
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.differences import differences
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import (
    Chain,
    DirichletChains,
    HiddenMarkov,
    LaggedChain,
    Switch,
    Tokenised,
    TriggerBigram,
)

L, L4 = log_of(P), log_of(P4)


def told(*models, probes, source=None, sequences=64):
    steps = "all" if len(models) > 1 else "last"
    source = Chain(P) if source is None else source
    result = probe_quickly(run_of(*models, source=source), probes, sequences=sequences, steps=steps)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


def late(start, n_ctx=12, k=1):
    """Returns the position that each query reads: the first one, and from some position on one at a lag."""
    return [0 if at < start else at - k + 1 for at in range(n_ctx)]


# Harm


def test_harm_beyond_all_help_comes_first():
    """What is worth 0.2 nats was the answer, next to a head that costs 1.4."""
    model = reading([0.5 * L, 3 * L.roll(1, 0)], [lag(2), lag(3)])
    probes = ["behaviour", "ablation"]
    _, _, tiles = told(model, probes=probes, source=LaggedChain(P.tolist(), 2))
    lives = tiles["Where does it live?"]
    assert lives.answer == "L0H1 does harm, more than L0H0 helps"
    assert lives.sentence.startswith("L0H1 does harm: without it the loss falls by")
    assert "L0H0 is needed most" in lives.sentence


def test_harm_next_to_a_circuit_is_told():
    model = with_direct_table(induction_pair(3, LONG, gain=3.0), 2 * torch.eye(3))
    probes = ["behaviour", "induction", "ablation"]
    _, _, tiles = told(model, probes=probes, source=DirichletChains(n_states=3))
    lives = tiles["Where does it live?"]
    assert lives.answer == "L0H0 → L1H0"
    assert "The direct path does harm" in lives.sentence


@pytest.mark.parametrize(("table", "is_circuit"), [(0.5, False), (0.0, True)])
def test_a_circuit_that_disturbs_is_not_the_home(table, is_circuit):
    """Half a table is nearer to the bigram without the circuit, which the title named."""
    model = with_direct_table(induction_pair(3, LONG, gain=2.0), table * L)
    _, screen, tiles = told(model, probes=["behaviour", "induction", "ablation"])
    assert ("L1H0" in tiles["Where does it live?"].answer) is is_circuit
    assert ("feeds" in screen.title) is is_circuit


# Induction


def after_triggers(gain):
    """Build an induction circuit after two triggers, next to a table of the global bigram elsewhere."""
    model = induction_pair(4, LONG, gain=gain, only_after=[0, 2])
    return with_direct_table(model, only_after(L4, [1, 3]))


def test_a_circuit_is_judged_by_the_best_law():
    """Without the path KL from the mean of all sequences' laws falls, and it was said to do harm."""
    source = TriggerBigram(P4.tolist(), [0, 2])
    result, *_ = told(after_triggers(6.0), probes=["induction", "ablation"], source=source)
    carries = result.claims.first("carries")
    assert carries.object == ("repeat_output",)
    assert carries.is_shown
    assert not carries.condition("does harm")
    backwards, *_ = told(after_triggers(-6.0), probes=["induction"], source=source)
    assert backwards.claims.first("carries").condition("does harm")


# Attention


@pytest.mark.parametrize(
    ("start", "k", "where"), [(4, 1, "positions 0 and 4 to 11"), (6, 3, "positions 2 and 6 to 11")]
)
def test_a_head_that_begins_late_is_told(start, k, where):
    """A mean over all positions, 75%, was told as what it does, and at none of them it does that."""
    source = Chain(P) if k == 1 else LaggedChain(P.tolist(), k)
    result, *_ = told(reading([L], [late(start, k=k)]), probes=["attention"], source=source)
    assert result["attention"].verdict.endswith(f"100% of its attention at {where} only.")


def test_a_head_that_looks_everywhere_has_no_places():
    result, *_ = told(reading([L], [late(1)]), probes=["attention"])
    assert result.claims.first("attends_to", status="shown").is_everywhere


# Laws


PAIRS = Tokenised(source=Switch(p=0.8, q=0.6, lag=1), tokeniser={"kind": "strings", "length": 2})


@pytest.mark.parametrize(
    ("gain", "title"), [(1.0, "Has the bigram, but not after state ab"), (3.0, "bigram")]
)
def test_of_equal_laws_the_bigram_is_named(gain, title):
    """A table of the current token was said to have the forward filter, which coincides with the bigram."""
    table = gain * log_of(PAIRS.P)
    if gain == 1:
        table[1] = table[2]
    _, screen, tiles = told(direct_table(table, 12), probes=["behaviour"], source=PAIRS)
    assert title in screen.title
    assert "filter" not in " ".join([screen.title, *(tile.answer for tile in tiles.values())])


def test_a_filter_that_is_better_is_named():
    source = HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[0.85, 0.15], [0.1, 0.9]])
    _, screen, _ = told(direct_table(log_of(source.P), 12), probes=["behaviour"], source=source)
    assert screen.title.endswith("from unigram to forward filter: has the bigram")


def test_bluntness_of_all_rows_is_not_one_rows():
    """Each row is at temperature 0.8, and the one that is farthest by KL was said to be less sure."""
    result, *_ = told(direct_table(0.8 * L, 12), probes=["behaviour"])
    assert result.claims.first("tempers") is None
    after_0, *_ = told(direct_table(torch.tensor([[0.7], [1.0], [1.0]]) * L, 12), probes=["behaviour"])
    assert after_0.claims.first("tempers").condition("less sure after").words == ("0",)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_noise_is_seldom_apart_by_chance(n):
    """Of rows that have nothing to do with a law, a tenth of the next one's KL is nothing out of the way."""
    draws = np.random.default_rng(n).chisquare(n - 1, size=(4000, n))
    holds = draws == draws.min(1, keepdims=True)
    told = [are_apart(*one, n - 1) for one in zip(draws, holds, strict=True)]
    assert np.mean(told) < 0.02
    assert np.mean([are_apart(*one) for one in zip(draws, holds, strict=True)]) > np.mean(told)


def noise(seed):
    return torch.tensor(np.random.default_rng(seed).normal(scale=0.7, size=(3, 3))).float()


@pytest.mark.parametrize("seed", [5, 14, 18])
def test_a_row_of_noise_is_not_the_laws(seed):
    """One of three rows was within 0.01 nats, as one of many tables has by chance."""
    _, screen, _ = told(direct_table(noise(seed), 12), probes=["behaviour"])
    assert "only" not in screen.title


def test_a_row_that_is_kept_among_noise_is():
    table = noise(18)
    table[1] = L[1]
    _, screen, _ = told(direct_table(table, 12), probes=["behaviour"])
    assert screen.title == "Has the bigram only after state 1"


def test_the_first_token_is_not_a_lag():
    """At position 1 the first token is the previous one, and the tile named the 2-step law there."""
    sticky = Chain([[0.97, 0.03], [0.03, 0.97]])
    first = reading([3 * torch.eye(2)], [[0] * 12])
    result, _, tiles = told(first, probes=["behaviour"], source=sticky)
    assert result.claims.first("fails_at") is None
    assert "position" not in tiles["What has it learned?"].answer


@pytest.mark.parametrize(("r2", "status"), [(-0.03, "excluded"), (0.3, "shown")])
def test_what_a_mean_beats_is_not_read(r2, status):
    """With R² clearly below 0 it was open whether a belief is read, as untrained models are below too."""
    shape = (("part", "stream"), [[r2]])
    data = xr.Dataset(
        {"part_r2": shape, "part_r2_error": (shape[0], [[0.001]])},
        coords={"part": ["task"], "stream": ["embed"]},
    )
    (claim,) = of_parts(data, {"part_r2_task": Score(r2, "R²", (-0.2, -0.1, -0.01))})
    assert claim.status == status
    assert ("is not read from" in sentence(claim)) is (status == "excluded")


# Weights


@pytest.mark.parametrize(("kept", "much"), [([0], "some of"), ([0, 1], "most of")])
def test_most_rows_are_more_than_one(kept, much):
    """Of three rows one was kept, twice as sure, and that was most of the matrix."""
    result, *_ = told(direct_table(2 * only_after(L, kept), 12), probes=["alignment"])
    assert f"has {much} the transition matrix" in result["alignment"].verdict


def test_a_slope_of_rounding_is_zero():
    result, *_ = told(direct_table(3 * torch.eye(4), 12), probes=["alignment"], source=PAIRS)
    assert "cosine 0 with log P, slope 0)" in result["alignment"].verdict


# Sources


@pytest.mark.parametrize(("words", "order"), [(["a", "b", "ab", "ba"], 1), (["a", "b"], None)])
def test_tokens_that_forget_have_one_parent(words, order):
    """Hidden states behind one token differ in what follows, and the belief over them is always the same."""
    merges = {"kind": "merges", "merges": [["a", "b"], ["b", "a"]]}
    tokeniser = merges if len(words) == 4 else {"kind": "greedy", "words": words}
    source = Tokenised(source=Switch(p=0.8, q=0.7, lag=2), tokeniser=tokeniser)
    tokens = source.sample(200, 8, generator=torch.Generator().manual_seed(0)).numpy()
    laws = source.predictors()
    away = laws["forward_filter"].probabilities(tokens) - laws["bigram"].probabilities(tokens)
    assert source.order == order
    assert bool(np.abs(away).max() < 1e-12) is (order == 1)


# Words


NOISE4 = torch.tensor(np.random.default_rng(1).normal(scale=2.0, size=(4, 4))).float()


def with_direct_mlps():
    return with_direct_table(mlps(L4, L4), -L4)


WORDY = {
    "the opposite": (partial(direct_table, -L4, 12), Chain(P4)),
    "rows of an MLP": (partial(mlp_table, torch.cat([2 * L4[:2], L4[[3, 2]]]), 12), Chain(P4)),
    "too sure, MLP": (partial(mlp_table, 3 * L4, 12), Chain(P4)),
    "a part that corrects": (partial(mlps, NOISE4, L4 - NOISE4), Chain(P4)),
    "two that stand in": (with_direct_mlps, Chain(P4)),
    "late, lag 3": (partial(reading, [L], [late(6, k=3)]), LaggedChain(P.tolist(), 3)),
    "what there is": (partial(induction_pair, 3, LONG, gain=0.7), DirichletChains(n_states=3)),
}


@pytest.mark.parametrize("name", WORDY)
def test_verdicts_have_twenty_words_at_most(name):
    make, source = WORDY[name]
    probes = ["behaviour", "alignment", "induction", "ablation", "storage", "program"]
    result, _, tiles = told(make(), probes=probes, source=source)
    texts = [one.verdict for one in result.outcomes.values()] + [tile.sentence for tile in tiles.values()]
    assert [one for text in texts for one in split(text) if len(one.split()) > 20] == []


# Comparisons


def compared(**models):
    results = {
        name: probe_quickly(run_of(model, source=Chain(P)), ["behaviour", "storage"], sequences=32)
        for name, model in models.items()
    }
    screens = {name: headline(result) for name, result in results.items()}
    return differences(
        {name: screen.badge for name, screen in screens.items()},
        {name: result.claims for name, result in results.items()},
        {name: screen.named for name, screen in screens.items()},
    )


def test_of_runs_without_a_law_neither_learned():
    """It was "both runs did not learn", which one of them may have."""
    shuffled = direct_table(300 * L.flip(1), 12), direct_table(3 * L.roll(1, 0), 12)
    assert compared(a=shuffled[0], b=shuffled[1]) == "Neither run learned the bigram."
    more = compared(a=shuffled[0], b=shuffled[1], c=shuffled[0])
    assert more == "None of 3 runs learned the bigram."


def test_parts_that_all_runs_name_are_told():
    """The direct path was called by its key, and stood for a run of which no part was known."""
    table = direct_table(L, 12)
    same = "Both runs learned the bigram, through the same parts (the direct path)."
    assert compared(a=table, b=table) == same
    result = probe_quickly(run_of(table, source=Chain(P)), ["behaviour"], sequences=32)
    one = ({"a": "solved", "b": "solved"}, {"a": result.claims, "b": result.claims})
    assert differences(*one, {"a": ("direct",), "b": ()}) == "Both runs learned the bigram."
    assert differences(*one, {"a": ("direct",), "b": ("L0H0",)}).endswith("through different parts.")


def test_what_fails_is_told_of_solved_runs_too():
    wrong = L.clone()
    wrong[2] = log_of(np.array([0.37, 0.2, 0.43]))
    told_of = compared(a=direct_table(wrong, 12), b=direct_table(L, 12))
    assert told_of == "a learned the bigram, but not after state 2; b learned the bigram."


def test_a_title_names_the_best_law_once():
    """Rows so near the best law that it is imitated, and a loss that is not there yet."""
    rows = np.array([[0.45, 0.3, 0.25], [0.25, 0.45, 0.3], [0.3, 0.25, 0.45]])
    near = rows + 0.6 * np.array([[-0.04, 0.07, -0.03], [0.0, -0.08, 0.08], [0.08, -0.01, -0.07]])
    result, screen, _ = told(
        direct_table(log_of(near), 16), probes=["behaviour"], source=Chain(rows.tolist())
    )
    assert result.claims.first("imitates", object="bigram", status="shown") is not None
    assert "of the way" in screen.title
    assert screen.title.count("bigram") == 1
