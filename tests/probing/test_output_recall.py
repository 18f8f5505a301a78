"""Recall of what followed a trigger: circuits that do it, and some that cannot."""

import numpy as np
import pytest
import torch
from probing_cases import random_run, run_of, subject_of

from mechmarkov.models.handset import direct_table
from mechmarkov.models.handset_induction import duplicate_token_head, induction_pair
from mechmarkov.probing.memories import outputs
from mechmarkov.probing.storage_tables import recalls
from mechmarkov.sources import TriggerBigram

P = np.full((4, 4), 0.25)
SOURCE = TriggerBigram(P, triggers=[1, 3])
N_CTX = 20


def subject(*decoders, source=SOURCE):
    return subject_of(run_of(*decoders, source=source), sequences=64)


def test_an_induction_pair_recalls_every_output_and_its_look_alikes_do_not():
    circuits = induction_pair(4, N_CTX), direct_table(torch.zeros(4, 4), N_CTX)
    found = [outputs(subject(circuit))[0] for circuit in circuits]
    assert found == [1, 0.25]  # a constant model's four ties count a quarter each
    duplicate = outputs(subject(duplicate_token_head(4, N_CTX)))[0]
    assert duplicate == 0  # it says the trigger itself, which is never an output


def test_a_bigram_in_the_weights_recalls_one_output_in_two():
    # Two outputs, alike: a table that says 0 after a trigger is right in half of the sequences, as a count.
    table = torch.zeros(4, 4)
    table[:, 0] = 1
    s = subject(direct_table(table, N_CTX))
    again = SOURCE.in_context_mask(s.batch.history.numpy())
    expected = (s.batch.following.numpy() == 0)[again].mean()
    assert outputs(s)[0] == pytest.approx(expected, abs=1e-12)
    assert 0.3 < expected < 0.7


def test_it_is_among_the_recalls_where_there_are_triggers():
    assert recalls(subject(induction_pair(4, N_CTX)))["output_recall"].values.tolist() == [1]
    assert outputs(subject_of(random_run("plain"), sequences=4)) is None
    assert "output_recall" not in recalls(subject_of(random_run("plain"), sequences=4))


def test_where_no_trigger_comes_twice_there_is_nothing_to_recall():
    found = outputs(subject(direct_table(torch.zeros(4, 4), n_ctx=1)))
    assert np.isnan(found).all()
