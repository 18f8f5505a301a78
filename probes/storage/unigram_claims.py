"""Claims and scores of the unigram: which parts write it on average, or why none is named."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import Claim, Condition, Evidence, decided
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.score import Score

from .home import MIN_GAIN_SHARE, MIN_NAMED_SHARE
from .unigram import holders, is_told_from_uniform

UNIGRAM = ("unigram",)
EVIDENCE: Evidence = "recording"  # means of what parts write are read off, and nothing is put in their place


def unigram_scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Returns the unigram's home, and what of it the mean prediction has left."""
    left = score_with_null(
        lambda d: d["unigram_left"], data, null, "nats", interval=interval_at(data, "unigram_left")
    )
    if not is_told_from_uniform(data):
        why = f"does not apply: the unigram is {float(data['unigram_uniform']):.2g} nats from the uniform law"
        home = Score(None, "", reason=f"{why}, so no part needs to hold it")
        return {"unigram_home": home, "unigram_left": left}
    own, _ = holders(last_model(data))
    return {"unigram_home": Score(" + ".join(own) or "none", ""), "unigram_left": left}


def unigram_claims(data: xr.Dataset) -> Iterator[Claim]:
    """Yields which parts write the unigram on average, what works against it, and what each holds."""
    last = last_model(data)
    empty, full = float(data["unigram_uniform"]), float(last["unigram_full"])
    ends = (
        Condition("from", value=empty, unit="nats"),
        Condition("to", value=full, unit="nats"),
    )
    if not is_told_from_uniform(data):
        premise = Condition("the unigram is uniform", value=empty, unit="nats")
        yield Claim((), "stores", UNIGRAM, status="does not apply", evidence=EVIDENCE, because=(premise,))
        return
    own, copied = holders(last)
    if not own:
        why = "with such tokens only" if copied else "the means lead away"
        premises = (Condition(why), *ends)
        yield Claim(tuple(copied), "stores", UNIGRAM, status="excluded", evidence=EVIDENCE, because=premises)
    else:
        players = {int(last["unigram_cancels"].sel(component=part)): part for part in own}
        share = sum(float(last["unigram_share"].sel(component=part)) for part in players.values())
        around = interval_at(data, "unigram_share", component=own[0]) if len(players) == 1 else None
        some = Condition("what there is of it", full > MIN_GAIN_SHARE * empty)
        rest = (Condition("with such tokens only", words=tuple(copied)),) * bool(copied)
        yield Claim(
            tuple(own), "stores", UNIGRAM, share, around, None, "share", "shown", EVIDENCE,
            because=(some, *rest, *ends),
        )  # fmt: skip
    if np.isfinite(last["unigram_share"].values).all():
        yield from _shares(data)


def _shares(data: xr.Dataset) -> Iterator[Claim]:
    """Yields what each part holds of the unigram, or takes away from the others."""
    last, even = last_model(data), 1 / data.sizes["component"]
    group = last["unigram_cancels"].values
    for part in map(str, data["component"].values):
        together = data["component"].values[group == int(last["unigram_cancels"].sel(component=part))]
        if len(together) > 1:  # what one writes the others take back: none has a share of its own
            continue
        value = float(last["unigram_share"].sel(component=part))
        low, high = interval_at(data, "unigram_share", component=part)
        if high < -MIN_NAMED_SHARE:
            around = (-high, -low)
            yield Claim((part,), "works_against", UNIGRAM, -value, around, None, "share", "shown", EVIDENCE)
        status = decided((low, high), MIN_NAMED_SHARE, value)
        yield Claim((part,), "holds_share", UNIGRAM, value, (low, high), even, "share", status, EVIDENCE)
