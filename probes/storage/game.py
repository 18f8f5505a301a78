"""Sharing the bigram out among paths: a game whose players are paths and whose worth is nats.

A coalition is the model with the other paths at their data mean, in the logits. It is worth what it is nearer
to the exact bigram than the model with every path at its mean; Shapley values share what all paths together
are worth. What a path adds is taken from the model as it ran, so that an MLP's share is measured with the
residual stream that it really sees.

Paths that cancel (one writes what another takes back) have large shares of opposite sign that say nothing.
They are one player in a second game, whose shares say who holds what is left.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.probing.dataset import IMITATION_NATS, IMITATION_SHARE
from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.theory import shapley
from mechmarkov.theory.kernel import FLOOR, kl
from mechmarkov.theory.temperature import best_temperature

# Scores that are turned into predictions, over all models and coalitions: less than a second.
MAX_SCORES = 1 << 24
CHUNK_SCORES = 1 << 18  # what fits the cache
MIN_SEQUENCES = 32

# Under this many nats there is nothing to share.
MIN_GAIN_NATS = 0.01
ROUNDING_NATS = 1e-9
FAR_NATS = 0.05  # from the bigram, where a model clearly does not have it
LEAST_HEAT, MOST_HEAT = 1 / 128, 8.0  # temperatures beyond say more of rounding, or of certainty
LEAST_ODDS = 1e-4  # what the law holds impossible would outweigh all else in its logarithm
GRADIENT_SEQUENCES = 64  # a gradient needs its second digit

# Two paths cancel if what they add together is less than this share of the larger of the two.
MAX_NET_SHARE = 0.5
# Paths smaller than this share of what all add together have nothing to cancel.
MIN_SIZE_SHARE = 0.1
# Pairs whose net shares differ by less cancel equally: which of them does is arbitrary.
TIED_NET_SHARE = 0.02


@dataclass(frozen=True, eq=False)
class Shares:
    """One model's game, in nats, sequence by sequence.

    Attributes:
        empty: KL from the exact bigram to the model with every path at its mean.
        full: To the model as it is.
        gain: `empty - full`, and what the sequence's part in the data means changes of its mean.
        only: KL with only that path as it is.
        without: KL with only that path at its mean.
        worth: Shapley values; they add up to `empty - full` in every sequence.
        spread: `worth`, and what the sequence's part in the data means changes of its mean: intervals are
            over these, as the means are those of the same sequences.
        error: Standard error of the mean of `worth` from sampling orders; 0 where it is exact.
        group: The first path of those that each path cancels with; its own number where it cancels with none.
        net_spread: `spread` where paths that cancel are one player, the same for each of them.
        net_only: KL with the paths of that group as they are, and no others.
        along: How much of the law's log-odds each path writes, below 0 for one that writes against them.
        temperature: That of all these KLs: another than 1 where the whole model has the law at that one.
    """

    empty: Float[np.ndarray, " sequence"]
    full: Float[np.ndarray, " sequence"]
    gain: Float[np.ndarray, " sequence"]
    only: Float[np.ndarray, "path sequence"]
    without: Float[np.ndarray, "path sequence"]
    worth: Float[np.ndarray, "path sequence"]
    spread: Float[np.ndarray, "path sequence"]
    error: Float[np.ndarray, " path"]
    group: np.ndarray
    net_spread: Float[np.ndarray, "path sequence"]
    net_only: Float[np.ndarray, " path"]
    along: Float[np.ndarray, " path"]
    temperature: float


class Coalitions:
    """The KL of any coalition of one model's paths: those as they are, the others at their data mean.

    Args:
        subject: The models, of a source with one chain.
        member: The index of the model.
        most: Predictions that are looked at, at most; they are spread over sequences and positions.
        law: The exact predictor that coalitions are held against.

    Attributes:
        reads: Which of the positions that are read are looked at, as indices.
        temperature: That at which the whole model has the law, if it has it at another than its own: all
            coalitions are held against the law at that one.

    Example:
        >>> import mechmarkov as mm
        >>> game = Coalitions(mm.Subject.of(mm.example("walk"), sequences=8), member=0, most=4096)
        >>> nothing, head = game.kl(np.array([[False], [True]])).mean(1)  # nats, with only "L0H0" or none
        >>> round(float(nothing), 2), round(float(head), 2)
        (0.91, 0.23)
    """

    def __init__(self, subject: Subject, member: int, most: int, law: str = "bigram") -> None:
        recorded, batch = subject.recorded(PATHS), subject.batch
        n, n_kept = len(batch.tokens), len(recorded.kept)
        sequences = slice(0, n if n <= most else max(MIN_SEQUENCES, most))
        each = max(1, min(n_kept, most // n))
        some = ((np.arange(each) + 0.5) * n_kept / each).astype(int)
        where = self.reads = np.array(recorded.kept)[some]
        added = recorded.logits[member][:, sequences].astype(np.float64)
        moves = torch.from_numpy(added - recorded.mean[member][:, None, None, :])
        # How far each sequence moves the data means, `[path, sequence, state]`.
        self.pull = moves.mean(2) * (moves.shape[1] / n)
        self.moves = moves[:, :, some]
        scores = torch.from_numpy(subject.recorded(SCORES)[member][sequences][:, where]).double()
        self.base = scores - self.moves.sum(0)
        self.law = torch.from_numpy(subject.exact[law][sequences][:, where])
        self.entropy = -torch.special.xlogy(self.law, self.law).sum(-1)
        self.objective = subject.objective
        laws = {name: p[sequences][:, where] for name, p in subject.exact.items()}
        self.temperature = self._temperature(scores, laws)
        if self.temperature != 1:
            self.pull, self.moves, self.base = (
                x / self.temperature for x in (self.pull, self.moves, self.base)
            )

    def _temperature(
        self,
        scores: Float[Tensor, "sequence kept state"],
        laws: dict[str, Float[np.ndarray, "sequence kept state"]],
    ) -> float:
        """The temperature at which the whole model has the law, but not at its own; else 1.

        There a tenth is left of what it is away at its own, and of what the unigram is; and no law is nearer
        to it as it is.
        """
        if self.objective.kind != "cross_entropy":
            return 1.0
        own, unigram = float(self._kl(scores).mean()), kl(self.law.numpy(), laws["unigram"]).mean()
        q = self.objective.predict(scores).numpy()
        heat, left = best_temperature(self.law.numpy(), q)
        least = min(FAR_NATS, IMITATION_SHARE * own, IMITATION_SHARE * unigram)
        if own <= IMITATION_NATS or left.mean() >= least or not LEAST_HEAT < heat < MOST_HEAT:
            return 1.0
        return heat if min(kl(p, q).mean() for p in laws.values()) > left.mean() else 1.0

    def _kl(self, scores: Tensor, sequences: slice = slice(None)) -> Float[Tensor, "*coalition sequence"]:
        return self._each(scores, sequences).mean(-1)

    def _each(
        self, scores: Tensor, sequences: slice = slice(None)
    ) -> Float[Tensor, "*coalition sequence kept"]:
        logs = self.objective.predict(scores).clamp_min(FLOOR).log()
        return -(self.law[sequences] * logs).sum(-1) - self.entropy[sequences]

    def places(
        self, members: Bool[np.ndarray, "coalition path"]
    ) -> Float[np.ndarray, "coalition sequence kept"]:
        """KL from the exact law to each coalition, prediction by prediction."""
        rows = torch.from_numpy(members).double()
        return np.stack([self._each(self.base + torch.tensordot(row, self.moves, 1)).numpy() for row in rows])

    def along(self) -> Float[np.ndarray, " path"]:
        """Returns how much of the law's log-odds each path writes: below 0 for one that writes against them.

        The slope of what it adds on the logarithm of the law, both without their means over predictions and
        over states.
        """
        logs = self.law.clamp_min(LEAST_ODDS).log()
        logs = logs - logs.mean(-1, keepdim=True)
        logs = logs - logs.mean((0, 1))
        moves = self.moves - self.moves.mean((1, 2), keepdim=True)
        size = logs.square().sum().clamp_min(FLOOR)
        return np.asarray(torch.einsum("pskv,skv->p", moves[:, : len(logs)], logs) / size)

    def kl(self, members: Bool[np.ndarray, "coalition path"]) -> Float[np.ndarray, "coalition sequence"]:
        """KL from the exact bigram to each coalition, the mean over the predictions of each sequence."""
        parts = torch.split(torch.from_numpy(members).double(), max(1, CHUNK_SCORES // self.base.numel()))
        nats = [self._kl(self.base + torch.tensordot(some, self.moves, 1)) for some in parts]
        return torch.cat(nats).numpy()

    def pulls(self, members: Bool[np.ndarray, "coalition path"]) -> Float[np.ndarray, "coalition sequence"]:
        """Returns what each sequence's part in removed paths' means changes of a coalition's mean KL.

        To first order (the infinitesimal jackknife, Efron 1982); 0 on average over sequences.
        """
        rows, few = torch.from_numpy(members).double(), slice(0, GRADIENT_SEQUENCES)
        moved = []
        for some in torch.split(rows, max(1, CHUNK_SCORES // self.base[few].numel())):
            with torch.enable_grad():
                shift = torch.zeros(len(some), 1, 1, self.base.shape[-1], dtype=torch.float64)
                shift.requires_grad_()
                scores = self.base[few] + torch.tensordot(some, self.moves[:, few], 1) + shift
                (slope,) = torch.autograd.grad(self._kl(scores, few).mean(-1).sum(), shift)
            removed = torch.tensordot(1 - some, self.pull, 1)  # coalition, sequence, state
            moved.append((slope[:, 0] * removed).sum(-1))
        return torch.cat(moved).numpy()

    def groups(self) -> np.ndarray:
        """The number of the first path of those that each path cancels with, `[path]`."""
        moves = self.moves.flatten(1, 2)
        if self.objective.kind == "cross_entropy":  # a softmax does not see what all states share
            moves = moves - moves.mean(-1, keepdim=True)
        flat = moves.flatten(1)
        return groups_of((flat @ flat.T).numpy())


def groups_of(gram: Float[np.ndarray, "path path"]) -> np.ndarray:
    """Returns the number of the first part of those that each part cancels with, by their inner products.

    Join the two groups of which least is left together, until no two cancel, or three that leave less.

    Example:
        >>> added = np.array([[1.0, 0.0], [2.0, 1.0], [-2.0, -1.0]])
        >>> groups_of(added @ added.T)
        array([0, 1, 1])
    """
    group = np.arange(len(gram))
    while True:
        names = np.unique(group)
        inside = (group == names[:, None]).astype(float)
        inner = inside @ gram @ inside.T
        size = np.sqrt(np.maximum(np.diag(inner), 0))
        both = np.sqrt(np.maximum(np.diag(inner)[:, None] + np.diag(inner) + 2 * inner, 0))
        larger, smaller = np.maximum.outer(size, size), np.minimum.outer(size, size)
        counts = smaller > MIN_SIZE_SHARE * np.sqrt(max(gram.sum(), 0.0)) + 1e-12 * size.max(initial=0.0)
        left = np.where(counts, both / np.maximum(larger, 1e-300), np.inf)
        left[np.tril_indices(len(names))] = np.inf
        trios = _cancelling_trios(inner, size, counts)
        if len(trios) == 1 and left.min() >= TIED_NET_SHARE:
            group = np.where(np.isin(group, names[[*trios[0]]]), names[trios[0][0]], group)
            continue
        if not left.size or left.min() >= MAX_NET_SHARE:
            return group
        i, j = np.unravel_index(int(left.argmin()), left.shape)
        rivals = np.argwhere(left <= left[i, j] + TIED_NET_SHARE).tolist()
        if any(0 < len({i, j} & set(other)) < 2 for other in (*rivals, *trios)):
            return group
        group = np.where(group == names[j], names[i], group)


def _cancelling_trios(
    inner: Float[np.ndarray, "group group"],
    size: Float[np.ndarray, " group"],
    counts: Bool[np.ndarray, "group group"],
) -> list[tuple[int, ...]]:
    """Three groups of which next to nothing is left together.

    Args:
        inner: Inner products of what groups add.
        size: How much each adds.
        counts: Whether the smaller of two is large enough to cancel.
    """
    return [
        trio
        for trio in combinations(range(len(size)), 3)
        if all(counts[pair] for pair in combinations(trio, 2))
        and max(inner[np.ix_(trio, trio)].sum(), 0.0) < (TIED_NET_SHARE * size[[*trio]].max()) ** 2
    ]


def ends(subject: Subject, member: int) -> Float[np.ndarray, "end sequence"]:
    """KL (nats) of only the empty and the full coalition: what nulls are asked for.

    Args:
        subject: The models: `Subject.of(run)`.
        member: The index of the model.
    """
    game = Coalitions(subject, member, MAX_SCORES // (2 * len(subject.decoder) * subject.source.n_states))
    return game.kl(np.array([[False], [True]]).repeat(len(game.moves), 1))


def share_out(subject: Subject, member: int, law: str = "bigram") -> Shares:
    """Play one model's game: exactly up to 10 paths, beyond that over sampled orders of joining.

    Args:
        subject: The models: `Subject.of(run)`.
        member: The index of the model.
        law: The exact predictor that is shared out.

    Example:
        >>> import mechmarkov as mm
        >>> shares = share_out(mm.Subject.of(mm.example("walk"), sequences=8), member=0)
        >>> bool(np.allclose(shares.worth.sum(0), shares.empty - shares.full))
        True
    """
    players = len(subject.recorded(PATHS).names)
    exact = players <= shapley.EXACT_PLAYERS
    rounds = 1 << players if exact else shapley.PERMUTATIONS * (players + 1)
    game = Coalitions(
        subject, member, MAX_SCORES // (rounds * len(subject.decoder) * subject.source.n_states), law
    )
    alone, none = np.eye(players, dtype=bool), np.zeros((1, players), dtype=bool)
    named = game.kl(np.concatenate([none, ~none, alone, ~alone]))
    (empty, full), (only, without) = named[:2], np.split(named[2:], 2)
    worth, spread, error = _play(game, alone)
    group = game.groups()
    names, index = np.unique(group, return_inverse=True)
    net_spread, net_only = spread, only.mean(-1)
    if len(names) < players:
        together = group == names[:, None]
        net_spread = _play(game, together)[1][index]
        net_only = game.kl(together).mean(-1)[index]
    gain = empty - full + game.pulls(none)[0]
    return Shares(
        empty, full, gain, only, without, worth, spread, error, group, net_spread, net_only,
        game.along(), game.temperature,
    )  # fmt: skip


def _play(
    game: Coalitions, teams: Bool[np.ndarray, "team path"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`worth`, `spread` and `error` of teams of paths, as in `Shares`."""
    n = game.law.shape[0]

    def values(members: Bool[np.ndarray, "coalition team"]) -> np.ndarray:
        """The worth of coalitions by sequence, their spread, and the mean."""
        paths = members @ teams
        kl = game.kl(paths)
        # All sequences share the sampled orders: only their mean's own error is that of the mean.
        return -np.concatenate([kl, kl + game.pulls(paths), kl.mean(-1, keepdims=True)], axis=-1)

    if len(teams) <= shapley.EXACT_PLAYERS:
        values_of = shapley.exact(values(shapley.coalitions(len(teams))))
        errors = np.zeros_like(values_of)
    else:
        values_of, errors = shapley.sampled(values, len(teams))
    return values_of[:, :n], values_of[:, n:-1], errors[:, -1]
