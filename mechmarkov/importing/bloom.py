"""Transformers' Bloom: ALiBi, and a norm behind the embedding, which goes into the embedding's rows."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from mechmarkov.importing import config_fields
from mechmarkov.importing.architecture import Architecture, States
from mechmarkov.models import DecoderConfig

FIELDS = {
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "hidden_size": "d_model",
    "vocab_size": "d_vocab",
    "layer_norm_epsilon": "eps",
}
# Fields that do not change what a loaded model computes.
HARMLESS = {
    "attention_dropout", "attention_softmax_in_fp32", "bias_dropout_fusion", "hidden_dropout",
    "masked_softmax_fusion", "n_embed", "n_inner", "offset_alibi", "pretraining_tp", "seq_length",
    "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "unk_token_id",
}  # fmt: skip
LAYERS = "transformer.h.N."
# A bridge's stems by theirs, as of `linear_layers.Table`.
STEMS = {
    "transformer.word_embeddings": "embed",
    f"{LAYERS}input_layernorm": "blocks.N.ln1",
    f"{LAYERS}self_attention.query_key_value": "blocks.N.attn.qkv",
    f"{LAYERS}self_attention.dense": "blocks.N.attn.o",
    f"{LAYERS}post_attention_layernorm": "blocks.N.ln2",
    f"{LAYERS}mlp.dense_h_to_4h": "blocks.N.mlp.in",
    f"{LAYERS}mlp.dense_4h_to_h": "blocks.N.mlp.out",
    "transformer.ln_f": "ln_final",
    "lm_head": "unembed",
}
NORM = "transformer.word_embeddings_layernorm"
MARKS = ((f"{NORM}.weight",),)


def fields_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate a Bloom's config into fields of a `DecoderConfig`.

    Heads have `alibi`'s slopes where they are a power of two, else a `relative_bias`.

    Raises:
        RunFileError: Naming a field that is missing or that a `HookedDecoder` cannot express.
    """
    stream = "apply_residual_connection_post_layernorm"
    config_fields.check_fields(config, FIELDS, {*HARMLESS, stream}, where)
    if config.get(stream):
        raise config_fields.cannot_express(stream, True, where)
    fields: dict[str, Any] = {ours: config[theirs] for theirs, ours in FIELDS.items()}
    fields["d_head"] = config_fields.head_size(fields["n_heads"], fields["d_model"], "hidden_size")
    is_power = fields["n_heads"] & (fields["n_heads"] - 1) == 0
    fields["positional_embedding_type"] = "alibi" if is_power else "relative_bias"
    return fields | {"act_fn": "gelu_new", "attn_only": False, "normalization_type": "LN"}


def _normed(states: States, norm: States, shape: DecoderConfig) -> States:
    """The norm of a token's embedding depends only on the token, and goes into the embedding."""
    gain, shift = norm.values()
    states["embed.W_E"] = layer_norm(states["embed.W_E"], gain.shape, gain, shift, shape.eps)
    if shape.positional_embedding_type == "alibi":
        return states
    table = -slopes(shape.n_heads)[:, None] * torch.arange(shape.n_ctx)
    return states | {f"blocks.{layer}.attn.b_rel": table.clone() for layer in range(shape.n_layers)}


BLOOM = Architecture(
    STEMS,
    fields_of,
    n_layers="n_layer",
    options=lambda _: {},  # the embedding is no longer that of the unembedding
    inner={"positional_embedding_type": "alibi"},  # without tables of lags
    apart=lambda shape: {f"{NORM}.{part}": (shape.d_model,) for part in ("weight", "bias")},
    finish=_normed,
)


def slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Returns ALiBi's slopes by its authors' rule (Press et al. 2022, arXiv 2108.12409).

    Where there are not a power of two: those of the power below, then every second of the power above.

    Example:
        >>> slopes(3)
        tensor([0.0625, 0.0039, 0.2500])
    """
    power = 1 << (n_heads.bit_length() - 1)

    def of(n: int) -> Tensor:
        return 2.0 ** (-8 / n * torch.arange(1, n + 1))

    return torch.cat([of(power), of(2 * power)[::2]])[:n_heads]
