"""Selectors of a program: a softmax over lags and matches, and its maximum-likelihood fit to attention."""

from functools import lru_cache

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from scipy.optimize import brentq
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import one_hot, pad

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording import ATTENTION
from mechmarkov.probing.subject import Subject

from .match_mass import MATCH_MASS, MAX_PAIRS, MIN_SEQUENCES

LAG_ROUNDS = 60  # of the lag fit: exact from the first for attention that is a softmax over lags
MATCH_ROUNDS = 8
FITTED = 1e-7  # a round that moves weights and bonus by less is the last: attention is float32
MATCH_SEQUENCES = 32  # for the fit of two kinds of numbers, not for a measurement
NO_CHOICE = 1e-6  # of the mass on matches: where no bonus moves it by more, attention tells of none
MAX_LOG_ODDS = 25.0  # e^-25 of a softmax is nothing, and 1 less that is not 1 in float64
NEWTON_STEPS, SOLVED = 8, 1e-11  # as a rule five are enough; else the root is bracketed
MAX_STATES_AT_ONCE = 8  # of more states so few pairs of tokens match that they are added one by one

Pairs = Int[np.ndarray, " pair"]  # int32: of long sequences there are millions


def selected(
    batch: Batch, weight: Float[Tensor, " lag"], bonus: float, tokens: Float[Tensor, "batch key state"]
) -> Float[Tensor, "batch read state"]:
    """The mean of what stands at the tokens that a selector reads, for each prediction.

    Args:
        batch: The sequences, which say what matches.
        weight: The selector's weight on each lag.
        bonus: Its log odds for matches.
        tokens: What stands at each token: the token itself, one-hot, or what was selected from there.
    """
    table, own = _by_key(batch, weight)
    plain = table.sum(-1)[:, None] + own
    if not bonus:
        return einsum(table, tokens, "read key, b key state -> b read state") / plain
    with_total = torch.cat([tokens, torch.ones_like(tokens[..., :1])], dim=-1)
    all_keys = einsum(table, with_total, "read key, b key state -> b read state")
    sums = all_keys + np.expm1(bonus) * _of_matches(batch, table, with_total)
    return sums[..., :-1] / (sums[..., -1:] + own)


def _of_matches(
    batch: Batch, table: Float[Tensor, "read key"], tokens: Float[Tensor, "batch key column"]
) -> Float[Tensor, "batch read column"]:
    """The sum over only the matches, of what stands there by the selector's weight."""
    parents, n_states = batch.parents, int(batch.history.max()) + 1
    if n_states <= MAX_STATES_AT_ONCE:  # the sums behind each state by one GEMM; a prediction takes its own
        before = one_hot(batch.history[:, :-1], n_states).double()
        behind = einsum(before, tokens[:, 1:], "b key state, b key column -> b key state column")
        sums = einsum(table[:, 1:], behind, "read key, b key state column -> b read state column")
        return sums.gather(2, parents[..., None, None].expand(-1, -1, 1, sums.shape[-1])).squeeze(2)
    row_ends, cell, column = _pairs(batch)
    shape = parents.numel(), batch.history.numel()
    sparse = csr_array((table.numpy().ravel()[cell], column, row_ends), shape=shape)
    totals = sparse @ rearrange(tokens, "b key column -> (b key) column").numpy()
    return rearrange(torch.from_numpy(totals), "(b read) column -> b read column", b=len(tokens))


@lru_cache(maxsize=8)  # every head of every model asks for those of the same sequences
def _pairs(batch: Batch) -> tuple[Int[np.ndarray, " end"], Pairs, Pairs]:
    """Every prediction and token that match, as a sparse matrix: a row for each prediction, a column a token.

    Returns:
        Where each row ends, and for each pair its cell in a table `[read, key]` and its column.
    """
    n_keys = batch.history.shape[1]
    before = pad(batch.history[:, :-1], (1, 0), value=-1)
    known = torch.arange(n_keys) <= batch.known[:, None]
    pairs = [(own == wanted[:, None]) & known for own, wanted in zip(before, batch.parents, strict=True)]
    ends = [matched.nonzero(as_tuple=True) for matched in pairs]
    read, key = (torch.cat(index).numpy() for index in zip(*ends, strict=True))
    sequence = np.repeat(np.arange(len(ends)), [len(reads) for reads, _ in ends])
    rows = np.bincount(sequence * len(batch.known) + read, minlength=batch.parents.numel())
    indices = np.append(0, rows.cumsum()), read * n_keys + key, sequence * n_keys + key
    row_ends, cell, column = (index.astype(np.int32) for index in indices)
    return row_ends, cell, column


def _by_key(
    batch: Batch, weight: Float[Tensor, " lag"]
) -> tuple[Float[Tensor, "read key"], Float[Tensor, ""]]:
    """A selector's weight on each token a prediction knows, and on one that is not a state (lag 0)."""
    padded = torch.cat([weight, weight.new_zeros(1)])
    return padded[_known_lags(batch, len(weight))], weight[0] * (batch.parent_lag + batch.first)


@lru_cache(maxsize=8)  # every head of every model asks for those of the same sequences
def _known_lags(batch: Batch, unknown: int) -> Int[Tensor, "read key"]:
    """Returns each token's distance before the predicted one; a number of its own for those not yet known."""
    lag = _lags(batch)
    return torch.where(lag >= 1, lag, unknown)


def _lags(batch: Batch) -> Int[Tensor, "read key"]:
    """Returns each token's distance before the predicted one; not positive for tokens not yet known."""
    return batch.known[:, None] + 1 - torch.arange(batch.history.shape[1])


def fit_lags(subject: Subject) -> Float[np.ndarray, "member layer head lag"]:
    """The softmax over lags that is likeliest to have given the recorded mass on each lag.

    Iterative scaling, started where the last prediction looks: for attention that is a softmax over lags
    that is the answer, and stays it. NaN for heads without attention weights.

    Example:
        >>> import mechmarkov as mm
        >>> fit_lags(mm.Subject.of(mm.example("walk"), sequences=8))[0, 0, 0, 1].round(2)
        np.float64(1.0)
    """
    attention, batch = subject.recorded(ATTENTION), subject.batch
    observed = attention.lag_mass * batch.reach.numpy()
    lags = observed.shape[-1]
    key = int(batch.known[-1]) + 1 - np.arange(lags)  # of the last prediction, by lag
    inside = (key >= 0) & (key < attention.last_mass.shape[-1])
    start = np.where(inside, attention.last_mass[..., np.where(inside, key, 0)], 0.0)
    if batch.first:
        start[..., 0] = attention.lag_mass[..., 0]
    weight: np.ndarray = np.where(observed > 0, np.maximum(start, 1e-30), 0.0)
    weight[~(observed > 0).any(-1)] = np.nan
    farthest = batch.known.numpy() + 1
    for _ in range(LAG_ROUNDS):
        total = weight.cumsum(-1)[..., farthest]  # over what each prediction reaches
        inverse = np.zeros_like(weight)
        np.add.at(np.moveaxis(inverse, -1, 0), farthest, np.moveaxis(1 / total, -1, 0))
        expected = weight * inverse[..., ::-1].cumsum(-1)[..., ::-1] / len(farthest)
        weight = weight * np.divide(observed, expected, out=np.zeros_like(weight), where=expected > 0)
        weight /= weight.sum(-1, keepdims=True)
    return weight


def fit_matches(
    subject: Subject, weight: Float[np.ndarray, " lag"], where: tuple[int, ...]
) -> tuple[Float[np.ndarray, " lag"], float]:
    """Weights and bonus that give a head's recorded mass on each lag and on matches, both at once.

    Args:
        subject: The models and the sequences to record: `Subject.of(run)`.
        weight: The weights on lags without a bonus: `fit_lags(subject)[where]`.
        where: The index of the model, the layer and the head.
    """
    mass = float(subject.recorded(MATCH_MASS)[where])
    if not np.isfinite(mass):
        return weight, 0.0
    batch = _fitted_to(subject.batch)
    row_ends, cell, _ = _pairs(batch)
    of_row = np.diff(row_ends)
    row = np.arange(len(of_row)).repeat(of_row)
    if not len(row):
        return weight, 0.0
    observed = subject.recorded(ATTENTION).lag_mass[where] * subject.batch.reach.numpy()
    lag, bonus = _lags(batch).clamp_min(0).flatten().numpy(), 0.0
    for _ in range(MATCH_ROUNDS):
        by_key, own = _by_key(batch, torch.from_numpy(weight))
        table, total = by_key.numpy(), (by_key.sum(-1) + own).numpy()
        on_matches = np.bincount(row, table.ravel()[cell], len(of_row)).reshape(len(batch.tokens), -1)
        before, bonus = bonus, _solve((on_matches / total).ravel()[of_row > 0], mass)
        inverse = 1 / (total + np.expm1(bonus) * on_matches)  # of the softmax's denominator: [batch, read]
        of_matches = np.bincount(cell, inverse.ravel()[row], table.size).reshape(table.shape) / len(inverse)
        expected = table * (inverse.mean(0)[:, None] + np.expm1(bonus) * of_matches)
        by_lag = np.bincount(lag, expected.ravel(), len(weight))
        by_lag[0] = float(own) * inverse.mean(0).sum()
        ratio = observed * len(batch.read) / np.maximum(by_lag, 1e-300)
        last, weight = weight, weight * np.where(by_lag > 0, ratio, 1.0)
        weight /= weight.sum()
        if max(abs(bonus - before), np.abs(weight - last).max()) < FITTED:
            break
    return weight, bonus


@lru_cache(maxsize=2)
def _fitted_to(batch: Batch) -> Batch:
    """The sequences that matches are fitted to, the same batch whoever asks."""
    pairs = len(batch.read) * batch.history.shape[1]
    return batch.head(min(MATCH_SEQUENCES, max(MIN_SEQUENCES, MAX_PAIRS // pairs)))


def _solve(share: np.ndarray, mass: float) -> float:
    """The bonus at which selectors with this share on matches have that mean mass there; 0 if any has it."""

    def on_matches(bonus: float) -> np.ndarray:
        lifted = share * np.exp(bonus)
        return np.asarray(lifted / (lifted + (1 - share)))

    def beyond(bonus: float) -> float:
        return float(on_matches(bonus).mean()) - mass

    least, most = beyond(-MAX_LOG_ODDS), beyond(MAX_LOG_ODDS)
    if most - least < NO_CHOICE:  # each prediction has matches only, or none: no attention tells the bonus
        return 0.0
    if least >= 0:
        return -MAX_LOG_ODDS
    if most <= 0:
        return MAX_LOG_ODDS
    bonus = 0.0
    for _ in range(NEWTON_STEPS):
        on = on_matches(bonus)
        step = (on.mean() - mass) / max((on * (1 - on)).mean(), NO_CHOICE)
        bonus -= step
        if abs(step) < SOLVED:
            return float(bonus)
        if abs(bonus) > MAX_LOG_ODDS:
            break
    return float(brentq(beyond, -MAX_LOG_ODDS, MAX_LOG_ODDS))
