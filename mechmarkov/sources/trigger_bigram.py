"""A bigram in which what follows some tokens, the triggers, is another token in every sequence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Int64
from pydantic import BeforeValidator, field_validator, model_validator

from mechmarkov.sources.base.by_matrix import ByMatrix
from mechmarkov.sources.base.rows import as_law, as_lists, normalised
from mechmarkov.sources.base.source import Count, Predictor, WithHidden, by_name, check_request
from mechmarkov.sources.base.stationary import Stationary, check_steps, read_only
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.paths import cumulative, draw, sample_paths
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, table, uniform
from mechmarkov.theory import predictors
from mechmarkov.theory.predictors import NextLaws, Tokens
from mechmarkov.utils.lazy_torch import Tensor, torch
from mechmarkov.utils.text import shown

# Of the chains of all draws of outputs together: a step of all of them takes a tenth of a second.
MAX_ENTRIES = 1 << 22


def _outputs(value: Any) -> Any:
    value = as_lists(value)
    if isinstance(value, list | tuple):
        return as_law(value, "outputs")
    if not isinstance(value, str) or value != "uniform":
        raise ValueError(f"outputs is {shown(value)}, expected 'uniform' or a law")
    return value


# All is checked before, so that a mistake is one error and not one for each form.
Outputs = Annotated[Literal["uniform"] | tuple[float, ...], BeforeValidator(_outputs)]


@dataclass(frozen=True, eq=False)
class Draws:
    """Every draw of the outputs, the last trigger's changing fastest.

    Attributes:
        possible: The states that can be outputs.
        outputs: What follows each trigger.
        weight: How likely the draw is.
        law: The stationary law of the chain that it makes.
    """

    possible: Int[np.ndarray, " possible"]
    outputs: Int[np.ndarray, "draw trigger"]
    weight: Float[np.ndarray, " draw"]
    law: Float[np.ndarray, "draw state"]


class TriggerBigram(ByMatrix, WithHidden, Stationary):
    """A global bigram with triggers; in each sequence one token of its own follows a trigger, always.

    Bietti et al. 2023 (arXiv 2306.00802). To predict what follows a trigger a model must find in the context
    what followed it before.

    Args:
        P: The global bigram, as in `Chain`; the triggers' rows are not used. In Python it is `given`; `P` is
            there the law of neighbours over all sequences, as for every source.
        triggers: Different states. From every state some trigger must be reached.
        outputs: The law of what follows a trigger, drawn for every sequence and trigger apart;
            `"uniform"` is uniform over all states but the triggers. A trigger is never an output, since two
            that lead to each other would never be left.
        start: `"stationary"` starts a sequence in the stationary law of its own chain. Then `pi` and
            `step_law` are exact, averaged over all draws of the outputs, of which there must be few
            (K^2 times their number at most 2^22), and the first token tells a little of them. `"global"`
            starts in the stationary law of the global chain, in which outputs are drawn anew each time, and
            `pi` and `step_law` are that chain's: exact for the first two tokens and for a step from what is
            no trigger; elsewhere they leave out that a sequence repeats its outputs.

    The best predictor is exact with either start.

    Raises:
        ValueError: naming the field and what is wrong with it.

    Example:
        >>> P = [[0.1, 0.6, 0.3], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]]
        >>> source = TriggerBigram(P, triggers=[0], start="global")
        >>> tokens = np.array([[0, 2, 1, 0]])
        >>> source.best().probabilities(tokens)[0].tolist()
        [[0.0, 0.5, 0.5], [0.5, 0.3, 0.2], [0.3, 0.2, 0.5], [0.0, 0.0, 1.0]]
        >>> source.in_context_mask(tokens).tolist()
        [[False, False, False, True]]
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["trigger_bigram"] = "trigger_bigram"
    example: ClassVar[Mapping[str, Any]] = {
        "P": [[0.1, 0.6, 0.3], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]],
        "triggers": [0],
    }
    triggers: Annotated[tuple[Count, ...], BeforeValidator(as_lists)]
    outputs: Outputs = "uniform"
    start: Literal["stationary", "global"] = "stationary"

    def __init__(self, P: Any = ..., triggers: Any = ..., **data: Any) -> None:
        super().__init__(P, **data if triggers is ... else {"triggers": triggers, **data})

    @field_validator("triggers")
    @classmethod
    def _states(cls, triggers: tuple[int, ...], info: Any) -> tuple[int, ...]:
        n_states = len(info.data.get("rows", ()))
        if not n_states:
            return triggers  # which is the error to report
        if not 1 <= len(triggers) < n_states:
            raise ValueError(f"triggers has {len(triggers)} entries, expected 1 to {n_states - 1}")
        for i, trigger in enumerate(triggers):
            if not 0 <= trigger < n_states:
                raise ValueError(f"triggers[{i}] is {trigger}, expected a state from 0 to {n_states - 1}")
            if trigger in triggers[:i]:
                raise ValueError(f"triggers[{i}] is {trigger} again, expected different states")
        return triggers

    @field_validator("outputs")
    @classmethod
    def _a_law(cls, outputs: Any, info: Any) -> Any:
        if outputs == "uniform" or "triggers" not in info.data or "rows" not in info.data:
            return outputs
        n_states = len(info.data["rows"])
        if len(outputs) != n_states:
            raise ValueError(f"outputs has {len(outputs)} entries, expected {n_states}, one for each state")
        for trigger in info.data["triggers"]:
            if outputs[trigger]:
                raise ValueError(f"outputs[{trigger}] is {outputs[trigger]}, expected 0 for a trigger")
        return outputs

    @model_validator(mode="after")
    def _one_law(self) -> "TriggerBigram":
        met = self._met
        stuck = [members for members in law.closed_classes(met) if members[0] not in self.triggers]
        if stuck:
            raise ValueError(
                f"P never leads from state {stuck[0][0]} to a trigger, expected a way from every state"
            )
        law.stationary(self.global_chain, "P, with outputs after triggers,")
        if self.start == "stationary":
            self._check_draws(law.reachable(met)[:, self._triggers])
        return self

    def _check_draws(self, leads: Bool[np.ndarray, "state trigger"]) -> None:
        """Few draws of outputs, and after any of them every trigger leads to every other."""
        n, possible = len(self.triggers), np.flatnonzero(self.output_law)
        draws = len(possible) ** n
        most = MAX_ENTRIES // self.n_states**2
        if draws > most:
            raise ValueError(
                f"start is 'stationary', expected 'global': {len(possible)} outputs of {n} triggers are "
                f"{draws} draws, more than the {most} on {self.n_states} states that are summed over"
            )
        for rows in product(np.unique(leads[possible], axis=0), repeat=n):
            if len(law.classes(np.stack(rows).astype(float))) > 1:
                raise ValueError(
                    "outputs can part the triggers so that one never leads to another, expected a way "
                    "between any two, or start 'global'"
                )

    @cached_property
    def given(self) -> Float[np.ndarray, "state_from state_to"]:
        """The bigram that was given, whose rows of triggers are not used; read-only."""
        return read_only(self.transition_matrix())

    @cached_property
    def output_law(self) -> Float[np.ndarray, " state"]:
        """The law of what follows a trigger, before any token; read-only."""
        if self.outputs != "uniform":
            return read_only(normalised([self.outputs])[0])
        possible = np.ones(self.n_states)
        possible[list(self.triggers)] = 0
        return read_only(possible / possible.sum())

    @cached_property
    def global_chain(self) -> Float[np.ndarray, "state_from state_to"]:
        """The bigram with the outputs' law in the rows of triggers; read-only."""
        P = self.given.copy()
        P[self._triggers] = self.output_law
        return read_only(P)

    @property
    def _met(self) -> Float[np.ndarray, "state_from state_to"]:
        """The bigram with absorbing triggers: the chain up to the first of them."""
        P = self.given.copy()
        P[self._triggers] = np.eye(self.n_states)[self._triggers]
        return P

    @cached_property
    def draws(self) -> Draws:
        """Every draw of the outputs, with the stationary law of the chain it makes.

        Watched only at its triggers, a chain has few states. What is visited between two triggers is the
        same in all chains.
        """
        P, t, rest = self.given, self._triggers, np.delete(np.arange(self.n_states), self.triggers)
        possible = np.flatnonzero(self.output_law)
        outputs = np.array(list(product(possible, repeat=len(t))))
        # From each state, up to and with the first trigger met: how often each state is visited.
        visits = np.zeros_like(P)
        visits[np.ix_(rest, rest)] = np.linalg.inv(np.eye(len(rest)) - P[np.ix_(rest, rest)])
        visits[np.ix_(rest, t)] = visits[np.ix_(rest, rest)] @ P[np.ix_(rest, t)]
        visits = np.where(law.reachable(self._met), visits, 0.0)  # and no rounding where there is no way
        between = visits[:, t][outputs]  # draw, trigger, next trigger
        of_triggers = law.eliminate(torch.tensor(between / between.sum(-1, keepdims=True))).numpy()
        stationary = np.einsum("dq,dqk->dk", of_triggers, visits[outputs])
        weight = self.output_law[outputs].prod(-1)
        return Draws(possible, outputs, weight, stationary / stationary.sum(-1, keepdims=True))

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The law of one state, as `start` says; read-only."""
        if self.start == "global":
            return read_only(law.stationary(self.global_chain))
        return read_only(self.draws.weight @ self.draws.law)

    def title(self) -> str:
        """`Bigram on 10 states, the successors of 1 and 4 redrawn per sequence`."""
        few = len(self.triggers) < 4
        named = " and ".join(map(str, self.triggers)) if few else f"{len(self.triggers)} states"
        return f"Bigram on {self.n_states} states, the successors of {named} redrawn per sequence"

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """Returns a mean over draws or the global chain's law, as `start` says; see `Stationary.step_law`."""
        check_steps(m)
        if self.start == "global":
            return np.linalg.matrix_power(self.global_chain, m)
        return next(islice(self.step_laws(), m, None))

    def step_laws(self) -> Iterator[Float[np.ndarray, "state_from state_to"]]:
        """Yields each law from the last, a step of the chains of all draws on; see `Stationary.step_laws`."""
        if self.start == "global":
            yield from super().step_laws()
            return
        yield np.eye(self.n_states)
        share = self.draws.weight[:, None] * self.draws.law
        share = np.divide(share, self.pi, out=np.zeros_like(share), where=self.pi > 0)
        now = share[:, :, None] * np.eye(self.n_states)  # draw, state m steps back, state now
        never = self.pi == 0
        rest = np.delete(np.arange(self.n_states), self.triggers)
        while True:
            later = now[..., rest] @ self.given[rest]
            for trigger, output in zip(self.triggers, self.draws.outputs.T, strict=True):
                later[np.arange(len(later)), :, output] += now[..., trigger]
            now = later
            step = now.sum(0)
            step[never] = self.pi
            yield step

    @cached_property
    def _triggers(self) -> Int[np.ndarray, " trigger"]:
        return np.array(self.triggers)

    @cached_property
    def _number(self) -> Int[np.ndarray, " state"]:
        """The place of each state among the possible outputs, -1 for the others."""
        place = np.full(self.n_states, -1)
        place[self.draws.possible] = np.arange(len(self.draws.possible))
        return place

    def trigger_mask(self, tokens: Tokens) -> Bool[np.ndarray, "batch position"]:
        """Returns where a trigger stands, so that its output is to be predicted."""
        predictors.check_tokens(tokens, self.n_states)
        return np.isin(tokens, self.triggers)

    def in_context_mask(self, tokens: Tokens) -> Bool[np.ndarray, "batch position"]:
        """Returns where a trigger stands that stood before, so that its output is known from the context."""
        predictors.check_tokens(tokens, self.n_states)
        stood_before = np.zeros(tokens.shape, dtype=bool)
        for trigger in self.triggers:
            hits = tokens == trigger
            stood_before |= hits & (hits.cumsum(axis=1) > 1)
        return stood_before

    def sample_with_hidden(
        self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu"
    ) -> tuple[Sequences, Int64[Tensor, "batch trigger"]]:
        """Draw sequences and what follows each trigger in them; see `Source.sample`."""
        check_request(batch, length, generator, device)
        n = len(self.triggers)
        u = uniform(generator, device, batch, n).view(1, -1)
        cdf = cumulative(table(generator, device, self.output_law)[None])
        outputs = draw(cdf, u).reshape(batch, n)
        if self.start == "global":
            start = table(generator, device, self.pi)[None]
        else:
            digits = table(generator, device, self._number)[outputs]
            places = len(self.draws.possible) ** torch.arange(n, device=device).flip(0)
            start = table(generator, device, self.draws.law)[(digits * places).sum(1)]
        always = torch.full((batch, self.n_states), -1, device=device)
        always.index_copy_(1, table(generator, device, self._triggers), outputs)
        P = table(generator, device, self.given)[None]
        return sample_paths(P, start, batch, length, generator, always), outputs

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every stationary source, and `repeat_output`."""
        rules = super().predictors()
        if self.start == "global":
            for name in rules.keys() - {"uniform"}:
                label = rules[name].label.replace(", exact", ", of the global chain")
                rules[name] = replace(rules[name], label=label, exact=False)
        label = "repeat output: after a trigger met before what followed it, else all but the context, exact"
        return rules | by_name(Predictor("repeat_output", label, True, self._repeat_output))

    def best(self) -> Predictor | str:
        """After a trigger met before its output, after a new one its posterior, else the row of `given`.

        Steps from other states tell nothing of the outputs. With the global start nothing does but the
        triggers' own successors, and the posterior of a new trigger's output is `output_law`; with the
        stationary start the first token tells a little.
        """
        return self.predictors()["repeat_output"]

    def _repeat_output(self, tokens: Tokens) -> NextLaws:
        laws = predictors.bigram(tokens, self.global_chain).copy()
        if self.start == "stationary":
            self._new_triggers(tokens, laws)
        for trigger in self.triggers:
            hits = tokens == trigger
            again = hits & (hits.cumsum(axis=1) > 1)
            after = np.minimum(hits.argmax(axis=1) + 1, tokens.shape[1] - 1)
            output = np.take_along_axis(tokens, after[:, None], axis=1)
            laws[again] = np.eye(self.n_states)[np.broadcast_to(output, tokens.shape)[again]]
        return laws

    def _new_triggers(self, tokens: Tokens, laws: NextLaws) -> None:
        """Put in what the first token, and the outputs met so far, tell of a new trigger's output.

        Tokens that no draw could have made tell nothing.
        """
        n, possible = len(self.triggers), self.draws.possible
        joint = (self.draws.weight[:, None] * self.draws.law).reshape(*[len(possible)] * n, self.n_states)
        for sequence, x in enumerate(tokens):
            left = joint[..., x[0]]
            first = ((int((x == q).argmax()), i) for i, q in enumerate(self.triggers) if (x == q).any())
            for t, i in sorted(first):
                likely = left.sum(axis=tuple(j for j in range(n) if j != i))
                if likely.size > 1 and likely.sum() > 0:
                    laws[sequence, t] = 0
                    laws[sequence, t, possible] = likely / likely.sum()
                if t + 1 < len(x) and self._number[x[t + 1]] >= 0:
                    left = left.take([self._number[x[t + 1]]], axis=i)
