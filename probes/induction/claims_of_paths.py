"""Claims of paths: what feeds an induction head by which input, and what the path carries."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import Claim, Condition, Evidence, Status
from mechmarkov.models.components import head_index
from mechmarkov.probing.dataset import NORMAL_95, head_name, normal_interval

from .circuit import (
    MAX_SHARE_LEFT,
    askers_of,
    fed_alike,
    strongest_feeder,
    tied_heads,
)
from .feeding import ESTIMATE

# Below this many nats a path carries no predictions.
MIN_EFFECT_NATS = 0.01
INTERVENED: Evidence = "intervention"


def feeds_keys(last: xr.Dataset, head: xr.Dataset, name: str) -> Iterator[Claim]:
    """Yields which earlier heads feed the keys of each head that ties, and what is left without them."""
    through = Condition("through", words=("keys",))
    tied = tied_heads(last) or [(int(head["layer"]), int(head["head"]))]
    for feeders, some in fed_alike(last, tied).items():
        heads = tuple(head_name({"layer": layer, "head": index}) for layer, index in some)
        if not feeders:
            yield (
                _not_fed(head, heads)
                if name in heads
                else Claim(
                    (), "feeds", heads, None, None, 1.0, "share", "open", INTERVENED, because=(through,)
                )
            )
            continue
        one = last.isel(layer=some[0][0], head=some[0][1])
        value, low, high = (float(one["tied_left"].sel(estimate=end)) for end in ESTIMATE)
        beside = [
            Condition(
                "previous token", value=float(last["previous_token"][at]), unit="probability", words=(who,)
            )
            for who in feeders
            if (at := head_index(who)) is not None
        ]
        if name in heads:
            beside += [
                Condition("score before and after", value=float(head["intact"])),
                Condition("after the cut", value=float(head["cut"].sel(input="K"))),
            ]
        yield Claim(
            feeders, "feeds", heads, value, (low, high), 1.0, "share", "shown", INTERVENED,
            because=(through, *beside),
        )  # fmt: skip


def _not_fed(head: xr.Dataset, heads: tuple[str, ...]) -> Claim:
    """Returns what is left of the score of a head that no earlier head feeds, without all of them."""
    through = Condition("through", words=("keys",))
    low, high = (float(head["earlier_left"].sel(estimate=end)) for end in ("low", "high"))
    if strongest_feeder(head) is None:
        return Claim((), "feeds", heads, None, None, 1.0, "share", "excluded", INTERVENED, because=(through,))
    if not np.isfinite(low):
        return Claim((), "feeds", heads, None, None, 1.0, "share", "open", INTERVENED, because=(through,))
    status: Status = "open" if low <= MAX_SHARE_LEFT else "excluded"
    ends = (max(0.0, low), min(1.0, high))
    return Claim((), "feeds", heads, None, ends, 1.0, "share", status, INTERVENED, because=(through,))


def feeds_queries(head: xr.Dataset, heads: tuple[str, ...]) -> Iterator[Claim]:
    """The earlier heads by which a head knows what to look for; most heads see that in their own token."""
    if askers := tuple(head_name(asker) for asker in askers_of(head)):
        value, low, high = (float(head["query_left"].sel(estimate=end)) for end in ESTIMATE)
        through = Condition("through", words=("queries",))
        yield Claim(
            askers, "feeds", heads, value, (low, high), 1.0, "share", "shown", INTERVENED, because=(through,)
        )


def carried(
    data: xr.Dataset,
    head: xr.Dataset,
    heads: tuple[str, ...],
    feeders: tuple[str, ...],
    against: tuple[str, ...] = (),
    along: tuple[str, ...] = (),
) -> Iterator[Claim]:
    """Yields what KL from the reference gains when the path from the feeders to the keys is cut."""
    intact, cut = float(head["kl_intact"]), float(head["kl_cut"].sel(input="K"))
    low, high = normal_interval(cut - intact, float(head["kl_error"].sel(input="K")))
    simpler, apart = float(data["kl_simpler"]), NORMAL_95 * float(head["simpler_error"])
    beside = [
        Condition("from", value=intact, unit="nats"),
        Condition("to", value=cut, unit="nats"),
        Condition("simpler law", value=simpler, unit="nats", words=(str(data.attrs["simpler"]),)),
    ]
    if high < 0 and cut - intact < -MIN_EFFECT_NATS:
        status: Status = "excluded"
        beside.append(Condition("does harm"))
    elif low > 0 and cut - intact > MIN_EFFECT_NATS:
        status = "shown"
        if set(against) == set(heads):  # what else there is would be too sure of the law without it
            status = "excluded"
            beside.append(Condition("takes from the law"))
        elif simpler - intact <= max(apart, MIN_EFFECT_NATS):
            other = Condition("not the law's", intact >= simpler + apart)
            # Heads that write along the law have some of it, and are too sure of it.
            beside.append(Condition("some of it") if set(along) == set(heads) else other)
        elif low <= MAX_SHARE_LEFT * (simpler - intact):
            beside.append(Condition("some of it"))
        elif intact + apart >= MAX_SHARE_LEFT * simpler:
            beside.append(Condition("most of what there is"))
    else:
        status = "excluded" if high <= MIN_EFFECT_NATS else "open"
        # Heads write the law, and KL is as large without them. Where it is small the rest has the law too.
        if status == "excluded" and set(along) == set(heads) and intact > MIN_EFFECT_NATS:
            beside.append(Condition("too sure"))
    yield Claim(
        (*feeders, *heads), "carries", (str(data.attrs["reference"]),), cut - intact, (low, high), 0.0,
        "nats", status, INTERVENED, because=tuple(beside),
    )  # fmt: skip
