"""One layer of a decoder."""

import torch
from einops import repeat
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechmarkov.models import attention, mamba, recurrent, token_mlp  # noqa: F401 - mixers that configs name
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import MLP, Norm, is_hooked
from mechmarkov.models.mixer import MIXERS, Context, Mixer

POINTS = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern")
BEFORE_WRITING = {"hook_resid_pre", *(f"attn.hook_{point}" for point in POINTS)}


class Block(nn.Module):
    """One layer: a mixer (`attn`), then the MLP. Each reads a normalised residual stream and adds to it.

    With `parallel_attn_mlp` the MLP reads what the mixer reads, and there is no `hook_resid_mid`. Without
    `norm_first` each reads the stream itself and the sum is normalised: `hook_resid_mid` and
    `hook_resid_post` are behind the norm, which is what the next part reads.
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
        self.n_heads, self.norm_first = config.n_heads, config.norm_first
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
        context: Context | None = None,
        is_end: bool = False,
    ) -> Tensor:
        """The residual stream after this layer, `[*stack, batch, position, d_model]`.

        Shortformer's positions are added to queries and keys. With `last` only that many last positions
        are computed. With `is_end` nobody reads the stream after this layer: where no hook sees what is
        behind the mixer, that is left out, and what comes back is the stream before it.
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
        if is_end and self._is_seen_before_writing():
            self.attn.mix(query, key, value, *([] if context is None else [context]))
            return resid_pre
        attn_out = self.attn(query, key, value, *([] if context is None else [context]))
        if last is not None:
            resid_pre, attn_out = resid_pre[..., -last:, :], attn_out[..., -last:, :]
        attn_out = self.hook_attn_out(attn_out)
        resid = added(attn_out, resid_pre, self.attn, self.hook_attn_out)
        resid = resid if self.norm_first else self.ln1(resid)
        if self.mlp is not None:
            if self.is_parallel:
                mlp_in = resid_pre
            else:
                mlp_in = resid = self.hook_resid_mid(resid)
            if "hook_mlp_in" in self._modules:
                mlp_in = self.hook_mlp_in(mlp_in.clone())
            mlp_out = self.hook_mlp_out(self.mlp(self.ln2(mlp_in) if self.norm_first else mlp_in))
            resid = added(mlp_out, resid, self.mlp, self.hook_mlp_out)
            resid = resid if self.norm_first else self.ln2(resid)
        return self.hook_resid_post(resid)

    def _is_seen_before_writing(self) -> bool:
        """Returns whether all hooks are on queries, keys, values and attention of a mixer that has these."""
        hooked = {name for name, module in self.named_modules() if is_hooked(module)}
        is_kept = "forward" in vars(self)  # by `replayed`, for passes that read it
        return isinstance(self.attn, attention.Attention) and hooked <= BEFORE_WRITING and not is_kept

    def _mixer_inputs(self, resid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of queries, keys and values behind the norm; split by head where these have hook points."""
        ln1 = self.ln1 if self.norm_first else nn.Identity()
        if "hook_q_input" not in self._modules and "hook_attn_in" not in self._modules:
            x = ln1(resid)
            return x, x, x
        if "hook_attn_in" in self._modules:
            x = ln1(self.hook_attn_in(_by_head(resid, self.n_heads)))
            return x, x, x
        points = {"Q": self.hook_q_input, "K": self.hook_k_input, "V": self.hook_v_input}
        query, key, value = (
            ln1(point(_by_head(resid, self.attn.n_inputs(side)))) for side, point in points.items()
        )
        return query, key, value


def _by_head(resid: Tensor, n: int) -> Tensor:
    """A copy for each head, in memory of its own: a hook may write into one."""
    return repeat(resid, "... position d -> ... position head d", head=n).clone()


def added(output: Tensor, residual: Tensor, *readers: nn.Module) -> Tensor:
    """Add a layer's output to the residual stream, in the output's memory where nothing may still read that.

    Args:
        output: What the layer writes, `[..., d_model]`.
        residual: The stream.
        readers: Modules whose hooks may keep the output.

    Example:
        >>> added(torch.ones(2), torch.tensor([1.0, 2.0]))
        tensor([2., 3.])
    """
    if torch.is_grad_enabled() or any(is_hooked(module) for module in readers):
        return output + residual
    return output.add_(residual)
