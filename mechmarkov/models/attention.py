"""Causal attention: SDPA (`scaled_dot_product_attention`) unless scores or pattern are hooked."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.alibi import alibi
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import Norm, causal_mask, is_hooked, parameter, visible_positions
from mechmarkov.models.mixer import Context, Mixer
from mechmarkov.models.rotary import rotate, rotation

NO_CONTEXT = Context()
# So few scores of one model are spelled out always: looking at a pass then changes no bit of it, as of
# HookedTransformer's. That takes 0.1 ms a layer more.
MAX_SPELLED_OUT = 1 << 14
MAX_FUSED_BATCH = 65_535  # CUDA's fused kernels address no more: their launch fails


class Attention(Mixer, name="attention"):
    """Causal attention with HookedTransformer's parameters, hooks and arithmetic.

    With `use_qk_norm` the queries and keys of each head go through an RMS norm (`q_norm`, `k_norm`).
    With relative positions `W_rel` `[*stack, head, n_ctx, d_head]` is added to the key at each lag (0 is the
    query's own position); with `relative_bias` `b_rel` `[*stack, head, n_ctx]` is added to the score of each
    lag. For the other parameters and hooks see `Mixer`.
    """

    inputs = ("Q", "K", "V")
    has_attention_weights = True
    takes_last_queries = True
    takes_context = True
    fused_layer: Callable[..., Tensor] | None = None  # see `use_fast_kernels`
    is_explicit = False  # True: scores and pattern are computed in every pass, hooked or not

    W_Q: nn.Parameter
    W_K: nn.Parameter
    hook_q: HookPoint
    hook_k: HookPoint

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__(config, stack)
        self.window = config.window  # `limit_window` narrows it
        self.hook_attn_scores = HookPoint()  # [*stack, batch, head, query, key]
        self.hook_pattern = HookPoint()  # [*stack, batch, head, query, key]
        if config.use_qk_norm:
            self.q_norm = Norm(config, stack, "RMS", config.d_head)
            self.k_norm = Norm(config, stack, "RMS", config.d_head)
        if config.positional_embedding_type == "rotary":
            self.hook_rot_q = HookPoint()
            self.hook_rot_k = HookPoint()
        if config.positional_embedding_type == "relative":
            self.W_rel = parameter(stack, config.n_heads, config.n_ctx, config.d_head)
        if config.positional_embedding_type == "relative_bias":
            self.b_rel = parameter(stack, config.n_heads, config.n_ctx)

    @property
    def QK(self) -> FactoredMatrix:
        """Query against key: `W_Q @ W_K^T`, `[*stack, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, *context: Context
    ) -> Float[Tensor, "*stack batch position d_model"]:
        """Returns what the heads add to the stream, by one kernel where no hook looks at what is between."""
        is_plain = key_input is query_input and query_input.ndim == self.W_O.ndim  # not split by head
        is_single = query_input.dtype == value_input.dtype == torch.float32
        if self.fused_layer is None or not is_plain or not is_single or context or self._is_looked_into():
            return super().forward(query_input, key_input, value_input, *context)
        weights, biases = (self.W_Q, self.W_K, self.W_V, self.W_O), (self.b_Q, self.b_K, self.b_V, self.b_O)
        return self.fused_layer(
            query_input, value_input, weights, biases, 1 / self.config.score_scale, self.window
        )

    def _is_looked_into(self) -> bool:
        return self.is_explicit or "hook_result" in self._modules or any(map(is_hooked, self.children()))

    def mix(
        self,
        query_input: Tensor,
        key_input: Tensor,
        value_input: Tensor,
        context: Context = NO_CONTEXT,
    ) -> Float[Tensor, "*stack batch position head d_head"]:
        """Returns the mean by its weights of the values that each head attends to; see `Mixer.mix`."""
        q, k, v = self.project_all(Q=query_input, K=key_input, V=value_input)
        q, k = self._normed("Q", q), self._normed("K", k)
        if context.past is not None:
            k, v = context.past.append(k, v)
        visible = context.visible
        if self.config.positional_embedding_type == "rotary":
            sin, cos = rotation(self.config, k.shape[-3], k)
            if visible is not None:
                places = visible_positions(visible)
                sin, cos = sin[places], cos[places]
            last = slice(k.shape[-3] - q.shape[-3], None)
            q = self.hook_rot_q(rotate(q, sin[..., last, :], cos[..., last, :], self.config))
            k = self.hook_rot_k(rotate(k, sin, cos, self.config))
        k, v = self.per_head(k), self.per_head(v)
        q, k, v = (rearrange(x, "... position head d_head -> ... head position d_head") for x in (q, k, v))
        # A hook is never silently ignored: SDPA has neither scores nor a pattern.
        explicit = self.is_explicit or is_hooked(self.hook_attn_scores) or is_hooked(self.hook_pattern)
        explicit = explicit or visible is not None or self._is_small(q, k)
        z = self._explicit(q, k, v, visible) if explicit else self._sdpa(q, k, v)
        if is_hooked(self.hook_z) and not explicit:
            z = z.clone()  # SDPA keeps its output for the backward pass; a hook may overwrite it
        return rearrange(z, "... head position d_head -> ... position head d_head")

    @staticmethod
    def _is_small(q: Tensor, k: Tensor) -> bool:
        """Returns whether these are the queries and keys of one model, and few."""
        return q.ndim == 4 and q.shape[:-1].numel() * k.shape[-2] <= MAX_SPELLED_OUT

    def _normed(self, side: str, x: Tensor) -> Tensor:
        """Queries or keys through their norm, where they have one."""
        norm: nn.Module | None = self._modules.get(f"{side.lower()}_norm")
        return x if norm is None else norm(x)

    def read_by(self, side: str, x: Tensor) -> Tensor:
        """Returns queries, keys or values of vectors as `Mixer.read_by`, through their norm, if any."""
        return self._normed(side, super().read_by(side, x))

    def lag_bias(self, n_lags: int) -> Float[Tensor, "*stack head lag"] | None:
        """Returns what is added to scores for a lag whatever the tokens are; None where nothing is.

        Args:
            n_lags: How many lags; 0 is the query's own position.
        """
        match self.config.positional_embedding_type:
            case "alibi":
                table = alibi(self.config.n_heads, n_lags, self.W_O)
                return table.expand(*self.W_O.shape[:-3], *table.shape)
            case "relative_bias":
                return self.b_rel[..., :n_lags]
        return None

    def _lag_scores(
        self, q: Tensor, n_keys: int, visible: Tensor | None = None
    ) -> Float[Tensor, "... head query key"]:
        """Positions' part of scores by lag: `q_t . W_rel[t - s] / score_scale`, or `lag_bias`.

        Entries above the diagonal are arbitrary. ALiBi counts masked tokens, as HookedTransformer's does.
        """
        if visible is None or self.config.positional_embedding_type == "alibi":
            position = torch.arange(n_keys, device=q.device)
        else:
            position = visible_positions(visible)[..., None, :]  # the same for all heads
        lag = (position[..., -q.shape[-2] :, None] - position[..., None, :]).clamp_min(0)
        table = self.lag_bias(n_keys)
        if table is not None:
            lag = lag[(None,) * (q.ndim - lag.ndim)]
            return torch.take_along_dim(table[..., None, :, None, :], lag, -1)
        rel = self.W_rel[..., :n_keys, :]
        by_lag = q @ (rel if rel.ndim == 3 else rel[:, None]).mT / self.config.score_scale
        return by_lag.gather(-1, lag.expand_as(by_lag))

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        by_lag = self.config.scores_lags
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        single = all(x.dtype == torch.float32 for x in (q, k, v))
        if self.fused is not None and single and n_queries == n_keys:
            return self.fused(q, k, v, 1 / self.config.score_scale, self.window)
        free = self.window is None and not by_lag
        causal = free and n_queries == n_keys
        needs_mask = not causal and not (free and n_queries == 1)  # only the last query sees every key
        mask = causal_mask(n_queries, n_keys, self.window, q.device) if needs_mask else None
        if by_lag and mask is not None:
            mask = self._lag_scores(q, n_keys).masked_fill(~mask, -torch.inf).to(q.dtype)
            mask = mask.expand(*q.shape[:-2], -1, -1).flatten(0, -4)
        lead, scale = q.shape[:-3], 1 / self.config.score_scale
        # The fused kernels take [batch, head, query, d_head]: members of a stack go into the batch.
        # They read a vector as a whole, which a thin GEMM leaves apart in memory.
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
        z = _fused(q, k, v, mask, causal, scale)
        return z.view(*lead, *z.shape[-3:])

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        scores = (q @ k.mT).div_(self.config.score_scale)
        if self.config.scores_lags:
            scores = scores + self._lag_scores(q, k.shape[-2], visible).to(scores.dtype)
        allowed = causal_mask(q.shape[-2], k.shape[-2], self.window, q.device)
        if visible is not None:
            allowed = allowed & visible[..., None, None, :]
        if torch.is_grad_enabled():
            scores.masked_fill_(~allowed, -torch.inf)
        else:  # the same in a quarter of the time
            most = torch.full(allowed.shape, torch.inf, dtype=scores.dtype, device=scores.device)
            torch.minimum(scores, most.masked_fill_(~allowed, -torch.inf), out=scores)
        if torch.is_grad_enabled() or is_hooked(self.hook_attn_scores):
            pattern = self.hook_attn_scores(scores).softmax(-1)
        else:  # in their own memory, which is the most that a pass takes
            pattern = torch.softmax(scores, -1, out=scores)
        # A hook may have masked a whole row: such a query attends to nothing, as in HookedTransformer.
        empty = pattern[..., :1].isnan()
        if empty.any() or pattern.requires_grad:  # softmax keeps its output; a hook may overwrite it
            pattern = torch.where(empty, 0.0, pattern)
        z: Tensor = self.hook_pattern(pattern) @ v
        return z


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """SDPA over `[batch, head, position, d_head]`, as much of the batch at once as a kernel can address."""
    if len(q) <= MAX_FUSED_BATCH:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    some = [slice(i, i + MAX_FUSED_BATCH) for i in range(0, len(q), MAX_FUSED_BATCH)]
    shared = mask is None or mask.ndim < 4
    masks = [mask if shared or mask is None else mask[at] for at in some]
    parts = zip(some, masks, strict=True)
    return torch.cat([_fused(q[at], k[at], v[at], part, causal, scale) for at, part in parts])
