"""Real decoders that start at canonical points, under plain gradient descent on the whole population.

Token embeddings are ±e/2 along a sign vector; half of the hidden units read it with one sign and half with
the other, so that the MLP multiplies the stream by `2 w |w|`. Attention is zero, and stays so: with value and
output weights at zero neither has a gradient. The log-odds then are those of `(e, w)`, exactly.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

import mechmarkov as mm
from mechmarkov.theory import canonical

D_MODEL, D_MLP = 8, 32
CONFIG = mm.DecoderConfig(
    n_layers=1,
    d_model=D_MODEL,
    d_head=D_MODEL,
    n_ctx=1,
    d_vocab=2,
    act_fn="relu",
    tied=True,
    normalization_type=None,
    d_mlp=D_MLP,
)
WEIGHTS = ("embed.W_E", "blocks.0.mlp.W_in", "blocks.0.mlp.W_out", "unembed.b_U")
MLP_BIAS = ("blocks.0.mlp.b_in",)

# Along these starts a step of e moves the weights by |dW|² = de² / 2 (two rows of ±e/2), a step of w by 8 dw²
# (|W_in|² = |W_out|² = 4 w²). Gradient descent on the weights therefore moves e 16 times as fast, compared
# with w, as gradient flow in (e, w) does, and keeps e²/16 - w² - sign(w) log|w|. With one embedding that a
# token switches on or off, as in the authors' code, |dW|² = de², and the factor is 8.
STRETCH = 16

Start = tuple[float, float, float, float]  # e, w, p, q


def at(starts: Sequence[Start]) -> mm.HookedDecoder:
    """A stack of decoders, one at each `(e, w)`, with the best bias for `(p, q)`."""
    decoder = mm.HookedDecoder(CONFIG, n_models=len(starts))
    e, w, p, q = np.array(starts).T
    s = canonical.slope(e, w)
    middle = (
        np.array([canonical.best_offset(np.array(a), *pq) for a, *pq in zip(s, p, q, strict=True)]) + s / 2
    )
    direction = torch.tensor([1.0, -1.0]).repeat(D_MODEL // 2) / D_MODEL**0.5
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(D_MLP // 4)
    size = 2 / D_MLP**0.5
    e_, w_, half = (torch.from_numpy(x).float() for x in (e, w, middle / 2))
    with torch.no_grad():
        decoder.get_parameter("embed.W_E")[:] = torch.stack([-e_, e_], 1)[..., None] / 2 * direction
        into = torch.outer(direction, sign)
        decoder.get_parameter("blocks.0.mlp.W_in")[:] = size * w_.abs()[:, None, None] * into
        decoder.get_parameter("blocks.0.mlp.W_out")[:] = size * w_[:, None, None] * into.T
        decoder.get_parameter("unembed.b_U")[:] = torch.stack([-half, half], 1)
    return decoder


def descend(
    starts: Sequence[Start], *, trained: Sequence[str], lr: float, steps: int
) -> Float[np.ndarray, " start"]:
    """What is lost at the end: 0 at the bigram, 1 at the unigram."""
    decoder = at(starts)
    sources = [mm.Binary(p=p, q=q) for _, _, p, q in starts]
    weight = torch.tensor(np.stack([s.pi[:, None] * s.P for s in sources]), dtype=torch.float32)
    tokens = torch.tensor([[0], [1]])
    parameters = [decoder.get_parameter(name) for name in trained]
    for _ in range(steps):
        losses = -(weight * decoder(tokens)[:, :, 0].log_softmax(-1)).sum((1, 2))
        gradients = torch.autograd.grad(losses.sum(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
    best = np.array([s.entropy_rate for s in sources])
    worst = np.array([s.unigram_entropy for s in sources])
    return (losses.detach().double().numpy() - best) / (worst - best)
