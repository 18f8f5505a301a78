"""Transformers' Bloom: ALiBi, and a norm behind the embedding, which goes into the embedding's rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from mechmarkov.importing import config_fields, layout, linear_layers
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.safe.plain_data import RunFileError

TYPE = "bloom"
ASSUMED_N_CTX = 256  # ALiBi has no longest sequence
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
LAYERS = "transformer.h."
# A bridge's stems by theirs, as of `linear_layers.Table`.
STEMS = {
    "transformer.word_embeddings": "embed",
    f"{LAYERS}N.input_layernorm": "blocks.N.ln1",
    f"{LAYERS}N.self_attention.query_key_value": "blocks.N.attn.qkv",
    f"{LAYERS}N.self_attention.dense": "blocks.N.attn.o",
    f"{LAYERS}N.post_attention_layernorm": "blocks.N.ln2",
    f"{LAYERS}N.mlp.dense_h_to_4h": "blocks.N.mlp.in",
    f"{LAYERS}N.mlp.dense_4h_to_h": "blocks.N.mlp.out",
    "transformer.ln_f": "ln_final",
    "lm_head": "unembed",
}
NORM = "transformer.word_embeddings_layernorm"
MARKS = ((f"{NORM}.weight",),)


def plan_import(
    shapes: Shapes,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    where: str = config_fields.FILE,
    called: Called = str,
) -> ImportPlan:
    """Work out which decoder a Bloom of transformers is.

    The norm of a token's embedding depends only on the token: it goes into the embedding, which is then no
    longer that of the unembedding. Heads have `alibi`'s slopes where they are a power of two, else a
    `relative_bias`.

    Args:
        shapes: The shape of every weight, by its name.
        config: The fields of its config.
        given: Fields of a `DecoderConfig` that the caller says. Where there is no `n_ctx`, it is 256: a
            model of theirs says none.
        where: What stands before a field's name in a message.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: Naming a field that cannot be expressed, is missing, or contradicts the shapes.
    """
    others = {*HARMLESS, "apply_residual_connection_post_layernorm"}
    config_fields.check_fields(config, FIELDS, others, where)
    if config.get("apply_residual_connection_post_layernorm"):
        raise config_fields.cannot_express("apply_residual_connection_post_layernorm", True, where)
    fields: dict[str, Any] = {ours: config[theirs] for theirs, ours in FIELDS.items()}
    fields["d_head"] = config_fields.head_size(fields["n_heads"], fields["d_model"], "hidden_size")
    fields |= {"act_fn": "gelu_new", "attn_only": False, "normalization_type": "LN"}
    is_power = fields["n_heads"] & (fields["n_heads"] - 1) == 0
    fields["positional_embedding_type"] = "alibi" if is_power else "relative_bias"
    fields = config_fields.agree(fields, given, "in its config")
    assumed = {} if "n_ctx" in given else {"n_ctx": ASSUMED_N_CTX}
    shape = config_fields.make_config({**assumed, **fields})
    if (layers := layout.count_layers(shapes, LAYERS, called)) != shape.n_layers:
        raise RunFileError(f"it has {layers} layers, but n_layer is {shape.n_layers}")
    norm = {f"{NORM}.{part}": (shape.d_model,) for part in ("weight", "bias")}
    own = {name: each for name, each in shapes.items() if name not in norm}
    layout.check_shapes({name: shapes[name] for name in norm if name in shapes}, norm, called=called)
    table = linear_layers.Table(STEMS, called, by_head=True)
    layers_of = shape.model_copy(update={"positional_embedding_type": "alibi"})  # without tables of lags
    plan = linear_layers.plan(own, layers_of, table=table, assumed=assumed)
    if "lm_head.weight" not in shapes and config.get("tie_word_embeddings") is False:
        raise RunFileError("it has no unembedding, though its config says that it is not tied")

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        made = plan.states({name: weights[name] for name in plan.wanted})
        gain, shift = (weights[name] for name in norm)
        made["embed.W_E"] = layer_norm(made["embed.W_E"], gain.shape, gain, shift, shape.eps)
        if is_power:
            return made
        table = -slopes(shape.n_heads)[:, None] * torch.arange(shape.n_ctx)
        return made | {f"blocks.{layer}.attn.b_rel": table.clone() for layer in range(shape.n_layers)}

    return replace(plan, config=shape, wanted=(*plan.wanted, *norm), states=states)


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
