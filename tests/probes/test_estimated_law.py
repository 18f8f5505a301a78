"""Scores that compare with an estimated law: they say so, and their intervals hold its error."""

import numpy as np
import pytest
import torch
from probing_cases import randomise, run_of

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probing.estimated_law import _widened
from mechmarkov.probing.score import Score

pytestmark = pytest.mark.usefixtures("few_nulls")
P = np.random.default_rng(4).dirichlet(np.ones(4), 4)
CONFIG = mm.DecoderConfig(
    n_layers=1, d_model=4, d_head=2, n_ctx=12, d_vocab=4, attn_only=True, normalization_type=None
)


def observed(seed, **options):
    tokens = mm.Chain(P).sample(1, 1500, generator=torch.Generator().manual_seed(seed))[0]
    return mm.Observed(tokens, **{"order": 1, **options})


def truth(source):
    """A run that predicts the chain behind the data, exactly."""
    decoder = randomise(HookedDecoder(CONFIG), scale=0.0)
    with torch.no_grad():
        decoder.embed.W_E.copy_(torch.eye(4))
        decoder.unembed.W_U.copy_(torch.tensor(P).log())
    return run_of(decoder, source=source)


@pytest.mark.repeated
def test_intervals_hold_the_error_of_the_law():
    """The model is the true chain, at KL 0 from it: only an interval with the law's error holds 0."""
    with_error, without = [], []
    for seed in range(8):
        run = truth(observed(seed))
        score = mm.probe(run, ["behaviour"])["behaviour"].scores["kl_bigram"]
        plain = mm.probe(run, ["behaviour"], law_draws=0)["behaviour"].scores["kl_bigram"]
        assert score.value == plain.value > 0
        assert score.interval[0] <= plain.interval[0] <= plain.interval[1] <= score.interval[1]
        with_error.append(score.interval[0] <= 1e-9)
        without.append(plain.interval[0] <= 1e-9)
    assert sum(with_error) >= 7
    assert sum(without) <= 1


def test_intervals_reach_around_the_bias_of_a_law_of_many_numbers():
    """Ninety free numbers from 5000 tokens: the true chain is 0.01 nats from their law, whatever is drawn."""
    P = np.random.default_rng(5).dirichlet(np.ones(10), 10)
    tokens = mm.Chain(P).sample(1, 5000, generator=torch.Generator().manual_seed(0))[0]
    model = direct_table(torch.tensor(P).log().float(), n_ctx=12)
    run = run_of(model, source=mm.Observed(tokens, order=1))
    scores = mm.probe(run, ["behaviour"])["behaviour"].scores
    assert scores["kl_bigram"].value > 0.005
    assert scores["kl_bigram"].interval[0] <= 1e-9
    assert "show a bias of 0.0" in scores["kl_bigram"].law
    assert scores["excess_loss"].interval[0] <= 0 <= scores["excess_loss"].interval[1]


@pytest.mark.parametrize(
    ("unit", "value", "interval", "expected"),
    [
        ("probability", 0.98, (0.96, 0.99), (0.0, 1.0)),
        ("probability", 0.02, (0.01, 0.04), (0.0, 1.0)),
        ("nats", 0.98, (0.96, 0.99), (0.0, 2.11)),
        ("nats", 0.0, (-0.1, 0.1), (-1.14, 1.14)),
        ("steps", 0.98, (0.96, 0.99), (0.0, 2.11)),
    ],
)
def test_an_interval_ends_where_its_quantity_does(unit, value, interval, expected):
    """Three draws 0.2632 apart: an error of 4.303 (Student's t) times 0.2632, 1.133."""
    drawn = [Score(value + off, unit) for off in (-0.2632, 0.0, 0.2632)]
    found = _widened(Score(value, unit, interval=interval), drawn)
    assert found.interval == pytest.approx(expected, abs=0.01)


def test_every_score_that_uses_the_law_says_so_and_the_others_do_not():
    result = mm.probe(truth(observed(0)), ["behaviour", "attention", "storage"])
    (warning,) = [line for line in result.warnings if "law is an estimate" in line]
    assert "40 blocks" in warning
    assert "include its error, over 16 draws" in warning
    behaviour = result["behaviour"].scores
    assert behaviour["nearest_predictor"].law == "estimated: the same in 16 of 16 draws"
    assert behaviour["kl_bigram"].law.startswith("estimated: ± ")
    assert behaviour["kl_uniform"].law is None
    assert all(score.law is None for score in result["attention"].scores.values())
    assert result["storage"].scores["bigram_home"].law == "estimated: the same in 16 of 16 draws"
    data = result.summary()
    assert data["probes"]["behaviour"]["scores"]["kl_bigram"]["law"] == behaviour["kl_bigram"].law
    assert warning in data["warnings"]
    exact = mm.probe(truth(mm.Chain(P)), ["behaviour"])
    assert all(score.law is None for score in exact["behaviour"].scores.values())
    assert exact.warnings == ()


def test_the_report_shows_it(tmp_path):
    page = mm.probe(truth(observed(0)), ["behaviour"]).report(tmp_path / "report.html").read_text()
    assert "the law is an estimate from 40 blocks" in page
    assert "law estimated: ±" in page


def test_left_out_it_is_said_to_be():
    result = mm.probe(truth(observed(0)), ["behaviour"], law_draws=0)
    assert any("leave out its error" in line for line in result.warnings)
    assert result["behaviour"].scores["kl_bigram"].law is None
    for draws in (1, -1, True, 2.0):
        with pytest.raises(ValueError, match=r"^law_draws is \S+, expected 0 or at least 2$"):
            mm.probe(truth(observed(0)), ["behaviour"], law_draws=draws)


def test_probes_read_blocks_that_are_held_out():
    source = observed(0)
    batch = mm.Subject.of(truth(source)).batch
    held = source.tokens[np.repeat(~source.training_blocks, np.bincount(source.blocks.block))]
    pieces = held.reshape(-1, 30)
    stretches = {tuple(piece[at : at + 13]) for piece in pieces for at in (0, 13)}
    assert {tuple(row) for row in batch.states.tolist()} == stretches
    assert len(batch.states) == 20


def test_a_run_with_its_data_is_saved_and_loaded(tmp_path):
    run = truth(observed(0))
    run.save(tmp_path / "run.pt")
    again = mm.load(tmp_path / "run.pt")
    assert again.source == run.source
    assert np.array_equal(again.source.P, run.source.P)
