"""Where the bigram is stored: which path holds it, how much of it, and in what rank."""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.preconditions import why_no_bigram
from mechmarkov.probing.score import Score

from . import figures, measure
from .home import homes_of, rank_90, weight_of
from .measure import MIN_GAIN_NATS


def applies(subject: Subject) -> str | None:
    """Only where one process is behind all sequences, and neighbours depend on each other."""
    return why_no_bigram(subject.source)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Home, shares, and the rank that the home's weight needs."""
    last, homes = last_model(data), homes_of(data)
    gain = score_with_null(lambda d: d["gain"], data, null, "nats", interval=interval_at(data, "gain"))
    if data.attrs["objective"] != "cross_entropy":
        # Random scores below zero are read as impossible, at 28 nats each: their gains tell nothing.
        kind = "paths that say nothing of the state"
        gain = Score(float(last["gain"]), "nats", 0.0, interval_at(data, "gain"), kind)
    found = {"bigram_home": Score(" + ".join(homes) or "none", ""), "gain": gain}
    if not homes:
        why = "what the paths are worth does not come from the parent: no path holds the bigram"
        if float(last["gain"]) < MIN_GAIN_NATS:
            why = (
                f"the paths together are worth {float(last['gain']):.3g} nats, below {MIN_GAIN_NATS}: there "
                "is nothing to share"
            )
        return found | {"rank_90": Score(None, "rank", reason=why)}
    for path in data["path"].values:
        share, interval = float(last["share"].sel(path=path)), interval_at(data, "share", path=path)
        found[f"share_{path}"] = Score(share, "share", 1 / data.sizes["path"], interval, "an even split")
    weight, rank = weight_of(homes[0]), rank_90(data, homes[0])
    if rank is None:
        why = f"{weight} is not trained, or no rank of it keeps 90 % of the bigram part"
        return found | {"rank_90": Score(None, "rank", reason=why)}
    full = float(data["full_rank"].sel(weight=weight))
    return found | {"rank_90": Score(rank, "rank", full, null_kind=f"full rank of {weight}")}


def verdict(data: xr.Dataset) -> str:
    """Who holds the bigram, in one sentence."""
    last = last_model(data)
    gain, empty, full = (float(last[name]) for name in ("gain", "kl_empty", "kl_full"))
    homes = homes_of(data)
    if not homes and gain >= MIN_GAIN_NATS:
        return (
            f"No path holds the bigram: the paths together bring the model from {empty:.3g} to {full:.3g} "
            f"nats from it, but not by what they make of the parent: setting it to another state moves the "
            f"prediction {float(last['parent_gain']):.2g} nats nearer to that state's row."
        )
    if not homes:
        return (
            f"No path holds the bigram: the model is {full:.3g} nats from it, and {empty:.3g} with every "
            f"path at its mean, so there is nothing to share."
        )
    held = [f"{path} ({float(last['share'].sel(path=path)):.2f})" for path in homes]
    said = f"{' and '.join(held)} hold{'s' * (len(homes) == 1)} the bigram"
    if gain < 0.5 * empty:
        said = f"What there is of the bigram is in {' and '.join(held)}"
    said += f": the paths together bring the model from {empty:.3g} to {full:.3g} nats from it"
    only, without = (float(last[name].sel(path=homes[0])) for name in ("kl_only", "kl_without"))
    if data.sizes["path"] > 1:
        said += f", {homes[0]} alone to {only:.3g} and all others to {without:.3g}"
    rank = rank_90(data, homes[0])
    if rank is not None:
        weight = weight_of(homes[0])
        full_rank = int(data["full_rank"].sel(weight=weight))
        said += f"; rank {rank} of {full_rank} of {weight} keeps 90 % of it"
    return said + "."


probe = Probe(
    name="storage",
    question="Which path holds the bigram, how much of it, and in what rank?",
    cites="Shapley 1953; memory recalls: Bietti et al. 2023 (arXiv 2306.00802)",
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formula="v(S) = KL(bigram ‖ no paths) − KL(bigram ‖ paths in S), a removed path at its data mean\n"
    "share of a path = its Shapley value of v / v(all paths); shares add up to 1",
)
