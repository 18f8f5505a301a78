"""The arrays of the storage probe: who holds the bigram, table by table and nat by nat."""

import numpy as np
import torch
import xarray as xr

from mechmarkov.probing.effects import model_chunks, predictions, sequences_for, with_history
from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import interval, resampled_means
from mechmarkov.theory.kernel import FLOOR, kernel_kl

from . import memories
from .game import Shares, ends, share_out
from .truncation import PARTS, curves

# Under this many nats there is nothing to share.
NOTHING = 0.01

MOST_STATES = 24


def gains(subject: Subject) -> xr.Dataset:
    """`kl_empty`, `kl_full` and `gain` [axis] (nats) alone: what null models are asked for."""
    empty, full = (
        np.stack(rows) for rows in zip(*(ends(subject, i) for i in _members(subject)), strict=True)
    )
    return _gain(subject, empty, full)


@torch.no_grad()
def by_parent(subject: Subject) -> xr.Dataset:
    """What the parent itself tells the model, by setting it.

    Returns:
        `parent_gain` [axis] (nats): for the last prediction of each sequence, with the parent set to every
        state in turn and all else left as it is, how much nearer the prediction is to that state's row of P
        than its mean over the states is; weighted by `pi`. 0 for a model that ignores the parent, however
        well it predicts; the unigram's KL for the exact bigram.
    """
    source, batch = subject.source, sequences_for(subject)
    P, pi = (torch.tensor(np.array(getattr(source, name))) for name in ("P", "pi"))
    states, weight = torch.arange(source.n_states), pi
    if source.n_states > MOST_STATES:  # then a sample of them, as they come
        states = batch.history[:MOST_STATES, -1]
        weight = torch.full((len(states),), 1 / len(states), dtype=torch.float64)
    found = []
    for chunk in model_chunks(subject, batch):
        runs = []
        for state in states:
            history = batch.history.clone()
            history[:, -1] = state
            runs.append(predictions(subject, chunk.model, batch, with_history(batch, history))[:, :, -1])
        set_to = torch.stack(runs, dim=2)  # member, sequence, parent, next state
        mean = (set_to * weight[:, None]).sum(2, keepdim=True)
        nearer = (P[states] * (set_to.clamp_min(FLOOR).log() - mean.clamp_min(FLOOR).log())).sum(-1)
        found.append((nearer * weight).sum(-1).mean(-1))
    gain = torch.cat(found).numpy()
    return xr.Dataset(
        {"parent_gain": (subject.axis, gain, {"unit": "nats"})}, coords={subject.axis: subject.coordinates}
    )


def _members(subject: Subject) -> range:
    return range(len(subject.decoder))


def _gain(subject: Subject, empty: np.ndarray, full: np.ndarray) -> xr.Dataset:
    axis = subject.axis
    low, high = interval(empty - full)
    values = {
        "kl_empty": empty.mean(-1),
        "kl_full": full.mean(-1),
        "gain": (empty - full).mean(-1),
        "gain_low": low,
        "gain_high": high,
    }
    return xr.Dataset(
        {name: (axis, value, {"unit": "nats"}) for name, value in values.items()},
        coords={axis: subject.coordinates},
    )


def shares(subject: Subject) -> xr.Dataset:
    """The game of every model.

    Returns:
        `kl_empty`, `kl_full`, `gain`, `gain_low`, `gain_high` [axis] (nats);
        `kl_only`, `kl_without` [axis, path] (nats): sufficiency and necessity;
        `worth`, `worth_error` [axis, path] (nats): Shapley values, and their error from sampling orders;
        `share`, `share_low`, `share_high` [axis, path]: of the gain, with 95 % bootstrap intervals over
        sequences; NaN where there is nothing to share.
    """
    axis, paths = subject.axis, subject.recorded(PATHS)
    games = [share_out(subject, i) for i in _members(subject)]
    data = _gain(subject, np.stack([g.empty for g in games]), np.stack([g.full for g in games]))
    found = [_shared(game) for game in games]
    values = {
        "kl_only": np.stack([g.only.mean(-1) for g in games]),
        "kl_without": np.stack([g.without.mean(-1) for g in games]),
        "worth": np.stack([g.worth.mean(-1) for g in games]),
        "worth_error": np.stack([g.error for g in games]),
    }
    for name, value in values.items():
        data[name] = ((axis, "path"), value, {"unit": "nats"})
    for i, name in enumerate(("share", "share_low", "share_high")):
        data[name] = ((axis, "path"), np.stack([one[i] for one in found]), {"unit": "share"})
    return data.assign_coords(path=list(paths.names))


def _shared(game: Shares) -> np.ndarray:
    """Shares of the gain and the ends of their intervals, `[3, path]`."""
    if (game.empty - game.full).mean() < NOTHING:
        return np.full((3, len(game.worth)), np.nan)
    drawn = resampled_means(game.worth)
    # A draw in which there is nothing to share has no shares.
    drawn = drawn[:, drawn.sum(0) > 0]
    low, high = np.quantile(drawn / drawn.sum(0), [0.025, 0.975], axis=-1)
    mean = game.worth.mean(-1)
    return np.stack([mean / mean.sum(), low, high])


def tables(subject: Subject) -> xr.Dataset:
    """What each path says of the next state, given the current one.

    Returns:
        `table` [axis, path, state_from, state_to] (score units): the path's mean contribution to the logits,
        given the parent state; NaN for a parent never seen;
        `table_kl` [axis, path] (nats): KL from P to the prediction of that table, all else at its mean.
    """
    axis, paths, source = subject.axis, subject.recorded(PATHS), subject.source
    P, pi = (np.array(getattr(source, name)) for name in ("P", "pi"))
    mean_scores = subject.recorded(SCORES).astype(np.float64).mean((1, 2))
    table = np.where(np.isnan(paths.table), paths.mean[:, :, None, :], paths.table)
    alone = mean_scores[:, None, None, :] + table - paths.mean[:, :, None, :]
    predicted = subject.objective.predict(torch.from_numpy(alone)).numpy()
    per_path = (axis, "path")
    return xr.Dataset(
        {
            "table": ((*per_path, "state_from", "state_to"), paths.table, {"unit": "score"}),
            "table_kl": (per_path, kernel_kl(predicted, P, pi), {"unit": "nats"}),
            "kernel": (("state_from", "state_to"), P, {"unit": "probability"}),
        },
        coords={axis: subject.coordinates, "path": list(paths.names)},
    )


def truncations(subject: Subject) -> xr.Dataset:
    """What is left when one weight is cut to a rank.

    Returns:
        `loss_parts` [axis, part] (nats): what the loss owes to the unigram, the bigram and the context;
        `rank_parts` [axis, weight, rank, part] (nats): the same with the weight cut to that rank;
        `rank_kept` [axis, weight, rank]: the rank that was kept, as directions of equal singular value go
        together; `full_rank` [weight]. NaN where a weight has no such rank.
    """
    axis = subject.axis
    batch = sequences_for(subject)
    # Where every position is a prediction half of the sequences are plenty: the laws are exact.
    found = curves(subject, batch.head(len(batch.tokens) // (1 + (len(batch.read) > 1))))
    return xr.Dataset(
        {
            "loss_parts": ((axis, "part"), found.whole, {"unit": "nats"}),
            "rank_parts": ((axis, "weight", "rank", "part"), found.parts, {"unit": "nats"}),
            "rank_kept": ((axis, "weight", "rank"), found.kept, {"unit": "rank"}),
            "full_rank": ("weight", [found.full[name] for name in found.weights], {"unit": "rank"}),
        },
        coords={
            axis: subject.coordinates,
            "weight": found.weights,
            "rank": found.ranks,
            "part": list(PARTS),
        },
    )


def recalls(subject: Subject) -> xr.Dataset:
    """Bietti et al.'s memories.

    Returns:
        `copy_recall` [axis, layer, head], `previous_recall` [axis, layer, head] (where positions are
        vectors), `match_recall` [axis, layer, head, layer_to, head_to] (models of two layers and more;
        probability), `mlp_kl` [axis, layer] (nats, models with MLPs);
        and from the data `output_recall` [axis] (probability, sources with triggers).
    """
    per_head = (subject.axis, "layer", "head")
    found: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]]
    found = {"copy_recall": (per_head, memories.copies(subject), {"unit": "probability"})}
    one_back = memories.previous(subject)
    if one_back is not None:
        found["previous_recall"] = (per_head, one_back, {"unit": "probability"})
    if subject.config.n_layers > 1:
        dims = (*per_head, "layer_to", "head_to")
        found["match_recall"] = (dims, memories.matches(subject), {"unit": "probability"})
    if not subject.config.attn_only:
        found["mlp_kl"] = ((subject.axis, "layer"), memories.mlp_kl(subject), {"unit": "nats"})
    output = memories.outputs(subject)
    if output is not None:
        found["output_recall"] = ((subject.axis,), output, {"unit": "probability"})
    return xr.Dataset(found, coords={subject.axis: subject.coordinates})
