"""Dictionaries learnt from texts: the paper's LZW, its sequential byte pairs, and a learnt unigram."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float

from experiments.claims import Finding, holds, share
from experiments.harness import Measured
from experiments.tokenised.encoders import joined
from experiments.tokenised.theorems import chain_of, encoded
from mechmarkov.sources.tokens.symbol_chain import symbol_chain
from mechmarkov.theory import token_law, transducer
from mechmarkov.theory.transducer import Word

CHAINS = ((0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.8, 0.8), (0.1, 0.3))
SIZES = (64, 256, 1024, 4096)  # d: symbols of the text that a dictionary is read from
CHUNKS = 96  # d of algorithm 1
TWICE = 2.0  # of the entropy rate, theorem B.2 for large d
FEW = 1024  # symbols that the unigram is learnt from
WORDS = (8, 32, 128, 512, 2048)  # d of the dictionaries that it is learnt for


def text(p: float, q: float, length: int, seed: int) -> list[int]:
    """A text of the switching chain of order 1."""
    drawn = chain_of(p, q).sample(1, length, generator=torch.Generator().manual_seed(seed))
    return drawn[0].tolist()


def parsed(symbols: Iterable[int]) -> list[Word]:
    """The words of definition 3.5, with both symbols: the shortest prefix that is not a word yet, cut off.

    Example:
        >>> parsed([0, 1, 0, 0, 1, 1, 1])
        [(0,), (1,), (0, 0), (1, 1)]
    """
    words: dict[Word, None] = {}
    read: Word = ()
    for symbol in symbols:
        read = (*read, symbol)
        if read not in words:
            words[read] = None
            read = ()
    return list(words | {(0,): None, (1,): None})


def sequential(symbols: Sequence[int], chunks: int) -> list[Word]:
    """The dictionary of algorithm 1: of each chunk the most frequent pair, if it is frequent enough."""
    words: list[Word] = [(0,), (1,)]
    merges: list[tuple[int, int]] = []
    length = len(symbols) // chunks
    for i in range(chunks):
        tokens = list(symbols[i * length : (i + 1) * length])
        for new, pair in enumerate(merges, 2):
            tokens = joined(tokens, pair, new)
        pair, often = Counter(pairwise(tokens)).most_common(1)[0] if len(tokens) > 1 else ((0, 0), 0)
        if often >= np.log(chunks):
            merges.append(pair)
            words.append(words[pair[0]] + words[pair[1]])
    return words


def learnt(quick: bool) -> Measured:
    """Theorems 3.6 and B.2, what their proof says of LZW, and the best size of a dictionary."""
    texts, sizes = (2, SIZES[:2]) if quick else (16, SIZES)
    each = [
        (size, encoded(p, q, transducer.greedy(parsed(text(p, q, size, seed)), 2)))
        for p, q in CHAINS
        for size in sizes
        for seed in range(texts)
    ]
    bounds = [
        (one.loss, one.rate / (1 - epsilon))
        for size, one in each
        if (epsilon := np.log(1 / one.delta) / (0.99 * np.log(size))) < 1
    ]
    within = sum(loss <= bound for loss, bound in bounds)
    long = [(size, one.cross / np.log(size)) for size, one in each]
    heavy = sum(share_ >= 0.99 for _, share_ in long)
    by_size = ", ".join(f"{np.median([x for size, x in long if size == d]):.3f} at {d}" for d in sizes)
    chains = ", ".join(f"({p:g}, {q:g})" for p, q in CHAINS)
    setting = f"chains (p, q) of {chains}, {texts} texts of {sizes[0]} to {sizes[-1]} symbols each"
    return Measured(
        [
            Finding(
                "lzw_bound",
                f"{share(within, len(bounds))} dictionaries; the loss is at most "
                f"{max(loss / bound for loss, bound in bounds):.3f} of the bound where ε < 1",
                holds(within == len(bounds)),
                setting,
                "sampled",
                count=(within, len(bounds)),
            ),
            Finding(
                "lzw_is_long",
                f"{share(heavy, len(long))} dictionaries; median H(Q_MLE, P) over log d {by_size}",
                holds(heavy == len(long)),
                setting,
                "sampled",
                count=(heavy, len(long)),
            ),
            *in_chunks(range(texts), 48 if quick else CHUNKS),
            *best_size(range(texts)),
        ]
    )


def in_chunks(seeds: range, chunks: int) -> list[Finding]:
    """The sequential byte pairs of texts of d² symbols, under the greedy encoder."""
    ratios, sizes = [], []
    for p, q in CHAINS:
        rate, T = float(chain_of(p, q).entropy_rate), symbol_chain(chain_of(p, q))
        for seed in seeds:
            words = sequential(text(p, q, chunks**2, seed), chunks)
            sizes.append(len(words))
            ratios.append(token_law.unigram(T, transducer.greedy(words, 2)).loss_per_symbol / rate)
    hits, n = sum(ratio <= TWICE for ratio in ratios), len(ratios)
    return [
        Finding(
            "sequential_bpe",
            f"{share(hits, n)} dictionaries; loss over the entropy rate {np.median(ratios):.3f} "
            f"[{min(ratios):.3f}, {max(ratios):.3f}], with {min(sizes)} to {max(sizes)} words",
            holds(hits == n),
            f"algorithm 1 with d = {chunks}, texts of {chunks**2} symbols, {len(seeds)} each of "
            f"{len(CHAINS)} chains; the greedy encoder, as d₀ is 2.3 words at ϵ = 0.1",
            "sampled",
            count=(hits, n),
        )
    ]


def best_size(seeds: range) -> list[Finding]:
    """A unigram with Laplace's estimator from few symbols, by the size of the dictionary."""
    losses = np.array([[learnt_loss(size, seed) for size in WORDS] for seed in seeds])
    best = losses.argmin(1)
    inside = int(((best > 0) & (best < len(WORDS) - 1)).sum())
    medians = ", ".join(f"{x:.3f} with d = {d}" for x, d in zip(np.median(losses, 0), WORDS, strict=True))
    return [
        Finding(
            "sweet_spot",
            f"{share(inside, len(seeds))} texts; median loss {medians}",
            holds(inside == len(seeds)),
            f"p = q = 0.2; LZW's words of a text of d symbols, the unigram from {FEW} others; the best d is "
            "neither the smallest nor the largest",
            "sampled",
            count=(inside, len(seeds)),
        )
    ]


def learnt_loss(size: int, seed: int) -> float:
    """The loss of a unigram that algorithm 2 learnt (nats a symbol), exact for the counts that it saw."""
    words = transducer.greedy(parsed(text(0.2, 0.2, size, seed)), 2)
    seen = words.encode(text(0.2, 0.2, FEW, 1000 + seed))
    counts: Float[np.ndarray, " token"] = np.bincount(seen, minlength=len(words.words)) + 1.0
    law = token_law.unigram(symbol_chain(chain_of(0.2, 0.2)), words)
    return float(-(law.law @ np.log(counts / counts.sum())) / law.symbols_per_token)
