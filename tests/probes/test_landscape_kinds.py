"""Points of known kind and what looks like them: what the landscape calls each, and how intervals cover."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from mechmarkov.probes.landscape.hessian_spectrum import hessian_ends
from mechmarkov.probes.landscape.stationarity import ends_of_population
from models_by_hand import unigram_model
from probing_cases import ask, run_of, subject_of
from scipy.stats import binom

import mechmarkov as mm
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import symmetry_of
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.counting_mamba import counting_mamba
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import landscape
from mechmarkov.report.words.sentences import sentence
from mechmarkov.sources import Binary, Chain
from mechmarkov.theory.unigram_trap import unigram_point

FIFTY = Chain(np.random.default_rng(0).dirichlet(np.ones(50), 50))
SKEWED = Chain(np.random.default_rng(0).dirichlet(np.ones(6), 6))

asked = partial(ask, landscape.probe)


def table(build, source, n_ctx=8, noise=0.0):
    """The exact bigram in one path, with some noise on every weight."""
    decoder = build(torch.tensor(np.log(source.P)).float(), n_ctx=n_ctx)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return run_of(decoder, source=source)


def pulled_back(act_fn: str) -> HookedDecoder:
    """At the unigram point, with an MLP that gives `-4 (v . x) v` for the direction v of all embeddings."""
    config = DecoderConfig(
        n_layers=1,
        n_heads=1,
        d_model=4,
        d_head=4,
        n_ctx=8,
        d_vocab=2,
        d_mlp=8,
        act_fn=act_fn,
        normalization_type=None,
        tied=True,
        positional_embedding_type="none",
    )
    model, v = HookedDecoder(config), torch.ones(4) / 2
    with torch.no_grad():
        model.get_parameter("unembed.b_U").copy_(torch.tensor(np.log(TURNING.pi)))
        model.get_parameter("blocks.0.mlp.W_in").copy_(torch.stack([v, -v] * 4, 1))
        model.get_parameter("blocks.0.mlp.W_out").copy_(-torch.stack([v, -v] * 4, 0))
    return model


TURNING = Binary(p=0.5, q=0.8)  # theory calls its unigram point a minimum, of the straight path alone


def test_at_the_kink_of_a_relu_nothing_is_decided_and_theory_of_one_path_is_not_asked():
    """The loss has a curvature of -0.85 there on either side, and autograd says 0."""
    _, scores, said = asked(run_of(pulled_back("relu"), source=TURNING), sequences=128)
    assert scores["kind"].value == "undecided"
    point = said.first("is_at")
    assert (point.status, point.object) == ("open", ("minimum", "saddle"))
    assert point.condition("at a kink") is not None
    _, scores, said = asked(run_of(pulled_back("gelu"), source=TURNING), sequences=128)
    assert scores["kind"].value == "saddle"
    assert scores["hessian_min"].value == pytest.approx(-0.85, abs=0.02)
    assert said.first("is_at").condition("as predicted") is None


def test_a_convolution_at_the_kink_of_a_relu_has_no_curvature_and_next_to_it_has():
    """Differences over the kink once made the largest eigenvalue lower than the smallest."""
    source, objective = Binary(p=0.2, q=0.3), Objective(kind="raw_log")
    model = counting_mamba(2, 12)
    run = run_of(model, source=source, objective=objective)
    _, scores, said = asked(run, sequences=64)
    assert (scores["hessian_min"].value, scores["hessian_max"].value) == (None, None)
    point = said.first("is_at") or said.first("moves")
    assert point.condition("at a kink") is not None
    assert point.relation == "moves" or point.value is None
    with torch.no_grad():
        for side in "VKQ":
            model.get_parameter(f"blocks.0.attn.b_conv_{side}").fill_(0.01)
    _, scores, said = asked(run_of(model, source=source, objective=objective), sequences=64)
    assert scores["hessian_min"].value < scores["hessian_max"].value
    point = said.first("is_at") or said.first("moves")
    assert point.condition("at a kink") is None


@pytest.mark.parametrize(("kind", "unit"), [("squared", "squared score"), ("raw_log", "nats")])
def test_the_landscape_of_a_squared_loss_is_not_in_nats(kind, unit):
    """Its gradient is that of a loss in squared scores: scores at P, less a tenth of it."""
    source = Binary(p=0.2, q=0.3)
    run = run_of(direct_table(torch.tensor(0.9 * source.P).float(), 8), source=source)
    data, scores, said = asked(dataclasses.replace(run, objective=Objective(kind=kind)))
    assert scores["grad_norm"].unit == f"{unit} / weight"
    assert scores["hessian_max"].unit == f"{unit} / weight²"
    assert data["nats_away"].attrs["unit"] == unit
    assert data["excess"].attrs["unit"] == "nats"
    point = said.first("is_at") or said.first("moves")
    away = point.condition("from the stationary point")
    assert (point.unit if away is None else away.unit) == unit


def test_a_long_gentle_slope_of_a_convex_loss_is_no_minimum():
    """Logistic regression on tiny embeddings: the minimum is 0.3 nats lower, and far away."""
    source = Chain([[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]])
    model = HookedDecoder(
        DecoderConfig(
            n_layers=1, n_heads=1, d_model=8, d_head=2, n_ctx=16, d_vocab=3, normalization_type=None
        )
    )
    with torch.no_grad():
        model.embed.W_E.normal_(std=0.005, generator=torch.Generator().manual_seed(0))
        model.get_parameter("unembed.b_U").copy_(torch.tensor(np.log(source.pi)))
    run = run_of(model, source=source, trainable=dict.fromkeys(("unembed.W_U", "unembed.b_U")))
    data, scores, said = asked(run, sequences=128)
    assert scores["kind"].value == "not stationary"
    assert 0.1 < float(data["descent"]) < 0.31
    moves = said.first("moves", status="shown")
    assert moves.value == float(data["descent"])
    assert moves.condition("steps of L-BFGS") is not None


@pytest.mark.parametrize("sharp", [8.0, 20.7])
def test_where_the_law_has_zeros_no_point_is_stationary(sharp):
    source = Chain(np.roll(np.eye(4), 1, axis=1))
    logits = torch.tensor(np.where(source.P > 0, 0.0, -sharp)).float()
    _, scores, said = asked(run_of(direct_table(logits, 12), source=source))
    assert scores["kind"].value == "not stationary"
    assert said.first("moves").condition("the law has zeros") is not None
    only_bias = run_of(direct_table(logits, 12), source=source, trainable={"unembed.b_U": None})
    _, scores, said = asked(only_bias)  # what is trained can do nothing about it
    assert scores["kind"].value in ("minimum", "undecided")
    assert not said.where("moves")


GD = {"optimiser": {"kind": "gd", "lr": 1.0}}
EMBEDDING = {"embed.W_E": None, "unembed.b_U": None}


@pytest.mark.parametrize(
    ("build", "source", "sequences"),
    [(direct_table, SKEWED, 8), (mlp_table, SKEWED, 8), (value_table, SKEWED, 8), (value_table, FIFTY, 16)],
)
def test_an_exact_bigram_is_a_minimum_however_few_the_sequences(build, source, sequences):
    data, scores, said = asked(table(build, source), sequences)
    assert scores["kind"].value == "minimum"
    assert float(data["excess"]) < 1e-9
    low, high = scores["hessian_min"].interval
    scale = scores["hessian_max"].value
    assert low > -1e-3 * scale  # every sample's Hessian is positive at an exact optimum
    assert high >= 0
    assert said.first("is_at").condition("near the best").holds


@pytest.mark.parametrize(
    ("build", "noise"), [(direct_table, 1e-3), (direct_table, 3e-3), (value_table, 3e-3)]
)
def test_a_noisy_bigram_near_the_best_is_not_called_a_saddle(build, noise):
    data, scores, said = asked(table(build, SKEWED, noise=noise), sequences=16)
    assert float(data["excess"]) < 2e-3
    assert scores["kind"].value == "undecided"  # noise bends a flat direction down, by an interval below zero
    point = said.first("is_at", status="open")
    assert scores["hessian_min"].interval[1] < 0
    assert point.condition("near the best").holds


def test_the_wrong_bigram_is_not_at_a_stationary_point():
    decoder = direct_table(torch.tensor(np.log(SKEWED.P)).float()[[1, 2, 3, 4, 5, 0]], n_ctx=8)
    _, scores, said = asked(run_of(decoder, source=SKEWED))
    assert scores["kind"].value == "not stationary"
    assert said.first("moves").condition("near the best").holds is False


@pytest.mark.parametrize(("p", "tied"), [(0.2, False), (0.8, False), (0.2, True), (0.45, False)])
def test_the_unigram_of_an_untied_model_is_a_saddle_even_a_weak_one(p, tied):
    run = dataclasses.replace(unigram_model(Binary(p=p, q=p), tied), recipe=GD)
    _, scores, said = asked(run, sequences=512)
    assert scores["kind"].value == "saddle"
    low, high = scores["escape_rate"].interval
    assert 0 < low < scores["escape_rate"].value < high
    assert said.first("is_at", object="saddle").condition("near the best").holds == (p == 0.45)


def test_a_strict_minimum_has_an_interval_above_zero():
    one_state = {"embed.W_E": [[0, 1], [0, 4]], "unembed.b_U": [[0, 1]]}
    run = dataclasses.replace(unigram_model(Binary(p=0.7, q=0.8), tied=True), trainable=one_state)
    data, scores, said = asked(run, sequences=512)
    assert scores["kind"].value == "minimum"
    assert scores["hessian_min"].interval[0] > 0
    point = said.first("is_at", status="shown")
    assert point.condition("flat directions") is None
    assert point.condition("near the best").holds is False  # a minimum, and a bad one
    assert float(data["excess"]) == pytest.approx(
        run.source.unigram_entropy - run.source.entropy_rate, rel=0.05
    )


def test_few_sequences_are_refused_where_they_are_a_sample():
    model = unigram_model(Binary(p=0.2, q=0.3), False)
    _, scores, _ = asked(model, sequences=8)
    assert scores["kind"].value in ("saddle", "undecided")
    with pytest.raises(ValueError, match=r"^sequences is 7, expected at least 8"):
        asked(model, sequences=7)
    _, scores, _ = asked(mm.example("trap"), sequences=1)
    assert scores["hessian_min"].interval is None


@pytest.mark.repeated
def test_intervals_cover_the_populations_smallest_eigenvalue():
    source = Chain([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.15, 0.6]])
    run = dataclasses.replace(unigram_model(source, tied=True), trainable=EMBEDDING)
    truth = float(unigram_point(np.array(source.P), np.array(source.pi), tied=True).embedding[0])
    symmetry = symmetry_of(run)
    draws, hits = 30, 0
    for seed in range(draws):
        subject = subject_of(run, sequences=32, seed=seed)
        halves = (subject.batch.part(slice(start, start + 16)) for start in (0, 16))
        surface, fresh = (loss_surface(subject, population_of(subject, half)) for half in halves)
        ends = hessian_ends(surface.hessian_at(0), symmetry, low=1)
        found = ends_of_population(surface, fresh, 0, ends, resolution=0.0)[0]
        hits += found.low <= truth <= found.high
    assert hits >= binom.ppf(1e-3, draws, 0.95)


@pytest.mark.parametrize(("noise", "sequences"), [(0.08, 64), (0.1, 64), (0.1, 128)])
def test_next_to_a_saddle_a_minimum_is_excluded(noise, sequences):
    """Sampling hides whether the gradient is zero, and not that the curvature is negative.

    It was told that "a minimum, a saddle or neither is open", with an eigenvalue of −0.19 (−0.194 to −0.18).
    """
    source = Chain([[0.75, 0.15, 0.1], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
    model = direct_table(torch.zeros(3, 3), n_ctx=6)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(noise * torch.randn(parameter.shape, generator=generator))
        model.get_parameter("unembed.b_U").copy_(torch.tensor(source.pi).log())
    data, _, claims = asked(run_of(model, source=source), sequences=sequences)
    point = claims.first("is_at") or claims.first("moves")
    assert float(data["smallest"].sel(end="high")) < -float(data["least_curvature"])
    assert "minimum" not in point.object
    if point.status == "open":
        assert point.object == ("saddle", "neither")
        assert "saddle or no stationary point is open" in sentence(point)
