"""Sharing the bigram out among paths: a game whose players are paths and whose worth is nats.

A coalition is the model with the other paths at their data mean, in the logits. It is worth what it is nearer
to the exact bigram than the model with every path at its mean; Shapley values share what all paths together
are worth. What a path adds is taken from the model as it ran, so that an MLP's share is measured with the
residual stream that it really sees.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.theory import shapley
from mechmarkov.theory.kernel import FLOOR

# Scores that are turned into predictions, over all models and coalitions: less than a second.
MAX_SCORES = 1 << 24
CHUNK_SCORES = 1 << 18  # what fits the cache
MIN_SEQUENCES = 32  # sequences


@dataclass(frozen=True, eq=False)
class Shares:
    """One model's game, in nats, sequence by sequence.

    Attributes:
        empty: KL from the exact bigram to the model with every path at its mean.
        full: To the model as it is.
        only: With that path alone as it is.
        without: With that path alone at its mean.
        worth: Shapley values; they add up to `empty - full` in every sequence.
        error: Standard error of the mean of `worth` from sampling orders; 0 where it is exact.
    """

    empty: Float[np.ndarray, " sequence"]
    full: Float[np.ndarray, " sequence"]
    only: Float[np.ndarray, "path sequence"]
    without: Float[np.ndarray, "path sequence"]
    worth: Float[np.ndarray, "path sequence"]
    error: Float[np.ndarray, " path"]


class Coalitions:
    """The KL of any coalition of one model's paths.

    Args:
        subject: The models, of a source with one chain.
        member: Which model.
        most: Predictions that are looked at, at most; they are spread over sequences and positions.
    """

    def __init__(self, subject: Subject, member: int, most: int) -> None:
        recorded, batch = subject.recorded(PATHS), subject.batch
        n, n_kept = len(batch.tokens), len(recorded.kept)
        sequences = slice(0, n if n <= most else max(MIN_SEQUENCES, most))
        each = max(1, min(n_kept, most // n))
        some = ((np.arange(each) + 0.5) * n_kept / each).astype(int)
        where = recorded.kept[some]
        added = recorded.logits[member][:, sequences][:, :, some].astype(np.float64)
        self.moves = torch.from_numpy(added - recorded.mean[member][:, None, None, :])
        scores = torch.from_numpy(subject.recorded(SCORES)[member][sequences][:, where]).double()
        self.base = scores - self.moves.sum(0)
        self.law = torch.from_numpy(subject.exact["bigram"][sequences][:, where])
        self.entropy = -torch.special.xlogy(self.law, self.law).sum(-1)
        self.objective = subject.objective

    @property
    def players(self) -> int:
        """How many paths there are."""
        return len(self.moves)

    def kl(self, members: Bool[np.ndarray, "coalition path"]) -> Float[np.ndarray, "coalition sequence"]:
        """KL from the exact bigram to each coalition, the mean over the predictions of each sequence."""
        rows = torch.from_numpy(members).double()
        found = []
        for some in torch.split(rows, max(1, CHUNK_SCORES // self.base.numel())):
            scores = self.base + torch.tensordot(some, self.moves, 1)
            logs = self.objective.predict(scores).clamp_min(FLOOR).log()
            found.append((-(self.law * logs).sum(-1) - self.entropy).mean(-1))
        return torch.cat(found).numpy()


def ends(subject: Subject, member: int) -> tuple[np.ndarray, np.ndarray]:
    """KL of the empty and of the full coalition alone, `[sequence]` each: what nulls are asked for."""
    game = Coalitions(subject, member, MAX_SCORES // (2 * len(subject.decoder) * subject.source.n_states))
    none, everybody = game.kl(np.array([[False], [True]]).repeat(game.players, 1))
    return none, everybody


def share_out(subject: Subject, member: int, *, seed: int = 0) -> Shares:
    """Play one model's game: exactly up to 10 paths, beyond that over sampled orders of joining."""
    players = len(subject.recorded(PATHS).names)
    exact = players <= shapley.EXACT_PLAYERS
    rounds = 1 << players if exact else shapley.PERMUTATIONS * (players + 1)
    game = Coalitions(
        subject, member, MAX_SCORES // (rounds * len(subject.decoder) * subject.source.n_states)
    )
    alone = np.eye(players, dtype=bool)
    named = game.kl(np.concatenate([np.zeros_like(alone[:1]), np.ones_like(alone[:1]), alone, ~alone]))
    if exact:
        worth, error = shapley.exact(-game.kl(shapley.coalitions(players))), np.zeros(players)
    else:

        def with_mean(members: np.ndarray) -> np.ndarray:
            kl = game.kl(members)
            # All sequences share the sampled orders: only their mean's own error is that of the mean.
            return -np.concatenate([kl, kl.mean(-1, keepdims=True)], axis=-1)

        found, errors = shapley.sampled(with_mean, players, seed=seed)
        worth, error = found[:, :-1], errors[:, -1]
    return Shares(named[0], named[1], named[2 : players + 2], named[players + 2 :], worth, error)
