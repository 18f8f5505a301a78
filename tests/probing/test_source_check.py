"""A wrong source is noticed, and a right one is not doubted."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from probing_cases import CHAIN, P3, random_run, run_of, subject_of

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.probing.source_check import overconfidence, unlikely_transition
from mechmarkov.report import html

PERMUTED = mm.Chain(P3[[1, 2, 0]])
RIGHT = {
    "chain": CHAIN,
    "deterministic": mm.Circle(n_states=5, p=1.0),
    "zeros": mm.Circle(n_states=5, p=0.3),
    "order 2": mm.OrderK([[[0.8, 0.2], [0.3, 0.7]], [[0.1, 0.9], [0.6, 0.4]]]),
    "mixture": mm.sources.ChainMixture(chains=[P3, P3[::-1]]),
    "in context": mm.DirichletChains(n_states=3),
    "hidden": mm.HiddenMarkov(
        transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]]
    ),
}


def sample(source, sequences=200, length=50, seed=0):
    return source.sample(sequences, length, generator=torch.Generator().manual_seed(seed)).numpy()


@pytest.mark.parametrize("name", RIGHT)
def test_sequences_of_a_source_fit_it(name):
    for seed in range(5):
        assert unlikely_transition(RIGHT[name], sample(RIGHT[name], seed=seed)) is None


# Where every sequence has a chain of its own, pairs of states tell nothing: on average all are alike.
@pytest.mark.parametrize("name", [name for name in RIGHT if name != "in context"])
def test_sequences_of_another_law_do_not(name):
    source = RIGHT[name]
    backwards = np.flip(sample(source, 400), 1) if name in ("deterministic", "zeros", "chain") else None
    other = sample(mm.Chain(np.full((source.n_states,) * 2, 1 / source.n_states)), 400)
    if backwards is not None:
        assert unlikely_transition(source, backwards) is not None
    assert unlikely_transition(source, other) is not None


@pytest.mark.parametrize(
    ("more", "doubted"), [(63, False), (66, False), (69, True), (-63, False), (-66, False), (-69, True)]
)
def test_a_pair_is_doubted_where_chance_gives_it_to_one_of_all_pairs_once_in_ten_thousand(more, doubted):
    """1200 visits of a state that goes to each of 4 with 1/4: 300 ± 15 times, at 4.2, 4.4 and 4.6 errors."""
    assert (16 * 2 * scipy.stats.norm.sf(abs(more) / 15) < 1e-4) == doubted
    assert 2 * scipy.stats.norm.sf(abs(more) / 15) < 1e-4  # of this pair only
    counts = np.full(4, 300 - more // 3)
    counts[2] = 300 + more
    after = np.repeat(np.arange(4), counts)
    found = unlikely_transition(mm.Chain(np.full((4, 4), 0.25)), np.stack([0 * after, after], 1))
    assert (found is not None) == doubted
    if doubted:
        assert (
            found
            == f"state 2 follows 0 {300 + more} times of 1200, where the source has it 300.0 ± 15.0 times"
        )


@pytest.mark.parametrize(("times", "doubted"), [(24, False), (25, True)])
def test_a_rare_pair_is_judged_from_thirty_events(times, doubted):
    """From 500 visits 5.05 are expected to go on to state 1: with 25 there are 30.05 events, 9 errors off."""
    often = (500 - times) // 2
    after = np.repeat(np.arange(3), [500 - times - often, times, often])
    source = mm.Chain([[0.49495, 0.0101, 0.49495], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]])
    assert (unlikely_transition(source, np.stack([0 * after, after], 1)) is not None) == doubted


def test_the_misfit_names_the_pair_and_both_numbers():
    states = np.tile([0, 1, 2], (2, 20))
    said = unlikely_transition(mm.Chain([[0, 0, 1], [1, 0, 0], [0, 1, 0]]), states)
    assert said == "state 1 follows 0 40 times of 40, where the source never has it"


@pytest.mark.parametrize(
    ("P", "doubted"), [(P3, False), (P3[[1, 2, 0]], True), (np.full((3, 3), 1 / 3), False)]
)
def test_a_model_of_another_chain_is_sure_of_another_law(P, doubted):
    run = run_of(direct_table(torch.tensor(np.log(P)).float(), n_ctx=16))
    said = overconfidence(subject_of(run, sequences=64))
    assert (said is not None) == doubted
    result = mm.probe(run, ["behaviour"], sequences=64)
    assert bool(result.warnings) == doubted
    assert ("Warning" in result._repr_html_()) == doubted
    assert len(result.summary()["warnings"]) == doubted
    assert ("<strong>Warning</strong>: the source may be" in html.render(result)) == doubted


def test_a_model_that_is_wrong_at_one_position_is_not_doubted():
    """Its first prediction is made with a token too few, and sure."""
    kernel = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 3))
    run = mm.Run.from_model(n_gram_model(kernel, 8), source=mm.OrderK(kernel.tolist()))
    assert overconfidence(subject_of(run, sequences=256)) is None
    another = mm.Run.from_model(n_gram_model(kernel[::-1].copy(), 8), source=mm.OrderK(kernel.tolist()))
    assert overconfidence(subject_of(another, sequences=256)) is not None


def test_a_fresh_model_is_not_doubted():
    config = DecoderConfig(n_layers=2, d_model=16, n_ctx=16, d_head=8, n_heads=2, d_vocab=3, attn_only=True)
    torch.manual_seed(0)
    assert overconfidence(subject_of(run_of(HookedDecoder(config)), sequences=64)) is None


def test_the_random_start_of_a_training_is_not_doubted_however_sure():
    run = mm.example("induction")
    start = mm.Subject.of(run, [0], sequences=64)
    assert overconfidence(start) is None
    assert "untrained" in overconfidence(replace(start, run=replace(run, recipe=None)))


@pytest.mark.parametrize(("law", "doubted"), [(P3, False), (P3[[1, 2, 0]], True)])
def test_scores_are_doubted_only_if_less_right(law, doubted):
    """Probabilities as P to the eighth are as right as P, and far too sure for cross-entropy."""
    run = run_of(direct_table(torch.tensor(law**8).float(), n_ctx=16))
    on_scores = replace(run, objective=mm.Objective(kind="squared"))
    assert (overconfidence(subject_of(on_scores, sequences=64)) is not None) == doubted
    in_nats = run_of(direct_table(torch.tensor(8 * np.log(law)).float(), n_ctx=16))
    assert overconfidence(subject_of(in_nats, sequences=64)) is not None


def test_the_bundled_graph_is_not_doubted():
    assert overconfidence(mm.Subject.of(mm.example("graph"), sequences=256)) is None


def test_ones_own_sequences_are_probed_and_held_against_the_source():
    run = random_run()
    subject = mm.Subject.of(run, sequences=16)
    given = mm.probe(run, ["behaviour"], tokens=subject.batch.states)
    drawn = mm.probe(run, ["behaviour"], sequences=16)
    assert given["behaviour"].scores == drawn["behaviour"].scores
    assert not any("follows" in warning for warning in given.warnings)
    wrong = mm.probe(run, ["behaviour"], tokens=sample(PERMUTED, 200, 8))
    assert any("follows" in warning for warning in wrong.warnings)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(4, 9, dtype=torch.int64), r"shape \(4, 9\), expected \(sequences, 8\) or fewer states"),
        (torch.zeros(4, 1, dtype=torch.int64), r"shape \(4, 1\), expected \(sequences, 8\)"),
        (torch.zeros(0, 8, dtype=torch.int64), r"shape \(0, 8\)"),
        (torch.zeros(4, 8), "torch.float32, expected integers"),
        (np.full((4, 8), 3), "run from 3 to 3, expected states 0 to 2"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(tokens, said):
    with pytest.raises(ValueError, match=said):
        mm.probe(random_run(), ["behaviour"], tokens=tokens)


def test_sequences_are_a_number():
    with pytest.raises(TypeError, match="sequences is a Tensor, expected how many to draw"):
        mm.probe(random_run(), sequences=torch.zeros(4, 8))
    with pytest.raises(ValueError, match="sequences is 4, expected none where tokens are given"):
        mm.probe(random_run(), sequences=4, tokens=torch.zeros(4, 8, dtype=torch.int64))


def test_scores_as_a_table():
    result = mm.probe(random_run(), ["behaviour", "attention"], sequences=16)
    table = result.to_dataframe()
    assert set(table["probe"]) == {"behaviour", "attention"}
    assert len(table) == sum(len(outcome.scores) for outcome in result.values())
    row = table[(table["probe"] == "behaviour") & (table["score"] == "excess_loss")].iloc[0]
    score = result["behaviour"].scores["excess_loss"]
    assert (row["value"], row["unit"]) == (score.value, "nats")
    assert (row["null_low"], row["null"], row["null_high"]) == score.null


def test_results_without_names_are_refused():
    with pytest.raises(TypeError, match="results are a list, expected a mapping"):
        mm.write_comparison([1, 2], "page.html")


def test_the_shipped_recipes_are_listed():
    assert "walk-k6-half" in mm.recipes()
