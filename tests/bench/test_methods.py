"""Methods of the benchmark: what each must find, and what it is known to miss."""

from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

import mechmarkov as mm
from mechmarkov.bench import CASES, case_of, degeneracy, lenses, methods, run
from mechmarkov.bench.beliefs import belief_probe, linear_probe
from mechmarkov.bench.features import noise_features, sae_method, saelens_method, score_features
from mechmarkov.bench.patching import edge_effects, node_effects
from mechmarkov.bench.subspaces import probe_subspace
from mechmarkov.curvature.devinterp import possible
from mechmarkov.models.constructions.lookup_tables import handset_config
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise


def losses(law, scores):
    """Cross-entropy of each prediction, in numpy."""
    return -(law * (scores - np.log(np.exp(scores).sum(-1, keepdims=True)))).sum(-1)


def test_first_order_attribution_is_exact_where_the_corruption_is_small():
    case = CASES["induction"](0)
    small = 1e-7
    for name, value in case.differences.items():
        case.differences[name] = small * value
    clean = case.outputs(case.clean)
    for name, value in clean.items():
        case.corrupt_outputs[name] = value + case.differences[name]
    for claims, effects in (
        (methods.attribution_patching(case), node_effects(case)),
        (methods.edge_attribution(case), edge_effects(case)),
        (methods.edge_attribution(case, steps=2), edge_effects(case)),
    ):
        claimed = np.array([claims[name] for name in effects.names])
        # What is left is of second order: 1e-14 of a curvature of some hundred, as attention is sharp.
        np.testing.assert_allclose(claimed, effects.value, rtol=1e-3, atol=1e-12)
        assert np.abs(effects.value).max() > 1e-8


@pytest.mark.parametrize("name", ["direct", "head", "mlp"])
def test_integrated_gradients_are_complete_along_a_single_path(name):
    """The mean gradient on the line times its length is the whole change (Sundararajan et al. 2017)."""
    case = CASES[name](2)
    claims, exact = methods.edge_attribution(case, steps=20), edge_effects(case)
    for edge, value in exact.as_claims().items():
        assert claims[edge] == pytest.approx(value, abs=0.01 * exact.value.max()), edge


@pytest.mark.parametrize("name", ["split", "cancel", "backup"])
def test_acdc_keeps_the_circuit_and_nothing_else(name):
    case = CASES[name](1)
    exact = edge_effects(case)
    kept = {edge for edge, value in methods.acdc(case).items() if value > 0}
    assert kept == {edge for edge, inside in zip(exact.names, exact.in_circuit, strict=True) if inside}


def test_zero_ablation_misses_a_head_that_has_a_backup_and_resampling_finds_it():
    case = CASES["backup"](0)
    assert abs(methods.ablation(case, "zero")["L0H0"]) < 1e-6
    assert methods.ablation(case, "resample")["L0H0"] > 0.1


def test_attribution_has_a_perfect_auroc_and_the_wrong_sign_on_an_induction_pair():
    scores = run(["eap"], ["induction"], seeds=1).scores
    assert float(scores["auroc"].mean()) == 1
    assert float(scores["pearson"].max()) < 0


def test_the_belief_probe_finds_the_belief_and_names_none_where_there_is_none():
    found = run([belief_probe, linear_probe], ["belief", "no-belief", "direct"], seeds=1)
    ours, theirs = (found.scores.sel(method_name=name, seed=0) for name in ("belief-probe", "linear-probe"))
    for name in ("belief_error", "angle", "forced"):
        assert float(ours[name].sel(case="belief")) == pytest.approx(0, abs=1e-3)
        assert 0.01 < float(theirs[name].sel(case="belief")) < 0.5
    assert float(ours["alarms"].sel(case="no-belief")) == 0
    assert float(theirs["alarms"].sel(case="no-belief")) == 0
    said = found.reasons.set_index(["method", "case"])["reason"]
    assert "nowhere selective" in said["linear-probe", "no-belief"]
    assert "does not carry the belief" in said["belief-probe", "no-belief"]
    assert said["linear-probe", "direct"] == "nothing is hidden behind the tokens of this case"
    assert found.scores["belief_error"].sel(case="direct").isnull().all()


def test_a_random_model_is_not_said_to_hold_a_belief():
    """It mixes tokens of a short history, and a wide stream tells much of them."""
    source = mm.HiddenMarkov.rrxor()
    for seed in range(3):
        model = HookedDecoder(handset_config(2, 6, d_model=16, d_head=8, d_mlp=32))
        initialise(model, [seed], std=0.5)
        case = case_of("random", "", model, source, seed=seed, predictor="forward_filter", carries=False)
        assert "nowhere selective" in linear_probe.claims(case)


def test_a_lens_says_what_each_node_adds_to_what_the_stream_predicts():
    case = CASES["cancel"](0)
    P = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    log, law = np.log(P[case.clean.numpy()]), P[case.clean.numpy()]
    # The direct path is the table, the first head adds five times it, the second takes that back.
    after = [losses(law, share * log).mean() for share in (0, 1, 6, 1)]
    claims = lenses.logit_lens(case)
    assert list(claims.values()) == pytest.approx([a - b for a, b in pairwise(after)], abs=1e-5)
    assert list(claims) == ["embed", "L0H0", "L0H1"]


def test_a_tuned_lens_reads_the_bigram_in_the_embedding_that_the_logit_lens_does_not():
    case = CASES["mlp"](0)
    P = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    law = P[case.clean.numpy()]
    claims = lenses.tuned_lens(case)
    # All a constant can say is the output's mean; an affine map of one-hot tokens says all of it.
    output = P[case.corrupt.numpy()].mean((0, 1))
    whole = losses(law, np.log(output)).mean() - losses(law, np.log(law)).mean()
    assert claims["embed"] == pytest.approx(whole, abs=5e-3)
    assert abs(claims["L0.mlp"]) < 5e-3
    assert lenses.logit_lens(case)["embed"] == pytest.approx(0, abs=1e-9)
    assert "not a softmax" in lenses.tuned_lens(CASES["bundled-walk"](0))


@pytest.mark.skipif(version("transformer-lens")[0] == "3", reason="DAS came with TransformerLens 4.3")
def test_das_finds_the_subspace_that_is_read_and_none_where_nothing_is():
    scores = run(["das", "noise-subspaces"], ["rotated", "plateau"], seeds=1).scores.isel(seed=0)
    ours, chance = (scores.sel(method_name=name) for name in ("das", "noise-subspaces"))
    for name, most in {"forced": 0.1, "angle": 0.5}.items():
        assert float(ours[name].sel(case="rotated")) < min(
            most, 0.7 * float(chance[name].sel(case="rotated"))
        )
    assert ours["alarms"].sel(case="plateau") == 0
    assert chance["alarms"].sel(case="plateau") == 1


@pytest.mark.skipif(version("transformer-lens")[0] == "3", reason="controls came with TransformerLens 4.3")
def test_a_linear_probe_finds_the_subspace_and_none_in_a_trap_where_das_does():
    scores = run([probe_subspace, "das"], ["rotated", "trap"], seeds=1).scores.isel(seed=0)
    probe, search = (scores.sel(method_name=name) for name in ("probe-subspace", "das"))
    assert float(probe["angle"].sel(case="rotated")) < 1e-3
    assert float(probe["forced"].sel(case="rotated")) < 1e-3
    assert (probe["alarms"].sel(case="trap"), search["alarms"].sel(case="trap")) == (0, 1)


def test_a_sparse_autoencoder_finds_tokens_and_positions_in_a_stream_without_axes():
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
def test_half_the_rank_of_the_hessian_is_the_coefficient_of_these_cases_and_half_the_parameters_is_not(name):
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
    found = run(["ablation-probe", "storage-probe", "mean-ablation"], ["split"], seeds=1)
    pearson = found.table("pearson")
    assert pearson.loc["storage-probe", "split"] == pytest.approx(1, abs=0.05)
    # The same intervention on other sequences.
    assert pearson.loc["ablation-probe", "split"] == pytest.approx(
        pearson.loc["mean-ablation", "split"], abs=0.05
    )
    silent = run(["storage-probe"], ["induction"], seeds=1)
    assert np.isnan(silent.table("pearson").loc["storage-probe", "induction"])
    (reason,) = silent.reasons["reason"]
    assert reason.startswith("the source redraws its chain for every sequence")


def test_in_a_trap_a_method_that_takes_the_constant_away_gives_a_false_alarm():
    """The head writes the unigram: its mean is all there is, and no token changes it."""
    scores = run(["zero-ablation", "mean-ablation", "eap"], ["trap"], seeds=1).scores["alarms"]
    assert scores.values.ravel().tolist() == [1, 0, 0]
