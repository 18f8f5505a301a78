"""`mm.Recorder`: keep checkpoints of a training loop that is not ours as a run file that grows."""

import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from mechmarkov.importing import vocabulary
from mechmarkov.importing.live.untouched import our_own_numbers, same_random_numbers
from mechmarkov.importing.names.table import Names
from mechmarkov.importing.options import checked_fields
from mechmarkov.models import DecoderConfig
from mechmarkov.objectives import Objective
from mechmarkov.probe_run import probe
from mechmarkov.recorder.growing_file import GrowingFile
from mechmarkov.recorder.notices import Notices
from mechmarkov.recorder.schedule import Schedule, schedule
from mechmarkov.recorder.scores import Log, checked_probes, headline_numbers
from mechmarkov.runs.given import check_source, checked_objective, checked_step
from mechmarkov.runs.loading import load
from mechmarkov.runs.run import Run
from mechmarkov.safe.file import printable_path
from mechmarkov.sources import Source
from mechmarkov.utils.errors import path_of
from mechmarkov.utils.exits import exits_as_errors
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import shown

if TYPE_CHECKING:
    from transformers import TrainerCallback

Resume = bool | Literal["drop_later"]
TRY = "`mm.Run.from_model(model, source=source)` tells it before a training"
COUNT = "a step is the number of updates over the whole training, in each call above the last"
HELD = "it is in memory, and is written with the next one if it can be"
LOG = "without probes= and log= the recorder keeps checkpoints only"
WHOLE = "the run that `finish` returns has all: save it elsewhere"


class Recorder:
    """Records a model while somebody's loop trains it, and leaves the training as it is.

    Weights, gradients, modes and random number generators are untouched: the trained weights are those of an
    unrecorded training, bit for bit. Every checkpoint is converted and checked as by `Run.from_model`.
    A killed training loses at most the checkpoint that was being written; `mm.load` reads the others.

    Args:
        path: The run file to write. `Recorder.finish` leaves this one file; until then the latest
            checkpoints are in a folder next to it, `run.pt.steps/`, which `mm.load` reads too.
        source: What the model is trained on.
        at: The steps to keep: "log2" (0, 1, 2, 4, 8, …, the default) or a list of steps.
        every: Instead of `at`: the steps between checkpoints, from 0 on.
        probes: Names of probes to put to every checkpoint.
        log: Called with the numbers among their scores, `{"mechmarkov/parent_score": 0.97}`, and `step=`.
            A name that two of the probes have carries the probe's: `mechmarkov/attention/best_lag`.
        objective: What the model is trained for; by default cross-entropy at every position.
        tokens: The model's token of each state, where token i is not state i; see `Run.from_model`.
        bos: The model's token that every sequence begins with; see `Run.from_model`.
        resume: Whether to go on with the file that is there. "drop_later" is for a loop that starts again
            from a checkpoint of its own: what the file holds from the first given step on is dropped.

    Raises:
        ValueError: One line, for arguments that contradict each other, a file that is there already, or one
            of another source.
        OSError: The file could not be written.

    Example:
        >>> import tempfile
        >>> import mechmarkov as mm
        >>> config = mm.DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> model, folder = mm.HookedDecoder(config), tempfile.TemporaryDirectory()
        >>> mm.models.initialise(model, [0])
        >>> recorder = mm.Recorder(f"{folder.name}/run.pt", source=mm.Binary(p=0.5, q=0.8))
        >>> for step in range(7):
        ...     recorder(step, model)  # then the optimiser's step
        >>> recorder.finish(7, model).steps.tolist()
        [0, 1, 2, 4, 7]
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        source: Source,
        at: Schedule | None = None,
        every: int | None = None,
        probes: Sequence[str] = (),
        log: Log | None = None,
        objective: Objective | None = None,
        tokens: Mapping[str | int, int] | None = None,
        bos: int | None = None,
        given: Mapping[str, Any] | None = None,
        names: Names | None = None,
        resume: Resume = False,
    ) -> None:
        check_source(source)
        self.path = path_of("path", path)
        self._next_due = schedule(at, every)
        objective = checked_objective(objective)
        if tokens is not None:  # the runs' source is without states that never occur and are left out
            source, tokens = vocabulary.named_states(tokens, source, objective)
        if bos is not None:
            objective = objective.beginning()
        self._source, self._objective, self._tokens, self._bos = source, objective, tokens, bos
        self._given, self._names = checked_fields(given), names
        self._probes, self._log = checked_probes(probes, log), log
        self._id = secrets.token_hex(8)
        self._called = self._kept = -1  # the last steps that were given and recorded
        self._resumed: Resume = False  # how a file was gone on with, until the first call
        self._model: DecoderConfig | None = None  # the shape that all checkpoints have
        self._file, self._notices = GrowingFile(self.path), Notices()
        if not isinstance(resume, bool) and not (isinstance(resume, str) and resume == "drop_later"):
            raise ValueError(f"resume is {shown(resume)}, expected True, False or 'drop_later'")
        if _is_first_process():
            check_writable(self.path)
            if self._file.exists():
                self._go_on(resume)

    def _go_on(self, resume: Resume) -> None:
        if not resume:
            raise ValueError(
                f"path is {printable_path(self.path)}, which exists: expected a new file, or resume=True"
            )
        self._resumed = resume
        run = load(self.path)
        for name in ("source", "objective"):
            ours, theirs = getattr(self, f"_{name}"), getattr(run, name)
            if ours != theirs:
                raise ValueError(
                    f"{name} is {ours!r}, but {printable_path(self.path)} has {theirs!r}: expected the same"
                )
        self._called = self._kept = int(run.steps[-1])
        self._model = run.config
        self._id = run.provenance.setdefault("recording", self._id)
        self._file.replace(run)

    def __call__(self, step: int, model: nn.Module) -> None:
        """Keep the model if the step is one of those to be kept; never raise.

        What goes wrong is a warning with the way to mend it, once for each kind: a step that repeats or goes
        back, a model that cannot be converted, a full disk, a probe or a log that fails. A step that was to
        be kept and had no call is replaced by the next that has one.

        Args:
            step: How many updates the model has had; each call's is above the last one's.
            model: The model, as `Run.from_model` takes it.
        """
        if _is_first_process():
            with self._notices.instead_of_errors("call", f"a call at step {shown(step)} is left out", COUNT):
                self._take(checked_step(step), model)
            self._notices.tell()

    def finish(self, step: int, model: nn.Module) -> Run | None:
        """Keep the trained model whatever the schedule says, leave one file, return the run; never raise.

        Args:
            step: How many updates the model has had; the last call's may be given again.
            model: The model, after its last step.

        Returns:
            What was recorded, also where it is not on the disk. None where nothing was, which a warning says,
            and in all processes of a training but the first.
        """
        if not _is_first_process():
            return None
        path = printable_path(self.path)
        with self._notices.instead_of_errors("call", f"step {shown(step)} is not kept", COUNT):
            step = checked_step(step)
            if step < self._called:
                raise ValueError(f"step is {step}, expected at least {self._called}, the last one")
            if step > self._called:
                self._take(step, model)
            if step > self._kept:
                self._record(step, model)
        with self._notices.instead_of_errors("file", f"{path} is not one file", WHOLE):
            self._file.merge()
        run = self._file.rest()
        if run is None and not self._notices.has_told():
            self._notices.add("nothing", "nothing was recorded", TRY)
        self._notices.tell()
        return run

    def for_transformers(self) -> "TrainerCallback":
        """A callback for transformers' `Trainer`: `Trainer(…, callbacks=[recorder.for_transformers()])`.

        It calls the recorder before the first step and after each, and finishes the file at the end. In a
        training of several processes the first one records.
        """
        from transformers import TrainerCallback  # several seconds, which other loops do not need

        recorder = self

        class RecorderCallback(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
                if state.is_world_process_zero:
                    recorder(state.global_step, given["model"])

            on_train_begin = on_step_end

            def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
                if state.is_world_process_zero:
                    recorder.finish(state.global_step, given["model"])

        return RecorderCallback()

    def __repr__(self) -> str:
        """The file, and the last step that was recorded."""
        last = "nothing yet" if self._kept < 0 else f"kept up to step {self._kept}"
        return f"Recorder({str(self.path)!r}, {last})"

    def _take(self, step: int, model: nn.Module) -> None:
        """Record the model if its step is due, or is the first after one that was."""
        goes_back, called = step <= self._called, self._called
        if goes_back and self._resumed == "drop_later":
            called = max((last for last in load(self.path).steps.tolist() if last < step), default=-1)
        elif goes_back:
            advice = "; resume='drop_later' drops what the file holds from there on" if self._resumed else ""
            raise ValueError(f"step is {step}, expected above {called}, the last one{advice}")
        due = self._next_due(called)
        is_late = called >= 0 and due is not None and due < step
        if is_late:
            what = f"step {due} was to be kept, but after {called} the next call is at {step}, kept instead"
            self._notices.add("late", what, f"every={step - called} keeps each step of such a loop")
        if goes_back:
            self._file.drop_after(called)
            self._kept = called
        self._resumed = False
        self._called = step
        if is_late or self._next_due(step - 1) == step:
            self._record(step, model)

    def _record(self, step: int, model: nn.Module) -> None:
        run: Run | None = None
        with same_random_numbers(model):
            with self._notices.instead_of_errors("model", f"step {step} is not kept", TRY):
                run = self._converted(step, model)
            if run is None:
                return
            self._kept = step
            with self._notices.instead_of_errors("disk", f"step {step} is not on the disk", HELD):
                self._file.add(step, run)
            if self._log is not None:
                with self._notices.instead_of_errors("log", f"step {step} has no scores", LOG):
                    self._log(self._scores(run, step), step=step)

    def _converted(self, step: int, model: nn.Module) -> Run:
        with warnings.catch_warnings(), exits_as_errors():
            warnings.simplefilter("ignore")  # where they are errors, one would cost a checkpoint
            run = Run.from_model(
                model,
                source=self._source,
                objective=self._objective,
                tokens=self._tokens,
                bos=self._bos,
                given=self._given,
                names=self._names,
                step=step,
            )
        self._model = self._model or run.config
        for (name, value), (_, before) in zip(run.config, self._model, strict=True):
            if value != before:
                raise ValueError(f"model.{name} is {value}, expected {before} as at the checkpoints before")
        return replace(run, provenance={**run.provenance, "recording": self._id})

    def _scores(self, run: Run, step: int) -> dict[str, float]:
        with our_own_numbers():
            result = probe(run, self._probes, progress=False)
        for name, why in {**result.skipped, **result.failed}.items():
            mend = f"leave {name!r} out of probes, or put it to the finished run"
            self._notices.add(f"probe {name}", f"step {step}: no scores of {name!r}: {why}", mend)
        return headline_numbers(result)


def _is_first_process() -> bool:
    """Returns whether this process records: the only one, or the first of a distributed training."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not distributed or torch.distributed.get_rank() == 0
