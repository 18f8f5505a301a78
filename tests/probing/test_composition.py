"""Composition against TransformerLens and numpy; copying on tables whose eigenvalues are known."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.induction.composition import INPUTS, composition, copying, random_composition
from probing_cases import config_of, randomise

from mechmarkov.models import HookedDecoder

pytestmark = pytest.mark.tl


def stack_of(shape: str, **changes) -> HookedDecoder:
    return HookedDecoder.stack(
        [randomise(HookedDecoder(config_of(shape, **changes)), seed) for seed in range(2)]
    )


@pytest.mark.parametrize("shape", ["plain", "three layers", "shortformer"])
def test_without_norms_it_is_transformer_lens_composition_of_every_member(shape):
    stack = stack_of(shape)
    found = composition(stack)
    layer = np.arange(stack.config.n_layers)
    later = (layer[:, None] < layer)[:, None, :, None]
    later = np.broadcast_to(later, found["K"].shape[1:])
    for name in INPUTS:
        for member in range(2):
            wanted = stack[member].all_composition_scores(name).detach().numpy()
            assert found[name][member][later] == pytest.approx(wanted[later], abs=1e-6)
            assert np.isnan(found[name][member][~later]).all()


def norm(matrix: np.ndarray) -> float:
    return float(np.sqrt((matrix**2).sum()))


@pytest.mark.parametrize("shape", ["LN and MLP", "LNPre", "RMS and MLP", "RMSPre, tied"])
def test_what_a_norm_does_to_what_is_read_is_folded_in(shape):
    stack = stack_of(shape)
    found = composition(stack)
    state = {name: value.double().numpy() for name, value in stack.state_dict().items()}
    kind = stack.config.normalization_type

    def read(member: int, layer: int, head: int, name: str) -> np.ndarray:
        """As a matrix on the residual stream, up to the norm's scale."""
        fold = np.eye(8) - 1 / 8 if kind.startswith("LN") else np.eye(8)
        if kind in ("LN", "RMS"):
            fold = fold @ np.diag(state[f"blocks.{layer}.ln1.w"][member])
        return fold @ state[f"blocks.{layer}.attn.{name}"][member, head]

    for member, first, second in np.ndindex(2, 2, 2):
        write = read(member, 0, first, "W_V") @ state["blocks.0.attn.W_O"][member, first]
        q, k = (read(member, 1, second, name) for name in ("W_Q", "W_K"))
        v = read(member, 1, second, "W_V") @ state["blocks.1.attn.W_O"][member, second]
        for name, right in {"Q": q @ k.T, "K": k @ q.T, "V": v}.items():
            wanted = norm(write @ right) / norm(write) / norm(right)
            assert found[name][member, 0, first, 1, second] == pytest.approx(wanted, rel=1e-5)


def test_a_head_without_weights_has_no_composition():
    stack = stack_of("plain")
    with torch.no_grad():
        stack.blocks[0].attn.W_O[0, 1].zero_()
    found = composition(stack)["K"]
    assert np.isnan(found[0, 0, 1, 1]).all()
    assert np.isfinite(found[0, 0, 0, 1]).all()
    assert np.isfinite(found[1, 0, :, 1]).all()


@pytest.mark.parametrize(("d_model", "d_head"), [(16, 4), (16, 16), (48, 8)])
def test_random_heads_compose_as_random_matrices_do(d_model, d_head):
    config = config_of(d_model=d_model, d_head=d_head)
    found = random_composition(config)
    draw = np.random.default_rng(0)
    wanted = []
    for _ in range(300):
        a, b = (draw.normal(size=(d_model, d_head)) @ draw.normal(size=(d_head, d_model)) for _ in range(2))
        wanted.append(norm(a @ b) / norm(a) / norm(b))
    error = np.std(wanted) * np.sqrt(1 / 64 + 1 / 300)
    assert found.shape == (64,)
    assert found.mean() == pytest.approx(np.mean(wanted), abs=4 * error)
    assert found.std() == pytest.approx(np.std(wanted), rel=0.4)
    assert np.array_equal(found, random_composition(config))


TURN = np.roll(np.eye(3), 1, axis=1)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (np.eye(4), 1.0),
        (-2 * np.eye(4), -1.0),
        (TURN, -0.5),  # two eigenvalues left, exp(± 2 pi i / 3)
        (np.eye(3) + TURN, 0.5),  # and 1 / 2 ± i sqrt(3) / 2
        (np.diag([1.0, 1.0, -2.0]), 0.0),
        (np.eye(2), 1.0),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), -1.0),
    ],
)
def test_copying_is_the_balance_of_eigenvalues(table, expected):
    assert copying(table) == pytest.approx(expected, abs=1e-12)
    assert copying(np.stack([7 * table, table]))[0] == pytest.approx(expected, abs=1e-12)


def test_what_a_softmax_cannot_see_does_not_change_copying():
    table = np.random.default_rng(0).normal(size=(5, 4, 4))
    shifted = table + np.random.default_rng(1).normal(size=(5, 4, 1))
    centring = np.eye(4) - 1 / 4
    values = np.linalg.eigvals(table @ centring)
    assert copying(table) == pytest.approx((values.sum(-1) / np.abs(values).sum(-1)).real)
    assert copying(shifted) == pytest.approx(copying(table))


@pytest.mark.parametrize("table", [np.zeros((3, 3)), np.ones((3, 1)) * np.array([1.0, 5.0, 2.0])])
def test_a_circuit_that_is_constant_over_states_neither_copies_nor_not(table):
    assert np.isnan(copying(table))
    assert np.isnan(copying(table + 1e-8 * np.eye(3)) if table.any() else copying(table))
