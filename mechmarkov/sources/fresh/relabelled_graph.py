"""A graph whose nodes have other names in every sequence, and a walk on it."""

from collections.abc import Mapping
from functools import cached_property
from itertools import permutations
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int64
from pydantic import Field, model_validator

from mechmarkov.sources.base.source import (
    Count,
    Predictor,
    WithHidden,
    by_name,
    check_request,
    counting_rules,
)
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.graph import Graph
from mechmarkov.sources.sampling.paths import sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, integers, table
from mechmarkov.theory import predictors
from mechmarkov.theory.posterior import posterior
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.lazy_torch import Tensor, torch

MAX_NODES = 7  # 5040 orders of the names
MAX_ENDPOINT_POSITION = 1 << 12


class RelabelledGraph(WithHidden):
    """Every sequence walks on one graph whose nodes are named anew (graph tracing, Park et al. 2501.00070).

    Args:
        graph: The graph, undirected, of at most 7 nodes; `relabelled[0]` has its own names.
        endpoint: The token that every walk is at at position `at`; by default walks are free.
        at: The position of the endpoint, counted from 0; after it the walk goes on freely.

    All graphs that differ after renaming are equally likely, and so the posterior over them is exact. With an
    endpoint, a walk is a stationary one under the condition that it is there: its law depends on the
    position (Doob's h-transform, `h_t(j) = Pr(x_at = endpoint | x_t = j)`).

    Raises:
        ValueError: naming the field and what is wrong with it.

    Example:
        >>> path = RelabelledGraph(graph={"edges": [[0, 1], [1, 2]], "n_states": 3})
        >>> len(path.relabelled), path.posterior(np.array([[0, 1, 2]]))[0].round(2).tolist()
        (3, [[0.25, 0.25, 0.5], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    """

    takes_streams: ClassVar[bool] = True
    redraws: ClassVar[bool] = True
    hidden: ClassVar[str] = "graphs"
    kind: Literal["relabelled_graph"] = "relabelled_graph"
    example: ClassVar[Mapping[str, Any]] = {"graph": {"edges": [[0, 1], [1, 2]], "n_states": 3}}
    graph: Graph
    endpoint: Count | None = None
    at: Count | None = Field(default=None, ge=1, le=MAX_ENDPOINT_POSITION)

    @model_validator(mode="after")
    def _small_and_undirected(self) -> "RelabelledGraph":
        if self.graph.n_states > MAX_NODES:
            raise ValueError(f"graph has {self.graph.n_states} nodes, expected at most {MAX_NODES}")
        if self.graph.directed:
            raise ValueError("graph is directed, expected an undirected one: a walk is also read backwards")
        if (self.endpoint is None) != (self.at is None):
            given, missing = ("at", "endpoint") if self.endpoint is None else ("endpoint", "at")
            raise ValueError(f"{missing} is not given, expected one, as {given} is")
        if self.endpoint is not None and not 0 <= self.endpoint < self.n_states:
            raise ValueError(f"endpoint is {self.endpoint}, expected a node from 0 to {self.n_states - 1}")
        if len(self.relabelled) < 2:
            raise ValueError("graph is the same under all names of its nodes, expected one that is not")
        return self

    @property
    def n_states(self) -> int:
        """Number of nodes."""
        return self.graph.n_states

    @cached_property
    def relabelled(self) -> Int64[np.ndarray, "graph state"]:
        """The names of the graph's nodes, one row for each different graph; read-only.

        Node i of `graph` is token `relabelled[g, i]`.
        """
        W, seen = self.graph.weight_matrix, dict[bytes, tuple[int, ...]]()
        for names in permutations(range(self.n_states)):
            back = np.argsort(names)
            seen.setdefault(W[np.ix_(back, back)].tobytes(), names)
        found = np.array(list(seen.values()))
        found.setflags(write=False)
        return found

    @cached_property
    def matrices(self) -> Float[np.ndarray, "graph state_from state_to"]:
        """The transition matrix of each graph; read-only."""
        back = np.argsort(self.relabelled, axis=1)
        return read_only(self.graph.P[back[:, :, None], back[:, None, :]])

    @cached_property
    def starts(self) -> Float[np.ndarray, "graph state"]:
        """Each graph's stationary law; read-only."""
        return read_only(self.graph.pi[np.argsort(self.relabelled, axis=1)])

    def title(self) -> str:
        """`Walk on one of 3 graphs on 3 nodes per sequence`, with its endpoint."""
        end = "" if self.endpoint is None else f", at node {self.endpoint} at position {self.at}"
        return f"Walk on one of {len(self.relabelled)} graphs on {self.n_states} nodes per sequence{end}"

    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Int64[Tensor, " batch"]]:
        """Draw sequences, and which graph of `relabelled` is behind each; see `Source.sample`."""
        check_request(batch, length, generator, device)
        P, pi = (table(generator, device, a) for a in (self.matrices, self.starts))
        which = integers(generator, device, len(P), batch)
        if self.endpoint is None or self.at is None:
            return sample_paths(P[which], pi[which], batch, length, generator), which
        # A stationary walk on an undirected graph has the same law backwards.
        end = torch.zeros_like(pi[which])
        end[:, self.endpoint] = 1
        before = sample_paths(P[which], end, batch, self.at + 1, generator).flip(1)
        if length <= self.at + 1:
            return before[:, :length], which
        after = sample_paths(P[which], end, batch, length - self.at, generator)
        return torch.cat([before, after[:, 1:]], 1), which

    def _conditioned(self, length: int) -> tuple[Float[np.ndarray, "graph state"], list[np.ndarray]]:
        """The law of the first state, and of the steps to positions 1 to `length`, of each graph."""
        P, pi = self.matrices, self.starts
        if self.endpoint is None or self.at is None:
            return pi, [P] * length
        h = [np.broadcast_to(np.eye(self.n_states)[self.endpoint], pi.shape)]
        for _ in range(self.at):
            h.append(np.einsum("gij,gj->gi", P, h[-1]))
        h = h[::-1]  # h[t] of position t
        first = pi * h[0] / pi[:, [self.endpoint]]
        steps = []
        for t in range(1, length + 1):
            if t > self.at:
                steps.append(P)
                continue
            joint = P * h[t][:, None, :]
            steps.append(np.divide(joint, h[t - 1][:, :, None], out=np.zeros_like(P), where=joint > 0))
        return first, steps

    def posterior(self, tokens: Tokens) -> Float[np.ndarray, "batch position graph"]:
        """Returns how likely each graph is, given the tokens up to each position.

        Tokens that no graph could have made tell nothing of it: from there on all are equally likely.
        """
        predictors.check_tokens(tokens, self.n_states)
        first, steps = self._conditioned(tokens.shape[1] - 1)
        with np.errstate(divide="ignore"):
            evidence = [np.log(first)[:, tokens[:, 0]]]
            evidence += [np.log(Q)[:, tokens[:, t], tokens[:, t + 1]] for t, Q in enumerate(steps)]
        n = len(self.relabelled)
        return posterior(np.stack(evidence, -1), np.full(n, 1 / n))

    def beliefs(self, tokens: Tokens) -> Float[np.ndarray, "batch position graph"]:
        """Returns the posterior over graphs: the graph is what is hidden."""
        return self.posterior(tokens)

    def laws_of_hidden(self, tokens: Tokens) -> Float[np.ndarray, "batch position graph state"]:
        """The law of the next token if each graph were known to be behind the sequence (probability).

        From a node that a graph cannot be at there, the law is the graph's own.
        """
        predictors.check_tokens(tokens, self.n_states)
        _, steps = self._conditioned(tokens.shape[1])
        laws = np.stack(
            [Q[:, tokens[:, t]] for t, Q in enumerate(steps)], 2
        )  # [graph, batch, position, state]
        free = self.matrices[:, tokens]
        return np.moveaxis(np.where(laws.sum(-1, keepdims=True) > 0, laws, free), 0, 2)

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, counts of tokens and of pairs, neighbours seen so far, and the mixture over graphs."""
        rules = counting_rules(
            self.n_states,
            unigram="a strategy (inference), not a posterior",
            bigram="a strategy (inference), not a posterior",
        )
        seen = "neighbours: equally likely those seen next to the current token, in either order, a strategy"
        belief = "belief over graphs: each one's law, weighed by the posterior over graphs, exact"
        return rules | by_name(
            Predictor("neighbours", seen, False, self._neighbours),
            Predictor("belief_over_graphs", belief, True, self._belief_over_graphs),
        )

    def best(self) -> Predictor | str:
        """The mixture over graphs, weighed by the exact posterior."""
        return self.predictors()["belief_over_graphs"]

    def _neighbours(self, tokens: Tokens) -> NextLaws:
        """Returns equal shares of the neighbours seen so far, or of all others where there is none."""
        predictors.check_tokens(tokens, self.n_states)
        (batch, length), n = tokens.shape, self.n_states
        laws, rows = np.empty((batch, length, n)), np.arange(batch)
        joined = np.zeros((batch, n, n), dtype=bool)
        others = ~np.eye(n, dtype=bool)
        for t in range(length):
            if t:
                joined[rows, tokens[:, t - 1], tokens[:, t]] = True
                joined[rows, tokens[:, t], tokens[:, t - 1]] = True
            own = joined[rows, tokens[:, t]]
            own = np.where(own.any(-1, keepdims=True), own, others[tokens[:, t]])
            laws[:, t] = own / own.sum(-1, keepdims=True)
        return laws

    def _belief_over_graphs(self, tokens: Tokens) -> NextLaws:
        return np.einsum("btg,btgj->btj", self.posterior(tokens), self.laws_of_hidden(tokens))
