"""A random walk on a weighted graph."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_serializer, model_validator
from scipy.sparse.csgraph import connected_components

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.rows import MAX_STATES, Rows, as_lists, check_square
from mechmarkov.sources.base.source import Count, Real
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.sampling import law

# Smaller weights could be lost in a sum with others, larger ones overflow.
MIN_WEIGHT, MAX_WEIGHT = 1e-100, 1e100
WEIGHTS = f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"


def _weights(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    check_square(rows, "weights")
    for i, row in enumerate(rows):
        for j, weight in enumerate(row):
            if weight != 0 and not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise ValueError(f"weights[{i}][{j}] is {weight}, expected 0 or {WEIGHTS}")
    return rows


def _with_weight(edge: Any) -> Any:
    return [*edge, 1.0] if isinstance(edge, list | tuple) and len(edge) == 2 else edge


Written = tuple[Count, Count] | tuple[Count, Count, Real]
Edge = Annotated[tuple[Count, Count, Real], BeforeValidator(_with_weight, json_schema_input_type=Written)]


class Graph(FixedChain):
    """A walk that leaves a node by one of its edges, each as often as its weight says.

    Args:
        weights: `[state_from, state_to]`, 0 where there is no edge; an edge from a node to itself is on the
            diagonal. Either these or `edges` are given.
        edges: `[from, to]` or `[from, to, weight]` each; without a weight it has 1.
        n_states: With `edges`, the number of nodes.
        directed: Whether an edge leads one way only; otherwise `weights` are symmetric.
        labels: The nodes' names, for people; by default their numbers.

    Starts are stationary: on an undirected graph in proportion to degree, the sum of a node's weights. A
    directed graph may have nodes that are left for good; they are never sampled.

    Raises:
        ValueError: naming the field and what is wrong with it, a node without a way out, or
            the parts of a graph that is not connected.

    Example:
        >>> path = Graph(edges=[[0, 1], [1, 2, 3.0]], n_states=3)
        >>> path.pi.tolist(), path.P[1].tolist()
        ([0.125, 0.5, 0.375], [0.25, 0.0, 0.75])
        >>> Graph(weights=[[0, 1], [1, 0]]).model_dump(mode="json")
        {'kind': 'graph', 'weights': [[0.0, 1.0], [1.0, 0.0]], 'directed': False}
    """

    # In data the arguments are called n_states and labels; in Python every source has those.
    model_config = ConfigDict(serialize_by_alias=True)

    takes_streams: ClassVar[bool] = True
    kind: Literal["graph"] = "graph"
    example: ClassVar[Mapping[str, Any]] = {
        "n_states": 4,
        "edges": [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2, 2.0]],
    }
    weights: Annotated[Rows, AfterValidator(_weights)] | None = None
    edges: Annotated[tuple[Edge, ...], BeforeValidator(as_lists)] | None = None
    nodes: Count | None = Field(default=None, alias="n_states", ge=2, le=MAX_STATES)
    directed: bool = Field(default=False, strict=True)
    names: tuple[str, ...] | None = Field(default=None, alias="labels")

    def __repr_args__(self) -> Any:
        return self.model_dump(exclude={"kind"}).items()

    @model_serializer(mode="wrap")
    def _what_was_given(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}

    @model_validator(mode="after")
    def _one_walk(self) -> "Graph":
        self._check_arguments()
        W = self.weight_matrix
        if (stuck := np.flatnonzero(~W.any(axis=1))).size:
            raise ValueError(f"node {stuck[0]} has no way out, expected an edge from every node")
        n_parts, part = connected_components(W > 0, directed=False)
        if n_parts > 1:
            parts = (np.flatnonzero(part == i) for i in range(n_parts))
            named = ", ".join("{" + ", ".join(map(str, members)) + "}" for members in parts)
            raise ValueError(f"the graph has {n_parts} components, {named}, expected a connected one")
        if self.directed:
            law.stationary(self.P)  # says which classes are closed, if not one
        return self

    def _check_arguments(self) -> None:
        if (self.weights is None) == (self.edges is None):
            given = "neither" if self.weights is None else "both"
            raise ValueError(f"of weights and edges {given} are given, expected one of the two")
        if (self.edges is None) != (self.nodes is None):
            raise ValueError(f"n_states is {self.nodes}, expected a number with edges and none with weights")
        if self.names is not None and (
            len(self.names) != self.n_states or len(set(self.names)) != self.n_states
        ):
            raise ValueError(
                f"labels are {len(set(self.names))} names, expected {self.n_states}, all different"
            )
        W = self.weight_matrix
        if not self.directed and (W != W.T).any():
            i, j = map(int, np.argwhere(W != W.T)[0])
            raise ValueError(
                f"weights[{i}][{j}] is {W[i, j]} but weights[{j}][{i}] is {W[j, i]}, expected a symmetric "
                "matrix or directed = true"
            )

    @cached_property
    def weight_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        """The weights, however they were given; read-only.

        Raises:
            ValueError: An edge outside the nodes, of a weight that is not allowed, or given twice.
        """
        if self.weights is not None:
            return read_only(np.array(self.weights))
        W = np.zeros((self.n_states, self.n_states))
        for i, j, weight in self.edges or ():
            if not 0 <= min(i, j) <= max(i, j) < self.n_states:
                raise ValueError(f"edge [{i}, {j}] is outside nodes 0 to {self.n_states - 1}")
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise ValueError(f"edge [{i}, {j}] has weight {weight}, expected {WEIGHTS}")
            if W[i, j]:
                raise ValueError(f"edge [{i}, {j}] is given twice, expected once")
            W[i, j] = weight
            if not self.directed:
                W[j, i] = weight
        return read_only(W)

    @property
    def n_states(self) -> int:
        """Number of nodes."""
        if self.weights is not None:
            return len(self.weights)
        assert self.nodes is not None  # given with edges, or there is no graph
        return self.nodes

    @property
    def labels(self) -> tuple[str, ...]:
        """The nodes' names."""
        return super().labels if self.names is None else self.names

    @property
    def degrees(self) -> Float[np.ndarray, " state"]:
        """The sum of the weights of each node's edges, those that leave it."""
        return np.array([math.fsum(row) for row in self.weight_matrix])

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law: degrees divided by their sum, where the graph is undirected; read-only."""
        if self.directed:
            return read_only(law.stationary(self.P))
        return read_only(self.degrees / math.fsum(self.degrees))

    def title(self) -> str:
        """`Walk on a graph of 3 nodes, 2 edges`."""
        W = self.weight_matrix
        n_edges = int(np.count_nonzero(W if self.directed else np.triu(W)))
        kind = "directed graph" if self.directed else "graph"
        return f"Walk on a {kind} of {self.n_states} nodes, {n_edges} edge{'s' * (n_edges != 1)}"

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        return self.weight_matrix / self.degrees[:, None]
