"""Relatives of transformers' models that no importer reads: a message names the table that brings them in."""

import pytest
import torch
import transformers
from public_codes import SOURCE, drawn

import mechmarkov as mm

pytestmark = pytest.mark.filterwarnings("default")  # transformers warns of its own future
K, LENGTH, WIDTH = 5, 9, 8
SMALL = {"vocab_size": K, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
OLD = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
NEW = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
LN = {"n_heads": 2, "normalization_type": "LN", "n_ctx": LENGTH}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 2, "parallel_attn_mlp": True}
TO = r"blocks.\1."
TIED = ["embed.W_E", "unembed.W_U"]
H, OPT, PHI = r"transformer\.h\.(\d+)\.", r"model\.decoder\.layers\.(\d+)\.", r"model\.layers\.(\d+)\."
MPT = r"transformer\.blocks\.(\d+)\."


def linear(at, **names):
    """Lines of linear layers, ours by theirs: `at` is what theirs begin with."""
    return {
        at + rf"{theirs}\.{end}": f"{TO}{ours.format(kind)}"
        for theirs, ours in names.items()
        for end, kind in (("weight", "W"), ("bias", "b"))
    }


def heads(at):
    return linear(at, q_proj="attn.{}_Q", k_proj="attn.{}_K", v_proj="attn.{}_V", out_proj="attn.{}_O")


def both_norms(at):
    return {at + r"\.(.).*": [rf"{TO}ln1.\2", rf"{TO}ln2.\2"]}


def rows_of(kind):
    """Queries of two heads, then the keys and values that these share."""
    rows = {"Q": [0, 8], "K": [8, 12], "V": [12, 16]}
    return [{"to": f"{TO}attn.{kind}_{side}", "rows": part} for side, part in rows.items()]


GPT = {
    "transformer.wpe.weight": "pos_embed.W_pos",
    r"transformer\.ln_f\.(.).*": r"ln_final.\1",
    H + r"ln_(\d)\.(.).*": TO + r"ln\2.\3",
    "transformer.wte.weight": TIED,
    "lm_head.weight": "",
    **linear(H + r"mlp\.", c_fc="mlp.{}_in", c_proj="mlp.{}_out"),
    "missing": "zeros",
}
CASES = {
    "gptj": (
        transformers.GPTJConfig(**SMALL, **OLD, rotary_dim=2),
        {
            "transformer.wte.weight": "embed.W_E",
            r"lm_head\.weight": "unembed.W_U",
            r"lm_head\.bias": "unembed.b_U",
            r"transformer\.ln_f\.(.).*": r"ln_final.\1",
            **both_norms(H + "ln_1"),
            **heads(H + r"attn\."),
            **linear(H + r"mlp\.", fc_in="mlp.{}_in", fc_out="mlp.{}_out"),
            "missing": "zeros",
        },
        {"act_fn": "gelu_new", **ROTARY, "rotary_adjacent_pairs": True},
    ),
    "phi": (
        transformers.PhiConfig(
            **SMALL, **NEW, intermediate_size=12, max_position_embeddings=LENGTH, partial_rotary_factor=0.5
        ),
        {
            "model.embed_tokens.weight": "embed.W_E",
            r"lm_head\.weight": "unembed.W_U",
            r"lm_head\.bias": "unembed.b_U",
            r"model\.final_layernorm\.(.).*": r"ln_final.\1",
            **both_norms(PHI + "input_layernorm"),
            **linear(PHI + r"self_attn\.", q_proj="attn.{}_Q", k_proj="attn.{}_K", v_proj="attn.{}_V"),
            **linear(PHI, **{r"self_attn\.dense": "attn.{}_O"}),
            **linear(PHI + r"mlp\.", fc1="mlp.{}_in", fc2="mlp.{}_out"),
        },
        {"act_fn": "gelu_new", **ROTARY, "rotary_adjacent_pairs": False},
    ),
    "opt": (
        transformers.OPTConfig(
            **SMALL, **NEW, ffn_dim=12, max_position_embeddings=LENGTH, word_embed_proj_dim=WIDTH
        ),
        {
            "model.decoder.embed_tokens.weight": TIED,
            "lm_head.weight": "",
            "model.decoder.embed_positions.weight": {"to": "pos_embed.W_pos", "rows": [2, 2 + LENGTH]},
            r"model\.decoder\.final_layer_norm\.(.).*": r"ln_final.\1",
            OPT + r"self_attn_layer_norm\.(.).*": TO + r"ln1.\2",
            OPT + r"final_layer_norm\.(.).*": TO + r"ln2.\2",
            **heads(OPT + r"self_attn\."),
            **linear(OPT, fc1="mlp.{}_in", fc2="mlp.{}_out"),
            "missing": "zeros",
        },
        {"act_fn": "relu"},
    ),
    "mpt": (
        transformers.MptConfig(**SMALL, d_model=WIDTH, n_layers=2, n_heads=2, max_seq_len=LENGTH),
        {
            "transformer.wte.weight": TIED,
            "lm_head.weight": "",
            r"transformer\.norm_f\.weight": "ln_final.w",
            MPT + r"norm_(\d)\.weight": TO + r"ln\2.w",
            MPT + r"attn\.Wqkv\.weight": {"to": [f"{TO}attn.W_{x}" for x in "QKV"], "split": "parts"},
            **linear(MPT, **{r"attn\.out_proj": "attn.{}_O"}),
            **linear(MPT + r"ffn\.", up_proj="mlp.{}_in", down_proj="mlp.{}_out"),
            "missing": "zeros",
        },
        {"act_fn": "gelu", "positional_embedding_type": "alibi"},
    ),
    "gpt_neo": (
        transformers.GPTNeoConfig(
            **SMALL, hidden_size=WIDTH, num_layers=2, num_heads=2, attention_types=[[["global"], 2]],
            max_position_embeddings=LENGTH,
        ),
        {**GPT, **heads(H + r"attn\.attention\.")},
        {"act_fn": "gelu_new", "use_attn_scale": False},
    ),
    "gpt_bigcode": (
        transformers.GPTBigCodeConfig(**SMALL, **OLD),
        {
            **GPT,
            H + r"attn\.c_attn\.weight": rows_of("W"),
            H + r"attn\.c_attn\.bias": rows_of("b"),
            **linear(H + r"attn\.", c_proj="attn.{}_O"),
        },
        {"act_fn": "gelu_new", "n_key_value_heads": 1, "d_head": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_a_relative_names_the_table_that_brings_it_in(kind):
    config, names, given = CASES[kind]
    model = drawn(transformers.AutoModelForCausalLM.from_config(config)).eval()
    with pytest.raises(ValueError, match=rf"; {kind} is not read: .*; names= or --names brings it in: "):
        mm.Run.from_model(model, source=SOURCE)
    run = mm.Run.from_model(model, source=SOURCE, names=names, given={**LN, **given})
    tokens = torch.randint(K, (4, LENGTH), generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(run.model()(tokens), model(tokens).logits, rtol=1e-5, atol=1e-5)
