"""The layers of a `HookedDecoder` other than its mixers: embeddings, norms, the MLP and the unembedding.

Every layer takes `stack`, the leading shape of its parameters: `()` for one model, `(m,)` for m models run
as one. Activations have the same leading axis: `[*stack, batch, position, d_model]`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.gemm import ThinAffine, WideAffine, is_thin, is_wide, wide_mlp

THIN: Any = ThinAffine.apply  # torch's `apply` has no types
WIDE: Any = WideAffine.apply


def causal_mask(
    n_queries: int, n_keys: int, window: int | None, device: torch.device
) -> Bool[Tensor, "query key"]:
    """Returns true where one of the last positions may attend to a key: not ahead, at most `window` back.

    Example:
        >>> causal_mask(2, 3, window=1, device=torch.device("cpu")).int().tolist()
        [[1, 1, 0], [0, 1, 1]]
    """
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril_(n_keys - n_queries)
    return seen if window is None else seen.triu_(n_keys - n_queries - window)


def parameter(stack: tuple[int, ...], *shape: int, fill: float = 0.0) -> nn.Parameter:
    """Returns a parameter `[*stack, *shape]` set to a constant; `initialise` draws its start.

    Example:
        >>> parameter((2,), 3, fill=1.0).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    return nn.Parameter(torch.full((*stack, *shape), fill))


def is_hooked(point: nn.Module) -> bool:
    """Returns whether a module has a hook, TransformerLens' or torch's own."""
    return bool(
        point._forward_hooks or point._forward_pre_hooks or point._backward_hooks or point._backward_pre_hooks
    )


def affine(
    x: Float[Tensor, "*stack_batch position d_in"],
    weight: Float[Tensor, "*stack d_in d_out"],
    bias: Float[Tensor, "*stack d_out"] | None = None,
    transposed: bool = False,
) -> Float[Tensor, "*stack_batch position d_out"]:
    """Compute `x @ weight + bias`, each member of a stack with its own weight and bias.

    Args:
        x: The rows; of a stack with its axis in front.
        weight: The weights.
        bias: The biases; zero where they are not given.
        transposed: Whether the result shall have positions last in memory; see `gemm`.

    Example:
        >>> affine(torch.ones(5, 2, 7, 3), torch.ones(5, 3, 4)).shape  # five models
        torch.Size([5, 2, 7, 4])
    """
    if weight.ndim == 2:
        return F.linear(x, weight.mT, bias)
    if bias is None:
        bias = weight.new_zeros(*weight.shape[:-2], weight.shape[-1])
    flat = x.flatten(1, -2)
    if is_wide(flat, weight):
        out = WIDE(flat, weight, bias, transposed and not torch.is_grad_enabled())
    elif is_thin(flat, weight, transposed):
        out = THIN(flat, weight, bias, transposed)
    else:
        out = torch.baddbmm(bias.unsqueeze(-2), flat, weight)
    return out.view(*x.shape[:-1], weight.shape[-1])


def per_member(parameter: Tensor, x: Tensor) -> Tensor:
    """Returns a parameter `[*stack, d]` shaped to broadcast against `[*stack, ..., d]`.

    Example:
        >>> per_member(torch.ones(5, 3), torch.ones(5, 2, 7, 3)).shape
        torch.Size([5, 1, 1, 3])
    """
    return parameter.view(*parameter.shape[:-1], *[1] * (x.ndim - parameter.ndim), parameter.shape[-1])


def member_matmul(
    x: Float[Tensor, "*stack_batch position d_in"], weight: Float[Tensor, "*stack d_in d_out"]
) -> Float[Tensor, "*stack_batch position d_out"]:
    """Compute `x @ weight`, each member of a stack with its own weight.

    Example:
        >>> member_matmul(torch.ones(5, 2, 7, 3), torch.ones(5, 3, 4)).shape  # five models
        torch.Size([5, 2, 7, 4])
    """
    return x @ (weight if weight.ndim == 2 else weight[:, None])


def check_tokens(tokens: Int[Tensor, "*batch position"], d_vocab: int) -> None:
    """Refuse tokens outside of `0, …, d_vocab - 1`, without waiting for a GPU.

    Raises:
        IndexError: One is; on a GPU a RuntimeError, at the next wait.

    Example:
        >>> check_tokens(torch.tensor([[0, 3]]), 3)
        Traceback (most recent call last):
        IndexError: tokens go from 0 to 3, expected 0 to 2
    """
    if tokens.device.type == "cpu":
        low, high = tokens.aminmax()
        if low < 0 or high >= d_vocab:
            raise IndexError(f"tokens go from {low} to {high}, expected 0 to {d_vocab - 1}")
    else:
        message = f"a token is not from 0 to {d_vocab - 1}"
        torch._assert_async(((tokens >= 0) & (tokens < d_vocab)).all(), message)


class Embed(nn.Module):
    """Token embedding, `W_E` `[*stack, d_vocab, d_model]`."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.W_E = parameter(stack, config.d_vocab, config.d_model)
        self.one_hot = False  # see `use_fast_kernels`
        # Told the tokens of every pass, and the layer that it begins at: -1 for the embedding.
        self.listeners: list[Callable[[Tensor, int], object]] = []

    def forward(self, tokens: Int[Tensor, "*stack_batch position"]) -> Float[Tensor, "... position d_model"]:
        """Embed `[batch, position]` tokens shared by all members, or `[*stack, batch, position]`."""
        for listener in self.listeners:
            listener(tokens, -1)
        if self.W_E.ndim == 2:
            try:
                return F.embedding(tokens, self.W_E)
            except IndexError:  # torch's names no token
                check_tokens(tokens, len(self.W_E))
                raise
        if self.one_hot and torch.is_grad_enabled():
            check_tokens(tokens, self.W_E.shape[-2])
            every = torch.arange(self.W_E.shape[-2], device=tokens.device)
            if tokens.device.type == "cpu":  # positions last in memory
                one_hot = (tokens.flatten(1)[:, None] == every[:, None]).to(self.W_E.dtype)
                return torch.bmm(self.W_E.mT, one_hot).mT.view(*tokens.shape, -1)
            one_hot = (tokens.flatten(1)[..., None] == every).to(self.W_E.dtype)
            return torch.bmm(one_hot, self.W_E).view(*tokens.shape, -1)
        # One lookup in all tables laid end to end: F.embedding has the fast backward pass.
        n_models, d_vocab, _ = self.W_E.shape
        first_row = torch.arange(n_models, device=tokens.device).mul(d_vocab).view(-1, 1, 1)
        # A token out of range must not find its row in a neighbour's table: it stays out of range.
        rows = (tokens + first_row).where((tokens >= 0) & (tokens < d_vocab), n_models * d_vocab)
        return F.embedding(rows, self.W_E.flatten(0, 1))


class PosEmbed(nn.Module):
    """Learned absolute positions, `W_pos` `[*stack, n_ctx, d_model]`."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.W_pos = parameter(stack, config.n_ctx, config.d_model)

    def forward(
        self,
        tokens: Shaped[Tensor, "*stack_batch position"],
        past_kv_pos_offset: int = 0,
        attention_mask: Shaped[Tensor, "*stack_batch key"] | None = None,
    ) -> Float[Tensor, "*stack_batch position d_model"]:
        """The position vector of each token: one memory for all sequences, unless some are masked.

        That many positions come before; with a mask, over all of them, positions are counted over visible
        tokens, and the vectors of the others are zero.
        """
        length = tokens.shape[-1]
        if attention_mask is None:
            vectors = self.W_pos[..., None, past_kv_pos_offset : past_kv_pos_offset + length, :]
            return vectors.expand(*tokens.shape, -1)
        visible = attention_mask.bool()
        places = visible_positions(visible)[..., -length:, None]
        vectors = torch.take_along_dim(self.W_pos[..., None, :, :], places, -2)
        return torch.where(visible[..., -length:, None], vectors, 0.0)


def visible_positions(visible: Bool[Tensor, "*batch key"]) -> Int[Tensor, "*batch key"]:
    """Each token's position among the visible ones, as HookedTransformer counts them.

    Example:
        >>> visible_positions(torch.tensor([False, True, True, False, True])).tolist()
        [0, 0, 1, 1, 2]
    """
    return (visible.cumsum(-1) - 1).clamp_min(0)


class Norm(nn.Module):
    """LayerNorm and RMSNorm, with weights ("LN", "RMS") or without ("LNPre", "RMSPre").

    `x -> (x - mean) / sqrt(variance + eps) * w + b`; an RMS norm takes no mean off and has no `b`.

    Args:
        config: The configuration of the model.
        stack: The stack, as in every layer.
        kind: By default the model's.
        width: The width of the axis; by default `d_model`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        stack: tuple[int, ...],
        kind: str | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__()
        kind, width = kind or config.normalization_type, width or config.d_model
        self.eps, self.is_stack = config.eps, bool(stack)
        self.centred = kind in ("LN", "LNPre")
        self.fused: Callable[..., Tensor] | None = None  # see `use_fast_kernels`
        self.w = parameter(stack, width, fill=1.0) if kind in ("LN", "RMS") else None
        self.b = parameter(stack, width) if kind == "LN" else None
        self.hook_scale = HookPoint()  # [*stack, batch, position, 1]
        self.hook_normalized = HookPoint()  # [*stack, batch, position, d_model]

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Normalise the last axis."""
        read = is_hooked(self.hook_scale) or is_hooked(self.hook_normalized)
        if self.fused is not None and x.dtype == torch.float32 and not read:
            flat = x.flatten(1, -2)
            w = flat.new_ones(len(flat), flat.shape[-1]) if self.w is None else self.w
            b = torch.zeros_like(w) if self.b is None else self.b
            return self.fused(flat, w, b, self.eps, self.centred).view_as(x)
        if self.is_stack and self.centred and not read and not torch.is_grad_enabled():
            if self.w is not None and self.b is not None and len(x) == 1:  # of one model in one pass
                return F.layer_norm(x, x.shape[-1:], self.w[0], self.b[0], self.eps)
            x = F.layer_norm(x, x.shape[-1:], eps=self.eps)  # in half the time, equal up to rounding
            x = x if self.w is None else x.mul_(per_member(self.w, x))
            return x if self.b is None else x.add_(per_member(self.b, x))
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        x = self.hook_normalized(x / scale)
        if self.w is not None:
            x = x * per_member(self.w, x)
        return x if self.b is None else x + per_member(self.b, x)

    @torch.no_grad()
    def folded(self, weight: Float[Tensor, "*stack d_model d_out"]) -> Float[Tensor, "*stack d_model d_out"]:
        """Returns a matrix that reads the norm's output, with gain and centring folded in; without `b`."""
        weight = weight if self.w is None else self.w[..., None] * weight
        return weight - weight.mean(-2, keepdim=True) if self.centred else weight


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),  # GPT-2's
    "silu": F.silu,
}


# Hidden units of a stack that are computed at once without gradients: 2 MB, which stay in the cache.
HIDDEN_ELEMENTS, MIN_ROWS = 1 << 19, 256


class MLP(nn.Module):
    """One hidden layer: `W_in` `[*stack, d_model, d_mlp]`, `W_out` `[*stack, d_mlp, d_model]`.

    With `gated_mlp` it is `act(x W_gate) * (x W_in) + b_in`: SwiGLU with silu, GeGLU with gelu (Shazeer
    2020, arXiv 2002.05202).
    """

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        assert config.d_mlp is not None  # DecoderConfig checks both
        assert config.act_fn is not None
        self.act_fn, self.act_name = ACTIVATIONS[config.act_fn], config.act_fn
        self.W_in = parameter(stack, config.d_model, config.d_mlp)
        self.b_in = parameter(stack, config.d_mlp)
        self.W_out = parameter(stack, config.d_mlp, config.d_model)
        self.b_out = parameter(stack, config.d_model)
        self.is_gated = config.gated_mlp
        self.fused: Callable[..., Tensor] | None = None  # see `use_fast_kernels`
        if self.is_gated:
            self.W_gate = parameter(stack, config.d_model, config.d_mlp)
            self.hook_pre_linear = HookPoint()  # [*stack, batch, position, d_mlp]
        self.hook_pre = HookPoint()  # [*stack, batch, position, d_mlp]
        self.hook_post = HookPoint()  # [*stack, batch, position, d_mlp]

    def forward(self, x: Float[Tensor, "... position d_model"]) -> Float[Tensor, "... position d_model"]:
        """Returns what the MLP adds to the residual stream."""
        read = is_hooked(self.hook_pre) or is_hooked(self.hook_post)
        if self.fused is not None and x.dtype == torch.float32 and not read:
            return self.fused(x.flatten(1, -2), self.W_in, self.b_in, self.W_out, self.b_out).view_as(x)
        if read or torch.is_grad_enabled() or self.W_in.ndim == 2:
            return self._write(x)
        if not self.is_gated and is_wide(flat := x.flatten(1, -2), self.W_in):
            most = max(MIN_ROWS, HIDDEN_ELEMENTS // self.b_in.shape[-1])
            weights = (self.W_in, self.b_in, self.W_out, self.b_out)
            return wide_mlp(flat, *weights, self.act_name, most).view_as(x)
        rows = x.flatten(1, -2).split(max(MIN_ROWS, HIDDEN_ELEMENTS // self.b_in.numel()), 1)
        return self._write(x) if len(rows) == 1 else torch.cat([*map(self._write, rows)], 1).view_as(x)

    def _write(self, x: Float[Tensor, "... position d_model"]) -> Float[Tensor, "... position d_model"]:
        if self.is_gated:
            gate = self.act_fn(self.hook_pre(affine(x, self.W_gate)))
            hidden = gate * self.hook_pre_linear(affine(x, self.W_in)) + per_member(self.b_in, gate)
        else:
            hidden = self.act_fn(self.hook_pre(affine(x, self.W_in, self.b_in)))
        return affine(self.hook_post(hidden), self.W_out, self.b_out)


class Unembed(nn.Module):
    """Unembedding, `W_U` `[*stack, d_model, d_vocab_out]` and `b_U` `[*stack, d_vocab_out]`."""

    W_U: Tensor

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.W_U = parameter(stack, config.d_model, config.d_vocab_out)
        self.b_U = parameter(stack, config.d_vocab_out)
        self.hook_in = HookPoint()  # [*stack, batch, position, d_model]
        self.hook_out = HookPoint()  # [*stack, batch, position, d_vocab_out]

    def forward(self, residual: Float[Tensor, "... position d_model"]) -> Float[Tensor, "... position d_out"]:
        """Compute the logits `residual @ W_U + b_U`, `[*stack, batch, position, d_vocab_out]`."""
        residual = self.hook_in(residual)
        if self.W_U.ndim == 2:  # HookedTransformer's arithmetic to the last bit
            logits = F.linear(residual, self.W_U.mT.contiguous(), self.b_U)
        else:
            logits = affine(residual, self.W_U, self.b_U)
        hooked: Tensor = self.hook_out(logits)
        return hooked


class TiedUnembed(nn.Module):
    """Unembedding by the transpose of the embedding's first `d_vocab_out` rows, with a bias of its own."""

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...], embed: Embed) -> None:
        super().__init__()
        self.d_vocab_out = config.d_vocab_out
        self._embed = (embed,)  # in a tuple, so that torch does not list the embedding's parameter twice
        self.b_U = parameter(stack, config.d_vocab_out)
        self.hook_in = HookPoint()
        self.hook_out = HookPoint()

    @property
    def W_U(self) -> Float[Tensor, "... d_model d_vocab_out"]:
        """The embedding's transpose: a view, through which gradients reach `W_E`."""
        return self._embed[0].W_E[..., : self.d_vocab_out, :].mT

    forward = Unembed.forward
