"""Which parts hold the unigram: what each adds to the scores on average, held against that law."""

from dataclasses import replace

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.objectives import Objective
from mechmarkov.probing.dataset import NORMAL_95, variables
from mechmarkov.probing.effects import sequences_for
from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Stationary
from mechmarkov.theory import shapley
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import FLOOR, kl

from .game import MIN_GAIN_NATS, groups_of
from .home import MIN_STORED_SHARE, smallest_set

BIAS = "bias"  # all that is the same for any sequence and position


def left(subject: Subject) -> xr.Dataset:
    """KL from the unigram to each model's mean prediction.

    Returns:
        `unigram_left`, `unigram_left_low`, `unigram_left_high` [axis] (nats): with its 95 % interval over
        sequences, to first order.

    Example:
        >>> import mechmarkov as mm
        >>> left(mm.Subject.of(mm.example("walk"), sequences=64)).unigram_left.round(1).values.tolist()
        [0.0]
    """
    pi, axis = _law_of(subject), subject.axis
    by_sequence = subject.probabilities.mean(2)
    mean = np.maximum(by_sequence.mean(1, keepdims=True), FLOOR)
    nats = kl(pi, mean[:, 0])
    error = NORMAL_95 * standard_error(-(by_sequence / mean) @ pi)
    ends = {"unigram_left_low": np.maximum(nats - error, 0), "unigram_left_high": nats + error}
    return xr.Dataset(variables("nats", axis, unigram_left=nats, **ends), coords={axis: subject.coordinates})


def unigram(subject: Subject) -> xr.Dataset:
    """Returns what each part's mean contribution to the scores is worth toward the unigram.

    Parts are the paths, the positions where they are added to the stream, and `bias`, which is all output
    biases. Without any of them the prediction is the uniform law.

    Args:
        subject: The models, of a source with one chain.

    Returns:
        What `left` returns;
        `unigram_uniform` (nats): KL from the unigram to the uniform law, which is what there is to hold;
        `unigram_full` [axis] (nats): to the prediction of all mean contributions together, which is another
        than the mean prediction;
        `unigram_cancels` [axis, component]: the number of the first of the parts whose means a part's mean
        cancels with, else its own. Such parts are one player;
        `unigram_only` [axis, component] (nats): to that of one player;
        `unigram_share`, `unigram_share_low`, `unigram_share_high` [axis, component]: its Shapley value as a
        share of what all are worth, with 95 % intervals over sequences, to first order; NaN where all are
        worth less than 0.01 nats;
        `unigram_stored` [axis, component]: of its worth, how much it has on sequences of independent tokens
        that are all equally frequent. Near 0 for a part that copies tokens, however right its mean is.

    Example:
        >>> import mechmarkov as mm
        >>> data = unigram(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.component.values.tolist(), abs(float(data.unigram_uniform)) < 1e-9
        (['direct', 'L0H0', 'pos_embed', 'bias'], True)
    """
    pi, axis = _law_of(subject), subject.axis
    uniform = float(kl(pi, np.full(len(pi), 1 / len(pi))))
    names, means, moves = _means(subject)
    _, without, _ = _means(_of_even_tokens(subject))
    shape = (len(means), len(names))
    full, only, cancels = np.empty(len(means)), np.empty(shape), np.empty(shape, dtype=int)
    shares, stored = np.full((3, *shape), np.nan), np.full(shape, np.nan)
    for member, (mean, move, even) in enumerate(zip(means, moves, without, strict=True)):
        cancels[member] = _cancelling(mean, subject.objective)
        teams, index = np.unique(cancels[member], return_inverse=True)
        joined = (cancels[member] == teams[:, None]).astype(float)
        game = _Game(joined @ mean, np.tensordot(joined, move, 1), pi, subject.objective)
        ends = np.concatenate([np.ones((1, len(teams))), np.eye(len(teams))]).astype(bool)
        nats = -game.worth(ends)[:, 0]
        full[member], only[member] = nats[0], nats[1:][index]
        gain = uniform - full[member]
        if not gain >= MIN_GAIN_NATS:
            continue
        worth, moved, error = game.shapley_values()
        drawn = ratio(worth[:, None] + moved, (worth[:, None] + moved).sum(0))[1]
        width = NORMAL_95 * np.hypot(drawn, error / gain)
        shares[:, member] = (worth / gain + np.array([[0], [-1], [1]]) * width)[:, index]
        then = _Game(joined @ even, game.moves.numpy()[..., :0], pi, subject.objective).shapley_values()[0]
        stored[member] = np.divide(then, worth, out=np.zeros_like(worth), where=np.abs(worth) > FLOOR)[index]
    per_part = (axis, "component")
    ends_of = dict(zip(("unigram_share", "unigram_share_low", "unigram_share_high"), shares, strict=True))
    return left(subject).merge(
        xr.Dataset(
            variables("nats", (), unigram_uniform=uniform)
            | variables("nats", axis, unigram_full=full)
            | variables("nats", per_part, unigram_only=only)
            | variables("share", per_part, **ends_of, unigram_stored=stored)
            | variables("component", per_part, unigram_cancels=cancels),
            coords={axis: subject.coordinates, "component": names},
        )
    )


def holders(last: xr.Dataset) -> tuple[list[str], list[str]]:
    """The fewest parts whose means hold nine tenths of what there is of the unigram, the largest first.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.

    Returns:
        Those that do whatever the tokens are, and those that do only if tokens come as often as they do.
    """
    share = last["unigram_share"].values
    if not np.isfinite(share).all():
        return [], []
    nearer = last["unigram_only"].values < float(last["unigram_uniform"])
    chosen = [i for i in smallest_set(share, nearer, last["unigram_cancels"].values) if share[i] > 0]
    names, is_stored = last["component"].values, last["unigram_stored"].values >= MIN_STORED_SHARE
    own, copied = ([str(names[i]) for i in chosen if is_stored[i] == which] for which in (True, False))
    return own, copied


def is_told_from_uniform(data: xr.Dataset) -> bool:
    """Returns whether the unigram is 0.01 nats or more from the uniform law: otherwise nothing holds it."""
    return float(data["unigram_uniform"]) >= MIN_GAIN_NATS


def _law_of(subject: Subject) -> Float[np.ndarray, " state"]:
    """The law of one token, of a source that has one chain."""
    assert isinstance(subject.source, Stationary)  # what has no `P` is refused before
    return np.array(subject.source.pi)


def _cancelling(mean: Float[np.ndarray, "component state"], objective: Objective) -> np.ndarray:
    """The number of the first of the parts that each cancels with, `[component]`."""
    if objective.kind == "cross_entropy":  # a softmax does not see what all states share
        mean = mean - mean.mean(-1, keepdims=True)
    return groups_of(mean @ mean.T)


class _Game:
    """The worth of sets of mean contributions: how near to the unigram their prediction is.

    Args:
        means: What each part adds on average.
        moves: How far each sequence is from that.
        pi: The unigram.
        objective: Turns scores into predictions.
    """

    def __init__(
        self,
        means: Float[np.ndarray, "component state"],
        moves: Float[np.ndarray, "component state sequence"],
        pi: Float[np.ndarray, " state"],
        objective: Objective,
    ) -> None:
        self.means, self.moves = torch.from_numpy(means), torch.from_numpy(moves)
        self.pi, self.objective = torch.from_numpy(pi), objective
        self.entropy = -float(torch.special.xlogy(self.pi, self.pi).sum())

    def worth(self, members: Bool[np.ndarray, "coalition component"]) -> Float[np.ndarray, "coalition value"]:
        """Returns minus KL from the unigram, and behind it what each sequence moves that, to first order."""
        rows = torch.from_numpy(members).double()
        with torch.enable_grad():
            scores: Tensor = (rows @ self.means).requires_grad_()
            logs = self.objective.predict(scores).clamp_min(FLOOR).log()
            worth = logs @ self.pi + self.entropy
            (slope,) = torch.autograd.grad(worth.sum(), scores)
        moved = torch.einsum("cp,cv,pvs->cs", rows, slope, self.moves)
        return torch.cat([worth.detach()[:, None], moved], 1).numpy()

    def shapley_values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The value of each part, what each sequence moves it, and the error of sampling orders."""
        players = len(self.means)
        if players <= shapley.EXACT_PLAYERS:
            values = shapley.exact(self.worth(shapley.coalitions(players)))
            error = np.zeros(players)
        else:
            values, errors = shapley.sampled(self.worth, players)
            error = errors[:, 0]
        return values[:, 0], values[:, 1:], error


def _means(
    subject: Subject,
) -> tuple[list[str], Float[np.ndarray, "member component state"], Float[np.ndarray, "..."]]:
    """Names of parts, what each adds on average, and how far from that it is in each sequence."""
    paths, scores = subject.recorded(PATHS), subject.recorded(SCORES)
    first = [name for name in paths.fixed_names if name == "direct"]
    rest = [name for name in paths.fixed_names if name != "direct"]
    known = dict(zip(paths.names, paths.mean.swapaxes(0, 1), strict=True))
    known |= dict(zip(paths.fixed_names, paths.fixed.swapaxes(0, 1), strict=True))
    bias = scores.astype(np.float64).mean((1, 2)) - sum(known.values())
    names = [*first, *paths.names, *rest]
    means = np.stack([*(known[name] for name in names), bias], axis=1)
    by_sequence = paths.logits.mean(3, dtype=np.float64)  # member, path, sequence, state
    moves = np.zeros((*means.shape, by_sequence.shape[2]))
    at = [names.index(name) for name in paths.names]
    moves[:, at] = (by_sequence - by_sequence.mean(2, keepdims=True)).swapaxes(2, 3)
    return [*names, BIAS], means, moves


def _of_even_tokens(subject: Subject) -> Subject:
    """The same models on independent tokens, all that there are equally often."""
    batch, pi = sequences_for(subject), _law_of(subject)
    seen = torch.from_numpy(np.flatnonzero(pi > 0))
    generator = torch.Generator().manual_seed(0)
    states = seen[torch.randint(len(seen), batch.states.shape, generator=generator)]
    history = states[:, :-1]
    tokens = batch.with_history(history)
    return replace(subject, batch=replace(batch, tokens=tokens, history=history, following=states[:, 1:]))
