"""Probes of sequences that begin with a token of their own: one that nobody looks at changes nothing."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.program.extraction import extract

import mechmarkov as mm
from mechmarkov.interventions.attention import limit_window
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.probing.subject import why_not
from mechmarkov.report.words.sentences import sentence

K, LENGTH, WIDTH, D_HEAD = 3, 8, 9, 5
SOURCE = mm.Chain([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
STATES = SOURCE.sample(64, LENGTH + 1, generator=torch.Generator().manual_seed(5))
# What sees the beginning in any case: chances of uniform attention, and an embedding with a row more.
OTHER = {
    "attention": {"uniform_mass"},
    "ablation": set(),
    "alignment": set(),
    "behaviour": set(),
    "induction": {"repeated", "repeated_chance", "previous_chance", "duplicate_chance"},
    "storage": {"full_rank", "rank_parts", "rank_kept"},
}


def decoder(beginning: bool, repelled: float = 60.0) -> HookedDecoder:
    """Two layers of random heads; the last axis of stream and heads is the beginning's only.

    Every query gives the beginning the logit `-repelled² / sqrt(d_head)`, with the sign of `repelled`.
    """
    shape = {
        "n_layers": 2,
        "n_heads": 2,
        "d_model": WIDTH,
        "d_head": D_HEAD,
        "d_vocab_out": K,
        "attn_only": True,
    }
    model = HookedDecoder(DecoderConfig(n_ctx=LENGTH + beginning, d_vocab=K + beginning, **shape))
    generator = torch.Generator().manual_seed(1)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * 0.5

    with torch.no_grad():
        embed, position = drawn(K, WIDTH), drawn(LENGTH, WIDTH)
        embed[:, -1] = position[:, -1] = 0
        if beginning:
            embed = torch.cat([embed, torch.eye(WIDTH)[-1:]])
            position = torch.cat([torch.zeros(1, WIDTH), position])
        model.embed.W_E.copy_(embed)
        model.pos_embed.W_pos.copy_(position)
        for block in model.blocks:
            for name in "QKV":
                weight = drawn(2, WIDTH, D_HEAD)
                weight[:, -1] = 0
                if name != "V":
                    weight[..., -1] = 0
                getattr(block.attn, f"W_{name}").copy_(weight)
            block.attn.W_O.copy_(drawn(2, D_HEAD, WIDTH))
            block.attn.W_O[..., -1] = 0
            block.attn.b_Q[..., -1] = 60
            block.attn.W_K[:, -1, -1] = -repelled
        model.unembed.W_U.copy_(drawn(WIDTH, K))
    return model


def subject(model: HookedDecoder, bos: int | None) -> Subject:
    run = mm.Run.from_model(model, source=SOURCE, bos=bos)
    return Subject.of(run, tokens=STATES, find=load_probe)


@pytest.fixture(scope="module")
def both():
    return subject(decoder(False), None), subject(decoder(True), K)


@pytest.mark.parametrize("name", OTHER)
def test_a_beginning_that_nobody_looks_at_changes_nothing(both, name):
    plain, begun = (load_probe(name).measure(one) for one in both)
    if name == "ablation":  # other kinds draw at each position, or look at all keys
        plain, begun = (data.sel(kind=["mean", "parent"]) for data in (plain, begun))
    compared = 0
    for variable, value in plain.items():
        found = begun[variable]
        if variable in OTHER[name] or value.shape != found.shape or value.dtype.kind != "f":
            continue
        np.testing.assert_allclose(found, value, rtol=1e-3, atol=1e-4, err_msg=variable)
        compared += 1
    assert compared >= 5


def test_the_program_of_the_weights_is_the_same(both):
    plain, begun = (extract(one) for one in both)
    for name in ("base", "lag_weight", "match_bonus"):
        np.testing.assert_allclose(getattr(begun, name), getattr(plain, name), atol=1e-6)
    for path, table in plain.tables.items():
        np.testing.assert_allclose(begun.tables[path], table, atol=1e-6)


def test_attention_to_the_beginning_is_lag_0():
    drawn = subject(decoder(True, repelled=-60.0), K)
    data = load_probe("attention").measure(drawn)
    np.testing.assert_allclose(data["lag_mass"].sel(lag=0), 1, atol=1e-6)
    assert float(data["lag_mass"].sel(lag=slice(1, None)).max()) < 1e-6
    reads = np.arange(1, LENGTH + 1)
    assert float(data["uniform_mass"].sel(lag=0)) == pytest.approx(np.mean(1 / (reads + 1)))
    result = mm.probe(drawn.run, ["attention"], sequences=16, progress=False)
    claims = [claim for claim in result.claims if claim.object == ("beginning-of-sequence token",)]
    assert len(claims) == 4
    assert "the beginning-of-sequence token" in sentence(claims[0])


def test_windows_leave_the_beginning_in_sight():
    model = decoder(True, repelled=-60.0)
    tokens = torch.cat([torch.full((4, 1), K), STATES[:4, :LENGTH]], dim=1)
    whole = model(tokens)
    with limit_window(model, 1, keep=1):
        torch.testing.assert_close(model(tokens), whole)
    with limit_window(model, 1):
        assert float((model(tokens) - whole).detach().abs().max()) > 0.1


def test_who_computes_with_states_only_says_so(both):
    _, begun = both
    for name in ("symmetry", "landscape"):
        assert "begins with a beginning-of-sequence token" in why_not(load_probe(name), begun)
