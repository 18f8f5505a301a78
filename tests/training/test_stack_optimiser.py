"""The stack's optimiser and scaler against torch's own, member by member."""

import math

import pytest
import torch

from mechmarkov.training.optimisers import INITIAL_SCALE, StackOptimiser, StackScaler, learning_rate
from mechmarkov.training.sections import AdamW, GradientDescent

STEPS = 12
NAMES = {"block.W_Q": (3, 2), "block.b_Q": (2,), "embed.W_E": (4, 3)}  # the first alone is decayed
ADAM = [
    AdamW(lr=0.02, weight_decay=0.3, warmup=0.3),
    AdamW(lr=0.5, weight_decay=0.0, schedule="constant"),
    AdamW(lr=1e-3, weight_decay=2.0, warmup=0.5, div_factor=7.0, final_div_factor=3.0),
    AdamW(lr=0.02, max_grad_norm=3.0),  # shorter than every gradient here
    AdamW(lr=0.02, max_grad_norm=1e3),  # longer
]
PLAIN = [GradientDescent(lr=0.1), GradientDescent(lr=3.0)]


def gradients(step, stack):
    generator = torch.Generator().manual_seed(step)
    # Some are tiny, so that AdamW's eps counts.
    sizes = [10.0 ** (-3 * i) for i in range(len(NAMES))]
    shapes = [(stack, *shape) for shape in NAMES.values()]
    return [size * torch.randn(shape, generator=generator) for size, shape in zip(sizes, shapes, strict=True)]


def start(stack):
    generator = torch.Generator().manual_seed(99)
    return {name: torch.randn(stack, *shape, generator=generator) for name, shape in NAMES.items()}


def by_torch(settings, member, stack, skipped=()):
    """One member, trained by torch's optimiser, its learning rate set by hand."""
    parameters = {name: value[member].clone().requires_grad_() for name, value in start(stack).items()}
    if isinstance(settings, GradientDescent):
        optimiser = torch.optim.SGD(parameters.values(), lr=1.0)
    else:
        decays = [settings.weight_decay if name == "block.W_Q" else 0.0 for name in parameters]
        pairs = zip(parameters.values(), decays, strict=True)
        groups = [{"params": [p], "weight_decay": d} for p, d in pairs]
        optimiser = torch.optim.AdamW(groups, lr=1.0, betas=settings.betas, eps=settings.eps, foreach=False)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(settings, step, STEPS)
        for parameter, gradient in zip(parameters.values(), gradients(step, stack), strict=True):
            parameter.grad = gradient[member].clone()
        if isinstance(settings, AdamW) and settings.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters.values(), settings.max_grad_norm)
        if step not in skipped:
            optimiser.step()
    return parameters


@pytest.mark.parametrize("settings", [ADAM, PLAIN], ids=["adamw", "gd"])
def test_every_member_moves_as_under_torchs_optimiser(settings):
    stack = len(settings)
    parameters = start(stack)
    optimiser = StackOptimiser(settings, parameters, STEPS)
    for step in range(STEPS):
        optimiser.step(optimiser.flatten(gradients(step, stack)), optimiser.rates(step))
    for member, own in enumerate(settings):
        for name, expected in by_torch(own, member, stack).items():
            # Rounding of another order of the same operations, at weights of order one.
            torch.testing.assert_close(parameters[name][member], expected.detach(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("settings", [ADAM, PLAIN], ids=["adamw", "gd"])
def test_a_step_sat_out_leaves_no_trace(settings):
    stack = len(settings)
    parameters = start(stack)
    optimiser = StackOptimiser(settings, parameters, STEPS)
    for step in range(STEPS):
        flat = optimiser.flatten(gradients(step, stack))
        taken = torch.ones(stack, dtype=torch.bool)
        if step in (0, 5):
            flat[1], taken[1] = float("nan"), False
        optimiser.step(flat, optimiser.rates(step), taken)
    for member, own in enumerate(settings):
        expected = by_torch(own, member, stack, skipped=(0, 5) if member == 1 else ())
        for name, value in expected.items():
            torch.testing.assert_close(parameters[name][member], value.detach(), rtol=2e-6, atol=2e-6)


def test_what_it_remembers_comes_back_to_the_bit():
    one, parameters = None, start(len(ADAM))
    optimiser = StackOptimiser(ADAM, parameters, STEPS)
    for step in range(STEPS):
        if step == 5:
            one = {name: value.clone() for name, value in parameters.items()}
            other = StackOptimiser(ADAM, one, STEPS)
            other.restore(optimiser.state())
        flat = optimiser.flatten(gradients(step, len(ADAM)))
        optimiser.step(flat, optimiser.rates(step))
        if one is not None:
            other.step(flat, other.rates(step))
    for name, value in parameters.items():
        assert torch.equal(value, one[name])


def test_what_changes_changes_in_place():
    """As a CUDA graph needs it, which is recorded once."""
    parameters = start(len(ADAM))
    optimiser, scaler = StackOptimiser(ADAM, parameters, STEPS), StackScaler(len(ADAM), torch.device("cpu"))
    places = [x.data_ptr() for x in tensors_of(optimiser, scaler, parameters)]
    before = [x.clone() for x in tensors_of(optimiser, scaler, parameters)]
    flat = optimiser.flatten(gradients(0, len(ADAM)))
    flat[0] = math.inf
    found, taken = scaler.unscale(flat)
    optimiser.step(found, optimiser.rates(0), taken)
    optimiser.restore(optimiser.state())
    scaler.restore(scaler.state())
    after = tensors_of(optimiser, scaler, parameters)
    assert [x.data_ptr() for x in after] == places
    assert not any(torch.equal(x, y) for x, y in zip(after, before, strict=True))


def tensors_of(optimiser, scaler, parameters):
    own = [optimiser._mean, optimiser._square, optimiser._taken]
    return [*own, scaler.factor, scaler._since_growth, *parameters.values()]


def test_a_scaler_a_member_is_torchs():
    """Overflow at steps of its own for each; torch's scaler, one a member, is the oracle."""
    overflows = [{3, 4}, set(), {0, 10}]
    ours = StackScaler(3, torch.device("cpu"))
    theirs = [torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE, growth_interval=2000) for _ in overflows]
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in overflows]
    optimisers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    for step in range(2010):
        true = torch.full((3, 2), 0.25)
        scaled = true * ours.factor[:, None]
        for member, bad in enumerate(overflows):
            if step in bad:
                scaled[member, 1] = float("inf")
            theirs[member].scale(weights[member].sum())
            weights[member].grad = scaled[member].clone()
            theirs[member].step(optimisers[member])
            theirs[member].update()
        found, finite = ours.unscale(scaled)
        assert finite.tolist() == [step not in bad for bad in overflows]
        assert torch.equal(found[finite], true[finite])
        if step in (2, 3, 4, 11, 1998, 1999, 2000, 2005, 2009):
            assert ours.factor.tolist() == [scaler.get_scale() for scaler in theirs], step
    assert ours.factor.tolist() == [INITIAL_SCALE / 2, INITIAL_SCALE * 2, INITIAL_SCALE / 4]
