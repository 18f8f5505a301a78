"""Edits of sequences: what is kept, what is moved, and that names of tokens do not matter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mechmarkov.interventions.tokens import SHUFFLES, donors, shuffle_context, swap_parent

shapes = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))


def draw(batch: int, length: int, states: int, seed: int) -> torch.Tensor:
    return torch.randint(states, (batch, length), generator=torch.Generator().manual_seed(seed))


@given(shapes)
def test_everybody_gives_once_to_one_of_his_label_and_to_himself_only_if_alone(shape):
    labels = draw(*shape)
    giver = donors(labels, seed=shape[3])
    for t in range(labels.shape[1]):
        assert sorted(giver[:, t].tolist()) == list(range(len(labels)))
        for b, g in enumerate(giver[:, t].tolist()):
            assert labels[g, t] == labels[b, t]
            assert (g == b) == (labels[:, t].tolist().count(int(labels[b, t])) == 1)


@given(shapes)
def test_renaming_tokens_renames_the_edits_and_nothing_else(shape):
    tokens = draw(*shape)
    names = torch.tensor([7, 3, 11, 5])
    assert torch.equal(donors(tokens), donors(names[tokens]))
    for which in SHUFFLES:
        assert torch.equal(names[shuffle_context(tokens, which)], shuffle_context(names[tokens], which))


def test_members_of_a_stack_draw_alike():
    labels = draw(6, 4, 2, 0)
    assert torch.equal(donors(torch.stack([labels, labels]))[1], donors(labels))


@given(shapes)
def test_shuffles_keep_the_counts_and_what_they_say_they_keep(shape):
    tokens = draw(*shape)
    for which in SHUFFLES:
        edited = shuffle_context(tokens, which)
        assert torch.equal(edited.sort(1).values, tokens.sort(1).values)
        if which == "all but last":
            assert torch.equal(edited[:, -1], tokens[:, -1])
        if which == "last only":
            changed = (edited != tokens).sum(1)
            assert int(changed.max()) <= 2
            assert torch.equal(changed > 0, edited[:, -1] != tokens[:, -1])


def test_a_shuffle_is_random():
    tokens = torch.arange(40).expand(3, 40)
    for which in ("all", "all but last"):
        edited = shuffle_context(tokens, which)
        assert (edited != tokens).float().mean() > 0.8
        assert not torch.equal(edited[0], edited[1])
    exchanged = shuffle_context(torch.arange(40).expand(200, 40), "last only")[:, -1]
    assert len(exchanged.unique()) > 30
    assert int(exchanged.max()) < 39


def test_a_swapped_parent_is_the_next_other_one():
    tokens = draw(50, 4, 3, 3)
    edited = swap_parent(tokens)
    assert torch.equal(edited[:, :-1], tokens[:, :-1])
    for b in range(50):
        following = [int(tokens[(b + i) % 50, -1]) for i in range(50)]
        assert int(edited[b, -1]) == next(x for x in following if x != following[0])


def test_what_cannot_be_swapped_is_refused():
    with pytest.raises(ValueError, match="all 2 sequences end in state 1"):
        swap_parent(torch.tensor([[0, 1], [2, 1]]))
    with pytest.raises(ValueError, match="which is 'none', expected one of 'all'"):
        shuffle_context(torch.zeros(1, 2, dtype=torch.long), "none")
