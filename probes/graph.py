"""Does a head attend along the source's causal graph: which edges does its mean attention recover?"""

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import best_heads, head_name, last_model, variables
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.recording import HookSums, PerLayer, Quantity, Recorder
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import matched
from mechmarkov.report.probe_figures import over_training
from mechmarkov.sources import CausalGraph

EDGE = 0.5  # a position's edge is the earlier key with more than this share of its mean attention
CHANCE = 0.01  # of as many true edges by chance, all heads considered, below which a head is named
NULL_KIND = "each edge moved to an earlier position drawn at random: 2.5, 50 and 97.5 % points"


def _begin(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[np.ndarray]:
    del stack, n_states
    real, n = batch.history.shape[1], len(batch.tokens)

    def total(pattern: Tensor, part: Batch, sequences: slice) -> Tensor:
        del part, sequences
        return pattern[..., :real, :real].double().sum(1)

    return Recorder(
        lambda model: PerLayer(model, lambda at: HookSums({"total": (f"{at}.hook_pattern", total)})),
        lambda total: total / n,
    )


# Mean attention over sequences, [member, layer, head, query, key], without a query token.
MEAN_ATTENTION: Quantity[np.ndarray] = Quantity("mean attention", _begin, reads_attention=True)


def applies(subject: Subject) -> str | None:
    """Only where the source says which positions are the parents of which."""
    if not isinstance(subject.source, CausalGraph):
        return "the source has no graph of positions, so there is none to recover"
    if not adjacency(subject.source)[:-1].any():
        return "the only edge is the answer's, and no position that the model reads has a parent"
    return None


def adjacency(source: CausalGraph) -> Bool[np.ndarray, "position parent"]:
    """True where a position has that parent."""
    edges = np.zeros((source.length, source.length), dtype=bool)
    for i, parents in enumerate(source.parents):
        edges[i, list(parents)] = True
    return edges


def measure(subject: Subject) -> xr.Dataset:
    """The edges of every head, against the graph.

    Returns:
        `mean_attention` [axis, layer, head, query, key] (probability): mean over sequences;
        `edge` [axis, layer, head, query]: the earlier key with more than half of it, or -1;
        `true_edge` [query, key]: whether key is a parent of query;
        `found`, `recovered` [axis, layer, head] (edges): how many edges a head has, and how many are true;
        `parent_attention` [axis, layer, head] (probability): on parents, mean over positions that have any;
        `at_least` [axis, layer, head] (probability): of as many true edges where each is moved to an earlier
        position drawn at random, exactly.
    """
    assert isinstance(subject.source, CausalGraph)
    mean = subject.recorded(MEAN_ATTENTION)
    n = mean.shape[-1]
    true = adjacency(subject.source)[:n, :n]
    earlier = np.where(np.tri(n, k=-1, dtype=bool), mean, 0.0)
    edge = np.where(earlier.max(-1) > EDGE, earlier.argmax(-1), -1)
    hit = (edge >= 0) & true[np.arange(n), edge.clip(0)]
    has = true.any(-1)
    found, recovered, moved = (edge >= 0).sum(-1), hit.sum(-1), _moved(true)
    at_least = np.empty(found.shape)
    for at, least in np.ndenumerate(recovered):
        at_least[at] = _hits(moved[edge[at] >= 0])[least:].sum()
    per_head = (subject.axis, "layer", "head")
    return xr.Dataset(
        variables("probability", (*per_head, "query", "key"), mean_attention=mean)
        | variables("position", (*per_head, "query"), edge=edge)
        | variables("", ("query", "key"), true_edge=true)
        | variables("edges", per_head, found=found, recovered=recovered)
        | variables("probability", per_head, at_least=at_least.clip(0, 1))
        | variables("probability", per_head, parent_attention=(mean * true).sum(-1)[..., has].mean(-1)),
        coords={subject.axis: subject.coordinates}
        | dict(zip(("layer", "head", "query", "key"), map(np.arange, mean.shape[1:]), strict=True)),
        attrs={"uniform": float((true.sum(-1) / np.arange(1, n + 1))[has].mean())},
    )


def _moved(true: Bool[np.ndarray, "query key"]) -> Float[np.ndarray, " query"]:
    """The chance that an earlier position drawn at random is a parent."""
    return np.asarray(true.sum(-1) / np.arange(len(true)).clip(1))


def _hits(chances: Float[np.ndarray, " edge"]) -> Float[np.ndarray, " hits"]:
    """The law of the number of hits among independent edges, each with its chance."""
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    return law


def _judged(data: xr.Dataset) -> xr.Dataset:
    """All heads, with `chance` (Bonferroni's bound over those of a model) and `named` [.., layer, head]."""
    chance = (data["at_least"] * data.sizes["layer"] * data.sizes["head"]).clip(max=1.0)
    named = (chance < CHANCE) & (2 * data["recovered"] > data["found"])
    return data.assign(chance=chance, named=named)


def _best(data: xr.Dataset) -> xr.Dataset:
    """Each model's head with the most true edges for those it has and there are (F1); named ones first."""
    f1, judged = 2 * data["recovered"] / (data["found"] + int(data["true_edge"].sum())), _judged(data)
    return judged.isel(best_heads(2 * judged["named"] + f1 + 1e-6 * data["parent_attention"]))


def _together(last: xr.Dataset) -> int:
    """How many edges of the graph the named heads have together."""
    edge, key = last["edge"].where(_judged(last)["named"], -1).values, last["key"].values
    has = (edge[..., None] == key).any((0, 1))  # [query, key]
    return int((has & last["true_edge"].values).sum())


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Precision and recall of the head whose edges are the graph's, beside those of moved edges."""
    del null
    last = last_model(data)
    best, edges = _best(last), int(last["true_edge"].sum())
    found, recovered = int(best["found"]), int(best["recovered"])
    law = _hits(_moved(last["true_edge"].values)[best["edge"].values >= 0])
    low, middle, high = (int(np.searchsorted(law.cumsum(), q)) for q in (0.025, 0.5, 0.975))
    none = "no position gives an earlier one more than half of its attention"
    why = f"no head has more true edges than false ones, beyond chance: {recovered} of {found} are true"
    return {
        "graph_head": Score(head_name(best), "") if best["named"] else Score(None, "", reason=why),
        "precision": Score(
            None if found == 0 else recovered / found,
            "share of edges",
            None if found == 0 else (low / found, middle / found, high / found),
            null_kind=NULL_KIND,
            reason=none,
        ),
        "recall": Score(
            recovered / edges, "share of edges", (low / edges, middle / edges, high / edges), None, NULL_KIND
        ),
        "recall_together": Score(_together(last) / edges, "share of edges"),
        "chance": Score(float(best["chance"]), "probability"),
        "parent_attention": Score(
            float(best["parent_attention"]), "probability", last.attrs["uniform"], None, "uniform attention"
        ),
    }


def verdict(data: xr.Dataset) -> str:
    """Which head attends along the graph, and how much of it."""
    last = last_model(data)
    best, edges = _best(last), int(last["true_edge"].sum())
    found, recovered = int(best["found"]), int(best["recovered"])
    if found == 0:
        return (
            "No head attends along the graph: none gives one earlier position more than half of its "
            f"attention on average. Parents get {float(best['parent_attention']):.3f}, where uniform "
            f"attention gives {last.attrs['uniform']:.3f}."
        )
    counted = f"{recovered} of its {found} edges are true, of {edges} between the tokens it sees"
    if not best["named"]:
        return (
            f"No head attends along the graph: {head_name(best)} is nearest, and {counted}. Chance gives as "
            f"many in some head with probability {float(best['chance']):.2g} at most."
        )
    said = (
        f"{head_name(best)} attends along the graph: {counted}. Parents get "
        f"{float(best['parent_attention']):.3f} of its attention, where uniform attention gives "
        f"{last.attrs['uniform']:.3f}."
    )
    together = _together(last)
    return said if together == recovered else f"{said} All such heads together have {together} of {edges}."


def figures(data: xr.Dataset) -> list[Figure]:
    """The mean attention of the head nearest to the graph, beside the graph; its edges over training."""
    last = last_model(data)
    best = _best(last)
    true = last["true_edge"].values
    graph = true / true.sum(-1, keepdims=True).clip(1)
    positions = [str(position) for position in last["query"].values]
    table = matched(
        best["mean_attention"].values,
        graph,
        positions,
        row_title="position",
        column_title="attends to",
        value_title="attention",
        names=(head_name(best), "the graph"),
    )
    caption = "Each position's mean attention, beside its parents. Roots have none: their rows are empty."
    of_each = _best(data)
    series = {
        "recall": of_each["recovered"].values / true.sum(),
        "attention on parents": of_each["parent_attention"].values,
    }
    title, said = "The graph over training", "Of the head nearest to the graph at each step."
    return [
        Figure("Attention and the graph", caption, "plotly", table, key="graph"),
        *over_training(title, said, data, series, "share", score="recall"),
    ]


FORMULAS = {
    "graph_head": "the named head with the largest 2 · true edges / (its edges + edges of the graph)",
    "precision": "true edges / its edges",
    "recall": "true edges / edges of the graph",
    "recall_together": "the same of all heads with more true edges than false ones, beyond chance",
    "chance": "number of heads · Pr(as many true edges or more | edges moved to random earlier positions)",
    "parent_attention": "mean over positions with parents of E[attention on them]",
}

probe = Probe(
    name="graph",
    question="Does a head attend along the causal graph of positions?",
    cites="Nichani, Damian & Lee 2024 (arXiv 2402.14735); the null is ours",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="edge of a position: the earlier one with more than half of its mean attention, if there is any",
    formulas=FORMULAS,
    records=(MEAN_ATTENTION,),
    has_null=lambda _: False,
)
