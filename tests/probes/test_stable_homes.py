"""Homes: the fewest parts that hold nine tenths, told as such only where resampled sequences agree."""

import numpy as np
import pytest
import torch
from einops import einsum
from mechmarkov.probes.storage.home import resampled_sets, smallest_set

import mechmarkov as mm
from mechmarkov.claims.claim import Claims, said_by
from mechmarkov.models.constructions import lookup_tables
from mechmarkov.probes import storage
from mechmarkov.report.words.sentences import sentences
from mechmarkov.report.words.tiles import worded

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
TABLE = torch.tensor(np.log(P), dtype=torch.float32)
ALL = np.full(4, True)


def fewest(shares):
    return smallest_set(np.array(shares), ALL[: len(shares)], np.arange(len(shares)))


def test_parts_are_added_until_they_hold_nine_tenths():
    assert fewest([0.1, 0.3, 0.6]) == [2, 1]
    assert fewest([0.05, 0.0, 0.95]) == [2]


def test_equals_of_the_last_one_needed_are_named_too():
    assert fewest([0.88, 0.04, 0.04, 0.04]) == [0, 1, 2, 3]


def test_a_list_of_falling_shares_is_not_walked_down():
    falling = np.array([0.5, 0.41, 0.03, 0.02, 0.015, 0.01, 0.008, 0.006])
    chosen = smallest_set(falling, np.full(8, True), np.arange(8))
    assert chosen == [0, 1]
    falling = 0.41 - 0.015 * np.arange(8)
    chosen = smallest_set(falling, np.full(8, True), np.arange(8))
    assert chosen == [0, 1, 2, 3]  # three hold it, one equals the third, and none that equals only the fourth


def test_sets_of_resampled_sequences_are_counted():
    shares = np.array([[0.95, 0.95, 0.8, 0.8], [0.05, 0.05, 0.2, 0.2]])
    often, same = resampled_sets(shares, ALL[:2], np.arange(2), [0])
    assert often.tolist() == [1, 0.5]
    assert same == 0.5


@torch.no_grad()
def heads(parts):
    """Heads that read the parent and write so many times the table."""
    model = lookup_tables._reading_one_token(3, torch.arange(12), n_heads=len(parts))
    model.blocks[0].attn.W_O[:, :3, 3:6] = einsum(
        torch.tensor(parts), TABLE, "head, row column -> head row column"
    )
    return mm.Run.from_model(model, source=mm.Chain(P.tolist()))


@pytest.mark.usefixtures("few_nulls")
def test_a_home_that_changes_with_the_sequences_is_spread():
    data = mm.probe(heads([0.9, 0.1]), ["storage"], sequences=16)["storage"].data
    stable = Claims(tuple(storage.probe.claims(data, {})))
    assert not stable.first("stores").condition("not stable")
    data = data.assign(home_stable=0 * data["home_stable"] + 0.5)
    stores = Claims(tuple(storage.probe.claims(data, {}))).first("stores")
    assert set(stores.subject) == {"L0H0", "L0H1"}
    assert stores.condition("not stable").value == 0.5
    said = sentences([stores])
    assert said[0].startswith("The bigram is spread over L0H0 and L0H1")
    assert "Which of them hold nine tenths changes with the sequences." in said
    (tile,) = storage.headline([*said_by("storage", [stores])])
    assert worded(tile).answer == "Spread over L0H0 and L0H1"
