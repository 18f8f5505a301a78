"""The arrays of the storage probe: who holds the bigram, table by table and nat by nat."""

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.probing.dataset import NORMAL_95, variables
from mechmarkov.probing.effects import (
    at_temperature,
    mean_by_position,
    model_chunks,
    positions_in_turn,
    predictions,
    sequences_for,
)
from mechmarkov.probing.preconditions import is_determined
from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import interval, ratio, resampled_means
from mechmarkov.theory.kernel import FLOOR, kernel_kl, kl

from .game import LEAST_ODDS, MIN_GAIN_NATS, Shares, ends, share_out
from .home import resampled_sets, smallest_set
from .norm_scale import by_own_scale
from .other_law import laws_of, of_another_law
from .places import by_place
from .truncation import truncations
from .unigram import left, unigram

MIN_SEQUENCES = 4
HOME_DRAWS = 200  # resampled sequences, by which a home is seen to be stable

MAX_PARENTS = 24  # that a parent is set to


def measure(subject: Subject) -> xr.Dataset:
    """Tables, sufficiency, necessity, shares and ranks of every path.

    A path is the embedding straight to the unembedding ("direct"), a head's output or an MLP's, as they are
    when the model runs on the evaluation sequences; a path that is removed keeps its data mean. KLs are from
    the exact bigram, means over predictions, in nats.

    Returns:
        What `shares`, `by_parent`, `by_place`, `of_another_law`, `unigram`, `tables`, `truncations` and
        `by_own_scale` return; of null models what `gains` and `left` do.

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.share.round(2).to_series().to_dict()
        {(50, 'L0H0'): 1.0}
    """
    attrs = {
        "source": subject.source.title(),
        "labels": list(subject.source.labels),
        "objective": subject.objective.kind,
        "paths": len(subject.recorded(PATHS).names),
        "laws": laws_of(subject),
        "determined": int(is_determined(subject.source)),
    }
    if subject.axis == "seed":
        return gains(subject).merge(left(subject)).assign_attrs(attrs)
    if (n := len(subject.batch.tokens)) < MIN_SEQUENCES:
        raise ValueError(
            f"sequences is {n}, expected at least {MIN_SEQUENCES}: a mean would be a sequence's own"
        )
    batch = sequences_for(subject)
    # Where every position is a prediction half of the sequences are plenty: the laws are exact.
    cuts = truncations(subject, batch.head(len(batch.tokens) // (1 + (len(batch.read) > 1))))
    shared = shares(subject)
    parent = by_parent(subject, shared["temperature"].values)
    held = [by_place(subject), of_another_law(subject), unigram(subject)]
    data = xr.merge([shared, parent, *held, tables(subject), cuts])
    return data.merge(by_own_scale(subject, data)).assign_attrs(attrs)


def gains(subject: Subject) -> xr.Dataset:
    """`kl_empty`, `kl_full` and `gain` [axis] (nats) only: what null models are asked for.

    Example:
        >>> import mechmarkov as mm
        >>> gains(mm.Subject.of(mm.example("walk"), sequences=8)).gain.round(2).values.tolist()
        [0.69]
    """
    empty, full = np.stack([ends(subject, i) for i in range(len(subject.decoder))], axis=1)
    return _gain(subject, empty, full, empty - full)


@torch.no_grad()
def by_parent(subject: Subject, temperature: Float[np.ndarray, " axis"]) -> xr.Dataset:
    """Returns what the parent itself tells the model, by setting it.

    Every sequence has its parent set at one position, and its prediction there is read; the positions take
    turns over the sequences.

    Args:
        subject: The models: `Subject.of(run)`.
        temperature: That at which each model's predictions are held against the law; 1 is its own.

    Returns:
        `parent_gain` [axis] (nats), the mean over positions of `parent_gain_at` [axis, position]: with the
        parent set to every state in turn and all else left as it is, how much nearer the prediction is to
        that state's row of P than its mean over the states is; weighted by `pi`. 0 for a model that ignores
        the parent, however well it predicts; the unigram's KL for the exact bigram. NaN at a position that
        no sequence takes;
        `parent_change_at` [axis, position] (nats): how far those predictions are from their mean over the
        states, KL(prediction ‖ mean). 0 where the parent changes nothing, be it for better or worse;
        `stored_gain` [axis] (nats): `parent_gain` where all before the parent comes from other sequences,
        each position from one of its own, so that no transition is there to be counted. 0 for a model that
        has the bigram from its context, as an induction head has;
        `parent_slope`, `stored_slope` [axis]: how much of the law's log-odds setting the parent writes, in
        the sequences as they are and in those without transitions. Log-odds add up, and nats do not: where
        the context makes predictions too sure, or less so, nats would tell more or less than it adds;
        `stored_share` [axis, estimate]: the second as a share of the first over sequences, and the ends of
        its 95 % interval.
    """
    source, batch = subject.source, sequences_for(subject)
    P, pi = (torch.tensor(np.array(getattr(source, name))) for name in ("P", "pi"))
    at = positions_in_turn(len(batch.tokens), len(batch.read))
    states, weight = torch.arange(source.n_states), pi
    if source.n_states > MAX_PARENTS:  # then a sample of them, as they come
        states = batch.history[:MAX_PARENTS, -1]
        weight = torch.full((len(states),), 1 / len(states), dtype=torch.float64)
    every = torch.arange(len(at))

    logs = P[states].clamp_min(LEAST_ODDS).log()
    logs = logs - logs.mean(-1, keepdim=True)
    logs = logs - weight @ logs / weight.sum()
    size = (logs.square().sum(-1) * weight).sum().clamp_min(FLOOR)
    power = torch.from_numpy(1 / temperature)

    def gains_in(context: Int[Tensor, "batch position"]) -> Float[np.ndarray, "gain axis batch"]:
        by_chunk = []
        for chunk in model_chunks(subject, batch):
            runs = []
            for state in states:
                history = context.clone()
                history[every, batch.known[at]] = state
                run = predictions(subject, chunk.model, batch, batch.with_history(history))
                runs.append(run[:, every, at])
            set_to = torch.stack(runs, dim=2).double()  # member, sequence, parent, next state
            heat = power[chunk.members][:, None, None, None]
            set_to = torch.where(heat == 1, set_to, at_temperature(set_to, heat))
            mean = (set_to * weight[:, None]).sum(2, keepdim=True)
            moved = set_to.clamp_min(FLOOR).log() - mean.clamp_min(FLOOR).log()
            gained = [((law * moved).sum(-1) * weight).sum(-1) for law in (P[states], set_to)]
            by_chunk.append(torch.stack([*gained, ((logs * moved).sum(-1) * weight).sum(-1) / size]))
        return torch.cat(by_chunk, dim=1).numpy()

    def at_positions(gains: Float[np.ndarray, "axis batch"]) -> Float[np.ndarray, "axis position"]:
        return mean_by_position(gains, at.numpy(), len(batch.read))

    whole, change, slope = gains_in(batch.history)
    stored, _, stored_slope = gains_in(_without_transitions(batch.history))
    with np.errstate(divide="ignore", invalid="ignore"):  # of a model that ignores the parent
        share, error = np.array([ratio(*both) for both in zip(stored_slope, slope, strict=True)]).T
    by_position, axis = at_positions(whole), subject.axis
    ends = np.stack([share, share - NORMAL_95 * error, share + NORMAL_95 * error], axis=1)
    means = {"parent_gain": by_position, "stored_gain": at_positions(stored)}
    return xr.Dataset(
        variables("nats", axis, **{name: np.nanmean(gain, axis=-1) for name, gain in means.items()})
        | variables("share", (axis, "estimate"), stored_share=ends)
        | variables("slope", axis, parent_slope=slope.mean(-1), stored_slope=stored_slope.mean(-1))
        | variables(
            "nats", (axis, "position"), parent_gain_at=by_position, parent_change_at=at_positions(change)
        ),
        coords={axis: subject.coordinates, "position": batch.read.numpy()},
    )


def _without_transitions(history: Int[Tensor, "batch position"]) -> Int[Tensor, "batch position"]:
    """The states of each position dealt anew to the sequences: as frequent there, and independent."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(history.shape, generator=generator).argsort(0)
    return history.gather(0, order)


def _gain(subject: Subject, empty: np.ndarray, full: np.ndarray, gain: np.ndarray) -> xr.Dataset:
    low, high = interval(gain)
    values = {"kl_empty": empty.mean(-1), "kl_full": full.mean(-1), "gain": (empty - full).mean(-1)}
    return xr.Dataset(
        variables("nats", subject.axis, **values, gain_low=low, gain_high=high),
        coords={subject.axis: subject.coordinates},
    )


def shares(subject: Subject) -> xr.Dataset:
    """The game of every model.

    Returns:
        `kl_empty`, `kl_full`, `gain`, `gain_low`, `gain_high` [axis] (nats): with every path removed, with
        none, and the difference, which is what there is to share (with a 95 % bootstrap interval);
        `kl_only`, `kl_without` [axis, path] (nats): sufficiency and necessity; `kl_unigram` (nats): how far
        the unigram is;
        `worth`, `worth_error` [axis, path] (nats): Shapley values (exact up to 10 paths, else from 2 000
        sampled orders with their standard error);
        `share`, `share_low`, `share_high` [axis, path]: of the gain, with 95 % bootstrap intervals over
        sequences, which also hold the error of the data means and that of sampling orders; NaN where the gain
        is below 0.01 nats;
        `cancels` [axis, path]: the number of the first of the paths that it cancels with, else its own;
        `net_share`, `net_share_low`, `net_share_high`, `net_only` [axis, path]: `share` and `kl_only` of that
        group as one path;
        `along` [axis, path]: how much of the law's log-odds each path writes (below 0: against them);
        `temperature` [axis]: that of all these KLs, another than 1 where the model has the law at that one;
        `home_frequency` [axis, path], `home_stable` [axis]: of resampled sequences, the share in which a path
        is in the smallest set that holds nine tenths, and in which that set is the same.
    """
    per_path = (subject.axis, "path")
    games = [share_out(subject, i) for i in range(len(subject.decoder))]
    data = _gain(subject, *np.stack([(g.empty, g.full, g.gain) for g in games], axis=1))
    share: dict[str, np.ndarray] = {}
    for name, spread in (("share", "spread"), ("net_share", "net_spread")):
        value_and_ends = np.stack([_shared(g, getattr(g, spread)) for g in games], axis=1)
        share |= dict(zip((name, f"{name}_low", f"{name}_high"), value_and_ends, strict=True))
    homes = [_home_of(game) for game in games]
    return data.assign(
        variables(
            "nats",
            per_path,
            kl_only=[g.only.mean(-1) for g in games],
            kl_without=[g.without.mean(-1) for g in games],
            worth=[g.worth.mean(-1) for g in games],
            worth_error=[g.error for g in games],
            net_only=[g.net_only for g in games],
        )
        | variables("share", per_path, **share, home_frequency=[often for often, _ in homes])
        | variables("share", subject.axis, home_stable=[same for _, same in homes])
        | variables("path", per_path, cancels=[g.group for g in games])
        | variables("slope", per_path, along=[g.along for g in games])
        | variables("temperature", subject.axis, temperature=[g.temperature for g in games])
        | variables("nats", (), kl_unigram=kl(subject.exact["bigram"], subject.exact["unigram"]).mean())
    ).assign_coords(path=list(subject.recorded(PATHS).names))


def _shared(game: Shares, spread: np.ndarray) -> np.ndarray:
    """Shares of the gain and the ends of their intervals, `[3, path]`, from worths by path and sequence."""
    gain = (game.empty - game.full).mean()
    if not gain >= MIN_GAIN_NATS:  # NaN too, of outputs that overflow
        return np.full((3, len(spread)), np.nan)
    low, high = np.quantile(_drawn(game, spread), [0.025, 0.975], axis=-1)
    return np.stack([spread.mean(-1) / gain, low, high])


def _drawn(game: Shares, spread: np.ndarray) -> np.ndarray:
    """Shares of the gain of resampled sequences, `[path, draw]`."""
    drawn = resampled_means(spread)
    drawn += game.error[:, None] * np.random.default_rng(0).standard_normal(drawn.shape)
    total = resampled_means(game.gain)
    # A draw in which there is nothing to share has no shares.
    return np.asarray(drawn[:, total > 0] / total[total > 0])


def _home_of(game: Shares) -> tuple[np.ndarray, float]:
    """Returns how often each path is in resampled sequences' home, and how often that is the home."""
    gain, nearer = (game.empty - game.full).mean(), game.net_only < game.empty.mean()
    if not gain >= MIN_GAIN_NATS:
        return np.full(len(game.group), np.nan), np.nan
    chosen = smallest_set(game.net_spread.mean(-1) / gain, nearer, game.group)
    return resampled_sets(_drawn(game, game.net_spread)[:, :HOME_DRAWS], nearer, game.group, chosen)


def tables(subject: Subject) -> xr.Dataset:
    """Returns what each path says of the next state, given the current one.

    Returns:
        `table` [axis, path, state_from, state_to] (score units): the path's mean contribution to the logits,
        given the parent state; NaN for a parent never seen;
        `table_kl` [axis, path] (nats): KL from P to the prediction of that table, all else at its mean;
        `kernel` [state_from, state_to]: P.

    Example:
        >>> import mechmarkov as mm
        >>> found = tables(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> found.table.shape, found.table_kl.round(1).values.tolist()
        ((1, 1, 6, 6), [[0.6]])
    """
    axis, paths, source = subject.axis, subject.recorded(PATHS), subject.source
    P, pi = (np.array(getattr(source, name)) for name in ("P", "pi"))
    mean_scores = subject.recorded(SCORES).astype(np.float64).mean((1, 2))
    table = np.where(np.isnan(paths.table), paths.mean[:, :, None, :], paths.table)
    alone = mean_scores[:, None, None, :] + table - paths.mean[:, :, None, :]
    predicted = subject.objective.predict(torch.from_numpy(alone)).numpy()
    per_path, per_pair = (axis, "path"), ("state_from", "state_to")
    return xr.Dataset(
        variables("score", (*per_path, *per_pair), table=paths.table)
        | variables("nats", per_path, table_kl=kernel_kl(predicted, P, pi))
        | variables("probability", per_pair, kernel=P),
        coords={axis: subject.coordinates, "path": list(paths.names)},
    )
