"""Learning coefficients: the sampler against exact values, the probe against models where they are known."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.degeneracy import calibrate, is_calibrated
from models_by_hand import LOG_P
from probing_cases import CHAIN, claims_of, config_of, probe_quickly, randomise, run_of, says

import mechmarkov as mm
from mechmarkov.curvature.learning_coefficient import learning_coefficient
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import degeneracy
from mechmarkov.report.words.sentences import sentence
from mechmarkov.theory.learning_coefficient import of_bigram_table, of_tied_plateau

N_BETA = 8_000.0


def test_a_gaussian_bowl_has_the_coefficient_of_its_integral():
    """E[L] over exp(-nβ L - γ w²/2) by quadrature, a direction at a time: with γ, not half of a direction."""
    scale, gamma = np.array([0.5, 2.0, 0.02, 0.0]), 40.0
    w = np.linspace(-4, 4, 400_001)
    expected = 0.0
    for each in scale:
        weight = np.exp(-N_BETA * each * w**2 - gamma / 2 * w**2)
        expected += N_BETA * (each * w**2 * weight).sum() / weight.sum()
    bowl = torch.tensor(scale)
    found = learning_coefficient(
        lambda x: (bowl * x**2).sum(-1), torch.zeros(4), n_beta=N_BETA, seed=0, localisation=gamma, draws=2000
    )
    assert found.estimates.mean() == pytest.approx(expected, rel=0.08)


def test_a_singular_loss_has_less_than_half_a_direction():
    """w⁴ has 1/4 (Watanabe 2009), by its integral over the prior too."""
    found = learning_coefficient(lambda x: (x**4).sum(-1), torch.zeros(1), n_beta=N_BETA, seed=0, draws=2000)
    assert found.estimates.mean() == pytest.approx(0.25, rel=0.12)


def test_the_canonical_line_without_an_embedding_has_one():
    """e = 0: e² and the offset count, the MLP's w does not (Makkuva et al. 2024's coordinates)."""
    p, q = 0.7, 0.8
    softplus = torch.nn.functional.softplus

    def losses(x):
        e, w, c = x.T
        s = e**2 * (1 + 2 * w * w.abs())
        after_0 = p * softplus(-c) + (1 - p) * softplus(c)
        after_1 = (1 - q) * softplus(-s - c) + q * softplus(s + c)
        return (q * after_0 + p * after_1) / (p + q)

    at = torch.tensor([0.0, 0.5, np.log(p / q)])
    # With this localisation w stays on its side of -1/√2.
    found = learning_coefficient(losses, at, n_beta=N_BETA, seed=0, localisation=25.0)
    assert found.estimates.mean() == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("K", [2, 4])
def test_the_calibration_finds_the_bigram_table(K):
    P = np.random.default_rng(1).dirichlet(np.ones(K), size=K)
    pi = np.linalg.matrix_power(P, 500)[0]
    assert calibrate(P, pi, N_BETA).mean() == pytest.approx(of_bigram_table(K), rel=0.25)


@pytest.fixture(autouse=True, scope="module")
def _short_chains():
    """Fewer and shorter chains than by default: λ to a quarter, half the parameters is far."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CHAINS": 4, "BURN_IN": 100, "DRAWS": 140}.items():
            patch.setattr(degeneracy, name, value)
        yield


@pytest.fixture(scope="module")
def table():
    """Two steps: no table yet, and the exact one."""
    models = (direct_table(scores, n_ctx=4) for scores in (0 * LOG_P, LOG_P))
    run = run_of(*models, source=CHAIN, trainable={"unembed.W_U": None})
    return probe_quickly(run, ["degeneracy"], sequences=256, steps="all")["degeneracy"]


def test_a_table_that_is_trained_alone_is_named_with_its_exact_value(table):
    outcome = table
    assert outcome.scores["llc_exact"].value == 3
    assert outcome.scores["llc"].value == pytest.approx(3, rel=0.25)
    assert outcome.scores["llc"].null == 4.5
    assert outcome.scores["calibrated"].value is True
    # What the calibration misses of the same table is in the interval.
    low, high = outcome.scores["llc"].interval
    assert low <= 3 <= high
    by_a_sixth = outcome.data.assign(calibration=0 * outcome.data["calibration"] + 2.5)
    wider = degeneracy.scores(by_a_sixth, None)["llc"]
    assert wider.interval[1] - wider.interval[0] > 2 * wider.value / 6
    exactly = outcome.data.assign(calibration=0 * outcome.data["calibration"] + 3)
    ends = degeneracy.scores(exactly, None)["llc"].interval
    assert wider.interval[0] < ends[0] < ends[1] < wider.interval[1]
    assert outcome.claims.first("has_learning_coefficient").condition("exactly").value == 3
    assert outcome.figures()[0].title == "The learning coefficient"


@pytest.mark.parametrize(("odds", "exact"), [([8.0, 7.0], 2), ([1.0, 1.0], None)])
def test_the_tied_plateau_is_counted_where_it_is_a_minimum_and_the_bias_is_the_unigrams(odds, exact):
    d, P = 3, np.array([[0.3, 0.7], [0.8, 0.2]])
    shape = {"n_layers": 1, "n_heads": 1, "d_model": d, "n_ctx": 4, "d_head": 2, "d_vocab": 2, "tied": True}
    model = HookedDecoder(config_of(**shape, positional_embedding_type="none"))
    with torch.no_grad():
        model.get_parameter("unembed.b_U").copy_(torch.tensor(odds).log())
    run = run_of(model, source=mm.Chain(P), trainable={"embed.W_E": None, "unembed.b_U": None})
    outcome = probe_quickly(run, ["degeneracy"], sequences=64)["degeneracy"]
    assert of_tied_plateau(P, np.array([8, 7]) / 15, d) == 2
    assert outcome.scores["llc_exact"].value == exact
    exactly = outcome.claims.first("has_learning_coefficient").condition("exactly")
    assert (exactly is not None) == bool(exact)
    if exact:
        assert outcome.scores["llc"].value == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize(("below", "exact"), [(-3.0, 1.0), (3.0, None)])
def test_the_canonical_line_of_a_decoder_counts_where_it_is_a_minimum(below, exact):
    """Tied embeddings of width 1 at 0; the MLP's slope below 0 is 1 + 9 or 1 - 9, above it 1 + 9."""
    shape = {"n_layers": 1, "n_heads": 1, "d_model": 1, "n_ctx": 4, "d_head": 1, "d_vocab": 2, "tied": True}
    mlp = {"attn_only": False, "d_mlp": 2, "act_fn": "relu", "normalization_type": None}
    model = HookedDecoder(config_of(**shape, **mlp, positional_embedding_type="none"))
    values = {"unembed.b_U": [np.log(8), np.log(7)], "W_in": [[3.0, -3.0]], "W_out": [[3.0], [below]]}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = next((value for end, value in values.items() if name.endswith(end)), 0.0)
            parameter.copy_(torch.tensor(value))
    trained = ("embed.W_E", "unembed.b_U", "blocks.0.mlp.W_in", "blocks.0.mlp.W_out")
    source = mm.Chain([[0.3, 0.7], [0.8, 0.2]])
    run = run_of(model, source=source, trainable=dict.fromkeys(trained))
    scores = probe_quickly(run, ["degeneracy"], sequences=64)["degeneracy"].scores
    assert scores["llc_exact"].value == exact
    if exact:
        assert scores["llc"].value == pytest.approx(exact, rel=0.25)
    else:
        assert scores["llc"].value < 0


def test_a_saddle_has_no_exact_value_and_is_said_to_fall():
    P = np.array([[0.8, 0.2], [0.3, 0.7]])
    assert of_tied_plateau(P, np.array([0.6, 0.4]), 3) is None


def test_the_plateaus_form_is_the_hessian_of_the_loss():
    """The rank of the second derivatives at E = 0, by torch, is twice the coefficient."""
    d, P = 2, torch.tensor([[0.1, 0.5, 0.4], [0.6, 0.1, 0.3], [0.3, 0.6, 0.1]], dtype=torch.float64)
    pi = torch.linalg.matrix_power(P, 300)[0]

    def loss(x):
        E, b = x[: 3 * d].reshape(3, d), x[3 * d :]
        return -(pi[:, None] * P * (E @ E.T + b).log_softmax(-1)).sum()

    at = torch.cat([torch.zeros(3 * d, dtype=torch.float64), pi.log()])
    eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, at))
    assert eigenvalues.min() > -1e-12
    assert int((eigenvalues > 1e-9).sum()) == 2 * of_tied_plateau(P.numpy(), pi.numpy(), d) == (d + 1) * 2


def test_an_estimate_far_from_the_table_is_flagged(table):
    data = table.data
    assert is_calibrated(data)
    assert not is_calibrated(
        data.assign(calibration=1.25 * data["calibration_exact"] + 0 * data["calibration"])
    )


def test_devinterp_stands_beside_it_or_says_why_not(table):
    scores = table.scores
    if find_spec("devinterp") is None:
        assert "pip install 'mechmarkov[devinterp]'" in scores["devinterp"].reason
        assert table.claims.first("has_learning_coefficient").condition("devinterp gives") is None
    else:
        assert 0 < scores["devinterp"].value < 4.5
        assert scores["devinterp"].value == pytest.approx(scores["devinterp_calibration"].value)  # one table


@pytest.mark.parametrize(("of_table", "calibrated"), [(2.9, True), (1.79, False)])
def test_devinterp_is_held_against_the_known_table(table, of_table, calibrated):
    data = table.data.assign(devinterp=2.5, devinterp_calibration=of_table)
    data.attrs.pop("no_devinterp", None)
    told = claims_of(degeneracy.probe, data).first("has_learning_coefficient")
    assert told.condition("devinterp gives").value == 2.5
    theirs = told.condition("devinterp's estimate of that table")
    assert (theirs.value, theirs.holds) == (of_table, calibrated)
    found = degeneracy.scores(data, None)
    assert (found["devinterp"].value, found["devinterp"].null) == (2.5, 4.5)
    assert (found["devinterp_calibration"].value, found["devinterp_calibration"].null) == (of_table, 3)


def test_devinterp_has_no_loss_of_one_position():
    model = direct_table(LOG_P, n_ctx=4)
    run = run_of(model, source=CHAIN, objective=Objective(read="last"), trainable={"unembed.W_U": None})
    reason = probe_quickly(run, ["degeneracy"], sequences=64)["degeneracy"].scores["devinterp"].reason
    assert reason == "devinterp takes the loss of every position, and here one is read"


def test_too_many_parameters_are_refused():
    large = run_of(randomise(HookedDecoder(config_of(d_model=40))))
    why = probe_quickly(large, ["degeneracy"], sequences=8).skipped["degeneracy"]
    assert "expected at most 512" in why


def test_over_training_it_is_set_beside_the_bigrams_event(table):
    assert float(table.data["llc"][0].mean()) < 0  # uniform predictions: the loss falls from there
    assert np.isnan(table.data["exact"][0])
    rise = table.claims.first("came_by")
    assert (rise.status, rise.interval) == ("shown", (0, 10))
    assert table.figures()[1].title == "The learning coefficient over training"


@pytest.mark.parametrize(("later", "rises"), [(-4.0, False), (1.0, False), (8.0, True)])
def test_only_a_rise_beyond_the_chains_error_is_said_to_be_one(table, later, rises):
    chains = xr.DataArray([-3.0, -1.0, 1.0, 3.0], dims="chain")
    llc = 0 * table.data["llc"] + chains + later * (table.data["step"] == 10)
    rise = claims_of(degeneracy.probe, table.data.assign(llc=llc)).first("came_by")
    assert rise.is_shown == rises


def test_no_derivation_covers_a_part_of_a_table_or_a_norm():
    """One row has (K - 1) / 2, not the table's K (K - 1) / 2; behind a norm nothing is small."""
    run = run_of(direct_table(LOG_P, n_ctx=4), source=CHAIN, trainable={"unembed.W_U": [[0, 1], [0, 3]]})
    row = probe_quickly(run, ["degeneracy"], sequences=256)["degeneracy"]
    assert row.scores["llc"].value == pytest.approx(1, rel=0.3)
    assert row.scores["llc_exact"].value is None
    assert row.claims.first("has_learning_coefficient").condition("exactly") is None
    shape = {"n_layers": 1, "n_heads": 1, "d_model": 3, "n_ctx": 4, "d_head": 2, "d_vocab": 2, "tied": True}
    model = HookedDecoder(config_of(**shape, normalization_type="LN", positional_embedding_type="none"))
    with torch.no_grad():
        for name in ("embed.W_E", "blocks.0.attn.W_O", "blocks.0.attn.b_O"):
            model.get_parameter(name).zero_()
        model.get_parameter("unembed.b_U").copy_(torch.tensor([8.0, 7.0]).log())
    trained = {"embed.W_E": None, "unembed.b_U": None}
    run = run_of(model, source=mm.Chain([[0.3, 0.7], [0.8, 0.2]]), trainable=trained)
    assert probe_quickly(run, ["degeneracy"], sequences=64)["degeneracy"].scores["llc_exact"].value is None


def test_an_exact_value_is_told_as_the_coefficient(table):
    """The estimate was told as the coefficient, with an interval that need not hold the exact value."""
    data = table.data.assign(llc=0.8 * table.data["llc"])
    claim = claims_of(degeneracy.probe, data).first("has_learning_coefficient")
    assert says(sentence(claim), "exactly 3,", "chains give 2")
