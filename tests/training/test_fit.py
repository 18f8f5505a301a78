"""The trainer: same bits for same seeds, a stack that equals its members, resuming, frozen parts."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from fitting import BASE, fit, fit_anew, same_bits
from threadpoolctl import threadpool_info

from mechmarkov.sources import Binary
from mechmarkov.training.data import Batches, data_seed
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.sections import Data
from mechmarkov.training.workload import members_of
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.threads import threads

DECODER = BASE.replace(**{"model.n_layers": 2, "checkpoints": {"every": 5}})
WALK = load_recipe("walk-k6-half").with_set(["steps=20", "data.n_train=50", "checkpoints={every=5}"])
RECIPES = {
    "decoder": DECODER,
    "tied": DECODER.with_set(["model.tied=true", "model.normalization_type=none"]),
    "scaled": DECODER.with_set(["precision=float16", "grad_scaler=true"]),
    "walk": WALK,
    "full": WALK.with_set(["model.form=full", "init={scheme='normal', std=0.01}"]),
}


@pytest.fixture(params=RECIPES)
def recipe(request):
    return RECIPES[request.param]


def test_a_seed_decides_every_bit(recipe):
    one = fit(recipe, [0])
    same_bits(one, fit_anew(recipe, [0]))
    assert not torch.equal(one.metrics["loss"], fit(recipe, [1]).metrics["loss"])
    assert sorted(one.checkpoints) == [0, 5, 10, 15, 20]


def test_a_stack_is_its_members(recipe):
    # Some processors multiply float16 themselves, and round a stack otherwise than one model, by 2^-11. AdamW
    # takes steps of 0.01 whatever the gradient's size, so a gradient of that size moves by half a step.
    close = 5e-3 if recipe.precision == "float16" else 1e-5
    seeds = [4, 0, 9]
    stack = fit(recipe, seeds)
    for index, seed in enumerate(seeds):
        alone = fit(recipe, [seed])
        for name, tensor in alone.checkpoints[0].items():
            assert torch.equal(stack.checkpoints[0][name][index], tensor[0]), name
        for name, tensor in alone.checkpoints[20].items():
            torch.testing.assert_close(stack.checkpoints[20][name][index], tensor[0], rtol=0, atol=close)
        first, last = alone.checkpoints[0], alone.checkpoints[20]
        moved = max(float((last[name] - first[name]).abs().max()) for name in first)
        assert moved > 1e-2  # far more than the tolerance


def batches_of(source, data, length, seeds):
    recipe = DECODER.replace(source=source.model_dump(), data=data.model_dump())
    return Batches(members_of(recipe, seeds), length, torch.device("cpu"))


@pytest.mark.parametrize("data", [Data(batch=3), Data(n_train=5)], ids=["fresh", "fixed"])
def test_a_member_has_its_own_data(data):
    source, seeds = Binary(p=0.4, q=0.7), [2, 11]
    together = batches_of(source, data, 9, seeds)
    alone = [batches_of(source, data, 9, [seed]) for seed in seeds]
    seen = []
    for step in range(6):
        batch = together.at(step)
        for index, member in enumerate(alone):
            assert torch.equal(batch[index], member.at(step)[0])
        seen.append(batch[0])
    assert torch.equal(seen[0], seen[1]) == (data.n_train is not None)
    generator = torch.Generator().manual_seed(data_seed(2))
    if data.n_train is not None:
        assert torch.equal(seen[0], source.sample(5, 9, generator=generator))


def test_fresh_batches_across_chunks_resume_where_they_were():
    source = Binary(p=0.4, q=0.7)
    data, length = Data(batch=1 << 10), 16  # four steps a chunk
    batches = batches_of(source, data, length, [0])
    all_of_them = [batches.at(step).clone() for step in range(9)]
    assert not torch.equal(all_of_them[0], all_of_them[4])
    for stop in range(1, 9):
        first = batches_of(source, data, length, [0])
        for step in range(stop):
            first.at(step)
        second = batches_of(source, data, length, [0])
        second.restore(first.state(stop))
        for step in range(stop, 9):
            assert torch.equal(second.at(step), all_of_them[step]), (stop, step)


@cache
def _snapshots(name, seeds):
    kept = {}
    fit_anew(RECIPES[name], seeds, on_step=lambda step, snapshot: kept.update({step: snapshot()}))
    return kept


def snapshots(recipe, seeds):
    """What each step would leave to an interrupted training; a copy, which may be changed."""
    (name,) = (name for name, known in RECIPES.items() if known is recipe)
    return deepcopy(_snapshots(name, tuple(seeds)))


@pytest.mark.parametrize("stop", [1, 7, 19])
def test_resuming_gives_the_bits_of_an_uninterrupted_run(recipe, stop):
    snapshot = snapshots(recipe, [0, 3])[stop]
    steps = []
    resumed = fit_anew(recipe, [0, 3], resume_from=snapshot, on_step=lambda step, _: steps.append(step))
    assert steps == list(range(stop + 1, 21))
    same_bits(fit(recipe, [0, 3]), resumed)


def test_only_the_trainable_parts_move():
    slices = {"blocks.0.attn.W_K": [[0, 1], [2, 5], [0, 4]], "unembed.W_U": None}
    recipe = DECODER.replace(trainable=slices, optimiser={"weight_decay": 0.5, "kind": "adamw"})
    states, _ = fit(recipe, [0]).member(0)
    for name, values in states.items():
        if name not in slices:
            assert len(values) == 1, name
    W_K = states["blocks.0.attn.W_K"]
    moved = (W_K[-1] != W_K[0]).nonzero()
    assert moved.amin(0).tolist() == [0, 2, 0]
    assert moved.amax(0).tolist() == [0, 4, 3]
    assert len(states["unembed.W_U"]) == 5


def test_clipping_counts_only_what_may_move():
    """Gradients of frozen entries are long; were they counted, the rest would be shortened."""
    slices = {"blocks.0.attn.W_K": [[0, 1], [2, 5], [0, 4]]}
    longest = 7e-6  # that of these entries is at most 5.2e-6, that of all of W_K mostly above 9e-6
    free, clipped = (
        fit(DECODER.replace(trainable=slices, optimiser={"kind": "adamw"} | more), [0]).member(0)[0][
            "blocks.0.attn.W_K"
        ]
        for more in ({}, {"max_grad_norm": longest})
    )
    assert torch.equal(free, clipped)


def test_parameters_frozen_by_their_ending_stay():
    recipe = DECODER.replace(frozen=["b_V", "b_O"], optimiser={"kind": "adamw"})
    states, _ = fit(recipe, [0]).member(0)
    assert not states["blocks.0.attn.b_V"].any()
    assert len(states["blocks.0.attn.b_O"]) == 1
    assert len(states["blocks.0.attn.W_V"]) == 5
    assert "blocks.0.attn.b_V" not in recipe.trainable_slices
    assert recipe.trainable_slices["blocks.0.attn.W_V"] is None
    slices = {"blocks.0.attn.W_V": None, "blocks.0.attn.b_V": None}
    both = recipe.replace(**{"trainable": slices})
    assert both.trainable_slices == {"blocks.0.attn.W_V": None}


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        ({"blocks.0.attn.W_X": None}, "trainable names 'blocks.0.attn.W_X', which is not a parameter"),
        ({"unembed.b_U": [[0, 3]]}, r"trainable.unembed.b_U is \[\[0, 3\]\], expected \[start, stop\]"),
        ({"unembed.b_U": [[0, 1], [0, 1]]}, "trainable.unembed.b_U is"),
    ],
)
def test_a_misfitting_trainable_part_is_named(trainable, message):
    with pytest.raises(ValueError, match=message):
        fit(DECODER.replace(trainable=trainable), [0])


def test_one_diverging_member_does_not_disturb_the_others():
    recipe = RECIPES["decoder"].with_set(["model.normalization_type=none", "optimiser={kind='gd', lr=0.5}"])
    healthy, bad = fit(recipe, [0]), fit(recipe, [0, 1])
    assert not bad.diverged(0)
    wild = recipe.with_set(["optimiser.lr=1e6"])
    assert fit(wild, [0]).diverged(0)

    kept = []
    fit_anew(recipe, [0, 1], on_step=lambda step, snapshot: kept.append(snapshot()) if step == 5 else None)
    kept[0]["parameters"]["embed.W_E"][1] = float("nan")
    poisoned = fit_anew(recipe, [0, 1], resume_from=kept[0])
    assert poisoned.diverged(1)
    assert not poisoned.diverged(0)
    for name, tensor in healthy.checkpoints[20].items():
        torch.testing.assert_close(poisoned.checkpoints[20][name][0], tensor[0], rtol=0, atol=1e-5)


def test_devices():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ValueError, match="device is 'tpu', expected 'auto', 'cpu' or 'cuda'"):
        pick_device("tpu")


def blas_threads():
    """Of numpy's BLAS and of scipy's."""
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.mark.parametrize("count", [1, 2])  # one of them is not what there was
def test_threads_are_put_back_after_an_error(count):
    before = torch.get_num_threads()

    def fail():
        with threads(count):
            assert torch.get_num_threads() == count
            assert blas_threads()
            assert {*blas_threads()} == {count}
            raise KeyError("inside")

    blas_before = blas_threads()
    with pytest.raises(KeyError):
        fail()
    assert (torch.get_num_threads(), blas_threads()) == (before, blas_before)
