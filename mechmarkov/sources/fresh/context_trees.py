"""A fresh context tree for every sequence: how far back the next state depends on varies with the past."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from mechmarkov.sources.base.fresh_chains import Chains, FreshChains, dirichlet_rows
from mechmarkov.sources.base.source import Count, Predictor, Real, by_name, counting_rules
from mechmarkov.sources.sampling.histories import sample_fresh_histories
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, uniform
from mechmarkov.theory import predictors
from mechmarkov.theory.context_trees import context_tree_weighting, node_offsets
from mechmarkov.utils.lazy_torch import torch

MAX_HISTORIES = 1 << 10


class ContextTrees(FreshChains):
    """Every sequence has a context tree of its own, a chain of variable order (Zhou et al. 2410.05493).

    Args:
        n_states: Number of states, K.
        depth: How many states back the next one depends on at most, D (K^D at most 1024).
        branch: The probability that a node above that depth is split into K, in (0, 1).
        concentration: A leaf's law is Dirichlet(concentration); 0.5 is Krichevsky & Trofimov's.

    The first D states are uniform, so that they tell nothing of the tree, and context-tree weighting is the
    exact posterior mean. `sample_chains` gives kernels with a row for each history of D states.

    Raises:
        ValueError: naming the field and what is wrong with it.

    Example:
        >>> source = ContextTrees(n_states=2, depth=2)
        >>> source.best().name
        'context_tree_weighting'
        >>> import torch
        >>> kernels = source.sample_chains(200, generator=torch.Generator().manual_seed(0))
        >>> kernels.shape, bool(((kernels[:, 0] == kernels[:, 3]).all(1)).any())  # some trees are the root
        (torch.Size([200, 4, 2]), True)
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["context_trees"] = "context_trees"
    example: ClassVar[Mapping[str, Any]] = {"n_states": 2, "depth": 2}
    n_states: Count = Field(ge=2, le=1 << 10)
    depth: Count = Field(ge=1, le=10)
    branch: Real = Field(default=0.5, gt=0, lt=1)
    concentration: Real = Field(default=0.5, gt=0, le=1e6)

    @model_validator(mode="after")
    def _few_histories(self) -> "ContextTrees":
        if self.n_states**self.depth > MAX_HISTORIES:
            raise ValueError(
                f"depth is {self.depth} on {self.n_states} states, expected at most {MAX_HISTORIES} "
                f"histories of {self.depth}"
            )
        return self

    def title(self) -> str:
        """`A fresh context tree of depth 2 on 3 states per sequence, laws from Dirichlet(0.5)`."""
        law = f"Dirichlet({self.concentration:g})"
        tree = f"context tree of depth {self.depth}"
        return f"A fresh {tree} on {self.n_states} states per sequence, laws from {law}"

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, counts after the last 0, 1, … D states, and context-tree weighting, which is exact."""
        n, a, strategy = self.n_states, self.concentration, "a strategy, not a posterior"
        rules = counting_rules(n, unigram=strategy, bigram=strategy, concentration=a)
        for j in range(2, self.depth + 1):
            rule = partial(predictors.in_context_order, n_states=n, order=j, concentration=a)
            label = f"in-context order {j}: add-{a:g} counts after the last {j} tokens, {strategy}"
            rules |= by_name(Predictor(f"in_context_order_{j}", label, False, rule))
        weighting = partial(
            context_tree_weighting, n_states=n, depth=self.depth, branch=self.branch, concentration=a
        )
        label = "context-tree weighting: the mixture over all trees, exact posterior mean"
        return rules | by_name(Predictor("context_tree_weighting", label, True, weighting))

    def best(self) -> Predictor | str:
        """Context-tree weighting."""
        return self.predictors()["context_tree_weighting"]

    def _chains(self, batch: int, generator: Numbers, device: Device) -> Chains:
        n, first = self.n_states, node_offsets(self.n_states, self.depth).tolist()
        n_inner, n_nodes = first[-2:]
        rows = dirichlet_rows((batch, n_nodes, n), self.concentration, generator, device)
        split = uniform(generator, device, batch, n_inner) < self.branch
        history = torch.arange(n**self.depth, device=device)
        # Which node each history's law is of: from the root on, as long as nodes are split.
        node = torch.zeros(batch, len(history), dtype=torch.int64, device=device)
        going_on = torch.ones_like(node, dtype=torch.bool)
        for level in range(self.depth):
            at = (first[level] + history % n**level).expand(batch, -1)
            going_on = going_on & split.gather(1, at)
            deeper = first[level + 1] + history % n ** (level + 1)
            node = torch.where(going_on, deeper, node)
        return rows.gather(1, node[..., None].expand(-1, -1, n))

    def _paths(self, P: Chains, length: int, generator: Numbers) -> Sequences:
        return sample_fresh_histories(P, self.depth, length, generator)
