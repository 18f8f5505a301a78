"""One layer trained on symbols and on tokens of the same chain, of orders 1 to 4."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from scipy.special import rel_entr

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import ranges, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.sampling_error import over_sequences
from experiments.tokenised.laws import P, source, text
from mechmarkov.sources import Tokenised
from mechmarkov.sources.tokens.dictionaries import lzw

WORDS = 16
SEQUENCES = 128
TEXT = 125  # symbols a word of the text that the words are read from


def recipe(lag: int, words: int, steps: int) -> mm.Recipe:
    """One shape of model, on so many of LZW's words of the chain, or on its two symbols."""
    base = mm.load_recipe("tokens-lzw").with_set([f"steps={steps}", "checkpoints=[0]", "data.batch=32"])
    if words == 2:
        return base.replace(source=source(lag).model_dump())
    tokens = Tokenised(source=source(lag), tokeniser=lzw(text(lag, 0, TEXT * words), 2, words))
    return base.replace(source=tokens.model_dump())


def excess(run: mm.Run) -> tuple[float, float]:
    """What a model, and the unigram of what it reads, lose to the best prediction (nats a source symbol)."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    laws, model = exact(run.source, tokens), predictions(run, tokens)[-1]
    best, each = laws[run.source.best().name], getattr(run.source, "symbols_per_token", 1.0)
    lost = [over_sequences(rel_entr(best, q).sum(-1)) / each for q in (model, laws["unigram"])]
    return float(lost[0]), float(lost[1])


def training(quick: bool) -> Measured:
    """Symbols against tokens by order and number of words, and which rule the models of tokens reach."""
    seeds, steps = range(2 if quick else 16), 600
    orders, sizes = ((2, 4), (2, WORDS)) if quick else ((1, 2, 3, 4), (2, WORDS, 64, 256))
    lost = {}
    for order in orders:
        for words in sizes:
            (runs,) = trained([recipe(order, words, steps)], seeds)
            lost[order, words] = np.array([excess(run) for run in runs])
    figure = go.Figure()
    for words in sizes:
        values = [lost[order, words][:, 0] for order in orders]
        name = "on symbols" if words == 2 else f"on {words} tokens"
        at = [f"order {order}" for order in orders]
        figure.add_scatter(x=at, name=name, mode="markers", **ranges(values))
    titled(figure, "Loss above the best possible", None, "nats a source symbol")
    setting = (
        f"switching chain with probability {P:g}; one layer of two heads, width 32, an MLP of 64, contexts "
        f"of 32 symbols or tokens, {steps} steps of AdamW on 32 sequences; tokens are LZW's first "
    )
    findings = [found for order in orders[-3:] for found in _of_order(order, lost, f"{setting}{WORDS} words")]
    if not quick:
        findings.append(_of_sizes(orders, sizes, lost, f"{setting}words of one text, 16, 64 or 256"))
    return Measured(findings, {"training": figure})


def _of_order(order: int, lost: dict[tuple[int, int], np.ndarray], setting: str) -> list[Finding]:
    """Whether models of symbols stay near the unigram, and models of 16 tokens come near the best."""
    symbols, tokens = lost[order, 2], lost[order, WORDS]
    n, stuck = len(symbols), int((symbols[:, 0] > symbols[:, 1] / 2).sum())
    near = int((tokens[:, 0] < symbols[:, 1] / 2).sum())
    of_case = {"evidence": "trained at another", "case": f"order {order}"}
    return [
        Finding(
            "symbols_fail",
            f"{share(stuck, n)} seeds nearer the unigram of symbols than the best; lost "
            f"{over_seeds(symbols[:, 0])} of the unigram's {symbols[0, 1]:.3f} nats a symbol",
            holds(stuck == n),
            f"{setting} of one text",
            count=(stuck, n),
            **of_case,
        ),
        Finding(
            "tokens_pass",
            f"{share(near, n)} seeds nearer the best than the unigram of symbols; lost "
            f"{over_seeds(tokens[:, 0])}, the unigram of tokens {tokens[0, 1]:.3f}",
            holds(near == n),
            f"{setting} of one text",
            count=(near, n),
            **of_case,
        ),
    ]


def _of_sizes(
    orders: Sequence[int], sizes: Sequence[int], lost: dict[tuple[int, int], np.ndarray], setting: str
) -> Finding:
    """Whether models of the most words lose less above their best than those of 16, seed by seed."""
    less = sum(int((lost[o, sizes[-1]][:, 0] < lost[o, WORDS][:, 0]).sum()) for o in orders)
    n = sum(len(lost[order, WORDS]) for order in orders)
    each = [
        f"order {order}: " + ", ".join(over_seeds(lost[order, words][:, 0]) for words in sizes[1:])
        for order in orders
    ]
    return Finding(
        "more_words_in_training",
        f"{share(less, n)} seeds lose less with {sizes[-1]} words than with {WORDS}; "
        f"lost with {', '.join(map(str, sizes[1:]))} words, {'; '.join(each)}",
        holds(less == n),
        setting,
        "trained at another",
        count=(less, n),
    )
