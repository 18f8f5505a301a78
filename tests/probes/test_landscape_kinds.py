"""Points of known kind and what looks like them: what the landscape calls each, and how intervals cover."""

import dataclasses

import numpy as np
import pytest
import torch
from mechmarkov.probes.landscape.hessian_spectrum import hessian_ends
from mechmarkov.probes.landscape.stationarity import ends_of_population
from probing_cases import run_of, subject_of
from scipy.stats import binom
from test_landscape import unigram_model

import mechmarkov as mm
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import Coordinates, symmetry_of
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table, value_table
from mechmarkov.probes import landscape
from mechmarkov.sources import Binary, Chain
from mechmarkov.theory.unigram_trap import unigram_point

FIFTY = Chain(np.random.default_rng(0).dirichlet(np.ones(50), 50))
SKEWED = Chain(np.random.default_rng(0).dirichlet(np.ones(6), 6))


def asked(run, sequences=64, seed=0):
    subject = subject_of(run, sequences=sequences, seed=seed)
    data = landscape.probe.measure(subject)
    return data, landscape.scores(data, None), landscape.verdict(data)


def table(build, source, n_ctx=8, noise=0.0):
    """The exact bigram in one path, with some noise on every weight."""
    decoder = build(torch.tensor(np.log(source.P)).float(), n_ctx=n_ctx)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return run_of(decoder, source=source)


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
    assert said.startswith("Not stuck")


@pytest.mark.parametrize(
    ("build", "noise"), [(direct_table, 1e-3), (direct_table, 3e-3), (value_table, 3e-3)]
)
def test_a_noisy_bigram_near_the_best_is_not_called_a_saddle(build, noise):
    data, scores, said = asked(table(build, SKEWED, noise=noise), sequences=16)
    assert float(data["excess"]) < 2e-3
    assert scores["kind"].value == "minimum"
    assert f"±{float(data['flat_limit']):.2g} an eigenvalue counts as zero" in said


def test_the_wrong_bigram_is_not_at_a_stationary_point():
    decoder = direct_table(torch.tensor(np.log(SKEWED.P)).float()[[1, 2, 3, 4, 5, 0]], n_ctx=8)
    _, scores, said = asked(run_of(decoder, source=SKEWED))
    assert scores["kind"].value == "not stationary"
    assert not said.startswith("Not stuck")


@pytest.mark.parametrize(("p", "tied"), [(0.2, False), (0.8, False), (0.2, True), (0.45, False)])
def test_the_unigram_of_an_untied_model_is_a_saddle_even_a_weak_one(p, tied):
    run = dataclasses.replace(unigram_model(Binary(p=p, q=p), tied), recipe=GD)
    _, scores, said = asked(run, sequences=512)
    assert scores["kind"].value == "saddle"
    low, high = scores["escape_rate"].interval
    assert 0 < low < scores["escape_rate"].value < high
    assert not said.startswith("Not stuck") or p == 0.45


def test_a_strict_minimum_has_an_interval_above_zero():
    one_state = {"embed.W_E": [[0, 1], [0, 4]], "unembed.b_U": [[0, 1]]}
    run = dataclasses.replace(unigram_model(Binary(p=0.7, q=0.8), tied=True), trainable=one_state)
    data, scores, said = asked(run, sequences=512)
    assert scores["kind"].value == "minimum"
    assert scores["hessian_min"].interval[0] > 0
    assert not landscape.sentences.is_flat(data)
    assert not said.startswith("Not stuck")  # a minimum, and a bad one
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
    coordinates = Coordinates.of(run)
    symmetry = symmetry_of(run, coordinates)
    draws, hits = 30, 0
    for seed in range(draws):
        subject = subject_of(run, sequences=32, seed=seed)
        halves = (subject.batch.part(slice(start, start + 16)) for start in (0, 16))
        surface, fresh = (loss_surface(subject, population_of(subject, half), coordinates) for half in halves)
        ends = hessian_ends(surface.hessian_at(0), symmetry, low=1)
        found = ends_of_population(surface, fresh, 0, ends, resolution=0.0)[0]
        hits += found.low <= truth <= found.high
    assert hits >= binom.ppf(1e-3, draws, 0.95)
