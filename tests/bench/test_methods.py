"""Methods of the benchmark: what each must find, and what it is known to miss."""

from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.bench import CASES, METRICS, Change, case_of, degeneracy, gradients, lenses, methods, run
from mechmarkov.bench.beliefs import belief_probe, linear_probe
from mechmarkov.bench.features import noise_features, sae_method, saelens_method, score_features
from mechmarkov.bench.patching import edge_effects, node_effects
from mechmarkov.bench.scores import score_claims
from mechmarkov.bench.subspaces import probe_subspace
from mechmarkov.curvature.devinterp import possible
from mechmarkov.models.constructions.lookup_tables import handset_config
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise

POINTS = (np.arange(20) + 0.5) / 20


def losses(law, scores):
    """Cross-entropy of each prediction, in numpy."""
    return -(law * (scores - np.log(np.exp(scores).sum(-1, keepdims=True)))).sum(-1)


@pytest.mark.parametrize("metric", ["logit-difference", "nats"])
def test_first_order_is_exact_where_the_corruption_is_small(metric):
    case = CASES["induction"](0, pairs="resampled").under(metric)
    small = 1e-7
    for name, value in case.differences.items():
        case.differences[name] = small * value
    clean = case.outputs(case.clean)
    for name, value in clean.items():
        case.corrupt_outputs[name] = value + case.differences[name]
    for claims, effects in (
        (gradients.attribution_patching(case), node_effects(case, [metric])[metric]),
        (gradients.edge_attribution(case), edge_effects(case, [metric])[metric]),
        (gradients.edge_attribution(case, points=(0.25, 0.75)), edge_effects(case, [metric])[metric]),
    ):
        claimed = np.array([claims[name] for name in effects.names])
        # What is left is of second order: 1e-14 of a curvature of some hundred, as attention is sharp.
        np.testing.assert_allclose(claimed, effects.value, rtol=1e-3, atol=1e-12)
        assert np.abs(effects.value).max() > 1e-8


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", ["direct", "head", "mlp"])
def test_integrated_gradients_are_complete_along_a_path(name, metric):
    """The mean gradient on the line times its length is the whole change (Sundararajan et al. 2017)."""
    case = CASES[name](2).under(metric)
    claims, exact = gradients.edge_attribution(case, points=POINTS), edge_effects(case, [metric])[metric]
    for edge, value in exact.as_claims().items():
        assert claims[edge] == pytest.approx(value, abs=0.01 * exact.value.max()), edge


@pytest.mark.parametrize("name", ["direct", "mlp"])
def test_gradients_on_senders_outputs_are_complete_too(name):
    case = CASES[name](2).under("kl")
    claims, exact = gradients.sender_gradients(case), edge_effects(case, ["kl"])["kl"]
    for edge, value in exact.as_claims().items():
        assert claims[edge] == pytest.approx(value, abs=0.02 * exact.value.max()), edge


def test_two_ends_are_exact_where_the_gradient_is_linear():
    """A squared error is quadratic in the direct path, and the mean of two slopes is the chord's."""
    case = CASES["direct"](0)
    case = replace(case, objective=mm.Objective(kind="squared"))
    claims = gradients.edge_attribution(case, points=(0.0, 1.0))
    exact = edge_effects(case, ["nats"])["nats"].as_claims()["embed→logits"]
    assert claims["embed→logits"] == pytest.approx(exact, abs=1e-9)
    assert gradients.edge_attribution(case)["embed→logits"] != pytest.approx(exact, abs=1e-3)


def test_the_query_key_fix_is_exact_where_logits_are_linear_in_the_pattern():
    """They are in the induction pair: only saturated attention stands between an edge and its effect."""
    case = CASES["induction"](0).under("logit-difference")
    exact = edge_effects(case, [case.metric])[case.metric].as_claims()
    fixed, plain = gradients.with_query_key_fix(case), gradients.edge_attribution(case)
    for edge in ("L0H0→L1H0.K", "embed→L1H0.Q"):
        assert fixed[edge] == pytest.approx(exact[edge], abs=1e-9)
    assert plain["L0H0→L1H0.K"] != pytest.approx(exact["L0H0→L1H0.K"], abs=0.1)
    assert fixed["embed→L1H0.V"] == plain["embed→L1H0.V"]


def taken_back(share):
    """A head writes the table, and one of the next layer takes a share of it back."""
    first = CASES["head"](0).model
    sizes = first.config.model_dump(include={"d_model", "d_head"})
    model = HookedDecoder(handset_config(4, first.config.n_ctx, n_layers=2, **sizes)).double()
    model.load_state_dict(first.state_dict(), strict=False)
    with torch.no_grad():
        second = model.blocks[1].attn
        for name in ("W_Q", "W_K"):
            getattr(second, name).copy_(getattr(model.blocks[0].attn, name))
        second.W_V[0, :, :4] = model.unembed.W_U
        second.W_O[0, :4] = -share * torch.linalg.pinv(model.unembed.W_U)
    case = CASES["head"](0)
    return case_of("", "", model, case.source, seed=0).under("logit-difference")


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_dropped_gradients_see_what_a_later_layer_takes_back(share):
    case = taken_back(share)
    direct = abs(methods.direct_logit_attribution(case)["L0H0"])
    plain, dropped = gradients.attribution_patching(case), gradients.with_dropped_gradients(case)
    assert plain["L0H0"] == pytest.approx((1 - share) * direct, abs=1e-6)
    assert dropped["L0H0"] == pytest.approx(direct, rel=1e-4)  # without the second layer
    assert dropped["L1H0"] == pytest.approx(share * direct, rel=1e-4)  # without the first
    assert dropped["embed"] == pytest.approx(direct / 2, rel=1e-4)  # it needs the first layer
    assert run([gradients.graddrop], ["mlp", "induction"], seeds=1).reasons.empty


def test_of_one_layer_dropped_gradients_are_plain_sizes():
    case = CASES["mlp"](0).under("logit-difference")
    dropped, plain = gradients.with_dropped_gradients(case), gradients.attribution_patching(case)
    for node in ("L0H0", "L0.mlp"):
        assert dropped[node] == pytest.approx(abs(plain[node]), abs=1e-12)


def test_a_learned_mask_pays_for_an_edge_what_it_gains():
    """At the optimum the slope of KL by the one edge that counts is the penalty; others are dropped."""
    case = CASES["direct"](0)
    mask = gradients.learned_mask(case)
    assert mask["embed→logits"] > 0.5 > 0.2 > max(v for k, v in mask.items() if k != "embed→logits")
    tuning = case.tuning
    log = np.log(np.random.default_rng(0).dirichlet(np.ones(4), size=4))
    ours, theirs = (log[x.numpy()[:, -1]] for x in (tuning.clean, tuning.corrupt))

    def kl(share):
        scores = share * ours + (1 - share) * theirs
        return (np.exp(ours) * (ours - scores + np.log(np.exp(scores).sum(-1, keepdims=True)))).sum(-1).mean()

    at = mask["embed→logits"]
    slope = (kl(at + 1e-4) - kl(at - 1e-4)) / 2e-4
    assert slope == pytest.approx(-gradients.MASK_PENALTY, rel=0.3)


@pytest.mark.parametrize("name", ["split", "cancel", "backup"])
def test_acdc_keeps_the_circuit_and_nothing_else(name):
    case = CASES[name](1, pairs="resampled").under("kl")
    exact = edge_effects(case, ["kl"])["kl"]
    kept = {edge for edge, value in methods.acdc(case).items() if value > 0}
    assert kept == {edge for edge, inside in zip(exact.names, exact.in_circuit, strict=True) if inside}


def test_zero_ablation_misses_a_head_with_a_backup():
    case = CASES["backup"](0)
    assert abs(methods.ablation(case, "zero")["L0H0"]) < 1e-6
    assert methods.ablation(case, "resample")["L0H0"] > 0.1


@pytest.mark.parametrize("name", ["split", "cancel", "trigram"])
def test_eap_is_right_on_a_logit_difference_and_silent_in_nats(name):
    """A table set by hand is an optimum: there the gradient of the expected loss is zero, and KL's too."""
    case = CASES[name](0)
    for metric in METRICS:
        of = case.under(metric)
        claims, exact = gradients.edge_attribution(of), edge_effects(of, [metric])[metric]
        scores = score_claims(claims, exact, metric=metric, own=True)
        if metric == "logit-difference":
            assert scores["pearson"] > 0.9
            assert scores["sign"] == 1
        else:
            assert max(map(abs, claims.values())) < 1e-6
            assert (scores["pearson"], scores["sign"]) == (0, 0)


def test_the_belief_probe_finds_a_belief_only_where_one_is():
    found = run([belief_probe, linear_probe], ["belief", "no-belief", "direct"], seeds=1)
    scores = found.scores.set_index(["method", "case"])
    for name in ("belief_error", "angle", "forced"):
        assert scores[name]["belief-probe", "belief"] == pytest.approx(0, abs=1e-3)
        assert 0.01 < scores[name]["linear-probe", "belief"] < 0.5
        assert np.isnan(scores[name]["belief-probe", "direct"])
    assert scores["alarms"]["belief-probe", "no-belief"] == 0
    assert scores["alarms"]["linear-probe", "no-belief"] == 0
    said = found.reasons.set_index(["method", "case"])["reason"]
    assert "nowhere selective" in said["linear-probe", "no-belief"]
    assert "does not carry the belief" in said["belief-probe", "no-belief"]
    assert said["linear-probe", "direct"] == "nothing is hidden behind the tokens of this case"


def test_a_random_model_is_not_said_to_hold_a_belief():
    """It mixes tokens of a short history, and a wide stream tells much of them."""
    source = mm.HiddenMarkov.rrxor()
    for seed in range(3):
        model = HookedDecoder(handset_config(2, 6, d_model=16, d_head=8, d_mlp=32))
        initialise(model, [seed], std=0.5)
        case = case_of("random", "", model, source, seed=seed, carries=False, change=Change("state"))
        assert "nowhere selective" in linear_probe.claims(case)


def test_the_logit_lens_is_the_stream_read_as_the_output():
    """The embedding of `cancel` has the table in the direct path, and that of `mlp` none of it."""
    case = CASES["cancel"](0)
    assert lenses.logit_lens(case) == {"embed": pytest.approx(0, abs=1e-5)}
    case = CASES["mlp"](0)
    P = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    law = P[case.clean.numpy()[:, -1]]
    rise = losses(law, np.zeros(4)).mean() - losses(law, np.log(law)).mean()
    assert lenses.logit_lens(case) == {"embed": pytest.approx(rise, abs=1e-5)}


def test_a_tuned_lens_reads_what_the_model_does_not():
    """An affine map of one-hot tokens says all of the bigram; a model that is stopped there says none."""
    case = CASES["mlp"](0)
    scores = run(["logit-lens", "tuned-lens"], ["mlp"], seeds=1).scores.set_index(["method", "metric"])
    assert abs(lenses.tuned_lens(case)["embed"]) < 5e-3
    assert scores["error"]["tuned-lens", "nats"] == pytest.approx(1, abs=0.05)
    assert scores["error"]["logit-lens", "nats"] < 1
    assert "not a softmax" in lenses.tuned_lens(CASES["bundled-walk"](0))


def test_a_tuned_lens_fits_what_no_token_tells():
    """A stream of zeros, and a law that is the output's bias: .7 of one state, .1 of each of the others."""
    mlp = CASES["mlp"](0)
    with torch.no_grad():
        for parameter in mlp.model.parameters():
            parameter.zero_()
        mlp.model.unembed.b_U[0] = np.log(7)
    case = case_of("constant", "", mlp.model, mlp.source, seed=0, pairs="resampled")
    assert lenses.tuned_lens(case) == {"embed": pytest.approx(0, abs=1e-4)}


@pytest.mark.skipif(version("transformer-lens")[0] == "3", reason="DAS came with TransformerLens 4.3")
def test_das_finds_a_subspace_only_where_one_is():
    found = run(["das", "noise-subspaces"], ["rotated", "plateau"], seeds=1)
    scores = found.scores.set_index(["method", "case"])
    for name, most in {"forced": 0.1, "angle": 0.5}.items():
        chance = scores[name]["noise-subspaces", "rotated"]
        assert scores[name]["das", "rotated"] < min(most, 0.7 * chance)
    assert scores["alarms"]["das", "plateau"] == 0
    assert scores["alarms"]["noise-subspaces", "plateau"] == 1


@pytest.mark.skipif(version("transformer-lens")[0] == "3", reason="controls came with TransformerLens 4.3")
def test_a_linear_probe_finds_none_in_a_trap():
    scores = run([probe_subspace, "das"], ["rotated", "trap"], seeds=1).scores
    scores = scores.set_index(["method", "case"])
    assert scores["angle"]["probe-subspace", "rotated"] < 1e-3
    assert scores["forced"]["probe-subspace", "rotated"] < 1e-3
    assert scores["alarms"]["probe-subspace", "trap"] == 0
    assert scores["alarms"]["das", "trap"] == 1


def test_a_sparse_autoencoder_finds_tokens_and_positions():
    case = CASES["rotated"](0)
    ours, chance = (
        score_features(case, method.claims(case))["cosine"] for method in (sae_method, noise_features)
    )
    assert ours > 0.9 > 0.7 > chance


def test_sae_lens_says_why_where_it_is_not_installed():
    claims = saelens_method.claims(CASES["rotated"](0))
    if find_spec("sae_lens") is None:
        assert claims == "sae-lens is not installed; it needs a TransformerLens before 4"
    else:  # make test-tools
        assert score_features(CASES["rotated"](0), claims)["cosine"] > 0.8


DEGENERATE = {"direct": (6, 8), "tied-plateau": (2, 4), "canonical": (1, 4)}  # λ, and half the parameters


@pytest.mark.parametrize("name", DEGENERATE)
def test_half_the_hessians_rank_is_the_exact_coefficient(name):
    case = CASES[name](0)
    exact, half = DEGENERATE[name]
    assert case.coefficient is not None
    assert case.coefficient[1] == exact
    assert degeneracy.hessian_rank(case) == exact
    assert degeneracy.half_the_parameters(case) == half
    assert degeneracy.score_coefficient(case, half)["llc_error"] == pytest.approx(half / exact - 1)


def test_sampled_coefficients_are_near_the_exact_one(monkeypatch):
    monkeypatch.setattr(degeneracy, "SHORT", {"chains": 4, "burn_in": 100, "draws": 100})
    case = CASES["canonical"](0)
    assert degeneracy.sampled(case) == pytest.approx(1, abs=0.4)
    if find_spec("devinterp") is None:
        assert "pip install" in str(degeneracy.devinterp(case))
    else:
        assert "diverged" in str(degeneracy.devinterp(case))
        assert degeneracy.devinterp(CASES["direct"](0)) == pytest.approx(6, rel=0.25)
    assert degeneracy.sampled(CASES["head"](0)) == "no learning coefficient is derived in this case"


@pytest.mark.parametrize("estimate", [4.1, -4.1, float("inf"), -float("inf"), float("nan")])
def test_more_than_any_coefficient_is_no_claim(estimate):
    assert possible(4.0, 4) == 4.0
    assert "diverged" in str(possible(estimate, 4))


def test_probes_claim_what_they_measure_or_say_why_not():
    asked = ["ablation-probe", "storage-probe", "mean-ablation"]
    scores = run(asked, ["split"], seeds=1, pairs="resampled").scores.set_index(["method", "metric"])
    pearson = scores["pearson"]
    assert pearson["storage-probe", "nats"] == pytest.approx(1, abs=0.05)
    # The same intervention on other sequences.
    assert pearson["ablation-probe", "nats"] == pytest.approx(pearson["mean-ablation", "nats"], abs=0.05)
    silent = run(["storage-probe"], ["induction"], seeds=1)
    assert silent.scores["rank"].isna().all()
    assert silent.reasons["reason"][0].startswith("the source redraws its chain for every sequence")


def test_taking_a_constant_away_is_a_false_alarm():
    """The head writes the unigram: its mean is all there is, and no token changes it."""
    scores = run(["zero-ablation", "mean-ablation", "eap"], ["trap"], seeds=1).scores
    alarms = scores.set_index(["metric", "method"])["alarms"]["nats"]
    assert alarms.to_dict() == {"zero-ablation": 1, "mean-ablation": 0, "eap": 0}
