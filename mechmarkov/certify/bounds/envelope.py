"""How far apart two states' scores can be, over all contexts, for a model that adds up heads and no more.

Scores are `z = base + sum over heads of sum_j a_j u_j(x_j)`. For every pair of states this finds the largest

- difference `z_k - z_l` of logits (softmax), or
- log ratio `log(z_k / z_l)` of scores that predict as `max(z, 0) / sum`,

over all contexts with a given parent at a given position: exactly for one head, and for several at most the
sum of the heads' own largest values. Both are one inequality, `z_k - ratio z_l <= margin` for all contexts,
with `ratio = 1` there and `margin = 0` here. What its heads add is at most the sum of their
`Reading.multipliers`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from mechmarkov.certify.bounds import relaxed
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import OWN, RADIUS_ROUNDING
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.bounds.relaxed import Basis

MAX_WORST = 128  # contexts that are kept, of one position and parent
GROWTH, STEPS = 2.0, 20  # a ratio that is not certified yet is raised by ever more, so often

Pairs = Float[np.ndarray, "state_to state_against"]


@dataclass(frozen=True, eq=False)
class Envelope:
    """The largest log odds of a model, over all contexts with one parent at one position.

    Attributes:
        log_odds: At `[k, l]` no smaller than `log(q_k / q_l)` of any context, `q` the prediction; inf where
            state l may get probability 0, -inf where k always does.
        stored: The numbers that show it, which a proof keeps.
        worst: Contexts that are worst for some pair and head, tokens `[context, key]`; of many, some.
        scores: The scores in these contexts, computed in float64, `[context, state]`.
    """

    log_odds: Pairs
    stored: dict[str, Float[np.ndarray, "..."]]
    worst: Int[np.ndarray, "context key"]
    scores: Float[np.ndarray, "context state"]


def of_logits(reading: Reading) -> Envelope:
    """The envelope of logits that a softmax reads: one direction a pair of states.

    Args:
        reading: `Reading.of(layer, contexts, read, parent)`.

    Returns:
        Its `stored` has `multipliers` [pair, head], of the pairs of different states in the order of a table.
    """
    n = reading.base.mid.shape[-1]
    pairs, ones = ~np.eye(n, dtype=bool), np.ones((n, n))
    multipliers, worst = reading.multipliers(_directions(pairs, ones))
    log_odds = np.zeros((n, n))
    log_odds[pairs] = _margin(reading, pairs, ones, multipliers)
    contexts = _distinct(worst)
    return Envelope(log_odds, {"multipliers": multipliers}, contexts, reading.outputs(contexts))


def of_raw_scores(reading: Reading) -> Envelope:
    """The envelope of scores that predict as `max(z, 0) / sum`; the reading is as for `of_logits`.

    A ratio needs scores above 0, which bounds of each score show first. `stored` has these as
    `ceiling` [state, head], of the directions `z_k`, `floor` [state, head], of `-z_k`, and for the pairs of
    different states in the order of a table `ratio` [pair], 0 where there is none, and its `multipliers`
    [pair, head].
    """
    n = reading.base.mid.shape[-1]
    (highest, above), (lowest, below) = (reading.multipliers(sign * np.eye(n)) for sign in (1, -1))
    ceiling, floor = _sum(reading.base.upper, highest), -_sum(-reading.base.lower, lowest)
    log_odds, off = np.full((n, n), np.inf), ~np.eye(n, dtype=bool)
    # A score that is never positive has no odds, unless no score is: then the prediction is uniform.
    log_odds[ceiling <= 0] = -np.inf if (floor > 0).any() else 0.0
    pairs = off & (ceiling[:, None] > 0) & (floor > 0)
    ratio, multipliers = np.zeros((n, n)), np.zeros((n, n, highest.shape[-1]))
    contexts = [above, below]
    if pairs.any():
        ratio[pairs], multipliers[pairs], worst = _ratios(reading, pairs, floor)
        log_odds[pairs] = np.log(ratio[pairs])
        contexts.append(worst)
    np.fill_diagonal(log_odds, 0.0)
    ratio = np.where(np.isfinite(ratio), ratio, 0.0)
    stored = {"ceiling": highest, "floor": lowest, "ratio": ratio[off], "multipliers": multipliers[off]}
    distinct = _distinct(np.concatenate(contexts[::-1]))
    return Envelope(log_odds, stored, distinct, reading.outputs(distinct))


def of_relaxed(
    layer: Layer, reading: Reading, stream: Affine, basis: Basis, along: int, pieces: int, close: bool
) -> Envelope:
    """The envelope of logits behind norms or an MLP, which a softmax reads.

    Args:
        layer: The model.
        reading: `Reading.of(layer, contexts, read, parent, scored=False)`.
        stream: What attention reads at the query, `layer.stream[read, token]`.
        basis: Axes of the box around what attention writes, from `relaxed.longest_axes`.
        along: Into how many parts the longest axis is cut at most, as `relaxed.cuts_of` has it.
        pieces: How many pieces there are at most.
        close: Whether pieces that decide are bounded along a direction of their own.

    Returns:
        Its `stored` has `multipliers` [side_axis, head] and `cuts` [axis], as `relaxed.differences` takes
        them, and a row for each closed piece in `closed`: its states, piece, direction and multipliers.
    """
    multipliers, worst = reading.multipliers(np.concatenate([basis.T, -basis.T]))
    cuts = relaxed.cuts_of(multipliers, stream, along, pieces)
    written, different = relaxed.differences(layer, reading, stream, basis, multipliers, cuts)
    closed = relaxed.closings(reading, written, different) if close else []
    width = basis.shape[1]
    contexts = _distinct(worst[[*range(relaxed.CUT_AXES), *range(width, width + relaxed.CUT_AXES)]])
    rows = [[c.above, c.below, c.piece, *c.direction, *c.multipliers] for c in closed]
    stored = {"multipliers": multipliers, "cuts": cuts}
    if close:
        stored["closed"] = np.array(rows).reshape(len(rows), 3 + width + multipliers.shape[-1])
    scores = relaxed.scores_at(layer, stream, reading.outputs(contexts))
    return Envelope(relaxed.log_odds_of(written, different, closed), stored, contexts, scores)


def _distinct(worst: Int[np.ndarray, "direction head key"]) -> Int[np.ndarray, "context key"]:
    """Some contexts of all directions and heads, each once."""
    every = worst.reshape(-1, worst.shape[-1]).astype(np.int16)
    some = every[:: 1 + len(every) // MAX_WORST]
    return np.stack([*{context.tobytes(): context for context in some}.values()])


def _ratios(
    reading: Reading, pairs: Bool[np.ndarray, "state_to state_against"], floor: Float[np.ndarray, " state"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest ratio of each pair, rounded upwards, its multipliers and the worst contexts, `[pair, ...]`.

    Dinkelbach's iteration once more, for the sum of the heads. It rises to the largest ratio of scores that
    heads reach, each in its own worst context; one step of `margin / floor` from there makes the inequality
    hold.
    """
    (above, below), ratio, worst = np.nonzero(pairs), np.zeros(pairs.shape), None
    while True:
        worst = reading.worst(_directions(pairs, ratio), worst)
        scores = reading.by_head(worst)
        index = np.arange(len(above))
        reached = scores[index, above] / scores[index, below]
        if not (reached > ratio[pairs] * RADIUS_ROUNDING).any():
            break
        ratio[pairs] = np.maximum(ratio[pairs], reached)
    bound, worst = reading.multipliers(_directions(pairs, ratio))
    for step in range(STEPS):
        margin = _margin(reading, pairs, ratio, bound)
        if (margin <= 0).all():
            break
        raised = np.maximum(margin, 0) * GROWTH**step / floor[below] + 64 * OWN * ratio[pairs]
        ratio[pairs] += np.where(
            margin > 0, raised, 0.0
        )  # and a rounding, which else takes rounds of its own
        bound, worst = reading.multipliers(_directions(pairs, ratio))
    return np.where(margin <= 0, ratio[pairs], np.inf), bound, worst


def _directions(
    pairs: Bool[np.ndarray, "state_to state_against"], ratio: Pairs
) -> Float[np.ndarray, "pair state"]:
    """`e_k - ratio e_l` of each pair."""
    (above, below), index = np.nonzero(pairs), np.arange(pairs.sum())
    directions = np.zeros((len(index), len(pairs)))
    directions[index, above] = 1.0
    directions[index, below] -= ratio[pairs]
    return directions


def _margin(
    reading: Reading,
    pairs: Bool[np.ndarray, "state_to state_against"],
    ratio: Pairs,
    multipliers: Float[np.ndarray, "pair head"],
) -> Float[np.ndarray, " pair"]:
    """Returns what `z_k - ratio z_l` is at most, rounded upwards."""
    base = reading.base.combined(_directions(pairs, ratio).T)
    return _sum(base.upper, multipliers)


def _sum(
    base: Float[np.ndarray, "*lead"], multipliers: Float[np.ndarray, "*lead head"]
) -> Float[np.ndarray, "*lead"]:
    """A base and what the heads add to it, rounded upwards."""
    size = np.abs(base) + np.abs(multipliers).sum(-1)
    return base + multipliers.sum(-1) + 8 * (2 + multipliers.shape[-1]) * OWN * size
