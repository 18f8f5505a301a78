"""Hidden Markov models whose matrices need not be probabilities."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, Field, model_validator
from scipy.linalg import qr

from mechmarkov.sources.base.rows import Rows, as_lists, laws_of
from mechmarkov.sources.base.source import Predictor, by_name, check_request
from mechmarkov.sources.base.stationary import Stationary, check_steps, read_only
from mechmarkov.sources.sampling.paths import cumulative, draw
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table, uniform
from mechmarkov.theory import generalised
from mechmarkov.theory.predictors import NextLaws, Tokens, check_tokens
from mechmarkov.utils.lazy_torch import torch

MAX_WORDS = 1 << 12  # whose probabilities are checked
MAX_SPANNING = 1 << 8  # words of which some are chosen
TOLERANCE = 1e-9
LARGEST = 1e100  # entry of a matrix: sums and products of larger ones overflow
SPAN = 1e-6  # of the longest vector; below it a direction is rounding


class GeneralisedHiddenMarkov(Stationary):
    """`Pr(x_1 … x_n) = l T[x_1] … T[x_n] r`, by real matrices (Riechers et al. 2507.07432; Jaeger 2000).

    A hidden Markov model has matrices of probabilities. With negative entries few dimensions may do what no
    finite hidden chain does, as in a quantum system that is measured. `l` and `r` are the eigenvectors of the
    matrices' sum to the eigenvalue 1. What is known after some tokens is a vector, `l T[x_1] … T[x_n]` by its
    product with `r`. As a belief it is told by as many words as it has dimensions (`words`), each for what is
    known after it: a sum of these with weights that sum to 1, and may be negative.

    Args:
        matrices: `[state, from, to]`. Whether all words get probabilities is undecidable: all of one length,
            at most 4096, are checked, and shorter ones.

    Raises:
        ValueError: Matrices of another shape, a sum whose largest eigenvalue is not a single 1, or a word of
            negative probability, which is named.

    Example:
        >>> source = GeneralisedHiddenMarkov.qubit(turn=0.3, strength=0.8)
        >>> source.pi.round(3).tolist(), source.vectors(np.array([[0, 0]]))[0, -1].round(3).tolist()
        ([0.5, 0.5], [1.0, 0.371, 0.901])
        >>> float(source.beliefs(np.array([[0, 1]])).sum(-1).round(9).min())
        1.0
    """

    takes_streams: ClassVar[bool] = True
    hidden: ClassVar[str] = "predictive states"
    kind: Literal["generalised_hidden_markov"] = "generalised_hidden_markov"
    example: ClassVar[Mapping[str, Any]] = {
        "matrices": [
            [[0.5, 0.4, 0.0], [0.0, 0.0, -0.3], [0.4, 0.5, 0.0]],
            [[0.5, -0.4, 0.0], [0.0, 0.0, -0.3], [-0.4, 0.5, 0.0]],
        ]
    }
    matrices: Annotated[tuple[Rows, ...], BeforeValidator(as_lists), Field(min_length=2, max_length=64)]

    @model_validator(mode="after")
    def _makes_probabilities(self) -> "GeneralisedHiddenMarkov":
        n = len(self.matrices[0])
        for i, rows in enumerate(self.matrices):
            if not 1 <= n <= 64 or len(rows) != n or any(len(row) != n for row in rows):
                raise ValueError(f"matrices[{i}] is not a square of {n} rows, expected one, of at most 64")
        if not (largest := np.abs(self.T).max()) <= LARGEST:  # NaN too
            raise ValueError(f"matrices have an entry of size {largest}, expected numbers up to {LARGEST}")
        _ = self.ends
        words: list[tuple[int, ...]] = [()]
        vectors = self.ends[0][None]
        while len(words) * self.n_states <= MAX_WORDS:
            vectors = np.einsum("wi,xij->wxj", vectors, self.T).reshape(-1, n)
            words = [(*word, x) for word in words for x in range(self.n_states)]
            probabilities = vectors @ self.ends[1]
            if (worst := int(probabilities.argmin()), probabilities.min())[1] < -TOLERANCE:
                raise ValueError(
                    f"matrices give {list(words[worst])} the probability {probabilities[worst]:.3g}, "
                    "expected at least 0 for every word"
                )
        return self

    @classmethod
    def qubit(cls, turn: float, strength: float) -> "GeneralisedHiddenMarkov":
        """A qubit that is measured weakly along z and turned about y, again and again.

        Its state is (1, x, z) of the Bloch ball: three dimensions.

        Args:
            turn: The angle after each measurement, in radians.
            strength: The measurement's, in [0, 1]; 1 projects.

        Raises:
            ValueError: A strength outside.

        Example:
            >>> source = GeneralisedHiddenMarkov.qubit(turn=0.3, strength=0.8)
            >>> source.sample(1, 6, generator=torch.Generator().manual_seed(1)).shape
            torch.Size([1, 6])
        """
        if not 0 <= strength <= 1:
            raise ValueError(f"strength is {strength}, expected a number in [0, 1]")
        kept, cos, sin = np.sqrt(1 - strength**2), np.cos(turn), np.sin(turn)
        turned = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
        measured = [np.array([[1, 0, s], [0, kept, 0], [s, 0, 1]]) / 2 for s in (strength, -strength)]
        return cls(matrices=[(M @ turned).tolist() for M in measured])

    @classmethod
    def bloch_walk(cls, alpha: float = 1.0, beta: float = 51**0.5) -> "GeneralisedHiddenMarkov":
        """A qubit that is measured weakly along z or along x, by a coin; see `theory.generalised.bloch_walk`.

        Example:
            >>> GeneralisedHiddenMarkov.bloch_walk().title()
            '4 tokens from a generalised hidden Markov model of 3 dimensions'
        """
        return cls(matrices=generalised.bloch_walk(alpha, beta).tolist())

    @classmethod
    def moon(cls, alpha: float = np.e, beta: float = 0.5) -> "GeneralisedHiddenMarkov":
        """A process whose memory is a logarithm; see `theory.generalised.moon`.

        Example:
            >>> source = GeneralisedHiddenMarkov.moon()
            >>> source.P[0].round(3).tolist()  # no reset comes right after another
            [0.0, 0.854, 0.146]
        """
        return cls(matrices=generalised.moon(alpha, beta).tolist())

    @classmethod
    def frdn(cls, angle: float = 2.0, decay: float = 0.5) -> "GeneralisedHiddenMarkov":
        """A process whose memory is an angle; see `theory.generalised.frdn`.

        Example:
            >>> GeneralisedHiddenMarkov.frdn().pi.round(3).tolist()
            [0.468, 0.532]
        """
        return cls(matrices=generalised.frdn(angle, decay).tolist())

    @property
    def n_states(self) -> int:
        """Number of different tokens."""
        return len(self.matrices)

    @cached_property
    def T(self) -> Float[np.ndarray, "state from to"]:
        """The matrices; read-only."""
        return read_only(np.array(self.matrices))

    @cached_property
    def ends(self) -> tuple[Float[np.ndarray, " from"], Float[np.ndarray, " to"]]:
        """`l` and `r`: `l T = l`, `T r = r` for the sum T over tokens, and `l r = 1`; read-only.

        Raises:
            ValueError: T has not the eigenvalue 1 once, with all others smaller.
        """
        values, right = np.linalg.eig(self.T.sum(0))
        other_values, left = np.linalg.eig(self.T.sum(0).T)
        largest = np.sort(np.abs(values))[::-1]
        at, other = int(np.abs(values - 1).argmin()), int(np.abs(other_values - 1).argmin())
        single = abs(values[at] - 1) < TOLERANCE and (len(largest) == 1 or largest[1] < 1 - TOLERANCE)
        if not (single and largest[0] < 1 + TOLERANCE):
            raise ValueError(
                f"matrices have a sum with eigenvalues of {largest[:2].round(6).tolist()} in size, expected "
                "1 and then smaller ones"
            )
        end, start = right[:, at].real, left[:, other].real
        end = end / end[np.abs(end).argmax()]
        return read_only(start / (start @ end)), read_only(end)

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The law of one token; read-only."""
        return read_only(np.maximum(self.ends[0] @ self.T @ self.ends[1], 0))

    def title(self) -> str:
        """`2 tokens from a generalised hidden Markov model of 3 dimensions`."""
        return (
            f"{self.n_states} tokens from a generalised hidden Markov model of {self.T.shape[1]} dimensions"
        )

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """Returns the law by m steps of the sum of matrices; see `Stationary.step_law`."""
        check_steps(m)
        return next(islice(self.step_laws(), m, None))

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """Yields each law from one more step; see `Stationary.step_laws`."""
        yield np.eye(self.n_states)
        known, end = self.ends[0] @ self.T, self.ends[1]  # after the first token
        while True:
            joint = np.einsum("xi,yij,j->xy", known, self.T, end)
            yield laws_of(np.maximum(joint, 0), self.pi)
            known = known @ self.T.sum(0)

    @cached_property
    def words(self) -> tuple[tuple[int, ...], ...]:
        """Short words after which what is known are vectors that span all others, and are far apart."""
        start, end = self.ends
        each: list[tuple[int, ...]] = [()]
        vectors = [start]
        for word, vector in zip(each, vectors, strict=True):  # both grow while they are gone through
            if len(each) + self.n_states > MAX_SPANNING:
                break
            for x in range(self.n_states):
                onward = vector @ self.T[x]
                if onward @ end > TOLERANCE:
                    each.append((*word, x))
                    vectors.append(onward / (onward @ end))
        _, size, order = qr(np.array(vectors).T, pivoting=True)
        rank = int((np.abs(np.diag(size)) > SPAN * abs(size[0, 0])).sum())
        return tuple(sorted((each[i] for i in order[:rank]), key=lambda word: (len(word), word)))

    @cached_property
    def _span(self) -> Float[np.ndarray, "hidden to"]:
        known = [self.vectors(np.array([word]))[0, -1] if word else self.ends[0] for word in self.words]
        return read_only(np.array(known))

    def beliefs(self, tokens: Tokens) -> Float[np.ndarray, "batch position hidden"]:
        """Weights of what is known after each of `words`, whose sum is what is known after these tokens."""
        return self.vectors(tokens) @ np.linalg.pinv(self._span)

    def laws_of_hidden(self, tokens: Tokens) -> Float[np.ndarray, "batch position hidden state"]:
        """The law of the next token if the past were each of `words` (probability)."""
        check_tokens(tokens, self.n_states)
        laws = np.maximum(self._span @ (self.T @ self.ends[1]).T, 0)
        return np.broadcast_to(laws, (*tokens.shape, *laws.shape))

    def vectors(self, tokens: Tokens) -> Float[np.ndarray, "batch position to"]:
        """Vectors of what is known after each token, whose product with `r` is 1.

        A token that is impossible after those before it leaves what is known before any.
        """
        check_tokens(tokens, self.n_states)
        start, end = self.ends
        known = np.empty((*tokens.shape, len(start)))
        now = np.tile(start, (len(tokens), 1))
        for t in range(tokens.shape[1]):
            onward = np.einsum("bi,bij->bj", now, self.T[tokens[:, t]])
            total = (onward @ end)[:, None]
            now = np.where(total > TOLERANCE, onward / np.where(total > 0, total, 1), start)
            known[:, t] = now
        return known

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every stationary source, and `forward_filter`."""
        label = "forward filter: the vector after all tokens, a step on, exact"
        return super().predictors() | by_name(Predictor("forward_filter", label, True, self._best_law))

    def best(self) -> Predictor | str:
        """Returns what the vector after all tokens says of the next one."""
        return self.predictors()["forward_filter"]

    def _best_law(self, tokens: Tokens) -> NextLaws:
        laws = np.maximum(self.vectors(tokens) @ (self.T @ self.ends[1]).T, 0)
        return laws / laws.sum(-1, keepdims=True)

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw each token from its law after those before it; see `Source.sample`."""
        check_request(batch, length, generator, device)
        T, first, end = (table(generator, device, a) for a in (self.T, *self.ends))
        u = uniform(generator, device, batch, length)
        now, drawn = first.expand(batch, -1), []
        for t in range(length):
            onward = torch.einsum("bi,xij->bxj", now, T)
            law = (onward @ end).clamp_min(0)
            token = draw(cumulative(law), u[:, t, None])
            chosen = onward.gather(1, token[..., None].expand(-1, -1, onward.shape[-1]))[:, 0]
            now = chosen / (chosen @ end)[:, None]
            drawn.append(token)
        return torch.cat(drawn, 1)
