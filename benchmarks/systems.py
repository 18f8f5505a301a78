"""The two pictures of `docs/systems.md` that no study draws, and what they show in numbers.

python -m benchmarks.systems        # a minute of processor time
"""

import tomllib
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import torch

import mechmarkov as mm
from experiments.figures import REFERENCE, marker, ranges, titled
from experiments.picture import draw
from mechmarkov.theory.kernel import kl
from mechmarkov.training.new_recipe import new_recipe

DOCS = Path(__file__).parents[1] / "docs"
SEEDS = range(16)
SEQUENCES = 256
TOKENS = 3000
SIZE = {"width": 640, "height": 420}


def any_chain() -> go.Figure:
    """What 16 models of `mechmarkov recipe new --source chain` predict after each state, against P."""
    recipe = mm.Recipe.from_data(tomllib.loads(new_recipe("chain", width=16, context=16, steps=400)))
    runs = mm.train(recipe.replace(checkpoints={"at": [0, 400]}), seeds=SEEDS, progress=False)
    P, found, nats = mm.Chain(**recipe.source.model_dump(exclude={"kind"})).P, [], []
    for run in runs:
        subject = mm.Subject.of(run, steps=[0, 400], sequences=SEQUENCES)
        parents = subject.batch.parents.numpy()
        rows = [[p[parents == state].mean(0) for state in range(len(P))] for p in subject.probabilities]
        found.append(np.array(rows))
        nats.append([kl(subject.exact["bigram"], p).mean() for p in subject.probabilities])
    predicted, away = np.stack(found), np.array(nats)  # [seed, step, from, to], [seed, step]
    names = [f"{i}→{j}" for i in range(len(P)) for j in range(len(P))]
    figure = go.Figure(go.Bar(x=names, y=P.ravel(), name="P", marker_color="#c9d3dc"))
    for i, step in enumerate(("untrained", "after 400 steps")):
        groups = predicted[:, i].reshape(len(runs), -1).T
        figure.add_scatter(
            x=names, name=step, mode="markers", marker=marker(i), **ranges([*map(list, groups)])
        )
    for step, one in zip(("untrained", "trained"), away.T, strict=True):
        print(f"any chain, {step}: {one.mean():.2g} [{one.min():.2g}, {one.max():.2g}] nats from the bigram")
    title = "What 16 models predict after each state (mean and range over seeds)"
    return titled(figure, title, "from → to", "probability", **SIZE)


def sequences() -> go.Figure:
    """Estimates of a known chain from 3 000 of its tokens, with their intervals."""
    P = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    tokens = mm.Chain(P.tolist()).sample(1, TOKENS, generator=torch.Generator().manual_seed(0))[0]
    source = mm.Observed(tokens.tolist(), order=1)
    low, high = source.kernel_interval()
    inside = ((low <= P) & (high >= P)).sum()
    print(f"somebody's sequences: {inside} of {P.size} entries are inside their 95 % interval")
    figure = go.Figure()
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=REFERENCE, showlegend=False)
    estimate = source.P.ravel()
    figure.add_scatter(
        x=P.ravel(),
        y=estimate,
        mode="markers",
        marker=marker(0),
        showlegend=False,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": high.ravel() - estimate,
            "arrayminus": estimate - low.ravel(),
        },
    )
    title = "Entries of P, estimated from 3 000 tokens (95 % intervals)"
    return titled(figure, title, "the entry", "its estimate", **SIZE)


if __name__ == "__main__":
    for name, made in {"any-chain": any_chain, "sequences": sequences}.items():
        draw(made(), DOCS / f"{name}.svg")
