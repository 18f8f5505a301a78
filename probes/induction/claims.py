"""Claims of induction: which heads match tokens, what feeds them by which input, what the path carries."""

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Condition
from mechmarkov.probing.dataset import head_name, last_model
from mechmarkov.probing.score import Score

from .circuit import (
    is_moved,
    last_induction_head,
    tied_heads,
)
from .claims_of_heads import MIN_AGAINST, MIN_ALONG, is_head, lookalikes, misses_after, no_head, writing
from .claims_of_paths import carried, feeds_keys, feeds_queries


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """The induction heads, what feeds them and what that path carries; or what only looks like one."""
    last, (head, name) = last_model(data), last_induction_head(data)
    if not np.isfinite(float(head["induction"].sel(matched=1))):
        nothing = (Condition("no match"),)
        return [Claim((MODEL,), "is_induction_head", status="does not apply", because=nothing)]
    if not is_moved(head):
        return [no_head(last), *lookalikes(data, last)]
    heads = tuple(head_name({"layer": layer, "head": index}) for layer, index in tied_heads(last)) or (name,)
    feeds = list(feeds_keys(last, head, name))
    feeders = tuple(dict.fromkeys(who for claim in feeds if claim.is_shown for who in claim.subject))
    asked = list(feeds_queries(head, heads))
    against, along = writing(last, heads, -1, MIN_AGAINST), writing(last, heads, 1, MIN_ALONG)
    carries = list(carried(data, head, heads, feeders, against, along)) if feeders else []
    circuit = [*feeds, *asked, *carries] if feeders else []
    return [
        *circuit,
        is_head(data, head, heads, scores, against, carries),
        *([] if circuit else [*feeds, *asked]),
        *(claim for name in heads for claim in misses_after(data, last, name)),
    ]
