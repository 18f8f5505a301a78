"""The shapes of a model's parameters, by its config: what a file is checked by, without any class."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from mechmarkov.models.config import DecoderConfig

Shape = tuple[int, ...]


def parameter_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Returns the shape of each parameter of one model by its name, as `mechmarkov.models.decoder` does.

    Of our own mixers no class is needed, and so no torch. Those of others are asked for theirs.

    Raises:
        ValueError: No mixer has the config's name.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2, attn_only=True)
        >>> parameter_shapes(config)["blocks.0.attn.W_Q"]
        (2, 4, 2)
    """
    if config.mixer in OF_MIXERS:
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
        yield from OF_MIXERS[config.mixer](f"{block}.attn", config)
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
    heads, d_head = config.n_heads, config.d_head
    shared = config.n_key_value_heads
    inputs = {"Q": ("", heads, d_head)}
    inputs |= dict.fromkeys("KV", ("", heads, d_head) if shared is None else ("_", shared, d_head))
    yield from _of_heads(name, config, inputs)
    if config.positional_embedding_type == "relative":
        yield f"{name}.W_rel", (heads, config.n_ctx, d_head)
    if config.positional_embedding_type == "relative_bias":
        yield f"{name}.b_rel", (heads, config.n_ctx)
    if config.use_qk_norm:
        yield f"{name}.q_norm.w", (d_head,)
        yield f"{name}.k_norm.w", (d_head,)


def _of_state_space(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    heads, width, groups, states = config.n_heads, config.d_head, config.n_groups, config.d_state
    assert groups is not None  # DecoderConfig checks the fields of a state space
    assert states is not None
    assert config.d_conv is not None
    selective = config.mixer == "mamba1"
    shared = ("" if groups == heads else "_", groups, states)
    inputs = {"V": ("", heads, width)} if selective else {"Q": shared, "K": shared, "V": ("", heads, width)}
    yield from _of_heads(name, config, inputs)
    if config.use_gate:
        yield from _of_input(name, config, "G", width)
    if selective:
        assert config.dt_rank is not None
        yield f"{name}.W_B", (heads, states)
        yield f"{name}.W_C", (heads, states)
        yield f"{name}.W_dt_in", (heads, config.dt_rank)
        yield f"{name}.W_dt_out", (config.dt_rank, heads)
        yield f"{name}.b_dt", (heads,)
    else:
        yield from _of_input(name, config, "dt", 1)
    yield f"{name}.A_log", (heads, states if selective else 1)
    yield f"{name}.D", (heads,)
    if config.use_gate_norm:
        yield f"{name}.w", (heads, width)
    for side, (_, n, channels) in inputs.items():
        yield f"{name}.conv_{side}", (n, channels, config.d_conv)
        yield f"{name}.b_conv_{side}", (n, channels)


def _of_lstm(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    heads, width = config.n_heads, config.d_head
    yield from _of_heads(name, config, {"V": ("", heads, width)})
    for gate in "IFG":
        yield from _of_input(name, config, gate, width)
    yield f"{name}.W_R", (heads, width, 4 * width)


def _of_token_mlp(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    heads, length = config.n_heads, config.n_ctx
    yield from _of_heads(name, config, {"V": ("", heads, config.d_head)})
    yield f"{name}.W_A", (heads, length, length)
    yield f"{name}.W_B", (heads, length, length)
    yield f"{name}.b_A", (heads, length)


def _of_heads(
    name: str, config: DecoderConfig, inputs: Mapping[str, tuple[str, int, int]]
) -> Iterator[tuple[str, Shape]]:
    """Yields what every mixer has; of each input its mark, how many heads have their own, and its width."""
    for side, (mark, n, width) in inputs.items():
        yield f"{name}.{mark}W_{side}", (n, config.d_model, width)
    yield f"{name}.W_O", (config.n_heads, config.d_head, config.d_model)
    for side, (mark, n, width) in inputs.items():
        yield f"{name}.{mark}b_{side}", (n, width)
    yield f"{name}.b_O", (config.d_model,)


def _of_input(name: str, config: DecoderConfig, side: str, width: int) -> Iterator[tuple[str, Shape]]:
    """Yields a further input that each head has."""
    yield f"{name}.W_{side}", (config.n_heads, config.d_model, width)
    yield f"{name}.b_{side}", (config.n_heads, width)


def _of_mlp(name: str, config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    assert config.d_mlp is not None  # DecoderConfig checks it
    d_model, d_mlp = config.d_model, config.d_mlp
    yield f"{name}.W_in", (d_model, d_mlp)
    yield f"{name}.b_in", (d_mlp,)
    yield f"{name}.W_out", (d_mlp, d_model)
    yield f"{name}.b_out", (d_model,)
    if config.gated_mlp:
        yield f"{name}.W_gate", (d_model, d_mlp)


OF_MIXERS = {
    "attention": _of_attention,
    "mamba": _of_state_space,
    "mamba1": _of_state_space,
    "lstm": _of_lstm,
    "mlp": _of_token_mlp,
}
