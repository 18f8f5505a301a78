"""The shapes of a model's parameters, by its config: what a file is checked by, without any class."""

from collections.abc import Iterator
from importlib import import_module

from mechmarkov.models.config import DecoderConfig

Shape = tuple[int, ...]


def parameter_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Returns the shape of each parameter of one model by its name, as `mechmarkov.models.decoder` does.

    Of transformers no class is needed, and so no TransformerLens. Other mixers are asked for theirs.

    Raises:
        ValueError: No mixer has the config's name.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2, attn_only=True)
        >>> parameter_shapes(config)["blocks.0.attn.W_Q"]
        (2, 4, 2)
    """
    if config.mixer == "attention":
        return dict(_of_transformer(config))
    shapes: dict[str, Shape] = import_module("mechmarkov.models.decoder").parameter_shapes(config)
    return shapes


def _of_transformer(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Yields names and shapes in the order in which a model has them."""
    d_model = config.d_model
    yield "embed.W_E", (config.d_vocab, d_model)
    if config.positional_embedding_type in ("standard", "shortformer"):
        yield "pos_embed.W_pos", (config.n_ctx, d_model)
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        yield from _of_norm(f"{block}.ln1", config)
        yield from _of_attention(f"{block}.attn", config)
        if not config.attn_only:
            yield from _of_norm(f"{block}.ln2", config)
            yield from _of_mlp(f"{block}.mlp", config)
    if config.final_norm:
        yield from _of_norm("ln_final", config)
    if not config.tied:
        yield "unembed.W_U", (d_model, config.d_vocab_out)
    yield "unembed.b_U", (config.d_vocab_out,)


def _of_norm(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    if config.normalization_type in ("LN", "RMS"):
        yield f"{name}.w", (config.d_model,)
    if config.normalization_type == "LN":
        yield f"{name}.b", (config.d_model,)


def _of_attention(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    heads, d_model, d_head = config.n_heads, config.d_model, config.d_head
    readers = {"Q": ("", heads)}
    shared = config.n_key_value_heads
    readers |= dict.fromkeys("KV", ("", heads) if shared is None else ("_", shared))
    for side, (mark, n) in readers.items():
        yield f"{name}.{mark}W_{side}", (n, d_model, d_head)
    yield f"{name}.W_O", (heads, d_head, d_model)
    for side, (mark, n) in readers.items():
        yield f"{name}.{mark}b_{side}", (n, d_head)
    yield f"{name}.b_O", (d_model,)
    if config.positional_embedding_type == "relative":
        yield f"{name}.W_rel", (heads, config.n_ctx, d_head)
    if config.positional_embedding_type == "relative_bias":
        yield f"{name}.b_rel", (heads, config.n_ctx)
    if config.use_qk_norm:
        yield f"{name}.q_norm.w", (d_head,)
        yield f"{name}.k_norm.w", (d_head,)


def _of_mlp(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    assert config.d_mlp is not None  # DecoderConfig checks it
    d_model, d_mlp = config.d_model, config.d_mlp
    yield f"{name}.W_in", (d_model, d_mlp)
    yield f"{name}.b_in", (d_mlp,)
    yield f"{name}.W_out", (d_mlp, d_model)
    yield f"{name}.b_out", (d_model,)
    if config.gated_mlp:
        yield f"{name}.W_gate", (d_model, d_mlp)
