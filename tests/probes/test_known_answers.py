"""Circuits set by hand, right ones and wrong ones: each is named, with its numbers, and no other is."""

from functools import cache

import numpy as np
import pytest
import torch
from models_by_hand import LOG_P, PI
from probing_cases import CHAIN, P3, names_in, parent_logits, probe_quickly, run_of, walk_run

from mechmarkov.models.constructions.lookup_tables import (
    content_table,
    direct_table,
    mlp_table,
    value_table,
)
from mechmarkov.sources import Binary, Chain, Circle

UNIGRAM_KL = float(PI @ (P3 * np.log(P3 / PI)).sum(1))
WRONG = [1, 2, 0]  # another state's successors
ASKED = ["behaviour", "attention", "alignment"]


def probe(decoder, source=CHAIN, sequences=64):
    return probe_quickly(run_of(decoder, source=source), ASKED, sequences=sequences, drawn=True)


def aligned(decoder, source):
    return probe_quickly(run_of(decoder, source=source), ["alignment"])["alignment"]


@cache
def bigram_in(build):
    """A model that holds the bigram, probed once, beside as many null models as by default."""
    return probe_quickly(run_of(build(LOG_P, n_ctx=8)), ASKED, nulls=24, drawn=True)


def assert_scores(outcome, within=1e-6, **expected):
    """Scores by their names: numbers to within so much, texts as they are."""
    for name, value in expected.items():
        near = value if isinstance(value, str) else pytest.approx(value, abs=within)
        assert outcome.scores[name].value == near, name


def assert_no_score(outcome, name, why):
    assert outcome.scores[name].value is None
    assert why in outcome.scores[name].reason


def is_at_chance(result) -> bool:
    return result["behaviour"].claims.first("is_right").condition("at chance") is not None


def is_even(result):
    """That attention is exactly even, and no head is said to look anywhere."""
    assert not result["attention"].claims.where("attends_to", status="shown")
    return result["attention"].claims.first("attends_evenly", status="shown")


def holds_none(result):
    """That no path has the target in its weights, and which comes nearest."""
    assert not result["alignment"].claims.where("matches", status="shown")
    return result["alignment"].claims.first("matches", status="excluded")


def of_path(result, path: str):
    return result["alignment"].data.sel(path=path).isel(step=-1)


BUILDS = [(direct_table, "direct"), (value_table, "L0H0"), (mlp_table, "L0.mlp")]


@pytest.mark.parametrize(("build", "path"), BUILDS)
def test_the_bigram_is_found_in_the_path_that_holds_it(build, path):
    result = bigram_in(build)
    assert_scores(result["alignment"], path=path, target="log P", best_lag=1, kernel_cosine=1, recall=1)
    assert_scores(result["alignment"], 1e-5, kernel_slope=1)
    assert_scores(result["alignment"], 1e-9, kernel_kl=0)
    assert names_in(result["alignment"], "matches") == [((path,), ("log P",))]
    claim = result["alignment"].claims.first("matches")
    assert claim.value == pytest.approx(1, abs=1e-6)
    assert claim.condition("the unigram is away").value == pytest.approx(UNIGRAM_KL, abs=1e-6)
    for other in set(result["alignment"].data["path"].values) - {path}:
        assert int(of_path(result, other)["constant"]) == 1
        assert float(of_path(result, other)["kernel_cosine"]) == 0
        assert float(of_path(result, other)["gain"]) < 0.01
    assert_scores(result["behaviour"], 1e-9, nearest_predictor="bigram", kl_bigram=0)


def test_a_head_on_the_parent_is_the_parent_head():
    result = bigram_in(value_table)
    found = result["attention"]
    assert_scores(found, parent_head="L0H0", parent_score=1, best_lag=1, effective_tokens=1, spread=1)
    assert found.scores["parent_score"].null[2] < 1
    (claim,) = result["attention"].claims.where("attends_to")
    assert (claim.subject, claim.object[0], claim.status) == (("L0H0",), "parent", "shown")
    assert claim.value == pytest.approx(1, abs=1e-6)
    assert claim.condition("effective tokens").value == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("build", [direct_table, mlp_table])
def test_flat_attention_is_no_parent_head(build):
    result = bigram_in(build)
    claim = is_even(result)
    assert claim.null == pytest.approx(1 / 8)
    assert claim.condition("tokens").value == 8
    assert result["attention"].scores["spread"].value == 0
    for name in ("parent_head", "best_lag"):
        assert_no_score(result["attention"], name, "flat")
    # Uniform over the first t tokens: 1/t on the parent, t effective tokens.
    assert_scores(result["attention"], parent_score=np.mean(1 / np.arange(1, 9)))
    assert_scores(result["attention"], 1e-5, effective_tokens=4.5)
    assert_no_score(result["attention"], "position_share", "constant")


def test_a_head_at_lag_two_is_compared_with_two_steps():
    P2 = P3 @ P3
    result = probe(value_table(torch.tensor(np.log(P2)).float(), n_ctx=8, lag=2))
    assert_scores(result["alignment"], path="L0H0", best_lag=2, kernel_cosine=1)
    assert_scores(result["alignment"], 1e-5, kernel_slope=1)
    assert names_in(result["alignment"], "matches") == [(("L0H0",), ("log P",))]
    claim = result["alignment"].claims.first("matches")
    assert claim.condition("law").value == 2
    assert claim.condition("attends").value == pytest.approx(1, abs=1e-6)
    two_step_unigram = float(PI @ (P2 * np.log(P2 / PI)).sum(1))
    kl = result["alignment"].scores["kernel_kl"].value
    assert claim.condition("predicts by itself").value == pytest.approx(kl)
    assert claim.condition("the unigram is away").value == pytest.approx(two_step_unigram, abs=1e-6)
    assert_scores(result["attention"], best_lag=2, parent_score=1 / 8)
    (claim,) = result["attention"].claims.where("attends_to", status="shown")
    assert (claim.subject, claim.object) == (("L0H0",), ("previous token",))
    assert claim.condition("not the parent") is not None
    assert claim.value == pytest.approx(1, abs=1e-6)
    # The first prediction has no token at lag 2; the head then looks at the parent.
    assert_scores(result["behaviour"], nearest_predictor="step_2")


def test_one_step_held_by_a_head_at_lag_two_is_the_wrong_power():
    result = probe(value_table(LOG_P, n_ctx=8, lag=2))
    assert result["alignment"].scores["best_lag"].value == 1
    assert int(of_path(result, "L0H0")["attended_lag"]) == 2
    assert result["alignment"].scores["kernel_slope"].value != pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("build", [direct_table, value_table, mlp_table])
def test_another_states_successors_are_not_the_kernel(build):
    result = probe(build(LOG_P[WRONG], n_ctx=8))
    scores = {key: score.value for key, score in result["alignment"].scores.items()}
    assert scores["kernel_cosine"] < 0.2
    assert scores["recall"] == 0
    assert scores["kernel_kl"] >= UNIGRAM_KL - 0.01
    assert holds_none(result)
    assert result["behaviour"].scores["kl_bigram"].value > 0.3


def test_a_model_of_biases_alone_is_the_unigram_and_holds_nothing():
    decoder = direct_table(torch.zeros(3, 3), n_ctx=8)
    with torch.no_grad():
        decoder.unembed.b_U.copy_(torch.tensor(np.log(PI)))
    result = probe(decoder, sequences=256)
    assert_scores(result["behaviour"], 1e-9, nearest_predictor="unigram", kl_unigram=0)
    assert (("model",), ("unigram",)) in names_in(result["behaviour"], "imitates")
    assert_scores(result["alignment"], 1e-9, kernel_cosine=0, kernel_slope=0, recall=1 / 3)
    assert_scores(result["alignment"], kernel_kl=UNIGRAM_KL)
    assert_no_score(result["alignment"], "best_lag", "constant")
    claim = holds_none(result)
    assert claim.condition("constant") is not None
    assert claim.condition("the unigram is away").value == pytest.approx(UNIGRAM_KL, abs=1e-6)


def test_far_lags_that_say_nothing_do_not_outdo_an_imperfect_bigram():
    # P^4 is the unigram to 1e-4 nats: a head that looks there predicts "its" target best, with nothing.
    far = value_table(torch.zeros(3, 3), n_ctx=8, lag=4)
    with torch.no_grad():
        far.get_parameter("unembed.W_U")[:3] = 0.5 * LOG_P
    result = probe(far)
    kls = result["alignment"].data["kernel_kl"].isel(step=-1)
    assert float(kls.sel(path="L0H0")) < float(kls.sel(path="direct"))
    assert_scores(result["alignment"], 1e-5, path="direct", kernel_slope=0.5)


def test_a_head_on_the_first_token_looks_at_no_lag():
    # Its one prediction at lag 8 has all its mass on the first token; so have all the others, elsewhere.
    sink = value_table(LOG_P, n_ctx=8, lag=8)
    result = probe(sink)
    assert float(result["attention"].data["lag_mass"].sel(lag=8).squeeze()) == pytest.approx(1)
    assert result["attention"].scores["best_lag"].value == 1
    (claim,) = result["attention"].claims.where("attends_to", object="first token", status="shown")
    assert (claim.subject, claim.value) == (("L0H0",), pytest.approx(1, abs=1e-6))
    uniform = probe(direct_table(LOG_P, n_ctx=8))["attention"]
    assert not uniform.claims.where("attends_to", object="first token")


def test_a_head_that_looks_by_token_is_named_with_its_table():
    result = probe(content_table(3 * LOG_P, n_ctx=16))
    last = result["attention"].data.isel(step=-1, layer=0, head=0)
    assert last["qk_table"].values.argmax(-1).tolist() == [1, 2, 0]
    assert last["token_scores"].values.argmax(-1).tolist() == [1, 2, 0]
    assert float(last["token_pair_share"]) == pytest.approx(1, abs=1e-3)
    (claim,) = result["attention"].claims.where("attends_by", status="shown")
    assert (claim.subject, claim.object[0]) == (("L0H0",), "tokens")
    most = [premise.words for premise in claim.because if premise.name == "most attended after"]
    assert most == [("0", "1"), ("1", "2"), ("2", "0")]
    by_lag = probe(value_table(LOG_P, n_ctx=16, lag=2))["attention"]
    assert float(by_lag.data["token_pair_share"].squeeze()) < 0.3
    assert not by_lag.claims.where("attends_by")


def test_at_two_states_slope_and_nats_decide():
    source = Binary(p=0.5, q=0.8)
    result = probe(direct_table(torch.tensor(np.log(source.P)).float(), n_ctx=8), source)
    scores = result["alignment"].scores
    assert "kernel_cosine" not in scores
    assert scores["kernel_slope"].value == pytest.approx(1, abs=1e-5)
    assert names_in(result["alignment"], "matches") == [(("direct",), ("log P",))]
    claim = result["alignment"].claims.first("matches")
    assert (claim.value, claim.unit) == (pytest.approx(1, abs=1e-5), scores["kernel_slope"].unit)
    turned = probe(direct_table(-torch.tensor(np.log(source.P)).float(), n_ctx=8), source)
    assert_scores(turned["alignment"], 1e-5, kernel_slope=-1)
    assert holds_none(turned).subject == ("direct",)


def test_uniform_rows_leave_nothing_to_align_with():
    decoder = direct_table(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), n_ctx=4)
    result = probe_quickly(run_of(decoder, source=Binary(p=0.5, q=0.5)))  # all probes
    assert result.failed == {}
    assert_no_score(result["alignment"], "kernel_slope", "equal")
    assert holds_none(result)


def walk(p: float, V, logits, sequences=64):
    return probe_quickly(walk_run(Circle(n_states=6, p=p), V, logits), ASKED, sequences=sequences)


def double_centred(table):
    return table - table.mean(0) - table.mean(1)[:, None] + table.mean()


def test_the_square_root_of_the_chain_is_the_kernel_of_a_walk():
    P = Circle(n_states=6, p=0.3).P
    result = walk(0.3, np.sqrt(P).T, parent_logits(13))
    assert_scores(result["alignment"], path="L0H0", target="sqrt P", best_lag=1)
    assert_scores(result["alignment"], recall=1, kernel_cosine=1, circulant_share=1)
    assert_no_score(result["alignment"], "kernel_slope", "softmax")
    assert names_in(result["alignment"], "matches") == [(("L0H0",), ("sqrt P",))]
    assert_scores(result["attention"], parent_score=1)
    named = [(subject, names[0]) for subject, names in names_in(result["attention"], "attends_to")]
    assert (("L0H0",), "parent") in named
    # Scores are proportional to sqrt(P), so that is what it predicts.
    root = np.sqrt([0.3, 0.7]) / np.sqrt([0.3, 0.7]).sum()
    expected = float((np.array([0.3, 0.7]) * np.log(np.array([0.3, 0.7]) / root)).sum())
    assert_scores(result["behaviour"], kl_bigram=expected)


def test_the_chain_itself_is_not_quite_the_kernel_of_a_walk():
    P = Circle(n_states=6, p=0.3).P
    a, b = double_centred(P), double_centred(np.sqrt(P))
    expected = float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    assert expected < 0.99
    result = walk(0.3, P.T, parent_logits(13))
    assert result["alignment"].scores["kernel_cosine"].value == pytest.approx(expected, abs=1e-6)
    claim = result["alignment"].claims.first("matches", object="sqrt P", status="shown")
    assert claim.value == pytest.approx(expected, abs=1e-6)
    assert result["behaviour"].scores["kl_bigram"].value == pytest.approx(0, abs=1e-9)


def test_the_exact_trap_is_at_chance_flat_and_constant():
    result = walk(1.0, np.full((6, 6), 0.37), np.zeros(13))
    assert is_at_chance(result)
    assert_scores(result["behaviour"], accuracy=1 / 6, optimal_accuracy=1)
    claim = is_even(result)
    assert claim.null == pytest.approx(1 / 13)
    assert claim.condition("tokens").value == 12
    assert_scores(result["attention"], 0, spread=0)
    assert_scores(result["alignment"], 1e-9, kernel_cosine=0, recall=1 / 6)
    claim = holds_none(result)
    assert claim.subject == ("L0H0",)
    assert claim.condition("constant") is not None
    assert claim.condition("the unigram is away").value == pytest.approx(np.log(6))


def test_the_trap_of_a_finite_sample_has_a_row_for_each_label_and_is_at_chance_too():
    # V = a 1^T: label counts make one state likeliest, whatever is read.
    result = walk(1.0, np.outer(np.linspace(0.3, 0.31, 6), np.ones(6)), np.zeros(13), sequences=256)
    assert is_at_chance(result)
    assert holds_none(result).condition("constant") is not None


@pytest.mark.parametrize("m", [1, 2, 5])
def test_an_escaped_trap_predicts_perfectly_from_whatever_lag_class_it_chose(m):
    P = Circle(n_states=6, p=1).P
    lag = 25 - 1 - np.arange(25)  # of key i, counted from the predicted token behind 24 states
    logits = np.where((lag % 6 == m % 6) & (lag > 0), 60.0, 0.0)
    result = walk(1.0, np.linalg.matrix_power(P, m).T, logits)
    assert_scores(result["behaviour"], 0, accuracy=1)
    assert_scores(result["attention"], parent_score=0.25 * (m == 1))
    claim = result["attention"].claims.first("attends_by", status="shown")
    assert (claim.subject, claim.object) == (("L0H0",), ("lag class", str(m)))
    assert (claim.value, claim.condition("modulo").value) == (pytest.approx(1, abs=1e-6), 6)
    assert_scores(result["alignment"], best_lag=m, kernel_cosine=1)
    assert_scores(result["alignment"], 1e-5, kernel_kl=0)
    assert names_in(result["alignment"], "matches") == [(("L0H0",), ("sqrt P",))]
    claim = result["alignment"].claims.first("matches")
    assert claim.condition("law").value == m  # the law of so many steps
    assert claim.condition("lags alike") is not None


def test_two_lag_classes_are_both_named():
    P = Circle(n_states=6, p=1).P
    lag = 24 - np.arange(25)
    logits = np.where(np.isin(lag % 6, [1, 4]) & (lag > 0), 60.0, 0.0)
    result = walk(1.0, P.T, logits)
    assert result["attention"].claims.first("attends_by").object == ("lag class", "1", "4")
    assert float(of_path(result, "L0H0")["attended_mass"]) == pytest.approx(0.5, abs=1e-6)


def test_an_informative_circuit_that_nobody_reads_is_not_called_the_kernel():
    # After one step at p = 1/2: V knows the chain, attention is still flat.
    source = Circle(n_states=6, p=0.5)
    result = walk(0.5, 0.3 + 0.05 * source.P.T, np.zeros(97))
    assert_scores(result["alignment"], 1e-5, kernel_cosine=1)
    claim = holds_none(result)
    assert (claim.subject, claim.value) == (("L0H0",), pytest.approx(1, abs=1e-5))
    assert claim.condition("attends").value == pytest.approx(1 / 97, abs=1e-3)


@pytest.mark.parametrize(
    ("source", "lag", "target"),
    [
        (Circle(n_states=6, p=1.0), 8, "sqrt P"),
        (Chain(np.full((3, 3), 0.01) + 0.97 * np.eye(3)), 10, "log P"),
    ],
    ids=["walk", "sticky"],
)
def test_a_head_that_reads_far_back_is_compared_with_the_law_of_so_many_steps(source, lag, target):
    law, n_ctx = np.linalg.matrix_power(source.P, lag), 40
    if source.n_states == 6:
        run = walk_run(source, law.T, np.where(np.arange(n_ctx) == n_ctx - 1 - lag, 60.0, 0.0))
    else:
        run = run_of(value_table(torch.tensor(np.log(law)).float(), n_ctx, lag=lag), source=source)
    found = probe_quickly(run, ["alignment"])["alignment"]
    assert_scores(found, kernel_cosine=1)
    assert names_in(found, "matches") == [(("L0H0",), (target,))]
    assert found.claims.first("matches").condition("law").value == lag
    assert (found.claims.first("matches").condition("lags alike") is not None) == (source.n_states == 6)


@pytest.mark.parametrize("n_states", [2, 4])
def test_what_a_path_says_of_every_state_alike_is_no_kernel(n_states):
    """The unigram, or next to nothing beside it, where the unigram is near all rows."""
    P = {
        2: np.array([[0.9, 0.1], [0.8, 0.2]]),
        4: np.array([[0.908, 0.069, 0.021, 0.002], [0.756, 0.241, 0.002, 0.001]] * 2),
    }[n_states]
    P[n_states - 1, :2] += np.array([0.02, -0.02])
    source, rng = Chain(P), np.random.default_rng(0)
    unigram = np.tile(np.log(source.pi), (n_states, 1)) + 1e-4 * rng.normal(size=P.shape)
    found = aligned(direct_table(torch.tensor(unigram).float(), 16), source)
    assert abs(found.scores["kernel_slope"].value) < 0.01
    exact = aligned(direct_table(torch.tensor(np.log(P)).float(), 16), source)
    assert exact.scores["kernel_slope"].value == pytest.approx(1, abs=1e-5)


def test_what_no_softmax_sees_does_not_change_the_circulant_share():
    source = Circle(n_states=6, p=0.7)
    table = np.log(np.maximum(source.P, 1e-6)) + 20 * np.arange(6)[:, None]
    found = aligned(direct_table(torch.tensor(table).float(), 8), source)
    assert found.scores["circulant_share"].value == pytest.approx(1, abs=1e-5)


def test_at_zero_a_model_knows_looks_at_and_holds_nothing():
    result = walk(0.5, np.zeros((6, 6)), np.zeros(13))
    assert is_at_chance(result)
    assert is_even(result)
    assert holds_none(result).condition("constant") is not None
    assert_no_score(result["alignment"], "circulant_share", "the circuit says nothing")
