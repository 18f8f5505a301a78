"""The two-layer theorem's construction for order 2 on two symbols, set by hand: one head a layer, and an MLP.

The first head mixes the two tokens before its own, two parts of the nearer to one of the farther: a number
`s` in {0, 1/3, 2/3, 1} that names the pair. The MLP adds what makes the second head's score a squared
distance: `s²` to a key, and to a query the nearer token, so that `c = 2/3 x_t + 1/3 x_{t-1}` is known. The
second head's score is `-sharpness (s_i - c_t)²`: it is largest where the last two tokens were seen before.
"""

from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.harness import Measured

LENGTH = 11
SHARPNESS = 900.0  # the nearest other pair is 1/9 away: it gets e^-100 of the weight
EXACT = 1e-12  # of frequencies in float64
X, S, SQUARE, NEARER, OUT, POSITION = range(6)  # the stream: a number each, then the position's one-hot


@torch.no_grad()
def order_two_model(length: int) -> mm.HookedDecoder:
    """The model; its output is the frequency of symbol 1 after the last two tokens."""
    width = POSITION + length
    config = mm.DecoderConfig(
        n_layers=2,
        d_model=width,
        d_head=length + 2,
        n_heads=1,
        n_ctx=length,
        d_vocab=2,
        act_fn="relu",
        d_mlp=2,
        normalization_type=None,
        use_attn_scale=False,
    )
    model = mm.HookedDecoder(config).double()
    for parameter in model.parameters():
        parameter.zero_()
    model.embed.W_E[1, X] = 1
    model.get_parameter("pos_embed.W_pos")[:, POSITION:] = torch.eye(length, dtype=torch.float64)
    blocks: list[Any] = list(model.blocks)
    first, second = (block.attn for block in blocks)
    places = torch.arange(length)
    for back, weight in ((1, 2.0), (2, 1.0)):
        rows = places[back:]
        first.W_Q[0, POSITION + rows, rows - back] = SHARPNESS + np.log(weight)
    first.W_K[0, POSITION + places, places] = 1
    first.W_V[0, X, 0] = 1
    first.W_O[0, 0, S] = 1
    # s² at the four values: s/3 + 2/3 relu(s - 1/3) + 2/3 relu(s - 2/3). The nearer token is 1 from 2/3 on.
    mlp = blocks[0].mlp
    mlp.W_in[S] = 1
    mlp.b_in.copy_(torch.tensor([-1 / 3, -2 / 3]))
    mlp.W_out[:, SQUARE] = 2 / 3
    mlp.W_out[0, NEARER], mlp.W_out[1, NEARER] = 3, -3
    # 2 s c - s²: what is left of -(s - c)² is the query's own.
    second.W_Q[0, X, 0], second.W_Q[0, NEARER, 0] = 2 * SHARPNESS * 2 / 3, 2 * SHARPNESS / 3
    second.W_K[0, S, 0] = 1
    second.b_Q[0, 1] = -SHARPNESS
    second.W_K[0, SQUARE, 1], second.W_K[0, S, 1] = 1, 1 / 3
    # The first two tokens are behind no pair: no query may look at them.
    second.b_Q[0, 2] = -10 * SHARPNESS
    second.W_K[0, POSITION + places[:2], 2] = 1
    second.W_V[0, X, 0] = 1
    second.W_O[0, 0, OUT] = 1
    model.get_parameter("unembed.W_U")[OUT, 1] = 1
    return model


def frequencies(length: int) -> tuple[Float[np.ndarray, " case"], Float[np.ndarray, " case"]]:
    """What the model says and what the counts are, at the end of every sequence whose last pair was seen."""
    tokens = torch.tensor(list(product((0, 1), repeat=length)))
    with torch.no_grad():
        said = order_two_model(length)(tokens)[:, -1, 1].numpy()
    x = tokens.numpy()
    seen = (x[:, 1:-1] == x[:, [-1]]) & (x[:, :-2] == x[:, [-2]])  # the pair that ends at key i - 1
    count = seen.sum(1)
    there = count > 0
    counts = (seen * x[:, 2:]).sum(1)[there] / count[there]
    return said[there], counts


def construction(quick: bool) -> Measured:
    """The construction against counts, on every sequence."""
    length = 8 if quick else LENGTH
    said, counts = frequencies(length)
    error = float(np.abs(said - counts).max())
    finding = Finding(
        "two_layers_represent",
        f"largest difference from the counts {error:.0e}, over {len(said)} sequences",
        holds(error < EXACT),
        f"order 2 on two symbols, set by hand in float64, all sequences of {length} tokens whose last pair "
        "was seen before; attention so sharp that other pairs have e^-100 of the weight",
        "derivation",
    )
    return Measured([finding])
