"""TransformerLens' own tools on a decoder, and their refusal of a stack."""

from functools import partial

import numpy as np
import pytest
import torch
from decoder_cases import config_of, decoder_of, tokens_of
from transformer_lens import ActivationCache, FactoredMatrix, SVDInterpreter, patching
from transformer_lens.head_detector import (
    compute_head_attention_similarity_score,
    get_induction_head_detection_pattern,
    get_previous_token_head_detection_pattern,
)

pytestmark = pytest.mark.tl

KINDS = ["plain", "LN", "LNPre", "gelu and LN", "RMSPre", "tied, fewer outputs, LN", "relative"]


def recorded(case, **changes):
    decoder = decoder_of(config_of(case, **changes)).double()
    tokens = tokens_of(decoder.config)
    logits, cache = decoder.run_with_cache(tokens)
    assert isinstance(cache, ActivationCache)
    return decoder, tokens, logits.detach(), cache


# -- ActivationCache -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", KINDS)
def test_the_parts_of_the_residual_stream_add_up_to_it(case):
    decoder, _, _, cache = recorded(case)
    final = cache["resid_post", 1]
    parts, labels = cache.decompose_resid(layer=-1, return_labels=True)
    # TransformerLens' parts leave nothing out: the heads' biases are in their layer's output.
    assert torch.allclose(parts.sum(0), final, atol=1e-12)
    assert labels[:2] == (["embed", "0_attn_out"] if case == "relative" else ["embed", "pos_embed"])

    heads, head_labels = cache.stack_head_results(layer=-1, return_labels=True)
    assert head_labels == decoder.all_head_labels()
    for layer in range(2):
        total = heads[3 * layer : 3 * layer + 3].sum(0) + decoder.b_O[layer]
        assert torch.allclose(total, cache["attn_out", layer], atol=1e-12)

    everything = cache.get_full_resid_decomposition(layer=-1, expand_neurons=False)
    assert len(everything) == len(parts) + 6 - 2 + 1  # heads for their layers, and the biases
    assert torch.allclose(everything.sum(0), final, atol=1e-12)
    if not decoder.config.attn_only:
        neurons = cache.get_full_resid_decomposition(layer=-1, expand_neurons=True)
        assert torch.allclose(neurons.sum(0), final, atol=1e-12)

    accumulated = cache.accumulated_resid(layer=-1)
    assert torch.equal(accumulated[-1], final)
    assert torch.equal(accumulated[0], cache["resid_pre", 0])


@pytest.mark.parametrize("case", KINDS)
def test_normalised_parts_and_logit_attributions_give_the_logits(case):
    decoder, tokens, logits, cache = recorded(case)
    scaled = cache.apply_ln_to_stack(cache.decompose_resid(layer=-1), layer=-1).sum(0)
    # TransformerLens leaves the norm's own weight and bias out: they belong to W_U.
    weight = getattr(decoder.ln_final, "w", None)
    bias = getattr(decoder.ln_final, "b", None)
    scaled = scaled if weight is None else scaled * weight
    scaled = scaled if bias is None else scaled + bias
    assert torch.allclose(scaled @ decoder.W_U + decoder.b_U, logits, atol=1e-11)

    if weight is None and decoder.config.d_vocab_out == decoder.config.d_vocab:
        parts = cache.decompose_resid(layer=-1)
        attributions = cache.logit_attrs(parts, tokens=tokens)  # [component, batch, position]
        own = logits.gather(-1, tokens[..., None]).squeeze(-1)
        assert torch.allclose(attributions.sum(0) + decoder.b_U[tokens], own, atol=1e-11)


def test_a_cache_without_its_batch():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config, 1)
    _, cache = decoder.run_with_cache(tokens, remove_batch_dim=True)
    assert not cache.has_batch_dim
    assert cache["pattern", 0].shape == (3, 9, 9)
    assert torch.allclose(cache.decompose_resid(layer=-1).sum(0), cache["resid_post", 1], atol=1e-5)


def test_a_cache_of_gradients():
    decoder = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(decoder.config)
    _, cache = decoder.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    probability = decoder(tokens).softmax(-1).detach()
    probability[:, :-1].scatter_add_(-1, tokens[:, 1:, None], torch.tensor(-1.0).double().expand(3, 8, 1))
    expected = probability / (3 * 8)
    expected[:, -1] = 0
    assert torch.allclose(cache["unembed.hook_out_grad"], expected, atol=1e-12)
    assert cache["blocks.0.attn.hook_pattern_grad"].abs().max() > 1e-5


# -- weights -------------------------------------------------------------------------------------------------


def test_circuits_and_composition_scores():
    decoder = decoder_of(config_of("gelu and LN")).double()
    w = {name: tensor.numpy() for name, tensor in decoder.state_dict().items()}

    def ov(layer, head):
        return w[f"blocks.{layer}.attn.W_V"][head] @ w[f"blocks.{layer}.attn.W_O"][head]

    def qk(layer, head):
        return w[f"blocks.{layer}.attn.W_Q"][head] @ w[f"blocks.{layer}.attn.W_K"][head].T

    assert isinstance(decoder.OV, FactoredMatrix)
    assert decoder.OV.shape == decoder.QK.shape == (2, 3, 12, 12)
    reads = {"Q": qk, "K": lambda layer, head: qk(layer, head).T, "V": ov}
    for mode, read in reads.items():
        scores = decoder.all_composition_scores(mode).detach().numpy()
        assert scores.shape == (2, 3, 2, 3)
        for head in range(3):
            assert np.allclose(decoder.OV.AB[1, head].detach(), ov(1, head), atol=1e-12)
            assert np.allclose(decoder.QK.AB[1, head].detach(), qk(1, head), atol=1e-12)
            for later in range(3):
                a, b = ov(0, head), read(1, later)
                norm = np.linalg.norm
                assert scores[0, head, 1, later] == pytest.approx(norm(a @ b) / norm(a) / norm(b), rel=1e-9)
        scores[0, :, 1] = 0
        assert not scores.any()
    assert decoder.OV.eigenvalues[0, 1].abs().max() > 0


@pytest.mark.parametrize("case", ["gelu and LN", "tied"])
def test_singular_vectors(case):
    decoder = decoder_of(config_of(case))  # in float32: SVDInterpreter 3 knows no other
    w = {name: tensor.numpy() for name, tensor in decoder.state_dict().items()}
    V = np.linalg.svd(w["blocks.1.attn.W_V"][2] @ w["blocks.1.attn.W_O"][2])[2][:3]  # [vector, d_model]
    expected = (w["embed.W_E"] if case == "tied" else w["unembed.W_U"].T) @ V.T
    interpreter = SVDInterpreter(decoder)
    vectors = interpreter.get_singular_vectors("OV", layer_index=1, num_vectors=3, head_index=2)
    # A singular vector's sign is free.
    assert np.allclose(vectors[:, 0].detach().abs().numpy(), np.abs(expected), atol=1e-4)


def test_a_weight_that_a_model_has_not():
    decoder = decoder_of(config_of("relative"))
    with pytest.raises(ValueError, match="relative positions have no W_pos"):
        _ = decoder.W_pos
    with pytest.raises(AttributeError, match="W_in"):
        _ = decoder.W_in
    # Past the type check, where the tests have one.
    scores = type(decoder).all_composition_scores
    scores = getattr(scores, "__wrapped__", scores)
    with pytest.raises(ValueError, match="mode"):
        scores(decoder, "OV")


# -- patching ------------------------------------------------------------------------------------------------


def patched_by_hand(decoder, tokens, clean_cache, name, index, metric):
    """One entry of a patching table: the clean value at one index, everything else corrupted."""

    def hook(x, hook):
        x = x.clone()
        x[index] = clean_cache[name][index]
        return x

    return metric(decoder.run_with_hooks(tokens, fwd_hooks=[(name, hook)])).item()


EVERY = slice(None)
PATCHES = {
    "get_act_patch_resid_pre": lambda layer, i: (f"blocks.{layer}.hook_resid_pre", (EVERY, i)),
    "get_act_patch_attn_out": lambda layer, i: (f"blocks.{layer}.hook_attn_out", (EVERY, i)),
    "get_act_patch_mlp_out": lambda layer, i: (f"blocks.{layer}.hook_mlp_out", (EVERY, i)),
    "get_act_patch_attn_head_out_all_pos": lambda layer, i: (
        f"blocks.{layer}.attn.hook_z",
        (EVERY, EVERY, i),
    ),
    "get_act_patch_attn_head_v_all_pos": lambda layer, i: (f"blocks.{layer}.attn.hook_v", (EVERY, EVERY, i)),
    "get_act_patch_attn_head_pattern_all_pos": lambda layer, i: (
        f"blocks.{layer}.attn.hook_pattern",
        (EVERY, i),
    ),
}


@pytest.mark.filterwarnings("default")  # tqdm's, for want of a notebook's widgets
@pytest.mark.parametrize("tool", PATCHES)
def test_activation_patching(tool):
    decoder = decoder_of(config_of("gelu and LN")).double()
    clean, corrupted = tokens_of(decoder.config, 2, seed=1), tokens_of(decoder.config, 2, seed=2)
    _, clean_cache = decoder.run_with_cache(clean)

    def metric(logits):
        return (logits[:, -1, 1] - logits[:, -1, 3]).mean()

    with torch.no_grad():
        table = getattr(patching, tool)(decoder, corrupted, clean_cache, metric)
        n = table.shape[1]
        assert table.shape == (2, 3 if "head" in tool else 9)
        for layer in range(2):
            for i in (0, n // 2, n - 1):
                name, index = PATCHES[tool](layer, i)
                expected = patched_by_hand(decoder, corrupted, clean_cache, name, index, metric)
                assert table[layer, i].item() == pytest.approx(expected, rel=1e-6)
        assert table.std() > 1e-4
    assert not decoder.list_hooks()


# -- head detector -------------------------------------------------------------------------------------------


def test_head_detector_patterns():
    decoder = decoder_of(config_of(), seed=3).double()
    tokens = torch.tensor([[4, 2, 6, 1, 4, 2, 6, 1]])
    previous = get_previous_token_head_detection_pattern(tokens)
    induction = get_induction_head_detection_pattern(tokens)
    hook = [("blocks.1.attn.hook_pattern", lambda pattern, hook: previous.double().expand_as(pattern))]
    with decoder.hooks(fwd_hooks=hook):
        _, cache = decoder.run_with_cache(tokens, remove_batch_dim=True)

    def score(layer, expected):
        pattern = cache["pattern", layer][0].float()
        return compute_head_attention_similarity_score(
            pattern, expected, exclude_bos=False, exclude_current_token=False, error_measure="mul"
        )

    assert score(1, previous) == pytest.approx(1.0)
    assert score(1, induction) == pytest.approx(0.0, abs=1e-3)
    assert 0.0 < score(0, previous) < 0.9


# -- a stack is refused by name ------------------------------------------------------------------------------


def test_a_stacks_cache_is_a_plain_dict():
    decoder = decoder_of(config_of(), n_models=2)
    _, cache = decoder.run_with_cache(tokens_of(decoder.config))
    assert type(cache) is dict
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, 3, 3, 9, 9)


REFUSED = {
    "cfg": lambda m, t, c: m.cfg,
    "W_E": lambda m, t, c: m.W_E,
    "W_pos": lambda m, t, c: m.W_pos,
    "W_U": lambda m, t, c: m.W_U,
    "b_U": lambda m, t, c: m.b_U,
    "W_Q": lambda m, t, c: m.W_Q,
    "W_O": lambda m, t, c: m.W_O,
    "b_V": lambda m, t, c: m.b_V,
    "W_in": lambda m, t, c: m.W_in,
    "OV": lambda m, t, c: m.OV,
    "QK": lambda m, t, c: m.QK,
    "composition scores": lambda m, t, c: m.all_composition_scores("K"),
    "accumulated_bias": lambda m, t, c: m.accumulated_bias(1),
    "residual directions": lambda m, t, c: m.tokens_to_residual_directions(t),
    "remove_batch_dim": lambda m, t, c: m.run_with_cache(t[:1], remove_batch_dim=True),
    "SVDInterpreter": lambda m, t, c: SVDInterpreter(m),
    "decompose_resid": lambda m, t, c: ActivationCache(c, m).decompose_resid(layer=-1),
    "accumulated_resid": lambda m, t, c: ActivationCache(c, m).accumulated_resid(layer=-1),
    "stack_head_results": lambda m, t, c: ActivationCache(c, m).stack_head_results(layer=-1),
    "logit_attrs": lambda m, t, c: ActivationCache(c, m).logit_attrs(c["hook_embed"][None], t),
    "resid_pre patching": lambda m, t, c: patching.get_act_patch_resid_pre(m, t, c, torch.mean),
    "head patching": lambda m, t, c: patching.get_act_patch_attn_head_out_all_pos(m, t, c, torch.mean),
    "pattern patching": lambda m, t, c: patching.get_act_patch_attn_head_pattern_all_pos(m, t, c, torch.mean),
    "a setter as a hook": lambda m, t, c: m.run_with_hooks(
        t, fwd_hooks=[("hook_embed", patching.layer_pos_patch_setter)]
    ),
    "a setter in a partial": lambda m, t, c: m.run_with_hooks(
        t, fwd_hooks=[("hook_embed", partial(patching.layer_pos_patch_setter, index=[0, 1]))]
    ),
    "a setter added": lambda m, t, c: m.add_hook("hook_embed", patching.layer_pos_patch_setter),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("tool", REFUSED)
def test_a_stack_is_refused(tool):
    decoder = decoder_of(config_of("gelu and LN"), n_models=2)
    tokens = tokens_of(decoder.config)
    _, cache = decoder.run_with_cache(tokens)
    with pytest.raises(TypeError, match=r"this is a stack of 2 models.*use a member, stack\[i\]"):
        REFUSED[tool](decoder, tokens, cache)


def test_there_is_no_tokenizer():
    with pytest.raises(TypeError, match="no tokenizer"):
        decoder_of(config_of()).to_tokens("text")
