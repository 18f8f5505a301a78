"""Models trained on byte pairs, found in law, as figures 2 and 3 of the paper have them.

With 30 merges a token chain has more than 8000 hidden states, so that byte pairs are few here.
"""

import numpy as np

from experiments.claims import Finding, of_seeds
from experiments.harness import Measured, over_seeds
from experiments.tokenised.laws import P, loss, source
from experiments.tokenised.training import STEPS, Losses, losses
from mechmarkov.sources.tokens.dictionaries import likeliest_pairs
from mechmarkov.sources.tokens.tokenisers import Merges, Text
from mechmarkov.theory import transducer

LAG = 2  # the order of `tokens-lzw`
SETTING = (
    f"switching chain with probability {P:g}; one layer of two heads, width 32, an MLP of 64, contexts of 32 "
    f"tokens, {STEPS} steps of AdamW on 32 sequences"
)


def pairs(lag: int, n_merges: int) -> Merges:
    """Byte pairs in law; of pairs that tie, the first in the alphabet of tokens is merged."""
    merges: tuple[tuple[Text, Text], ...] = ()
    for _ in range(n_merges):
        merges = (*merges, likeliest_pairs(source(lag), merges)[0])
    return Merges(merges=merges)


def symbols_lose(lag: int) -> float:
    """The loss of the unigram of symbols above the best (nats a symbol)."""
    return loss(lag, transducer.strings(2, 1)) - source(lag).entropy_rate


def byte_pairs(quick: bool) -> Measured:
    """Models of byte pairs: ten tokens as in figure 3b, and twenty as in figure 2."""
    seeds, lags = (range(2), (2,)) if quick else (range(16), (1, 2, 3, 4))
    findings = of_pairs(10, {lag: losses(lag, pairs(lag, 8), seeds) for lag in lags})
    if not quick:
        findings += of_pairs(20, {LAG: losses(LAG, pairs(LAG, 18), seeds)})
    return Measured(findings)


def of_pairs(size: int, found: dict[int, Losses]) -> list[Finding]:
    """Answers of models of byte pairs to the paper's two claims, at every order that was trained."""
    orders = f"order{'s' * (len(found) > 1)} {' to '.join(map(str, dict.fromkeys((min(found), max(found)))))}"
    setting = f"{SETTING}; {size} tokens, merges of the likeliest pair in law; {orders}"
    lost = ", ".join(f"{lag}: {over_seeds(each[:, 0])}" for lag, each in found.items())
    unigrams = ", ".join(f"{lag}: {each[0, 1]:.3g}" for lag, each in found.items())
    nearer = np.all([each[:, 0] < symbols_lose(lag) / 2 for lag, each in found.items()], axis=0)
    unigram = np.all([each[:, 0] > each[:, 1] / 2 for each in found.values()], axis=0)
    case = f"byte pairs, {size} tokens"
    return [
        of_seeds(
            "tokens_pass",
            nearer,
            f"nearer the best than the unigram of symbols; lost at order {lost}",
            setting,
            case=case,
        ),
        of_seeds(
            "essentially_unigram",
            unigram,
            f"nearer the unigram of tokens than the best, in nats a source symbol; lost at order {lost}, by "
            f"the unigram of tokens at order {unigrams}",
            setting,
            case=case,
        ),
    ]
