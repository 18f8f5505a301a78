"""A chain whose rows are weighted by how often each state has come: what an attention layer samples."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import field_validator

from mechmarkov.sources.base.by_matrix import ByMatrix
from mechmarkov.sources.base.source import Predictor, by_name, check_request, counting_rules
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.sampling.paths import walk_by_counts
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table, uniform
from mechmarkov.theory import context_conditioned, predictors
from mechmarkov.theory.predictors import NextLaws, Tokens


class ContextConditionedChain(ByMatrix):
    """`Pr(next = k)` is proportional to `n_k P[q, k]`: q is the last state, `n_k` how often k has come.

    Ildiz et al. 2024 (arXiv 2402.13512). The first K tokens are all states in a uniformly random order;
    then the sequence goes on from its own tokens, as one attention layer does that samples. A state
    that is frequent comes more often, so that a few may fill the context: each sequence has its own end.

    Args:
        P: The base chain, every entry above 0. In Python it is `base`: no two neighbours have this law.

    Raises:
        ValueError: naming the field and what is wrong with it.

    Example:
        >>> source = ContextConditionedChain([[0.75, 0.25], [0.5, 0.5]])
        >>> source.best().probabilities(np.array([[1, 0, 0]]))[0].round(3).tolist()
        [[1.0, 0.0], [0.75, 0.25], [0.857, 0.143]]
    """

    takes_streams: ClassVar[bool] = True
    redraws: ClassVar[bool] = True  # its own first tokens decide what a sequence goes on with
    kind: Literal["context_conditioned_chain"] = "context_conditioned_chain"
    example: ClassVar[Mapping[str, Any]] = {"P": [[0.75, 0.25], [0.5, 0.5]]}

    @field_validator("rows")
    @classmethod
    def _positive(cls, rows: Any) -> Any:
        for i, j in np.argwhere(np.array(rows) <= 0)[:1]:
            raise ValueError(f"P[{i}][{j}] is {rows[i][j]}, expected a number above 0")
        return rows

    @cached_property
    def base(self) -> Float[np.ndarray, "state_from state_to"]:
        """The base chain; read-only."""
        return read_only(self.transition_matrix())

    def title(self) -> str:
        """`Context-conditioned chain on 3 states`."""
        return f"Context-conditioned chain on {self.n_states} states"

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, counts of tokens and of pairs, the rows of the base chain, and both together."""
        strategy = "a strategy, not a posterior"
        row = "base chain: its row, whatever the counts, approximate"
        exact = "context-conditioned: the base chain's row times the counts, exact"
        return counting_rules(self.n_states, unigram=strategy, bigram=strategy) | by_name(
            Predictor("base_bigram", row, False, partial(predictors.bigram, P=self.base)),
            Predictor("context_conditioned", exact, True, self._law),
        )

    def best(self) -> Predictor | str:
        """The law itself: all is known but what is drawn."""
        return self.predictors()["context_conditioned"]

    def _law(self, tokens: Tokens) -> NextLaws:
        law = context_conditioned.next_laws(tokens, self.base)
        shown = law[:, : self.n_states - 1]  # of the first tokens, which are all different
        shown[:] = 1.0
        np.put_along_axis(shown, tokens[:, : shown.shape[1], None], 0.0, axis=2)
        np.cumprod(shown, axis=1, out=shown)
        left = shown.sum(-1, keepdims=True)
        shown /= np.where(left > 0, left, 1)
        return law

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw sequences, each from its own tokens; see `Source.sample`."""
        check_request(batch, length, generator, device)
        n = self.n_states
        u = uniform(generator, device, batch, n + length)
        first = u[:, :n].argsort(1)
        return walk_by_counts(table(generator, device, self.base), u[:, 2 * n :], first)[:, :length]
