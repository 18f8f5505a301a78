"""Proposition 2.1 and fact 2.2: the printed weights, run on all short sequences."""

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, every_sequence
from experiments.induction_heads import minimal

STATES = 3
SHARP = 60.0  # of a score: what is left elsewhere is e^-60
ROUNDING = 1e-12


def printed_transformer(
    tokens: Int[Tensor, "batch position"], n_states: int
) -> Float[Tensor, "batch position state"]:
    """Return what the second layer writes in appendix B.1: the mean of the tokens under its attention.

    The stream has three blocks: the token, what the first layer copies, and what the second one writes.
    """
    length = tokens.shape[1]
    lag = torch.arange(length)[:, None] - torch.arange(length)
    x = torch.nn.functional.one_hot(tokens, n_states).double()
    one_back = torch.where(lag == 1, SHARP, 0.0).double().masked_fill(lag < 0, -torch.inf)
    copied = einsum(one_back.softmax(-1), x, "query key, batch key state -> batch query state")
    scores = SHARP * einsum(x, copied, "batch query state, batch key state -> batch query key")
    pattern = scores.masked_fill(lag < 0, -torch.inf).softmax(-1)
    return einsum(pattern, x, "batch query key, batch key state -> batch query state")


def pair_counts(
    tokens: Int[np.ndarray, "batch position"], n_states: int, *, first_follows_itself: bool
) -> Float[np.ndarray, "batch position state"]:
    """Count how often each state followed the current one; the first token may count as following itself."""
    x = np.eye(n_states)[tokens]
    before = np.zeros_like(x)
    before[:, 1:] = x[:, :-1]
    if first_follows_itself:
        before[:, 0] = x[:, 0]
    pairs = einsum(before, x, "batch key state, batch key next -> batch key state next").cumsum(1)
    return np.asarray(einsum(x, pairs, "batch query state, batch query state next -> batch query next"))


@exactly
def constructions(quick: bool) -> Measured:
    """The transformer that counts pairs, and the minimal model that counts pairs, and tokens."""
    length = 5 if quick else 8
    tokens = every_sequence(STATES, length)
    where = f"three symbols, all {STATES**length} sequences of {length}, scores of {SHARP:g}, float64"
    counted = {
        itself: pair_counts(tokens.numpy(), STATES, first_follows_itself=itself) for itself in (False, True)
    }
    return Measured(
        [
            _transformer(tokens, counted, where),
            _bigrams(tokens, counted, where),
            _unigrams(tokens, where),
        ]
    )


def _transformer(
    tokens: Int[Tensor, "batch position"],
    counted: dict[bool, Float[np.ndarray, "batch position state"]],
    where: str,
) -> Finding:
    read = printed_transformer(tokens, STATES).numpy()
    seen = counted[False].sum(-1) > 0  # elsewhere there are no statistics
    off = {}
    for itself, counts in counted.items():
        off[itself] = float(np.abs(read - counts / counts.sum(-1, keepdims=True).clip(1))[seen].max())
    return Finding(
        "construction",
        f"off by at most {off[False]:.2g} in a frequency; by {off[True]:.0e} if the first token counts as "
        "following itself",
        holds(off[False] < ROUNDING, off[True] < ROUNDING),
        f"the printed weights, where the current token came before; {where}",
        "computed exactly",
        number=f"off by {off[False]:.2g}, or {off[True]:.0e}",
    )


def _bigrams(
    tokens: Int[Tensor, "batch position"],
    counted: dict[bool, Float[np.ndarray, "batch position state"]],
    where: str,
) -> Finding:
    v = torch.zeros(1, tokens.shape[1], dtype=torch.float64)
    v[:, 1] = SHARP
    read = minimal.logits(v, torch.eye(STATES, dtype=torch.float64)[None], tokens[None])[0].numpy()
    off = {itself: float(np.abs(read - counts).max()) for itself, counts in counted.items()}
    return Finding(
        "minimal_bigrams",
        f"off by at most {off[False]:.2g} counts; by {off[True]:.0e} with the first token's pair with itself",
        holds(off[False] < ROUNDING, off[True] < ROUNDING),
        f"v = (0, c, 0, ...) with c = {SHARP:g}, W the identity, every position as the last; {where}",
        "computed exactly",
        number=f"off by {off[False]:.2g}, or {off[True]:.0e}",
    )


def _unigrams(tokens: Int[Tensor, "batch position"], where: str) -> Finding:
    v = torch.zeros(1, tokens.shape[1], dtype=torch.float64)
    W = torch.full((1, STATES, STATES), 1 / STATES, dtype=torch.float64)
    read = minimal.logits(v, W, tokens[None])[0].numpy()
    counts = np.eye(STATES)[tokens.numpy()].cumsum(1)
    off = {factor: float(np.abs(read * factor - counts).max()) for factor in (1, STATES)}
    return Finding(
        "minimal_unigrams",
        f"off by at most {off[1]:.2g} counts; by {off[STATES]:.0e} after multiplying by {STATES}",
        holds(off[1] < ROUNDING, off[STATES] < ROUNDING),
        f"v = 0, W = 1/k everywhere; {where}",
        "computed exactly",
        number=f"off by {off[1]:.2g}, or {off[STATES]:.0e}",
    )
