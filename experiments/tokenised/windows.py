"""The best loss with only the last units known, exactly: symbols cut into bits, or joined to tokens."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import style, titled
from experiments.harness import Measured
from experiments.tokenised.laws import P, source
from mechmarkov.sources import Tokenised
from mechmarkov.sources.sampling.law import stationary
from mechmarkov.theory.hidden import Matrices

# The next state is one further round in four of five cases; bits of the state's number, the high one first.
ROUND = 0.8 * np.roll(np.eye(4), 1, axis=1) + 0.2 / 4
WINDOW_BITS = (2, 3, 4, 5, 6, 8)


def best_loss(T: Matrices, start: Float[np.ndarray, " hidden"], window: int) -> float:
    """Entropy of the next unit given the last `window` ones, by all words of that length (nats a unit).

    Args:
        T: `T[x, h, h']`, to emit unit x and go to h', given h.
        start: The stationary law of h.
        window: How many units are known.

    Example:
        >>> T = np.stack([np.array([[0.9, 0], [0.1, 0]]), np.array([[0, 0.1], [0, 0.9]])])
        >>> [round(best_loss(T, np.array([0.5, 0.5]), w), 4) for w in (0, 1)]
        [0.6931, 0.3251]
    """
    words = start[None]
    for _ in range(window):
        words = np.einsum("wi,xij->wxj", words, T).reshape(-1, T.shape[1])
    words = words[words.sum(1) > 0]
    joint = np.einsum("wi,xij->wx", words, T)
    law = joint / joint.sum(1, keepdims=True)
    return float(-(joint * np.log(np.where(law > 0, law, 1))).sum())


def bits(rows: Float[np.ndarray, "from to"]) -> tuple[Matrices, Float[np.ndarray, " hidden"]]:
    """A chain on four states whose states come as two bits: hidden is the last state, or that and a bit."""
    T = np.zeros(
        (2, 12, 12)
    )  # 0 to 3: a state is complete; 4 + 2 i + b: after state i, the next begins with b
    for i in range(4):
        for b in range(2):
            half = rows[i, 2 * b : 2 * b + 2]
            T[b, i, 4 + 2 * i + b] = half.sum()
            for c in range(2):
                T[c, 4 + 2 * i + b, 2 * b + c] = half[c] / half.sum()
    return T, stationary(T.sum(0))


def of_tokens(tokens: Tokenised) -> Matrices:
    """Tokens on the edges of their hidden chain."""
    return tokens.T * tokens.E.T[:, None, :]


@exactly
def windows(quick: bool) -> Measured:
    """Best losses a source symbol by how many bits, symbols or tokens are known."""
    T, start = bits(ROUND)
    whole = mm.Chain(ROUND).entropy_rate
    known = WINDOW_BITS[:3] if quick else WINDOW_BITS
    cut = [2 * best_loss(T, start, window) for window in known]
    figure = go.Figure()
    figure.add_scatter(x=[w / 2 for w in known], y=cut, name="in bits", mode="lines+markers", line=style(0))
    figure.add_scatter(x=[1, known[-1] / 2], y=[whole, whole], name="in states", mode="lines", line=style(1))
    titled(figure, "A chain of four states, cut into bits", "window (states)", "best loss (nats a state)")
    words = mm.load_recipe("tokens-lzw").source.tokeniser
    joined, plain = {}, {}
    for lag in (2, 3, 4):
        tokens = Tokenised(source=source(lag), tokeniser=words)
        joined[lag] = best_loss(of_tokens(tokens), tokens.hidden_law, 1) / tokens.symbols_per_token
        plain[lag] = float(np.log(2))  # with fewer symbols than the lag nothing is known of the next one
    rate = source(2).entropy_rate
    told = ", ".join(f"{joined[lag]:.4f} at order {lag}" for lag in joined)
    return Measured(
        [
            Finding(
                "fragments_cost",
                f"{', '.join(f'{x:.4f}' for x in cut)} nats a state at windows of "
                f"{', '.join(map(str, known))} bits; with one whole state {whole:.4f}, the rate",
                holds(min(cut) > whole + 1e-6),
                "four states, the next is one further round with probability .85, each as two bits",
                "computed exactly",
                number=f"{cut[0]:.3f} with 2 bits, {whole:.3f} with one state",
            ),
            Finding(
                "tokens_widen",
                f"with one token known {told}; with one symbol {plain[2]:.4f} at each; the rate is "
                f"{rate:.4f}, to {abs(joined[3] - rate):.1g} at order 3",
                holds(all(joined[lag] < plain[lag] for lag in joined)),
                f"switching chains with probability {P:g}, the 16 words of the recipe tokens-lzw",
                "computed exactly",
                number=f"one token {joined[2]:.4f}, one symbol {plain[2]:.4f}",
            ),
        ],
        {"windows": figure},
    )
