"""Makkuva et al. 2025: every check can fail, and the points are what the theory says."""

import dataclasses

import numpy as np
import pytest
import torch
import xarray as xr

import mechmarkov as mm
from experiments.unigram_trap import data, landscape, models, precision, training
from experiments.unigram_trap.fates import Fate, fate, varied
from experiments.unigram_trap.points import Loss, bigram_model, closed_form, model, population

pytestmark = pytest.mark.experiments


def ended(*stuck: bool) -> Fate:
    """Runs that ended at the unigram or at the bigram, as they would have been judged."""
    return Fate(np.where(stuck, 0.2, 0.0), 0.2, [])


def verdicts(measured):
    return {claim.key: claim.direction for claim in measured.findings}


def test_escaped_runs_are_no_trap_and_stuck_ones_no_bigram(monkeypatch):
    # Everything turned round: tied runs above the line learn, the others are stuck.
    monkeypatch.setattr(
        training,
        "fates",
        lambda recipes, seeds: [
            ended(*[not (r.model.tied and r.source.p + r.source.q > 1)] * seeds) for r in recipes
        ],
    )
    assert set(verdicts(training.phase(True)).values()) == {"against"}


def test_depth_and_windows_are_judged_by_the_runs(monkeypatch):
    def turned(recipes, seeds):
        return [ended(*[r.model.n_layers > 1 or r.model.window is not None] * seeds) for r in recipes]

    monkeypatch.setattr(models, "fates", turned)
    monkeypatch.setattr(data, "fates", turned)
    assert set(verdicts(models.depth(True)).values()) == {"against"}
    assert set(verdicts(data.order_two(True)).values()) == {"against"}


@pytest.mark.experiments
def test_precision_is_judged_by_gradients_moves_and_ends(monkeypatch):
    monkeypatch.setattr(precision, "fates", lambda recipes, seeds: [ended(*[True] * seeds) for _ in recipes])
    monkeypatch.setattr(precision, "vanished", lambda *_: 0.0)
    monkeypatch.setattr(precision, "moved", lambda *_: 1.0)
    assert set(verdicts(precision.precision(True)).values()) == {"for"}
    half = {"float32": 1.0, "float16": 0.0}
    monkeypatch.setattr(precision, "moved", lambda recipe, _: half[recipe.precision])
    assert [*verdicts(precision.precision(True)).values()][1] == "against"


@pytest.mark.experiments
def test_a_head_that_shares_the_kernel_is_not_neglected(monkeypatch):
    even = xr.Dataset(
        {"share": (("step", "path"), np.full((1, 3), 1 / 3))}, coords={"path": list(models.PATHS)}
    )
    monkeypatch.setattr(models, "shares", lambda _: even)
    found = verdicts(models.paths(True))
    assert [*found.values()] == ["against"] * 2


def test_a_walk_is_read_from_weights():
    # Nothing; then an MLP that turns a tiny embedding round, w = -1; then the bigram by the same weights.
    source = mm.Binary(p=0.8, q=0.8)
    decoders = [bigram_model(source, tied=True).float() for _ in range(3)]
    with torch.no_grad():
        for decoder in decoders[:2]:
            decoder.embed.W_E.mul_(1e-2)
        decoders[0].blocks[0].mlp.W_out.zero_()
    runs = [mm.Run.from_model(decoder, source=source) for decoder in decoders]
    states = {name: torch.cat([run.states[name] for run in runs]) for name in runs[0].states}
    walk = training._Walk(dataclasses.replace(runs[0], steps=torch.tensor([0, 20, 40]), states=states))
    assert walk.w == pytest.approx([0, -1, -1], abs=1e-3)
    assert walk.slope == pytest.approx([0, 0, 1], abs=1e-3)
    assert (walk.leaves, walk.lag) == (40, 20)
    assert walk.head == pytest.approx(0, abs=1e-6)
    # The other way round it starts at the bigram, and has nothing to cross.
    states = {name: value.flip(0) for name, value in states.items()}
    walk = training._Walk(dataclasses.replace(runs[0], steps=torch.tensor([0, 20, 40]), states=states))
    assert (walk.leaves, walk.lag) == (0, 0)


@pytest.mark.experiments
def test_another_point_is_not_the_unigram_point(monkeypatch):
    # A bias that is not log pi has a gradient, and another Hessian.
    def shifted(source, *, tied):
        decoder = model(source, tied=tied)
        with torch.no_grad():
            decoder.unembed.b_U[0] += 0.1
        return decoder

    monkeypatch.setattr(landscape, "model", shifted)
    found = verdicts(landscape.points(True))
    assert list(found.values()) == ["for", *["against"] * 3]


@pytest.mark.experiments
def test_a_wrong_criterion_disagrees_with_training(monkeypatch):
    right = landscape.criterion

    def turned(source):
        return right(mm.Chain(np.array(source.P)[::-1].tolist()))

    monkeypatch.setattr(landscape, "criterion", turned)
    assert next(iter(verdicts(landscape.many_states(True)).values())) == "against"


@pytest.mark.parametrize("tied", [True, False])
def test_the_exact_loss_is_that_of_a_large_sample(tied):
    source = mm.Binary(p=0.3, q=0.9)
    generator = torch.Generator().manual_seed(0)
    loss = Loss(model(source, tied=tied), population(source))
    theta = loss.theta + 0.5 * torch.randn(len(loss.theta), generator=generator, dtype=torch.float64)
    exact = float(loss(theta))
    tokens = source.sample(200_000, 5, generator=generator)
    loss.data.__dict__.update(tokens=tokens, weight=torch.full((200_000,), 1 / 200_000, dtype=torch.float64))
    # A token's loss has a standard deviation of order one: 5 errors of a mean over 8e5 of them, not all
    # independent.
    assert exact == pytest.approx(float(loss(theta)), abs=0.01)


def test_the_closed_form_is_that_of_a_two_parameter_model():
    # logits <E_y, E_x> + b_y with d = 1, second differences by hand: no transformer, no autograd.
    p, q, h = 0.6, 0.7, 1e-3
    source = mm.Binary(p=p, q=q)

    def loss(embedding):
        logits = np.outer(embedding, embedding) + np.log(source.pi)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return -float(source.pi @ (source.P * logs).sum(-1))

    direction = np.array([1.0, -1.0]) / np.sqrt(2)
    curved = (loss(h * direction) - 2 * loss(np.zeros(2)) + loss(-h * direction)) / h**2
    found = closed_form(p, q, 20, tied=True)
    # The error of second differences is h² times fourth ones.
    assert np.isclose(found, curved, atol=1e-4).sum() == 4


def test_a_fresh_model_is_stuck_and_a_handset_one_is_not():
    run = mm.train(varied("binary-p05-q08-tied", "steps=1"), seed=0, progress=False)
    ends = fate([run])
    assert ends.stuck == 1
    assert ends.gap == pytest.approx(run.source.unigram_entropy - run.source.entropy_rate, rel=0.05)
    exact = mm.Run.from_model(bigram_model(run.source, tied=True), source=run.source)
    assert fate([exact]).excess == pytest.approx([0.0], abs=1e-9)
