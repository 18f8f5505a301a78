"""What of the data matters: order two, windows, and byte-pair tokens."""

import numpy as np
import plotly.graph_objects as go

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import REFERENCE, marker, style, titled
from experiments.harness import Measured
from experiments.unigram_trap.fates import TIED, Fate, fates, share_bars, varied
from experiments.unigram_trap.landscape import criterion
from experiments.unigram_trap.tokens import Tokens, byte_pairs

ORDER_TWO = {"above": (0.5, 0.8), "below": (0.2, 0.3)}  # p + q against 1
WINDOWS = (1, 2, 4, 8)
TOKENS = "Rajaraman, Jiao & Ramchandran 2024 (arXiv 2404.08335)"


def order_two(quick: bool) -> Measured:
    """The second-order switch chain on both sides of p + q = 1: depth, tying, and the attention window."""
    seeds, steps = (2, 400) if quick else (4, 600)
    base = varied(TIED, f"steps={steps}", "model.n_ctx=32")
    shapes: dict[str, list[str]] = {
        "depth 1": [],
        "depth 1, untied": ["model.tied=false"],
        "depth 2": ["model.n_layers=2"],
    }
    shapes |= {f"window {window}": [f"model.window={window}"] for window in WINDOWS}
    chains = ORDER_TWO
    if quick:
        shapes = {name: shapes[name] for name in ("depth 1", "window 1")}
        chains = {"above": ORDER_TWO["above"]}
    cells = [(chain, shape) for chain in chains for shape in shapes]
    recipes = [
        base.with_set(shapes[shape]).with_values(
            {"source": {"kind": "switch", "p": chains[chain][0], "q": chains[chain][1], "lag": 2}}
        )
        for chain, shape in cells
    ]
    ends = dict(zip(cells, fates(recipes, seeds), strict=True))
    findings = []
    for chain, (p, q) in chains.items():
        own = {shape: end for (name, shape), end in ends.items() if name == chain}
        how = (
            f"switch chain ({p:g}, {q:g}), lag 2, no norm; {seeds} seeds, {steps} steps, T = 32; a window of "
            "w is the token and the w before it"
        )
        findings += _order_two_findings(own, f"p + q {'>' if p + q > 1 else '<'} 1", how)
    groups = {
        f"({p:g}, {q:g})": {shape: ends[chain, shape] for shape in shapes} for chain, (p, q) in chains.items()
    }
    title = "Second-order chains: depth and the attention window"
    return Measured(findings, {"order-two": share_bars(title, "model", groups)})


def _order_two_findings(ends: dict[str, Fate], case: str, how: str) -> list[Finding]:
    whole = {name: end for name, end in ends.items() if "window" not in name}
    short = {name: end for name, end in ends.items() if "window" in name}
    stuck, runs = sum(end.stuck for end in whole.values()), sum(end.n for end in whole.values())
    narrowest = short["window 1"]
    return [
        Finding(
            "order_two_depth",
            "; ".join(f"{name}: {end}" for name, end in whole.items()),
            holds(stuck == runs),
            how,
            "other setting",
            (stuck, runs),
            case,
        ),
        Finding(
            "order_two_window",
            "; ".join(f"{name}: {end}" for name, end in short.items()),
            holds(narrowest.stuck == 0),
            f"judged at window 1; {how}",
            "other setting",
            (narrowest.n - narrowest.stuck, narrowest.n),
            case,
        ),
    ]


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
    freed = Finding(
        "tokens_no_trap",
        "; ".join(f"{name}: gradient flow leaves at rate {kind.growth:.3f}" for name, kind in kinds.items()),
        holds(all(kind.growth > 0.01 for kind in kinds.values())),
        f"the criterion of many states at the chain of tokens, tied weights. {how}",
        "derivation",
    )
    unigram = {name: [found[name][size - 2].unigram() for size in sizes] for name in processes}
    rates = {name: process.entropy_rate for name, process in processes.items()}
    return Measured(
        [_learned(quick, processes, chains, how), freed, _worth(sizes, unigram, rates)],
        {"tokens": _figure(sizes, unigram, rates)},
    )


def _learned(
    quick: bool, processes: dict[str, mm.Binary | mm.Switch], chains: dict[str, Tokens], how: str
) -> Finding:
    """Runs on symbols and on tokens, tied and untied."""
    seeds, steps = (2, 300) if quick else (4, 400)
    names = ["order 2"] if quick else [*processes]
    base = varied(TIED, f"steps={steps}", "model.n_ctx=32")
    cells = [(name, unit, tied) for name in names for unit in ("symbols", "tokens") for tied in (False, True)]
    recipes = []
    for name, unit, tied in cells:
        source = processes[name] if unit == "symbols" else chains[name].source(1)
        recipes.append(base.with_values({"source": source.model_dump(mode="json"), "model.tied": tied}))
    told, near, learned, total = [], {True: True, False: True}, 0, 0
    for (name, unit, tied), end in zip(cells, fates(recipes, seeds), strict=True):
        told.append(f"{name}, {unit}, {'tied' if tied else 'untied'}: {end}")
        if unit == "tokens":
            rate = processes[name].entropy_rate
            lost = float(np.median(end.excess)) / chains[name].symbols + chains[name].entropy(1) - rate
            told[-1] += f", {lost:.4f} nats a symbol above the best"
            learned, total = learned + end.n - end.stuck, total + end.n
            near[tied] &= lost < NEAR * (processes[name].unigram_entropy - rate)
    return Finding(
        "tokens_learned",
        "; ".join(told),
        holds(all(near.values()), corrected=near[False]),
        f"one layer, {seeds} seeds, {steps} steps, T = 32; near: within a quarter of what lies between the "
        "symbols' unigram and the entropy rate, median over seeds. Merging turns a chain of order 2 into "
        "one of order 1, which needs no attention. It needs untied weights, though: a tied embedding has to "
        f"learn a table of tokens that is not symmetric, and from a saddle that is left slowly. {how}",
        "other setting",
        (learned, total),
    )


def _worth(sizes: tuple[int, ...], unigram: dict[str, list[float]], rates: dict[str, float]) -> Finding:
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
    return Finding(
        "token_unigram",
        told,
        holds(falls and near and steady, corrected=falls),
        "entropy of a token over its mean length, nats a symbol, by dictionary size, without a model. It "
        "falls, but not steadily: a merge makes tokens depend on each other that did not, and a unigram "
        f"over tokens is worse than one over symbols in {', '.join(worse) or 'no case here'}",
        "derivation",
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
