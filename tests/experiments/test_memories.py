"""Recalls of an induction head's weights, against loops over tokens and positions."""

import itertools

import numpy as np
import pytest
import torch
from probing_cases import P3, random_run, run_of, subject_of

from experiments.where_is_the_bigram import memories
from mechmarkov.models.constructions.lookup_tables import mlp_table, value_table
from mechmarkov.theory.kernel import kl

PI = np.linalg.matrix_power(P3, 100)[0]


def test_a_head_that_copies_recalls_all_and_one_that_turns_recalls_none():
    turned = torch.roll(torch.eye(3), 1, dims=1)
    for table, expected in ((torch.eye(3), 1), (turned, 0), (torch.ones(3, 3), 1 / 3)):
        subject = subject_of(run_of(value_table(table, n_ctx=6)), sequences=4)
        assert memories.copies(subject)[0, 0, 0] == pytest.approx(expected)


def test_positions_that_point_one_back_are_a_previous_token_memory():
    for lag, expected in ((2, 1), (1, 0)):
        subject = subject_of(run_of(value_table(torch.eye(3), n_ctx=6, lag=lag)), sequences=4)
        assert memories.previous(subject)[0, 0, 0] == pytest.approx(expected)
    flat = subject_of(run_of(mlp_table(torch.eye(3), n_ctx=6)), sequences=4)
    assert memories.previous(flat)[0, 0, 0] == pytest.approx(np.mean([1 / (t + 1) for t in range(1, 6)]))
    assert memories.previous(subject_of(random_run("rotary"), sequences=4)) is None


@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "shortformer"])
def test_recalls_are_those_of_loops_over_tokens_and_positions(shape):
    subject = subject_of(random_run(shape, n_steps=2), sequences=4)
    copied, back, matched = (f(subject) for f in (memories.copies, memories.previous, memories.matches))
    for member in range(2):
        model = subject.decoder[member].requires_grad_(False)
        E, U = model.W_E, model.W_U

        def norm(layer: int, x: torch.Tensor, model=model) -> torch.Tensor:
            return model.blocks[layer].ln1(x)

        for layer, head in itertools.product(range(2), range(2)):
            attn = model.blocks[layer].attn
            W_OV = attn.W_V[head] @ attn.W_O[head]
            hits = 0
            for k in range(3):
                out = norm(layer, E[k]) @ W_OV
                if shape == "LN and MLP":
                    out = (out - out.mean()) * model.ln_final.w
                hits += int((out @ U).argmax()) == k
            assert copied[member, layer, head] == pytest.approx(hits / 3)
            hits = 0
            for t in range(1, 7):
                p = model.W_pos if shape == "shortformer" else norm(layer, model.W_pos)
                q = p[t] @ attn.W_Q[head] + attn.b_Q[head]
                scores = [float(q @ (p[s] @ attn.W_K[head] + attn.b_K[head])) for s in range(t + 1)]
                hits += int(np.argmax(scores)) == t - 1
            assert back[member, layer, head] == pytest.approx(hits / 6)
        first, later = model.blocks[0].attn, model.blocks[1].attn
        for head, to in itertools.product(range(2), range(2)):
            hits = 0
            for k in range(3):
                q = norm(1, E[k]) @ later.W_Q[to] + later.b_Q[to]
                written = [norm(0, E[j]) @ first.W_V[head] @ first.W_O[head] for j in range(3)]
                keys = [norm(1, w) @ later.W_K[to] + later.b_K[to] for w in written]
                hits += int(np.argmax([float(q @ key) for key in keys])) == k
            assert matched[member, 0, head, 1, to] == pytest.approx(hits / 3)
    assert np.isnan(matched[:, 1]).all()


def test_an_mlp_that_holds_the_bigram_is_zero_nats_away():
    right = subject_of(run_of(mlp_table(torch.tensor(np.log(P3)).float(), n_ctx=5)), sequences=4)
    assert memories.mlp_kl(right)[0, 0] == pytest.approx(0, abs=1e-9)
    subject = subject_of(random_run("LN and MLP"), sequences=4)
    model = subject.decoder[0]
    for layer, block in enumerate(model.blocks):
        total = 0.0
        for k in range(3):
            out = block.mlp(block.ln2(model.W_E[k][None, None]))
            row = model.unembed(model.ln_final(out))[0, 0].detach().double().softmax(-1).numpy()
            total += PI[k] * float(kl(P3[k], row))
        assert memories.mlp_kl(subject)[0, layer] == pytest.approx(total, rel=1e-5)
    assert memories.mlp_kl(subject_of(random_run("plain"), sequences=4)).shape == (1, 0)
