"""An MLP over positions in the place of attention (token mixing, Tolstikhin et al. 2021, made causal)."""

from typing import ClassVar

import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import parameter
from mechmarkov.models.mixer import Mixer


class TokenMLP(Mixer, name="mlp"):
    """Each head is an MLP over positions: weights of two positions, and no content that decides them.

    With `v` a head's values, `z_t = Σ_{s ≤ t} B_ts GELU(Σ_{r ≤ s} A_sr v_r + a_s)`, for each channel. Neither
    looks ahead. `Mixer`'s values and output are its only weights on channels.

    Attributes:
        W_A: `[*stack, head, n_ctx, n_ctx]`, of which what lies on and below the diagonal is read; `b_A`
            `[*stack, head, n_ctx]` is a. `W_B` likewise.
        hook_hidden: What the GELU gives, `[*stack, batch, position, head, d_head]`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("V",)
    has_attention_weights = False
    is_linear = False

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__(config, stack)
        shape = config.n_heads, config.n_ctx, config.n_ctx
        self.W_A, self.W_B = parameter(stack, *shape), parameter(stack, *shape)
        self.b_A = parameter(stack, *shape[:2])
        self.hook_hidden = HookPoint()

    def mix(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor
    ) -> Float[Tensor, "*stack batch position head d_head"]:
        """Returns what each head gathers, `z`, of the input of values; arguments as of `Mixer.mix`."""
        del query_input, key_input
        v = self.project("V", value_input)
        n, m = v.shape[-3], "model " * (self.W_O.ndim - 3)
        first, second = (W[..., :n, :n].tril() for W in (self.W_A, self.W_B))
        mixed = f"{m}b s head d, {m}head t s -> {m}b t head d"
        bias = self.b_A[..., :n].mT[..., None]
        hidden = F.gelu(einsum(v, first, mixed) + (bias if not m else bias[:, None]))
        return einsum(self.hook_hidden(hidden), second, mixed)
