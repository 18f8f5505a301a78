"""Training of a stack as tests want it: with its weights in their own precision, and each step at hand."""

import json

import torch

from mechmarkov.training.plan import Stack
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.stack import Fitted, StackInTraining, solved
from mechmarkov.training.workload import members_of, workload_of
from mechmarkov.utils.device import pick_device

BASE = Recipe.from_data(
    {
        "name": "base",
        "source": {"kind": "binary", "p": 0.2, "q": 0.3},
        "model": {"kind": "decoder", "n_layers": 1, "d_model": 8, "d_head": 4, "n_ctx": 12},
        "optimiser": {"kind": "adamw", "lr": 0.01},
        "data": {"batch": 4},
        "steps": 20,
        "checkpoints": {"every": 10},
    }
)
_DONE: dict[tuple[str, tuple[int, ...]], Fitted] = {}


def stack_of(members):
    """The members as one stack, without files."""
    return Stack(tuple(range(len(members))), tuple(members), workload_of(members[0].recipe))


def start_of(members, device="cpu"):
    """The members as one stack, before the first step."""
    return StackInTraining(stack_of(members), pick_device(device) if isinstance(device, str) else device)


def take_step(training):
    """One step of a stack in training."""
    drawn = () if training.fixed else (training.batches.at(training.step),)
    training.record(training.launch(training.update, training.optimiser.rates(training.step), *drawn))


def fit_members(members, device="cpu", *, resume_from=None, on_step=None):
    """What training gave; `on_step` gets each step's number and what takes a snapshot."""
    recipe = members[0].recipe
    if not recipe.model.shares_stacks:
        return solved(stack_of(members))
    training = start_of(members, device)
    if resume_from is not None:
        training.restore(resume_from)
    while training.step < recipe.steps:
        take_step(training)
        if on_step is not None:
            on_step(training.step, training.snapshot)
    return training.fitted()


def fit_anew(recipe, seeds, **options):
    """The same of one recipe's seeds."""
    return fit_members(members_of(recipe, seeds), **options)


def fit(recipe, seeds):
    """The same, done once and shared; not to be changed, since other tests read it too."""
    key = json.dumps(recipe.to_data(), sort_keys=True), tuple(seeds)
    if key not in _DONE:
        _DONE[key] = fit_anew(recipe, seeds)
    return _DONE[key]


def same_run(one, other, atol=0.0):
    """Two runs hold the same weights, to the bit or to a distance, and the same metrics, steps and recipe."""
    assert one.states.keys() == other.states.keys()
    for name, value in one.states.items():
        torch.testing.assert_close(value, other.states[name], rtol=0, atol=atol)
    for name, curve in one.metrics.items():
        torch.testing.assert_close(curve["value"], other.metrics[name]["value"], rtol=0, atol=atol)
    assert torch.equal(one.steps, other.steps)
    assert (one.seed, one.recipe, one.trainable) == (other.seed, other.recipe, other.trainable)


def same_bits(one, other):
    """Two trainings gave the same weights at the same steps, and the same metrics."""
    assert one.checkpoints.keys() == other.checkpoints.keys()
    for step, states in one.checkpoints.items():
        assert states.keys() == other.checkpoints[step].keys()
        for name, tensor in states.items():
            assert torch.equal(tensor, other.checkpoints[step][name]), (step, name)
    for name, values in one.metrics.items():
        assert torch.equal(values, other.metrics[name]), name
