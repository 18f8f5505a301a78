"""A case: a model whose circuit is known, sequences to compare, and the loss in nats that effects are on."""

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.paths import paths
from mechmarkov.models.components import Output, output_of
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import draw
from mechmarkov.probing.preconditions import predictor_of
from mechmarkov.runs import Run
from mechmarkov.sources import Source

SEQUENCES = 64


@dataclass(frozen=True, eq=False)
class Case:
    """One model and two batches; an effect is the change of the loss when clean values become corrupt ones.

    A node is a component that tokens change: `embed`, a head, an MLP. An edge is a path from a node to what
    one later component reads, `L0H0→L1H0.K`.

    Attributes:
        name: The name of the case.
        question: What it asks of a method, in one sentence.
        model: The model, in float64 and without gradients of its weights.
        clean: The sequences that effects are measured on.
        corrupt: Others of the same source, as many, which corrupt values are taken from.
        law: The exact law of the next state behind each clean prediction (probability).
        corrupt_law: The law of the corrupt sequences.
        read: The positions that predict.
        objective: How the model's outputs are read.
        source: What the sequences are drawn from.
        empty: Whether nothing in the model has an effect, so that every claim is a false alarm.
        carries: Whether a stream holds the belief over what is hidden; None where nothing is.
        subspace: After which block (-1 is the embedding) and in which directions, `[d_model, rank]`, the
            stream holds what the prediction is made from; None where that is not known.
        features: After which block, and the directions that are added up there, a block of them each
            `[feature, d_model]`; None where they are not known.
        coefficient: Names of parameters, and the exact learning coefficient of the model if these are
            trained; None where it is not derived.
    """

    name: str
    question: str
    model: HookedDecoder
    clean: Int[Tensor, "batch position"]
    corrupt: Int[Tensor, "batch position"]
    law: Float[Tensor, "batch read state"]
    corrupt_law: Float[Tensor, "batch read state"]
    read: Int[Tensor, " read"]
    objective: Objective
    source: Source
    empty: bool = False
    carries: bool | None = None
    subspace: tuple[int, Float[np.ndarray, "d_model rank"]] | None = None
    features: tuple[int, list[Float[np.ndarray, "feature d_model"]]] | None = None
    coefficient: tuple[tuple[str, ...], float] | None = None

    def loss(self, scores: Float[Tensor, "batch position state"]) -> Float[Tensor, " batch"]:
        """The expected loss of each sequence (nats), under the exact law of each next state."""
        return self.objective.expected_loss(scores[:, self.read], self.law).mean(-1)

    def predicted(self, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch read state"]:
        """Returns what the model, as it is now, predicts (probability)."""
        with torch.no_grad():
            return self.objective.predict(self.model(tokens)[:, self.read])

    def as_run(self) -> Run:
        """The model as a run, for probes."""
        return Run.from_model(self.model, source=self.source, objective=self.objective)

    @cached_property
    def edges(self) -> dict[str, tuple[str, str]]:
        """Sender and receiver of every edge, by its name."""
        return {"→".join(path): path for path in paths(self.model) if path[0] != "pos_embed"}

    @cached_property
    def nodes(self) -> dict[str, Output]:
        """Returns where the output of every node is hooked."""
        return {sender: output_of(self.model.config, sender) for sender, _ in self.edges.values()}

    def outputs(self, tokens: Int[Tensor, "batch position"]) -> dict[str, Float[Tensor, "batch position d"]]:
        """Returns what every node writes: a head's `z`, the `d_model` of an embedding or MLP."""
        hooks = [output.hook for output in self.nodes.values()]
        with torch.no_grad():
            _, cache = self.model.run_with_cache(tokens, return_cache_object=False, names_filter=hooks)
        return {name: output.read(cache[output.hook]) for name, output in self.nodes.items()}

    @cached_property
    def corrupt_outputs(self) -> dict[str, Float[Tensor, "batch position d"]]:
        """Returns what every node writes in the corrupt sequences."""
        return self.outputs(self.corrupt)

    @cached_property
    def differences(self) -> dict[str, Float[Tensor, "batch position d"]]:
        """Corrupt less clean output of every node."""
        return {name: self.corrupt_outputs[name] - value for name, value in self.outputs(self.clean).items()}


def case_of(
    name: str,
    question: str,
    model: HookedDecoder,
    source: Source,
    *,
    seed: int,
    objective: Objective | None = None,
    predictor: str = "bigram",
    **known: Any,
) -> Case:
    """A case of a model, with sequences drawn from its source.

    Args:
        name: The name of the case.
        question: What it asks of a method.
        model: A single model; it is changed to float64.
        source: Where sequences come from.
        seed: The seed of the sequences.
        objective: How the model's outputs are read; by default as next-token logits.
        predictor: Which of the source's predictors is the exact law; in context where it redraws its chain.
        known: `empty`, `carries`, `subspace`, `features` and `coefficient` of the case.
    """
    objective = objective or Objective()
    model = model.double().requires_grad_(False)
    batch = draw(source, objective, model.config, seed=seed, sequences=2 * SEQUENCES)
    rule = source.predictors()[predictor_of(source, predictor)]
    law = torch.from_numpy(batch.in_context(rule.probabilities(batch.history.numpy())))
    (clean, corrupt), (ours, theirs) = batch.tokens.chunk(2), law.chunk(2)
    return Case(name, question, model, clean, corrupt, ours, theirs, batch.read, objective, source, **known)


def seed_of(tokens: Int[Tensor, "batch position"]) -> int:
    """A seed that is the same wherever these sequences are drawn."""
    return zlib.crc32(tokens.numpy().tobytes())
