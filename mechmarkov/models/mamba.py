"""Mamba's mixers: a causal convolution, then a selective state space, in parallel and as attention.

Mamba-2 (Dao & Gu 2024, arXiv 2405.21060) has one decay a head, Mamba (Gu & Dao 2023, arXiv 2312.00752) one
for each state of each channel. Both equal the models of that name in `transformers`, up to rounding.
"""

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import ACTIVATIONS, affine, causal_mask, is_hooked, parameter
from mechmarkov.models.mixer import Mixer

# Positions that are multiplied out as a matrix; from one chunk to the next only the state goes.
CHUNK_POSITIONS = 16


MIN_STEP, MAX_STEP = 1e-3, 0.1  # of Δ at the start
MAX_RATE = 16.0  # of a head's decay at the start


def _start_rates(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """`A_log`: rates uniform in [1, 16] for heads, and 1, 2, … for the states of a channel."""
    if shape[-1] == 1:
        return torch.empty(shape).uniform_(1, MAX_RATE, generator=generator).log()
    return torch.arange(1.0, shape[-1] + 1).log().expand(shape)


def _start_steps(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """`b_dt`: where softplus is log-uniform in [0.001, 0.1]."""
    step = torch.empty(shape).uniform_(math.log(MIN_STEP), math.log(MAX_STEP), generator=generator).exp()
    return step + (-torch.expm1(-step)).log()


def _start_kernel(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A convolution's kernel, as of `torch.nn.Conv1d`: uniform, variance a third over the window."""
    bound = shape[-1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


# How parameters that are not drawn as matrices start (the authors' code; `initialise`).
STATE_SPACE_STARTS: dict[str, Callable[[torch.Size, torch.Generator], Tensor]] = {
    "A_log": _start_rates,
    "b_dt": _start_steps,
    "D": lambda shape, _: torch.ones(shape),
    **dict.fromkeys(("conv_Q", "conv_K", "conv_V"), _start_kernel),
}


class Mamba(Mixer, name="mamba"):
    """Mamba-2: a causal convolution, a selective state with one decay a head, a gate and a norm.

    With `u` the stream and `x`, `B`, `C` its convolved values, keys and queries, each head computes

    - `Δ_t = softplus(u_t W_dt + b_dt)` and the decay `a_t = exp(-exp(A_log) Δ_t)`,
    - the state `H_t = a_t H_{t-1} + Δ_t B_t x_tᵀ`, read as `y_t = C_t H_t + D x_t`,
    - the gate and norm `z_t = w * RMS(y_t * silu(u_t W_G + b_G))`, the RMS over a group of heads.

    The convolution is depthwise over the last `d_conv` positions, and `conv_act_fn` follows it. `use_gate`
    and `use_gate_norm` leave the gate and the norm out. Heads of one of the `n_groups` share `B` and `C`.

    As attention, `y_t = Σ_s M_ts x_s` with `M_ts = a_t ⋯ a_{s+1} C_t·B_s Δ_s` and `D` added on the diagonal.
    `hook_attn_scores` is `log |M|` and `hook_pattern` its softmax, the share of `|M_ts|` in its row. Signs
    and the sum of a row stay as they are, whatever a hook writes. Training never forms this matrix.

    Attributes:
        W_Q: `[*stack, n_groups, d_model, d_state]`, of `C`, and `W_K` of `B`; `_W_Q` where heads share.
        conv_V: `[*stack, head, d_head, d_conv]`, the last entry for a position itself; `conv_Q` and `conv_K`
            too. Biases are `b_conv_V` and so on.
        A_log: `[*stack, head, 1]`. `W_dt` is `[*stack, head, d_model, 1]`, `D` `[*stack, head]`.
        hook_conv_v: `[*stack, batch, position, head, d_head]`, what the convolution and its activation make
            of `hook_v`; `hook_conv_q` and `hook_conv_k` too.
        hook_delta: Δ, `[*stack, batch, position, head]`.
        hook_log_decay: `log a_t`, `[*stack, batch, position, head, 1]`.
        hook_effective: M, `[*stack, batch, head, query, key]`, with its signs.
        hook_state: H, `[*stack, batch, position, head, d_state, d_head]`. What is written changes what is
            read at that position, not later states.
        hook_g: What the gate's `silu` is taken of, `[*stack, batch, position, head, d_head]`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("Q", "K", "V")
    has_attention_weights = True
    is_linear = False

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__(config, stack)
        heads, width = config.n_heads, config.d_head
        if config.use_gate:
            self.add_input("G", stack, width)
        self._build_selection(stack)
        self.D = parameter(stack, heads)
        if config.use_gate_norm:
            self.w = parameter(stack, heads, width, fill=1.0)
            self.hook_scale = HookPoint()  # [*stack, batch, position, group, 1]
        assert config.d_conv is not None  # DecoderConfig checks the fields of a state space
        assert config.conv_act_fn is not None
        for side in self.inputs:
            shape = self.read_shape(side)
            self.register_parameter(f"conv_{side}", parameter(stack, *shape, config.d_conv))
            self.register_parameter(f"b_conv_{side}", parameter(stack, *shape))
            self.add_module(f"hook_conv_{side.lower()}", HookPoint())
        self.act_fn = ACTIVATIONS.get(config.conv_act_fn)
        for name in ("delta", "log_decay", "effective", "attn_scores", "pattern", "state"):
            self.add_module(f"hook_{name}", HookPoint())

    def _build_selection(self, stack: tuple[int, ...]) -> None:
        """Build what Δ and the decay are computed by."""
        self.add_input("dt", stack, 1)
        self.A_log = parameter(stack, self.config.n_heads, 1)

    def read_shape(self, side: str) -> tuple[int, int]:
        """Queries and keys are `d_state` wide, one for each group of heads."""
        config = self.config
        assert config.n_groups is not None
        assert config.d_state is not None
        return (config.n_heads, config.d_head) if side == "V" else (config.n_groups, config.d_state)

    def shares(self, side: str) -> bool:
        """Returns whether heads share an input, as they do where a group has several."""
        return side in ("Q", "K") and self.config.n_groups != self.config.n_heads

    def mix(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor
    ) -> Float[Tensor, "*stack batch position head d_head"]:
        """Returns what the state gives each position, gated; arguments as of `Mixer.mix`.

        Δ is read from the input of keys, the gate from that of queries.
        """
        C, B, x, delta = self._selected(query_input, key_input, value_input)
        delta = self.hook_delta(delta)
        log_decay = self.hook_log_decay(-delta[..., None] * self._by_position(self.A_log.exp()))
        B = B * delta[..., None]
        points = (self.hook_effective, self.hook_attn_scores, self.hook_pattern)
        if any(is_hooked(point) for point in points):
            y = einsum(self._weights(log_decay, C, B), x, "... h query key, ... key h d -> ... query h d")
        else:
            y = x * self._by_position(self.D)[..., None]
            for a, c, b in _by_decay(log_decay, C, B):
                y = y + scan(a, c, b, x)
        if is_hooked(self.hook_state):  # what a hook changes is read as the state is
            state = states(log_decay, B, x)
            y = y + einsum(C, self.hook_state(state) - state, "... n, ... n d -> ... d")
        if self.config.use_gate:
            y = y * F.silu(self.project("G", query_input))
        return self._normed(y) if self.config.use_gate_norm else y

    def _selected(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`C`, `B` `[..., position, head, d_state]`, `x` `[..., position, head, d_head]` and Δ."""
        C, B, x = self._convolved(*inputs)
        return C, B, x, F.softplus(self.project("dt", inputs[1])).squeeze(-1)

    def _convolved(self, *inputs: Tensor) -> list[Tensor]:
        """Each of the inputs, projected and convolved: every channel with a kernel of its own."""
        points = [getattr(self, f"hook_{side.lower()}") for side in self.inputs]
        same = all(u is inputs[0] for u in inputs) and inputs[0].ndim == self.W_O.ndim
        if same and not any(map(is_hooked, points)):
            found = self._convolved_at_once(inputs[0])
        else:
            found = [self._convolved_alone(side, u) for side, u in zip(self.inputs, inputs, strict=True)]
        act = self.act_fn or nn.Identity()
        return [
            self.per_head(getattr(self, f"hook_conv_{side.lower()}")(act(x)))
            for side, x in zip(self.inputs, found, strict=True)
        ]

    def _convolved_alone(self, side: str, u: Tensor) -> Tensor:
        x = self.project(side, u)
        kernel, bias = getattr(self, f"conv_{side}"), getattr(self, f"b_conv_{side}")
        if x.shape[-2] != kernel.shape[-3]:  # split by head
            kernel, bias = self.per_head(kernel, -3), self.per_head(bias)
        length, window = x.shape[-3], kernel.shape[-1]
        padded = F.pad(x, (0, 0, 0, 0, window - 1, 0))
        out = self._by_position(bias)
        for i, weight in enumerate(kernel.unbind(-1)):
            out = out + padded[..., i : i + length, :, :] * self._by_position(weight)
        return out

    def _convolved_at_once(self, u: Tensor) -> list[Tensor]:
        """The same: a convolution of projections is one projection of the last `d_conv` positions."""
        window = self.conv_V.shape[-1]
        read = F.pad(F.pad(u, (0, 1), value=1.0), (0, 0, window - 1, 0)).unfold(-2, window, 1)
        weights, biases = [], []
        for side in self.inputs:
            W, b, kernel = (getattr(self, self._stored(f"{name}_{side}")) for name in ("W", "b", "conv"))
            both = torch.cat([W, b.unsqueeze(-2)], -2)  # the bias is read too: there is none before the start
            product = both.unsqueeze(-2) * kernel.unsqueeze(-3).mT  # [..., head, d_model + 1, window, d]
            weights.append(rearrange(product, "... head d_in w d -> ... (d_in w) (head d)"))
            biases.append(getattr(self, f"b_conv_{side}").flatten(-2))
        out = affine(read.flatten(-2), torch.cat(weights, -1), torch.cat(biases, -1))
        parts = torch.split(out, [bias.shape[-1] for bias in biases], -1)
        shapes = (self.read_shape(side) for side in self.inputs)
        return [part.view(*part.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _weights(self, log_decay: Tensor, C: Tensor, B: Tensor) -> Float[Tensor, "... head query key"]:
        """The effective attention matrix M, with what hooks make of it."""
        M = torch.diag_embed(self._by_position(self.D).expand(C.shape[:-1]).movedim(-1, -2))
        for a, c, b in _by_decay(log_decay, C, B):
            c, b = (rearrange(part, "... t h n -> ... h t n") for part in (c, b))
            M = M + decays(rearrange(a, "... t h -> ... h t")) * (c @ b.mT)
        M = self.hook_effective(M)
        if not (is_hooked(self.hook_attn_scores) or is_hooked(self.hook_pattern)):
            return M
        seen = causal_mask(M.shape[-1], M.shape[-1], None, M.device)
        size = M.abs()
        logits = size.clamp_min(torch.finfo(M.dtype).tiny).log().masked_fill(~seen, -torch.inf)
        pattern = self.hook_attn_scores(logits).softmax(-1)
        pattern = self.hook_pattern(torch.where(pattern.isnan(), 0.0, pattern))
        return torch.where(M < 0, -1.0, 1.0) * size.sum(-1, keepdim=True) * pattern

    def _by_position(self, parameter: Tensor) -> Tensor:
        """A parameter `[*stack, head, ...]`, to broadcast against `[*stack, batch, position, head, ...]`."""
        return parameter if self.W_O.ndim == 3 else parameter[:, None, None]

    def _normed(self, y: Tensor) -> Tensor:
        """An RMS norm over the channels of a group of heads, with a gain for each channel."""
        groups = rearrange(y, "... (g h) d -> ... g (h d)", g=self.config.n_groups)
        scale = self.hook_scale((groups.square().mean(-1, keepdim=True) + self.config.eps).sqrt())
        return (groups / scale).view(y.shape) * self._by_position(self.w)


class Mamba1(Mamba, name="mamba1"):
    """Mamba: heads are channels (`d_head` is 1), and every state of a channel has a decay of its own.

    `B_t`, `C_t` and Δ are read from the convolved values of all channels: `B_t = x_t W_B`, `C_t = x_t W_C`
    and `Δ_t = softplus(x_t W_dt_in W_dt_out + b_dt)`. The rest is as of `Mamba`, without a norm by default.

    Attributes:
        W_B: `[*stack, head, d_state]`, and `W_C`. `W_dt_in` is `[*stack, head, dt_rank]`, `W_dt_out`
            `[*stack, dt_rank, head]`, `b_dt` `[*stack, head]`.
        A_log: `[*stack, head, d_state]`; `hook_log_decay` is `[*stack, batch, position, head, d_state]`.
    """

    inputs = ("V",)

    def _build_selection(self, stack: tuple[int, ...]) -> None:
        heads, states, rank = self.config.n_heads, self.config.d_state, self.config.dt_rank
        assert states is not None
        assert rank is not None
        self.W_B, self.W_C = parameter(stack, heads, states), parameter(stack, heads, states)
        self.W_dt_in, self.W_dt_out = parameter(stack, heads, rank), parameter(stack, rank, heads)
        self.b_dt = parameter(stack, heads)
        self.A_log = parameter(stack, heads, states)

    def _selected(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (x,) = self._convolved(inputs[2])
        flat = x.squeeze(-1)
        delta = F.softplus(affine(affine(flat, self.W_dt_in), self.W_dt_out, self.b_dt))
        C, B = (affine(flat, weight).unsqueeze(-2).expand(*flat.shape, -1) for weight in (self.W_C, self.W_B))
        return C, B, x, delta


def _by_decay(log_decay: Tensor, C: Tensor, B: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The states that share a decay: its logarithm `[..., position, head]`, and their part of `C` and `B`."""
    n = log_decay.shape[-1]
    return zip(log_decay.unbind(-1), C.chunk(n, -1), B.chunk(n, -1), strict=True)


def decays(log_decay: Float[Tensor, "... position"]) -> Float[Tensor, "... query key"]:
    """Compute the product of decays between a key and a query, `L_ts = a_t ⋯ a_{s+1}` for `s <= t`, else 0.

    Example:
        >>> decays(torch.tensor([0.5, 0.5, 0.25]).log())
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 1.0000, 0.0000],
                [0.1250, 0.2500, 1.0000]])
    """
    total = log_decay.cumsum(-1)
    seen = causal_mask(total.shape[-1], total.shape[-1], None, total.device)
    return (total[..., :, None] - total[..., None, :]).masked_fill(~seen, -torch.inf).exp()


def scan(
    log_decay: Float[Tensor, "... position head"],
    C: Float[Tensor, "... position head d_state"],
    B: Float[Tensor, "... position head d_state"],
    x: Float[Tensor, "... position head d_head"],
    chunk: int = CHUNK_POSITIONS,
) -> Float[Tensor, "... position head d_head"]:
    """Compute `y_t = C_t H_t` of `H_t = a_t H_{t-1} + B_t x_tᵀ`.

    Matrices within chunks of positions, the state between them. Time and memory grow with positions times
    `chunk`, not with their square (Dao & Gu 2024, section 6).

    Example:
        >>> one = torch.ones(3, 1, 1)  # position, head, width
        >>> scan(torch.zeros(3, 1), one, one, one).flatten()  # without decay, a sum
        tensor([1., 2., 3.])
    """
    length = x.shape[-3]

    def fold(part: Tensor) -> Tensor:
        padded = F.pad(part, (0, 0, 0, 0, 0, -length % chunk))
        return rearrange(padded, "... (c l) h d -> ... h c l d", l=chunk)

    C, B, x, log = (fold(part) for part in (C, B, x, log_decay[..., None]))
    y = (C @ B.mT * decays(log.squeeze(-1))) @ x
    if length > chunk:
        total = log.cumsum(-2)
        end = total[..., -1:, :]
        added = ((end - total).exp() * B).mT @ x  # to the state, by each chunk
        state, before = torch.zeros_like(added[..., 0, :, :]), []
        for kept, new in zip(end.exp().unbind(-3), added.unbind(-3), strict=True):
            before.append(state)
            state = kept * state + new
        y = y + (total.exp() * C) @ torch.stack(before, -3)
    return rearrange(y, "... h c l d -> ... (c l) h d")[..., :length, :, :]


def states(
    log_decay: Float[Tensor, "... position head decay"],
    B: Float[Tensor, "... position head d_state"],
    x: Float[Tensor, "... position head d_head"],
) -> Float[Tensor, "... position head d_state d_head"]:
    """Compute the state `H_t = a_t H_{t-1} + B_t x_tᵀ` at every position, one after the other.

    Example:
        >>> one = torch.ones(3, 1, 1)  # position, head, width
        >>> states(torch.full((3, 1, 1), 0.5).log(), one, one).flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    added, kept = B[..., None] * x[..., None, :], log_decay.exp()[..., None]
    state, found = torch.zeros_like(added[..., 0, :, :, :]), []
    for a, new in zip(kept.unbind(-4), added.unbind(-4), strict=True):
        state = a * state + new
        found.append(state)
    return torch.stack(found, -4)
