"""The disentangled transformer: equal to its own equations, and trained in no other part."""

import pytest
import torch

import mechmarkov as mm
from mechmarkov.models.constructions.disentangled import (
    DisentangledShape,
    disentangled_decoder,
    disentangled_trainable,
    graph_heads,
)
from mechmarkov.training.recipe import RecipeError

GRAPH = [[], [0], [0], [1], [], [4]]  # the last two are query and answer
RECIPE = {
    "name": "small",
    "source": {"kind": "causal_graph", "n_states": 3, "parents": GRAPH},
    "objective": {"kind": "cross_entropy", "read": "last"},
    "model": {"kind": "disentangled", "n_ctx": 5},
    "init": {"scheme": "normal", "std": 0.1},
    "data": {"batch": 8},
    "steps": 3,
}
REDUCED = {
    "model": {"kind": "disentangled", "n_ctx": 5, "form": "reduced", "key_start": 2.0},
    "objective": {"kind": "raw_log", "read": "last", "eps": 0.01},
    "init": {"scheme": "zero"},
    "optimiser": {"kind": "gd", "lr": 1.0},
}


def by_equations(tokens, n_states, layers, U):
    """Streams grow: each head appends its mean of whole streams; scores are `x_q A x_k`."""
    n = tokens.shape[1]
    x = torch.cat(
        [torch.eye(n_states)[tokens], torch.eye(n).expand(len(tokens), n, n)],
        dim=-1,
    )
    for heads in layers:
        read = x
        for A in heads:
            scores = torch.einsum("bqc,cd,bkd->bqk", read, A, read)
            pattern = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
            x = torch.cat([x, pattern @ read], dim=-1)
    return x @ U


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (1, 2)])
def test_it_is_its_equations(heads):
    shape = DisentangledShape(3, 5, heads=heads)
    generator = torch.Generator().manual_seed(0)
    first, second, width = shape.widths
    layers = [
        [torch.randn(size, size, generator=generator) for _ in range(count)]
        for size, count in zip((first, second), heads, strict=True)
    ]
    U = torch.randn(width, 3, generator=generator)
    decoder = disentangled_decoder(shape)
    with torch.no_grad():
        for block, own in zip(decoder.blocks, layers, strict=True):
            for head, A in enumerate(own):
                block.attn.W_Q[head, : len(A), : len(A)] = A
        decoder.unembed.W_U.copy_(U)
    tokens = torch.randint(3, (7, 5), generator=generator)
    torch.testing.assert_close(decoder(tokens), by_equations(tokens, 3, layers, U), atol=1e-4, rtol=1e-4)
    decoder.blocks[0].attn.W_Q.data[0, 0, 0] += 1.0
    assert (decoder(tokens) - by_equations(tokens, 3, layers, U)).abs().max() > 1e-3


def test_the_reduced_form_outputs_frequencies():
    decoder = disentangled_decoder(DisentangledShape(3, 5, form="reduced", key_start=0.0))
    tokens = torch.tensor([[0, 1, 1, 2, 1]])
    torch.testing.assert_close(decoder(tokens)[0, -1], torch.tensor([0.2, 0.6, 0.2]))


def test_heads_along_a_graph_count_children():
    """Children of 1 are the positions 1 and 3; the query's own heads look at all before it."""
    scores = graph_heads(2, [[], [0], [0], [1], []])(torch.tensor([[1, 1, 0, 0, 1]]))[0, -1]
    torch.testing.assert_close(scores, torch.tensor([0.5, 0.5]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("changes", [{}, REDUCED], ids=["full", "reduced"])
def test_training_moves_what_is_trainable_alone(changes):
    run = mm.train(RECIPE | changes, seed=0)
    shape = mm.Recipe.from_data(RECIPE | changes).model.shape(3)
    fixed, trainable = disentangled_decoder(shape).state_dict(), disentangled_trainable(shape)
    assert run.trainable == trainable
    start, end = (run.model(step=step).state_dict() for step in (0, 3))
    for name, value in end.items():
        moves = torch.zeros_like(value, dtype=torch.bool)
        if name in trainable:
            slices = trainable[name]
            moves[tuple(slice(*pair) for pair in slices) if slices else ...] = True
        assert torch.equal(value[~moves], fixed[name][~moves]), name
        if moves.any() and "reduced" not in shape.form:
            assert not torch.equal(value[moves], start[name][moves]), name
    assert not torch.equal(start["blocks.1.attn.W_Q"], end["blocks.1.attn.W_Q"])


def test_stages_hold_one_layer_and_start_where_the_first_ended():
    first = mm.train(RECIPE | REDUCED | {"frozen": ["blocks.1.attn.W_Q"]}, seed=0)
    second = mm.train(RECIPE | REDUCED | {"frozen": ["blocks.0.attn.W_Q"]}, seed=1, start=first)
    at = {
        (stage, step): run.model(step=step).state_dict()
        for stage, run in (("first", first), ("second", second))
        for step in (0, 3)
    }
    for name in ("blocks.0.attn.W_Q", "blocks.1.attn.W_Q"):
        assert torch.equal(at["first", 3][name], at["second", 0][name])
        for stage, layer in (("first", 0), ("second", 1)):
            moved = not torch.equal(at[stage, 0][name], at[stage, 3][name])
            assert moved == (f"blocks.{layer}" in name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": {"read": "all"}}, "objective.read is 'all', expected 'last'"),
        ({"init": {"scheme": "gpt2"}}, "init.scheme is 'gpt2', expected 'zero' or 'normal' for the dis"),
        ({"trainable": {"unembed.W_U": None}}, "trainable is given, but the model says itself"),
        (REDUCED | {"objective": {"read": "last"}}, "objective.kind is 'cross_entropy', expected 'raw_log'"),
        (
            REDUCED | {"model": {"kind": "disentangled", "n_ctx": 5, "form": "reduced", "heads": [2, 1]}},
            r"heads are \[2, 1\], expected \[1, 1\] where form is 'reduced'",
        ),
        ({"model": {"kind": "disentangled", "n_ctx": 5, "heads": [0, 1]}}, r"heads are \[0, 1\], expected"),
        ({"model": {"kind": "disentangled", "n_ctx": 4}}, "model.n_ctx is 4, expected 5"),
    ],
)
def test_recipes_that_are_wrong(changes, message):
    with pytest.raises(RecipeError, match=message):
        mm.Recipe.from_data(RECIPE | changes)
