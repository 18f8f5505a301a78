"""HookedDecoder: a decoder-only transformer, single or as a stack of models of one shape."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.block import Block
from mechmarkov.models.components import norms_between
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import Embed, Norm, PosEmbed, TiedUnembed, Unembed, is_hooked
from mechmarkov.models.lens.inputs import Inputs
from mechmarkov.models.lens.loss import Output, next_token_loss
from mechmarkov.utils.errors import integer_of
from mechmarkov.utils.text import shown

# Buffers that HookedTransformer's state dicts carry and that follow from the config.
MASK_BUFFERS = ("attn.mask", "attn.IGNORE")
ROTARY_BUFFERS = ("attn.rotary_sin", "attn.rotary_cos")


def is_derived(name: str, config: DecoderConfig) -> bool:
    """Returns whether a name is of a buffer that follows from the config: a mask, a rotary table.

    Rotary tables are not, if the model has other positions. With ALiBi HookedTransformer has a `W_pos`, which
    it does not use: that too is passed over.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=4, d_vocab=2)
        >>> is_derived("blocks.0.attn.mask", config), is_derived("blocks.0.attn.W_Q", config)
        (True, False)
    """
    rotary = config.positional_embedding_type == "rotary"
    if config.positional_embedding_type == "alibi" and name == "pos_embed.W_pos":
        return True
    return name.endswith(MASK_BUFFERS + ROTARY_BUFFERS if rotary else MASK_BUFFERS)


class HookedDecoder(Inputs):
    """A decoder-only transformer with HookedTransformer's parameters, hooks and logits.

    Without `n_models`, parameters and activations have HookedTransformer's names and shapes. With
    `n_models=m` it is a stack: every parameter has a leading axis `m`, one forward pass runs all m models,
    and every activation has that leading axis; `stack[i]` is a member.

    All parameters start at zero (norm weights at one). Only the output bias has a gradient there: call
    `mm.models.initialise(decoder, [seed])` before you train.

    Args:
        config: The shape of each model.
        n_models: How many models of that shape run as one; None for a single model.

    Raises:
        TypeError: `config` is not a `DecoderConfig`.
        ValueError: If `n_models` is below one.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=8, n_ctx=5, d_head=8, d_vocab=3, attn_only=True)
        >>> tokens = torch.zeros(2, 5, dtype=torch.long)
        >>> HookedDecoder(config)(tokens).shape
        torch.Size([2, 5, 3])
        >>> HookedDecoder(config, n_models=7)(tokens).shape
        torch.Size([7, 2, 5, 3])
    """

    def __init__(self, config: DecoderConfig, n_models: int | None = None) -> None:
        if not isinstance(config, DecoderConfig):
            raise TypeError(f"config is {shown(config)}, expected a mm.DecoderConfig")
        super().__init__()
        if n_models is not None and not isinstance(n_models, bool):
            n_models = integer_of("n_models", n_models, least=1)
        self.config = config
        self.n_models = n_models
        stack = () if n_models is None else (n_models,)
        self.embed = Embed(config, stack)
        self.hook_embed = HookPoint()  # [*stack, batch, position, d_model]
        self.pos_embed: PosEmbed | None = None
        if config.positional_embedding_type in ("standard", "shortformer"):
            self.pos_embed = PosEmbed(config, stack)
            self.hook_pos_embed = HookPoint()  # [*stack, batch, position, d_model]
        self.blocks = nn.ModuleList([Block(config, stack) for _ in range(config.n_layers)])
        self.ln_final = nn.Identity() if config.final_normalization_type is None else Norm(config, stack)
        self.unembed = TiedUnembed(config, stack, self.embed) if config.tied else Unembed(config, stack)
        self.eval()
        self.setup()

    def forward(
        self,
        input: Int[Tensor, "*batch position"] | Float[Tensor, "*batch position d_model"],  # noqa: A002
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        start_at_layer: int | None = None,
        tokens: Int[Tensor, "*batch position"] | None = None,
        shortformer_pos_embed: Float[Tensor, "*batch position d_model"] | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        past_kv_cache: Any = None,
        *,
        read: Int[Tensor, " read"] | None = None,
    ) -> Float[Tensor, "..."] | Output | None:
        """Run the model; the arguments are HookedTransformer's, with `read` besides.

        Args:
            input: Tokens `[batch, position]`, or one sequence `[position]`; for a stack shared by all
                members, or `[n_models, batch, position]` to give each member its own. With `start_at_layer`
                the residual stream `[batch, position, d_model]`, `[n_models, …]` the same.
            return_type: `"logits"`, `"loss"` (next-token cross-entropy in nats), `"both"` (an `Output` of the
                two) or None (nothing, for caching).
            loss_per_token: The loss of each position but the last, `[*stack, batch, position - 1]`, for their
                mean.
            prepend_bos: For text only, as in HookedTransformer: to tokens nothing is prepended.
            padding_side: For text only, as in HookedTransformer.
            start_at_layer: Begin at this layer, whose input is given; from the end if negative. `n_layers`
                unembeds what is given.
            tokens: With `start_at_layer`, for a loss, and for `ablate(kind="same_token")`.
            shortformer_pos_embed: With `start_at_layer`, the positions of a shortformer model, as
                `input_to_embed` returns them; by default those of the sequences.
            attention_mask: `[batch, position]`, 0 where a token is padding: no query attends to it, positions
                are counted without it, and the loss leaves it out. For a stack as `input`.
            stop_at_layer: Return the residual stream before this layer; from the end if negative.
            past_kv_cache: A `TransformerLensKeyValueCache` of this model, whose tokens come before these. No
                stack has one.
            read: Positions in ascending order; only their logits are returned. The last layer then computes
                no position before them, and its hooks see the queries and outputs from the first of them on.

        Returns:
            Logits `[*stack, batch, position, d_vocab_out]`, before any softmax, or what `return_type` and
            `stop_at_layer` say.

        Raises:
            ValueError: If an input does not fit the model's context, its stack or its layers, `read` is given
                with a loss, or an argument does not go with the model.
            TypeError: For a text: there is no tokenizer.
        """
        if read is not None and return_type not in ("logits", None):
            raise ValueError("read is given, but a loss is over all positions")
        first_layer, last_layer = 0, self.config.n_layers
        if start_at_layer is None:
            if tokens is not None or shortformer_pos_embed is not None:
                raise ValueError(
                    "tokens and shortformer_pos_embed go with start_at_layer: give tokens as input"
                )
            residual, tokens, positions, attention_mask = self.input_to_embed(
                input, prepend_bos, padding_side, attention_mask, past_kv_cache
            )
        else:
            first_layer = self._layer("start_at_layer", start_at_layer)
            residual, tokens = self._given(input, tokens, first_layer)
            positions = self._shortformer(residual, shortformer_pos_embed, attention_mask, past_kv_cache)
        if stop_at_layer is not None:
            last_layer = self._layer("stop_at_layer", stop_at_layer)
        contexts = None
        if attention_mask is not None or past_kv_cache is not None:
            contexts = self._contexts(residual, attention_mask, past_kv_cache)
        length = residual.shape[-2]
        first = 0 if read is None else int(read[0])
        is_read = return_type is not None or stop_at_layer is not None or self._is_norm_hooked()
        for index, block in enumerate(self.blocks):
            if first_layer <= index < last_layer:
                last = length - first if first > 0 and index == self.config.n_layers - 1 else None
                context = None if contexts is None else contexts[index]
                is_end = not is_read and index == self.config.n_layers - 1
                residual = block(residual, positions, last, context, *[True] * is_end)
        if read is not None and len(read) < residual.shape[-2]:
            residual = residual[..., read - (length - residual.shape[-2]), :]
        if stop_at_layer is not None:
            return residual
        if return_type is None:
            if self._is_norm_hooked():
                self.ln_final(residual)
            return None
        logits: Tensor = self.unembed(self.ln_final(residual))
        if return_type == "logits":
            return logits
        if return_type not in ("loss", "both"):
            raise ValueError(
                f"return_type is {shown(return_type)}, expected 'logits', 'loss', 'both' or None"
            )
        loss = next_token_loss(logits, tokens, attention_mask, loss_per_token)
        return loss if return_type == "loss" else Output(logits, loss)

    def _is_norm_hooked(self) -> bool:
        return any(map(is_hooked, self.ln_final.modules()))

    def folded_unembedding(self, writer: str = "direct") -> Float[Tensor, "*stack d_model d_vocab_out"]:
        """The matrix from what a component writes to the logits: `W_U`, the norms between the two folded in.

        Where norms stand first that is the final norm, whatever writes; otherwise those behind the sums, too.
        Of norms it holds gain and centring; scales and all biases are left out. Detached.
        """
        weight = self.unembed.W_U.detach()
        for name in reversed(norms_between(self.config, writer)):
            norm: Any = self.get_submodule(name)
            weight = norm.folded(weight)
        return weight

    def __bool__(self) -> bool:
        """A model is true, though a single one has no length."""
        return True

    def __len__(self) -> int:
        """Returns how many models a stack holds."""
        if self.n_models is None:
            raise TypeError("a single HookedDecoder has no length")
        return self.n_models

    def __getitem__(self, index: int) -> "HookedDecoder":
        """A member of a stack, as a model of its own (its parameters are copies)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"member {index} of a stack of {len(self)}")
        member = HookedDecoder(self.config)
        member.to(self.embed.W_E.device, self.embed.W_E.dtype)  # first: loading casts to what is there
        member.load_state_dict({name: value[index] for name, value in self.state_dict().items()})
        member.outputs_as(self)
        return member

    @staticmethod
    def stack(models: Sequence["HookedDecoder"]) -> "HookedDecoder":
        """Make a stack of several models of one config; its parameters are copies.

        Raises:
            ValueError: No models, models of several configs, or a stack among them.

        Example:
            >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
            >>> HookedDecoder.stack([HookedDecoder(config)] * 3).n_models
            3
        """
        if not models:
            raise ValueError("cannot stack no models")
        configs = {model.config for model in models}
        if len(configs) > 1 or any(model.n_models is not None for model in models):
            raise ValueError("a stack is made of single models that share one config")
        states = [model.state_dict() for model in models]
        stacked = HookedDecoder(models[0].config, n_models=len(models))
        stacked.to(models[0].embed.W_E.device, models[0].embed.W_E.dtype)
        stacked.load_state_dict({name: torch.stack([state[name] for state in states]) for name in states[0]})
        stacked.outputs_as(models[0])
        return stacked

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load weights; attention masks and rotary tables of HookedTransformer's files are ignored.

        Rotary tables are an unexpected key where this model has other positions.
        """
        weights = {name: x for name, x in state_dict.items() if not is_derived(name, self.config)}
        return super().load_state_dict(weights, strict=strict, assign=assign)


@torch.no_grad()
def activations(model: HookedDecoder, tokens: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """Returns what a pass has at the hook points of these names, of those that there are.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> tokens = torch.tensor([[0, 1, 1]])
        >>> activations(HookedDecoder(config), tokens, ["blocks.0.attn.hook_z"])["blocks.0.attn.hook_z"].shape
        torch.Size([1, 3, 1, 4])
    """
    seen: dict[str, Tensor] = model.run_with_cache(tokens, return_cache_object=False, names_filter=[*names])[
        1
    ]
    return seen


def check_decoder(model: object) -> None:
    """Refuse what is not a model, where hooks are about to be set.

    Raises:
        TypeError: The message says how a run's model is had.
    """
    if not isinstance(model, HookedDecoder):
        raise TypeError(f"model is a {type(model).__name__}, expected a HookedDecoder: run.model() is one")


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each parameter of one model, by its name; no memory is allocated.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2, attn_only=True)
        >>> parameter_shapes(config)["blocks.0.attn.W_Q"]
        (2, 4, 2)
    """
    with torch.device("meta"):
        return {name: tuple(x.shape) for name, x in HookedDecoder(config).named_parameters()}
