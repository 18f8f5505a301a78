"""Which paths are the bigram's home, and the rank that the home's weight needs."""

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing.dataset import last_model

from .measure import MIN_GAIN_NATS

# Paths are named as the home, the largest first, until they hold this share together. A hundredth of a share
# is not a majority: half and half is held by both.
MIN_HOME_SHARE = 0.6

# The share of the bigram part of the loss that is left at `rank_90`.
MIN_KEPT_SHARE = 0.9


def homes_of(data: xr.Dataset) -> list[str]:
    """The paths that hold the bigram at the last step, the largest share first.

    None where there are less than 0.01 nats to share, or less than that comes from the parent: a head that
    reads P² two tokens back is nearer to the bigram than nothing, but holds another table.
    """
    last = last_model(data)
    share = last["share"].values
    if not np.isfinite(share).all() or float(last["parent_gain"]) < MIN_GAIN_NATS:
        return []
    order = np.argsort(-share, kind="stable")
    held = np.cumsum(share[order])
    return [str(path) for path in data["path"].values[order[: int((held < MIN_HOME_SHARE).sum()) + 1]]]


def weight_of(path: str) -> str:
    """The weight that a path's table is in."""
    if head_index(path) is not None:
        return f"{path}.OV"
    return path if mlp_index(path) is None else f"{path}.W_out"


def rank_90(data: xr.Dataset, path: str) -> int | None:
    """The smallest rank tried from which on the path's weight keeps 90 % of the bigram part of the loss."""
    weight = weight_of(path)
    if weight not in data["weight"].values:
        return None
    last = last_model(data).sel(weight=weight)
    parts, kept = last["rank_parts"].sel(part="bigram").values, last["rank_kept"].values
    tried = np.isfinite(kept)
    enough = parts[tried] >= MIN_KEPT_SHARE * float(last["loss_parts"].sel(part="bigram"))
    falls_short = np.flatnonzero(~enough)
    first = int(falls_short[-1]) + 1 if falls_short.size else 0
    return int(kept[tried][first]) if first < tried.sum() else None
