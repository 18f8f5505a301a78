"""`mm.Recorder`: keep checkpoints of a training loop that is not ours as a run file that grows."""

import os
import secrets
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from mechmarkov.importing import vocabulary
from mechmarkov.importing.live_model import unwrapped
from mechmarkov.models import DecoderConfig
from mechmarkov.objectives import Objective
from mechmarkov.probe_names import registered
from mechmarkov.probe_run import probe
from mechmarkov.result import Result
from mechmarkov.runs import growth
from mechmarkov.runs.loading import join_recording, load, load_file
from mechmarkov.runs.run import Run, check_source, checked_step
from mechmarkov.safe.file import printable_path
from mechmarkov.sources import Source
from mechmarkov.utils.files import check_writable

if TYPE_CHECKING:
    from transformers import TrainerCallback

MAX_UNMERGED_BYTES = 256 << 20
Schedule = Literal["log2"] | Sequence[int]
Resume = bool | Literal["drop_later"]


@runtime_checkable
class Log(Protocol):
    """What takes scores: `wandb.log`, or a function that writes them elsewhere."""

    def __call__(self, scores: dict[str, float], /, *, step: int) -> object: ...


class Recorder:
    """Records a model while somebody's loop trains it, and leaves the training as it is.

    Weights, gradients, modes and random number generators are untouched: the trained weights are those of an
    unrecorded training, bit for bit. Every checkpoint is converted and checked as by `Run.from_model`.
    A killed training loses at most the checkpoint that was being written; `mm.load` reads the others.

    Args:
        path: The run file to write. `Recorder.finish` leaves this one file; until then the latest
            checkpoints are in a folder beside it, `run.pt.steps/`, which `mm.load` reads too.
        source: What the model is trained on.
        at: The steps to keep: "log2" (0, 1, 2, 4, 8, …, the default) or a list of steps.
        every: Instead of `at`: every so many steps, from 0 on.
        probes: Names of probes to put to every checkpoint.
        log: Called with the numbers among their scores, `{"mechmarkov/parent_score": 0.97}`, and `step=`.
            A name that two of the probes have carries the probe's: `mechmarkov/attention/best_lag`.
        objective: What the model is trained for; by default cross-entropy at every position.
        tokens: The model's token of each state, where token i is not state i; see `Run.from_model`.
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
        >>> mm.initialise(model, [0])
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
        resume: Resume = False,
    ) -> None:
        check_source(source)
        self.path = Path(path)
        self._next_due = _schedule(at, every)
        objective = objective or Objective()
        if tokens is not None:  # the runs' source is without states that never occur and are left out
            source, tokens = vocabulary.named_states(tokens, source, objective)
        self._source, self._objective, self._tokens = source, objective, tokens
        self._probes, self._log = _checked_probes(probes, log), log
        self._id = secrets.token_hex(8)
        self._called = self._kept = -1  # the last steps that were given and recorded
        self._resumed: Resume = False  # how a file was gone on with, until the first call
        self._held = 0  # checkpoints in the file itself
        self._unmerged: dict[int, Run] = {}  # checkpoints by step, not in the file yet
        self._model: DecoderConfig | None = None  # the shape that all checkpoints have
        if resume not in (False, True, "drop_later"):
            raise ValueError(f"resume is {resume!r}, expected True, False or 'drop_later'")
        check_writable(self.path)
        if self.path.exists() or growth.waiting(self.path):
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
        self._model = run.model
        self._id = run.provenance.setdefault("recording", self._id)
        self._merge(run)

    def __call__(self, step: int, model: nn.Module) -> None:
        """Keep the model if the step is one of those to be kept.

        Args:
            step: How many updates the model has had; each call's is above the last one's.
            model: The model, as `Run.from_model` takes it.

        Raises:
            ValueError: A step that repeats, goes back or leaves out one that is to be kept; a model that
                cannot be converted, whose tokens are not the source's states, or that has another shape than
                before.
        """
        step = checked_step(step)
        goes_back, called = step <= self._called, self._called
        if goes_back and self._resumed == "drop_later":
            called = max((kept for kept in load(self.path).steps.tolist() if kept < step), default=-1)
        elif goes_back:
            advice = "; resume='drop_later' drops what the file holds from there on" if self._resumed else ""
            raise ValueError(f"step is {step}, expected above {called}, the last one{advice}")
        due = self._next_due(called)
        if called >= 0 and due is not None and due < step:
            raise ValueError(f"step is {step}, but step {due} was to be kept: expected a call at that step")
        if goes_back:
            self._drop_after(called)
        self._resumed = False
        if self._next_due(step - 1) == step:
            self._record(step, model)
        self._called = step

    def finish(self, step: int, model: nn.Module) -> Run:
        """Keep the trained model, whatever the schedule says, leave one file, and return the run.

        Raises:
            ValueError: As for a call; the last call's step may be given again.
        """
        step = checked_step(step)
        if step > self._called:
            self(step, model)
        elif step < self._called:
            raise ValueError(f"step is {step}, expected at least {self._called}, the last one")
        if step > self._kept:
            self._record(step, model)
        if growth.waiting(self.path):
            self._merge(self._whole())
        return load(self.path)

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

    def _record(self, step: int, model: nn.Module) -> None:
        with _untouched(model):
            run = Run.from_model(
                model, source=self._source, objective=self._objective, tokens=self._tokens, step=step
            )
            self._check_same_model(run)
            run = replace(run, provenance={**run.provenance, "recording": self._id})
            growth.folder_of(self.path).mkdir(parents=True, exist_ok=True)
            run.save(growth.checkpoint_path(self.path, step))
            self._kept = step
            n_bytes = 4 * sum(value.numel() for value in run.states.values())
            if (len(self._unmerged) + 1) * n_bytes <= MAX_UNMERGED_BYTES:
                self._unmerged[step] = run
            if len(growth.waiting(self.path)) > self._held:
                self._merge(self._whole())
            if self._log is not None:
                self._log(self._scores(run, step), step=step)

    def _check_same_model(self, run: Run) -> None:
        self._model = self._model or run.model
        for (name, value), (_, before) in zip(run.model, self._model, strict=True):
            if value != before:
                raise ValueError(f"model.{name} is {value}, expected {before} as at the checkpoints before")

    def _drop_after(self, last: int) -> None:
        run = load(self.path)
        kept = run.steps <= last
        if kept.any():
            states = {name: x if len(x) == 1 else x[kept] for name, x in run.states.items()}
            self._merge(replace(run, steps=run.steps[kept], states=states))
        else:
            self.path.unlink()
            self._held = 0
        self._called = self._kept = last

    def _merge(self, run: Run) -> None:
        run.save(self.path)
        self._held, self._unmerged = run.n_steps, {}
        growth.remove(self.path)

    def _whole(self) -> Run:
        """All checkpoints. Those in memory are not read again: that takes longer than converting."""
        if list(self._unmerged) != list(growth.waiting(self.path)):
            return load(self.path)
        merged = [load_file(self.path)] if self._held else []
        return join_recording([*merged, *self._unmerged.values()])

    def _scores(self, run: Run, step: int) -> dict[str, float]:
        result = probe(run, self._probes, progress=False)
        for name, why in {**result.skipped, **result.failed}.items():
            warnings.warn(f"step {step}: no scores of {name!r}: {why}", stacklevel=4)
        return headline_numbers(result)


def headline_numbers(result: Result) -> dict[str, float]:
    """The scores that are numbers (yes is 1), as a logger takes them: `mechmarkov/parent_score`."""
    owners = Counter(name for outcome in result.values() for name in outcome.scores)
    return {
        f"mechmarkov/{f'{asked}/{name}' if owners[name] > 1 else name}": float(score.value)
        for asked, outcome in result.items()
        for name, score in outcome.scores.items()
        if isinstance(score.value, (bool, int, float))
    }


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Leave torch's random numbers as they were, and compute in the weights' own precision."""
    device = next(unwrapped(model).parameters()).device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def _checked_probes(probes: Sequence[str], log: Log | None) -> list[str]:
    if isinstance(probes, str):
        raise ValueError(f"probes is {probes!r}, expected a list of names: [{probes!r}]")
    known = registered()
    for name in probes:
        if name not in known:
            raise ValueError(f"probes holds {name!r}, expected some of {', '.join(known)}")
    if bool(probes) != (log is not None):
        has = f"probes is {list(probes)}, but log is None" if probes else "log is given, but probes is empty"
        raise ValueError(f"{has}: expected both, or none")
    if log is not None and not callable(log):
        raise ValueError(f"log is {log!r}, expected a function such as wandb.log")
    if log is not None and not _takes_a_step(log):
        raise ValueError(f"log is {log!r}, expected a function that is called as log(scores, step=8)")
    return list(probes)


def _takes_a_step(log: Log) -> bool:
    try:
        signature(log).bind({}, step=0)
    except TypeError:
        return False
    except ValueError:  # written in C, and says nothing of its arguments
        return True
    return True


def _schedule(at: Schedule | None, every: int | None) -> Callable[[int], int | None]:
    """The first step to be kept after a given one, or None."""
    if at is not None and every is not None:
        raise ValueError(f"at is {at!r} and every is {every!r}, expected one of the two")
    if every is not None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}, expected an integer of at least 1")
        return lambda after: (after // every + 1) * every
    if at is None or at == "log2":
        return lambda after: after + 1 if after < 1 else 1 << after.bit_length()
    if isinstance(at, str) or not hasattr(at, "__iter__"):
        raise ValueError(f"at is {at!r}, expected 'log2' or a list of steps")
    steps = sorted({checked_step(step) for step in at})
    if not steps:
        raise ValueError("at is empty, expected 'log2' or a list of steps")
    then_none: list[int | None] = [*steps, None]
    return lambda after: then_none[bisect_right(steps, after)]
