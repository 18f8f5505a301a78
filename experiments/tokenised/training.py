"""One layer trained on symbols and on tokens of the same chain, of order 2 and of order 4."""

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


def recipes(lag: int, steps: int) -> dict[str, mm.Recipe]:
    """One shape of model, on symbols of the chain and on tokens of them."""
    tokens = Tokenised(source=source(lag), tokeniser=lzw(text(lag, 0, 2_000), 2, WORDS))
    base = mm.load_recipe("tokens-lzw").with_set([f"steps={steps}", "checkpoints=[0]", "data.batch=32"])
    return {
        "symbols": base.replace(source=source(lag).model_dump()),
        "tokens": base.replace(source=tokens.model_dump()),
    }


def excess(run: mm.Run) -> tuple[float, float]:
    """What a model, and the unigram of what it reads, lose to the best prediction (nats a source symbol)."""
    tokens = evaluation(run.source, SEQUENCES, run.config.n_ctx)
    laws, model = exact(run.source, tokens), predictions(run, tokens)[-1]
    best, each = laws[run.source.best().name], getattr(run.source, "symbols_per_token", 1.0)
    lost = [over_sequences(rel_entr(best, q).sum(-1)) / each for q in (model, laws["unigram"])]
    return float(lost[0]), float(lost[1])


def training(quick: bool) -> Measured:
    """Symbols against tokens, orders 2 and 4, and which rule the models of tokens reach."""
    seeds, steps = range(2 if quick else 16), 600
    lags, lost = (2, 4), {}
    for lag in lags:
        made = recipes(lag, steps)
        for name, recipe in made.items():
            (runs,) = trained([recipe], seeds)
            lost[lag, name] = np.array([excess(run) for run in runs])
    figure, n = go.Figure(), len(seeds)
    for name in ("symbols", "tokens"):
        values = [lost[lag, name][:, 0] for lag in lags]
        figure.add_scatter(
            x=[f"order {lag}" for lag in lags], name=f"on {name}", mode="markers", **ranges(values)
        )
    titled(figure, "Loss above the best possible", None, "nats a source symbol")
    setting = (
        f"switching chain with probability {P:g}; one layer of two heads, width 32, an MLP of 64, contexts "
        f"of 32 symbols or tokens, {steps} steps of AdamW on 32 sequences; tokens are LZW's first {WORDS} "
        "words of one text"
    )
    findings = []
    for lag in lags:
        symbols, tokens = lost[lag, "symbols"], lost[lag, "tokens"]
        stuck = int((symbols[:, 0] > symbols[:, 1] / 2).sum())
        near = int((tokens[:, 0] < symbols[:, 1] / 2).sum())
        findings += [
            Finding(
                "symbols_fail",
                f"{share(stuck, n)} seeds nearer the unigram of symbols than the best; lost "
                f"{over_seeds(symbols[:, 0])} of the unigram's {symbols[0, 1]:.3f} nats a symbol",
                holds(stuck == n),
                setting,
                "trained at another",
                case=f"order {lag}",
                count=(stuck, n),
            ),
            Finding(
                "tokens_pass",
                f"{share(near, n)} seeds nearer the best than the unigram of symbols; lost "
                f"{over_seeds(tokens[:, 0])}, the unigram of tokens {tokens[0, 1]:.3f}",
                holds(near == n),
                setting,
                "trained at another",
                case=f"order {lag}",
                count=(near, n),
            ),
        ]
    return Measured(findings, {"training": figure})
