"""The memory of a training and its split: estimates by hand, limits at their edges."""

import re

import pytest
from fitting import BASE

from mechmarkov.models.config import DecoderConfig
from mechmarkov.training.model_sections import _activation_bytes, _saved_bytes
from mechmarkov.training.plan import plan_training
from mechmarkov.training.recipe import RecipeError, load_recipe
from mechmarkov.training.sections import Checkpoints
from mechmarkov.training.split import split_fleet
from mechmarkov.training.train import train
from mechmarkov.training.workload import Member, members_of, workload_of

EACH = workload_of(BASE).bytes
PLAIN = {
    "n_layers": 1, "d_model": 8, "d_head": 4, "n_heads": 2, "n_ctx": 16, "d_vocab": 4, "d_vocab_out": 3,
    "attn_only": True, "normalization_type": None,
}  # fmt: skip
MLP = {"attn_only": False, "d_mlp": 32, "act_fn": "silu"}
EMBEDDED = 4 * 8 + 4 * 3 + 2 * 4  # the stream, the logits, the tokens
LAYER = 5 * 8 + 5 * 8  # heads, the stream


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, LAYER + EMBEDDED),
        ({"n_layers": 3}, 3 * LAYER + EMBEDDED),
        ({"normalization_type": "LN"}, LAYER + 6 * 8 + EMBEDDED),
        (MLP, LAYER + 3 * 32 + EMBEDDED),
        (MLP | {"gated_mlp": True}, LAYER + 6 * 32 + EMBEDDED),
        ({"n_key_value_heads": 1}, LAYER + 2 * 8 + EMBEDDED),
        ({"use_qk_norm": True}, LAYER + 6 * 8 + EMBEDDED),
    ],
)
def test_activations_of_a_token_are_counted(changes, numbers):
    """Five numbers a dimension of heads and of the stream, six of a norm, three of a hidden unit; twice."""
    assert _activation_bytes(DecoderConfig(**PLAIN | changes), 2, 15) == 2 * 15 * numbers * 2 * 4


def test_scores_of_lags_are_counted_five_times():
    plain = DecoderConfig(**PLAIN | {"n_layers": 2})
    lags = DecoderConfig(**PLAIN | {"n_layers": 2, "positional_embedding_type": "relative"})
    more = _activation_bytes(lags, 3, 15) - _activation_bytes(plain, 3, 15)
    assert more == 3 * 2 * 15**2 * 5 * 2 * 2 * 4  # sequences, heads, pairs, times, layers; twice 4 bytes


def test_a_state_space_takes_what_it_saves_and_more():
    config = load_recipe("in-context-k3-mamba").with_set(["model.n_ctx=8"]).decoder_config
    assert _activation_bytes(config, 2, config.n_ctx) == int(2.5 * _saved_bytes(config, 2))


@pytest.mark.parametrize(("form", "dtype"), [("small", "float32"), ("small", "float64"), ("full", "float32")])
def test_a_walk_takes_its_one_hot_sequences(form, dtype):
    section = load_recipe("walk-k6-half").with_set([f"model.form={form}", f"model.dtype={dtype}"]).model
    config = section.decoder_config(6)
    size, kept = 4 if dtype == "float32" else 8, section.checkpoint_bytes(config)
    weights = 7 * 7 + (config.d_model**2 if form == "full" else config.d_model)
    for checkpoints in (0, 3):
        expected = size * (4 * 5 * 97 * (7 + 2) + 6 * weights) + kept * (1 + checkpoints)
        assert section.member_bytes(config, 5, 97, checkpoints) == expected


def test_drawn_sequences_take_three_integers_a_state():
    """A fixed set is drawn once; of fresh ones up to 2^20 states lie ready, or one batch."""

    def drawn(*changes):
        work = workload_of(BASE.with_set(changes))
        own = work.recipe.model.member_bytes(work.config, work.sequences, work.length, len(work.checkpoints))
        return (work.bytes - own) / (3 * 8) / work.length

    assert workload_of(BASE).length == 13  # a target behind each of 12 tokens
    assert drawn("data={n_train=5}") == 5
    assert drawn("steps=20", "data={batch=4}") == 4 * 20


def test_a_fleet_is_split_no_further_than_it_pays():
    works = [workload_of(BASE)] * 10  # of 48 tokens each

    def sizes(budget=10**12, **limits):
        return [len(stack) for stack in split_fleet(works, budget, **limits)]

    assert works[0].tokens == 4 * 12
    assert split_fleet(works, 10 * EACH) == [list(range(10))]
    assert sizes(4 * EACH) == [4, 4, 2]
    assert sizes(4 * EACH, at_once=2) == [2] * 5
    assert sizes(most=5 * 4 * 12) == [5, 5]
    assert sizes(at_once=2, least=240) == [5, 5]
    assert sizes(at_once=2, least=241) == [10]
    assert sizes(at_once=2, least=10**6) == [10]
    assert sizes(at_once=20) == [1] * 10
    assert sizes(at_once=3) == [4, 4, 2]
    assert sizes(most=95) == sizes(most=1) == [1] * 10
    assert sizes(most=96) == [2] * 5
    assert sizes(EACH) == [1] * 10
    assert sizes(2 * EACH) == [2] * 5
    assert sizes(2 * EACH - 1) == [1] * 10
    assert sizes(EACH, at_once=3) == [1] * 10
    with pytest.raises(ValueError, match="but one model of recipe 'base' needs about"):
        sizes(EACH - 1)


def test_shapes_that_take_turns_keep_their_places():
    wide = workload_of(BASE.with_set(["model.d_model=16"]))
    assert split_fleet([works := workload_of(BASE), wide, works, wide, wide], 10**12) == [[0, 2], [1, 3, 4]]


def test_half_a_plan_still_holds_its_largest():
    members = members_of(BASE, range(4))

    def halved(memory):
        smaller = plan_training(members, device="cpu", memory=memory, at_once=1).halved()
        return smaller and (smaller.memory, smaller.at_once, len(smaller.stacks))

    assert halved(2 * EACH) == (EACH, 1, 4)
    assert halved(2 * EACH - 1) is None
    assert halved(100 * EACH) == (2 * EACH, 1, 2)  # of the whole fleet, not of what it may take


def test_a_seed_is_below_two_to_the_63():
    plan = plan_training([Member(BASE, 2**63 - 1)], device="cpu")
    assert plan.members[0].seed == 2**63 - 1
    with pytest.raises(ValueError, match=rf"^seed is {2**63}, expected an integer from 0 to 2\^63 - 1$"):
        plan_training([Member(BASE, 2**63)], device="cpu")


@pytest.mark.parametrize(("count", "end"), [(20, "0, 0]"), (21, "0, 0, …]")])
def test_twenty_wrong_seeds_are_told(count, end):
    with pytest.raises(ValueError, match=r"^seeds are \[0, 0, ") as error:
        plan_training([Member(BASE, 0)] * count, device="cpu")
    assert str(error.value).startswith(f"seeds are [{'0, ' * 18}{end}, expected different integers")


def test_a_hundred_thousand_seeds_are_taken_at_most():
    with pytest.raises(RecipeError, match="no-such"):
        train("no-such", seeds=range(100_000))
    for count in (100_001, 10**9):  # the latter would take long to list
        with pytest.raises(ValueError, match=rf"^seeds are {count}, expected at most 100000$"):
            train("no-such", seeds=range(count))


@pytest.mark.parametrize("key", ["batch", "n_train"])
def test_a_batch_has_two_to_the_28_states_at_most(key):
    recipe = BASE.with_set(["model.n_ctx=16"])
    assert getattr(recipe.with_set([f"data={{{key}={2**24}}}"]).data, key) == 2**24
    words = f"data.{key} is {2**24 + 1}, expected at most {2**24} sequences of model.n_ctx 16"
    with pytest.raises(RecipeError, match=re.escape(words)):
        recipe.with_set([f"data={{{key}={2**24 + 1}}}"])


def test_checkpoints_take_four_gigabytes_at_most():
    recipe = BASE.with_set(["checkpoints={every=1}", "model.d_model=104", "model.d_head=104"])
    each = recipe.model.checkpoint_bytes(recipe.decoder_config)
    most = 2**32 // each
    assert len(recipe.with_set([f"steps={most - 1}"]).checkpoint_steps) == most
    with pytest.raises(RecipeError, match=rf"checkpoints keep {most + 1:,} steps of .*at most 4\.29 GB"):
        recipe.with_set([f"steps={most}"])


@pytest.mark.parametrize(
    ("checkpoints", "last", "steps"),
    [
        ({"log": 1}, 9, [0, 1, 9]),
        ({"log": 2}, 9, [0, 1, 9]),
        ({"log": 3}, 100, [0, 1, 10, 100]),
        ({"every": 5}, 10, [0, 5, 10]),
        ({"every": 20}, 10, [0, 10]),
        ({"at": ()}, 10, [0, 10]),
        ({"at": (10, 11)}, 10, [0, 10]),
        ({"every": 3}, 7, [0, 3, 6, 7]),
        ({"at": (2, 9)}, 5, [0, 2, 5]),
    ],
)
def test_the_first_and_the_last_step_are_kept(checkpoints, last, steps):
    assert Checkpoints(**checkpoints).steps(last) == steps


def test_a_hundred_thousand_checkpoints_are_kept_at_most():
    assert len(Checkpoints(every=1).steps(100_000)) == 100_001
    assert len(Checkpoints(every=2).steps(200_001)) == 100_002
    with pytest.raises(ValueError, match="which keeps 100,001 steps, expected at most 100,000"):
        Checkpoints(every=1).steps(100_001)
    assert Checkpoints(log=100_000).steps(10) == list(range(11))
    log = Checkpoints(log=10).steps(10_000)
    assert (log[:2], log[-1], len(log)) == ([0, 1], 10_000, 11)
    with pytest.raises(ValueError, match="log is 100001, expected at most 100000"):
        Checkpoints(log=100_001)
