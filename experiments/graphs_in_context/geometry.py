"""How the nodes of a sequence's graph lie in the stream: principal components against the Laplacian."""

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from plotly.subplots import make_subplots

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import fill, marker, titled
from experiments.graphs_in_context.walks import runs_of
from experiments.harness import EVALUATION_SEED, Measured, over_seeds
from mechmarkov.interventions.belief import streams

SEQUENCES = 1000
HALF = 12  # positions of each half


def nodes(
    run: mm.Run, step: int, layer: int, window: slice
) -> tuple[Float[np.ndarray, "sequence node d_model"], Int[np.ndarray, "sequence node"]]:
    """The stream at each node of each sequence's graph, without what its token has in all sequences.

    Args:
        run: A run on a relabelled graph.
        step: Which of its models.
        layer: After which block.
        window: Positions that are averaged; sequences that do not visit all nodes there are left out.

    Returns:
        The means, and each node's token: nodes in the order of the source's graph.
    """
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    tokens, which = run.source.sample_with_hidden(SEQUENCES, run.config.n_ctx, generator=generator)
    stream = streams(run.model(step), tokens)[layer][:, window]
    there = np.eye(run.source.n_states)[tokens.numpy()[:, window]]  # [sequence, position, token]
    seen = there.sum(1).min(1) > 0
    summed = np.einsum("bpt,bpd->btd", there, stream)[seen]
    of_token = summed / there.sum(1)[seen][..., None]
    of_token -= of_token.mean(0)
    names = run.source.relabelled[which.numpy()[seen]]
    return np.take_along_axis(of_token, names[..., None], 1), names


def energies(
    at: Float[np.ndarray, "sequence node d_model"], W: Float[np.ndarray, "node node"]
) -> Float[np.ndarray, " sequence"]:
    """Mean squared distance over edges by that over all pairs of nodes; 1 on average if names say nothing.

    Example:
        >>> line = np.array([[[0.0], [1.0], [2.0]]])
        >>> energies(line, np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
        array([0.5])
    """
    distance = ((at[:, :, None] - at[:, None]) ** 2).sum(-1)
    edges, pairs = W > 0, ~np.eye(len(W), dtype=bool)
    return np.asarray(distance[:, edges].mean(1) / distance[:, pairs].mean(1))


def overlaps(
    at: Float[np.ndarray, "sequence node d_model"], low: Float[np.ndarray, "node two"]
) -> Float[np.ndarray, " sequence"]:
    """Mean squared cosine between two principal components over nodes and two low modes of the Laplacian."""
    centred = at - at.mean(1, keepdims=True)
    left = np.linalg.svd(centred, full_matrices=False)[0][..., :2]
    return np.asarray(((left.swapaxes(1, 2) @ low) ** 2).sum((1, 2)) / 2)


def low_modes(W: Float[np.ndarray, "node node"]) -> Float[np.ndarray, "node two"]:
    """The two eigenvectors of the graph's Laplacian after the constant one."""
    return np.asarray(np.linalg.eigh(np.diag(W.sum(1)) - W)[1][:, 1:3])


def geometry(quick: bool) -> Measured:
    """Of the walks' runs: energy along edges, and principal components, after each block."""
    runs, setting = runs_of(quick)
    W = runs[0].source.graph.weight_matrix
    low, last = low_modes(W), runs[0].steps[-1].item()
    layers, rng = range(runs[0].config.n_layers), np.random.default_rng(0)
    energy, overlap, null, early = [], [], [], []
    for run in runs:
        by_step = []
        for step in (0, last):
            each = [nodes(run, step, layer, slice(HALF, None))[0] for layer in layers]
            by_step.append([energies(at, W).mean() for at in each])
        energy.append(by_step)
        overlap.append([overlaps(at, low).mean() for at in each])
        shuffled = [rng.permuted(np.tile(np.arange(len(W)), (len(at), 1)), axis=1) for at in each]
        others = [np.take_along_axis(at, s[..., None], 1) for at, s in zip(each, shuffled, strict=True)]
        null.append([(energies(at, W).mean(), overlaps(at, low).mean()) for at in others])
        early.append([energies(nodes(run, last, layer, slice(0, HALF))[0], W).mean() for layer in layers])
    energy, overlap, null, early = (np.array(x) for x in (energy, overlap, null, early))
    best = int(np.median(energy[:, 1], 0).argmin())
    smooth = (energy[:, 1, best] < energy[:, 0, best]) & (energy[:, 1, best] < null[:, best, 0])
    along = overlap[:, best] > null[:, best, 1]
    falls = energy[:, 1, best] < early[:, best]
    n = len(runs)
    where = f"after block {best}, {SEQUENCES} sequences, nodes visited in the half; {setting}"
    by_layer = "; ".join(
        f"block {layer}: {over_seeds(energy[:, 1, layer])}, untrained {over_seeds(energy[:, 0, layer])}, "
        f"shuffled {over_seeds(null[:, layer, 0])}"
        for layer in layers
    )
    findings = [
        Finding(
            "smooth_on_the_graph",
            f"{share(int(smooth.sum()), n)} seeds; energy along edges by that of all pairs, {by_layer}",
            holds(smooth.all()),
            f"below the untrained model's and below that of shuffled nodes; {where}",
            "trained at another",
            count=(int(smooth.sum()), n),
        ),
        Finding(
            "components_are_laplacian",
            f"{share(int(along.sum()), n)} seeds; mean squared cosine {over_seeds(overlap[:, best])}, of "
            f"shuffled nodes {over_seeds(null[:, best, 1])}",
            holds(along.all()),
            f"two principal components of a sequence's nodes, two lowest modes of its graph; {where}",
            "trained at another",
            count=(int(along.sum()), n),
        ),
        Finding(
            "grows_with_context",
            f"{share(int(falls.sum()), n)} seeds; energy in the first half {over_seeds(early[:, best])}, in "
            f"the second {over_seeds(energy[:, 1, best])}",
            holds(falls.all()),
            where,
            "trained at another",
            count=(int(falls.sum()), n),
        ),
    ]
    figures = {"energy": drawn(energy, null), "components": pictured(runs[0], last, best, W)}
    return Measured(findings[:1] if quick else findings, figures)


def drawn(
    energy: Float[np.ndarray, "seed step layer"], null: Float[np.ndarray, "seed layer two"]
) -> go.Figure:
    """Energies after each block: trained, untrained, shuffled."""
    figure = go.Figure()
    bars = {"trained": energy[:, 1], "untrained": energy[:, 0], "trained, nodes shuffled": null[..., 0]}
    for i, (name, values) in enumerate(bars.items()):
        x = [f"after block {layer}" for layer in range(values.shape[1])]
        figure.add_bar(x=x, y=np.median(values, 0), name=name, marker=fill(i))
    return titled(figure, "Distance along edges (median over seeds)", None, "share of that of all pairs")


def pictured(run: mm.Run, step: int, layer: int, W: Float[np.ndarray, "node node"]) -> go.Figure:
    """Two principal coordinates of nodes, products averaged over sequences; next to shuffled nodes."""
    at, _ = nodes(run, step, layer, slice(HALF, None))
    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(np.arange(len(W)), (len(at), 1)), axis=1)
    shuffled = np.take_along_axis(at, order[..., None], 1)
    figure = make_subplots(cols=2, subplot_titles=["nodes of the graph", "shuffled"])
    for column, part in enumerate((at, shuffled), 1):
        centred = part - part.mean(1, keepdims=True)
        values, vectors = np.linalg.eigh(np.einsum("bud,bvd->uv", centred, centred) / len(part))
        x, y = (vectors[:, -2:] * np.sqrt(values[-2:].clip(0))).T
        for u, v in np.argwhere(np.triu(W)):
            figure.add_scatter(
                x=x[[u, v]], y=y[[u, v]], mode="lines", line={"color": "#8a929b"}, showlegend=False,
                row=1, col=column,
            )  # fmt: skip
        figure.add_scatter(
            x=x, y=y, mode="markers+text", text=[str(u) for u in range(len(W))], marker=marker(0, 14),
            textposition="top center", showlegend=False, row=1, col=column,
        )  # fmt: skip
    title = f"Principal coordinates of nodes after block {layer} (seed 0), edges drawn"
    return titled(figure, title, "first coordinate", "second coordinate")
