"""The trainable numbers as a vector, and what relabelling and shifting leave alone."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.symmetry.reduced_run import value_matrices
from models_by_hand import random_walk_run
from probing_cases import CHAIN, random_run, run_of, subject_of, walk_run

from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.trainable_vector import Coordinates, symmetry_of
from mechmarkov.curvature.walk_parts import walk_parts
from mechmarkov.models import HookedDecoder
from mechmarkov.runs.run import Run
from mechmarkov.sources import Binary, Circle


@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "RMSPre, tied", "relative"])
def test_a_vector_and_its_tensors_are_each_other(shape):
    run = random_run(shape, n_steps=3)
    coordinates, state = Coordinates.of(run), run.model(steps="all").state_dict()
    vector = coordinates.flatten(state)
    assert vector.shape == (3, coordinates.size)
    assert coordinates.size == sum(p.numel() for p in HookedDecoder(run.config).parameters())
    placed = coordinates.place(vector, {name: value[0] for name, value in state.items()})
    assert set(placed) == set(dict(HookedDecoder(run.config).named_parameters()))
    assert all(torch.equal(placed[name], state[name]) for name in placed)
    assert ("unembed.W_U" in placed) == (not run.config.tied)  # a tied tensor is there once


def test_only_what_is_trained_is_in_the_vector():
    run = random_walk_run(Circle(n_states=3, p=0.5), n_ctx=7)
    coordinates = Coordinates.of(run)
    assert coordinates.size == 3 * 3 + 3 + 7
    state = run.model().state_dict()
    vector = coordinates.flatten(state)
    placed = coordinates.place(2 * vector, state)
    for name, value in placed.items():
        spans = run.trainable[name]
        index = tuple(slice(*span) for span in spans)
        assert torch.equal(value[index], 2 * state[name][index])
        left, whole = value.clone(), state[name].clone()
        left[index] = whole[index] = 0
        assert torch.equal(left, whole)


def projector(symmetry, n):
    return symmetry.inside(torch.eye(n, dtype=torch.float64))


@pytest.mark.parametrize("positions", ["one_hot", "sine"])
@pytest.mark.parametrize(("p", "n_ctx", "shifts"), [(1.0, 7, True), (1.0, 8, False), (0.5, 7, False)])
def test_what_is_inside_is_a_subspace_that_gradients_do_not_leave(positions, p, n_ctx, shifts):
    run = random_walk_run(Circle(n_states=3, p=p), n_ctx, positions)
    coordinates = Coordinates.of(run)
    symmetry = symmetry_of(run)
    assert (symmetry.shifts, symmetry.acts, symmetry.walk) == (shifts, True, True)
    assert symmetry.order == (3 if p == 1 else 6)
    n = coordinates.size
    P = projector(symmetry, n)
    assert torch.allclose(P, P.mT)
    assert torch.allclose(P @ P, P)
    subject = subject_of(run, sequences=32)
    surface = loss_surface(subject)
    theta = symmetry.inside(surface.thetas).requires_grad_()
    (slope,) = torch.autograd.grad(surface.losses(theta).sum(), theta)
    assert slope.norm() > 0.01
    # Sine positions are stored in float32, and so orthogonal to 1e-7.
    assert symmetry.outside(slope).norm() < (1e-12 if positions == "one_hot" else 1e-7)
    # At other weights the gradient does leave it.
    (slope,) = torch.autograd.grad(surface.losses(x := surface.thetas.clone().requires_grad_()).sum(), x)
    assert symmetry.outside(slope).norm() > 1e-3


def test_inside_the_trap_rows_are_constant_and_tokens_attended_to_alike():
    run = random_walk_run(Circle(n_states=3, p=1.0), 7, "sine")
    coordinates = Coordinates.of(run)
    symmetry = symmetry_of(run)
    inside = symmetry.inside(coordinates.flatten(run.model().state_dict()).double())
    frozen = {name: value.double() for name, value in run.model().state_dict().items()}
    placed = frozen | coordinates.place(inside, frozen)
    V = value_matrices(walk_parts(run), placed["blocks.0.attn.W_O"][None])[0]
    assert np.ptp(V, axis=1) == pytest.approx(np.zeros(3), abs=1e-7)
    decoder = HookedDecoder(run.config).double()
    decoder.load_state_dict(placed)
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [2, 1, 1, 0, 0, 0, 3]])
    _, cache = decoder.run_with_cache(tokens)
    attention = cache["blocks.0.attn.hook_pattern"][:, 0, -1, :-1]
    assert attention.std(-1).max() < 1e-7


def test_relabelling_a_decoder_moves_its_token_axes():
    run = random_run("plain", d_vocab=2)
    run = run_of(run.model(), source=Binary(p=0.3, q=0.3))
    coordinates = Coordinates.of(run)
    symmetry = symmetry_of(run)
    state = run.model().state_dict()
    vector = coordinates.flatten(state).double()
    swapped = dict(state)
    swapped["embed.W_E"] = state["embed.W_E"][[1, 0]]
    swapped["unembed.W_U"] = state["unembed.W_U"][:, [1, 0]]
    swapped["unembed.b_U"] = state["unembed.b_U"][[1, 0]]
    mean = (vector + coordinates.flatten(swapped).double()) / 2
    assert torch.allclose(symmetry.inside(vector), mean)
    assert torch.allclose(symmetry.inside(vector) + symmetry.outside(vector), vector)
    # Far from symmetric weights there is nothing to project out, near them there is.
    assert symmetry.at(vector).trivial
    assert not symmetry.at(mean).trivial


def test_a_chain_without_symmetries_has_nothing_to_project_out():
    run = random_run("plain")
    symmetry = symmetry_of(run)
    assert (symmetry.order, symmetry.trivial) == (1, True)
    vector = torch.randn(3, Coordinates.of(run).size, dtype=torch.float64)
    assert torch.equal(symmetry.inside(vector), vector)
    assert torch.equal(symmetry.outside(vector), vector)
    assert walk_parts(run) is None


def test_the_walk_model_is_known_by_its_frozen_parts():
    run = walk_run(Circle(n_states=4, p=0.5), np.eye(4), np.zeros(6))
    parts = walk_parts(run)
    assert parts.read_at.tolist() == parts.written_at.tolist() == [0, 1, 2, 3]
    assert parts.norm == pytest.approx(1)
    changed = dict(run.states)
    changed["blocks.0.attn.W_V"] = 2 * changed["blocks.0.attn.W_V"]
    other = Run(run.config, run.source, run.objective, run.steps, changed, run.trainable)
    assert walk_parts(other) is None
    assert not symmetry_of(other).acts
    assert walk_parts(run_of(random_run("plain").model(), source=CHAIN)) is None
