"""Where the unigram is stored: parts set by hand are named, and what only copies tokens is not."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
from probing_cases import ask, parent_logits, probe_quickly, run_of, walk_run

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table, value_table
from mechmarkov.probes import storage
from mechmarkov.report.words.sentences import sentence

TOKENS = mm.sources.Tokenised(
    source=mm.sources.Switch(p=0.8, q=0.7, lag=2),
    tokeniser={"kind": "greedy", "words": ["a", "b", "ab", "ba", "aab"]},
)
LOG = torch.tensor(np.log(TOKENS.pi)).float()
N, N_CTX = 5, 12
FLAT = LOG.expand(N, N)  # the same row after every token
UNIFORM = float(TOKENS.pi @ np.log(TOKENS.pi * N))  # nats from the unigram to the uniform law

answers = partial(ask, storage.probe)


def model(*, direct=0.0, head=0.0, bias=0.0, positions=0.0, table=FLAT):
    """A head that reads the parent, and shares of the unigram's logarithm in each place."""
    decoder = value_table(head * table, N_CTX)
    with torch.no_grad():
        decoder.get_parameter("unembed.W_U")[:N] += direct * table
        decoder.get_parameter("unembed.b_U").copy_(bias * LOG)
        decoder.get_parameter("pos_embed.W_pos")[:, N : 2 * N] = positions * LOG
    return run_of(decoder, source=TOKENS)


def held(claims):
    one = claims.first("stores", object="unigram", status="shown")
    return None if one is None else (one.subject, one.value)


def why(claims):
    return claims.first("stores", object="unigram").because[0].name


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"bias": 1}, "bias"),
        ({"direct": 1}, "direct"),
        ({"head": 1}, "L0H0"),
        ({"positions": 1}, "pos_embed"),
    ],
)
def test_the_part_that_writes_the_unigram_is_named(given, part):
    data, scores, claims = answers(model(**given))
    assert scores["unigram_home"].value == part
    assert held(claims) == ((part,), pytest.approx(1, abs=1e-5))
    assert scores["unigram_left"].value == pytest.approx(0, abs=1e-9)
    assert float(data["unigram_uniform"]) == pytest.approx(UNIFORM)
    of_others = data["unigram_share"].sel(component=[x for x in data["component"].values if x != part])
    assert np.abs(of_others).max() < 1e-5
    assert scores["bigram_home"].value == "none"


def test_an_mlp_that_writes_the_unigram_is_named():
    run = run_of(mlp_table(FLAT, N_CTX), source=TOKENS)
    assert answers(run)[1]["unigram_home"].value == "L0.mlp"


def test_a_unigram_over_two_parts_names_both():
    _, scores, claims = answers(model(head=0.5, bias=0.5))
    assert scores["unigram_home"].value == "L0H0 + bias"
    assert held(claims) == (("L0H0", "bias"), pytest.approx(1, abs=1e-5))
    told = sentence(claims.first("stores", object="unigram"))
    assert "L0H0 and the output bias together write the unigram" in told


def test_shares_are_shapley_values_by_hand():
    weights = {"direct": 0.2, "L0H0": 0.5, "bias": 0.3}
    data, _, _ = answers(model(direct=0.2, head=0.5, bias=0.3))

    def nearer(parts) -> float:
        scores = sum(weights[part] for part in parts) * np.log(TOKENS.pi)
        q = np.exp(scores) / np.exp(scores).sum()
        return UNIFORM - float(TOKENS.pi @ np.log(TOKENS.pi / q))

    for part in weights:
        added = [
            nearer(order[: order.index(part) + 1]) - nearer(order[: order.index(part)])
            for order in permutations(weights)
        ]
        share = float(data["unigram_share"].sel(component=part)[-1])
        assert share == pytest.approx(np.mean(added) / UNIFORM, abs=1e-4)


def test_another_law_on_average_is_named_nowhere():
    data, scores, claims = answers(model(bias=-1))
    assert scores["unigram_home"].value == "none"
    assert held(claims) is None
    assert why(claims) == "the means lead away"
    opposite = 1 / TOKENS.pi / (1 / TOKENS.pi).sum()
    wrong = float(TOKENS.pi @ np.log(TOKENS.pi / opposite))
    assert scores["unigram_left"].value == pytest.approx(wrong, rel=1e-5)
    assert np.isnan(data["unigram_share"]).all()


@pytest.mark.parametrize("where", ["direct", "head"])
def test_copying_tokens_is_not_storing_the_unigram(where):
    _, scores, claims = answers(model(**{where: 1}, table=4 * torch.eye(N)))
    assert scores["unigram_home"].value == "none"
    assert held(claims) is None
    assert why(claims) == "with such tokens only"
    assert "writes it only if tokens come that often" in sentence(claims.first("stores", object="unigram"))


def test_what_cancels_is_one_part():
    data, scores, claims = answers(model(direct=1, head=5, bias=-5))
    assert scores["unigram_home"].value == "direct"
    assert np.abs(data["unigram_share"].sel(component=["L0H0", "bias"])).max() < 1e-4
    shares = claims.where("holds_share", object="unigram")
    assert {one.subject[0] for one in shares} == {"direct", "pos_embed"}


def test_what_takes_from_the_others_works_against_it():
    _, scores, claims = answers(model(direct=1.3, bias=-0.3))
    assert scores["unigram_home"].value == "direct"
    against = claims.first("works_against", object="unigram")
    assert against.subject == ("bias",)
    assert "against the unigram" in sentence(against)


def test_a_uniform_unigram_is_held_nowhere():
    source = mm.Circle(n_states=6, p=0.3)
    _, scores, claims = answers(walk_run(source, source.P.T, parent_logits(13)))
    assert scores["unigram_home"].value is None
    assert "does not apply: the unigram is" in scores["unigram_home"].reason
    assert claims.first("stores", object="unigram").status == "does not apply"
    assert claims.first("stores", object="bigram").is_shown


def test_intervals_are_those_of_resampled_sequences():
    run = run_of(direct_table(torch.tensor(np.log(np.maximum(TOKENS.P, 1e-2))).float(), N_CTX), source=TOKENS)
    subject = mm.Subject.of(run, sequences=256)
    data = storage.measure.left(subject)
    by_sequence, rng = subject.probabilities[0].mean(1), np.random.default_rng(0)
    drawn = [by_sequence[rng.integers(0, 256, 256)].mean(0) for _ in range(2000)]
    spread = np.std([TOKENS.pi @ np.log(TOKENS.pi / q) for q in drawn])
    width = float(data["unigram_left_high"][-1] - data["unigram_left"][-1])
    assert width == pytest.approx(1.96 * spread, rel=0.15)


def test_intervals_of_shares_are_those_of_resampling():
    table = torch.tensor(np.log(np.maximum(TOKENS.P, 1e-2))).float()
    run = model(head=1, bias=0.5, table=table)
    data, _, _ = answers(run, sequences=256)
    recorded = mm.Subject.of(run, sequences=256).recorded(storage.measure.PATHS)
    head, bias = recorded.logits[0, recorded.names.index("L0H0")].mean(1), 0.5 * LOG.numpy()
    rng = np.random.default_rng(0)

    def nats(scores) -> float:
        q = np.exp(scores) / np.exp(scores).sum()
        return float(TOKENS.pi @ np.log(TOKENS.pi / q))

    drawn = []
    for _ in range(2000):
        mean = head[rng.integers(0, 256, 256)].mean(0)
        none, by_bias, by_head, both = nats(0 * bias), nats(bias), nats(mean), nats(mean + bias)
        drawn.append(0.5 * ((none - by_head) + (by_bias - both)) / (none - both))
    last = data.isel(step=-1).sel(component="L0H0")
    assert float(last["unigram_share"]) == pytest.approx(np.mean(drawn), abs=0.01)
    width = float(last["unigram_share_high"] - last["unigram_share"])
    assert width == pytest.approx(1.96 * np.std(drawn), rel=0.15)


def test_a_unigram_model_says_where_it_is():
    result = probe_quickly(model(bias=1), ["behaviour", "ablation", "storage"])
    assert result["behaviour"].scores["nearest_predictor"].value == "unigram"
    tile = next(tile for tile in storage.probe.headline(result.claims))
    assert tile.answer[0].object == ("unigram",)
    assert tile.answer[0].subject == ("bias",)
