"""The Hessian of the walk model at its symmetric trap, in closed form: a saddle, with growth rates.

Setting: Shi & Cao 2025 (arXiv 2511.23239), the walk model on a deterministic cycle of K states with
`N - 1 = r K` tokens before the query, `V = alpha J` (J all ones), attention `S` on every token and `S_N` on
the query. Every label then scores `z = alpha (1 - S_N)`. Parameters are `V` and `u = w / |p|`: what a plain
gradient step moves (`mechmarkov.models.constructions.walk`). To second order the loss is

    -|l'(z)|/2 ( 2 S E[sum_i a_i dV[y, x_i]] + alpha S S_N E[sum_i a_i²] )

in moves `a_i` of the tokens' attention logits and `dV` outside of what shifting sequences along the cycle
leaves unchanged (V with constant rows, equally attended tokens): moves whose `a_i` add to zero, and the rows
of whose `dV` do. So the spectrum there is, with `h_pos = |l'| alpha |p|^4 S S_N` and
`h_tok = |l'| alpha r |p|² S S_N`:

- `-(h_pos/2 ± sqrt(h_pos²/4 + c²))`, `c = |l'| |p|² S sqrt(r/K)`, K-1 times each: attention by lag class,
  with the band of V that steps that far. The largest growth rate where `|p|² > r`;
- `-(h_tok/2 ± sqrt(h_tok²/4 + t²))`, `t = |l'| |p| S r / sqrt(K)`, K-1 times each: attention by token
  identity, with the column sums of V. It tells nothing of the label;
- `-h_pos`, N-1-K times: attention within a lag class;
- 0, (K-1)(K-2) times: the rest of V.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class TrapSpectrum:
    """Eigenvalues outside the symmetric subspace (K² + N - 3 of them) and the rates of growth.

    Attributes:
        growth_position: The rate at which attention by lag class grows, per unit of step size times steps of
            plain gradient descent.
        growth_token: The rate of attention by token identity.
        coupling: `c`, between attention by lag class and the band of V that steps as far.
        pull: `h_pos`, of attention on itself.
        growing_position: What V's band and attention by lag class are in the unit vector that grows.
        growing_token: What V's columns and attention by token are in that one.
        eigenvalues: All of them, ascending.
    """

    growth_position: float
    growth_token: float
    coupling: float
    pull: float
    growing_position: tuple[float, float]
    growing_token: tuple[float, float]
    eigenvalues: Float[np.ndarray, " mode"]


def trap_spectrum(
    *, n_states: int, length: int, position_norm: float, alpha: float, query_mass: float, slope: float
) -> TrapSpectrum:
    """Eigenvalues of the Hessian at the walk model's trap, and the rates at which its moves grow.

    `-(h/2 ± sqrt(h²/4 + c²))` for each of two kinds of attention with the part of V that it moves with, as
    the module's docstring says.

    Args:
        n_states: K, dividing `length - 1`.
        length: N, tokens and query.
        position_norm: `|p|`.
        alpha: The entries of V.
        query_mass: `S_N`; the tokens share the rest.
        slope: `l'(z)`, derivative of the loss by the label's score (nats).

    Raises:
        ValueError: If K does not divide N - 1: such a trap does not exist.

    Example:
        >>> spectrum = trap_spectrum(n_states=3, length=7, position_norm=1.0, alpha=0.0, query_mass=1 / 7,
        ...                          slope=-10.0)
        >>> len(spectrum.eigenvalues), round(spectrum.growth_position, 3)
        (13, 1.166)
    """
    K, N = n_states, length
    if (N - 1) % K:
        raise ValueError(
            f"n_states is {K}, expected a divisor of length - 1 = {N - 1}: else there is no trap"
        )
    r = (N - 1) // K
    mass = (1 - query_mass) / (N - 1)
    each = abs(slope) * mass
    h_pos = each * alpha * position_norm**4 * query_mass
    h_tok = each * alpha * r * position_norm**2 * query_mass
    c = each * position_norm**2 * np.sqrt(r / K)
    t = each * position_norm * r / np.sqrt(K)
    position, token = _pair(h_pos, c), _pair(h_tok, t)
    modes = [
        np.repeat(position, K - 1),
        np.repeat(token, K - 1),
        np.full(N - 1 - K, -h_pos),
        np.zeros((K - 1) * (K - 2)),
    ]
    return TrapSpectrum(
        growth_position=-position[0],
        growth_token=-token[0],
        coupling=float(c),
        pull=float(h_pos),
        growing_position=_unit(float(c), -position[0]),
        growing_token=_unit(float(t), -token[0]),
        eigenvalues=np.sort(np.concatenate(modes)),
    )


def _pair(h: float, c: float) -> tuple[float, float]:
    """Eigenvalues of `[[0, -c], [-c, -h]]`, the lower one first."""
    root = np.sqrt(h**2 / 4 + c**2)
    return float(-h / 2 - root), float(-h / 2 + root)


def _unit(coupling: float, growth: float) -> tuple[float, float]:
    """The eigenvector of `[[0, -c], [-c, -h]]` for `-growth`, along `(c, growth)`."""
    size = float(np.hypot(coupling, growth))
    return coupling / size, growth / size
