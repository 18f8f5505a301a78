"""Some hidden chains, one of them behind every sequence."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, field_validator
from scipy.linalg import block_diag

from mechmarkov.sources.base.hidden_chain import HiddenChain, Parts
from mechmarkov.sources.base.rows import MAX_STATES, Weights, as_lists, one_for_each, weights_or_uniform
from mechmarkov.sources.base.source import Predictor, by_name
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.hidden_markov import HiddenMarkov
from mechmarkov.theory.predictors import NextLaws, Tokens

MAX_TASKS = 1 << 8


class HiddenMixture(HiddenChain):
    """Every sequence comes from one of N hidden Markov models, the tasks (Hao et al. 2506.01919).

    Args:
        tasks: The models, each with `transitions` and `emissions` as in `HiddenMarkov`, on the same tokens.
        weights: How likely each task is; by default equally.

    What is hidden is the task with its state, and the belief over both is exact. The process is stationary
    but not ergodic: a sequence keeps its task.

    Raises:
        ValueError: naming the task and what is wrong with it.

    Example:
        >>> E = [[0.9, 0.1], [0.1, 0.9]]
        >>> stays, moves = [[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]
        >>> source = HiddenMixture(tasks=[{"transitions": P, "emissions": E} for P in (stays, moves)])
        >>> source.posterior(np.array([[0, 0, 0]]))[0].round(3).tolist()
        [[0.5, 0.5], [0.756, 0.244], [0.863, 0.137]]
    """

    takes_streams: ClassVar[bool] = True
    hidden: ClassVar[str] = "tasks and states"
    kind: Literal["hidden_mixture"] = "hidden_mixture"
    example: ClassVar[Mapping[str, Any]] = {
        "tasks": [
            {"transitions": [[0.9, 0.1], [0.1, 0.9]], "emissions": [[0.9, 0.1], [0.1, 0.9]]},
            {"transitions": [[0.1, 0.9], [0.9, 0.1]], "emissions": [[0.9, 0.1], [0.1, 0.9]]},
        ]
    }
    tasks: Annotated[tuple[HiddenMarkov, ...], BeforeValidator(as_lists)]
    weights: Annotated[Weights | None, one_for_each("task", "tasks")] = None

    @field_validator("tasks")
    @classmethod
    def _on_the_same_tokens(cls, tasks: tuple[HiddenMarkov, ...]) -> tuple[HiddenMarkov, ...]:
        if not 2 <= len(tasks) <= MAX_TASKS:
            raise ValueError(f"tasks has {len(tasks)} of them, expected 2 to {MAX_TASKS}")
        for i, task in enumerate(tasks):
            if task.n_states != tasks[0].n_states:
                raise ValueError(
                    f"tasks[{i}] has {task.n_states} tokens, expected {tasks[0].n_states} as tasks[0]"
                )
        if (n_hidden := sum(task.n_hidden for task in tasks)) > MAX_STATES:
            raise ValueError(f"tasks have {n_hidden} hidden states together, expected at most {MAX_STATES}")
        return tasks

    @property
    def n_states(self) -> int:
        """Number of different tokens."""
        return self.tasks[0].n_states

    @cached_property
    def prior(self) -> Float[np.ndarray, " task"]:
        """Returns how likely each task is before any token; read-only."""
        return read_only(weights_or_uniform(self.weights, len(self.tasks)))

    @cached_property
    def T(self) -> Float[np.ndarray, "hidden_from hidden_to"]:
        """Transitions of all tasks, a block each, so that none is left; read-only."""
        return read_only(block_diag(*(task.T for task in self.tasks)))

    @cached_property
    def E(self) -> Float[np.ndarray, "hidden state"]:
        """Emissions of all tasks' states; read-only."""
        return read_only(np.concatenate([task.E for task in self.tasks]))

    @cached_property
    def hidden_law(self) -> Float[np.ndarray, " hidden"]:
        """The tasks' stationary laws, each as likely as its task; read-only."""
        laws = [weight * task.hidden_law for weight, task in zip(self.prior, self.tasks, strict=True)]
        return read_only(np.concatenate(laws))

    @property
    def parts(self) -> Parts:
        """The task; and the state, where all tasks have as many."""
        sizes = [task.n_hidden for task in self.tasks]
        task = {"task": np.eye(len(sizes)).repeat(sizes, axis=0)}
        return task | ({"state": np.tile(np.eye(sizes[0]), (len(sizes), 1))} if len(set(sizes)) == 1 else {})

    def title(self) -> str:
        """`One of 3 hidden chains on 3 tokens per sequence`."""
        return f"One of {len(self.tasks)} hidden chains on {self.n_states} tokens per sequence"

    def posterior(self, tokens: Tokens) -> Float[np.ndarray, "batch position task"]:
        """Returns how likely each task is, given the tokens up to each position."""
        return self.beliefs(tokens) @ self.parts["task"]

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every hidden chain, and `without_task`: no task is inferred."""
        label = "without the task: each task's own filter, weighed as before any token, a strategy"
        return super().predictors() | by_name(Predictor("without_task", label, False, self._without_task))

    def _without_task(self, tokens: Tokens) -> NextLaws:
        laws = [task.best_law(tokens) for task in self.tasks]
        return np.einsum("t,tbpj->bpj", self.prior, np.stack(laws))
