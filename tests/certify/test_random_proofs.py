"""Proofs of random small models, with norms and an MLP behind attention or not: all are confirmed.

The search and the checker count roundings on their own. Where a position has a single context nothing but
rounding is left, so a search that counts less anywhere claims what its checker refuses.
"""

import numpy as np
import pytest
from certify_cases import RAW, SOFTMAX, bounds_of, contexts_of, is_within, one_layer, worst_of_all
from probing_cases import MLP, SHAPES

from mechmarkov.certify import EXACT, FLOAT32, certify, checker, proof_of, verify
from mechmarkov.certify.bounds import tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.norms import normalised
from mechmarkov.sources import Chain

UNITS = (EXACT, FLOAT32)
POSITIONS = ("standard", "relative_bias", "alibi", "relative", "shortformer", "none")
BEHIND = [shape for shape, parts in SHAPES.items() if "normalization_type" in parts]


def undone(run, share):
    """The same run, whose second head writes what the first does, turned round, and a share of it more."""
    attention = {name: run.states[f"blocks.0.attn.{name}"] for name in ("W_V", "b_V", "W_O")}
    for value in attention.values():
        value[:, 1] = value[:, 0]
    attention["W_O"][:, 1] *= -(1 + share)
    return run


def drawn(rng, states, longest):
    """A run of one layer with any norm, in front or behind, any activation, and any positions."""
    n, norm = int(rng.integers(2, states + 1)), [None, None, "LN", "LNPre", "RMS", "RMSPre"][rng.integers(6)]
    P = rng.random((n, n)) + 0.1
    changes = {
        "n_ctx": int(rng.integers(1, longest + 1)),
        "n_heads": int(rng.integers(1, 4)),
        "d_model": int(rng.integers(3, 6)),
        "positional_embedding_type": str(rng.choice(POSITIONS)),
        "eps": float(rng.choice([1e-5, 1e-12])),
    }
    if norm is not None:
        places = {"norm_first": bool(rng.random() < 0.6), "final_norm": bool(rng.random() < 0.6)}
        changes |= {"normalization_type": norm, **places}
    if has_mlp := bool(rng.random() < 0.6):
        changes |= MLP | {"act_fn": str(rng.choice(["relu", "gelu", "gelu_new", "silu"])), "d_mlp": 4}
        changes["gated_mlp"] = bool(rng.random() < 0.2)
    objective = RAW if norm is None and not has_mlp and rng.random() < 0.5 else SOFTMAX
    seed, scale = int(rng.integers(1 << 30)), float(rng.choice([0.1, 0.3, 1.0]))
    source = Chain(P / P.sum(1, keepdims=True))
    run = one_layer("plain", objective, seed=seed, scale=scale, source=source, **changes)
    if objective is RAW:  # scores above 0
        run.states["unembed.b_U"] += 6.0
    return undone(run, 1e-3) if changes["n_heads"] > 1 and rng.random() < 0.2 else run


@pytest.mark.parametrize(
    ("count", "states", "longest"),
    [(10, 3, 2), pytest.param(40, 4, 5, marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_each_certificate_of_random_models_is_confirmed(count, states, longest):
    rng, kinds = np.random.default_rng(count), []
    for index in range(count):
        run = drawn(rng, states, longest)
        for unit in UNITS:
            certificate = certify(run, "parent", unit=unit, tokens=1 << 10)
            if certificate.worst_kl is None:
                assert "may hold a state impossible" in certificate.why
                continue
            stored = proof_of(certificate, 0)
            kinds.append(stored["kind"])
            try:
                follows = verify(stored, run)
            except ValueError as error:
                pytest.fail(f"model {index}, {run.config!r}, unit {unit}: {error}")
            table = np.array(stored["table"])
            seen, at = worst_of_all(run, table, unit)
            assert is_within(stored["claims"], seen), index
            assert is_within(
                {name: value if np.isfinite(value) else None for name, value in follows.items()}, seen
            )
            assert (at <= certificate.kl_at * (1 + 1e-9) + 1e-13).all(), index
    assert len(kinds) > 1.8 * count
    assert {"relaxed", "logits", "raw scores"} <= set(kinds)


def test_scores_that_overflow_have_no_bound():
    """A norm whose input may be 0 makes a box wider, from part to part, until no number holds it."""
    parts = {"n_ctx": 2, "d_model": 4, "normalization_type": "LNPre", "eps": 1e-12, "gated_mlp": True}
    run = one_layer("post-norm", seed=2, scale=30.0, **parts)
    for name in ("W_Q", "b_Q"):  # no attention weight underflows
        run.states[f"blocks.0.attn.{name}"] *= 1e-4
    certificate = certify(run, "parent", tokens=1 << 10)
    assert "nothing bounds its scores" in certificate.why
    assert certificate.tier == "norm"  # the last norm bounds them by itself
    seen, _ = worst_of_all(run, certificate.program.table)
    assert seen["worst_kl"] <= verify(proof_of(certificate, 0), run)["worst_kl"]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shape", BEHIND)
def test_odds_of_one_context_cover_the_checkers(shape, unit):
    """Nothing but rounding is between them, and no claim's margin hides it."""
    run = one_layer(shape, scale=1.0, n_ctx=1, d_model=4)
    bounds, contexts = bounds_of(run, unit), contexts_of(run)
    weights = {name: value.double().numpy() for name, value in run.model().state_dict().items()}
    model = checker.Model(run.config, weights, unit)
    stated = {name: getattr(contexts, name) for name in ("n_states", "query", "start", "transitions", "lags")}
    for parent in range(contexts.n_states):
        own = {name: bounds.stored[name][0, parent] for name in ("multipliers", "cuts")}
        closed = bounds.stored.get("closed", np.zeros((0, 4)))
        own["closed"] = closed[(closed[:, :2] == (0, parent)).all(1), 2:]
        own["basis"] = bounds.stored["basis"]
        odds = checker.Case(model, stated, 0, parent).of_relaxed(own)
        assert (odds <= bounds.log_odds[0, parent]).all()


def test_norms_and_activations_count_the_checkers_roundings():
    """Stored numbers leave rounding only, without the room that a search adds."""
    x = 2 * np.random.default_rng(0).normal(size=(50, 5))
    ours, theirs = Affine(x, np.zeros((*x.shape, 0)), np.zeros_like(x), FLOAT32), checker.Form(FLOAT32, x)
    pairs = {name: (tail.activated(ours, name), theirs.through(name)) for name in (*tail.SMOOTH, "relu")}
    for kind in ("LN", "RMS"):
        normed = normalised(ours, None, None, 1e-5, kind == "LN")
        pairs[kind] = normed, theirs.normed({}, "", kind, 1e-5)
    for name, (one, other) in pairs.items():
        np.testing.assert_allclose(one.mid, other.mid, atol=1e-12, err_msg=name)
        assert (other.spread <= one.spread * (1 + 1e-6)).all(), name


@pytest.mark.parametrize(("norm", "share", "seed"), [("LN", 0.3, 1)])
def test_heads_that_undo_each_other_are_confirmed(norm, share, seed):
    """The two write nearly nothing, so a box is as wide as rounding; both programs must cut it equally."""
    parts = {"n_ctx": 2, "d_model": 4, "d_mlp": 4, "normalization_type": norm, "eps": 1e-12}
    run = undone(one_layer("LN and MLP", seed=seed, **parts), share)
    stored = proof_of(certify(run, "parent", unit=EXACT), 0)
    assert len(stored["stored"]["closed"])
    assert verify(stored, run)["worst_kl"] >= stored["seen"]["nats"]
