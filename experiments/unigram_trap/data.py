"""What of the data matters: order two, windows, and byte-pair tokens."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.figures import REFERENCE, marker, style, titled
from experiments.harness import Claim, Measured, holds, wilson
from experiments.unigram_trap.fates import PAPER, TIED, fates, share_bars, varied
from experiments.unigram_trap.landscape import criterion
from experiments.unigram_trap.tokens import Tokens, byte_pairs

SWITCH = {"kind": "switch", "p": 0.5, "q": 0.8, "lag": 2}
TOKENS = "Rajaraman, Jiao & Ramchandran 2024 (arXiv 2404.08335)"


def order_two(quick: bool) -> Measured:
    """The second-order switch chain by depth, with a short attention window, and untied."""
    seeds, steps = (2, 400) if quick else (4, 600)
    base = varied(TIED, f"steps={steps}", "model.n_ctx=32").with_values({"source": SWITCH})
    shapes: dict[str, list[str]] = {
        "depth 1": [],
        "depth 1, untied": ["model.tied=false"],
        "depth 2": ["model.n_layers=2"],
        "depth 4": ["model.n_layers=4"],
        "depth 1, window 1": ["model.window=1"],
    }
    if quick:
        shapes = {name: shapes[name] for name in ("depth 1", "depth 2", "depth 1, window 1")}
    ends = dict(
        zip(shapes, fates([base.with_set(changes) for changes in shapes.values()], seeds), strict=True)
    )
    whole = [end for name, end in ends.items() if "window" not in name]
    short = [end for name, end in ends.items() if "window" in name]
    how = (
        f"switch chain p = 0.5, q = 0.8, lag 2; {seeds} seeds, {steps} steps, T = 32; a window of 1 is the "
        "token and the one before it, which is all there is to know"
    )
    low, _, high = wilson(sum(e.stuck for e in short), sum(e.n for e in short))
    return Measured(
        [
            Claim(
                "On a second-order chain depth does not help: runs stay at the unigram",
                PAPER,
                "; ".join(f"{name}: {end}" for name, end in ends.items() if "window" not in name),
                holds(all(2 * end.stuck > end.n for end in whole)),
                how,
            ),
            Claim(
                "On a second-order chain a short attention window helps",
                PAPER,
                "; ".join(f"{name}: {end}" for name, end in ends.items() if "window" in name),
                holds(all(end.stuck == 0 for end in short)),
                f"{how}; together [{low:.2f}, {high:.2f}]",
            ),
        ],
        {
            "order-two": share_bars(
                "Second-order chain: depth and the attention window", "model", {"tied": ends}
            )
        },
    )


DICTIONARIES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
MERGED = 8  # tokens in the dictionary that models are trained with
NEAR = 0.25  # of what lies between the symbols' unigram and the entropy rate


def tokens(quick: bool) -> Measured:
    """Byte-pair tokens: what a unigram over them is worth, and whether runs still stop at it."""
    symbols = 200_000 if quick else 1_000_000
    sizes = DICTIONARIES[:5] if quick else DICTIONARIES
    processes: dict[str, mm.Binary | mm.Switch] = {
        "order 1": mm.Binary(p=0.8, q=0.8),
        "order 2": mm.Switch(p=0.8, q=0.8, lag=2),
    }
    found = {name: byte_pairs(process, max(sizes) - 2, symbols) for name, process in processes.items()}
    chains = {name: dictionaries[MERGED - 2] for name, dictionaries in found.items()}
    how = (
        f"p = q = 0.8; byte pairs merged on {symbols} symbols to {MERGED} tokens, whose first-order chain "
        "loses next to nothing "
        f"({', '.join(f'{name} {chain.entropy(1):.4f}' for name, chain in chains.items())} nats a symbol)"
    )
    kinds = {name: criterion(chain.source(1)) for name, chain in chains.items()}
    freed = Claim(
        "With byte-pair tokens the unigram is no local minimum any more",
        "derived",
        "; ".join(f"{name}: gradient flow leaves at rate {kind.growth:.3f}" for name, kind in kinds.items()),
        holds(all(kind.growth > 0.01 for kind in kinds.values())),
        f"the criterion of many states at the chain of tokens, tied weights. {how}",
    )
    unigram = {name: [found[name][size - 2].unigram() for size in sizes] for name in processes}
    rates = {name: process.entropy_rate for name, process in processes.items()}
    return Measured(
        [_learned(quick, processes, chains, how), freed, _worth(sizes, unigram, rates)],
        {"tokens": _figure(sizes, unigram, rates)},
    )


def _learned(
    quick: bool, processes: dict[str, mm.Binary | mm.Switch], chains: dict[str, Tokens], how: str
) -> Claim:
    """Runs on symbols and on tokens, tied and untied."""
    seeds, steps = (2, 300) if quick else (4, 400)
    names = ["order 2"] if quick else [*processes]
    base = varied(TIED, f"steps={steps}", "model.n_ctx=32")
    cells = [(name, unit, tied) for name in names for unit in ("symbols", "tokens") for tied in (False, True)]
    recipes = []
    for name, unit, tied in cells:
        source = processes[name] if unit == "symbols" else chains[name].source(1)
        recipes.append(base.with_values({"source": source.model_dump(mode="json"), "model.tied": tied}))
    told, near = [], {True: True, False: True}
    for (name, unit, tied), end in zip(cells, fates(recipes, seeds), strict=True):
        told.append(f"{name}, {unit}, {'tied' if tied else 'untied'}: {end}")
        if unit == "tokens":
            rate = processes[name].entropy_rate
            lost = float(np.median(end.excess)) / chains[name].symbols + chains[name].entropy(1) - rate
            told[-1] += f", {lost:.4f} nats a symbol above the best"
            near[tied] &= lost < NEAR * (processes[name].unigram_entropy - rate)
    return Claim(
        "With byte-pair tokens one-layer runs pass the unigram and come near the best loss",
        TOKENS,
        "; ".join(told),
        holds(all(near.values()), corrected=near[False]),
        f"one layer, {seeds} seeds, {steps} steps, T = 32; near: within a quarter of what lies between the "
        "symbols' unigram and the entropy rate, median over seeds. Merging turns a chain of order 2 into "
        "one of order 1, which needs no attention. It needs untied weights, though: a tied embedding has to "
        f"learn a table of tokens that is not symmetric, and from a saddle that is left slowly. {how}",
        paper="near-optimal loss",
    )


def _worth(sizes: tuple[int, ...], unigram: dict[str, list[float]], rates: dict[str, float]) -> Claim:
    """What the best unigram over tokens costs, by the size of the dictionary."""
    near = all(
        values[-1] - rates[name] < NEAR * (values[0] - rates[name]) for name, values in unigram.items()
    )
    steady = all((np.diff(values) < 0).all() for values in unigram.values())
    falls = all(values[-1] < values[0] for values in unigram.values())
    told = "; ".join(
        f"{name}: "
        + ", ".join(f"{size}: {value:.3f}" for size, value in zip(sizes, values, strict=True))
        + f", best {rates[name]:.3f}"
        for name, values in unigram.items()
    )
    worse = [
        f"{name} with {size}"
        for name, values in unigram.items()
        for size, value in zip(sizes, values, strict=True)
        if value > values[0]
    ]
    return Claim(
        "Over tokens even the unigram is near the best loss",
        TOKENS,
        told,
        holds(falls and near and steady, corrected=falls),
        "entropy of a token over its mean length, nats a symbol, by dictionary size, without a model. It "
        "falls, but not steadily: a merge makes tokens depend on each other that did not, and a unigram "
        f"over tokens is worse than one over symbols in {', '.join(worse) or 'no case here'}",
        paper="in the limit of large dictionaries",
    )


def _figure(sizes: tuple[int, ...], unigram: dict[str, list[float]], rates: dict[str, float]) -> go.Figure:
    figure = titled(
        go.Figure(),
        "What a unigram over byte-pair tokens is worth (p = q = 0.8)",
        "tokens in the dictionary",
        "nats a symbol",
    )
    for number, (name, values) in enumerate(unigram.items()):
        figure.add_scatter(
            x=sizes,
            y=values,
            name=f"unigram over tokens, {name}",
            mode="lines+markers",
            line=style(number),
            marker=marker(number),
        )
    figure.add_hline(y=next(iter(rates.values())), line=REFERENCE, annotation_text="entropy rate")
    return figure.update_xaxes(type="log", tickvals=sizes)
