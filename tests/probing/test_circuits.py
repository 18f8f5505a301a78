"""Value circuits: where a model's logits are a sum of tables, they are these tables."""

import numpy as np
import pytest
import torch
from probing_cases import config_of, random_run, randomise, run_of, subject_of

from mechmarkov.models import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.recording import NORM_SCALE
from mechmarkov.probing.value_circuits import path_tables

STATES = 3


def even_model(norm: str | None, mlp: bool) -> HookedDecoder:
    """A model that looks at its own token alone and treats all states alike up to the unembedding.

    So the scale of each norm is one number, every path's table is exact, and the logits are their sum.
    Blocks of the residual stream: what the token is, what the heads write, what the MLP writes.
    """
    changes = {"attn_only": False, "act_fn": "gelu", "d_mlp": STATES} if mlp else {}
    config = config_of(
        n_layers=1,
        d_model=9,
        d_head=3,
        n_heads=2,
        normalization_type=norm,
        positional_embedding_type="none",
        window=0,
        **changes,
    )
    decoder, eye = HookedDecoder(config), torch.eye(STATES)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        decoder.embed.W_E[:, :3] = 2 * eye - 0.3
        attention = decoder.blocks[0].attn
        for head, gain in enumerate((1.5, -0.7)):
            attention.W_V[head, :3] = eye
            attention.W_O[head, :, 3:6] = gain * eye + 0.2
        attention.b_V.fill_(0.3)
        if mlp:
            decoder.blocks[0].mlp.W_in[:6] = torch.cat([eye, 0.5 * eye])
            decoder.blocks[0].mlp.W_out[:, 6:] = 2 * eye - 0.1
        decoder.unembed.W_U.copy_(torch.randn(9, STATES, generator=generator))
        decoder.unembed.b_U.copy_(torch.randn(STATES, generator=generator))
        for name, parameter in decoder.named_parameters():
            if name.endswith((".ln1.w", ".ln2.w")):
                parameter.fill_(1.7)
            if name == "ln_final.w":
                parameter.copy_(torch.rand(9, generator=generator) + 0.5)
            if name.endswith(".b") and name != "blocks.0.ln2.b":
                parameter.fill_(0.2)
    return decoder


@pytest.mark.parametrize("mlp", [False, True], ids=["attention only", "MLP"])
@pytest.mark.parametrize("norm", [None, "LN", "LNPre", "RMS", "RMSPre"])
def test_tables_add_up_to_the_logits(norm, mlp):
    decoder = even_model(norm, mlp)
    subject = subject_of(run_of(decoder), sequences=8)
    tables = path_tables(subject)
    assert list(tables) == ["direct", "L0H0", "L0H1"] + ["L0.mlp"] * mlp
    logits = decoder(subject.batch.tokens).detach().double().numpy()
    total = sum(table[0] for table in tables.values())[subject.batch.tokens.numpy()]
    rest = logits - total
    # Biases are in no table; they are one vector for all tokens.
    assert np.abs(rest - rest[0, 0]).max() < 1e-5
    assert max(np.ptp(table[0], axis=0).max() for table in tables.values()) > 0.5


@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "RMSPre, tied"])
def test_tables_of_a_stack_are_those_of_its_members(shape):
    run = random_run(shape, n_steps=3)
    tables = path_tables(subject_of(run))
    for i, step in enumerate(run.steps.tolist()):
        alone = path_tables(subject_of(run, steps=[step]))
        assert list(alone) == list(tables)
        for path, table in alone.items():
            assert np.allclose(table[0], tables[path][i], atol=1e-5), path


def test_a_head_is_the_product_of_its_matrices():
    run = random_run("plain")
    tables = path_tables(subject_of(run))
    weights = {name: value[0].double().numpy() for name, value in run.states.items()}
    E, U = weights["embed.W_E"], weights["unembed.W_U"]
    assert np.allclose(tables["direct"][0], E @ U)
    for layer in range(2):
        for head in range(2):
            W_V, W_O = (weights[f"blocks.{layer}.attn.{name}"][head] for name in ("W_V", "W_O"))
            assert np.allclose(tables[f"L{layer}H{head}"][0], E @ W_V @ W_O @ U)


def test_behind_a_query_token_no_state_has_a_direct_path():
    config = config_of("plain", d_vocab=4, d_vocab_out=3)
    run = run_of(randomise(HookedDecoder(config)), objective=Objective(query=True, read="last"))
    tables = path_tables(subject_of(run))
    assert list(tables) == ["L0H0", "L0H1", "L1H0", "L1H1"]
    assert {table.shape for table in tables.values()} == {(1, 3, 3)}


def test_the_folded_scale_is_the_mean_over_the_data():
    run = random_run("LNPre")
    subject = subject_of(run)
    scale = subject.recorded(NORM_SCALE)["ln_final"][0]
    E = run.states["embed.W_E"][0].double().numpy()
    U = run.states["unembed.W_U"][0].double().numpy()
    expected = (E - E.mean(1, keepdims=True)) / scale @ U
    assert np.allclose(path_tables(subject)["direct"][0], expected)
