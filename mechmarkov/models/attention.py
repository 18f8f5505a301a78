"""Attention, fused where nobody looks and spelled out where somebody does."""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast.few_inputs import adds_up, attend_few
from mechmarkov.models.fast.two_tokens import attend_two
from mechmarkov.models.layers import affine, parameter
from mechmarkov.models.rotary import rotate, rotation


def hooked(point: nn.Module) -> bool:
    """Whether anything is attached to a module, by TransformerLens or by torch itself."""
    return bool(
        point._forward_hooks or point._forward_pre_hooks or point._backward_hooks or point._backward_pre_hooks
    )


class Attention(nn.Module):
    """Causal attention with HookedTransformer's parameters, hooks and arithmetic.

    `W_Q`, `W_K`, `W_V` are `[*stack, head, d_model, d_head]`, `W_O` is `[*stack, head, d_head, d_model]`;
    with relative positions `W_rel` `[*stack, head, n_ctx, d_head]` is added to the key at each lag
    (0 is the query's own position).
    """

    has_attention_weights = True  # hook_attn_scores and hook_pattern
    hook_result: HookPoint  # there once `set_use_attn_result` asks for it

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        heads, width = config.n_heads, config.d_head
        self.W_Q = parameter(stack, heads, config.d_model, width)
        self.W_K = parameter(stack, heads, config.d_model, width)
        self.W_V = parameter(stack, heads, config.d_model, width)
        self.W_O = parameter(stack, heads, width, config.d_model)
        self.b_Q = parameter(stack, heads, width)
        self.b_K = parameter(stack, heads, width)
        self.b_V = parameter(stack, heads, width)
        self.b_O = parameter(stack, config.d_model)
        self.hook_q = HookPoint()  # [*stack, batch, query, head, d_head]
        self.hook_k = HookPoint()  # [*stack, batch, key, head, d_head]
        self.hook_v = HookPoint()  # [*stack, batch, key, head, d_head]
        self.hook_attn_scores = HookPoint()  # [*stack, batch, head, query, key]
        self.hook_pattern = HookPoint()  # [*stack, batch, head, query, key]
        self.hook_z = HookPoint()  # [*stack, batch, query, head, d_head]
        if config.positional_embedding_type == "rotary":
            self.hook_rot_q = HookPoint()
            self.hook_rot_k = HookPoint()
        if config.positional_embedding_type == "relative":
            self.W_rel = parameter(stack, heads, config.n_ctx, width)

    @property
    def OV(self) -> FactoredMatrix:
        """What a head writes for what it reads: `W_V @ W_O`, `[*stack, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """Query against key: `W_Q @ W_K^T`, `[*stack, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """What the heads add to the residual stream, `[*stack, batch, position, d_model]`.

        Inputs are `[*stack, batch, position, d_model]`, or with a head axis before `d_model` where they
        were split by head. With `tokens` they are those of the sequences that repeat one token, for every
        token, and the output is for `tokens` (`mechmarkov.models.fast.few_inputs`).
        """
        q = self.hook_q(self._project(query_input, self.W_Q, self.b_Q))
        k = self.hook_k(self._project(key_input, self.W_K, self.b_K))
        v = self.hook_v(self._project(value_input, self.W_V, self.b_V))
        if self.config.positional_embedding_type == "rotary":
            sin, cos = rotation(self.config, q.shape[-3], q)
            q = self.hook_rot_q(rotate(q, sin, cos, self.config))
            k = self.hook_rot_k(rotate(k, sin, cos, self.config))
        q, k, v = (rearrange(x, "... position head d_head -> ... head position d_head") for x in (q, k, v))
        # A hook is never silently ignored: fused attention has no scores and no pattern to hook.
        spelled_out = hooked(self.hook_attn_scores) or hooked(self.hook_pattern)
        if tokens is not None:
            attend = attend_two if adds_up(self.config) else attend_few
            z = attend(q, k, v, tokens, 1 / self.config.score_scale, self.config.window)
        else:
            z = self._spelled_out(q, k, v) if spelled_out else self._fused(q, k, v)
        if hooked(self.hook_z) and not spelled_out:
            z = z.clone()  # the fused kernel keeps its output for the backward pass; a hook may overwrite it
        z = self.hook_z(rearrange(z, "... head position d_head -> ... position head d_head"))
        return self._write(z)

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.ndim - weight.ndim == 1:  # split by head: [*stack, batch, position, head, d_model]
            m = "model " * (weight.ndim - 3)
            split = einsum(x, weight, f"{m}b p head d_in, {m}head d_in d_head -> {m}b p head d_head")
            return split + (bias if weight.ndim == 3 else bias[:, None, None])
        flat = affine(
            x,
            rearrange(weight, "... head d_in d_head -> ... d_in (head d_head)"),
            rearrange(bias, "... head d_head -> ... (head d_head)"),
        )
        return flat.view(*flat.shape[:-1], *bias.shape[-2:])

    def _lag_scores(self, q: Tensor) -> Float[Tensor, "... head query key"]:
        """`q_t . W_rel[t - s]`, over the score scale; entries above the diagonal mean nothing."""
        length = q.shape[-2]
        lag = torch.arange(length, device=q.device)
        lag = (lag[:, None] - lag[None, :]).clamp_min(0)
        rel = self.W_rel[..., :length, :]
        by_lag = q @ (rel if rel.ndim == 3 else rel[:, None]).mT / self.config.score_scale
        return by_lag.gather(-1, lag.expand_as(by_lag))

    def _allowed(self, length: int, device: torch.device) -> Tensor:
        """Which keys a query may look at, `[query, key]`: none ahead, none beyond the window."""
        position = torch.arange(length, device=device)
        lag = position[:, None] - position[None, :]
        allowed = lag >= 0
        return allowed if self.config.window is None else allowed & (lag <= self.config.window)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale, plain = 1 / self.config.score_scale, self.config.window is None
        mask: Tensor | None = None
        if self.config.positional_embedding_type == "relative":
            allowed = self._allowed(q.shape[-2], q.device)
            mask, plain = self._lag_scores(q).masked_fill(~allowed, -torch.inf), False
        elif not plain:
            mask = self._allowed(q.shape[-2], q.device)
        # The fused kernels take [batch, head, query, d_head]: members of a stack go into the batch.
        lead = q.shape[:-3]
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
        if mask is not None and mask.ndim > 4:
            mask = mask.reshape(-1, *mask.shape[-3:])
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=plain, scale=scale)
        return z.view(*lead, *z.shape[-3:])

    def _spelled_out(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / self.config.score_scale
        if self.config.positional_embedding_type == "relative":
            scores = scores + self._lag_scores(q)
        scores = scores.masked_fill(~self._allowed(q.shape[-2], q.device), -torch.inf)
        pattern = self.hook_attn_scores(scores).softmax(-1)
        # A hook may have masked a whole row: such a query attends to nothing, as in HookedTransformer.
        pattern = self.hook_pattern(torch.where(pattern.isnan(), 0.0, pattern))
        z: Tensor = pattern @ v
        return z

    def _write(self, z: Float[Tensor, "... position head d_head"]) -> Float[Tensor, "... position d_model"]:
        if "hook_result" in self._modules:
            m = "model " * (self.W_O.ndim - 3)
            result = einsum(z, self.W_O, f"{m}b p head d_head, {m}head d_head d -> {m}b p head d")
            result = self.hook_result(result)  # [*stack, batch, position, head, d_model]
            total: Tensor = result.sum(-2) + (self.b_O if not m else self.b_O[:, None, None])
            return total
        weight = rearrange(self.W_O, "... head d_head d_model -> ... (head d_head) d_model")
        return affine(z.flatten(-2), weight, self.b_O)
