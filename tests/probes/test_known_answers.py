"""Circuits set by hand, right ones and wrong ones: each is named, with its numbers, and no other is."""

from functools import cache

import numpy as np
import pytest
import torch
from probing_cases import CHAIN, P3, parent_logits, probe_quickly, run_of, says, walk_run

from mechmarkov.models.constructions.lookup_tables import (
    cancelling_tables,
    content_table,
    direct_table,
    mlp_table,
    value_table,
)
from mechmarkov.sources import Binary, Chain, Circle, LaggedChain
from mechmarkov.utils.text import typeset

PI = np.linalg.matrix_power(P3, 100)[0]
LOG_P = torch.tensor(np.log(P3)).float()
UNIGRAM_KL = float(PI @ (P3 * np.log(P3 / PI)).sum(1))
WRONG = [1, 2, 0]  # another state's successors
ASKED = ["behaviour", "attention", "alignment"]


def probe(decoder, source=CHAIN, sequences=64):
    return probe_quickly(run_of(decoder, source=source), ASKED, sequences=sequences)


def aligned(decoder, source):
    return probe_quickly(run_of(decoder, source=source), ["alignment"])["alignment"]


@cache
def bigram_in(build):
    """A model that holds the bigram, probed once, beside as many null models as by default."""
    return probe_quickly(run_of(build(LOG_P, n_ctx=8)), ASKED, nulls=24)


def of_path(result, path: str):
    return result["alignment"].data.sel(path=path).isel(step=-1)


@pytest.mark.parametrize(
    ("build", "path"), [(direct_table, "direct"), (value_table, "L0H0"), (mlp_table, "L0.mlp")]
)
def test_the_bigram_is_found_in_the_path_that_holds_it(build, path):
    result = bigram_in(build)
    scores = {key: score.value for key, score in result["alignment"].scores.items()}
    assert (scores["path"], scores["target"], scores["best_lag"]) == (path, "log P", 1)
    assert scores["kernel_cosine"] == pytest.approx(1, abs=1e-6)
    assert scores["kernel_slope"] == pytest.approx(1, abs=1e-5)
    assert scores["kernel_kl"] == pytest.approx(0, abs=1e-9)
    assert scores["recall"] == 1
    said = result["alignment"].verdict
    assert says(said, f"{path} is nearest", "cosine 1.0000", "log P", "unigram", f"{UNIGRAM_KL:.3g}")
    for other in set(result["alignment"].data["path"].values) - {path}:
        assert int(of_path(result, other)["constant"]) == 1
        assert float(of_path(result, other)["kernel_cosine"]) == 0
        assert float(of_path(result, other)["gain"]) < 0.01
    behaved = result["behaviour"].scores
    assert behaved["nearest_predictor"].value == "bigram"
    assert behaved["kl_bigram"].value == pytest.approx(0, abs=1e-9)


def test_a_head_on_the_parent_is_the_parent_head():
    result = bigram_in(value_table)
    scores = result["attention"].scores
    assert scores["parent_head"].value == "L0H0"
    assert scores["parent_score"].value == pytest.approx(1, abs=1e-6)
    assert scores["best_lag"].value == 1
    assert scores["effective_tokens"].value == pytest.approx(1, abs=1e-6)
    assert scores["spread"].value == pytest.approx(1, abs=1e-6)
    assert scores["parent_score"].value > scores["parent_score"].null[2]
    assert says(result["attention"].verdict, "L0H0", "parent", " 100%", "1 effective token of 8")


@pytest.mark.parametrize("build", [direct_table, mlp_table])
def test_flat_attention_is_no_parent_head(build):
    result = bigram_in(build)
    assert says(result["attention"].verdict, "exactly flat", "8", "0.1250", "no head")
    assert result["attention"].scores["spread"].value == 0
    for name in ("parent_head", "best_lag"):
        assert result["attention"].scores[name].value is None
        assert "flat" in result["attention"].scores[name].reason
    # Uniform over the first t tokens: 1/t on the parent, t effective tokens.
    harmonic = np.mean(1 / np.arange(1, 9))
    assert result["attention"].scores["parent_score"].value == pytest.approx(harmonic, abs=1e-6)
    assert result["attention"].scores["effective_tokens"].value == pytest.approx(4.5, abs=1e-5)
    share = result["attention"].scores["position_share"]
    assert share.value is None
    assert "constant" in share.reason


def test_a_head_at_lag_two_is_compared_with_two_steps():
    P2 = P3 @ P3
    result = probe(value_table(torch.tensor(np.log(P2)).float(), n_ctx=8, lag=2))
    scores = {key: score.value for key, score in result["alignment"].scores.items()}
    assert (scores["path"], scores["best_lag"]) == ("L0H0", 2)
    assert scores["kernel_cosine"] == pytest.approx(1, abs=1e-6)
    assert scores["kernel_slope"] == pytest.approx(1, abs=1e-5)
    verdict = result["alignment"].verdict
    assert says(verdict, "cosine 1.0000", "log P^2", " 100%", "lag 2")
    two_step_unigram = float(PI @ (P2 * np.log(P2 / PI)).sum(1))
    nats = typeset(f"{scores['kernel_kl']:.3g} nats")
    assert says(verdict, "P^2", nats, "unigram", f"{two_step_unigram:.3g}")
    assert result["attention"].scores["best_lag"].value == 2
    assert result["attention"].scores["parent_score"].value == pytest.approx(1 / 8, abs=1e-6)
    assert says(result["attention"].verdict, "L0H0", "previous token", "not at the parent", " 100%")
    # The first prediction has no token at lag 2; the head then looks at the parent.
    assert result["behaviour"].scores["nearest_predictor"].value == "step_2"


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
    assert result["alignment"].verdict.startswith("No single part holds the kernel: ")
    assert result["behaviour"].scores["kl_bigram"].value > 0.3


def test_a_model_of_biases_alone_is_the_unigram_and_holds_nothing():
    decoder = direct_table(torch.zeros(3, 3), n_ctx=8)
    with torch.no_grad():
        decoder.unembed.b_U.copy_(torch.tensor(np.log(PI)))
    result = probe(decoder, sequences=256)
    assert result["behaviour"].scores["nearest_predictor"].value == "unigram"
    assert result["behaviour"].scores["kl_unigram"].value == pytest.approx(0, abs=1e-9)
    assert says(result["behaviour"].verdict, "like the unigram, ")
    scores = result["alignment"].scores
    assert scores["kernel_cosine"].value == 0
    assert scores["kernel_slope"].value == pytest.approx(0, abs=1e-9)
    assert scores["kernel_kl"].value == pytest.approx(UNIGRAM_KL, abs=1e-6)
    assert scores["recall"].value == pytest.approx(1 / 3)
    assert scores["best_lag"].value is None
    assert "constant" in scores["best_lag"].reason
    verdict = result["alignment"].verdict
    assert says(verdict, "No single part holds the kernel", "constant", f"{UNIGRAM_KL:.3g} nats")


def test_far_lags_that_say_nothing_do_not_outdo_an_imperfect_bigram():
    # P^4 is the unigram to 1e-4 nats: a head that looks there predicts "its" target best, with nothing.
    far = value_table(torch.zeros(3, 3), n_ctx=8, lag=4)
    with torch.no_grad():
        far.get_parameter("unembed.W_U")[:3] = 0.5 * LOG_P
    result = probe(far)
    kls = result["alignment"].data["kernel_kl"].isel(step=-1)
    assert float(kls.sel(path="L0H0")) < float(kls.sel(path="direct"))
    assert result["alignment"].scores["path"].value == "direct"
    assert result["alignment"].scores["kernel_slope"].value == pytest.approx(0.5, abs=1e-5)


def test_a_head_on_the_first_token_looks_at_no_lag():
    # Its one prediction at lag 8 has all its mass on the first token; so have all the others, elsewhere.
    sink = value_table(LOG_P, n_ctx=8, lag=8)
    result = probe(sink)
    assert float(result["attention"].data["lag_mass"].sel(lag=8).squeeze()) == pytest.approx(1)
    assert result["attention"].scores["best_lag"].value == 1
    assert says(result["attention"].verdict, "L0H0 looks at the first token", " 100%")
    uniform = probe(direct_table(LOG_P, n_ctx=8))["attention"].verdict
    assert "first token" not in uniform


def test_a_head_that_looks_by_token_is_named_with_its_table():
    result = probe(content_table(3 * LOG_P, n_ctx=16))
    last = result["attention"].data.isel(step=-1, layer=0, head=0)
    assert last["qk_table"].values.argmax(-1).tolist() == [1, 2, 0]
    assert last["token_scores"].values.argmax(-1).tolist() == [1, 2, 0]
    assert float(last["token_pair_share"]) == pytest.approx(1, abs=1e-3)
    verdict = result["attention"].verdict
    assert says(verdict, "L0H0 looks by token", "after 0 at 1", "after 1 at 2", "after 2 at 0")
    by_lag = probe(value_table(LOG_P, n_ctx=16, lag=2))["attention"]
    assert float(by_lag.data["token_pair_share"].squeeze()) < 0.3
    assert "by token" not in by_lag.verdict


def test_at_two_states_slope_and_nats_decide():
    source = Binary(p=0.5, q=0.8)
    result = probe(direct_table(torch.tensor(np.log(source.P)).float(), n_ctx=8), source)
    scores = result["alignment"].scores
    assert "kernel_cosine" not in scores
    assert scores["kernel_slope"].value == pytest.approx(1, abs=1e-5)
    assert says(result["alignment"].verdict, "direct is nearest", "slope 1.000", "log P")
    assert "cosine" not in result["alignment"].verdict
    turned = probe(direct_table(-torch.tensor(np.log(source.P)).float(), n_ctx=8), source)
    assert turned["alignment"].scores["kernel_slope"].value == pytest.approx(-1, abs=1e-5)
    assert says(turned["alignment"].verdict, "No single part holds the kernel", "direct comes nearest")


def test_uniform_rows_leave_nothing_to_align_with():
    decoder = direct_table(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), n_ctx=4)
    result = probe_quickly(run_of(decoder, source=Binary(p=0.5, q=0.5)))  # all probes
    assert result.failed == {}
    slope = result["alignment"].scores["kernel_slope"]
    assert slope.value is None
    assert "alike" in slope.reason
    assert result["alignment"].verdict.startswith("No single part holds the kernel")


def walk(p: float, V, logits, sequences=64):
    return probe_quickly(walk_run(Circle(n_states=6, p=p), V, logits), ASKED, sequences=sequences)


def double_centred(table):
    return table - table.mean(0) - table.mean(1)[:, None] + table.mean()


def test_the_square_root_of_the_chain_is_the_kernel_of_a_walk():
    P = Circle(n_states=6, p=0.3).P
    result = walk(0.3, np.sqrt(P).T, parent_logits(13))
    scores = {key: score.value for key, score in result["alignment"].scores.items()}
    assert (scores["path"], scores["target"], scores["best_lag"]) == ("L0H0", "sqrt P", 1)
    assert scores["recall"] == 1
    assert scores["kernel_cosine"] == pytest.approx(1, abs=1e-6)
    assert scores["circulant_share"] == pytest.approx(1, abs=1e-6)
    assert scores["kernel_slope"] is None
    assert "softmax" in result["alignment"].scores["kernel_slope"].reason
    assert says(result["alignment"].verdict, "cosine 1.0000", "sqrt P", " 100%", "lag 1")
    assert result["attention"].scores["parent_score"].value == pytest.approx(1, abs=1e-6)
    assert says(result["attention"].verdict, "L0H0", "parent", " 100%")
    # Scores are proportional to sqrt(P), so that is what it predicts.
    root = np.sqrt([0.3, 0.7]) / np.sqrt([0.3, 0.7]).sum()
    expected = float((np.array([0.3, 0.7]) * np.log(np.array([0.3, 0.7]) / root)).sum())
    assert result["behaviour"].scores["kl_bigram"].value == pytest.approx(expected, abs=1e-6)


def test_the_chain_itself_is_not_quite_the_kernel_of_a_walk():
    P = Circle(n_states=6, p=0.3).P
    a, b = double_centred(P), double_centred(np.sqrt(P))
    expected = float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    assert expected < 0.99
    result = walk(0.3, P.T, parent_logits(13))
    assert result["alignment"].scores["kernel_cosine"].value == pytest.approx(expected, abs=1e-6)
    assert says(result["alignment"].verdict, f"cosine {expected:.4f}", "sqrt P")
    assert result["behaviour"].scores["kl_bigram"].value == pytest.approx(0, abs=1e-9)


def test_the_exact_trap_is_at_chance_flat_and_constant():
    result = walk(1.0, np.full((6, 6), 0.37), np.zeros(13))
    assert says(result["behaviour"].verdict, "At chance", "uniform", "unigram")
    assert result["behaviour"].scores["accuracy"].value == pytest.approx(1 / 6)
    assert result["behaviour"].scores["optimal_accuracy"].value == 1
    assert says(result["attention"].verdict, "exactly flat", "12", "0.0769", "no head")
    assert result["attention"].scores["spread"].value == 0
    assert result["alignment"].scores["kernel_cosine"].value == 0
    assert result["alignment"].scores["recall"].value == pytest.approx(1 / 6)
    verdict = result["alignment"].verdict
    assert says(verdict, "No single part holds the kernel", "L0H0", "constant", "1.79 nats")


def test_the_trap_of_a_finite_sample_has_a_row_for_each_label_and_is_at_chance_too():
    # V = a 1^T: label counts make one state likeliest, whatever is read.
    result = walk(1.0, np.outer(np.linspace(0.3, 0.31, 6), np.ones(6)), np.zeros(13), sequences=256)
    assert result["behaviour"].verdict.startswith("At chance: ")
    assert "is constant over states" in result["alignment"].verdict


@pytest.mark.parametrize("m", [1, 2, 5])
def test_an_escaped_trap_predicts_perfectly_from_whatever_lag_class_it_chose(m):
    P = Circle(n_states=6, p=1).P
    lag = 25 - 1 - np.arange(25)  # of key i, counted from the predicted token behind 24 states
    logits = np.where((lag % 6 == m % 6) & (lag > 0), 60.0, 0.0)
    result = walk(1.0, np.linalg.matrix_power(P, m).T, logits)
    assert result["behaviour"].scores["accuracy"].value == 1
    assert result["attention"].scores["parent_score"].value == pytest.approx(0.25 * (m == 1), abs=1e-6)
    said = result["attention"].verdict
    assert says(said, "L0H0", "lag class", " 100%", f"{m} modulo 6", "4 effective tokens of 24")
    scores = result["alignment"].scores
    assert scores["best_lag"].value == m
    assert scores["kernel_cosine"].value == pytest.approx(1, abs=1e-6)
    assert scores["kernel_kl"].value == pytest.approx(0, abs=1e-5)
    power = "P" if m == 1 else f"P^{m}"
    assert says(result["alignment"].verdict, "cosine 1.0000", f"sqrt {power}", " 100%", f"lag {m} ", "alike")


def test_two_lag_classes_are_both_named():
    P = Circle(n_states=6, p=1).P
    lag = 24 - np.arange(25)
    logits = np.where(np.isin(lag % 6, [1, 4]) & (lag > 0), 60.0, 0.0)
    result = walk(1.0, P.T, logits)
    assert says(result["attention"].verdict, " 100%", "1 and 4 modulo 6", "8")
    assert float(of_path(result, "L0H0")["attended_mass"]) == pytest.approx(0.5, abs=1e-6)


def test_an_informative_circuit_that_nobody_reads_is_not_called_the_kernel():
    # After one step at p = 1/2: V knows the chain, attention is still flat.
    source = Circle(n_states=6, p=0.5)
    result = walk(0.5, 0.3 + 0.05 * source.P.T, np.zeros(97))
    assert result["alignment"].scores["kernel_cosine"].value == pytest.approx(1, abs=1e-5)
    said = result["alignment"].verdict
    assert says(said, "No single part holds the kernel", "L0H0 comes nearest", "cosine 1.0000", " 1.0%")


@pytest.mark.parametrize(
    ("source", "lag", "said"),
    [
        (Circle(n_states=6, p=1.0), 8, ("L0H0 is nearest", "P^8", "100%", "lag 8", "lags alike")),
        (Chain(np.full((3, 3), 0.01) + 0.97 * np.eye(3)), 10, ("L0H0 is nearest", "P^10", "lag 10")),
    ],
    ids=["walk", "sticky"],
)
def test_a_head_that_reads_far_back_is_compared_with_the_law_of_so_many_steps(source, lag, said):
    law, n_ctx = np.linalg.matrix_power(source.P, lag), 40
    if source.n_states == 6:
        run = walk_run(source, law.T, np.where(np.arange(n_ctx) == n_ctx - 1 - lag, 60.0, 0.0))
    else:
        run = run_of(value_table(torch.tensor(np.log(law)).float(), n_ctx, lag=lag), source=source)
    found = probe_quickly(run, ["alignment"])["alignment"]
    assert found.scores["kernel_cosine"].value == pytest.approx(1, abs=1e-6)
    assert says(found.verdict, *said)


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
    assert says(result["behaviour"].verdict, "At chance", "uniform", "unigram")
    assert says(result["attention"].verdict, "exactly flat")
    assert says(result["alignment"].verdict, "No single part holds the kernel", "L0H0", "constant")
    share = result["alignment"].scores["circulant_share"]
    assert share.value is None
    assert share.reason == "the circuit says nothing"


# -- what cancels, and what is held at some positions only ---------------------------------------------------


@pytest.mark.parametrize("gain", [0.5, 2.0, 5.0])
def test_heads_that_cancel_hold_nothing_and_are_named(gain):
    result = probe_quickly(run_of(cancelling_tables(LOG_P, n_ctx=8, gain=gain)), ["alignment", "storage"])
    scores, verdict = result["storage"].scores, result["storage"].verdict
    assert scores["bigram_home"].value == "direct" == result["alignment"].scores["path"].value
    assert scores["share_direct"].value == pytest.approx(1, abs=1e-6)
    for head in ("L0H0", "L0H1"):
        assert scores[f"share_{head}"].value is None
        assert says(scores[f"share_{head}"].reason, "L0H0 (+", "L0H1 (-", "cancel")
    assert says(verdict, "direct (1.00) holds the bigram", "L0H0 (+", "L0H1 (−", "cancel", "0.00")
    assert "L0H0.OV" not in verdict


def test_what_could_cancel_either_of_two_is_said_to_work_against_both():
    result = probe_quickly(run_of(cancelling_tables(LOG_P, n_ctx=8, gain=1.0)), ["storage"])
    assert result["storage"].scores["bigram_home"].value == "direct + L0H0"
    assert says(result["storage"].verdict, "direct (1.0", "L0H0 (1.0", "L0H1 (−1.0", "works against")


@pytest.mark.parametrize("n_ctx", [8, 9])
def test_a_bigram_at_every_other_position_is_one_whatever_the_length(n_ctx):
    models = (value_table(LOG_P, n_ctx, every=every) for every in (2, 1))
    found, whole = (probe_quickly(run_of(model), ["storage"])["storage"] for model in models)
    at = found.data["parent_gain_at"].isel(step=-1).values
    assert np.allclose(at[::2], at[0], atol=1e-5)
    assert (np.diff(at[1::2]) < 0).all()  # uniform attention tells less and less of the parent
    assert at[7] < 0.3 * at[0]
    assert found.scores["bigram_home"].value == "L0H0"
    assert 0.4 < found.scores["parent_gain"].value / whole.scores["parent_gain"].value < 0.8


def test_a_program_is_what_can_be_explained_and_the_tables_of_the_weights_are_told_apart():
    lagged = LaggedChain(P3, lag=3)
    parent = probe_quickly(run_of(value_table(LOG_P, n_ctx=12, lag=3), source=lagged), ["program"])["program"]
    assert parent.scores["explained"].value > 0.999
    assert parent.scores["explained_by_weights"].value > 0.999
    by_token = probe_quickly(run_of(content_table(3 * LOG_P, n_ctx=16)), ["program"])["program"]
    assert by_token.scores["explained"].value > 0.99
    assert by_token.scores["explained_by_weights"].value < 0.5
    assert says(by_token.verdict, "a head that looks by token", "weights explain")
