"""What of the model matters: which path holds the kernel, and depth."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.storage.measure import shares

import mechmarkov as mm
from experiments.claims import Finding, holds, wilson
from experiments.figures import fill, titled
from experiments.harness import Measured
from experiments.unigram_trap.fates import TIED, Fate, fates, share_bars, varied

PATHS = ("direct", "L0H0", "L0.mlp")
SLIGHT = 0.05  # of the whole: what a path may carry and be called negligible


def paths(quick: bool) -> Measured:
    """Which path holds the kernel in runs that have learned it."""
    seeds = 1 if quick else 4
    cells = {
        "untied (0.2, 0.3)": varied("binary-p02-q03-untied"),
        "untied (0.5, 0.8)": varied("binary-p05-q08-untied"),
        "tied (0.2, 0.3)": varied("binary-p02-q03-tied"),
        "tied (0.8, 0.8)": varied("binary-p08-q08-tied", "init.scheme='guideline'"),
    }
    if quick:
        cells = {name: cells[name] for name in ("untied (0.5, 0.8)", "tied (0.2, 0.3)")}
    ends = dict(zip(cells, fates(list(cells.values()), seeds), strict=True))
    learned = {name: _learned(name, end) for name, end in ends.items()}
    parts = {name: np.stack([_path_shares(run) for run in runs]) for name, runs in learned.items()}
    head = np.concatenate(list(parts.values()))[:, PATHS.index("L0H0")]
    told = "; ".join(
        f"{name}: "
        + ", ".join(f"{path} {value:.3f}" for path, value in zip(PATHS, part.mean(0), strict=True))
        for name, part in parts.items()
    )
    slight = float(np.abs(head).max()) < SLIGHT
    how = (
        f"runs that have learned the bigram, {seeds} seeds each, T = 64 (tied p + q > 1 from the 2024 "
        "guideline's start, or none would have); Shapley shares of what all paths together bring the model "
        "nearer to P"
    )
    return Measured(
        [
            Finding(
                "head_share",
                f"share of the head at most {np.abs(head).max():.4f} in size",
                holds(slight),
                how,
                "trained at another",
                (int((np.abs(head) < SLIGHT).sum()), len(head)),
            ),
            Finding(
                "home",
                told,
                holds(all(_explained(part) for part in parts.values())),
                f"direct and MLP together hold more than {1 - SLIGHT:g}; a negative share takes away. {how}",
                "trained at another",
                (sum(_explained(one[None]) for part in parts.values() for one in part), len(head)),
            ),
        ],
        {"paths": _path_figure(parts)},
    )


def _learned(name: str, end: Fate) -> list[mm.Run]:
    """The runs that have learned the kernel."""
    found = [run for run, excess in zip(end.runs, end.excess, strict=True) if excess < end.gap / 2]
    if not found:
        raise ValueError(f"no run of {name} has learned the kernel")
    return found


def _path_shares(run: mm.Run) -> Float[np.ndarray, " path"]:
    share = shares(mm.Subject.of(run, sequences=64))["share"][-1]
    return np.array([float(share.sel(path=path)) for path in PATHS])


def _explained(part: np.ndarray) -> bool:
    return bool((part[:, [PATHS.index("direct"), PATHS.index("L0.mlp")]].sum(1) > 1 - SLIGHT).all())


def _path_figure(parts: dict[str, np.ndarray]):
    figure = titled(
        go.Figure(),
        "Who holds the kernel in runs that have learned it",
        "weights and (p, q)",
        "share of the gain",
    )
    for number, path in enumerate(PATHS):
        figure.add_bar(
            x=list(parts),
            y=[float(part[:, number].mean()) for part in parts.values()],
            name={"direct": "embedding to unembedding", "L0H0": "attention", "L0.mlp": "MLP"}[path],
            marker=fill(number),
        )
    return figure.add_hline(y=0, line={"color": "grey"})


def depth(quick: bool) -> Measured:
    """Depth 1, 2, 4 and 8 on the tied chain with p + q > 1."""
    seeds = 2 if quick else 4
    layers = (1, 2) if quick else (1, 2, 4, 8)
    recipes = [varied(TIED, f"model.n_layers={n}", "model.n_ctx=32", "steps=500") for n in layers]
    ends = dict(zip(layers, fates(recipes, seeds), strict=True))
    shallow, deep = ends[1], [end for n, end in ends.items() if n > 1]
    hits, total = sum(end.stuck for end in deep), sum(end.n for end in deep)
    low, _, high = wilson(hits, total)
    apart = wilson(shallow.stuck, shallow.n)[0] > high
    most_escape = apart or hits / total < shallow.stuck / shallow.n / 2
    told = "; ".join(f"depth {n}: {end}" for n, end in ends.items())
    return Measured(
        [
            Finding(
                "depth_escapes",
                told,
                holds(hits == 0, corrected=most_escape),
                f"p = 0.5, q = 0.8, tied, {seeds} seeds, 500 steps as in the public code, T = 32 where it "
                f"has 512, no norm; deeper than one together: {hits}/{total} [{low:.2f}, {high:.2f}]",
                "trained at another",
                (total - hits, total),
            )
        ],
        {
            "depth": share_bars(
                "Depth and the unigram (p = 0.5, q = 0.8, tied)",
                "layers",
                {"tied": {str(n): end for n, end in ends.items()}},
            )
        },
    )
