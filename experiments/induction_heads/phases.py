"""Phases of training: which predictor when, how sharp the last step is, and the heads that make it."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Evidence, Finding, holds, share
from experiments.harness import Measured, first_time, over_seeds, trained
from experiments.induction_heads.holes import look, previous_claim
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import (
    BIGRAM,
    UNIGRAM,
    distances,
    gained,
    late,
    nearest,
    recipe,
    setting,
)

ORDER = ["uniform", UNIGRAM, BIGRAM]
SYMBOLS = {2: "two symbols", 3: "three symbols", 8: "eight symbols"}
# Seeds, steps, kept every, and changes. With eight symbols, 64 tokens show each pair once: rows from
# Dirichlet(1) are then too even to tell from uniform ones, and add-1 counts of tokens worse than none; so
# they are drawn more uneven.
FULL: dict[int, tuple[int, int, int, list[str]]] = {
    3: (32, 320, 10, []),
    2: (32, 900, 25, ["optimiser.lr=5e-3"]),
    8: (8, 400, 20, ["source.concentration=0.1"]),
}
QUICK: dict[int, tuple[int, int, int, list[str]]] = {3: (2, 300, 20, ["model.n_ctx=32"])}
HALF = 0.5
LOWEST = -0.25  # of what is drawn: an untrained model is further from the bigram than the unigram is
CLOSE = 0.1  # near the optimum: within this share of what the bigram gains over the unigram


def in_order(labels: Sequence[str]) -> bool:
    """Whether the nearest predictor is the uniform law, then the unigram, then the bigram to the end."""
    came = [name for i, name in enumerate(labels) if name not in labels[:i]]
    return came == ORDER and labels[-1] == BIGRAM


def plateau_and_drop(data: xr.Dataset) -> tuple[float, float]:
    """Steps from the unigram to a tenth of the way to the bigram, and from there to nine tenths.

    Of the way that the run goes in the end; the unigram is there once it is the nearest predictor.
    """
    steps, way = data["step"].values, gained(data)
    way = way / way[-1]
    unigram = first_time(np.array(nearest(data)) == UNIGRAM, steps)
    leaves, arrives = (first_time((way > part) & (steps > unigram), steps) for part in (0.1, 0.9))
    return leaves - unigram, arrives - leaves


def phase_claims(
    name: str, runs: Sequence[xr.Dataset], how: str, evidence: Evidence = "trained at another"
) -> list[Finding]:
    """What the distances of some runs say of the phases."""
    count = len(runs)
    ordered = sum(in_order(nearest(data)) for data in runs)
    spans = np.array([plateau_and_drop(data) for data in runs])
    ratio = spans[:, 1] / spans[:, 0]
    sharp = int((ratio < 1).sum())
    gaps = np.array([1 - gained(data)[-1] for data in runs])
    near = int((gaps < HALF).sum())
    start = np.array([float(d["kl"].sel(predictor=BIGRAM).isel(step=-1, position=0)) for d in runs])
    return [
        Finding(
            "three_phases",
            f"{share(ordered, count)} seeds in this order",
            holds(ordered == count),
            f"nearest exact predictor, KL from it over the last quarter of positions; {how}",
            evidence,
            (ordered, count),
            case=name,
        ),
        Finding(
            "rapid_drop",
            f"{share(sharp, count)} seeds; drop over plateau {over_seeds(ratio)}",
            holds(sharp == count),
            "rapid: the steps from a tenth to nine tenths of the way to the bigram are fewer than those from "
            f"the unigram to the tenth; {how}",
            evidence,
            (sharp, count),
            case=name,
        ),
        Finding(
            "near_optimum",
            f"late in the context {over_seeds(gaps)} of the unigram's excess is left; after the first token "
            f"{over_seeds(start)} nats",
            holds(near == count),
            "excess over the exact posterior mean (uniform start, add-1 counts); near: nearer to it "
            "than to the "
            "unigram, a threshold of ours, as the paper gives none. The gap late in the "
            "context shrinks on with training, the one after the first token cannot go: see `positions`; "
            f"{how}",
            evidence,
            (near, count),
            case=name,
        ),
    ]


def heads(run: mm.Run, steps: list[int]) -> mm.probing.Outcome:
    """The induction probe over training."""
    result = mm.probe(run, ["induction"], steps=steps, sequences=64)
    if "induction" in result.failed:
        raise RuntimeError(result.failed["induction"])
    return result["induction"]


def is_circuit(found: mm.probing.Outcome, gap: float) -> bool:
    """Layer 1 gives the previous token most of its attention and feeds layer 2's keys with the bigram."""
    scores, now = found.scores, found.data.isel(step=-1)
    path = scores["path_effect"].interval
    return (
        scores["induction_head"].value == "L1H0"
        and scores["previous_token_head"].value == "L0H0"
        and int(now["feeder_layer"]) == 0
        and path is not None
        and path[0] > gap / 2
    )


def head_claims(
    n: int, found: Sequence[mm.probing.Outcome], runs: Sequence[xr.Dataset], how: str
) -> list[Finding]:
    """What the induction probe says of the heads, and when they come."""
    gaps = [float(d["apart"].sel(predictor=UNIGRAM).mean()) for d in runs]
    circuits = sum(is_circuit(f, gap) for f, gap in zip(found, gaps, strict=True))
    effect = np.array([f.scores["path_effect"].value or 0.0 for f in found])
    previous = np.array([f.scores["previous_token_score"].value for f in found])
    null = found[0].scores["previous_token_score"].null
    chance = f"{null[1]:.3f}" if isinstance(null, tuple) else "none"
    apart = []
    for f, data in zip(found, runs, strict=True):
        score = f.data["induction"].sel(matched=1).max(("layer", "head"))
        head = np.interp(data["step"], score["step"], score)
        way, steps = gained(data), data["step"].values
        apart.append(first_time(head > head[-1] / 2, steps) - first_time(way > way[-1] / 2, steps))
    together = int(np.sum(np.abs(apart) <= 2 * np.diff(found[0].data["step"]).max()))
    return [
        Finding(
            "circuit",
            f"{share(circuits, len(found))} seeds; previous-token score {over_seeds(previous)} (fresh "
            f"models {chance}); cutting that path alone costs {over_seeds(effect)} nats",
            holds(circuits == len(found)),
            "probe `induction`: by an edit of a key's predecessor and by cutting layer 1 from layer 2's "
            f"keys, which must cost half of the bigram's gain over the unigram; {how}",
            "trained at another",
            (circuits, len(found)),
            case=SYMBOLS[n],
        ),
        Finding(
            "drop_is_head",
            f"{share(together, len(found))} seeds; head after drop by {over_seeds(np.array(apart))} steps",
            holds(together == len(found)),
            "half of the final induction score against half of the way to the bigram; within two kept steps "
            f"of the probe; {how}",
            "trained at another",
            (together, len(found)),
            case=SYMBOLS[n],
        ),
    ]


def phases(quick: bool) -> Measured:
    """The phase plot, and the heads over training."""
    claims, panels, formed = [], {}, {}
    for n, (seeds, steps, every, others) in (QUICK if quick else FULL).items():
        kept = f"checkpoints={{every={every}}}"
        varied = recipe(f"source.n_states={n}", f"steps={steps}", kept, *others)
        (runs,) = trained([varied], range(seeds))
        data = [distances(run) for run in runs]
        how = setting(varied, seeds)
        found = phase_claims(SYMBOLS[n], data, how)
        claims += [one for one in found if (one.key, n) != ("rapid_drop", 3)]  # which has more seeds
        claims.append(previous_claim(SYMBOLS[n], [look(run) for run in runs], how))
        panels[SYMBOLS[n]] = (data[0]["step"].values, predictor_curves(data))
        chosen = list(range(0, steps + 1, 2 * every))
        formed_heads = [heads(run, chosen) for run in runs[: 1 if quick else None]]
        claims += head_claims(n, formed_heads, data[: len(formed_heads)], how)
        curves = head_curves(formed_heads, data[: len(formed_heads)])
        formed[SYMBOLS[n]] = (np.array(chosen), curves)
    title = "Which exact predictor the model is near, over training"
    figures = {
        "phases": over_training(panels, title, "KL from predictor to model (nats)", shared=False),
        "heads": over_training(
            formed, "The two heads, and the drop in loss", "share, or probability", {"unigram": 0.0}
        ),
    }
    return Measured(claims, figures)


def predictor_curves(runs: Sequence[xr.Dataset]) -> dict[str, Float[np.ndarray, "step seed"]]:
    """KL from each predictor, late in the context."""
    kls = [late(data)["kl"] for data in runs]
    return {
        name.replace("in_context_", "in-context "): np.stack([kl.sel(predictor=name) for kl in kls], axis=1)
        for name in ORDER
    }


def head_curves(
    found: Sequence[mm.probing.Outcome], runs: Sequence[xr.Dataset]
) -> dict[str, Float[np.ndarray, "step seed"]]:
    """Both heads over training, at the steps of the probe, and the gain."""
    kept = found[0].data["step"].values
    previous = [f.data["previous_token"].isel(layer=0, head=0) for f in found]
    matches = [
        f.data["induction"].sel(matched=1).isel(layer=1, head=0) / f.data["ideal"].sel(matched=1)
        for f in found
    ]
    gains = [np.interp(kept, data["step"], gained(data)).clip(LOWEST) for data in runs]
    return {
        "L0H0: attention on the previous token": np.stack(previous, axis=1),
        "L1H0: induction score over an ideal head's": np.stack(matches, axis=1),
        "share of the bigram's gain": np.stack(gains, axis=1),
    }
