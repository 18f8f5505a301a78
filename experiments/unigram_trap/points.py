"""The two points of the loss landscape that the paper constructs, in exact arithmetic over all sequences."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import mechmarkov as mm

WIDTH, LENGTH = 4, 4  # d_model and n_ctx: the closed forms hold for any, all sequences are to be enumerated


@dataclass(frozen=True)
class Population:
    """All sequences of a chain with their probabilities.

    Attributes:
        tokens: `[sequence, position]`, one more position than the model reads.
        weight: Probabilities `[sequence]`.
    """

    tokens: Tensor
    weight: Float[Tensor, " sequence"]


def population(source: mm.Binary | mm.Chain, length: int = LENGTH) -> Population:
    """Every sequence of so many tokens and one."""
    tokens = torch.tensor(list(product(range(source.n_states), repeat=length + 1)))
    P, pi = torch.tensor(source.P), torch.tensor(source.pi)
    weight = pi[tokens[:, 0]] * P[tokens[:, :-1], tokens[:, 1:]].prod(1)
    return Population(tokens, weight)


def model(source: mm.Binary | mm.Chain, *, tied: bool) -> mm.HookedDecoder:
    """The unigram point: one layer with every weight zero but the unembedding's bias, `log pi`; float64."""
    config = mm.DecoderConfig(
        n_layers=1,
        d_model=WIDTH,
        d_head=WIDTH,
        n_ctx=LENGTH,
        d_vocab=source.n_states,
        normalization_type=None,
        tied=tied,
    )
    decoder = mm.HookedDecoder(config).double()
    with torch.no_grad():
        decoder.unembed.b_U.copy_(torch.tensor(np.log(source.pi)))
    return decoder


@torch.no_grad()
def bigram_model(source: mm.Binary, *, tied: bool) -> mm.HookedDecoder:
    """Weights that predict a binary chain exactly.

    With `E_1 = -E_0` along one direction the embedding raises the log-odds of its own state; with tied
    weights and p + q > 1, where it is to lower them, two hidden units give back minus twice the stream.
    """
    decoder = model(source, tied=tied)
    odds = np.log(source.P[:, 1] / source.P[:, 0])
    slope, offset = float(odds[1] - odds[0]), float(odds.mean())
    half = float(np.sqrt(abs(slope))) / 2
    decoder.embed.W_E[:, 0] = torch.tensor([-half, half])
    decoder.unembed.b_U.copy_(torch.tensor([-offset / 2, offset / 2]))
    if not tied:
        decoder.unembed.W_U[0] = torch.tensor([-half, half]) * np.sign(slope)
    elif slope < 0:
        mlp = decoder.blocks[0].mlp
        mlp.W_in[0, :2] = torch.tensor([1.0, -1.0])
        mlp.W_out[:2, 0] = torch.tensor([-2.0, 2.0])
    return decoder


class Loss:
    """The exact loss of a decoder's shape as a function of all its numbers in one vector, nats."""

    def __init__(self, decoder: mm.HookedDecoder, data: Population) -> None:
        self.decoder, self.data = decoder, data
        self.named = dict(decoder.named_parameters())
        self.theta = torch.cat([p.detach().flatten() for p in self.named.values()])

    def __call__(self, theta: Float[Tensor, " number"]) -> Float[Tensor, ""]:
        """The mean cross-entropy of the next token over all sequences."""
        sizes = [p.numel() for p in self.named.values()]
        parts = zip(self.named.items(), torch.split(theta, sizes), strict=True)
        weights = {name: part.view_as(p) for (name, p), part in parts}
        logits = functional_call(self.decoder, weights, (self.data.tokens[:, :-1],))
        chosen = logits.log_softmax(-1).gather(-1, self.data.tokens[:, 1:, None])[..., 0]
        return -(self.data.weight @ chosen).mean()

    def gradient_and_spectrum(self) -> tuple[float, Float[np.ndarray, " number"]]:
        """The largest entry of the gradient, and all eigenvalues of the Hessian, ascending."""
        theta = self.theta.clone().requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            (slope,) = torch.autograd.grad(self(theta), theta, create_graph=True)
            rows = [torch.autograd.grad(entry, theta, retain_graph=True)[0] for entry in slope]
        hessian = torch.stack(rows)
        values = torch.linalg.eigvalsh((hessian + hessian.T) / 2)
        return float(slope.detach().abs().max()), values.numpy()


def closed_form(p: float, q: float, numbers: int, *, tied: bool) -> Float[np.ndarray, " number"]:
    """The Hessian's eigenvalues at the unigram point of a binary chain, ascending; most are zero.

    Twice those of a scalar logit: `4 pi0 pi1 (p + q - 1)` for each of the embedding's directions (tied), or
    `+-2 pi0 pi1 |p + q - 1|` (untied), and `2 pi0 pi1` for the bias.
    """
    product = p * q / (p + q) ** 2
    found = [2 * product]
    found += [4 * product * (p + q - 1)] * WIDTH if tied else []
    found += [] if tied else [sign * 2 * product * abs(p + q - 1) for sign in (-1, 1)] * WIDTH
    return np.sort(np.array(found + [0.0] * (numbers - len(found))))
