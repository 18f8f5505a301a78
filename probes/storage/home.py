"""Which paths are the bigram's home, and the rank that the home's weight needs."""

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing.dataset import last_model

from .game import MIN_GAIN_NATS

# Paths are named as the home, the largest first, until they hold this share together. A hundredth of a share
# is not a majority: half and half is held by both.
MIN_HOME_SHARE = 0.9

TIED_SHARE = 0.02  # shares that differ by less are equal: the larger of the two is not the only one named
TIED_PART = 0.1  # of the share, likewise
ROUNDING = 1e-9
MIN_STABLE = 0.8  # of resampled sequences with the same home
MIN_FREQUENCY = 0.05  # of resampled sequences with a path in their home; a rarer one is none
MIN_NAMED_SHARE = 0.02  # a negative share is named from this size on

# A model that reads the parent at fewer positions does so for want of another token, as at the first.
MIN_POSITION_SHARE = 0.25

# Of what setting the parent does, at least so much is left in a context without transitions.
MIN_STORED_SHARE = 0.5
# Where clearly less is left, a path that copies from the context may have the larger share: none is named.
MIN_NAMED_STORED_SHARE = 0.95

# A smaller share of the way to the bigram, or of following the parent, is next to nothing.
MIN_GAIN_SHARE = 0.1

# Of what the home gives at the whole model's norm scale, at least so much is left at its own.
MIN_RESCALED_SHARE = 0.5

# A path that by itself is farther from the bigram than this share of what the unigram is holds another law.
MAX_HELD_SHARE = 0.5

MIN_KEPT_SHARE = 0.9  # of the bigram part of the loss, at `rank_90`


def homes_of(data: xr.Dataset) -> list[str]:
    """The paths that hold the bigram at the last step; none if they do only at others' scale.

    Args:
        data: What `measure` returned.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probes.storage import probe
        >>> data = probe.measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> homes_of(data), reads_parent(data.isel(step=-1)), weight_of("L0H0")
        (['L0H0'], True, 'L0H0.OV')
    """
    return [] if needs_others_scale(last_model(data)) else largest_holders(data)


def needs_others_scale(last: xr.Dataset) -> bool:
    """Returns whether half of what one model's home gives is gone where the final norm's scale is its own.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    given, rescaled = (float(last["kl_empty"] - last[name]) for name in ("home_only", "home_rescaled"))
    return rescaled < MIN_RESCALED_SHARE * given


def largest_holders(data: xr.Dataset) -> list[str]:
    """The paths with the largest shares at the last step, the largest first.

    Paths that cancel count as one, with what is left of them. A path that by itself brings it no nearer
    than none is named only where those that do hold too little. None where there are less than 0.01 nats to
    share, or the parent is not what they come from: a head that reads P² two tokens back is nearer to the
    bigram than nothing, but holds another table. None where some of the bigram comes from the context, as
    shares do not tell what is copied from what is stored.

    Args:
        data: What `measure` returned.
    """
    last = last_model(data)
    share = last["net_share"].values
    if not np.isfinite(share).all() or not (reads_parent(last) and _is_stored(last)):
        return []
    chosen = smallest_set(share, last["net_only"].values < float(last["kl_empty"]), last["cancels"].values)
    if not is_stable(last):  # all that are in it for other sequences
        often = last["home_frequency"].values >= MIN_FREQUENCY
        chosen += [int(i) for i in np.argsort(-share, kind="stable") if often[i] and i not in chosen]
    # Without a path that writes against the law the others may be too sure: it holds nothing for all that.
    along = last["along"].values
    return [str(data["path"].values[i]) for i in chosen if along[i] > 0]


def is_stable(last: xr.Dataset) -> bool:
    """Returns whether one model's home is the same for most resampled sequences."""
    return bool(float(last["home_stable"]) >= MIN_STABLE)


def smallest_set(
    share: Float[np.ndarray, " path"], nearer: Bool[np.ndarray, " path"], group: Int[np.ndarray, " path"]
) -> list[int]:
    """Returns the fewest paths that hold nine tenths, the largest first, and those that equal the last one.

    Args:
        share: The share of each path, the same for paths that cancel.
        nearer: Whether a path by itself brings it nearer than none; others come last.
        group: Paths with one number cancel, and count once.

    Example:
        >>> smallest_set(np.array([0.3, 0.1, 0.6]), np.full(3, True), np.arange(3))
        [2, 0]
    """
    nearer = nearer & (share > 0)
    held, seen, least, chosen = 0.0, set[int](), -np.inf, list[int]()
    for i in np.lexsort((-share, ~nearer)):
        enough = held >= MIN_HOME_SHARE - ROUNDING
        if enough and (share[i] < least - min(TIED_SHARE, TIED_PART * least) or not nearer[i]):
            break
        chosen.append(int(i))
        if group[i] not in seen and not enough:
            held, least = held + float(share[i]), float(share[i])
        seen.add(int(group[i]))
    return chosen


def resampled_sets(
    shares: Float[np.ndarray, "path draw"],
    nearer: Bool[np.ndarray, " path"],
    group: Int[np.ndarray, " path"],
    chosen: list[int],
) -> tuple[Float[np.ndarray, " path"], float]:
    """Returns how often each path is in resampled sequences' smallest set, and how often it is `chosen`."""
    often, same = np.zeros(len(shares)), 0
    for share in shares.T:
        drawn = smallest_set(share, nearer, group)
        often[drawn] += 1
        same += set(drawn) == set(chosen)
    draws = max(1, shares.shape[1])
    return often / draws, same / draws


def reads_parent(last: xr.Dataset) -> bool:
    """Returns whether one model predicts from the parent, on average and at more than a few positions.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    share = positions_read(last).mean()
    return float(last["parent_gain"]) >= MIN_GAIN_NATS and bool(share >= MIN_POSITION_SHARE)


def _is_stored(last: xr.Dataset) -> bool:
    """Returns whether a model may follow the parent nearly as well without transitions to copy."""
    surely_less = last.sizes["path"] > 1 and float(last["stored_share"][2]) < MIN_NAMED_STORED_SHARE
    return is_half_stored(last) and not surely_less


def is_half_stored(last: xr.Dataset) -> bool:
    """Returns whether half of following the parent is left where no transition stands in the context.

    Then the model has that half in its weights: there was nothing to copy.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    return float(last["stored_share"][0]) >= MIN_STORED_SHARE


def is_stored_open(last: xr.Dataset) -> bool:
    """Returns whether the interval of that share (`is_half_stored`) holds a half, so that it is open.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    _, low, high = (float(value) for value in last["stored_share"])
    return low < MIN_STORED_SHARE <= high


def positions_changed(last: xr.Dataset) -> np.ndarray:
    """Returns whether setting the parent changes a model's predictions, at each measured position.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    at = last["parent_change_at"].values
    return np.asarray(at[np.isfinite(at)] >= MIN_GAIN_NATS)


def is_changed(last: xr.Dataset) -> bool:
    """Returns whether setting the parent changes one model's predictions at more than a few positions.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    return bool(positions_changed(last).mean() >= MIN_POSITION_SHARE)


def held_alone(last: xr.Dataset) -> list[str]:
    """The path that by itself would be nearest to the bigram, if nearer than all and than the unigram.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    only, ends = last["kl_only"], min(float(last["kl_empty"]), float(last["kl_full"]))
    ends = min(ends, MAX_HELD_SHARE * float(last["kl_unigram"]))
    nearest = str(only["path"].values[int(only.argmin("path"))])
    return [nearest] * (float(only.min()) <= ends - MIN_GAIN_NATS)


def positions_read(last: xr.Dataset) -> np.ndarray:
    """Returns whether one model's predictions follow the parent, at each position that was measured.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    at = last["parent_gain_at"].values
    return np.asarray(at[np.isfinite(at)] >= MIN_GAIN_NATS)


def cancelling(last: xr.Dataset) -> list[list[str]]:
    """The groups of paths of one model that cancel: what one writes the others take back.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    group, names = last["cancels"].values, last["path"].values
    return [[str(name) for name in names[group == g]] for g in np.unique(group) if (group == g).sum() > 1]


def opposed(last: xr.Dataset) -> list[str]:
    """The paths that work against the bigram, of one model, and cancel with none in particular.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    inside = {name for group in cancelling(last) for name in group}
    against = map(str, last["path"].values[last["share"].values < -MIN_NAMED_SHARE])
    return [name for name in against if name not in inside]


def weight_of(path: str) -> str:
    """The weight that a path's table is in: "L0H1.OV" of the head "L0H1", else the path's own name."""
    if head_index(path) is not None:
        return f"{path}.OV"
    return path if mlp_index(path) is None else f"{path}.W_out"


def rank_90(data: xr.Dataset, path: str) -> int | None:
    """The smallest rank tried from which on the path's weight keeps 90 % of the bigram part of the loss.

    Args:
        data: What `measure` returned; the last model is asked.
        path: The path, such as "L0H0".

    Returns:
        None where there is no such rank.
    """
    weight = weight_of(path)
    if weight not in data["weight"].values:
        return None
    last = last_model(data).sel(weight=weight)
    parts, ranks = last["rank_parts"].sel(part="bigram").values, last["rank_kept"].values
    tried = np.isfinite(ranks)
    enough = parts[tried] >= MIN_KEPT_SHARE * float(last["loss_parts"].sel(part="bigram"))
    first = int(np.flatnonzero(~enough).max(initial=-1)) + 1
    return int(ranks[tried][first]) if first < tried.sum() else None
