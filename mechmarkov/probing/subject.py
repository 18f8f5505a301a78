"""A Subject: a run at some steps and an evaluation batch, recorded once and shared by all probes."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import Batch, batch_of, draw
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, in_chunks_that_fit, substack
from mechmarkov.probing.nulls import NULL_MODELS, fresh_models, null_sequences
from mechmarkov.probing.original import Original, sequences_of
from mechmarkov.probing.preconditions import predictor_of
from mechmarkov.probing.recording.activations import SCORES
from mechmarkov.probing.recording.quantity import Quantity, Value
from mechmarkov.probing.recording.record import STANDARD, record
from mechmarkov.runs.run import Run
from mechmarkov.runs.schema import check_recipe
from mechmarkov.sources import Source
from mechmarkov.utils.errors import integer_of, list_of
from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.kept_data import kept, name_of
from mechmarkov.utils.memory import give_freed_memory_back
from mechmarkov.utils.text import counted, shown

EVALUATION_SEED = 0x9E3779B9
CPU = torch.device("cpu")
OF_BOS = (
    "every sequence begins with a beginning-of-sequence token, and this probe computes with sequences of "
    "states only"
)
GPU_CHUNKS = 32  # a GPU takes this number of a CPU's chunks at once: activations of 256 MB

MOST_SEQUENCES = 1_000_000  # that may be asked for
STEPS = "'last', 'all' or a list of training steps"


@runtime_checkable
class Question(Protocol):
    """A subject's questions to a probe: whether it applies, and what it measures."""

    @property
    def applies(self) -> "Callable[[Subject], str | None]": ...
    @property
    def measure(self) -> "Callable[[Subject], xr.Dataset]": ...


def why_not(probe: Question, subject: "Subject") -> str | None:
    """Returns why a probe does not apply to a subject, in one line, or None where it does.

    A probe that does not know of a beginning-of-sequence token (`Probe.with_bos`) would take it for a state.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probing.probe import load_probe
        >>> why_not(load_probe("belief"), mm.Subject.of(mm.example("walk"), sequences=8))
        'nothing is hidden behind the tokens of this source, so there is no belief to carry'
    """
    if subject.objective.bos and not getattr(probe, "with_bos", False):
        return OF_BOS
    return probe.applies(subject)


class DoesNotApplyError(ValueError):
    """A model lacks what a probe reads: the probe is skipped, not failed."""


def check_run(run: object) -> None:
    """Raise TypeError unless `run` is a Run: the path of one and a model are not.

    Raises:
        TypeError: Naming what it is and the call that makes a run of it.
    """
    if isinstance(run, Run):
        return
    call = "mm.load(path) reads one from a file, mm.train(recipe) makes one"
    if isinstance(run, list | tuple):
        call = "mm.probe(run) asks one at a time, and mm.write_comparison compares results"
    if isinstance(run, nn.Module):
        call = "mm.Run.from_model(model, source=…) makes one of a model"
    raise TypeError(f"run is a {type(run).__name__}, expected a Run: {call}")


@dataclass(eq=False, repr=False)
class Subject:
    """The object of a probe: models of one shape, and data whose law is known.

    Attributes:
        run: The run.
        decoder: The models, as one stack.
        batch: The evaluation sequences.
        axis: What tells the models apart: "step" of a run, "seed" of its null.
        coordinates: The steps or seeds, one a model.
        find: How `result` finds another probe by name.
        device: Where the models run while they are recorded; all else is on the CPU.
        records: Quantities that the first pass records, together with the standard ones.
        chunk_elements: The size of a forward pass's largest activation, for `mechmarkov.probing.chunking`.
        keeps_nulls: Whether what null models measure is read from disk where it is there, and kept there.
    """

    run: Run
    decoder: HookedDecoder
    batch: Batch
    _: KW_ONLY
    axis: Literal["step", "seed"]
    coordinates: list[int]
    find: Callable[[str], Question] | None = None
    records: Sequence[Quantity[Any]] = ()
    device: torch.device = CPU
    chunk_elements: int = CHUNK_ELEMENTS
    keeps_nulls: bool = False
    _recorded: dict[Quantity[Any], Any] = field(default_factory=dict, init=False)
    _results: dict[str, xr.Dataset] = field(default_factory=dict, init=False)
    _under_way: list[str] = field(default_factory=list, init=False)

    @classmethod
    def of(
        cls,
        run: Run,
        steps: Literal["last", "all"] | list[int] = "last",
        *,
        seed: int = 0,
        sequences: int | None = None,
        tokens: Int[Tensor | np.ndarray, "batch position"] | None = None,
        **options: Any,
    ) -> "Subject":
        """A run at some steps, with a fresh evaluation batch.

        Args:
            run: A run, from `mm.train`, `mm.load`, `mm.example` or `mm.Run.from_model`.
            steps: "last", "all", or training steps the run has.
            seed: The seed of the evaluation batch; a run's training data come from other generators.
            sequences: How many; None for a number that gives 65 536 predictions, at least 64 (`draw`).
            tokens: Sequences of states instead (`mechmarkov.probing.batch.batch_of`).
            options: `find`, `records`, `device`, `chunk_elements` and `keeps_nulls`, as they are attributes.

        Raises:
            ValueError: If the run has not kept a step; the message names those it has. If tokens are not
                sequences of the run's states, or not of the length that it reads.

        Example:
            >>> import mechmarkov as mm
            >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
            >>> subject.probabilities.shape, subject.coordinates  # [member, batch, read, state]; the step
            ((1, 8, 1, 6), [50])
        """
        check_run(run)
        check_recipe(run.recipe)
        known = [int(step) for step in run.steps]
        if isinstance(steps, int) or (isinstance(steps, str) and steps not in ("last", "all")):
            raise ValueError(f"steps is {shown(steps)}, expected {STEPS}")
        if isinstance(steps, str):
            chosen = known if steps == "all" else known[-1:]
        else:
            given = [integer_of("steps", step) for step in list_of("steps", steps, STEPS)]
            chosen = sorted({known[-1] if step == -1 else step for step in given})
        known_predictors = run.source.predictors()
        for name in ("uniform", predictor_of(run.source, "unigram"), predictor_of(run.source, "bigram")):
            if name not in known_predictors:
                raise ValueError(
                    f"source {run.source.kind!r} has predictors {', '.join(known_predictors)}, "
                    f"expected {name!r} among them"
                )
        decoder = run.model(steps=chosen)
        # Far from the seeds people train with: evaluation sequences are never training sequences. Within 32
        # bits, because that is all of a seed that torch's generator on the CPU takes in.
        evaluation = (EVALUATION_SEED + integer_of("seed", seed)) % (1 << 32)
        if sequences is not None:
            integer_of("sequences", sequences, least=1, most=MOST_SEQUENCES)
        if tokens is None:
            batch = draw(
                run.source,
                run.objective,
                run.config,
                seed=evaluation,
                sequences=sequences,
                models=len(chosen),
            )
        elif sequences is not None:
            raise ValueError(f"sequences is {sequences}, expected none where tokens are given")
        else:
            batch = batch_of(tokens, run.source.n_states, run.objective, run.config)
        return cls(run, decoder, batch, axis="step", coordinates=chosen, **options)

    def __repr__(self) -> str:
        """The models and the data, and what to do with a subject."""
        models, sequences = len(self.coordinates), len(self.batch.tokens)
        return (
            f"Subject({counted(models, 'model')} by {self.axis}, {counted(sequences, 'sequence')} of "
            f"{self.source.title()})\n"
            "  .batch.tokens are read, .probabilities predicted, .exact by the laws, .null fresh models"
        )

    def restore(self) -> None:
        """Undo what was done to a run's models: its weights, no hooks, nothing recorded, no null models."""
        self.decoder.load_state_dict(self.run.model(steps=self.coordinates).state_dict())
        self.decoder.reset_hooks(including_permanent=True)
        for name, tensor in sequences_of(self.batch).items():
            tensor.copy_(self.original.sequences[name])
        self._recorded.clear()
        self._results.clear()
        for cached in ("probabilities", "exact", "null"):
            vars(self).pop(cached, None)

    @property
    def source(self) -> Source:
        """Returns where the data come from."""
        return self.run.source

    @property
    def objective(self) -> Objective:
        """Returns what the run was trained for, and how its outputs are read."""
        return self.run.objective

    @property
    def config(self) -> DecoderConfig:
        """The shape of the models."""
        return self.run.config

    def recorded(self, quantity: Quantity[Value]) -> Value:
        """A quantity of all models over the batch, recorded once.

        The first pass records all that is known to be read; a quantity that is not among it takes another.

        Raises:
            DoesNotApplyError: If it is read from attention weights and no layer has any.
        """
        if quantity not in self._recorded:
            if not self._recorded:
                try:
                    self._record([*STANDARD, *self.records])
                except Exception as error:  # one probe's quantity may be at fault: it fails when it is read
                    if is_by_signal(error):
                        raise
                    self._record(STANDARD)
            if quantity not in self._recorded:
                self._record([quantity])
        if quantity not in self._recorded:
            raise DoesNotApplyError(f"no layer has attention weights, expected some for {quantity.name!r}")
        value: Value = self._recorded[quantity]
        return value

    def _record(self, quantities: Sequence[Quantity[Any]]) -> None:
        distinct, n_states = list(dict.fromkeys(quantities)), self.source.n_states
        self._recorded |= in_chunks_that_fit(
            lambda elements: record(self.decoder, self.batch, n_states, distinct, elements, self.device),
            "recording",
            self.chunk_elements if self.device == CPU else GPU_CHUNKS * self.chunk_elements,
        )
        give_freed_memory_back()

    @cached_property
    def probabilities(self) -> Float[np.ndarray, "member batch read state"]:
        """The models' predictions, a law of the next state each (probability)."""
        scores = torch.from_numpy(self.recorded(SCORES)).double()
        predicted: np.ndarray = self.objective.predict(scores).numpy()
        return predicted

    @cached_property
    def exact(self) -> dict[str, Float[np.ndarray, "batch read state"]]:
        """Every exact predictor of the source at the positions that are read, by name (probability)."""
        history = self.batch.history.numpy()
        return {
            name: self.batch.in_context(predictor.probabilities(history))
            for name, predictor in self.source.predictors().items()
        }

    @cached_property
    def null(self) -> "Subject":
        """The same for fresh models of the same shape, as one stack with axis `seed`.

        Raises:
            ValueError: The subject is a null itself.
        """
        if self.axis == "seed":
            raise ValueError("a null has no null")
        seeds = list(range(NULL_MODELS))
        batch = self.batch.head(null_sequences(self.batch.tokens.shape[1]))
        fresh = fresh_models(self.run, seeds)
        null = replace(self, decoder=fresh, batch=batch, axis="seed", coordinates=seeds)
        _ = null.original  # as it was before any probe has seen it
        return null

    @cached_property
    def original(self) -> "Original":
        """The weights' checksums and the sequences, as they were when this was first asked."""
        return Original.of(self.decoder, self.batch)

    def some(self, models: slice) -> "Subject":
        """Returns the models at some places, on the same sequences; nothing is recorded of them yet."""
        return replace(self, decoder=substack(self.decoder, models), coordinates=self.coordinates[models])

    def result(self, name: str) -> xr.Dataset:
        """Another probe's data on this subject, computed once.

        Raises:
            ValueError: If that probe does not apply, or asks (through others) for itself.
        """
        if name in self._under_way:
            raise ValueError(f"probes ask for each other in a cycle: {' → '.join([*self._under_way, name])}")
        if name not in self._results:
            if self.find is None:
                raise ValueError(f"this subject knows no other probes, so none named {name!r}")
            probe = self.find(name)
            why = why_not(probe, self)
            if why is not None:
                raise ValueError(f"probe {name!r} does not apply: {why}")

            def measure(elements: int) -> xr.Dataset:
                subject = self
                if elements != self.chunk_elements:
                    subject = copy(self)  # what is recorded and measured is shared
                    subject.chunk_elements = elements
                return probe.measure(subject)

            def measured() -> xr.Dataset:
                return in_chunks_that_fit(measure, name, self.chunk_elements)

            # Only what is hashed may decide: a probe or a source from elsewhere has code of its own.
            modules = getattr(probe.measure, "__module__", ""), type(self.source).__module__
            ours = all(module.startswith("mechmarkov.") for module in modules)
            keeps = self.keeps_nulls and self.axis == "seed" and ours
            self._under_way.append(name)
            try:
                self._results[name] = kept(self._null_name(name), measured) if keeps else measured()
            finally:
                self._under_way.remove(name)
        return self._results[name]

    def take(self, name: str, data: xr.Dataset) -> None:
        """Keep as `result(name)` what a copy of this process measured on this subject."""
        self._results[name] = data

    def _null_name(self, probe: str) -> str:
        """The name of the file that keeps what a probe measured on these null models."""
        run, tensors = self.run, {**self.decoder.state_dict(), **sequences_of(self.batch)}
        start = (run.recipe or {}).get("init")
        configs = [part.model_dump(mode="json") for part in (run.config, run.source, run.objective)]
        optimiser = (run.recipe or {}).get("optimiser")  # of which `symmetry` asks what it leaves unchanged
        kind = optimiser.get("kind") if isinstance(optimiser, dict) else None
        decides = [probe, *configs, run.trainable, start, kind, self.coordinates]
        decides += [self.device.type] * (self.device != CPU)  # it rounds otherwise
        return name_of(decides, tensors)
