"""Bounds of models of several layers: every sequence of small ones is below them, each proof is checked."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from certify_cases import (
    contexts_of,
    deep,
    drawn,
    every_history,
    is_within,
    layer_of,
    one_layer,
    proof,
    worst_of_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm
from mechmarkov.certify import EXACT, FLOAT32, certify, checker, proof_of, verify
from mechmarkov.certify.bounds import later, relaxed
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.sentence import sentences
from mechmarkov.objectives import Objective
from mechmarkov.sources import Chain
from mechmarkov.utils.text import at_most

UNITS = (EXACT, FLOAT32)


@pytest.mark.parametrize(
    ("count", "seed"), [(10, 2), pytest.param(120, 0, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_sequence_is_above_a_bound(count, seed):
    rng, tiers, tight = np.random.default_rng(seed), [], 0
    for index in range(count):
        run = drawn(rng)
        for unit in UNITS:
            certificate = certify(run, "parent", unit=unit, tokens=1 << 10)
            tiers.append(certificate.tier)
            if certificate.tier != "2":
                continue
            stored = proof_of(certificate, 0)
            verify(stored, run)
            seen, at = worst_of_all(run, np.array(stored["table"]), unit)
            assert is_within(stored["claims"], seen), index
            assert (at <= certificate.kl_at * (1 + 1e-9) + 1e-13).all(), index
            tight += stored["claims"]["worst_kl"] < 0.1
    assert tiers.count("2") > count / 2
    assert tight > count / 4  # what bounds nothing is easily true


@pytest.fixture(scope="module")
def trained():
    """Two layers with norms and an MLP, trained on a chain of three states, and what is proved of them."""
    recipe = mm.load_recipe({
        "name": "two-layers", "steps": 300,
        "source": {"kind": "chain", "P": [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]]},
        "model": {"kind": "decoder", "n_layers": 2, "d_model": 16, "n_heads": 2, "d_head": 8, "n_ctx": 8},
    })  # fmt: skip
    run = mm.train(recipe, seed=0, progress=False)
    return run, proof_of(certify(run, "parent"), int(run.steps[-1]))


def test_a_trained_model_is_near_its_table(trained):
    run, stored = trained
    assert stored["kind"] == "layers"
    seen, _ = worst_of_all(run, np.array(stored["table"]))
    assert is_within(stored["claims"], seen)
    assert seen["worst_kl"] < stored["claims"]["worst_kl"] < 0.05
    assert verify(stored, run)["worst_kl"] <= stored["claims"]["worst_kl"]


def test_a_gpt2_of_transformers_is_near_its_table():
    """Another library's model, with its own loss and loop: LayerNorm, an MLP and biases everywhere."""
    torch.manual_seed(0)
    chain, generator = (
        Chain([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]]),
        torch.Generator().manual_seed(0),
    )
    sizes = {"vocab_size": 3, "n_positions": 7, "n_embd": 16, "n_layer": 2, "n_head": 2}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **rates))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    for _ in range(150):
        tokens = chain.sample(32, 7, generator=generator)
        optimiser.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimiser.step()
    run = mm.Run.from_model(model.eval(), source=chain)
    stored = proof_of(certify(run, "parent", tokens=1 << 12), int(run.steps[-1]))
    assert stored["kind"] == "layers"
    seen, _ = worst_of_all(run, np.array(stored["table"]))
    assert is_within(stored["claims"], seen)
    assert verify(stored, run)["worst_kl"] < 0.1


def test_a_smaller_multiplier_of_a_first_layer_is_refused(trained):
    run, stored = trained
    smaller = deepcopy(stored)
    values = np.array(stored["stored"]["inner_multipliers"])
    values[0, 5, 1] -= 1e-3
    smaller["stored"]["inner_multipliers"] = values.tolist()
    with pytest.raises(ValueError, match="a multiplier at position 5 after state 1 is too small"):
        verify(smaller, run)


@pytest.mark.parametrize("name", ["inner_basis", "inner_multipliers", "inner_cuts"])
def test_a_proof_has_boxes_of_all_first_layers(trained, name):
    run, stored = trained
    without = deepcopy(stored)
    del without["stored"][name]
    with pytest.raises(ValueError, match="stored has"):
        verify(without, run)


def no_rest(self, symbols):
    """Forms that drop all but their first symbols."""
    return Affine(self.mid, self.slope[..., :symbols], np.zeros_like(self.mid), self.unit)


def of_midpoints(self, other):
    """Scores that drop how keys and queries vary."""
    mids = (Affine(form.mid, form.slope[..., :0], form.rad, form.unit) for form in (self, other))
    return ORIGINAL(*mids)


ORIGINAL = Affine.inner


@pytest.mark.parametrize(("name", "fault"), [("folded", no_rest), ("inner", of_midpoints)])
def test_a_dropped_range_of_a_first_layer_is_refused(monkeypatch, name, fault):
    run = deep(scale=0.3)
    monkeypatch.setattr(Affine, name, fault)
    stored = proof_of(certify(run, "parent", unit=EXACT), 0)
    with pytest.raises(ValueError, match=r"too small|is claimed to be"):
        verify(stored, run)


@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "RMS and MLP", "rotary"])
def test_the_checkers_forms_hold_every_context(shape):
    """The stream behind the first layer, and how much more the second attends to one key than to another."""
    run = deep(shape, scale=0.1 if shape == "RMS and MLP" else 0.2)
    stored = proof_of(certify(run, "parent", unit=EXACT, tokens=1 << 10), 0)
    weights = {name: value.double().numpy() for name, value in run.model().state_dict().items()}
    of_first = (np.array(stored["stored"][f"inner_{name}"])[0] for name in ("basis", "multipliers", "cuts"))
    reached = np.ones((6, 2), dtype=bool)
    stream = checker.behind(checker.Model(run.config, weights, 0.0), stored["contexts"], reached, *of_first)
    second = checker.Model(run.config, weights, 0.0, stream, 1)
    histories = every_history(run)
    _, cache = run.model().double().run_with_cache(torch.from_numpy(histories))
    behind = cache["blocks.0.hook_resid_post"].numpy()
    pattern = cache["blocks.1.attn.hook_pattern"].numpy()
    at = np.arange(5), histories
    assert (stream.low[at] <= behind).all()
    assert (behind <= stream.high[at]).all()
    assert (stream.high - stream.low)[4].max() < 20 * (behind.max(0) - behind.min(0))[4].max()
    for history, attention in zip(histories, pattern, strict=True):
        weight, rad = second.attention(4, history[4])
        low, high = ((weight + sign * rad)[:, at[0], history] for sign in (-1, 1))
        ratio = attention[:, 4, :, None] / attention[:, 4, None]
        assert (ratio <= high[:, :, None] / low[:, None] * (1 + 1e-9)).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_pieces_all_in_the_middle_are_refused(layers, monkeypatch):
    """The pieces are of the box behind one layer, of the query's own stream behind two."""
    whole, parts = relaxed.differences, relaxed.parts

    def in_the_middle(cuts, width, symbols):
        centre, share = parts(cuts, width, symbols)
        centre[:, slice(width) if layers == 1 else slice(width, None)] = 0
        return centre, share

    def differences(*given):
        with monkeypatch.context() as patch:
            patch.setattr(relaxed, "parts", in_the_middle)
            return whole(*given)

    monkeypatch.setattr(relaxed, "differences", differences)
    run = deep(n_layers=layers, scale=0.3)
    # Where the search sees more than it certified it ends by itself; else the checker refuses.
    with pytest.raises((RuntimeError, ValueError), match=r"was certified|is claimed to be"):
        verify(proof_of(certify(run, "parent", unit=EXACT, tokens=1 << 10), 0), run)


@pytest.mark.parametrize(("cuts", "layers"), [((3, 2, 1, 1), 1), ((1, 2, 5, 7), 2), ((16, 3, 1, 4), 2)])
def test_pieces_hold_all_points(cuts, layers):
    """Two axes of the box and the first two symbols of the stream are cut, in search and checker."""
    run = deep(n_layers=layers, scale=0.2)
    stored = proof_of(certify(run, "parent", unit=EXACT, tokens=1 << 8), 0)
    stream = None
    weights = {name: value.double().numpy() for name, value in run.model().state_dict().items()}
    if layers == 2:
        inner = [np.array(stored["stored"][f"inner_{name}"])[0] for name in ("basis", "multipliers", "cuts")]
        reached = np.ones((6, 2), dtype=bool)
        stream = checker.behind(checker.Model(run.config, weights, 0.0), stored["contexts"], reached, *inner)
    case = checker.Case(checker.Model(run.config, weights, 0.0, stream, layers - 1), stored["contexts"], 4, 1)
    centre, share = case.pieces(np.array(cuts))
    d, symbols = case.base.mid.size, centre.shape[-1]
    for one, other in zip(relaxed.parts(np.array(cuts), d, symbols), (centre, share), strict=True):
        np.testing.assert_array_equal(one, other)
    which = [0, 1, d, d + 1][: 2 * layers]
    assert (np.delete(share, which, 1) == 1).all()
    points = np.random.default_rng(0).uniform(-1, 1, size=(200, len(which)))
    points[:50] = np.sign(points[:50])  # corners
    points[50:100] = np.round(points[50:100] * 3) / 3  # and borders
    inside = np.abs(points[:, None] - centre[:, which]) <= share[:, which]
    assert inside.all(-1).any(1).all()


@pytest.mark.parametrize("program", ["search", "checker"])
def test_one_form_is_around_a_parabola_in_pieces(program):
    """The numbers are x² and x y, from -1 to 1: slopes differ from piece to piece, and so do middles."""
    centre, share = relaxed.parts(np.array([8, 4, 1, 1]), 2, 2)
    mid, slope = np.zeros(2), np.eye(2)
    if program == "search":
        x = Affine(mid, slope, np.zeros(2), EXACT).pieces(centre, share)
        square = Affine(x.mid[:, :1], x.slope[:, :1], x.rad[:, :1], EXACT) * x
        form = later.merged(square, centre, share)
    else:
        x = checker.Form(0.0, mid, slope).pieces(centre, share)
        form = checker.merged(x[:, :1] * x, centre, share)
    rest = np.abs(form.slope[:, 2:]).sum(-1) + form.rad
    for e in np.random.default_rng(0).uniform(-1, 1, size=(2000, 2)).round(1):
        assert (np.abs(e[0] * e - form.mid - form.slope[:, :2] @ e) <= rest).all()
    assert (rest < 1.4 * np.array([0.5, 1.0])).all()  # the least that any form leaves open


def test_a_proof_without_pieces_is_refused(trained):
    """Nothing is bounded where there are none, and a maximum over none is not a bound."""
    run, stored = trained
    for name in ("cuts", "inner_cuts"):
        none = deepcopy(stored)
        values = np.array(none["stored"][name])
        values[0, 1 if name == "inner_cuts" else 0] = 0
        none["stored"][name] = values.tolist()
        with pytest.raises(ValueError, match=r"^a box at position \d after state \d has no pieces"):
            verify(none, run)
        values[0] = 11
        none["stored"][name] = values.tolist()
        with pytest.raises(ValueError, match=rf"^stored.{name} is .* expected whole numbers, 1024 pieces"):
            verify(none, run)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["plain", "LN and MLP", "RMS and MLP", "post-norm"]))
def test_a_form_is_around_all_points_of_its_box(seed, shape):
    """Norms and an MLP take each point of the box near the form, within what it leaves open."""
    rng, run = np.random.default_rng(seed), deep(shape, n_layers=1, seed=seed, scale=0.3)
    stored = proof(run, "parent", EXACT)
    weights = {name: value.double().numpy() for name, value in run.model().state_dict().items()}
    case = checker.Case(checker.Model(run.config, weights, 0.0), stored["contexts"], 4, 1)
    basis = np.linalg.qr(rng.normal(size=(run.config.d_model,) * 2))[0]
    reading = Reading.of(layer_of(run, EXACT), contexts_of(run), 4, 1, scored=False)
    multipliers = reading.multipliers(np.concatenate([basis.T, -basis.T]))[0]
    form, box = checker.around(case, basis, multipliers, np.array([3, 2, 1, 1])), case.box(basis, multipliers)
    open_, d = np.abs(form.slope[:, len(basis) :]).sum(-1) + form.rad, len(basis)
    for e in rng.uniform(-1, 1, size=(50, d)):
        point = checker.Form(0.0, box.mid + box.slope @ e)
        value = case.model.behind(case.own, point + case.base).mid
        assert (np.abs(value - form.mid - form.slope[:, :d] @ e) <= open_ + 1e-12).all()


def test_an_induction_circuit_has_no_bound_and_a_reason():
    certificate = certify(mm.example("induction"), tokens=1 << 10)
    assert (certificate.tier, certificate.is_vacuous) == ("norm", True)
    assert certificate.why


def test_a_query_token_or_too_much_memory_is_a_reason(monkeypatch):
    query = {"d_vocab": 3, "d_vocab_out": 2}
    run = one_layer("plain", Objective(query=True, read="last"), n_layers=2,
                    source=Chain([[0.7, 0.3], [0.2, 0.8]]), **query)  # fmt: skip
    assert "an added query token" in certify(run, tokens=1 << 8).why
    monkeypatch.setattr(later, "MOST_NUMBERS", 100)
    assert "too much memory" in certify(deep(), tokens=1 << 8).why


def test_a_budget_that_is_too_small_is_a_reason():
    assert "the time was not enough" in certify(deep(), seconds=1e-6, tokens=1 << 8).why


def test_the_sentence_is_that_of_one_layer():
    certificate = certify(deep("plain"), "parent")
    first, second = sentences(certificate)[:2]
    assert first.startswith("On each of the 32 sequences that the source can give, log-probabilities are")
    assert second == f"KL(program ‖ model) is at most {at_most(certificate.worst_kl)} nats."
