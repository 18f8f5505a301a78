"""One layer trained on symbols and on tokens of the same chain: orders 1 to 4, up to 1024 words."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool, Float, Int
from scipy.special import rel_entr
from torch import Tensor

import mechmarkov as mm
from experiments.claims import of_seeds
from experiments.figures import ranges, style, titled
from experiments.harness import Measured, evaluation, over_seeds, predictions, trained
from experiments.sampling_error import over_sequences
from experiments.tokenised.laws import P, source, text
from mechmarkov.sources import Tokenised
from mechmarkov.sources.tokens.dictionaries import lzw
from mechmarkov.sources.tokens.tokenisers import Greedy, Merges, Strings

SEQUENCES = 128
STEPS = 600
BLOCK = 4  # symbols: 16 tokens
ENOUGH = 16  # words of a dictionary that the claim is asked of
MOST = 64  # words, beyond which a dictionary is large for contexts of 32 tokens

Losses = Float[np.ndarray, "seed 2"]  # of a model, and of the unigram of what it reads


def dictionary(lag: int, size: int) -> Greedy:
    """LZW's first words of one text of a chain."""
    return lzw(text(lag, 0, max(2_000, 20 * size + 200)), 2, size)


@dataclass(frozen=True, eq=False)
class Known:
    """Sequences that no model was trained on, and what is exact on them: probabilities of what is read."""

    tokens: Int[Tensor, "batch position"]
    best: Float[np.ndarray, "batch position token"]
    unigram: Float[np.ndarray, "batch position token"]


def known(source: mm.sources.Source, length: int) -> Known:
    """The evaluation sequences of a source, with its best predictor and its unigram."""
    tokens = evaluation(source, SEQUENCES, length)
    best, unigram = source.best(), source.predictors()["unigram"]
    return Known(tokens, best.probabilities(tokens.numpy()), unigram.probabilities(tokens.numpy()))


def losses(lag: int, tokeniser: Greedy | Merges | Strings | None, seeds: range) -> Losses:
    """Train models, and return their `excess`, a row a seed."""
    read = source(lag) if tokeniser is None else Tokenised(source=source(lag), tokeniser=tokeniser)
    base = mm.load_recipe("tokens-lzw").with_set([f"steps={STEPS}", "checkpoints=[0]", "data.batch=32"])
    (runs,) = trained([base.replace(source=read.model_dump())], seeds)
    exact = known(runs[0].source, runs[0].config.n_ctx)
    return np.array([excess(run, exact) for run in runs])


def excess(run: mm.Run, exact: Known) -> tuple[float, float]:
    """Returns what a model and the unigram of its tokens lose to the best one (nats a source symbol)."""
    model, each = predictions(run, exact.tokens)[-1], getattr(run.source, "symbols_per_token", 1.0)
    lost = [over_sequences(rel_entr(exact.best, q).sum(-1)) / each for q in (model, exact.unigram)]
    return float(lost[0]), float(lost[1])


def training(quick: bool) -> Measured:
    """Symbols against tokens, and how many words it takes; each row counts seeds."""
    seeds = range(2 if quick else 16)
    lags, sizes = ((2, 4), (4, 16, 64)) if quick else ((1, 2, 3, 4), (4, 16, 64, 256, 1024))
    symbols = {lag: losses(lag, None, seeds) for lag in lags}
    words = {(lag, size): losses(lag, dictionary(lag, size), seeds) for lag in lags for size in sizes}
    blocks = {lag: losses(lag, Strings(length=BLOCK), seeds) for lag in lags}
    setting = (
        f"switching chain with probability {P:g}; one layer of two heads, width 32, an MLP of 64, contexts "
        f"of 32 symbols or tokens, {STEPS} steps of AdamW on 32 sequences"
    )
    of_words = f"{setting}; tokens are LZW's first words of one text, {sizes[0]} to {sizes[-1]} of them"
    orders = f"orders {lags[0]} to {lags[-1]}"

    def passes(lag: int, tokens: Losses) -> Bool[np.ndarray, " seed"]:
        return tokens[:, 0] < symbols[lag][:, 1] / 2

    def every(hits: Iterable[Bool[np.ndarray, " seed"]]) -> Bool[np.ndarray, " seed"]:
        return np.all(list(hits), axis=0)

    findings = []
    for lag in lags:
        case, lost, unigram = f"order {lag}", symbols[lag][:, 0], symbols[lag][0, 1]
        if lag > 1:  # the claim is about chains of higher order
            text_of = f"nearer the unigram of symbols than the best; lost {over_seeds(lost)} of the unigram's"
            stuck = lost > symbols[lag][:, 1] / 2
            findings.append(of_seeds("symbols_fail", stuck, f"{text_of} {unigram:.3f}", setting, case=case))
        each = [f"{over_seeds(words[lag, size][:, 0])} with {size} words" for size in sizes]
        findings += [
            of_seeds(
                "tokens_pass",
                every(passes(lag, words[lag, size]) for size in sizes if size >= ENOUGH),
                f"with {ENOUGH} words or more nearer the best than the unigram of symbols, {unigram:.3f} "
                f"nats off; lost {', '.join(each)}",
                of_words,
                case=case,
            ),
            of_seeds("four_words_pass", passes(lag, words[lag, 4]), f"lost {each[0]}", of_words, case=case),
            of_seeds(
                "more_words_learned",
                words[lag, 64][:, 0] < words[lag, 16][:, 0],
                f"lost {', '.join(each[1:3])}",
                of_words,
                case=case,
            ),
        ]
    findings += [
        of_seeds(
            "tokens_pass",
            every(passes(lag, blocks[lag]) for lag in lags),
            "nearer the best than the unigram of symbols at each order; lost at order "
            + ", ".join(f"{lag}: {over_seeds(blocks[lag][:, 0])}" for lag in lags),
            f"{setting}; tokens are all strings of {BLOCK} symbols; {orders}",
            case="all strings of a length",
        ),
        of_seeds(
            "beyond_token_unigram",
            every(lost[:, 0] < lost[:, 1] / 2 for lost in words.values()),
            "nearer the best than the unigram of tokens, with each dictionary at each order",
            f"{of_words}; {orders}",
        ),
    ]
    if (most := sizes[-1]) > MOST:
        lost = [np.median([words[lag, size][:, 0] for lag in lags]) for size in (MOST, most)]
        findings.append(
            of_seeds(
                "many_words_cost",
                every(words[lag, most][:, 0] > words[lag, MOST][:, 0] for lag in lags),
                f"at each order; median lost {lost[0]:.2g} with {MOST} words, {lost[1]:.2g} with {most}",
                f"{of_words}; {orders}",
            )
        )
    figure = go.Figure()
    for i, lag in enumerate(lags):
        at = [symbols[lag][:, 0], *(words[lag, size][:, 0] for size in sizes)]
        figure.add_scatter(
            x=[2, *sizes], name=f"order {lag}", mode="lines+markers", line=style(i), **ranges(at)
        )
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    titled(figure, "Loss above the best possible", "words (2: symbols)", "nats a source symbol")
    return Measured(findings, {"training": figure})
