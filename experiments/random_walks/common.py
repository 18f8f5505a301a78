"""What the measurements share: rows of the table, V and accuracy of a run, the look of figures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import torch

import mechmarkov as mm
from experiments.claims import Claim, Verdict, wilson

RECIPES = Path(__file__).parent / "recipes"
PAPER = "Shi & Cao 2025"
FIGURES = {"walk-k6": "figures 4 and 5 (K=6, N=97)", "walk-k20": "figures 8 and 9 (K=20, N=101)"}
EVALUATION_SEED = 2_000_000_000  # a CPU generator keeps 32 bits; training seeds are small
FLOAT64 = "model.dtype='float64'"
POPULATION = "data={population=true}"
COLOURS = ["#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499", "#999933", "#DDCC77", "#661100"]
DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"]
MARKERS = ["circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon"]


def row(
    name: str, text: str, source: str, paper: str, measured: str, verdict: Verdict | bool, how: str
) -> Claim:
    """A row of the table, with the command that measures it again."""
    decided: Verdict = verdict if isinstance(verdict, str) else "holds" if verdict else "does not hold"
    command = f"python -m experiments.random_walks --only {name}"
    return Claim(name, text, source, paper, measured, decided, how, command)


def value_matrix(run: mm.Run, step: int) -> np.ndarray:
    """The paper's `V[y, x]` at a training step, float64."""
    n = run.source.n_states
    index = run.steps.tolist().index(step)
    W_O = run.states["blocks.0.attn.W_O"]
    return W_O[min(index, len(W_O) - 1), 0, :n, :n].double().numpy().T


def fresh_accuracy(run: mm.Run, step: int, sequences: int) -> tuple[float, float, float]:
    """Accuracy on fresh sequences with its Wilson interval; ties go to the lowest state."""
    decoder, hits = run.decoder(step), 0
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    for _ in range(sequences // 1000):
        states = run.source.sample(1000, run.model.n_ctx, generator=generator)
        query = torch.full((1000, 1), run.source.n_states)
        with torch.no_grad():
            scores = decoder(torch.cat([states[:, :-1], query], dim=1))[:, -1]
        hits += int((scores.argmax(-1) == states[:, -1]).sum())
    return wilson(hits, sequences)


def attention(run: mm.Run, step: int) -> np.ndarray:
    """Attention of the query, `[sequence, lag]`, lag 1 (the parent) first, on one walk from each state."""
    K, length = run.source.n_states, run.model.n_ctx
    states = run.source.sample(16 * K, length, generator=torch.Generator().manual_seed(EVALUATION_SEED))
    first = [int((states[:, 0] == k).nonzero()[0]) for k in range(K) if (states[:, 0] == k).any()]
    tokens = torch.cat([states[first, :-1], torch.full((len(first), 1), K)], 1)
    _, cache = run.decoder(step).run_with_cache(tokens, names_filter="blocks.0.attn.hook_pattern")
    pattern = cache["blocks.0.attn.hook_pattern"][:, 0, -1, :-1]
    return pattern.double().numpy()[:, ::-1]


def first_time(values: torch.Tensor | np.ndarray, level: float) -> int | None:
    """The first step from which a curve stays at or above a level; None if it ends below."""
    below = np.flatnonzero(np.asarray(values) < level)
    start = int(below[-1]) + 1 if len(below) else 0
    return start if start < len(values) else None


def style(index: int) -> dict[str, object]:
    """Colour and dash of the lines of one series."""
    return {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)], "width": 2}


def titled(figure: go.Figure, title: str, x: str, y: str, **axes: object) -> go.Figure:
    """A figure with its subject and its axes named."""
    figure.update_layout(title=title, template="plotly_white", margin={"t": 60, "b": 50}, **axes)
    return figure.update_xaxes(title=x).update_yaxes(title=y)


def thin(steps: int, points: int = 150) -> list[int]:
    """At most so many steps, the first and the last among them."""
    return sorted({round(s) for s in np.linspace(0, steps, min(points, steps + 1))})


def counted(values: Sequence[int | None]) -> str:
    """Steps at which seeds got there: `12, 15, never`."""
    return ", ".join("never" if value is None else str(value) for value in values)
