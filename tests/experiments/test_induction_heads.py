"""Statistical induction heads: each check can fail, and the minimal model is its definition."""

import numpy as np
import pytest
import torch
import xarray as xr

import mechmarkov as mm
from experiments.induction_heads import (
    depths,
    further,
    minimal,
    minimal_claims,
    phases,
    public,
    shared,
    variants,
)
from experiments.induction_heads.posterior import posterior_mean
from mechmarkov.theory import predictors

AGAINST = "against"


@pytest.fixture
def untrained(small_runs):
    """Two runs that go nowhere."""
    recipe = shared.recipe("model.n_ctx=32", "steps=2", "checkpoints={every=1}", "optimiser.lr=1e-6")
    return small_runs(recipe, (0, 1))


def sequences(n_states=3, batch=4, length=9, **kinds):
    generator = torch.Generator().manual_seed(0)
    return mm.DirichletChains(n_states=n_states, **kinds).sample(batch, length, generator=generator)


def test_runs_that_learn_nothing_have_no_phases(untrained):
    data = [shared.distances(run) for run in untrained]
    assert {claim.direction for claim in phases.phase_claims("", data, "")} == {AGAINST}
    found = phases.heads(untrained[0], [0, 2])
    assert not phases.is_circuit(found, gap=0.1)
    assert phases.head_claims(3, [found], data[:1], "")[0].direction == AGAINST
    assert depths.circuit(untrained[0]) is None


def test_the_order_of_phases():
    uniform, unigram, bigram = phases.ORDER
    assert phases.in_order([uniform, unigram, unigram, bigram])
    assert not phases.in_order([uniform, bigram, unigram, bigram])
    assert not phases.in_order([unigram, bigram])
    assert not phases.in_order([uniform, unigram, bigram, unigram])


def test_the_last_step_is_measured_from_the_unigram_on():
    # Distances by hand: the unigram from step 20 on, a tenth of the way at 50, nine tenths at 60.
    steps = np.arange(0, 80, 10)
    way = np.array([-1.0, -0.5, 0.0, 0.0, 0.0, 0.2, 0.95, 1.0])
    kl = np.stack([[0.0, 0.1, *[9.0] * 6], [1.0, 0.5, 0.1, 0.1, 0.1, 0.2, 0.9, 1.0], 1 - way])
    data = xr.Dataset(
        {
            "kl": (("predictor", "step", "position"), kl[..., None].repeat(4, -1)),
            "apart": (("predictor", "position"), np.array([2.0, 1.0, 0.0])[:, None].repeat(4, -1)),
        },
        coords={"predictor": phases.ORDER, "step": steps},
    )
    assert phases.plateau_and_drop(data) == (30, 10)
    np.testing.assert_allclose(shared.gained(data), way, atol=1e-12)


def test_claims_on_depth_can_fail():
    reached, short = np.array([0.9, 0.8]), np.array([0.1, 0.2])
    assert [c.direction for c in depths.depth_claims(3, {1: short, 2: reached}, "")] == ["for", "for"]
    assert [c.direction for c in depths.depth_claims(3, {1: reached, 2: short}, "")] == [AGAINST, AGAINST]
    assert [c.direction for c in depths.place_claims({2: [(0, 1)], 3: [None]}, "")] == [AGAINST]
    _, lowest = depths.place_claims({2: [(0, 1)] * 8, 3: [(0, 1), (0, 2)]}, "")
    assert lowest.count == (1, 2)  # two layers have no other place
    assert [c.direction for c in depths.place_claims({3: [(1, 2)]}, "")] == ["for", AGAINST]


def test_claims_on_time_can_fail():
    early, late = np.array([10.0, 20.0]), np.array([50.0, 60.0])

    def direction(chains, even):
        times = {variants.CHAINS: chains, variants.LAWS["uniform"]: even}
        (found,) = variants.compare(3, "model", times, "")
        return found.direction, found.count

    assert direction(late, early) == ("for", (2, 2))
    assert direction(early, late) == (AGAINST, (0, 2))


def test_the_public_training_drops_and_learns():
    source = mm.DirichletChains(n_states=2, start="uniform")
    run = public.train(source, seed=0, steps=4, every=2, length=8)
    assert run.steps.tolist() == [0, 2, 4]
    assert not run.states["blocks.0.attn.b_V"].any()  # the public layers have no bias
    assert not torch.equal(run.states["blocks.0.attn.W_rel"][0], run.states["blocks.0.attn.W_rel"][-1])
    # Dropout is always on: the same tokens twice give other logits.
    model = public.dropped(run.config)
    model.load_state_dict(run.model().state_dict())
    tokens = source.sample(3, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(model(tokens), model(tokens))


def test_without_dropout_the_public_attention_is_the_decoders(monkeypatch):
    monkeypatch.setattr(public, "_kept", lambda *shape: torch.ones(shape))
    monkeypatch.setattr(public, "DROPOUT", 0.0)
    source = mm.DirichletChains(n_states=3, start="uniform")
    run = public.train(source, seed=1, steps=3, every=3, length=9)
    model = public.dropped(run.config)
    model.load_state_dict(run.model().state_dict())
    tokens = source.sample(4, 9, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), run.model()(tokens), rtol=1e-4, atol=1e-6)


def brute_force_logits(v, W, tokens, masked):
    n, out = len(W), np.zeros((len(tokens), len(W)))
    for t in range(len(tokens)):
        for i in range(t + 1):
            last = i + 1 if masked else len(tokens)
            weight = np.exp([v[max(i - s, 0)] for s in range(last)])
            mix = sum(w * np.eye(n)[tokens[s]] for s, w in enumerate(weight / weight.sum()))
            out[t, tokens[i]] += W[tokens[t]] @ mix
    return out


@pytest.mark.parametrize("masked", [True, False])
def test_the_minimal_model_against_its_definition(masked):
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    W = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    tokens = sequences(batch=4).unflatten(0, (2, 2))
    found = minimal.logits(v, W, tokens, masked)
    for seed, row in np.ndindex(2, 2):
        expected = brute_force_logits(v[seed].numpy(), W[seed].numpy(), tokens[seed, row].numpy(), masked)
        np.testing.assert_allclose(found[seed, row].numpy(), expected, atol=1e-12)


def test_the_ideal_minimal_model_counts_pairs():
    tokens = sequences(batch=1, length=20)
    v = minimal.clamped_layer_1(20)[None] * 5  # so sharp that the softmax is one-hot to 1e-20
    logits = minimal.logits(v, torch.eye(3, dtype=torch.float64)[None], tokens[None])[0, 0].numpy()
    states = tokens[0].numpy()
    for t in range(1, 20):
        pairs = [states[i] for i in range(1, t + 1) if states[i - 1] == states[t]]
        counts = np.bincount(pairs, minlength=3).astype(float)
        counts[states[0]] += states[0] == states[t]  # the first key has only itself to attend to
        np.testing.assert_allclose(logits[t], counts, atol=1e-9)


def test_claims_on_the_minimal_model_can_fail():
    chains = mm.DirichletChains(n_states=3, start="uniform")
    off = torch.eye(3, dtype=torch.float64)
    trajectory = minimal.train(
        chains, [0, 1], n_ctx=8, batch=4, steps=2, every=1, lr_W=0.0, lr_v=0.0, start_W=off
    )
    near = minimal_claims.late_distances(trajectory, chains)
    assert {claim.direction for claim in minimal_claims.order_claims(trajectory, near, "")} == {AGAINST}
    assert minimal_claims.drop_claim(trajectory, near, "").direction == AGAINST
    assert minimal_claims.held_claim(trajectory, trajectory, trajectory, "").direction == AGAINST
    (alike,) = minimal_claims.mask_claims(near, near, "")
    assert alike.direction == "for"  # a mask that changes nothing


def test_the_posterior_mean_of_a_uniform_start_is_the_counts():
    tokens = sequences(n_states=2, length=40).numpy()
    counts = predictors.in_context_bigram(tokens, 2)
    np.testing.assert_allclose(posterior_mean(tokens, stationary=False), counts, atol=1e-12)


def test_the_posterior_mean_of_a_stationary_start_against_sampled_chains():
    tokens = np.array([[1, 1, 0, 1]])
    chains = mm.DirichletChains(n_states=2).sample_chains(200_000, generator=torch.Generator().manual_seed(0))
    P = chains.numpy()
    weight = P[:, 0, 1] / (P[:, 0, 1] + P[:, 1, 0])  # the stationary law of state 1
    for a, b in zip(tokens[0, :-1], tokens[0, 1:], strict=True):
        weight = weight * P[:, a, b]
    expected = (weight * P[:, tokens[0, -1], 1]).sum() / weight.sum()
    found = posterior_mean(tokens, stationary=True)[0, -1, 1]
    assert found == pytest.approx(expected, abs=0.003)  # five standard errors of 200 000 weighted draws
    assert abs(found - predictors.in_context_bigram(tokens, 2)[0, -1, 1]) > 0.005


def test_other_counts_are_not_the_posterior(monkeypatch):
    monkeypatch.setattr(predictors, "in_context_bigram", predictors.in_context_unigram)
    assert [claim.direction for claim in further.posterior(True).findings] == [AGAINST]
