"""Paths of a circuit: what each is worth by itself, which are sure, and which are told."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from mechmarkov.models.components import split_input

ENDS = {"embed", "pos_embed", "logits"}  # of all paths: what is embedded, and what is predicted
Path = tuple[str, str]  # sender and receiver, such as ("L0H1", "L1H0.K")


def largest_effect(effects: Mapping[Path, float]) -> float:
    """The largest effect of one path on the loss, in size (nats): the scale of the drawn widths; 0 of none.

    >>> largest_effect({("embed", "L0H0.V"): 0.25, ("L0H0", "logits"): -0.5})
    0.5
    """
    return max((abs(effect) for effect in effects.values()), default=0.0)


def certain(data: xr.Dataset) -> set[Path]:
    """The paths whose interval excludes zero; all of them where no interval was measured."""
    if "path_effect_low" not in data:
        return set(path_effects(data))
    low, high = path_effects(data, "path_effect_low"), path_effects(data, "path_effect_high")
    return {path for path in low if low[path] > 0 or high[path] < 0}


def path_effects(data: xr.Dataset, name: str = "path_effect") -> dict[Path, float]:
    """Returns the rise of the last step's loss (nats) with one path at its mean, or zero if it has none.

    Of a model trained on scores, which are nobody's at a mean, with another sequence's output in it.
    """
    now = data[name][-1].sel(measure="loss").transpose("path_kind", "path")
    values = np.full(data.sizes["path"], np.nan)
    for kind in ("zero", "resample") if is_resampled(data) else ("zero", "mean"):
        if kind in now["path_kind"].values:
            of_kind = now.sel(path_kind=kind).values
            values = np.where(np.isfinite(of_kind), of_kind, values)
    ends = zip(map(str, data["sender"].values), map(str, data["receiver"].values), strict=True)
    return {path: value for path, value in zip(ends, values.tolist(), strict=True) if np.isfinite(value)}


def is_resampled(data: xr.Dataset) -> bool:
    """Returns whether paths are drawn by what another sequence's output in them costs."""
    on_scores = data.attrs.get("objective", "cross_entropy") != "cross_entropy"
    if not on_scores or "resample" not in data["path_kind"].values:
        return False
    return bool(np.isfinite(data["path_effect"][-1].sel(path_kind="resample")).any())


def is_between(path: Path, named: Sequence[str]) -> bool:
    """Returns whether a path has no other ends than named parts, what is embedded and the logits.

    From `embed` to `logits` it is the direct path, which is named `direct`.

    >>> is_between(("L0H1", "L1H0.K"), ["L0H1"]), is_between(("embed", "logits"), ["direct"])
    (False, True)
    """
    ends = {split_input(end)[0] for end in path} - ENDS
    return ends <= {*named} if ends else "direct" in named and path[0] == "embed"


def main_paths(effects: Mapping[Path, float], least: float) -> set[Path]:
    """Returns the paths that are worth that much, and the largest out of each part and into it."""
    main = {path for path, effect in effects.items() if abs(effect) >= least}
    for end in (0, 1):
        by_part: dict[str, Path] = {}
        for path in sorted(effects, key=lambda path: abs(effects[path])):
            by_part[split_input(path[end])[0]] = path
        main |= set(by_part.values())
    return main
