"""Loss, gradient and curvature against the decoder itself, differences and the dense Hessian."""

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch
from mechmarkov.probes.landscape.hessian_spectrum import (
    LANCZOS_TOLERANCE,
    hessian_ends,
    outside_basis,
    outside_size,
)
from mechmarkov.probes.landscape.stationarity import FLAT_CURVATURE, judge, nats_away
from models_by_hand import random_walk_run
from probing_cases import RAW_LOG, random_run, run_of, subject_of

import mechmarkov as mm
from mechmarkov.curvature import loss_surface as surfaces
from mechmarkov.curvature import population as populations
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import symmetry_of
from mechmarkov.objectives import Objective
from mechmarkov.sources import Binary, Chain, Circle

# Few enough weights for a dense Hessian by one product a weight.
TINY = {"n_layers": 1, "n_heads": 1, "d_model": 4, "d_head": 2, "n_ctx": 4}

SHAPES = [
    "plain",
    "LN and MLP",
    "RMSPre, tied",
    "shortformer",
    "relative",
    "relative bias",
    "window",
    "Qwen3",
    "GPT-NeoX",
]


def surface_of(run, sequences=16):
    subject = subject_of(run, sequences=sequences)
    return loss_surface(subject), symmetry_of(run)


def loss_by_the_decoder(run, surface, step):
    decoder = run.model(step=step).double()
    tokens, law = (x.flatten(0, 1) for x in (surface.population.tokens, surface.population.law))
    return run.objective.expected_loss(decoder(tokens)[:, surface.population.read], law).mean()


@pytest.mark.parametrize(
    ("shape", "objective"),
    [
        *((shape, Objective()) for shape in SHAPES),
        *product(("plain", "LN and MLP"), (RAW_LOG, Objective(kind="squared", read="last"))),
    ],
)
def test_loss_and_gradient_are_the_decoders_own(shape, objective):
    run = random_run(shape, n_steps=2, objective=objective)
    surface, _ = surface_of(run)
    gradients = surface.gradients().mean(1)
    for member, step in enumerate((0, 10)):
        decoder = run.model(step=step).double()
        tokens, law = (x.flatten(0, 1) for x in (surface.population.tokens, surface.population.law))
        loss = run.objective.expected_loss(decoder(tokens)[:, surface.population.read], law).mean()
        loss.backward()
        own = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in decoder.named_parameters()}
        assert surface.losses(surface.thetas)[member].item() == pytest.approx(loss.item(), nan_ok=True)
        assert torch.allclose(gradients[member], surface.coordinates.flatten(own), equal_nan=True)


def test_another_activation_lasts_for_one_pass():
    surface, _ = surface_of(random_run("LN and MLP", **TINY))
    before = surface.losses(surface.thetas)
    silent = surface.losses(surface.thetas, activation=lambda layer, x: 0 * x)
    assert not torch.equal(silent, before)
    assert torch.equal(surface.losses(surface.thetas), before)


@pytest.mark.parametrize("positions", ["one_hot", "sine"])
def test_the_walk_models_own_form_is_the_decoder(positions):
    run = random_walk_run(Circle(n_states=3, p=0.7), 7, positions)
    surface, _ = surface_of(run)
    assert surface.walk is not None
    assert surface.losses(surface.thetas)[0].item() == pytest.approx(
        loss_by_the_decoder(run, surface, 0).item()
    )
    as_decoder = dataclasses.replace(surface, walk=None)
    assert torch.allclose(surface.gradients(), as_decoder.gradients())
    vector = torch.randn(surface.coordinates.size, dtype=torch.float64)
    ours, theirs = (s.hessian_at(0).times(vector) for s in (surface, as_decoder))
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("shape", ["plain", "RMSPre, tied", "relative"])
def test_the_hessian_is_the_difference_of_gradients(shape):
    run = random_run(shape, **TINY)
    surface, _ = surface_of(run)
    hessian = surface.hessian_at(0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        vector = torch.randn(hessian.size, generator=generator, dtype=torch.float64)
        ends = [dataclasses.replace(surface, thetas=surface.thetas + h * vector) for h in (1e-5, -1e-5)]
        up, down = (end.gradients().mean(1)[0] for end in ends)
        assert torch.allclose(hessian.times(vector), (up - down) / 2e-5, atol=1e-6, rtol=1e-4)
    dense = hessian.dense()
    assert torch.allclose(dense @ vector, hessian.times(vector))


@pytest.mark.parametrize("fields", [{"act_fn": "relu"}, {"act_fn": "gelu"}], ids=lambda f: f["act_fn"])
def test_products_by_fused_gradients_are_those_of_the_graph(fields, monkeypatch):
    run = random_run("LN and MLP", **TINY | fields)
    surface, _ = surface_of(run)
    hessian = surface.hessian_at(0)
    vector = torch.randn(hessian.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert not hessian.is_difference
    exact, dense = hessian.times(vector), hessian.dense()
    monkeypatch.setattr(surfaces, "MIN_DIFFERENCE_PATTERN", 0)
    assert hessian.is_difference
    assert float((hessian.times(vector) - exact).norm() / exact.norm()) < 1e-6
    assert float((hessian.dense() - dense).norm() / dense.norm()) < 1e-8


@pytest.mark.parametrize("scale", [0.01, 1, 10])
@pytest.mark.parametrize("shape", ["plain", "LN and MLP"])
def test_products_from_one_side_are_within_lanczos_tolerance(shape, scale, monkeypatch):
    """Along the sharpest directions, of weights near zero and of large ones."""
    run = random_run(shape, **TINY)
    scaled = {name: scale * value for name, value in run.states.items()}
    surface, _ = surface_of(dataclasses.replace(run, states=scaled))
    hessian = surface.hessian_at(0)
    values, vectors = torch.linalg.eigh(hessian.dense())
    monkeypatch.setattr(surfaces, "MIN_DIFFERENCE_PATTERN", 0)
    for i in (0, -1):
        off = hessian.times(vectors[:, i]) - values[i] * vectors[:, i]
        assert float(off.norm()) < 0.5 * LANCZOS_TOLERANCE * float(values.abs().max())


@pytest.mark.parametrize(
    "run",
    [
        random_walk_run(Circle(n_states=3, p=0.7), 8),
        random_walk_run(Circle(n_states=3, p=1.0), 7),
        run_of(random_run("plain", d_vocab=2, **TINY).model(), source=Binary(p=0.3, q=0.3)),
        random_run("LNPre", **TINY),
    ],
    ids=["walk", "trap", "binary", "trivial"],
)
def test_lanczos_finds_the_ends_of_the_dense_spectrum(run):
    surface, symmetry = surface_of(run)
    hessian = surface.hessian_at(0)
    dense = hessian_ends(hessian, symmetry, low=3, dense=10_000)
    lanczos = hessian_ends(hessian, symmetry, low=3, dense=0)
    scale = max(abs(dense.low[0]), abs(dense.high[-1]))
    assert (dense.method, lanczos.method) == ("dense", "Lanczos")
    assert lanczos.low[0] == pytest.approx(dense.low[0], abs=2e-4 * scale)
    assert lanczos.high[-1] == pytest.approx(dense.high[-1], abs=2e-4 * scale)
    # Oracle of the dense one: the projected matrix, without a basis of the outside.
    P = symmetry.outside(torch.eye(hessian.size, dtype=torch.float64)).numpy()
    projected = np.linalg.eigvalsh(P @ hessian.dense().numpy() @ P)
    assert dense.spectrum[0] == pytest.approx(min(projected[0], dense.spectrum[0]), abs=1e-10)
    kept = np.sort(np.concatenate([dense.spectrum, np.zeros(hessian.size - len(dense.spectrum))]))
    assert kept == pytest.approx(projected, abs=1e-10)
    assert len(dense.spectrum) == outside_size(symmetry, hessian.size)
    for found in (dense, lanczos):
        v = torch.from_numpy(found.low_vectors[:, 0].copy())
        assert float(v.norm()) == pytest.approx(1)
        assert float(symmetry.inside(v).norm()) < 1e-5 or symmetry.trivial
        assert float(v @ hessian.times(v)) == pytest.approx(found.low[0], abs=2e-4 * scale)


def test_nats_away_is_the_quadratic_form_of_the_dense_hessian():
    surface, symmetry = surface_of(random_walk_run(Circle(n_states=3, p=0.7), 8))
    hessian = surface.hessian_at(0)
    gradient = symmetry.outside(surface.gradients().mean(1)[0])
    basis = outside_basis(symmetry, hessian.size)
    values, vectors = np.linalg.eigh(basis.T @ hessian.dense().numpy() @ basis)
    scale = np.abs(values).max()
    parts = vectors.T @ basis.T @ gradient.numpy()
    expected = (parts**2 / (2 * np.maximum(np.abs(values), FLAT_CURVATURE * scale))).sum()
    assert nats_away(hessian, symmetry, gradient, scale) == pytest.approx(expected, rel=0.05)
    assert nats_away(hessian, symmetry, 0 * gradient, scale) == 0


def test_a_deterministic_walk_is_judged_on_all_its_sequences():
    subject = subject_of(random_walk_run(Circle(n_states=5, p=1.0), 8), sequences=16)
    population = population_of(subject)
    assert (population.exact, population.describe()) == (True, "all 5 sequences there are")
    whole = torch.cat([population.history, population.targets], dim=-1).flatten(0, 1)
    assert sorted(whole[:, 0].tolist()) == [0, 1, 2, 3, 4]
    assert (whole.diff(dim=1) % 5 == 1).all()
    assert (population.tokens[..., -1] == 5).all()


def test_other_sequences_are_there_in_every_relabelling():
    subject = subject_of(random_walk_run(Circle(n_states=5, p=0.5), 8), sequences=16)
    population = population_of(subject)
    assert (population.exact, population.images) == (False, 10)
    assert population.describe() == "160 sequences, 16 drawn, each in 10 relabellings"
    rows = torch.cat([population.history, population.targets], dim=-1)
    for group in rows:  # each group is closed under the group
        seen = sorted(group.tolist())
        for g in subject.source.automorphisms():
            assert sorted(torch.tensor(g)[group].tolist()) == seen


def test_a_group_too_large_leaves_the_sample_as_it_was_drawn(monkeypatch):
    subject = subject_of(run_of(random_run("plain").model(), source=Chain(np.full((3, 3), 1 / 3))))
    assert population_of(subject).images == 6
    monkeypatch.setattr(populations, "MAX_IMAGES", 5)
    population = population_of(subject)
    assert population.images == 1
    assert "drawn" in population.describe()
    assert torch.equal(population.history.flatten(0, 1), subject.batch.history)


def test_a_unigram_with_silent_embeddings_is_stationary_and_judged_by_its_curvature():
    # Tied, so a minimum above p + q = 1 and a saddle below.
    for (p, q), kind in {(0.5, 0.8): "minimum", (0.2, 0.3): "saddle"}.items():
        source = Binary(p=p, q=q)
        decoder = random_run("plain", d_vocab=2, tied=True, **TINY).model()
        population = population_of(subject_of(run_of(decoder, source=source), sequences=400))
        counts = torch.bincount(population.history.flatten(), minlength=2).numpy()[:, None] * source.P
        counts = counts / counts.sum()
        with torch.no_grad():
            decoder.embed.W_E.zero_()
            decoder.pos_embed.W_pos.zero_()
            decoder.unembed.b_U.copy_(torch.tensor(np.log(counts.sum(0))))
            for name in ("W_O", "b_V", "b_O"):
                decoder.get_parameter(f"blocks.0.attn.{name}").zero_()
        run = run_of(decoder, source=source)
        surface, symmetry = surface_of(run, sequences=400)
        others = population_of(subject_of(run, sequences=400, seed=1))
        fresh = dataclasses.replace(surface, population=others)
        hessian = surface.hessian_at(0)
        ends = hessian_ends(hessian, symmetry, low=4)
        found = judge(surface, 0, surface.gradients()[0], ends, hessian, symmetry, fresh)
        assert found.kind == kind, (ends.low, found)
        # The closed form on the histories of these very sequences; the rest is how positions differ.
        against = np.outer(counts.sum(1), counts.sum(0)) - counts
        expected = np.linalg.eigvalsh(against + against.T)[0]
        assert ends.low[0] == pytest.approx(min(expected, 0), abs=0.03)


def test_a_point_in_the_open_is_not_stationary():
    surface, symmetry = surface_of(random_run("plain", **TINY))
    hessian = surface.hessian_at(0)
    ends = hessian_ends(hessian, symmetry, low=2)
    found = judge(surface, 0, surface.gradients()[0], ends, hessian, symmetry, None)
    assert found.kind == "not stationary"


def test_the_bundled_trap_has_a_gradient_inside_alone():
    surface, symmetry = surface_of(mm.example("trap"))
    gradient = surface.gradients()[-1].mean(0)
    assert gradient.norm() > 0.05
    assert symmetry.outside(gradient).norm() < 1e-12
