"""Where the bigram is stored: which path holds it, how much of it, and in what rank."""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.preconditions import why_no_bigram
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import listed

from . import figures, measure
from .claims import claims, headline, somewhere, why_no_home
from .home import cancelling, homes_of, rank_90, weight_of
from .unigram_claims import unigram_scores


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: one process behind all sequences, with dependent neighbours."""
    return why_no_bigram(subject.source)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The homes of bigram and unigram, the shares, and the rank that the home's weight needs, by name."""
    return _of_the_bigram(data, null) | unigram_scores(data, null)


def _of_the_bigram(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    last, homes = last_model(data), homes_of(data)
    nats = float(last["gain"])
    gain = score_with_null(lambda d: d["gain"], data, null, "nats", interval=interval_at(data, "gain"))
    if data.attrs["objective"] != "cross_entropy":
        # Random scores below zero are read as impossible, at 28 nats each: their gains tell nothing.
        kind = "paths that say nothing of the state"
        gain = Score(nats, "nats", 0.0, interval_at(data, "gain"), kind)
    parent_gain = Score(float(last["parent_gain"]), "nats", 0.0, null_kind="a model that ignores the parent")
    stored_gain = Score(float(last["stored_gain"]), "nats", 0.0, null_kind="a model that counts transitions")
    there = [] if homes else [path for claim in somewhere(last) for path in claim.subject]
    scored = {"bigram_home": Score(" + ".join(homes or there) or "none", ""), "gain": gain}
    scored |= {"parent_gain": parent_gain, "stored_gain": stored_gain}
    if there:
        why = f"{there[0]} holds the bigram at some places only"
        return scored | {"rank_90": Score(None, "rank", reason=why)}
    if not homes:
        return scored | {"rank_90": Score(None, "rank", reason=why_no_home(data))}
    for path in data["path"].values:
        share, interval = float(last["net_share"].sel(path=path)), interval_at(data, "net_share", path=path)
        scored[f"share_{path}"] = Score(share, "share", 1 / data.sizes["path"], interval, "an even split")
    for group in cancelling(last):
        net = float(last["net_share"].sel(path=group[0]))
        signed = [f"{path} ({float(last['share'].sel(path=path)):+.2f})" for path in group]
        why = f"{listed(signed)} cancel; together they hold {net:.2f}"
        scored |= {f"share_{path}": Score(None, "share", reason=why) for path in group}
    weight, rank = weight_of(homes[0]), rank_90(data, homes[0])
    if rank is None:
        why = f"{weight} is not trained, or no rank of it keeps 90 % of the bigram part"
        return scored | {"rank_90": Score(None, "rank", reason=why)}
    if rank == 0:
        why = f"90 % of the bigram part is left with {weight} at rank 0: it is in no rank of this weight"
        return scored | {"rank_90": Score(None, "rank", reason=why)}
    full = float(data["full_rank"].sel(weight=weight))
    return scored | {"rank_90": Score(rank, "rank", full, null_kind=f"full rank of {weight}")}


probe = Probe(
    name="storage",
    question="Which path holds the bigram, how much of it, and in what rank?",
    cites="Shapley 1953",
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures.draw,
    formula="v(S) = KL(bigram ‖ no paths) − KL(bigram ‖ paths in S), a removed path at its data mean\n"
    "share of a path = its Shapley value of v / v(all paths); shares add up to 1",
    formulas={
        "bigram_home": "the largest shares of paths that by themselves bring it nearer, until they hold "
        "nine tenths; "
        "where that changes with the sequences, all that do for any",
        "gain": "v(all paths)",
        "parent_gain": "KL(new parent's row ‖ prediction) before − after the parent is set, over positions",
        "stored_gain": "parent_gain in contexts of independent states",
        "share_*": "Shapley value of the path in v / v(all paths)",
        "unigram_home": "the largest Shapley shares of KL(unigram ‖ uniform) − KL(unigram ‖ mean "
        "contributions of parts), until they hold nine tenths; without those that write it only if tokens "
        "come that often",
        "unigram_left": "KL(unigram ‖ mean prediction)",
        "rank_90": "least rank of the home's weight that keeps 90 % of the loss's bigram part",
    },
    with_bos=True,
)  # fmt: skip
