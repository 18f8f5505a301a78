"""A Subject: a run at some steps and an evaluation batch, recorded once and shared by all probes."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import Batch, draw
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, in_chunks_that_fit
from mechmarkov.probing.nulls import NULL_MODELS, fresh_models, null_sequences
from mechmarkov.probing.recording.quantity import Found, Quantity
from mechmarkov.probing.recording.record import STANDARD, record
from mechmarkov.probing.recording.scores import SCORES
from mechmarkov.runs.run import Run
from mechmarkov.sources import Source

EVALUATION_SEED = 0x9E3779B9


class Question(Protocol):
    """What a subject asks of a probe: whether it applies, and what it measures."""

    @property
    def applies(self) -> "Callable[[Subject], str | None]": ...
    @property
    def measure(self) -> "Callable[[Subject], xr.Dataset]": ...


class Subject:
    """What a probe looks at: models of one shape, and data whose law is known.

    Attributes:
        run: The run.
        axis: What tells the models apart: "step" of a run, "seed" of its null.
        coordinates: The steps or seeds, one a model.
        decoder: The models, as one stack.
        batch: The evaluation sequences.
        chunk_elements: Of the largest activation of a forward pass, for `mechmarkov.probing.chunking`.
    """

    def __init__(
        self,
        run: Run,
        decoder: HookedDecoder,
        batch: Batch,
        *,
        axis: Literal["step", "seed"],
        coordinates: list[int],
        find: "Callable[[str], Question] | None" = None,
        records: Sequence[Quantity[Any]] = (),
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> None:
        self.run = run
        self.decoder = decoder
        self.batch = batch
        self.axis = axis
        self.coordinates = coordinates
        self.chunk_elements = chunk_elements
        self._find = find
        self._records = records
        self._recorded: dict[Quantity[Any], Any] = {}
        self._results: dict[str, xr.Dataset] = {}
        self._under_way: list[str] = []

    @classmethod
    def of(
        cls,
        run: Run,
        steps: Literal["last", "all"] | list[int] = "last",
        *,
        seed: int = 0,
        sequences: int | None = None,
        find: "Callable[[str], Question] | None" = None,
        records: Sequence[Quantity[Any]] = (),
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> "Subject":
        """A run at some steps, with a fresh evaluation batch.

        Args:
            run: The run.
            steps: "last", "all", or training steps the run has.
            seed: Of the evaluation batch; a run's training data come from other generators.
            sequences: How many; None for a number that gives 65 536 predictions, between 64 and 512.
            find: How `result` finds another probe by name.
            records: Quantities that are recorded in the first pass, together with the standard ones.
            chunk_elements: Of the largest activation of a forward pass.

        Raises:
            ValueError: If the run has not kept a step; the message names those it has.
        """
        known = [int(step) for step in run.steps]
        if isinstance(steps, int) or (isinstance(steps, str) and steps not in ("last", "all")):
            raise ValueError(f"steps is {steps!r}, expected 'last', 'all' or a list of training steps")
        if isinstance(steps, str):
            chosen = known if steps == "all" else known[-1:]
        else:
            chosen = sorted({known[-1] if step == -1 else int(step) for step in steps})
        decoder = run.decoder(steps=chosen)
        # Far from the seeds people train with: evaluation sequences are never training sequences. Within 32
        # bits, because that is all of a seed that torch's generator on the CPU takes in.
        evaluation = (EVALUATION_SEED + seed) % (1 << 32)
        batch = draw(run.source, run.objective, run.model, seed=evaluation, sequences=sequences)
        return cls(
            run,
            decoder,
            batch,
            axis="step",
            coordinates=chosen,
            find=find,
            records=records,
            chunk_elements=chunk_elements,
        )

    @property
    def source(self) -> Source:
        """Where the data come from."""
        return self.run.source

    @property
    def objective(self) -> Objective:
        """What the run was trained for, and how its outputs are read."""
        return self.run.objective

    @property
    def config(self) -> DecoderConfig:
        """The shape of the models."""
        return self.run.model

    def recorded(self, quantity: Quantity[Found]) -> Found:
        """A quantity of all models over the batch, recorded once.

        The first pass records all that is known to be read; a quantity that is not among it takes another.

        Raises:
            ValueError: If it is read from attention weights and no layer has any.
        """
        if quantity not in self._recorded:
            first = () if self._recorded else (*STANDARD, *self._records)
            quantities = list(dict.fromkeys((*first, quantity)))
            n_states = self.source.n_states
            self._recorded |= in_chunks_that_fit(
                lambda elements: record(self.decoder, self.batch, n_states, quantities, elements),
                "recording",
                self.chunk_elements,
            )
        if quantity not in self._recorded:
            raise ValueError(f"no layer has attention weights, expected some for {quantity.name!r}")
        found: Found = self._recorded[quantity]
        return found

    @cached_property
    def probabilities(self) -> Float[np.ndarray, "member batch read state"]:
        """The models' predictions."""
        scores = torch.from_numpy(self.recorded(SCORES)).double()
        predicted: np.ndarray = self.objective.predict(scores).numpy()
        return predicted

    @cached_property
    def exact(self) -> dict[str, Float[np.ndarray, "batch read state"]]:
        """Every exact predictor of the source at the positions that are read."""
        history = self.batch.history.numpy()
        return {
            name: self.batch.in_context(predictor.probabilities(history))
            for name, predictor in self.source.predictors().items()
        }

    @cached_property
    def null(self) -> "Subject":
        """The same for fresh models of the same shape, as one stack with axis `seed`."""
        if self.axis == "seed":
            raise ValueError("a null has no null")
        seeds = list(range(NULL_MODELS))
        return Subject(
            self.run,
            fresh_models(self.run, seeds),
            self.batch.head(null_sequences(self.batch.tokens.shape[1])),
            axis="seed",
            coordinates=seeds,
            find=self._find,
            records=self._records,
            chunk_elements=self.chunk_elements,
        )

    def result(self, name: str) -> xr.Dataset:
        """Another probe's data on this subject, computed once.

        Raises:
            ValueError: If that probe does not apply here, or asks (through others) for itself.
        """
        if name in self._under_way:
            raise ValueError(f"probes ask for each other in a cycle: {' → '.join([*self._under_way, name])}")
        if name not in self._results:
            if self._find is None:
                raise ValueError(f"this subject knows no other probes, so none named {name!r}")
            probe = self._find(name)
            why = probe.applies(self)
            if why is not None:
                raise ValueError(f"probe {name!r} does not apply: {why}")
            self._under_way.append(name)
            try:
                self._results[name] = in_chunks_that_fit(
                    lambda elements: probe.measure(self._in_chunks_of(elements)), name, self.chunk_elements
                )
            finally:
                self._under_way.remove(name)
        return self._results[name]

    def _in_chunks_of(self, elements: int) -> "Subject":
        """This subject in chunks of another size; what is recorded and measured is shared."""
        if elements == self.chunk_elements:
            return self
        subject = copy(self)
        subject.chunk_elements = elements
        return subject
