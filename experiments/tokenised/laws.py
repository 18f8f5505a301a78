"""What a unigram over tokens loses on each symbol, exactly: blocks, LZW's words, byte pairs, one text."""

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import torch

from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import ranges, style, titled
from experiments.harness import Measured
from mechmarkov.sources import Switch
from mechmarkov.sources.tokens.dictionaries import every_bpe, lzw
from mechmarkov.sources.tokens.symbol_chain import symbol_chain
from mechmarkov.theory import token_law, transducer
from mechmarkov.theory.transducer import Transducer

P = 0.8  # of a switch; the entropy rate is .5004 nats a symbol, at every lag
CLOSE = 1e-9  # of a loss in nats
NEAR = 0.15  # of the entropy rate, above it


def source(lag: int) -> Switch:
    """The switching chain of an order."""
    return Switch(p=P, q=P, lag=lag)


def loss(lag: int, tokeniser: Transducer) -> float:
    """The loss of the unigram over tokens (nats a symbol), by one linear solve."""
    return token_law.unigram(symbol_chain(source(lag)), tokeniser).loss_per_symbol


@exactly
def blocks(quick: bool) -> Measured:
    """All strings of r symbols, orders 1 to 4."""
    longest = 8 if quick else 12
    rate, figure, wrong = source(1).entropy_rate, go.Figure(), 0.0
    for i, lag in enumerate((1, 2, 3, 4)):
        lengths = np.arange(lag, longest + 1)
        losses = np.array([loss(lag, transducer.strings(2, int(r))) for r in lengths])
        wrong = max(wrong, float(np.abs(losses - rate - lag * (np.log(2) - rate) / lengths).max()))
        figure.add_scatter(x=2**lengths, y=losses, name=f"order {lag}", mode="lines+markers", line=style(i))
    figure.add_hline(rate, line={"dash": "dot"})
    figure.update_xaxes(type="log")
    titled(figure, "A unigram over all strings of a length", "tokens", "loss (nats a symbol)")
    at_end = [rate + lag * (np.log(2) - rate) / longest for lag in (1, 4)]
    return Measured(
        [
            Finding(
                "near_optimal",
                f"loss - rate = k (log 2 - rate) / r to {wrong:.1g} nats, for orders k of 1 to 4 and blocks "
                f"of up to {longest} symbols: {at_end[0]:.4f} and {at_end[1]:.4f} of a rate of {rate:.4f}",
                holds(wrong < CLOSE),
                f"switching chain with probability {P:g}, all strings of r symbols, k ≤ r ≤ {longest}",
                "computed exactly",
                case="all strings of a length",
                number=f"excess k (log 2 - H) / r, to {wrong:.1g} nats",
            )
        ],
        {"blocks": figure},
    )


def text(lag: int, seed: int, length: int) -> list[int]:
    """A text of the chain that a dictionary is read from."""
    drawn = source(lag).sample(1, length, generator=torch.Generator().manual_seed(seed))
    return drawn[0].tolist()


def dictionaries(quick: bool) -> Measured:
    """LZW's first words of sampled texts, orders 1 to 4."""
    sizes = (16, 64, 256) if quick else (16, 64, 256, 1024, 4096)
    texts, rate, figure, near, worse = (4 if quick else 16), source(1).entropy_rate, go.Figure(), 0, 0
    losses = {}
    for i, lag in enumerate((1, 2, 3, 4)):
        for size in sizes:
            each = [text(lag, seed, 20 * size + 200) for seed in range(texts)]
            losses[lag, size] = [loss(lag, lzw(x, 2, size).transducer(2)) for x in each]
        near += sum(value < (1 + NEAR) * rate for value in losses[lag, sizes[-1]])
        worse += sum(value > np.log(2) for value in losses[lag, sizes[0]]) if lag > 2 else 0
        each_size = [losses[lag, size] for size in sizes]
        figure.add_scatter(
            x=sizes, name=f"order {lag}", mode="lines+markers", line=style(i), **ranges(each_size)
        )
    figure.add_hline(rate, line={"dash": "dot"})
    figure.update_xaxes(type="log")
    titled(figure, "A unigram over LZW's words of sampled texts", "tokens", "loss (nats a symbol)")
    falls = sum(
        losses[lag, a][seed] > losses[lag, b][seed]
        for lag in (1, 2, 3, 4)
        for a, b in pairwise(sizes)
        for seed in range(texts)
    )
    ends = [f"{np.mean(losses[lag, sizes[-1]]):.4f}" for lag in (1, 2, 3, 4)]
    steps = 4 * texts * (len(sizes) - 1)
    setting = f"switching chain with probability {P:g}, orders 1 to 4, {texts} texts each, LZW's first words"
    return Measured(
        [
            Finding(
                "near_optimal",
                f"at {sizes[-1]} words {share(near, 4 * texts)} dictionaries are within {NEAR:.0%} of the "
                f"rate; mean losses {', '.join(ends)}",
                holds(near == 4 * texts),
                setting,
                "sampled",
                case="LZW's words",
                count=(near, 4 * texts),
            ),
            Finding(
                "more_words_help",
                f"four times as many words lower the loss in {share(falls, steps)} steps",
                holds(falls == steps),
                f"{setting}, {', '.join(map(str, sizes))} of them",
                "sampled",
                count=(falls, steps),
            ),
            Finding(
                "few_words_hurt",
                f"with {sizes[0]} words {share(worse, 2 * texts)} lose more than log 2; mean losses "
                f"{np.mean(losses[3, sizes[0]]):.4f} and {np.mean(losses[4, sizes[0]]):.4f}",
                holds(worse > texts),
                f"orders 3 and 4, {texts} texts each, LZW's first {sizes[0]} words",
                "sampled",
                count=(worse, 2 * texts),
            ),
        ],
        {"dictionaries": figure},
    )


@exactly
def ties(quick: bool) -> Measured:
    """Byte pairs in law at order 2, where p = q: every list of merges that ties allow."""
    merges = 3 if quick else 4
    lists = [every_bpe(source(2), n) for n in range(1, merges + 1)]
    losses = [sorted(loss(2, each.transducer(2)) for each in some) for some in lists]
    firsts = len(lists[0])
    figure = go.Figure()
    for n, some in enumerate(losses, 1):
        figure.add_scatter(x=[n] * len(some), y=some, mode="markers", name=f"{n} merges", showlegend=False)
    figure.add_hline(float(np.log(2)), line={"dash": "dot"})
    titled(figure, "Byte pairs in law, every tie followed", "merges", "loss (nats a symbol)")
    return Measured(
        [
            Finding(
                "first_merge_ties",
                f"{firsts} pairs tie for the first merge, {len(lists[-1])} lists have {merges} merges; their "
                f"losses run from {losses[-1][0]:.4f} to {losses[-1][-1]:.4f}",
                holds(firsts == 4 and losses[-1][-1] - losses[-1][0] > CLOSE),
                f"switching chain of order 2 with probability {P:g}, pairs by their probability",
                "computed exactly",
                number=f"{firsts} of 4 pairs tie; losses {losses[-1][0]:.3f} to {losses[-1][-1]:.3f}",
            )
        ],
        {"ties": figure},
    )


@exactly
def one_text(quick: bool) -> Measured:
    """A dictionary whose one long word is its own text."""
    lengths = (8, 16, 32) if quick else (8, 16, 32, 64, 128)
    fresh = []
    for length in lengths:
        word = tuple(int(i % 5 > 1) for i in range(length))  # a text in which two of five symbols switch
        fresh.append(loss(1, transducer.greedy([(0,), (1,), word], 2)))
    figure = go.Figure()
    figure.add_scatter(x=lengths, y=fresh, name="on fresh texts", mode="lines+markers", line=style(0))
    figure.add_scatter(x=lengths, y=[0.0] * len(lengths), name="on its own text", mode="lines", line=style(1))
    titled(figure, "A dictionary that is its text", "length of the text", "loss (nats a symbol)")
    apart = float(np.log(2) - fresh[-1])
    return Measured(
        [
            Finding(
                "fits_one_text",
                f"0 nats on its own text of {lengths[-1]} symbols, which is one token; {fresh[-1]:.4f} on "
                f"fresh ones, {apart:.1g} below log 2",
                holds(abs(apart) < 1e-6),
                "switching chain of order 1; the dictionary is both symbols and the whole text",
                "computed exactly",
                number=f"0 on its text, {fresh[-1]:.4f} on others",
            )
        ],
        {"one_text": figure},
    )
