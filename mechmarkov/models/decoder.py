"""HookedDecoder: a decoder-only transformer, alone or as a stack of models of one shape."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechmarkov.models import attention, mamba  # noqa: F401 - mixers that configs name
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import MLP, Embed, Norm, PosEmbed, TiedUnembed, Unembed, is_hooked
from mechmarkov.models.mixer import MIXERS, Mixer
from mechmarkov.models.transformer_lens import LensSurface

# Buffers that HookedTransformer's state dicts carry and that follow from the config.
MASK_BUFFERS = ("attn.mask", "attn.IGNORE")
ROTARY_BUFFERS = ("attn.rotary_sin", "attn.rotary_cos")


def is_derived(name: str, config: DecoderConfig) -> bool:
    """Whether a name is of such a buffer; rotary tables are not where the model has other positions."""
    rotary = config.positional_embedding_type == "rotary"
    return name.endswith(MASK_BUFFERS + ROTARY_BUFFERS if rotary else MASK_BUFFERS)


class Block(nn.Module):
    """One layer: a mixer (`attn`), then the MLP. Each reads a normalised residual stream and adds to it.

    With `parallel_attn_mlp` the MLP reads what the mixer reads, and there is no `hook_resid_mid`.
    """

    # These exist after `set_use_split_qkv_input`, `set_use_attn_in` or `set_use_hook_mlp_in`.
    hook_q_input: HookPoint
    hook_k_input: HookPoint
    hook_v_input: HookPoint
    hook_attn_in: HookPoint
    hook_mlp_in: HookPoint
    hook_out_is_single_residual_stream = True  # TransformerLens' logit lens asks

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.ln1 = nn.Identity() if config.normalization_type is None else Norm(config, stack)
        if config.mixer not in MIXERS:
            raise ValueError(f"mixer is {config.mixer!r}, expected one of {', '.join(MIXERS)}")
        self.attn: Mixer = MIXERS[config.mixer](config, stack)
        self.hook_resid_pre = HookPoint()  # [*stack, batch, position, d_model], as all below
        self.hook_attn_out = HookPoint()
        self.hook_resid_post = HookPoint()
        self.mlp: MLP | None = None
        if not config.attn_only:
            self.ln2 = nn.Identity() if config.normalization_type is None else Norm(config, stack)
            self.mlp = MLP(config, stack)
            self.is_parallel = config.parallel_attn_mlp
            if not self.is_parallel:
                self.hook_resid_mid = HookPoint()
            self.hook_mlp_out = HookPoint()

    def forward(
        self,
        resid_pre: Tensor,
        positions: Tensor | None,
        last: int | None = None,
    ) -> Tensor:
        """The residual stream after this layer, `[*stack, batch, position, d_model]`.

        Shortformer's positions are added to queries and keys. With `last` only so many of the last positions
        are computed.
        """
        resid_pre = self.hook_resid_pre(resid_pre)
        query, key, value = self._mixer_inputs(resid_pre)
        if positions is not None:
            positions = positions[..., : query.shape[positions.ndim - 3], :, :]  # the same for all sequences
            if query.ndim > positions.ndim:
                positions = positions.unsqueeze(-2)
            same = key is query
            query = query + positions
            key = query if same else key + positions
        if last is not None and self.attn.takes_last_queries:
            position = -2 - (query.ndim > resid_pre.ndim)  # before the head, where inputs are split
            query = query.narrow(position, query.shape[position] - last, last)
        attn_out = self.attn(query, key, value)
        if last is not None:
            resid_pre, attn_out = resid_pre[..., -last:, :], attn_out[..., -last:, :]
        attn_out = self.hook_attn_out(attn_out)
        resid = _added(attn_out, resid_pre, self.attn, self.hook_attn_out)
        if self.mlp is not None:
            if self.is_parallel:
                mlp_in = resid_pre
            else:
                mlp_in = resid = self.hook_resid_mid(resid)
            if "hook_mlp_in" in self._modules:
                mlp_in = self.hook_mlp_in(mlp_in.clone())
            mlp_out = self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
            resid = _added(mlp_out, resid, self.mlp, self.hook_mlp_out)
        return self.hook_resid_post(resid)

    def _mixer_inputs(self, resid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised inputs of queries, keys and values; split by head where these have hook points."""
        if "hook_q_input" not in self._modules and "hook_attn_in" not in self._modules:
            x = self.ln1(resid)
            return x, x, x
        by_head = repeat(resid, "... position d -> ... position head d", head=self.n_heads)
        if "hook_attn_in" in self._modules:
            x = self.ln1(self.hook_attn_in(by_head.clone()))
            return x, x, x
        points = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
        query, key, value = (self.ln1(point(by_head.clone())) for point in points)
        return query, key, value


class HookedDecoder(LensSurface):
    """A decoder-only transformer with HookedTransformer's parameters, hooks and logits.

    Without `n_models`, parameters and activations have HookedTransformer's names and shapes. With
    `n_models=m` it is a stack: every parameter has a leading axis `m`, one forward pass runs all m models,
    and every activation has that leading axis; `stack[i]` is a member.

    All parameters start at zero (norm weights at one). Only the output bias has a gradient there: call
    `mm.initialise(decoder, [seed])` before you train.

    Args:
        config: The shape of each model.
        n_models: How many models of that shape run as one; None for a single model.

    Raises:
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
        super().__init__()
        if n_models is not None and n_models < 1:
            raise ValueError(f"n_models is {n_models}, expected at least 1, or None for a single model")
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
        self.ln_final = nn.Identity() if config.normalization_type is None else Norm(config, stack)
        self.unembed = TiedUnembed(config, stack, self.embed) if config.tied else Unembed(config, stack)
        self.eval()
        self.setup()

    def forward(
        self,
        tokens: Int[Tensor, "*stack_batch position"],
        return_type: Literal["logits", "loss"] | None = "logits",
        *,
        read: Int[Tensor, " read"] | None = None,
    ) -> Float[Tensor, "*batch output_position d_vocab_out"] | Float[Tensor, ""] | None:
        """Run the model.

        Args:
            tokens: `[batch, position]`; for a stack shared by all members, or `[n_models, batch, position]`
                to give each member its own.
            return_type: `"logits"`, `"loss"` (mean next-token cross-entropy in nats, for TransformerLens'
                tools) or None (nothing, for caching).
            read: Positions in ascending order, whose logits alone are returned. The last layer then computes
                no position before them, and its hooks see the queries and outputs from the first of them on.

        Returns:
            Logits `[*stack, batch, position, d_vocab_out]`, before any softmax.

        Raises:
            ValueError: If the tokens do not fit the model's context or its stack, or `read` is given with a
                loss.
        """
        tokens = self._checked(tokens)
        if read is not None and return_type == "loss":
            raise ValueError("read is given, but a loss is over all positions")
        length = tokens.shape[-1]
        first = 0 if read is None else int(read[0])
        residual = self.hook_embed(self.embed(tokens))
        shortformer = None
        if self.pos_embed is not None:
            positions = self.pos_embed(residual)
            if is_hooked(self.hook_pos_embed):  # a hook that writes in place writes into one sequence
                positions = self.hook_pos_embed(positions.clone())
            if self.config.positional_embedding_type == "shortformer":
                shortformer = positions
            else:
                residual = _added(residual, positions, self.embed, self.hook_embed)
        for index, block in enumerate(self.blocks):
            is_last = first > 0 and index == self.config.n_layers - 1
            residual = block(residual, shortformer, last=length - first if is_last else None)
        if return_type is None:
            return None
        if read is not None and len(read) < residual.shape[-2]:
            residual = residual[..., read - (length - residual.shape[-2]), :]
        logits: Tensor = self.unembed(self.ln_final(residual))
        if return_type == "logits":
            return logits
        if return_type == "loss":
            return F.cross_entropy(logits[..., :-1, :].flatten(0, -2), tokens[..., 1:].flatten())
        raise ValueError(f"return_type is {return_type!r}, expected 'logits', 'loss' or None")

    def folded_unembedding(self) -> Float[Tensor, "*stack d_model d_vocab_out"]:
        """From the residual stream to the logits: `W_U` with the final norm's gain and centring folded in.

        The norm's scale and all biases are left out. Detached.
        """
        norm: Any = self.ln_final
        weight = self.unembed.W_U.detach()
        if getattr(norm, "w", None) is not None:
            weight = norm.w.detach()[..., None] * weight
        return weight - weight.mean(-2, keepdim=True) if getattr(norm, "centred", False) else weight

    def _checked(self, tokens: Tensor) -> Tensor:
        m = self.n_models
        if tokens.ndim != 2 and (m is None or tokens.ndim != 3 or tokens.shape[0] != m):
            stack = "" if m is None else f" or [{m}, batch, position] for this stack"
            raise ValueError(f"tokens have shape {list(tokens.shape)}, expected [batch, position]{stack}")
        if not 1 <= tokens.shape[-1] <= self.config.n_ctx:
            raise ValueError(
                f"tokens have {tokens.shape[-1]} positions, expected 1 to n_ctx = {self.config.n_ctx}"
            )
        return tokens if m is None or tokens.ndim == 3 else tokens.expand(m, *tokens.shape)

    def __bool__(self) -> bool:
        """A model is true, though a single one has no length."""
        return True

    def __len__(self) -> int:
        """How many models a stack holds."""
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
        return member

    @staticmethod
    def stack(models: Sequence["HookedDecoder"]) -> "HookedDecoder":
        """Several models of one config as a stack (its parameters are copies)."""
        if not models:
            raise ValueError("cannot stack no models")
        configs = {model.config for model in models}
        if len(configs) > 1 or any(model.n_models is not None for model in models):
            raise ValueError("a stack is made of single models that share one config")
        states = [model.state_dict() for model in models]
        stacked = HookedDecoder(models[0].config, n_models=len(models))
        stacked.to(models[0].embed.W_E.device, models[0].embed.W_E.dtype)
        stacked.load_state_dict({name: torch.stack([state[name] for state in states]) for name in states[0]})
        return stacked

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load weights; attention masks and rotary tables of HookedTransformer's files are ignored.

        Rotary tables are an unexpected key where this model has other positions.
        """
        weights = {name: x for name, x in state_dict.items() if not is_derived(name, self.config)}
        return super().load_state_dict(weights, strict=strict, assign=assign)


def _added(output: Tensor, residual: Tensor, *readers: nn.Module) -> Tensor:
    """`output + residual`; in the memory of an output that neither a hook nor a gradient may still read."""
    if torch.is_grad_enabled() or any(is_hooked(module) for module in readers):
        return output + residual
    return output.add_(residual)


def check_decoder(model: object) -> None:
    """Refuse what is not a model, where hooks are about to be set.

    Raises:
        TypeError: The message says how a run's model is had.
    """
    if not isinstance(model, HookedDecoder):
        raise TypeError(f"model is a {type(model).__name__}, expected a HookedDecoder: run.decoder() is one")


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of one model, from a decoder without memory."""
    with torch.device("meta"):
        return {name: tuple(x.shape) for name, x in HookedDecoder(config).named_parameters()}
