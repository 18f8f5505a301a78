"""Recall of what followed a trigger: circuits that do it, and some that cannot."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from probing_cases import P3, random_run, run_of, subject_of

from experiments.where_is_the_bigram import memories
from experiments.where_is_the_bigram.memories import outputs
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.sources import TriggerBigram
from mechmarkov.theory.kernel import kl

P = np.full((4, 4), 0.25)
SOURCE = TriggerBigram(P, triggers=[1, 3])
N_CTX = 20


def subject(*decoders):
    return subject_of(run_of(*decoders, source=SOURCE), sequences=64)


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


def test_without_triggers_no_output_can_be_recalled():
    assert outputs(subject_of(random_run("plain"), sequences=4)) is None


def test_where_no_trigger_comes_twice_there_is_nothing_to_recall():
    found = outputs(subject(direct_table(torch.zeros(4, 4), n_ctx=1)))
    assert np.isnan(found).all()


@pytest.mark.parametrize("shape", ["plain", "LN and MLP"])
def test_with_triggers_the_memories_are_those_that_the_task_needs(shape):
    """The recalls over some tokens are those over all, with a chain in place of the triggers, cut down."""
    source = TriggerBigram(P3, triggers=[1], outputs=[0.7, 0, 0.3])
    run = random_run(shape)
    some, every = subject_of(replace(run, source=source), sequences=4), subject_of(run, sequences=4)
    model = every.decoder[0].requires_grad_(False)
    embedded = [block.ln1(model.W_E[:3]) for block in model.blocks]
    found = memories.copies(some)[0], memories.matches(some)[0, 0, :, 1]
    for head in range(2):
        written = embedded[1] @ model.blocks[1].attn.W_V[head] @ model.blocks[1].attn.W_O[head]
        table = (written @ model.folded_unembedding()).numpy()
        assert found[0][1, head] == pytest.approx(np.mean(table.argmax(1)[[0, 2]] == [0, 2]))
        W_OV = model.blocks[0].attn.W_V[head] @ model.blocks[0].attn.W_O[head]
        for to in range(2):
            later = model.blocks[1].attn
            q = embedded[1][1] @ later.W_Q[to] + later.b_Q[to]
            k = model.blocks[1].ln1(embedded[0] @ W_OV) @ later.W_K[to] + later.b_K[to]
            assert found[1][head, to] == int((k @ q).argmax() == 1)
    if shape == "LN and MLP":
        block = model.blocks[0]
        out = model.unembed(model.ln_final(block.mlp(block.ln2(model.W_E[:3, None]))))[:, 0]
        lost = kl(source.given, out.double().softmax(-1).numpy())[[0, 2]]
        weight = source.pi[[0, 2]] / source.pi[[0, 2]].sum()
        assert memories.mlp_kl(some)[0, 0] == pytest.approx(weight @ lost, rel=1e-5)
