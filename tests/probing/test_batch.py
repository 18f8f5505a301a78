"""The evaluation batch: what is read, what is known, what follows."""

from dataclasses import replace

import pytest
import torch
from probing_cases import CHAIN, RAW_LOG, config_of

from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import draw


def test_a_next_token_model_reads_every_position():
    batch = draw(CHAIN, Objective(), config_of(n_ctx=5), seed=3, sequences=4)
    states = CHAIN.sample(4, 6, generator=torch.Generator().manual_seed(3))
    assert torch.equal(batch.tokens, states[:, :5])
    assert torch.equal(batch.targets, states[:, 1:])
    assert torch.equal(batch.parents, states[:, :5])
    assert batch.parent_lag == 0
    # Lag 0 is nobody's but exists for the query's sake; lag 5 is there for the last of five predictions.
    assert batch.reach.tolist() == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2])


def test_reading_the_last_position_reads_one():
    batch = draw(CHAIN, Objective(read="last"), config_of(n_ctx=5), seed=3, sequences=4)
    assert batch.read.tolist() == batch.known.tolist() == [4]
    assert torch.equal(batch.targets[:, 0], batch.following[:, -1])
    assert batch.reach.tolist() == [1] * 6


@pytest.mark.parametrize("read", ["last", "all"])
def test_behind_a_query_token_only_the_query_predicts(read):
    objective = RAW_LOG.model_copy(update={"read": read})
    batch = draw(CHAIN, objective, config_of(n_ctx=5, d_vocab=4), seed=3, sequences=4)
    states = CHAIN.sample(4, 5, generator=torch.Generator().manual_seed(3))
    assert torch.equal(batch.tokens, torch.cat([states[:, :4], torch.full((4, 1), 3)], dim=1))
    assert batch.read.tolist() == [4]
    assert torch.equal(batch.targets, states[:, 4:])
    assert torch.equal(batch.parents, states[:, 3:4])
    assert batch.parent_lag == 1
    assert batch.reach.tolist() == [1, 1, 1, 1, 1, 0]


def test_the_default_number_of_sequences_follows_the_length():
    def count(n_ctx, objective):
        return len(draw(CHAIN, objective, config_of(n_ctx=n_ctx), seed=0).tokens)

    assert count(4, Objective(read="last")) == 512
    assert count(256, Objective()) == 256
    assert count(4096, Objective()) == 64


def test_the_window_says_what_the_last_prediction_sees():
    batch = draw(CHAIN, Objective(), config_of(n_ctx=5), seed=3, sequences=4)
    assert batch.seen(None) == batch.seen(9) == slice(0, 5)
    assert batch.seen(0) == slice(4, 5)
    query = draw(CHAIN, RAW_LOG, config_of(n_ctx=5, d_vocab=4), seed=3, sequences=4)
    assert query.seen(2) == slice(2, 4)
    assert query.seen(0) == slice(0, 4)


def test_head_keeps_the_first_sequences():
    batch = draw(CHAIN, Objective(), config_of(n_ctx=5), seed=3, sequences=4)
    assert torch.equal(batch.head(2).tokens, batch.tokens[:2])
    assert torch.equal(batch.head(2).targets, batch.targets[:2])


def test_rows_are_a_slice_unless_some_are_left_out():
    batch = draw(CHAIN, Objective(), config_of(n_ctx=9), seed=0, sequences=2)
    assert batch.rows == slice(0, 9)
    some = replace(batch, read=batch.read[::2])
    assert torch.equal(some.rows, some.read)
