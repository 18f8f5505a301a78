"""An LSTM in the place of attention (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000)."""

from typing import ClassVar

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import parameter
from mechmarkov.models.mixer import Mixer

GATES = ("I", "F", "G")  # of what comes in, of what is kept, of what is shown


class LSTM(Mixer, name="lstm"):
    """Each head is an LSTM of `d_head` cells: with one head, `torch.nn.LSTM`.

    With `u` the stream, a head computes for each of `V, I, F, G`, with `W_R` split into four equal parts,

    - `x_t = u_t W_x + b_x + h_{t-1} R_x`,
    - the cells `c_t = σ(F_t) c_{t-1} + σ(I_t) tanh(V_t)`, and `h_t = z_t = σ(G_t) tanh(c_t)`.

    Positions come one after the other, so that it trains slower than what mixes them at once.

    Attributes:
        W_R: `[*stack, head, d_head, 4 * d_head]`, what a head reads of its own past, for `V, I, F, G`.
        W_I: `[*stack, head, d_model, d_head]` with `b_I`, of the input gate; `W_F` of the forget gate, `W_G`
            of the output gate. `hook_i`, `hook_f` and `hook_g` see what of a gate is read from the stream.
        hook_state: The cells c, `[*stack, batch, position, head, d_head]`. What is written changes `z` at
            that position, not later cells.
    """

    inputs: ClassVar[tuple[str, ...]] = ("V",)
    has_attention_weights = False
    is_linear = False

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__(config, stack)
        heads, width = config.n_heads, config.d_head
        for side in GATES:
            self.add_input(side, stack, width)
        self.W_R = parameter(stack, heads, width, 4 * width)
        self.hook_state = HookPoint()

    def mix(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor
    ) -> Float[Tensor, "*stack batch position head d_head"]:
        """Returns what each head shows, `z`; arguments as of `Mixer.mix`.

        Gates of input and forgetting are read from the input of keys, the output gate from that of queries.
        """
        gates = dict(zip(GATES, (key_input, key_input, query_input), strict=True))
        read = [self.project(side, u) for side, u in {"V": value_input, **gates}.items()]
        m = "model " * (self.W_O.ndim - 3)
        each = torch.cat(read, -1)
        h = c = torch.zeros_like(read[0][..., 0, :, :])
        cells, shows = [], []
        for x in each.unbind(-3):
            past = einsum(h, self.W_R, f"{m}b head d, {m}head d e -> {m}b head e")
            v, i, f, g = (x + past).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * v.tanh()
            h = g.sigmoid() * c.tanh()
            cells.append(c)
            shows.append(g.sigmoid())
        return torch.stack(shows, -3) * self.hook_state(torch.stack(cells, -3)).tanh()
