"""The belief probe on models set by hand: one that uses its belief, one that ignores it, one without."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.belief.carried import held_out
from mechmarkov.probes.belief.claims import claims, is_carried, is_used
from mechmarkov.probes.belief.constrained import carried_on
from mechmarkov.probes.belief.measure import measure
from probing_cases import P3, config_of, probe_quickly, randomise, run_of

import mechmarkov as mm
from mechmarkov.bench.circuits import hidden_belief
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import handset_config

N_CTX = 6
RRXOR = mm.HiddenMarkov.rrxor()
MODELS = {"used": {}, "not read": {"reads": False}, "not carried": {"carries": False, "reads": False}}
TWO = mm.HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[0.8, 0.2], [0.3, 0.7]])
OTHER = [[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]


@cache
def probed(name):
    model = hidden_belief(RRXOR, N_CTX, **MODELS[name])
    return probe_quickly(run_of(model, source=RRXOR), ["behaviour", "belief"], nulls=24)


def values(name):
    return {key: score.value for key, score in probed(name)["belief"].scores.items()}


@pytest.mark.parametrize("name", MODELS)
def test_all_three_models_predict_alike_and_exactly(name):
    assert probed(name)["behaviour"].scores["kl_best"].value == pytest.approx(0, abs=1e-9)


def test_a_belief_that_is_carried_and_used_is_named():
    outcome, found = probed("used")["belief"], values("used")
    assert found["belief_stream"] == "L0"
    assert found["belief_r2"] == pytest.approx(1, abs=1e-6)
    assert found["beyond_next_token"] == pytest.approx(1, abs=1e-6)
    assert found["forced_kl"] == pytest.approx(0, abs=1e-6)
    assert min(found["clean_kl"], found["random_kl"]) > 0.1
    assert outcome.scores["belief_r2"].null[2] < 0.9  # 24 fresh models
    carries = outcome.claims.first("carries_belief", status="shown")
    assert (carries.subject, carries.condition("hidden states").value) == (("L0",), 8)
    assert outcome.claims.first("follows_belief").is_shown
    assert [figure.title for figure in outcome.figures()][1] == "The geometry of belief"


def test_a_belief_that_is_carried_and_not_read_is_not_called_used():
    found = values("not read")
    assert found["belief_r2"] == pytest.approx(1, abs=1e-6)
    assert found["forced_kl"] > found["clean_kl"]
    assert probed("not read").claims.first("follows_belief").status == "excluded"


def test_a_model_that_predicts_as_well_without_the_belief_is_not_named():
    found = values("not carried")
    assert found["belief_r2"] < found["baseline_r2"] < 0.8
    assert found["beyond_next_token"] < 0
    assert probed("not carried").claims.first("carries_belief").status == "excluded"


def test_the_baseline_and_the_clean_kl_are_those_of_all_histories_weighed_by_hand():
    """R² of the best affine map from tokens and law, and KLs, summed over all sequences."""
    source, n_ctx, n = RRXOR, 3, 8
    T, E = np.array(source.transitions), np.array(source.emissions)
    pi = np.linalg.matrix_power(T @ T + T, 300)
    pi = pi[0] / pi[0].sum()
    clean = np.zeros(n)
    for x in product(range(2), repeat=n_ctx):
        weight = pi * E[:, x[0]]
        beliefs = [weight / weight.sum()]
        for token in x[1:]:
            weight = (weight @ T) * E[:, token]
            beliefs.append(weight / weight.sum())
        for belief in beliefs:
            law = belief @ T @ E
            clean += weight.sum() * (T @ E * np.log(T @ E / law)).sum(1) / n_ctx
    run = run_of(hidden_belief(source, n_ctx), source=source)
    found = probe_quickly(run, ["belief"], sequences=512)["belief"].data["clean_kl"][-1]
    np.testing.assert_allclose(found, clean, atol=0.04)  # 32 sequences of the 64 that are read


def test_where_the_next_token_tells_the_belief_the_probe_says_so():
    result = probe_quickly(run_of(hidden_belief(TWO, 4), source=TWO), ["belief"])["belief"]
    score = result.scores["beyond_next_token"]
    assert score.value is None
    assert "nothing else is left" in score.reason
    assert result.claims.first("carries_belief").condition("beyond them").holds is None


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        (mm.HiddenMarkov.mess3(), "hidden states"),
        (mm.sources.ChainMixture(chains=[P3, OTHER]), "hidden chains"),
        (mm.sources.SelectiveLag(P3, lags=[1, 2, 3]), "hidden lags"),
    ],
    ids=["mess3", "mixture", "selective lag"],
)
def test_random_models_of_every_hidden_source_are_measured_and_drawn(source, hidden):
    """A wide random model reads a belief over few tokens well, and its predictions do not follow it."""
    runs = run_of(
        randomise(HookedDecoder(config_of()), 1), randomise(HookedDecoder(config_of()), 2), source=source
    )
    outcome = probe_quickly(runs, ["belief"], steps="all")["belief"]
    assert outcome.data["r2"].dims == ("step", "stream")
    assert outcome.claims.first("carries_belief").object == (hidden,)
    assert outcome.claims.first("follows_belief").status == "excluded"
    keys = [figure.key for figure in outcome.figures()]
    assert keys[-2:] == ["R² over training", "A state is forced"]


def test_readings_are_held_out():
    """Random features, more than rows: fitted they are perfect, held out worse than the mean."""
    noise = np.random.default_rng(0)
    features, belief = noise.normal(size=(10, 4, 60)), noise.random((10, 4, 1))
    off = ((held_out(features, belief) - belief) ** 2).mean()
    assert off > belief.var()


def test_the_interval_of_a_share_is_as_wide_as_shares_of_other_sequences_vary():
    """Twice a standard deviation on either side, over 16 batches of 32: within a factor of 1.6."""
    source = mm.HiddenMarkov.mess3()
    decoder = randomise(HookedDecoder(config_of("plain", d_vocab=3, n_ctx=10)))
    run, found = run_of(decoder, source=source), []
    for seed in range(16):
        last = measure(mm.Subject.of(run, seed=seed, sequences=32)).isel(step=-1)
        found.append([last[name].values for name in ("r2", "r2_low", "r2_high")])
    r2, low, high = np.moveaxis(found, 1, 0)  # [seed, stream]
    ratio = (high - low).mean(0) / (2 * 1.96 * r2.std(0, ddof=1))
    assert ((ratio > 1 / 1.6) & (ratio < 1.6)).all(), ratio


def test_no_interval_of_an_r2_goes_beyond_one_however_few_the_sequences():
    source = mm.HiddenMarkov.mess3()
    run = run_of(randomise(HookedDecoder(config_of("plain", d_model=24, n_ctx=6)), 2), source=source)
    last = measure(mm.Subject.of(run, seed=2, sequences=6)).isel(step=-1)
    assert float(last["r2_high"].max()) == 1


def test_a_source_without_a_hidden_state_is_told_so():
    result = probe_quickly(run_of(randomise(HookedDecoder(config_of()))), ["belief"])
    assert result.skipped["belief"].startswith("nothing is hidden behind the tokens")


def test_one_sequence_cannot_be_held_out():
    result = probe_quickly(run_of(hidden_belief(TWO, 3), source=TWO), ["belief"], sequences=1)
    assert "sequences is 1, expected at least 5" in result.failed["belief"]


def test_updates_are_carried_on_by_powers_of_the_chain():
    source, tokens = mm.HiddenMarkov.mess3(x=0.1, a=0.7), np.array([[0, 2, 1, 1], [2, 0, 0, 1]])
    after_one = np.array([source.beliefs(np.array([[x]]))[0, 0] for x in range(3)])
    expected = 1 / 3 + sum(
        (after_one[tokens[:, s]] - 1 / 3) @ np.linalg.matrix_power(source.T, 3 - s) for s in range(4)
    )
    np.testing.assert_allclose(carried_on(source, tokens)[:, -1], expected, atol=1e-12)


def test_attention_of_fixed_weights_reads_no_more_than_sums_of_updates():
    """Weights that halve with each step back; the belief itself is not such a sum."""
    source, n_ctx = mm.HiddenMarkov.mess3(), 8
    decoder = HookedDecoder(handset_config(3, n_ctx, d_model=3 + 3 + n_ctx, d_head=3))
    with torch.no_grad():
        decoder.embed.W_E[:, :3] = torch.eye(3)
        decoder.get_parameter("pos_embed.W_pos")[:, 6:] = torch.eye(n_ctx)
        attn = decoder.blocks[0].attn
        attn.W_Q[0, 6:, 0] = 1
        attn.W_K[0, 6:, 0] = np.log(2) * torch.arange(n_ctx)
        attn.W_V[0, :3] = torch.eye(3)
        attn.W_O[0, :, 3:6] = torch.eye(3)
    outcome = probe_quickly(run_of(decoder, source=source), ["belief"], sequences=64)["belief"]
    found = {name: outcome.scores[name].value for name in ("attention_r2", "additive_r2")}
    assert 0.9 < found["attention_r2"] < found["additive_r2"] + 0.005 < 0.98
    assert outcome.data["carried_r2"] < found["additive_r2"] - 0.1
    sums = outcome.claims.first("carries_belief").condition("sums of one update a token")
    assert sums.value == pytest.approx(found["additive_r2"])


def test_a_belief_that_no_token_moves_is_not_read():
    """Within four tokens nothing tells which of two longer lags the next state depends on."""
    source = mm.sources.SelectiveLag([[0.2, 0.8], [0.6, 0.4]], lags=[4, 6])
    run = run_of(randomise(HookedDecoder(config_of(n_ctx=4, d_vocab=2))), source=source)
    result = probe_quickly(run, ["belief"])
    assert "belief" not in result.outcomes
    assert "the same in every context" in result.skipped["belief"]


def read(r2, *, baseline=0.5, half=0.001):
    """Of one model with one stream, what is measured of its readings."""
    beyond = 1 - (1 - r2) / (1 - baseline)
    streams = {"r2": r2, "r2_low": r2 - half, "r2_high": r2 + half, "beyond": beyond}
    found = {name: ("stream", [value]) for name, value in streams.items()}
    return xr.Dataset(found | {"baseline_r2": baseline, "best": 0})


@pytest.mark.parametrize(
    ("last", "carried"),
    [
        (read(0.902), True),
        (read(0.898), False),
        (read(0.9, half=0.01), None),
        (read(0.952, baseline=0.9), True),  # half of the tenth that is left
        (read(0.948, baseline=0.9), False),
        (read(0.95, baseline=0.9, half=0.01), None),
    ],
)
def test_a_belief_is_carried_from_an_r2_of_nine_tenths_and_half_of_what_the_next_token_leaves(last, carried):
    assert is_carried(last) is carried


@pytest.mark.parametrize(("baseline", "holds"), [(0.95, True), (0.985, True), (0.995, None)])
def test_beyond_is_asked_while_a_hundredth_is_left(baseline, holds):
    outcome = probed("not read")["belief"]
    carries, *_ = claims(outcome.data.assign(baseline_r2=baseline), outcome.scores)
    assert carries.condition("beyond them").holds is holds


def test_a_forced_state_is_believed_where_half_of_the_distance_is_gone():
    data = probed("not read")["belief"].data
    clean, random, forced = (float(data[f"{name}_kl"][-1].mean()) for name in ("clean", "random", "forced"))
    assert float(data["short_of_used"][-1, 0]) == pytest.approx(forced - 0.5 * min(clean, random))


@pytest.mark.parametrize(
    ("short", "apart", "used"),
    [
        ((-2, -3, -1), 0.0011, True),
        ((2, 1, 3), 0.0011, False),
        ((0, -1, 1), 0.0011, None),
        ((-2, -3, -1), 0.0009, None),  # all laws are one: there is nothing to follow
    ],
)
def test_a_belief_is_used_where_that_is_sure_and_laws_differ_by_a_thousandth_of_a_nat(short, apart, used):
    last = xr.Dataset({"laws_apart": apart, "short_of_used": ("estimate", list(short))})
    assert is_used(last) is used
