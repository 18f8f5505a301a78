"""A case: a model whose circuit is known, pairs of sequences to compare, and the metric of effects."""

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.bench.counterfactuals import Change, Pairs, draw_pairs, law_of
from mechmarkov.bench.metrics import METRICS, kl_from, logit_difference
from mechmarkov.interventions.paths import paths
from mechmarkov.models.components import Output, head_index, mlp_index, output_of
from mechmarkov.models.decoder import HookedDecoder, activations
from mechmarkov.objectives import Objective
from mechmarkov.runs.run import Run
from mechmarkov.sources import Source
from mechmarkov.utils.text import shown

SEQUENCES = 64  # of each kind; twice as many to tune on
TUNING = 1 << 20  # added to the seed of the sequences that methods may tune on


@dataclass(frozen=True, eq=False)
class Case:
    """One model and pairs of sequences; an effect is the change of a metric when clean values become corrupt.

    A node is a component that tokens change: `embed`, a head, an MLP. An edge is a path from a node to what
    one later component reads, `L0H0→L1H0.K`. A layer is a place where the model can be stopped: `embed`, or
    `L0` after the first block.

    Attributes:
        name: The name of the case.
        question: What it asks of a method, in one sentence.
        model: The model, in float64 and without gradients of its weights.
        clean: The sequences that effects are measured on.
        corrupt: Their counterfactuals, which corrupt values are taken from.
        law: The exact law of the next state behind each clean prediction (probability).
        corrupt_law: The law of the corrupt sequences.
        output: What the untouched model predicts of the clean sequences (probability).
        read: The positions that predict.
        objective: How the model's outputs are read.
        source: What the sequences are drawn from.
        metric: What effects are in, one of `METRICS`.
        tuning: This case on other sequences: what a method fits or chooses, it fits and chooses there.
        circuit: The edges that were built, of a model that was set by hand; none where nothing has an
            effect, so that every claim is a false alarm. None where the circuit was trained.
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
    output: Float[Tensor, "batch read state"]
    read: Int[Tensor, " read"]
    objective: Objective
    source: Source
    metric: str = "nats"
    tuning: "Case | None" = None
    circuit: tuple[str, ...] | None = None
    carries: bool | None = None
    subspace: tuple[int, Float[np.ndarray, "d_model rank"]] | None = None
    features: tuple[int, list[Float[np.ndarray, "feature d_model"]]] | None = None
    coefficient: tuple[tuple[str, ...], float] | None = None

    @property
    def empty(self) -> bool:
        """Returns whether nothing in the model has an effect."""
        return self.circuit == ()

    def under(self, metric: str) -> "Case":
        """The same case with effects under another metric, and nothing kept from this one."""
        tuning = None if self.tuning is None else replace(self.tuning, metric=metric)
        return replace(self, metric=metric, tuning=tuning)

    @property
    def others(self) -> "Case":
        """The same case on the sequences to tune on.

        Raises:
            ValueError: There are none.
        """
        if self.tuning is None:
            raise ValueError(f"case {self.name!r} has no sequences to tune on: make it with `case_of`")
        return self.tuning

    def loss(
        self, scores: Float[Tensor, "batch position state"], metric: str | None = None
    ) -> Float[Tensor, " batch"]:
        """The case's metric of each sequence, or another one; larger is farther from the clean answer.

        It is a mean over the positions that are read.

        Raises:
            ValueError: For an unknown metric.
        """
        metric, scores = metric or self.metric, scores[:, self.read]
        if metric == "logit-difference":
            return logit_difference(scores, self.law, self.corrupt_law).mean(-1)
        if metric == "kl":
            return kl_from(self.output, self.objective, scores).mean(-1)
        if metric == "nats":
            return self.objective.expected_loss(scores, self.law).mean(-1)
        raise ValueError(f"metric is {shown(metric)}, expected one of {', '.join(METRICS)}")

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

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """The nodes that come after each place where the model can be stopped, but the last."""
        depth = {name: (head_index(name) or (mlp_index(name),))[0] for name in self.nodes}
        stops = ["embed", *(f"L{layer}" for layer in range(self.model.config.n_layers - 1))]
        return {
            stop: tuple(name for name, at in depth.items() if at is not None and at >= layer)
            for layer, stop in enumerate(stops)
        }

    def outputs(self, tokens: Int[Tensor, "batch position"]) -> dict[str, Float[Tensor, "batch position d"]]:
        """Returns what every node writes: a head's `z`, the `d_model` of an embedding or MLP."""
        seen = activations(self.model, tokens, [output.hook for output in self.nodes.values()])
        return {name: output.read(seen[output.hook]) for name, output in self.nodes.items()}

    @cached_property
    def corrupt_outputs(self) -> dict[str, Float[Tensor, "batch position d"]]:
        """Returns what every node writes in the corrupt sequences."""
        return self.outputs(self.corrupt)

    @cached_property
    def means(self) -> dict[str, Float[Tensor, "position d"]]:
        """Returns what every node writes at each position, mean over the sequences to tune on."""
        return {name: value.mean(0) for name, value in self.others.outputs(self.others.clean).items()}

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
    pairs: Pairs | str = "minimal",
    change: Change | None = None,
    objective: Objective | None = None,
    **known: Any,
) -> Case:
    """A case of a model, with sequences drawn from its source: some to compare, others to tune on.

    Args:
        name: The name of the case.
        question: What it asks of a method.
        model: A single model; it is changed to float64.
        source: Where sequences come from.
        seed: The seed of the sequences.
        pairs: `"minimal"` or `"resampled"` (`mechmarkov.bench.counterfactuals`).
        change: What differs in a minimal pair; by default the parent.
        objective: How the model's outputs are read; by default as next-token logits.
        known: `circuit`, `carries`, `subspace`, `features` and `coefficient` of the case.

    Raises:
        ValueError: For a stack, unknown pairs, where too few sequences can be changed, or no law is known.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.models.constructions.lookup_tables import value_table
        >>> source = mm.Binary(p=0.2, q=0.3)
        >>> model = value_table(torch.tensor(source.P).log().float(), n_ctx=6)
        >>> case = case_of("mine", "Which part holds the bigram?", model, source, seed=0)
        >>> [*case.nodes], case.clean.shape == case.corrupt.shape
        (['embed', 'L0H0'], True)
    """
    if model.n_models is not None:
        raise ValueError(f"model is a stack of {model.n_models}, expected one: stack[i] is a member")
    objective = objective or Objective()
    model = model.double().requires_grad_(False)

    def on(seed: int, sequences: int, tuning: Case | None) -> Case:
        how: dict[str, Any] = {"pairs": pairs, "change": change or Change()}
        clean, corrupt = draw_pairs(source, objective, model.config, **how, seed=seed, sequences=sequences)
        with torch.no_grad():
            output = objective.predict(model(clean.tokens)[:, clean.read])
        laws = law_of(source, clean), law_of(source, corrupt)
        drawn = clean.tokens, corrupt.tokens, *laws, output, clean.read
        return Case(name, question, model, *drawn, objective, source, tuning=tuning, **known)

    return on(seed, SEQUENCES, on(seed + TUNING, 2 * SEQUENCES, None))


def seed_of(tokens: Int[Tensor, "batch position"]) -> int:
    """A seed that is the same wherever these sequences are drawn."""
    return zlib.crc32(tokens.numpy().tobytes())
