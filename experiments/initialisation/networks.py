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

# Gradient flow on the weights keeps |E|²/8 - w² - sign(w) log|w| for every p and q, |E|² the sum of the
# squared norms of the two embeddings. Proof: with rows u_y along the sign vector, slopes s_y = e u_y m,
# m = 1 + 2 w|w|, and H = sum_y u_y m dL/ds_y, the chain rule gives d|E|²/dt = -4 e H and
# d(w² + sign(w) log|w|)/dt = -e H / 2. (Where the two halves of the hidden units differ, take the mean of
# theirs.) At the start |E|² is e²/2, and it stays so for p = q: then e²/16 - w² - sign(w) log|w| is kept, as
# in the flow at e/4.
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


def drifts(start: Start, *, lr: float, steps: int) -> tuple[float, float]:
    """Largest change along a run, in float64, of the kept quantity and of `e²/16 - w² - sign(w) log|w|`."""
    decoder = at([start]).double()
    _, _, p, q = start
    source = mm.Binary(p=p, q=q)
    weight = torch.tensor(source.pi[:, None] * source.P)
    parameters = [decoder.get_parameter(name) for name in WEIGHTS]
    tokens, kept, approximate = torch.tensor([[0], [1]]), [], []
    for _ in range(steps):
        with torch.no_grad():
            rows, W_in = parameters[0][0], parameters[1][0]
            sign = W_in[0] > 0
            sizes = torch.stack([W_in[:, half].norm() / 2**0.5 for half in (sign, ~sign)]).numpy()
            w = -sizes if float(parameters[2][0].sign().mul(W_in.mT.sign()).sum()) < 0 else sizes
            f = w**2 + np.sign(w) * np.log(np.abs(w))
            kept.append(float(rows.square().sum()) / 8 - f.mean())
            approximate.append(float((rows[1] - rows[0]).square().sum()) / 16 - f.mean())
        loss = -(weight * decoder(tokens)[0, :, 0].log_softmax(-1)).sum()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
    return float(np.ptp(kept)), float(np.ptp(approximate))
