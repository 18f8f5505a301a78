"""A unigram over tokens, as the paper proves it, exactly: symbols, all strings, and the greedy encoder."""

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from scipy.special import entr

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured
from mechmarkov.sources import Binary
from mechmarkov.sources.tokens.symbol_chain import symbol_chain
from mechmarkov.theory import token_law, transducer
from mechmarkov.theory.transducer import Transducer, Word

CLOSE = 1e-9  # of a loss in nats
GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95)  # of switching probabilities
SMALL = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of p = q


@dataclass(frozen=True)
class Encoded:
    """A greedy encoder on a chain of two states: the quantities of theorem 3.4.

    Attributes:
        loss: Of the best unigram over its tokens (nats a symbol).
        rate: The entropy rate of the chain (nats).
        delta: The smallest transition probability.
        cross: H(Q_MLE, P), the mean of -log P(t) over tokens (nats).
        heavy: The largest β for which the dictionary is β-heavy-hitting.
        tokens: How many words it has.
    """

    loss: float
    rate: float
    delta: float
    cross: float
    heavy: float
    tokens: int

    @property
    def epsilon(self) -> float:
        """The ε of theorem 3.4."""
        return float(np.log(1 / self.delta)) / self.cross

    @property
    def bound(self) -> float:
        """The loss that theorem 3.4 allows; infinite where it says nothing."""
        return self.rate / (1 - self.epsilon) if self.epsilon < 1 else float("inf")


def chain_of(p: float, q: float) -> Binary:
    """The switching chain of order 1."""
    return Binary(p=p, q=q)


def encoded(p: float, q: float, words: Transducer) -> Encoded:
    """The exact law of the tokens of a chain, by one linear solve."""
    chain = chain_of(p, q)
    law = token_law.unigram(symbol_chain(chain), words)
    given = np.log(chain.P)
    inside = np.array([sum(given[a, b] for a, b in pairwise(w)) for w in words.words])
    first = np.array([word[0] for word in words.words])
    log_p = inside + np.log(chain.pi[first])
    most = inside + given[:, first].max(0)  # the likeliest P(t | a)
    used = law.law > 0
    n = len(words.words)
    return Encoded(
        law.loss_per_symbol,
        float(chain.entropy_rate),
        min(p, 1 - p, q, 1 - q),
        float(-(law.law[used] @ log_p[used])),
        float(-most[used].max() / np.log(n)),
        n,
    )


def runs(longest: int) -> list[Word]:
    """Both symbols, and runs of each up to a length."""
    return [(symbol,) * n for n in range(1, longest + 1) for symbol in (0, 1)]


def prefixes(length: int) -> list[Word]:
    """All strings up to a length."""
    return [word for n in range(1, length + 1) for word in product((0, 1), repeat=n)]


@exactly
def theorems(quick: bool) -> Measured:
    """Theorems 2.1 and 3.4, equation (2) and lemma A.6 on a grid of chains."""
    grid = GRID[::3] if quick else GRID
    wrong_symbols = wrong_strings = 0.0
    needed: list[tuple[int, float]] = []
    for p, q in product(grid, grid):
        chain, T = chain_of(p, q), symbol_chain(chain_of(p, q))
        rate, stationary = float(chain.entropy_rate), float(entr(chain.pi).sum())
        for r in range(1, 7 if quick else 11):
            found = token_law.unigram(T, transducer.strings(2, r)).loss_per_symbol
            wrong_strings = max(wrong_strings, abs(found - rate * (1 - 1 / r) - stationary / r))
            if r == 1:
                wrong_symbols = max(wrong_symbols, abs(found - stationary))
    for p in SMALL[:1] if quick else (0.2, 0.1, 0.05, *SMALL[:1]):
        needed.append(strings_needed(p))
    ratios = [np.log(2) / chain_of(p, p).entropy_rate for p in SMALL]
    dictionaries = [
        *(transducer.strings(2, r) for r in (2, 4, 8)),
        *(transducer.greedy(runs(n), 2) for n in (4, 16, 64)),
        *(transducer.greedy(prefixes(n), 2) for n in (3, 6)),
    ]
    each = [encoded(p, q, words) for p, q in product(grid, grid) for words in dictionaries]
    told = [one for one in each if one.epsilon < 1]
    worst = max(one.loss / one.bound for one in told)
    heavy = min(one.cross - one.heavy * np.log(one.tokens) for one in each)
    chains = f"{len(grid) ** 2} chains of two states, p and q in {grid}"
    return Measured(
        [
            Finding(
                "unigram_of_symbols",
                f"the best unigram over symbols is H(π) to {wrong_symbols:.1g} nats",
                holds(wrong_symbols < CLOSE),
                chains,
                "computed exactly",
                number=f"H(π), to {wrong_symbols:.1g} nats",
            ),
            Finding(
                "ratio_diverges",
                "H(π) over the entropy rate: "
                + ", ".join(f"{ratio:.3g} at p = q = {p:g}" for p, ratio in zip(SMALL, ratios, strict=True)),
                holds(bool(np.all(np.diff(ratios) > 0))),
                "the switching chain of order 1",
                "computed exactly",
                number=f"{ratios[0]:.3g} at {SMALL[0]:g}, {ratios[-1]:.3g} at {SMALL[-1]:g}",
            ),
            Finding(
                "strings_formula",
                f"H (1 - 1/r) + H(π) / r to {wrong_strings:.1g} nats",
                holds(wrong_strings < CLOSE),
                f"{chains}; all strings of r symbols, r up to {6 if quick else 10}",
                "computed exactly",
                number=f"to {wrong_strings:.1g} nats",
            ),
            Finding(
                "strings_needed",
                "smallest r at which the loss is at most twice the rate, and e^(H(π)/H): "
                + "; ".join(f"2^{r} against {printed:.3g}" for r, printed in needed),
                holds(False, corrected=all(2**r < printed for r, printed in needed)),
                "the switching chain of order 1, p = q from 0.2 to 0.01",
                "computed exactly",
                number="2^(H(π)/H - 1), rounded up",
            ),
            Finding(
                "greedy_bound",
                f"the loss is at most {worst:.3f} of the bound in {len(told)} cases with ε < 1",
                holds(worst <= 1 + CLOSE),
                f"{chains}; strings of 2, 4, 8, runs of up to 4, 16, 64, prefixes of up to 3 and 6 symbols",
                "computed exactly",
                number=f"at most {worst:.3f} of the bound",
            ),
            Finding(
                "heavy_hitting",
                f"H(Q_MLE, P) - β log d is {heavy:.2g} nats or more in {len(each)} cases",
                holds(heavy > -CLOSE),
                f"{chains}; the same dictionaries, β the largest for each",
                "computed exactly",
                number=f"above by {heavy:.2g} nats or more",
            ),
        ]
    )


def strings_needed(p: float) -> tuple[int, float]:
    """The shortest strings whose unigram loses at most twice the rate, and the printed size of dictionary."""
    rate = float(chain_of(p, p).entropy_rate)
    fits = (r for r in range(1, 1000) if rate * (1 - 1 / r) + np.log(2) / r <= 2 * rate)
    return next(fits), float(np.exp(np.log(2) / rate))
