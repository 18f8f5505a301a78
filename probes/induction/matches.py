"""Where an induction head would look, and what only lag and tokens already say of it.

A key *matches k tokens* of a query if the k tokens before the key are the last k tokens the query knows
(Rajaraman et al. 2024; k = 1 is the induction head of Olsson et al. 2022, whose key's predecessor is the
current token). Mass on matches proves nothing by itself: on a sticky chain the copies of the current token
are mostly preceded by it, so that a duplicate-token head scores without any induction. So every key's match
is compared with what is expected of it:

- among the keys of the same sequence that carry the same token (and match k - 1 tokens), the share that
  match. Given the chain, a key's predecessor depends only on the key's token, so this is all that tokens
  can tell, also where every sequence has a chain of its own; a head that only tells tokens apart scores
  exactly 0, and so does a (k - 1)-token head at k;
- plus what is left of that on average over all queries at the same lag and tokens: little for a chain of
  first order (a short sequence is not an exact sample of its chain), much for one of higher order, which
  tells by lag. A head that only tells lags apart scores 0, to about a hundredth of what lag explains.

The two averages are taken in turn on the sequences that are scored, and so explain away a little of any
head's score, as of the ideal head's: one part in as many as there are pairs at a lag and tokens.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechmarkov.probing.batch import Batch

MAX_MATCHED = 3  # tokens that a key matches, at most

# Elements of one table [sequence, query, key]: 8 MB in float32, and a few of them are held.
ELEMENTS = 1 << 21
MIN_SEQUENCES = 8

# Centring over tokens and over lags in turn: each round leaves less than half of what lag explains, so that
# a hundredth is left where it was all (a previous-token head on a chain of second order).
ROUNDS = 6

# Tokens are told apart as well as lags where this many pairs of query and key fall on each lag and tokens.
PAIRS_A_CELL = 16


@dataclass(frozen=True, eq=False)
class Matches:
    """The matches of some sequences, for queries that have one, at the positions that are read.

    Attributes:
        match: Whether a key matches k tokens of the query.
        surprise: That, less what the key's token, the query's and their lag explain of it. Summed with a
            head's attention it is the induction score.
        count: How many keys match.
    """

    match: Bool[Tensor, "k batch read key"]
    surprise: Float[Tensor, "k batch read key"]
    count: Int[Tensor, "k batch read"]

    def part(self, sequences: slice, most: int = MAX_MATCHED) -> "Matches":
        """Matches of up to that many tokens, of some sequences."""
        return Matches(*(x[:most, sequences] for x in (self.match, self.surprise, self.count)))

    def to(self, device: torch.device) -> "Matches":
        """The same on a device."""
        return Matches(*(x.to(device) for x in (self.match, self.surprise, self.count)))

    @property
    def queries(self) -> Float[Tensor, "k batch"]:
        """Returns how many queries of each sequence have a match."""
        return (self.count > 0).double().sum(-1)

    @property
    def uniform(self) -> Float[Tensor, "k batch read key"]:
        """The attention of an ideal head: uniform on the matches, nothing where there are none."""
        return self.match / self.count.clamp_min(1)[..., None]


def sequences_for(batch: Batch) -> int:
    """Returns how many of a batch's sequences matches are looked for in, to bound memory.

    Args:
        batch: Their length is what counts.
    """
    one = len(batch.read) * batch.history.shape[1]
    return min(batch.tokens.shape[0], max(MIN_SEQUENCES, ELEMENTS // one))


def find_matches(batch: Batch, n_states: int, *, window: int | None = None) -> Matches:
    """Find the matches of 1, 2, …, `MAX_MATCHED` tokens in a batch.

    A key matches k tokens of a query if the k tokens before the key are the query's last k.

    Args:
        batch: The sequences; what lag and tokens explain is averaged over them.
        n_states: The number of states of the source.
        window: How far back the model sees, if not to the start.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> find_matches(subject.batch, n_states=3).match.shape  # k, batch, read, key
        torch.Size([3, 8, 64, 64])
    """
    x, n_read = batch.history.int(), len(batch.read)
    read, key = batch.visible(window).nonzero(as_tuple=True)  # pairs of a query and a key it may look at
    known = batch.known[read]
    every_query = torch.arange(len(x) * n_read, dtype=torch.int32).view(len(x), n_read)
    group = every_query[:, read] * n_states + x[:, key]  # the keys of one token that one query may look at
    cell = _cells(batch, read, key, n_states)
    matches = torch.zeros(MAX_MATCHED, len(x), n_read, x.shape[1], dtype=torch.bool)
    surprises = torch.zeros(matches.shape)
    count = torch.zeros(matches.shape[:3], dtype=torch.int32)
    before = torch.ones(group.shape, dtype=torch.bool)  # matches of k - 1 tokens
    for k in range(1, MAX_MATCHED + 1):
        possible = before & (key >= k) & (known >= k - 1)
        match = possible & (x[:, (key - k).clamp_min(0)] == x[:, (known - k + 1).clamp_min(0)])
        matches[k - 1][:, read, key] = match
        count[k - 1].index_add_(1, read, match.int())
        counted = possible & (count[k - 1] > 0)[:, read]
        labels = (label.masked_select(counted) for label in (group, cell))
        pairs = _unexplained(match.masked_select(counted).double(), *labels)
        surprises[k - 1][:, read, key] = torch.zeros(match.shape).masked_scatter_(counted, pairs.float())
        before = match
    return Matches(matches, surprises, count)


def _unexplained(
    pairs: Float[Tensor, " pair"], group: Int[Tensor, " pair"], cell: Int[Tensor, " pair"]
) -> Float[Tensor, " pair"]:
    """Returns what neither its group nor its cell explains of each pair's number; in its memory."""
    alike, same_cell = _Means(group), _Means(cell)
    pairs -= alike(pairs)  # a head that sees tokens cannot choose among the keys of one token
    for _ in range(ROUNDS):
        explained = same_cell(pairs)
        explained -= alike(explained)
        pairs -= explained
    return pairs


def _cells(
    batch: Batch, read: Int[Tensor, " pair"], key: Int[Tensor, " pair"], n_states: int
) -> Int[Tensor, "batch pair"]:
    """A number for the lag and the tokens of each query and key; for only the lag where data are few."""
    x, known = batch.history.int(), batch.known[read]
    lag = (known - key).int().expand(len(x), -1)
    if len(x) * len(batch.read) < 2 * PAIRS_A_CELL * n_states**2:  # half of the keys are ahead
        return lag
    return (lag * n_states + x[:, known]) * n_states + x[:, key]


class _Means:
    """The mean of a number over the pairs of query and key that share a label, at each pair."""

    def __init__(self, label: Int[Tensor, " pair"]) -> None:
        self.label, self.count = label, torch.bincount(label).clamp_min(1)

    def __call__(self, value: Float[Tensor, " pair"]) -> Float[Tensor, " pair"]:
        return (torch.bincount(self.label, value) / self.count).index_select(0, self.label)
