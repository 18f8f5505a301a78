"""Dictionaries that fail: under another encoder (theorem E.2), and from a text that is typical (equation 15).

The source of theorem E.2 goes from 1 to 0 or 2 and back, with probability δ a step. Its runs are geometric.
So what a minimal encoder writes of a run of ones and the run behind it has a closed form:

- Of a run of x ones the first x - 1 are cut into words of ℓ ones and one shorter word. The last one begins a
  word with up to ℓ - 1 symbols of the next run, whose others are words by themselves.
- No encoding is shorter. Symbols 0 and 2 are in a longer word only behind the last one of a run, and with
  that one taken away the others need at least ⌈(x - 1) / ℓ⌉ words.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from scipy.special import entr

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured
from mechmarkov.sources import Chain, Switch
from mechmarkov.sources.tokens.symbol_chain import symbol_chain
from mechmarkov.theory import token_law, transducer
from mechmarkov.theory.transducer import Word

DELTAS = (0.3, 0.1, 0.04, 0.02)
FACTOR = 1.273  # of the entropy rate, theorem E.2
ROUNDS = (1, 2, 3, 4)  # r, where 1/δ - 1 = 2^r


def longest(delta: float) -> int:
    """The ℓ of section E.1, rounded up."""
    return int(np.ceil(1 + 2 * np.log(1 / delta) / delta))


def dictionary(length: int) -> list[Word]:
    """The words 10…0, 11…1 and 12…2 of up to ℓ symbols, and the symbols 0 and 2."""
    words = {(1, *(symbol,) * n) for symbol in (0, 1, 2) for n in range(length)}
    return sorted(words | {(0,), (2,)})


def three_symbols(delta: float) -> Chain:
    """The source of figure 10."""
    stay = 1 - delta
    return Chain(P=[[stay, delta, 0], [delta / 2, stay, delta / 2], [0, delta, stay]])


def often(delta: float, length: int) -> Float[np.ndarray, " word"]:
    """The mean count of each word of a minimal encoder, in a run of ones and the run behind it."""
    stay, n = 1 - delta, np.arange(length)
    ones = delta * stay**n / (1 - stay**length)  # words of n ones
    ones[0] = stay**length / (1 - stay**length)  # in place of none: words of ℓ ones
    behind_one = np.where(n < length - 1, delta * stay ** (n - 1.0), stay ** (n - 1.0))[1:]
    single = stay ** (length - 1) / delta
    return np.concatenate([ones, behind_one / 2, behind_one / 2, [single / 2, single / 2]])


def minimal_loss(delta: float, length: int) -> float:
    """The loss of the best unigram under a minimal encoder (nats a symbol), in closed form."""
    count = often(delta, length)
    return float(count.sum() * entr(count / count.sum()).sum() * delta / 2)


def greedy_loss(delta: float, length: int) -> float:
    """That under the greedy encoder, by one linear solve."""
    words = transducer.greedy(dictionary(length), 3)
    return token_law.unigram(symbol_chain(three_symbols(delta)), words).loss_per_symbol


def typical_text(rounds: int, blocks: int = 6) -> list[int]:
    """The text of equation (15): 1/δ pairs 01, then 1/δ pairs 10, again and again."""
    pairs = 2**rounds + 1
    return ([0, 1] * pairs + [1, 0] * pairs) * blocks


def merged(text: Sequence[int], n_merges: int) -> list[tuple[int, int]]:
    """Byte pairs of a text: the most frequent pair of tokens is merged, the first that is met of several."""
    tokens, merges = list(text), list[tuple[int, int]]()
    while len(merges) < n_merges and len(tokens) > 1:
        pair, _ = Counter(pairwise(tokens)).most_common(1)[0]
        tokens = joined(tokens, pair, 2 + len(merges))
        merges.append(pair)
    return merges


def joined(tokens: Sequence[int], pair: tuple[int, int], new: int) -> list[int]:
    """Tokens in which a pair that meets, from the left, is a new token."""
    found, i = list[int](), 0
    while i < len(tokens):
        meets = tuple(tokens[i : i + 2]) == pair
        found.append(new if meets else tokens[i])
        i += 1 + meets
    return found


def trained_on_it(rounds: int) -> tuple[float, float]:
    """The loss of the unigram of these byte pairs on new sequences, and the entropy rate (nats a symbol)."""
    delta = 1 / (2**rounds + 1)
    chain = Switch(p=delta, q=delta, lag=2)
    words = transducer.merges(merged(typical_text(rounds), rounds + 4), 2)
    return token_law.unigram(symbol_chain(chain), words).loss_per_symbol, float(chain.entropy_rate)


@exactly
def encoders(quick: bool) -> Measured:
    """Theorem E.2 under both encoders, and byte pairs of the text of equation (15)."""
    deltas, rounds = (DELTAS[:2], ROUNDS[:2]) if quick else (DELTAS, ROUNDS)
    lengths = [longest(delta) for delta in deltas]
    rates = [float(three_symbols(delta).entropy_rate) for delta in deltas]
    minimal = [minimal_loss(d, n) / rate for d, n, rate in zip(deltas, lengths, rates, strict=True)]
    greedy = [greedy_loss(d, n) for d, n in zip(deltas, lengths, strict=True)]
    floors = [(1 - d) ** 2 / (3 * (1 + d)) * np.log(8) / 2 for d in deltas]
    sizes = [(len(dictionary(n)), 2 * n + 1, 3 * n) for n in lengths]
    bpe = [trained_on_it(r) for r in rounds]
    at = "δ of " + ", ".join(f"{d:g}" for d in deltas)
    times = [loss / rate for loss, rate in bpe]
    return Measured(
        [
            Finding(
                "minimal_encoder",
                "loss over the entropy rate: " + ", ".join(f"{x:.3f}" for x in minimal),
                holds(max(minimal) <= FACTOR),
                f"the source of figure 10, {at}",
                "computed exactly",
                number=f"{max(minimal):.3f} times the rate at most",
            ),
            Finding(
                "greedy_encoder",
                "loss: "
                + ", ".join(f"{x:.3f} (bound {low:.3f})" for x, low in zip(greedy, floors, strict=True))
                + f"; H(π) is {np.log(8) / 2:.3f}; over the rate "
                + ", ".join(f"{x / rate:.2f}" for x, rate in zip(greedy, rates, strict=True)),
                holds(all(x >= low for x, low in zip(greedy, floors, strict=True))),
                f"the source of figure 10, {at}",
                "computed exactly",
                number=f"{greedy[-1]:.3f} nats at δ = {deltas[-1]:g}, bound {floors[-1]:.3f}",
            ),
            Finding(
                "dictionary_size",
                "; ".join(f"{size} words, printed at most {printed}" for size, printed, _ in sizes),
                holds(False, corrected=all(size == right for size, _, right in sizes)),
                f"{at}; ℓ = {', '.join(map(str, lengths))}",
                "computed exactly",
                number="3ℓ words",
            ),
            Finding(
                "typical_text",
                "loss over the entropy rate: "
                + ", ".join(
                    f"{x:.2f} at δ = 1/{2**r + 1} ({loss:.3f} nats)"
                    for x, r, (loss, _) in zip(times, rounds, bpe, strict=True)
                ),
                holds(bool(np.all(np.diff(times) > 0)) and min(loss for loss, _ in bpe) > 0.1),
                "switching chain of order 2; byte pairs of the text of equation (15), r + 4 merges",
                "computed exactly",
                number=f"{times[-1]:.2f} times the rate at δ = 1/{2 ** rounds[-1] + 1}",
            ),
        ]
    )
