"""A table of names for models that an importer knows gives the tensors that the importer gives."""

import pytest
import torch
import transformers
from public_codes import SOURCE

import mechmarkov as mm

pytestmark = pytest.mark.filterwarnings("default")  # transformers warns of its own future
K, LENGTH, WIDTH = 5, 9, 8
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0}
SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 2, "vocab_size": K, **SPECIAL}
ROTARY = {"positional_embedding_type": "rotary", "rotary_base": 10000, "n_ctx": LENGTH}
ROTARY |= {"rotary_adjacent_pairs": False}
TO = r"blocks.\1."


def read(template: str, side: str = "W") -> list[str]:
    return [f"{TO}attn.{side}_{x}" for x in template]


def norms(at: str, *pairs: tuple[str, str]) -> dict:
    """Lines of a model's norms: `(theirs, ours)`."""
    lines: dict = {}
    for theirs, ours in pairs:
        lines |= {at + rf"{theirs}\.weight": f"{TO}{ours}.w", at + rf"{theirs}\.bias": f"{TO}{ours}.b"}
    return lines


def linear(at: str, **pairs: str) -> dict:
    """Lines of linear layers: ours by theirs, `"attn.{}_O"`."""
    lines: dict = {}
    for theirs, ours in pairs.items():
        name = theirs.replace("__", r"\.")
        lines |= {at + rf"{name}\.{x}": TO + ours.format(y) for x, y in (("weight", "W"), ("bias", "b"))}
    return lines


NEOX = r"gpt_neox\.layers\.(\d+)\."
LLAMA = r"model\.layers\.(\d+)\."
MAMBA = r"backbone\.layers\.(\d+)\."
LLAMA_MLP = (("gate", "W_gate"), ("up", "W_in"), ("down", "W_out"))
CASES = {
    "gpt_neox": (
        transformers.GPTNeoXForCausalLM,
        transformers.GPTNeoXConfig(
            **SMALL, num_attention_heads=2, intermediate_size=12, rotary_pct=0.5,
            max_position_embeddings=LENGTH,
        ),
        {
            "gpt_neox.embed_in.weight": "embed.W_E",
            "embed_out.weight|lm_head.weight": "unembed.W_U",
            r"gpt_neox\.final_layer_norm\.weight": "ln_final.w",
            r"gpt_neox\.final_layer_norm\.bias": "ln_final.b",
            **norms(NEOX, ("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2")),
            NEOX + r"attention\.query_key_value\.weight": {"to": read("QKV"), "split": "heads"},
            NEOX + r"attention\.query_key_value\.bias": {"to": read("QKV", "b"), "split": "heads"},
            **linear(NEOX, attention__dense="attn.{}_O"),
            **linear(NEOX, mlp__dense_h_to_4h="mlp.{}_in", mlp__dense_4h_to_h="mlp.{}_out"),
            "missing": "zeros",
        },
        {"n_heads": 2, "act_fn": "gelu", "parallel_attn_mlp": True, "rotary_dim": 2, **ROTARY},
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **SMALL, num_attention_heads=4, num_key_value_heads=2, intermediate_size=12,
            max_position_embeddings=LENGTH,
        ),
        {
            "model.embed_tokens.weight": "embed.W_E",
            "model.norm.weight": "ln_final.w",
            "lm_head.weight": "unembed.W_U",
            LLAMA + r"input_layernorm\.weight": TO + "ln1.w",
            LLAMA + r"post_attention_layernorm\.weight": TO + "ln2.w",
            **{LLAMA + rf"self_attn\.{x}_proj\.weight": f"{TO}attn.W_{x.upper()}" for x in "qkvo"},
            **{LLAMA + rf"mlp\.{theirs}_proj\.weight": f"{TO}mlp.{ours}" for theirs, ours in LLAMA_MLP},
            "missing": "zeros",
        },
        {
            "n_heads": 4, "n_key_value_heads": 2, "act_fn": "silu", "normalization_type": "RMS", "eps": 1e-6,
            **ROTARY,
        },
    ),
    "mamba": (
        transformers.MambaForCausalLM,
        transformers.MambaConfig(**SMALL, state_size=3, conv_kernel=3, time_step_rank=2),
        {
            "backbone.embeddings.weight": "embed.W_E",
            "backbone.norm_f.weight": "ln_final.w",
            "lm_head.weight": "unembed.W_U",
            MAMBA + r"norm\.weight": TO + "ln1.w",
            MAMBA + r"mixer\.in_proj\.weight": {"to": read("VG"), "split": "parts"},
            MAMBA + r"mixer\.x_proj\.weight": {"to": read(["dt_in", "B", "C"]), "split": "parts"},
            MAMBA + r"mixer\.dt_proj\.weight": TO + "attn.W_dt_out",
            MAMBA + r"mixer\.dt_proj\.bias": TO + "attn.b_dt",
            MAMBA + r"mixer\.conv1d\.weight": TO + "attn.conv_V",
            MAMBA + r"mixer\.conv1d\.bias": TO + "attn.b_conv_V",
            MAMBA + r"mixer\.(A_log|D)": TO + r"attn.\2",
            MAMBA + r"mixer\.out_proj\.weight": TO + "attn.W_O",
            "missing": "zeros",
        },
        {
            "mixer": "mamba1", "n_heads": 2 * WIDTH, "d_head": 1, "d_state": 3, "d_conv": 3, "dt_rank": 2,
            "normalization_type": "RMS", "n_ctx": LENGTH,
        },
    ),
    "mamba2": (
        transformers.Mamba2ForCausalLM,
        transformers.Mamba2Config(**SMALL, state_size=3, conv_kernel=3, num_heads=4, head_dim=4, n_groups=2),
        {
            "backbone.embeddings.weight": "embed.W_E",
            "backbone.norm_f.weight": "ln_final.w",
            "lm_head.weight": "unembed.W_U",
            MAMBA + r"norm\.weight": TO + "ln1.w",
            MAMBA + r"mixer\.norm\.weight": TO + "attn.w",
            MAMBA + r"mixer\.in_proj\.weight": {"to": read(["G", "V", "K", "Q", "dt"]), "split": "parts"},
            MAMBA + r"mixer\.conv1d\.weight": {"to": [f"{TO}attn.conv_{x}" for x in "VKQ"], "split": "parts"},
            MAMBA + r"mixer\.conv1d\.bias": {"to": [f"{TO}attn.b_conv_{x}" for x in "VKQ"], "split": "parts"},
            MAMBA + r"mixer\.dt_bias": TO + "attn.b_dt",
            MAMBA + r"mixer\.(A_log|D)": TO + r"attn.\2",
            MAMBA + r"mixer\.out_proj\.weight": TO + "attn.W_O",
            "missing": "zeros",
        },
        {
            "mixer": "mamba", "n_heads": 4, "d_head": 4, "d_state": 3, "d_conv": 3, "n_groups": 2,
            "normalization_type": "RMS", "n_ctx": LENGTH,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_the_table_gives_what_the_importer_gives(kind):
    make, config, names, given = CASES[kind]
    torch.manual_seed(0)
    model = make(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    expected = mm.Run.from_model(model, source=SOURCE, n_ctx=LENGTH)
    run = mm.Run.from_model(model, source=SOURCE, names=names, given=given)
    assert run.config == expected.config
    assert run.states.keys() == expected.states.keys()
    for name, value in expected.states.items():
        assert torch.equal(run.states[name], value), name
