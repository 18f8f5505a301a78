"""What the heads of one query read: the support function of each one's output, rounded upwards.

A head adds at most `mu` to the scores in a direction, in all contexts, if

    sum_j max over y, and over the balls, of w_j(y) (f_j(y) - mu) <= 0.

This is one sum, computed with its terms and itself rounded upwards. A proof stores `mu`, and a checker
computes the sum again.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import EXACT, FLOAT32, OWN, UNDERFLOW, Ball
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.contexts import Contexts
from mechmarkov.theory.worst_case import Worst, largest_ratio, largest_sum

# Of all radii, as a checker counts roundings in its own way. In exact arithmetic there are only our own.
ROOM = {EXACT: 2.0, FLOAT32: 1.02}
SMALL = 1e-34  # weights above that do not underflow in float32
GROWTH, TRIES = 4.0, 60  # a slack that is not enough grows by that factor, so often

Directions = Float[np.ndarray, "direction state"]


@dataclass(frozen=True, eq=False)
class Reading:
    """The reading of one query's heads, over all contexts in one case.

    Attributes:
        weight: Attention weights, `[head, key, token]`.
        value: What each token adds, to the scores `[head, key, token, state]` or to the residual stream.
        base: What is there without the heads, `[state]`.
        allowed: Which tokens a key may have.
        transitions: Which token may follow which; None for all.
    """

    weight: Ball
    value: Affine
    base: Affine
    allowed: Bool[np.ndarray, "key token"]
    transitions: Bool[np.ndarray, "token_from token_to"] | None

    @staticmethod
    def of(layer: Layer, contexts: Contexts, read: int, case: int, scored: bool = True) -> "Reading":
        """Returns a query's reading at a position: of scores, or of the residual stream if not `scored`."""
        token, first = contexts.token(case), layer.first_key(read)
        value = layer.scored if scored else layer.written
        weight, value, room = layer.attention(read, token), value[:, first : read + 1], ROOM[layer.unit]
        if weight.mid.min() < SMALL:
            # A weight that underflows is off by a share of the largest: the mean by that share of its values.
            lost = 4 * (read + 1) * UNDERFLOW[layer.unit] * value.size.max((1, 2), keepdims=True)
            value = replace(value, rad=value.rad + lost)
        # Keys in front of the window are states of the path too; nothing reads them.
        unseen = ((0, 0), (first, 0), (0, 0))
        return Reading(
            weight.larger(room).padded(unseen),
            value.larger(room).padded((*unseen, (0, 0))),
            (layer.base(read, token) if scored else layer.without_heads[read, token]).larger(room),
            contexts.allowed(read, case),
            contexts.token_transitions,
        )

    def multipliers(
        self, directions: Directions
    ) -> tuple[Float[np.ndarray, "direction head"], Int[np.ndarray, "direction head key"]]:
        """The largest that each head can add in some directions, rounded upwards, and where it does.

        Returns:
            The bounds, inf where none was found, and for each the worst context of that head.
        """
        value = self._along(directions)
        worst = self._worst(value, None)
        weight = np.broadcast_to(self.weight.mid, value.mid.shape)
        total = np.take_along_axis(weight, worst.context[..., None], -1).sum((-2, -1))
        bound, slack = worst.value, np.zeros_like(worst.value)
        for _ in range(TRIES):
            excess = self._excess(value, bound)
            if (excess <= 0).all():
                break
            slack = np.where(excess > 0, np.maximum(GROWTH * slack, 1.5 * excess / total), slack)
            bound = worst.value + slack
        return np.where(excess <= 0, bound, np.inf), worst.context

    def _along(self, directions: Directions) -> Ball:
        """Returns what each token adds in some directions, `[direction, head, key, token]`."""
        return self.value.combined(directions.T).hull.transposed(3, 0, 1, 2)

    def _worst(self, value: Ball, begin: Int[np.ndarray, "direction head key"] | None) -> Worst:
        weight = np.broadcast_to(self.weight.mid, value.mid.shape)
        return largest_ratio(weight * value.mid, weight, self.allowed, self.transitions, begin)

    def worst(
        self, directions: Directions, begin: Int[np.ndarray, "direction head key"] | None = None
    ) -> Int[np.ndarray, "direction head key"]:
        """The worst contexts that `multipliers` gives, without its bounds; from others that are near."""
        return self._worst(self._along(directions), begin).context

    def _excess(
        self, value: Ball, bound: Float[np.ndarray, "direction head"]
    ) -> Float[np.ndarray, "direction head"]:
        """Not positive only if no context has `sum_j w_j (f_j - bound)` above 0: then the bounds hold."""
        over = value.mid + value.rad - bound[..., None, None]
        over += 4 * OWN * (value.size + np.abs(bound)[..., None, None])
        highest, lowest = self.weight.mid + self.weight.rad, self.weight.mid - self.weight.rad
        gain = over * np.where(over > 0, highest, np.maximum(lowest, 0.0))
        # A sum above 0 has more above 0 than below, and is off by a rounding of twice that at most.
        above = np.where(self.allowed, np.maximum(gain, 0.0), 0.0).max(-1).sum(-1)
        rounding = 2 * (gain.shape[-2] + 8) * OWN * above
        return largest_sum(gain, self.allowed, self.transitions).value + rounding

    def outputs(self, contexts: Int[np.ndarray, "*lead key"]) -> Float[np.ndarray, "*lead output"]:
        """Returns what follows the heads in some contexts: scores, or the residual stream; of midpoints."""
        return self.by_head(np.repeat(contexts[..., None, :], len(self.weight.mid), -2))

    def by_head(self, contexts: Int[np.ndarray, "*lead head key"]) -> Float[np.ndarray, "*lead output"]:
        """The same where each head reads a context of its own."""
        heads, keys = np.ogrid[: contexts.shape[-2], : contexts.shape[-1]]
        weight = self.weight.mid[heads, keys, contexts][..., None]
        read = (weight * self.value.mid[heads, keys, contexts]).sum(-2) / weight.sum(-2)
        return self.base.mid + read.sum(-2)
