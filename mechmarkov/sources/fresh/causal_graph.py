"""Sequences along a known graph of parents, with a fresh kernel for every sequence."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Strict, model_validator

from mechmarkov.sources.base.fresh_chains import Chains, FreshChains, dirichlet_rows
from mechmarkov.sources.base.source import Count, Predictor, Real, by_name, check_question, counting_rules
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.paths import cumulative, draw
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, uniform
from mechmarkov.theory import predictors
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.lazy_torch import torch

MAX_ROWS = 1 << 10  # of the kernels of one sequence
MAX_POSITIONS = 1 << 12

Parent = Annotated[int, Strict()]


class CausalGraph(FreshChains):
    """Every position has parents among those before it; kernels are drawn per sequence (Nichani et al. 2024).

    The state at a position is drawn from the row of its parents' states. A sequence has one kernel for each
    number of parents, `[K^m, K]`, rows from Dirichlet(concentration); the first parent is the highest digit.
    In-context chains are the path graph, each position the parent of the next.

    Args:
        n_states: Number of states, K.
        parents: The parents, `parents[i]` all below i; none for a root. Their number is the length of
            every sequence. The last position is the answer: a model reads those before it.
        concentration: The concentration of every entry of the Dirichlet law.
        start: The law of roots. `"uniform"`: they say nothing about the kernel, and counts along the graph
            are the exact posterior mean. `"stationary"`: that of the sequence's chain, as in the authors'
            code, if no position has several parents. A root right before the answer is the query, uniform in
            either case.

    Raises:
        ValueError: naming the field and what is wrong with it.

    Example:
        >>> path = CausalGraph(n_states=3, parents=[[], [0], [1], [2]])
        >>> path.length, path.best().name
        (4, 'in_context_graph')
        >>> path.title()
        'Causal graph of 4 positions and 3 edges on 3 states, a fresh chain per sequence from Dirichlet(1)'
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["causal_graph"] = "causal_graph"
    example: ClassVar[Mapping[str, Any]] = {"n_states": 3, "parents": [[], [0], [0], [1], [2], [3]]}
    n_states: Count = Field(ge=2, le=1 << 10)
    parents: tuple[tuple[Parent, ...], ...] = Field(min_length=2, max_length=MAX_POSITIONS)
    concentration: Real = Field(default=1.0, gt=0, le=1e6)
    start: Literal["stationary", "uniform"] = "uniform"

    @model_validator(mode="after")
    def _one_law(self) -> "CausalGraph":
        for i, parents in enumerate(self.parents):
            if len(set(parents)) != len(parents) or not all(0 <= parent < i for parent in parents):
                expected = f"different positions from 0 to {i - 1}" if i else "none"
                raise ValueError(f"parents of position {i} are {list(parents)}, expected {expected}")
        most = max(map(len, self.parents))
        if most == 0:
            raise ValueError("parents are all empty, expected at least one edge")
        if sum(self.n_states**m for m in self._numbers) > MAX_ROWS:
            raise ValueError(
                f"parents are up to {most} a position on {self.n_states} states, expected at most {MAX_ROWS} "
                "rows of kernels"
            )
        if self.start == "stationary" and self._numbers != (1,):
            raise ValueError(
                f"start is 'stationary', expected 'uniform' where a position has {most} parents: "
                "only one chain has a stationary law"
            )
        return self

    @classmethod
    def of_lags(
        cls, n_states: int, length: int, lags: Sequence[int], concentration: float = 1.0
    ) -> "CausalGraph":
        """The n-gram graph: parents at fixed lags, after uniform first positions (Chen et al. 2024).

        Args:
            n_states: K.
            length: Number of positions, the answer's among them.
            lags: How far back the parents are, such as `(1, 2)` for a second-order chain; their number is the
                paper's `n_parents`. The furthest is the highest digit of a row.
            concentration: The concentration of every entry of the Dirichlet law.

        Raises:
            ValueError: A lag is below 1, twice there, or leaves no position with parents.

        Example:
            >>> CausalGraph.of_lags(2, length=5, lags=(1, 3)).parents
            ((), (), (), (0, 2), (1, 3))
        """
        if not lags or min(lags) < 1 or len(set(lags)) < len(lags) or max(lags) >= length:
            raise ValueError(f"lags are {list(lags)}, expected different ones from 1 to {length - 1}")
        order = sorted(lags, reverse=True)
        parents = [[i - lag for lag in order] if i >= order[0] else [] for i in range(length)]
        return cls.model_validate({"n_states": n_states, "parents": parents, "concentration": concentration})

    @property
    def length(self) -> int:
        """The number of positions, the answer's among them."""
        return len(self.parents)

    @property
    def _numbers(self) -> tuple[int, ...]:
        """Returns how many parents there may be, roots aside, ascending."""
        return tuple(sorted({len(parents) for parents in self.parents} - {0}))

    @property
    def _offsets(self) -> dict[int, int]:
        """Returns where the rows of each kernel begin."""
        return {m: sum(self.n_states**n for n in self._numbers if n < m) for m in self._numbers}

    def title(self) -> str:
        """`Causal graph of 4 positions and 3 edges on 3 states, a fresh chain per sequence from …`."""
        edges = sum(map(len, self.parents))
        law = "chain" if self._numbers == (1,) else "kernel"
        return (
            f"Causal graph of {self.length} positions and {edges} edges on {self.n_states} states, "
            f"a fresh {law} per sequence from Dirichlet({self.concentration:g})"
        )

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, counts of tokens and of neighbours, and counts along the graph."""
        n, a = self.n_states, self.concentration
        strategy = "a strategy, not a posterior"
        counts = counting_rules(n, unigram=strategy, bigram=strategy, concentration=a)
        exact = self.start == "uniform"
        quality = "exact posterior mean" if exact else "close to the posterior mean (stationary roots)"
        label = f"in-context graph: add-{a:g} counts of what followed the parents' states, {quality}"
        along = Predictor("in_context_graph", label, exact, self._along_the_graph)
        return counts | by_name(along)

    def best(self) -> Predictor | str:
        """Counts along the graph where roots are uniform; else there is no closed form."""
        if self.start == "uniform":
            return self.predictors()["in_context_graph"]
        return "stationary roots tell of the chain, so the posterior mean has no closed form"

    def _along_the_graph(self, tokens: Tokens) -> NextLaws:
        check_question(tokens, self.n_states, self.length)
        return predictors.in_context_graph(tokens, self.n_states, self.parents, self.concentration)

    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        rows = sum(self.n_states**m for m in self._numbers)
        return dirichlet_rows((batch, rows, self.n_states), self.concentration, generator, device)

    def _paths(self, P: Chains, length: int, generator: Numbers) -> Sequences:
        if length != self.length:
            raise ValueError(f"length is {length}, expected {self.length}: the graph has that many positions")
        u = uniform(generator, P.device, len(P), length)
        rows = cumulative(P)
        alike = torch.arange(1, self.n_states + 1, device=P.device, dtype=torch.float64) / self.n_states
        alike = alike.expand(len(P), -1).contiguous()
        root = alike if self.start == "uniform" else cumulative(law.eliminate(P))
        states = torch.empty(len(P), length, dtype=torch.int64, device=P.device)
        every = torch.arange(len(P), device=P.device)
        for i, parents in enumerate(self.parents):
            if parents:
                row = torch.zeros_like(every)
                for parent in parents:
                    row = row * self.n_states + states[:, parent]
                cdf = rows[every, self._offsets[len(parents)] + row]
            else:
                cdf = alike if i == length - 2 else root
            states[:, i] = draw(cdf, u[:, i : i + 1])[:, 0]
        return states
