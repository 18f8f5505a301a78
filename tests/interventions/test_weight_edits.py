"""Edited and truncated weights: against numpy's decomposition of the whole circuit, and their undoing."""

import numpy as np
import pytest
import torch
from intervention_cases import close, decoder_of, tokens_of
from probing_cases import config_of, randomise

from mechmarkov.interventions.weights import Spectrum, edit_weights, spectrum, truncate, weights_of
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table

SHAPES = ["plain", "LN and MLP", "RMSPre, tied", "rotary", "grouped queries", "Llama"]


def cut(matrix: np.ndarray, rank: int) -> np.ndarray:
    left, values, right = np.linalg.svd(matrix)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


def test_edited_weights_are_those_of_a_model_that_has_them():
    model, other = decoder_of("LN and MLP"), randomise(HookedDecoder(config_of("LN and MLP")), seed=3)
    tokens, before = tokens_of(model), model(tokens_of(model))
    with edit_weights(model, other.state_dict()):
        assert torch.equal(model(tokens), other(tokens))
        with edit_weights(model, {"unembed.b_U": torch.zeros(3)}):
            assert not torch.equal(model(tokens), other(tokens))
        assert torch.equal(model(tokens), other(tokens))
    assert torch.equal(model(tokens), before)


def test_edited_weights_are_back_after_an_exception():
    model = decoder_of("plain")
    before, storage = model(tokens_of(model)), model.embed.W_E.data_ptr()

    def fail():
        with edit_weights(model, {"embed.W_E": torch.zeros(3, 8)}):
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert torch.equal(model(tokens_of(model)), before)
    assert model.embed.W_E.data_ptr() == storage


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"embed.W_X": torch.zeros(3, 8)}, r"weights has 'embed\.W_X', expected one of embed\.W_E"),
        ({"embed.W_E": torch.zeros(8, 3)}, r"embed\.W_E has shape \[8, 3\], expected \[3, 8\]"),
    ],
)
def test_edits_that_do_not_fit_are_refused(weights, says):
    with pytest.raises(ValueError, match=says), edit_weights(decoder_of("plain"), weights):
        pass


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_full_rank_is_the_model(shape, n_models):
    model = decoder_of(shape, n_models=n_models)
    tokens = tokens_of(model)
    before = model(tokens)
    for name in weights_of(model):
        full = spectrum(model, name).values.shape[-1]
        with truncate(model, name, full):
            assert close(model(tokens), before), name
        with truncate(model, name, 0):
            assert not close(model(tokens), before), name
        assert torch.equal(model(tokens), before), name


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_truncated_heads_are_those_of_the_truncated_circuits(rank):
    model = decoder_of("plain", n_layers=1)
    tokens = tokens_of(model)
    state = {
        name.removeprefix("blocks.0.attn."): v.double().numpy() for name, v in model.state_dict().items()
    }
    x = state["embed.W_E"][tokens] + state["pos_embed.W_pos"]

    def logits(qk: int = 3, ov: int = 3) -> np.ndarray:
        out = x + state["b_O"]
        for head in range(2):
            W_QK = state["W_Q"][head] @ state["W_K"][head].T
            W_OV = state["W_V"][head] @ state["W_O"][head]
            if head == 1:
                W_QK, W_OV = cut(W_QK, qk), cut(W_OV, ov)
            key = x @ state["W_K"][head] + state["b_K"][head]
            scores = x @ W_QK @ x.swapaxes(-1, -2) + (state["b_Q"][head] @ key.swapaxes(-1, -2))[:, None, :]
            scores = np.where(np.triu(np.ones((7, 7)), 1) > 0, -np.inf, scores / 3**0.5)
            pattern = np.exp(scores - scores.max(-1, keepdims=True))
            pattern /= pattern.sum(-1, keepdims=True)
            out = out + pattern @ x @ W_OV + state["b_V"][head] @ state["W_O"][head]
        return out @ state["unembed.W_U"] + state["unembed.b_U"]

    # A query bias that reads the key's bias is the same for all keys, and softmax drops it.
    for name, expected in (("L0H1.OV", logits(ov=rank)), ("L0H1.QK", logits(qk=rank))):
        with truncate(model, name, rank):
            assert np.allclose(model(tokens).detach().numpy(), expected, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("shape", SHAPES)
def test_truncated_matrices_are_numpys(shape):
    model = decoder_of(shape)
    tokens = tokens_of(model)
    names = {"W_E": "embed.W_E"}
    if not model.config.tied:
        names["W_U"] = "unembed.W_U"
    if not model.config.attn_only:
        names |= {"L1.mlp.W_in": "blocks.1.mlp.W_in", "L0.mlp.W_out": "blocks.0.mlp.W_out"}
    for name, parameter in names.items():
        state = model.state_dict()
        state[parameter] = torch.tensor(cut(state[parameter].double().numpy(), 2)).float()
        other = HookedDecoder(model.config)
        other.load_state_dict(state)
        with truncate(model, name, 2):
            assert close(model(tokens), other(tokens)), name


@pytest.mark.parametrize("n_models", [None, 2])
def test_the_direct_path_is_cut_in_the_logits_and_nowhere_else(n_models):
    model = decoder_of("plain", n_models=n_models)
    tokens = tokens_of(model)
    before = model(tokens).detach().double()
    table = (model.embed.W_E @ model.unembed.W_U).detach().double()
    tables = table[None] if n_models is None else table
    for rank in (0, 1, 2):
        change = torch.stack([torch.tensor(cut(t.numpy(), rank)) - t for t in tables])
        change = change[:, tokens] if n_models else change[0][tokens]
        with truncate(model, "direct", rank):
            assert torch.allclose(model(tokens).double(), before + change, rtol=1e-4, atol=1e-5)


def test_equal_singular_values_stay_together():
    values = torch.tensor([[3.0, 2.0, 2.0, 1.0], [3.0, 2.0, 1.5, 1.5]], dtype=torch.float64)
    found = Spectrum(torch.eye(4).expand(2, 4, 4), values, torch.eye(4).expand(2, 4, 4))
    assert [found.keep(rank).sum(-1).tolist() for rank in range(6)] == [
        [0, 0],
        [1, 1],
        [3, 2],
        [3, 4],
        [4, 4],
        [4, 4],
    ]
    assert weights_of(direct_table(torch.eye(2), 2))["direct"] == ("embed.W_E", "unembed.W_U")


def test_truncations_that_are_none_are_refused():
    model = decoder_of("plain")
    with pytest.raises(ValueError, match="rank is -1"), truncate(model, "W_E", -1):
        pass
    with (
        pytest.raises(ValueError, match=r"weight is 'L0H9\.OV', expected one of W_E"),
        truncate(model, "L0H9.OV", 1),
    ):
        pass
