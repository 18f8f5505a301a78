"""Where the bigram is stored: which path holds it, how much of it, and in what rank."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.preconditions import why_no_bigram
from mechmarkov.probing.recording import PATHS
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.theory.kernel import row_centred

from .measure import NOTHING, by_parent, gains, recalls, shares, tables, truncations

# Paths are named as the home, the largest first, until they hold this share together.
HOME = 0.6

# The share of the bigram part of the loss that is left at `rank_90`.
KEPT = 0.9


def applies(subject: Subject) -> str | None:
    """Only where one process is behind all sequences, and neighbours depend on each other."""
    return why_no_bigram(subject.source)


def measure(subject: Subject) -> xr.Dataset:
    """Tables, sufficiency, necessity, shares, ranks and recalls of every path.

    A path is the embedding straight to the unembedding ("direct"), a head's output or an MLP's, as they are
    when the model runs on the evaluation sequences; a path that is removed keeps its data mean. KLs are from
    the exact bigram, means over predictions, in nats.

    Returns:
        `kl_empty`, `kl_full`, `gain`, `gain_low`, `gain_high` [axis]: with every path removed, with none, and
        the difference, which is what there is to share (with a 95 % bootstrap interval over sequences);
        `kl_only`, `kl_without` [axis, path]: sufficiency and necessity;
        `worth`, `worth_error` [axis, path]: Shapley values (exact up to 10 paths, else from 2 000 sampled
        orders with their standard error); `share`, `share_low`, `share_high` [axis, path]: of the gain, NaN
        where that is below 0.01 nats;
        `parent_gain` [axis]: what setting the parent, and nothing else, makes the model nearer to the rows of
        P: 0 for one that predicts from other tokens;
        `table` [axis, path, state_from, state_to] (score units): E[contribution to the logits | parent];
        `table_kl` [axis, path]: KL from P to that table alone;
        `loss_parts` [axis, part] and `rank_parts` [axis, weight, rank, part]: log K less the loss, split into
        what the unigram, the bigram and the context give, whole and with one weight cut to a rank;
        `rank_kept`, `full_rank`: what rank that is;
        `copy_recall`, `previous_recall`, `match_recall` (probability), `mlp_kl`: associative memories by
        weights alone;
        `kernel` [state_from, state_to]: P.
        On null models only the KLs over [axis].
    """
    attrs = {
        "source": subject.source.title(),
        "labels": list(subject.source.labels),
        "objective": subject.objective.kind,
        "paths": len(subject.recorded(PATHS).names),
    }
    if subject.axis == "seed":
        return gains(subject).assign_attrs(attrs)
    found = [shares(subject), by_parent(subject), tables(subject), truncations(subject), recalls(subject)]
    return xr.merge(found).assign_attrs(attrs)


def home(data: xr.Dataset) -> list[str]:
    """The paths that hold the bigram at the last step, the largest share first.

    None where there are less than 0.01 nats to share, or less than that comes from the parent: a head that
    reads P² two tokens back is nearer to the bigram than nothing, but holds another table.
    """
    share = data["share"][-1]
    if not np.isfinite(share.values).all() or float(data["parent_gain"][-1]) < NOTHING:
        return []
    order = np.argsort(-share.values, kind="stable")
    held = np.cumsum(share.values[order])
    # A hundredth of a share is no majority: half and half is held by both.
    return [str(path) for path in data["path"].values[order[: int((held < HOME).sum()) + 1]]]


def weight_of(path: str) -> str:
    """The weight that a path's table is in."""
    return f"{path}.OV" if "H" in path else f"{path}.W_out" if path.endswith("mlp") else path


def rank_90(data: xr.Dataset, path: str) -> int | None:
    """The smallest rank tried from which on the path's weight keeps 90 % of the bigram part of the loss."""
    weight = weight_of(path)
    if weight not in data["weight"].values:
        return None
    last = data.isel({str(data["gain"].dims[0]): -1}).sel(weight=weight)
    parts, kept = last["rank_parts"].sel(part="bigram").values, last["rank_kept"].values
    tried = np.isfinite(kept)
    enough = parts[tried] >= KEPT * float(last["loss_parts"].sel(part="bigram"))
    falls_short = np.flatnonzero(~enough)
    first = int(falls_short[-1]) + 1 if falls_short.size else 0
    return int(kept[tried][first]) if first < tried.sum() else None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Home, shares, and the rank that the home's weight needs."""
    axis = str(data["gain"].dims[0])
    last = data.isel({axis: -1})
    gain = float(last["gain"])
    homes = home(data)
    band: tuple[float, float, float] | float | None
    band, kind = None if null is None else null_band(null["gain"]), NULL_KIND
    if data.attrs["objective"] != "cross_entropy":
        # Random scores below zero are read as impossible, at 28 nats each: their gains tell nothing.
        band, kind = 0.0, "paths that say nothing of the state"
    interval = float(last["gain_low"]), float(last["gain_high"])
    found = {
        "bigram_home": Score(" + ".join(homes) or "none", ""),
        "gain": Score(gain, "nats", band, interval, kind),
    }
    if not homes:
        nothing = f"the paths together are worth {gain:.3g} nats, below {NOTHING}: there is nothing to share"
        if gain >= NOTHING:
            nothing = "what the paths are worth does not come from the parent: no path holds the bigram"
        return found | {"rank_90": Score(None, "rank", reason=nothing)}
    for path in data["path"].values:
        at = last.sel(path=path)
        found[f"share_{path}"] = Score(
            float(at["share"]),
            "share",
            1 / data.sizes["path"],
            (float(at["share_low"]), float(at["share_high"])),
            "an even split",
        )
    rank = rank_90(data, homes[0])
    if rank is None:
        why = f"{weight_of(homes[0])} is not trained, or no rank of it keeps 90 % of the bigram part"
        found["rank_90"] = Score(None, "rank", reason=why)
    else:
        full = float(data["full_rank"].sel(weight=weight_of(homes[0])))
        found["rank_90"] = Score(rank, "rank", full, null_kind=f"full rank of {weight_of(homes[0])}")
    return found


def verdict(data: xr.Dataset) -> str:
    """Who holds the bigram, in one sentence."""
    last = data.isel({str(data["gain"].dims[0]): -1})
    gain, empty, full = (float(last[name]) for name in ("gain", "kl_empty", "kl_full"))
    homes = home(data)
    if not homes and gain >= NOTHING:
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
        full_rank = int(data["full_rank"].sel(weight=weight_of(homes[0])))
        said += f"; rank {rank} of {full_rank} of {weight_of(homes[0])} keeps 90 % of it"
    return said + "."


def figures(data: xr.Dataset) -> list[Figure]:
    """Shares, sufficiency and necessity, the home's table beside P, its ranks, and all over training."""
    axis = str(data["gain"].dims[0])
    last = data.isel({axis: -1})
    paths = [str(path) for path in data["path"].values]
    labels = [str(label) for label in data.attrs["labels"]]
    homes = home(data)
    found = []
    errors = (last["share_low"].values, last["share_high"].values) if homes else None
    shown, unit = ("share", "share of the gain") if homes else ("worth", "nats")
    found.append(
        Figure(
            "What each path gives",
            "Shapley values of what all paths together are nearer to the exact bigram than their means are.",
            "plotly",
            bars(paths, last[shown].values, y_title=unit, errors=errors),
        )
    )
    both = np.concatenate([last["kl_only"].values, last["kl_without"].values])
    found.append(
        Figure(
            "Sufficient, necessary",
            "KL from the exact bigram to the model with only one path, and with all but one, the others at "
            "their mean.",
            "plotly",
            bars(
                [f"only {path}" for path in paths] + [f"without {path}" for path in paths],
                both,
                y_title="nats",
                references={"none removed": float(last["kl_full"]), "all removed": float(last["kl_empty"])},
            ),
        )
    )
    path = homes[0] if homes else paths[int(np.argmax(last["worth"].values))]

    def table(matrix: np.ndarray, value: str) -> go.Figure:
        figure = heatmap(matrix, labels, labels, diverging=True, value_title=value)
        return figure.update_layout(xaxis_title="next state", yaxis_title="parent state")

    found.append(
        Figure(
            f"What {path} says of the next state",
            "Its mean contribution to the logits given the parent state, each row less its mean.",
            "plotly",
            table(row_centred(np.nan_to_num(last["table"].sel(path=path).values)), "score"),
            key="contribution of the home",
        )
    )
    kernel = data["kernel"].values
    found.append(
        Figure(
            "The transition matrix of the source",
            "P: the truth.",
            "plotly",
            heatmap(kernel, labels, labels, limits=(0, 1), value_title="probability"),
        )
    )
    weight = weight_of(path)
    if weight in data["weight"].values:
        curve = last.sel(weight=weight)
        tried = np.isfinite(curve["rank_kept"].values)
        series = {str(part): curve["rank_parts"].sel(part=part).values[tried] for part in data["part"].values}
        found.append(
            Figure(
                f"What is left of the loss when {weight} is cut to a rank",
                "log K less the loss, split into what the mean prediction gives (unigram), what the current "
                "state adds (bigram), and what the rest of the context adds.",
                "plotly",
                lines(curve["rank_kept"].values[tried], series, x_title="rank kept", y_title="nats"),
                key="rank",
            )
        )
    if axis == "step" and data.sizes["step"] > 1:
        series = {name: data["worth"].sel(path=name).values for name in paths}
        found.append(
            Figure(
                "What each path gives over training",
                "Shapley values, in nats; they add up to the gain.",
                "plotly",
                lines(data["step"].values.astype(float), series, x_title="step", y_title="nats"),
            )
        )
    return found


probe = Probe(
    name="storage",
    question="Which path holds the bigram, how much of it, and in what rank?",
    cites="Shapley 1953; memory recalls: Bietti et al. 2023 (arXiv 2306.00802)",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="v(S) = KL(bigram ‖ no paths) − KL(bigram ‖ paths in S), a removed path at its data mean\n"
    "share of a path = its Shapley value of v / v(all paths); shares add up to 1",
)
