"""One to four layers: who reaches the bigram, and in which layers the two heads form."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import Measured, over_seeds, trained
from experiments.induction_heads.panels import strips
from experiments.induction_heads.shared import distances, gained, recipe, setting
from mechmarkov.models.components import head_index

# Symbols: what differs from the folder's recipe, the depths, and seeds. Eight as in `phases`.
Settings = dict[int, tuple[list[str], tuple[int, ...], int]]
FULL: Settings = {
    3: (["model.n_ctx=32", "steps=350"], (1, 2, 3, 4), 16),
    2: (["steps=900", "optimiser.lr=5e-3"], (1, 2, 3, 4), 5),
    8: (["steps=320", "source.concentration=0.1"], (1, 2, 3, 4), 5),
}
QUICK: Settings = {3: (["model.n_ctx=32", "steps=350"], (1, 2), 2)}
HALF = 0.5


def circuit(run: mm.Run, step: int = -1) -> tuple[int, int] | None:
    """The layers (from 0) of the feeding and of the induction head, None where there is no circuit."""
    steps = "last" if step == -1 else [step]
    found = mm.probe(run, ["induction"], steps=steps, sequences=64)["induction"]
    now = found.data.isel(step=-1)
    head = found.scores["induction_head"].value
    index = head_index(head) if isinstance(head, str) else None
    if index is None or found.scores["feeders"].value is None:
        return None
    return int(now["feeder_layer"]), index[0]


def depth_claims(n: int, ways: Mapping[int, Float[np.ndarray, " seed"]], how: str) -> list[Finding]:
    """What the share of the bigram's gain at the end says of depth."""
    shallow, fail = ways[1], int((ways[1] < HALF).sum())
    found = [
        Finding(
            "one_layer_short",
            f"{share(fail, len(shallow))} seeds stay short of half; gain {over_seeds(shallow)}",
            holds(fail == len(shallow)),
            "share of the bigram's gain over the unigram, last quarter of positions; one head can weigh "
            "tokens by lag and by its own token, which is worth something, but no key knows what came "
            f"before it; {how}",
            "trained at another",
            (fail, len(shallow)),
            case=f"{n} symbols",
        ),
    ]
    deep = [way for depth, way in ways.items() if depth > 1]
    if deep:
        every = np.concatenate(deep)
        reach = int((every > HALF).sum())
        found.append(
            Finding(
                "deep_enough",
                f"{share(reach, len(every))} runs of {', '.join(str(d) for d in ways if d > 1)} layers "
                "reach half; "
                + "; ".join(f"{d} layers {over_seeds(way)}" for d, way in ways.items() if d > 1),
                holds(reach == len(every)),
                f"the same; {how}",
                "trained at another",
                (reach, len(every)),
                case=f"{n} symbols",
            )
        )
    return found


def place_claims(places: Mapping[int, Sequence[tuple[int, int] | None]], how: str) -> list[Finding]:
    """Where the two heads are."""
    every = [place for found in places.values() for place in found]
    named = [place for place in every if place is not None]
    later = sum(head > feeder for feeder, head in named)
    # With two layers there is no other place.
    free = [place for depth, found in places.items() if depth > 2 for place in found if place is not None]
    lowest = sum(place == (0, 1) for place in free)
    seen = [
        f"{depth} layers: "
        + ", ".join(f"{k} × {count}" for k, count in Counter(map(_words, found)).most_common())
        for depth, found in places.items()
    ]
    found = [
        Finding(
            "fed_induction_head",
            f"{share(later, len(every))} runs; {'; '.join(seen)}",
            holds(later == len(every)),
            "probe `induction`, by edit and by cutting the path (surely half of the score must go); layers "
            f"are numbered from 0; {how}",
            "trained at another",
            (later, len(every)),
        ),
    ]
    if free:
        found.append(
            Finding(
                "first_two_layers",
                f"{share(lowest, len(free))} circuits in more than two layers",
                holds(lowest == len(free)),
                f"the same; {how}",
                "trained at another",
                (lowest, len(free)),
            )
        )
    return found


def _words(place: tuple[int, int] | None) -> str:
    return "none" if place is None else f"L{place[0]} feeds L{place[1]}"


def depths(quick: bool) -> Measured:
    """Train every depth, ask how far it came and where its heads are."""
    claims: list[Finding] = []
    groups: dict[str, dict[str, Float[np.ndarray, " seed"]]] = {}
    for n, (changes, layers, seeds) in (QUICK if quick else FULL).items():
        ways: dict[int, Float[np.ndarray, " seed"]] = {}
        places: dict[int, list[tuple[int, int] | None]] = {}
        for depth in layers:
            varied = recipe(*changes, f"source.n_states={n}", f"model.n_layers={depth}", "checkpoints=[0]")
            (runs,) = trained([varied], range(seeds))
            ways[depth] = np.array([gained(distances(run))[-1] for run in runs])
            if depth > 1 and n == 3:
                places[depth] = [circuit(run) for run in runs[: 1 if quick else None]]
        how = f"{setting(varied, seeds)} a depth"
        claims += depth_claims(n, ways, how)
        claims += place_claims(places, how) if places else []
        groups[f"{n} symbols"] = {f"{depth}": ways.get(depth, np.empty(0)) for depth in (1, 2, 3, 4)}
    figure = strips(
        groups,
        "How far models of each depth come",
        "layers",
        "share of the bigram's gain (nats)",
        {"unigram": 0.0, "in-context bigram": 1.0},
    )
    return Measured(claims, {"depths": figure})
