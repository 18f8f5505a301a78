"""Questions of a quiz about a model: a relation of the claims' vocabulary, whether it holds, and its value.

`truth` answers every question by measurement: an intervention, the attention itself, or exact laws.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import rel_entr
from torch import Tensor

from mechmarkov.bench.counterfactuals import known_best
from mechmarkov.claims.claim import MODEL
from mechmarkov.interventions.paths import paths, replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.models.components import head_index, mlp_index, output_of
from mechmarkov.models.decoder import HookedDecoder, activations
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import Batch, draw
from mechmarkov.sources import Source

SEQUENCES = 256  # that values are measured on, each of two times
MEAN_SEQUENCES = 4096  # others, for means: a sharp reader of a mean amplifies its sampling error
PASS = 512  # of them in one pass
SEED = 1 << 21

Relation = Literal["is_needed", "attends_to", "carries", "imitates"]
NATS = 0.01  # as the claims themselves have it
MOST = 0.5
FIRST = "first token"
BACK = ("previous token", "2 tokens back", "3 tokens back")


@dataclass(frozen=True)
class Rule:
    """A threshold: when a relation holds, in words for who answers, and the unit of its value."""

    words: str
    unit: str


RULES: dict[str, Rule] = {
    "is_needed": Rule(
        f"the loss rises by more than {NATS} nats with the subject's output at its mean", "nats"
    ),
    "attends_to": Rule(
        f"at the positions that predict, the subject gives the object more than {MOST} of its attention",
        "probability",
    ),
    "carries": Rule(
        f"KL from the law rises by more than {NATS} nats with the first head's output at its mean in what "
        "the second reads, and nowhere else",
        "nats",
    ),
    "imitates": Rule(f"KL from the law to the model is below {NATS} nats", "nats"),
}


@dataclass(frozen=True, order=True)
class Question:
    """A question: whether a relation holds between a subject and an object of one model."""

    relation: Relation
    subject: tuple[str, ...]
    object: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Returns a claim without an answer."""
        return {"relation": self.relation, "subject": [*self.subject], "object": [*self.object]}


def questions_of(model: HookedDecoder, source: Source, objective: Objective) -> list[Question]:
    """Everything that is asked of a model.

    Of each head and MLP, whether it is needed. Of each head, which token it attends to. Of each two heads
    with a path between them, whether it carries the best law. Of the model, which exact laws it imitates.

    Raises:
        ValueError: The source's best predictor is not known.
    """
    senders = list(dict.fromkeys(sender for sender, _ in paths(model)))
    heads = [name for name in senders if head_index(name)]
    parts = [name for name in senders if head_index(name) or mlp_index(name) is not None]
    pairs = [pair for pair in product(heads, heads) if _inputs(model, *pair)]
    tokens = [*_distances(objective), FIRST]
    best = known_best(source)
    return [
        *(Question("is_needed", (part,)) for part in parts),
        *(Question("attends_to", (head,), (token,)) for head in heads for token in tokens),
        *(Question("carries", pair, (best.name,)) for pair in pairs),
        *(Question("imitates", (MODEL,), (law,)) for law in source.predictors()),
    ]


def truth_of(model: HookedDecoder, source: Source, objective: Objective) -> dict[Question, float]:
    """The values of the questions whose answer is known: nats, or of `attends_to` a probability.

    Losses are expectations under the exact law of each next state, so that only contexts are sampled. Means
    are over other sequences of the source. All is measured twice, on sequences of its own. A question whose
    answers differ is left out: no answer to it can be called wrong.
    """
    first, second = (_measured(model, source, objective, SEED + i) for i in range(2))
    values = {question: (value + second[question]) / 2 for question, value in first.items()}
    return {
        question: value
        for question, value in values.items()
        if holds(question, first[question]) == holds(question, second[question])
    }


@torch.no_grad()
def _measured(model: HookedDecoder, source: Source, objective: Objective, seed: int) -> dict[Question, float]:
    """The value of every question, on one draw of sequences."""
    asked, best = questions_of(model, source, objective), known_best(source)
    batch = draw(source, objective, model.config, seed=seed, sequences=SEQUENCES + MEAN_SEQUENCES)
    here = batch.part(slice(SEQUENCES))
    parts = [question.subject[0] for question in asked if question.relation == "is_needed"]
    means = mean_outputs(model, parts, batch.tokens[SEQUENCES:])
    laws = {
        name: here.in_context(law.probabilities(here.history.numpy()))
        for name, law in source.predictors().items()
    }
    law = here.in_context(best.probabilities(here.history.numpy()))

    def loss() -> float:
        scores = model(here.tokens)[:, here.read]
        return float(objective.expected_loss(scores, torch.from_numpy(law)).mean())

    def divergence(exact: Float[np.ndarray, "batch read state"]) -> float:
        predicted = objective.predict(model(here.tokens)[:, here.read]).numpy()
        return float(rel_entr(exact, predicted).sum(-1).mean())

    whole, distance, attention = loss(), divergence(law), dict(_attention(model, objective, here))
    values: dict[Question, float] = {}
    for question in asked:
        part = question.subject[0]
        match question.relation:
            case "is_needed":
                with replace_component(model, part, means[part].expand_as):
                    values[question] = loss() - whole
            case "attends_to":
                values[question] = attention[part, question.object[0]]
            case "carries":
                with ExitStack() as cuts:
                    for receiver in _inputs(model, *question.subject):
                        cuts.enter_context(replace_path(model, part, receiver, means[part].expand_as))
                    values[question] = divergence(law) - distance
            case "imitates":
                values[question] = divergence(laws[question.object[0]])
    return values


@torch.no_grad()
def mean_outputs(
    model: HookedDecoder, parts: Sequence[str], tokens: Int[Tensor, "reference position"]
) -> dict[str, Float[Tensor, "1 position d"]]:
    """Returns the mean output of each part over sequences, at each position."""
    outputs = {part: output_of(model.config, part) for part in parts}
    sums: dict[str, Any] = dict.fromkeys(parts, 0.0)

    def add(part: str, x: Tensor) -> None:
        sums[part] = sums[part] + outputs[part].read(x).sum(-3, keepdim=True)

    hooks = [(outputs[part].hook, lambda x, hook, part=part: add(part, x)) for part in parts]
    with model.hooks(hooks):
        for some in torch.split(tokens, PASS):
            model(some, return_type=None)
    return {part: total / len(tokens) for part, total in sums.items()}


def holds(question: Question, value: float) -> bool:
    """Returns whether a relation holds at a value.

    Example:
        >>> holds(Question("is_needed", ("L0H0",)), 0.2)
        True
        >>> holds(Question("imitates", ("model",), ("unigram",)), 0.2)
        False
    """
    if question.relation == "imitates":
        return value < NATS
    return value > (MOST if question.relation == "attends_to" else NATS)


def _inputs(model: HookedDecoder, one: str, other: str) -> list[str]:
    """Returns what a head reads of another: its queries, keys and values, where there is a path to them."""
    return [to for sender, to in paths(model) if sender == one and to.rpartition(".")[0] == other]


def _distances(objective: Objective) -> tuple[str, ...]:
    """Tokens by how far back they are, from 0 on."""
    return ("query token" if objective.query else "current token", *BACK)


def _attention(
    model: HookedDecoder, objective: Objective, batch: Batch
) -> Iterator[tuple[tuple[str, str], float]]:
    """The mean share of each head at each token, over the positions that predict and have that token."""
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    patterns = activations(model, batch.tokens, hooks)
    for layer, hook in enumerate(hooks):
        for head, pattern in enumerate(patterns[hook].unbind(1)):
            yield (f"L{layer}H{head}", FIRST), float(pattern[:, batch.read, 0].mean())
            for back, token in enumerate(_distances(objective)):
                at = batch.read[batch.read >= back]
                yield (f"L{layer}H{head}", token), float(pattern[:, at, at - back].mean())
