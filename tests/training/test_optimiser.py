"""Optimisers and schedules against torch's own and against loops written out here."""

import numpy as np
import pytest
import torch
from fitting import BASE, fit
from torch.nn.functional import cross_entropy

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.sources import Binary, Circle
from mechmarkov.training.data import data_seed
from mechmarkov.training.optimisers import learning_rate
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.sections import AdamW, GradientDescent

SMALL = BASE.replace(
    **{"source.p": 0.5, "source.q": 0.8, "model.d_model": 4, "model.n_ctx": 10, "data": {"n_train": 8}}
)


@pytest.mark.parametrize(("steps", "warmup"), [(400, 0.02), (50, 0.3), (50, 0.02), (7, 0.5), (10, 0.0)])
def test_one_cycle_is_torchs(steps, warmup):
    settings = AdamW(lr=2e-3, warmup=warmup)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.AdamW([parameter], lr=1.0)
    if warmup * steps == 1:  # torch divides by zero: a warm-up of one step is the peak itself
        assert learning_rate(settings, 0, steps) == settings.lr
        return
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser,
        max_lr=2e-3,
        total_steps=steps,
        pct_start=warmup,
        anneal_strategy="cos",
        cycle_momentum=False,
        div_factor=1e2,
        final_div_factor=0.05,
    )
    for step in range(steps):
        assert learning_rate(settings, step, steps) == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimiser.step()
        if step < steps - 1:
            schedule.step()


@pytest.mark.parametrize(("steps", "warmup"), [(40, 0.25), (7, 0.5), (50, 0.02), (10, 0.0)])
def test_a_warm_up_before_a_constant_rate(steps, warmup):
    settings = AdamW(lr=2e-3, schedule="constant_with_warmup", warmup=warmup, div_factor=20)
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    rises = warmup * steps  # torch counts whole steps
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / 20, total_iters=rises) if rises else None
    for step in range(steps):
        expected = schedule.get_last_lr()[0] if schedule and step <= rises else 2e-3
        assert learning_rate(settings, step, steps) == pytest.approx(expected, rel=1e-9)
        optimiser.step()
        if schedule and step < rises - 1:
            schedule.step()
        elif schedule:
            schedule = None
    assert learning_rate(settings, 0, steps) == pytest.approx(2e-3 / 20 if warmup else 2e-3)


def test_constant_rates():
    # A recipe that warms up may be given another schedule only: `warmup` is not for `constant`.
    for warmup in (0.02, 0.5):
        settings = AdamW(lr=0.3, schedule="constant", warmup=warmup)
        assert {learning_rate(settings, step, 9) for step in range(9)} == {0.3}
    assert learning_rate(GradientDescent(lr=0.5), 3, 9) == 0.5


MIXERS = {
    "attention": {},
    "grouped": {"n_heads": 2, "n_key_value_heads": 1},
    "Mamba-2": {"mixer": "mamba", "d_state": 3, "n_heads": 2, "n_groups": 1, "normalization_type": "RMS"},
    "Mamba": {"mixer": "mamba1", "d_state": 3, "n_heads": 2, "d_head": 1, "normalization_type": "RMS"},
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_adamw_with_one_cycle_is_torchs_loop(mixer):
    changes = {f"model.{name}": value for name, value in mixer.items()}
    recipe = SMALL.replace(optimiser={"kind": "adamw", "lr": 0.02, "weight_decay": 0.5}, **changes)
    fitted = fit(recipe, [3])

    model = HookedDecoder(recipe.decoder_config)
    initialise(model, [3], scheme="gpt2", std=0.02)
    generator = torch.Generator().manual_seed(data_seed(3))
    states = Binary(p=0.5, q=0.8).sample(8, 11, generator=generator)
    named = dict(model.named_parameters())
    free = [name for name in named if "W_" not in name or name in ("embed.W_E", "pos_embed.W_pos")]
    matrices, rest = [named[name] for name in named if name not in free], [named[name] for name in free]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}],
        lr=1.0,
        betas=(0.9, 0.95),
        fused=False,
        foreach=False,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.02, 20, pct_start=0.02, cycle_momentum=False, div_factor=100, final_div_factor=0.05
    )
    losses = []
    for step in range(20):
        loss = cross_entropy(model(states[:, :-1]).flatten(0, 1), states[:, 1:].flatten())
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step < 19:
            schedule.step()
    np.testing.assert_allclose(fitted.metrics["loss"][:-1, 0].numpy(), losses, rtol=1e-5)
    trained, _ = fitted.member(0)
    moved = 0.0
    for name, tensor in model.state_dict().items():
        if name.endswith("b_K"):  # its gradient is zero but for rounding, which Adam divides by rounding
            continue
        # Adam divides small gradients by their own size: another order of summation moves such an entry.
        torch.testing.assert_close(trained[name][-1], tensor, rtol=1e-3, atol=1e-4)
        moved = max(moved, float((trained[name][-1] - trained[name][0]).abs().max()))
    assert moved > 0.05  # far more than the tolerance


def test_descent_on_the_walk_is_a_numpy_loop():
    K, N, lr, eps = 4, 6, 1.0, 0.1
    recipe = Recipe.from_data(
        {
            "name": "walk",
            "source": {"kind": "circle", "n_states": K, "p": 0.7},
            "model": {"kind": "walk", "n_ctx": N, "n_positions": 9, "positions": "sine", "dtype": "float64"},
            "objective": {"kind": "raw_log", "eps": eps, "read": "last", "query": True},
            "init": {"scheme": "normal", "std": 0.01},
            "optimiser": {"kind": "gd", "lr": lr},
            "data": {"n_train": 30},
            "steps": 10,
            "checkpoints": {"every": 1},
        }
    )
    fitted = fit(recipe, [5])
    states = Circle(n_states=K, p=0.7).sample(30, N, generator=torch.Generator().manual_seed(data_seed(5)))
    P = np.sin(np.outer(np.arange(1, N + 1), np.arange(1, 10)) * np.pi / 10)
    norm = np.sqrt(5.0)
    V = fitted.checkpoints[0]["blocks.0.attn.W_O"][0, 0, :, :K].numpy().T
    u = fitted.checkpoints[0]["blocks.0.attn.W_K"][0, 0, :, 0].numpy()
    assert 0.005 < V.std() < 0.02
    losses = []
    for step in range(11):
        np.testing.assert_allclose(
            fitted.checkpoints[step]["blocks.0.attn.W_O"][0, 0, :, :K].numpy().T, V, rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(
            fitted.checkpoints[step]["blocks.0.attn.W_K"][0, 0, :, 0].numpy(), u, rtol=1e-9, atol=1e-12
        )
        dV, du, loss = np.zeros_like(V), np.zeros_like(u), 0.0
        for walk in states.numpy():
            X = np.concatenate([np.eye(K)[walk[:-1]], np.zeros((1, K))])
            keys = norm * np.concatenate([X, P], 1)
            S = np.exp(keys @ u)
            S /= S.sum()
            z = V[walk[-1]] @ X.T @ S
            loss -= np.log(z + eps) / 30
            slope = -1 / (z + eps) / 30
            dV[walk[-1]] += slope * (X.T @ S)
            dS = slope * (X @ V[walk[-1]])
            du += keys.T @ (S * (dS - S @ dS))
        losses.append(loss)
        V, u = V - lr * dV, u - lr * du
    np.testing.assert_allclose(fitted.metrics["loss"][:, 0].numpy(), losses, rtol=1e-9)
    assert losses[-1] < losses[0] - 0.2
