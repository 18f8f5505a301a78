"""Does a head attend along the source's causal graph: which edges does its mean attention recover?"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
import xarray as xr
from einops import einsum
from jaxtyping import Bool, Float, Int
from scipy.stats import hypergeom
from torch import Tensor

from mechmarkov.claims.claim import ALIKE, Claim, Claims, Condition, Status
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import best_heads, head_name, last_model, variables
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.preconditions import why_no_token_is_read
from mechmarkov.probing.recording import HookSums, PerLayer, Quantity, Scope
from mechmarkov.probing.recording.quantity import Arrays
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import matched
from mechmarkov.report.probe_figures import over_training
from mechmarkov.sources import CausalGraph

ROUNDING = 1e-6  # of a float32 mean: uniform attention on a token and k before it has no edge
CHANCE = 0.01  # of as many true edges by chance, all heads considered, below which a head is named
MIN_PARTLY = 0.25  # of what attention that is not even could put on parents, from which on it is not excluded
MIN_MATCHED = 0.5  # of what attention that is not even could put on matches
MORE = "more than half of its attention (with k parents: more than 1 / (k + 1))"
NULL_KIND = "each edge moved to an earlier position drawn at random: 2.5, 50 and 97.5 % points"


def _start(scope: Scope) -> PerLayer[np.ndarray]:
    keys, n = scope.batch.keys, len(scope.batch.tokens)

    def of_layer(at: str) -> HookSums[Arrays]:
        return HookSums(
            {"total": (f"{at}.hook_pattern", lambda x, *_: x[..., keys, keys].double().sum(1))}, dict
        )

    return PerLayer(scope.model, of_layer, lambda total: total / n)


# Mean attention over sequences, [member, layer, head, query, key], without a query token.
MEAN_ATTENTION: Quantity[np.ndarray] = Quantity("mean attention", _start, reads_attention=True)


Parents = tuple[tuple[int, ...], ...]


def matches(batch: Batch, parents: Parents) -> Bool[Tensor, "batch read known_position"]:
    """Returns which tokens have parents in the same states as the token to be predicted.

    The law of the next token is counted from these (Nichani et al. 2024, arXiv 2402.14735, section 3).

    Args:
        batch: The sequences.
        parents: The parents of each position, of the predicted ones too.
    """
    states, length = batch.history, batch.history.shape[1]
    same = torch.zeros(len(states), len(batch.known), length, dtype=torch.bool)
    for i, known in enumerate(batch.known.tolist()):
        asked = list(parents[known + 1])
        for j in range(known + 1):
            if asked and len(parents[j]) == len(asked):
                same[:, i, j] = (states[:, list(parents[j])] == states[:, asked]).all(-1)
    return same


@cache
def match_mass(parents: Parents) -> Quantity[np.ndarray]:
    """The share of attention on matches, mean over predictions that have one, [member, layer, head]."""

    def start(scope: Scope) -> PerLayer[np.ndarray]:
        batch, same = scope.batch, matches(scope.batch, parents)
        queries = int(same.any(-1).sum()) or np.nan

        def mass_of(pattern: Tensor, _: Batch, sequences: slice) -> Float[Tensor, "model head"]:
            rows = pattern[..., batch.read, batch.keys]
            return einsum(rows, same[sequences].to(rows), "m b h read key, b read key -> m h").double()

        def of_layer(at: str) -> HookSums[Arrays]:
            return HookSums({"mass": (f"{at}.hook_pattern", mass_of)}, dict)

        return PerLayer(scope.model, of_layer, lambda mass: mass / queries)

    return Quantity("matches of parents", start, reads_attention=True)


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: it needs a source with a graph, and attention on single tokens."""
    if not isinstance(subject.source, CausalGraph):
        return "the source has no graph of positions, so there is none to recover"
    if not adjacency(subject.source)[:-1].any():
        return "the only edge is the answer's, and no position that the model reads has a parent"
    return why_no_token_is_read(subject.decoder)


def adjacency(source: CausalGraph) -> Bool[np.ndarray, "position parent"]:
    """Returns which earlier positions are the parents of each position.

    Args:
        source: A source whose `parents` holds, for each position, its parents.

    Example:
        >>> import mechmarkov as mm
        >>> graph = mm.sources.CausalGraph(n_states=3, parents=((), (0,), (0,), (1, 2)))
        >>> adjacency(graph).astype(int).tolist()
        [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]]
    """
    edges = np.zeros((source.length, source.length), dtype=bool)
    for i, parents in enumerate(source.parents):
        edges[i, list(parents)] = True
    return edges


def measure(subject: Subject) -> xr.Dataset:
    """The edges of every head, against the graph.

    Returns:
        `mean_attention` [axis, layer, head, query, key] (probability): mean over sequences;
        `edge` [axis, layer, head, query, key]: whether an earlier key gets more than half of it, or more than
        1 / (k + 1) where the query has k parents; `true_edge` [query, key]: whether key is a parent of query;
        `found`, `recovered` [axis, layer, head] (edges): how many edges a head has from positions that have
        parents, and how many are true (a softmax puts a root's attention somewhere too, which tells nothing);
        `parent_attention` [axis, layer, head] (probability): on parents, mean over positions that have any;
        `at_least` [axis, layer, head] (probability): of as many true edges where each is moved to an earlier
        position drawn at random, exactly;
        `match_mass` [axis, layer, head] (probability): on tokens whose parents are in the states of those of
        the predicted token, mean over predictions that have such tokens.

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("graph"), sequences=8))
        >>> data.found[-1].values.tolist(), data.recovered[-1].values.tolist()  # layer, head
        ([[9], [0]], [[9], [0]])
    """
    assert isinstance(subject.source, CausalGraph)
    mean = subject.recorded(MEAN_ATTENTION)
    n = mean.shape[-1]
    true = adjacency(subject.source)[:n, :n]
    earlier = np.where(np.tri(n, k=-1, dtype=bool), mean, 0.0)
    parents = true.sum(-1)
    edge, has = earlier > 1 / (parents.clip(1) + 1)[:, None] + ROUNDING, parents > 0
    n_edges, recovered = edge[..., has, :].sum((-2, -1)), (edge & true).sum((-2, -1))
    at_least = np.empty(n_edges.shape)
    for at, least in np.ndenumerate(recovered):
        at_least[at] = _hits(parents, edge[at].sum(-1))[least:].sum()
    per_head = (subject.axis, "layer", "head")
    same = matches(subject.batch, subject.source.parents).double()
    has_match = same.any(-1)
    even = same.sum(-1) / (subject.batch.known + 1)
    return xr.Dataset(
        variables("probability", (*per_head, "query", "key"), mean_attention=mean)
        | variables("yes or no", (*per_head, "query", "key"), edge=edge)
        | variables("", ("query", "key"), true_edge=true)
        | variables("edges", per_head, found=n_edges, recovered=recovered)
        | variables("probability", per_head, at_least=at_least.clip(0, 1))
        | variables("probability", per_head, match_mass=subject.recorded(match_mass(subject.source.parents)))
        | variables("probability", per_head, parent_attention=(mean * true).sum(-1)[..., has].mean(-1)),
        coords={subject.axis: subject.coordinates}
        | dict(zip(("layer", "head", "query", "key"), map(np.arange, mean.shape[1:]), strict=True)),
        attrs={
            "uniform": float((parents / np.arange(1, n + 1))[has].mean()),
            "even": float(even[has_match].mean()) if has_match.any() else np.nan,
            "beyond": int(adjacency(subject.source)[n:].sum()),
        },
    )


def _hits(parents: Int[np.ndarray, " query"], edges: Int[np.ndarray, " query"]) -> Float[np.ndarray, " hits"]:
    """The law of the number of true edges where each is moved to an earlier position drawn at random.

    The edges of one position go to different ones.
    """
    law = np.ones(1)
    for query in np.flatnonzero(edges):
        law = np.convolve(law, _hits_of_one(int(query), int(parents[query]), int(edges[query])))
    return law


@cache
def _hits_of_one(earlier: int, parents: int, edges: int) -> Float[np.ndarray, " hits"]:
    return np.asarray(hypergeom.pmf(np.arange(edges + 1), earlier, parents, edges))


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
    """Returns how many edges of the graph the named heads have together."""
    has = (last["edge"] & _judged(last)["named"]).any(("layer", "head"))
    return int((has & last["true_edge"]).sum())


def scores(data: xr.Dataset, _: xr.Dataset | None) -> dict[str, Score]:
    """Precision and recall of the head whose edges are the graph's, next to those of moved edges."""
    last = last_model(data)
    best, edges = _best(last), int(last["true_edge"].sum())
    n_edges, recovered = int(best["found"]), int(best["recovered"])
    law = _hits(last["true_edge"].values.sum(-1), best["edge"].values.sum(-1))
    low, middle, high = (int(np.searchsorted(law.cumsum(), q)) for q in (0.025, 0.5, 0.975))
    none = f"no position that has a parent gives an earlier one {MORE}"
    why = f"no head has more true edges than false ones, beyond chance: {recovered} of {n_edges} are true"
    return {
        "graph_head": Score(head_name(best), "") if best["named"] else Score(None, "", reason=why),
        "precision": Score(
            None if n_edges == 0 else recovered / n_edges,
            "share of edges",
            None if n_edges == 0 else (low / n_edges, middle / n_edges, high / n_edges),
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


def claims(data: xr.Dataset, _: dict[str, Score]) -> list[Claim]:
    """Claims which head attends along the graph, and how much of it."""
    last = last_model(data)
    (best, status), edges = _told(last), int(last["true_edge"].sum())
    counted, recovered = int(best["found"]), int(best["recovered"])
    others = int(best["edge"].sum()) - counted
    premises = [
        Condition("edges of the head", value=counted),
        Condition("edges of the graph", value=edges),
        Condition("edges to the predicted token", value=int(last.attrs["beyond"])),
        Condition("edges of all such heads", value=_together(last)),
        Condition("edges from roots", value=others),
        Condition("chance of as many", value=float(best["chance"]), unit="probability"),
        Condition("attention on parents", value=float(best["parent_attention"]), unit="probability"),
        Condition("uniform gives", value=float(last.attrs["uniform"]), unit="probability"),
    ]
    return [
        Claim(
            (head_name(best),),
            "recovers",
            ("graph",),
            recovered,
            unit="edges",
            status=status,
            because=tuple(premises),
        ),
        *_matching(last),
    ]


def _told(last: xr.Dataset) -> tuple[xr.Dataset, Status]:
    """Returns the head that is told, and whether it attends along the graph.

    A head of which parents get much attention, but fewer than half of it each, is not off the graph.
    """
    best, even = _best(last), float(last.attrs["uniform"])
    if best["named"]:
        return best, "shown"
    if 2 * int(best["recovered"]) > max(int(best["found"]), 1):
        return best, "open"
    most = _judged(last).isel(best_heads(last["parent_attention"]))
    is_partly = float(most["parent_attention"]) - even > MIN_PARTLY * (1 - even)
    return (most, "open") if is_partly else (best, "excluded")


def _matching(last: xr.Dataset) -> Iterator[Claim]:
    """Yields the head that looks for the tokens which the law of the next one is counted from."""
    head, even = best_heads(last["match_mass"]), float(last.attrs["even"])
    mass = float(last["match_mass"].isel(head))
    if mass - even > MIN_MATCHED * (1 - even):
        yield Claim((head_name(head),), "attends_to", (ALIKE,), mass, null=even, unit="probability")


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Tiles of where it lives: the head that attends along the graph, and what else is relied on."""
    everything = Claims(tuple(claims))
    recovers = everything.first("recovers", probe="graph", status="shown")
    relied = everything.where("is_relied_on", probe="ablation", status="shown")
    if recovers is None or _is_unused(everything, relied, recovers.subject[0]):
        return []
    others = tuple(claim for claim in relied if not set(claim.subject) & set(recovers.subject))
    matching = tuple(everything.where("attends_to", object=ALIKE, status="shown", probe="graph"))
    named = {name for claim in others for name in claim.subject}
    more = (recovers, *(claim for claim in matching if set(claim.subject) <= named), *others)
    return [Tile(LIVES, (recovers, *others), more, None, rank=0)]


def _is_unused(claims: Claims, relied: Claims, head: str) -> bool:
    """Returns whether neither the loss nor what is relied on changes without a head, wherever it attends."""
    worth = claims.first("is_needed", subject=head, probe="ablation", status="excluded")
    is_worthless = worth is not None and worth.condition("does harm") is None
    return is_worthless and not any(head in claim.subject for claim in relied)


def figures(data: xr.Dataset) -> list[Figure]:
    """Figures of the mean attention of the head nearest to the graph, next to it; edges over training."""
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
    caption = "Each position's mean attention, next to its parents. Roots have none: their rows are empty."
    of_each = _best(data)
    series = {
        "recall": of_each["recovered"].values / true.sum(),
        "attention on parents": of_each["parent_attention"].values,
    }
    title, about = "The graph over training", "Of the head nearest to the graph at each step."
    return [
        Figure("Attention and the graph", caption, "plotly", table, key="graph"),
        *over_training(title, about, data, series, "share", score="recall"),
    ]


probe = Probe(
    name="graph",
    question="Does a head attend along the causal graph of positions?",
    cites="Nichani, Damian & Lee 2024 (arXiv 2402.14735); the null is ours",
    applies=applies, measure=measure, scores=scores, claims=claims, headline=headline, figures=figures,
    formula="edge of a position: an earlier one with more than half of its mean attention; with k parents, "
    "with more than 1 / (k + 1); those of a position without a parent are neither true nor false",
    formulas={
        "graph_head": "the named head with the largest 2 · true edges / (its edges + edges of the graph)",
        "precision": "true edges / its edges",
        "recall": "true edges / edges of the graph",
        "recall_together": "the same of all heads with more true edges than false ones, beyond chance",
        "chance": "number of heads · Pr(as many true edges or more | edges moved to random earlier "
        "positions)",
        "parent_attention": "mean over positions with parents of E[attention on them]",
    },
    records=(MEAN_ATTENTION,),
    has_null=lambda _: False,
    with_bos=True,
)  # fmt: skip
