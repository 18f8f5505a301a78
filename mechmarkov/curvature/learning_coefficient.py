"""The local learning coefficient of an exact loss, by Langevin sampling with a Metropolis test.

`λ = nβ (E[L(w)] - L(w*))` over `exp(-nβ L(w) - γ/2 |w - w*|²)` (Lau et al. 2023, arXiv 2308.12108). The loss
is the expected one under the exact law, so a step can be accepted or refused, and its size biases nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Losses = Callable[[Tensor], Tensor]  # [chain, coordinate] to [chain], nats

LOCALISATION = 1.0  # γ, per squared unit of parameter
CHAINS = 8
BURN_IN = 500  # steps, in which the step size is found
DRAWS = 1000
ACCEPTED = 0.6  # share of steps that the step size is set for (Roberts & Rosenthal 1998: 0.574)
ADAPTS = 0.05  # how fast


class Chains(NamedTuple):
    """Halves of chains around a point. Chains whose halves disagree in either of these have not mixed.

    Attributes:
        estimates: Estimates of the learning coefficient, no unit.
        distances: The mean squared distance from the point, in squared units of parameters. Where it still
            grows the chains have not seen all that is flat, of which a scale of weights decides the time.
    """

    estimates: Float[np.ndarray, "chain half"]
    distances: Float[np.ndarray, "chain half"]


def learning_coefficient(
    losses: Losses,
    theta: Float[Tensor, " coordinate"],
    *,
    n_beta: float,
    seed: int,
    localisation: float = LOCALISATION,
    chains: int = CHAINS,
    burn_in: int = BURN_IN,
    draws: int = DRAWS,
) -> Chains:
    """Estimates of the learning coefficient at a point, from both halves of each chain.

    Below 0 where the loss falls on the way from the point, which is then not a minimum.

    Args:
        losses: The loss of several parameter vectors at once (nats).
        theta: The point.
        seed: The seed of the chains.
        n_beta: Predictions times inverse temperature.
        localisation: γ, how strongly chains are held near the point.
        chains: How many start there.
        burn_in: Steps before the draws.
        draws: Steps that are averaged; an even number.

    Example:
        >>> scale = torch.tensor([1.0, 3.0, 0.0]).double()  # of a bowl, flat in its last direction
        >>> found = learning_coefficient(lambda w: (scale * w**2).sum(-1), torch.zeros(3), n_beta=9e3, seed=0)
        >>> bool(abs(found.estimates.mean() - 1) < 0.1)  # half of two directions
        True
    """
    generator = torch.Generator().manual_seed(seed)
    centre = theta.detach().double()
    w = centre.expand(chains, -1).clone()
    base = float(losses(centre[None])[0])
    log_step = torch.full((chains, 1), -np.log(n_beta), dtype=torch.float64)

    def at(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, energy and its gradient."""
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            loss = losses(w)
            energy = n_beta * loss + localisation / 2 * ((w - centre) ** 2).sum(-1)
            (gradient,) = torch.autograd.grad(energy.sum(), w)
        return loss.detach(), energy.detach(), gradient

    loss, energy, gradient = at(w)
    rows, distances = list[Tensor](), list[Tensor]()
    for draw in range(burn_in + draws):
        step = log_step.exp()
        noise = torch.randn(w.shape, generator=generator, dtype=torch.float64)
        proposed = w - step / 2 * gradient + step.sqrt() * noise
        new_loss, new_energy, new_gradient = at(proposed)
        back = w - proposed + step / 2 * new_gradient
        forward = (noise**2).sum(-1) / 2 - (back**2).sum(-1) / (2 * step[:, 0])
        ratio = (energy - new_energy + forward).nan_to_num(nan=-np.inf)
        accepted = torch.rand(chains, generator=generator, dtype=torch.float64).log() < ratio
        w = torch.where(accepted[:, None], proposed, w)
        loss, energy = (torch.where(accepted, a, b) for a, b in ((new_loss, loss), (new_energy, energy)))
        gradient = torch.where(accepted[:, None], new_gradient, gradient)
        if draw < burn_in:
            log_step += ADAPTS * (ratio.exp().clamp(0, 1)[:, None] - ACCEPTED)
        else:
            rows.append(loss)
            distances.append(((w - centre) ** 2).sum(-1))
    loss_of, distance_of = (torch.stack(x).view(2, draws // 2, chains).mean(1).T for x in (rows, distances))
    return Chains(np.asarray(n_beta * (loss_of - base)), np.asarray(distance_of))
