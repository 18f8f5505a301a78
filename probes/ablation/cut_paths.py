"""Effects of paths: what one component writes, taken from what one later component reads."""

from collections.abc import Sequence
from functools import partial

import xarray as xr

from mechmarkov.interventions.ablate import ablate_path
from mechmarkov.interventions.paths import paths
from mechmarkov.interventions.replace import Kind
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import model_axis
from mechmarkov.probing.effects import effects
from mechmarkov.probing.subject import Subject

from .components import Grid

# Every path is a forward pass for each kind: beyond these numbers only means, then only main components.
MAX_PATHS_ALL_KINDS = 40
MAX_PATHS = 64


def of_paths(subject: Subject, batch: Batch, importance: dict[str, float], *, is_last: bool) -> xr.Dataset:
    """`path_effect` [axis, path, path_kind, measure], with the `sender` and `receiver` of each path.

    Where there are very many paths, those between the components of most `importance`; `paths_left_out` says
    how many are not there. Of models before the last, whose paths only the circuit draws, only means.

    Args:
        subject: The models.
        batch: The sequences.
        importance: What each component is worth (nats), by its name.
        is_last: Whether the last model is among them.
    """
    everything = paths(subject.decoder)
    chosen = _main_paths(everything, importance) if len(everything) > MAX_PATHS else everything
    few = len(chosen) <= MAX_PATHS_ALL_KINDS
    kinds: tuple[Kind, ...] = ("zero", "mean", "resample") if few and is_last else ("mean",)
    if few and subject.objective.kind != "cross_entropy":  # the circuit is drawn from these
        kinds = (*kinds, "resample") if "resample" not in kinds else kinds
    cuts: Grid = {
        (f"{sender} → {receiver}", kind): partial(ablate_path, sender=sender, receiver=receiver, kind=kind)
        for sender, receiver in chosen
        for kind in (kinds if sender != "pos_embed" else ("zero",))
    }
    senders, receivers = (("path", list(ends)) for ends in zip(*chosen, strict=True))
    return (
        effects(subject, batch, cuts, ("path", "path_kind"), "path_effect")
        .reindex(path_kind=["zero", "mean", *["resample"] * few])
        .assign_coords(sender=senders, receiver=receivers)
        .assign_attrs(paths_left_out=len(everything) - len(chosen))
    )


def _main_paths(everything: Sequence[tuple[str, str]], importance: dict[str, float]) -> list[tuple[str, str]]:
    """The paths between as many of the most important components as the limit allows."""
    parts: set[str] = {"embed", "pos_embed", "logits"}
    # What each component tells the logits is there in any case: it shows what later ones make up for.
    to_logits = [path for path in everything if path[1] == "logits"][:MAX_PATHS]
    chosen = [path for path in everything if set(path) <= parts or path in to_logits][:MAX_PATHS]
    for name in sorted(importance, key=lambda name: -importance[name]):
        parts |= {name, f"{name}.Q", f"{name}.K", f"{name}.V"}
        more = [path for path in everything if set(path) <= parts or path in to_logits]
        if len(more) > MAX_PATHS:
            break
        chosen = more
    return chosen


def direct_effects(data: xr.Dataset) -> dict[str, float]:
    """Returns what each component's direct path to the logits costs the last model, at its mean.

    Args:
        data: What `of_paths` returned.
    """
    last = data["path_effect"].isel({model_axis(data): -1}).sel(measure="loss", path_kind="mean")
    to_logits = last[data["receiver"].values == "logits"].swap_dims(path="sender")
    return to_logits.fillna(0.0).to_series().to_dict()
