"""`mm.probe`: put every question to a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from mechmarkov.catalogue.probes import registered
from mechmarkov.probing.answers import KINDS, Answer, all_answers, answer_of
from mechmarkov.probing.doubts import check_outputs, evaluation_of, warnings_of
from mechmarkov.probing.nulls import NULL_MODELS
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.own_tokens import own_tokens
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.recording import Quantity
from mechmarkov.probing.source_check import overconfidence, unlikely_transition
from mechmarkov.probing.subject import Subject, check_run, why_not
from mechmarkov.report.words.outcomes import consistent
from mechmarkov.result import Result
from mechmarkov.runs.description import describe, fingerprints
from mechmarkov.runs.run import Run
from mechmarkov.runs.training_curve import training_curve
from mechmarkov.utils import plugins
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.exits import without_faults
from mechmarkov.utils.forked import can_fork
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.text import did_you_mean, shown
from mechmarkov.utils.threads import threads
from mechmarkov.utils.time_limit import check_time_limit
from mechmarkov.utils.time_limit import time_limit as limited_to

MAX_LAW_DRAWS = 10_000
# All probes of a circle of 512 states take 3.1 GB (docs/robustness.md).
MAX_STATES = 512
KEPT_BYTES = 16 << 20  # activations of a chunk (8 MB), slopes of a walk (13 MB): every pass needs them


class ProbingInterruptedError(KeyboardInterrupt):
    """Ctrl-C while probes were asked.

    Attributes:
        result: The result with the probes that had finished.
        left: The names of the others.
    """

    def __init__(self, result: Result, left: list[str]) -> None:
        super().__init__(f"interrupted before {', '.join(left)}")
        self.result, self.left = result, left


@threads(1)  # as training and the command line do: a second thread costs more than it gives
@freed_memory_kept(KEPT_BYTES)
def probe(
    run: Run,
    probes: Sequence[str | Probe] | None = None,
    *,
    steps: Literal["last", "all"] | list[int] = "last",
    seed: int = 0,
    sequences: int | None = None,
    tokens: Int[Tensor | np.ndarray, "batch position"] | None = None,
    time_limit: float | None = None,
    law_draws: int = 16,
    jobs: int = 1,
    device: str = "auto",
    progress: bool | Callable[[str], None] | None = None,
) -> Result:
    """Ask a run the questions of all probes, or of some.

    A probe that does not apply is reported with its reason. One that raises, takes too long, gives what
    cannot be shown or changes the shared models is reported with its error, and the others go on. Scores
    are those at the last probed step, with their nulls.

    Args:
        run: A run, from `mm.train`, `mm.load`, `mm.example` or `mm.Run.from_model`.
        probes: Names of probes, or probes themselves, of which one may have the name of a registered one and
            then takes its place; None for all that are registered, but
            for those that take long (`Probe.on_request`).
        steps: "last", "all", or training steps the run has kept.
        seed: The seed of the evaluation batch.
        sequences: How many evaluation sequences are drawn; None for 65 536 predictions' worth, between 64 and
            512.
        tokens: Sequences of states to evaluate on instead, each as long as the model's context and, where no
            query token ends its input, one more: the state after the last. Where every position is read they
            may be shorter; the model's last positions are then not read, and the result says so.
        time_limit: Seconds of wall time for each probe; None for none.
        law_draws: Where the source is `Observed`: how often its law is estimated again, for the law's error
            in the intervals. A probe that uses the law measures as often; 0 leaves the error out.
        jobs: How many processes measure, on Linux: what the probes share is recorded first, then each
            process takes probe after probe. Scores are the same; memory is taken once more for each.
        device: Where the models run while what the probes share is recorded: `cpu`, `cuda`, or `auto` (CUDA
            where there is any and `jobs` is 1). A GPU rounds otherwise. All else is computed on the CPU.
        progress: Whether to draw a progress bar, by default in a terminal or a notebook; or a function that
            is called with the name of each probe before it starts, or, with several jobs, once it has ended.

    Raises:
        ValueError: If a probe, a step or the device does not exist, `sequences` or `time_limit` is not
            positive, `law_draws` is 1, negative or above 10 000, `jobs` is
            not positive or above 1 where processes cannot be copied or the device is a GPU, the source has
            more than 512 states, or the model's outputs are not finite, or so large that
            float32 does not tell them apart.
        RuntimeError: One of several processes was ended from outside.
        ProbingInterruptedError: Ctrl-C, once a probe has finished: it is a KeyboardInterrupt, and its
            `result` has the probes that have.
        TypeError: If `run` is not a run, `probes` is one name instead of a list, or another argument is of
            the wrong kind.

    Example:
        >>> import mechmarkov as mm
        >>> result = mm.probe(mm.example("walk"), ["attention"], sequences=64)
        >>> result["attention"].verdict
        'L0H0 gives the previous token 100% of its attention.'
        >>> result["attention"].scores["parent_head"].value, result["attention"].data["lag_mass"].dims
        ('L0H0', ('step', 'layer', 'head', 'lag'))
    """
    check_run(run)
    place = _checked_arguments(run, law_draws, device, jobs, sequences, time_limit)
    names, find, given = _chosen(probes)
    own = {"find": find, "device": place, "keeps_nulls": not given}
    subject = Subject.of(run, steps, seed=seed, sequences=sequences, tokens=tokens, **own)
    subject = replace(subject, records=_records(subject, names, find, time_limit))
    check_outputs(subject)
    doubts = [overconfidence(subject)]
    if tokens is not None:
        doubts.append(unlikely_transition(run.source, subject.batch.states.numpy()))

    def answer(name: str) -> Answer:
        return answer_of(lambda: find(name), subject, law_draws, time_limit, is_asked=probes is not None)

    answers: dict[str, Answer] = {}
    interrupted = False
    try:
        for name, one in all_answers(names, answer, _waiting(names, find), jobs, progress):
            answers[name] = one
            if one.kind == "measured":
                subject.take(name, one.content[0])
    except KeyboardInterrupt:
        if not answers:
            raise
        interrupted = True
    left = [name for name in names if name not in answers]
    answers |= dict.fromkeys(left, Answer("skipped", "interrupted before it was answered"))
    by_kind = {kind: {n: answers[n].content for n in names if answers[n].kind == kind} for kind in KINDS}
    which = evaluation_of(subject, "given" if tokens is not None else seed)
    result = Result(
        metadata=describe(run)
        | {"kept steps": run.n_steps, "evaluation": which, "fingerprints": fingerprints(run)},
        steps=subject.coordinates,
        outcomes=consistent({n: Outcome(find(n), *content) for n, content in by_kind["measured"].items()}),
        skipped=by_kind["skipped"],
        failed=by_kind["failed"],
        warnings=tuple(warnings_of(subject, doubts, law_draws)),
        sequence=None if tokens is None else _first_sequence(subject),
        curve=training_curve(run.metrics),
    )
    if interrupted:
        raise ProbingInterruptedError(result, left) from None
    return result


def _first_sequence(subject: Subject) -> xr.Dataset:
    """Returns what the model makes of the first sequence that a reader gave."""
    return own_tokens(subject.run, subject.batch.history[0].tolist(), step=subject.coordinates[-1])


def _checked_arguments(
    run: Run, law_draws: int, device: str, jobs: int, sequences: int | None, time_limit: float | None
) -> torch.device:
    """Refuse arguments that cannot be; the device that models run on."""
    if not isinstance(law_draws, int) or isinstance(law_draws, bool) or law_draws == 1 or law_draws < 0:
        raise ValueError(f"law_draws is {shown(law_draws)}, expected 0 or at least 2")
    if law_draws > MAX_LAW_DRAWS:
        raise ValueError(f"law_draws is {shown(law_draws)}, expected at most {MAX_LAW_DRAWS}")
    # Who asks for several processes has them on the processor: a copy cannot use the GPU of its parent.
    several = isinstance(jobs, int) and jobs > 1
    place = pick_device("cpu" if several and isinstance(device, str) and device == "auto" else device)
    many = can_fork() and place.type == "cpu"
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1 or (jobs > 1 and not many):
        expected = "how many processes" if many else f"1 on {place.type if can_fork() else 'this system'}"
        raise ValueError(f"jobs is {shown(jobs)}, expected {expected}")
    if sequences is not None and (isinstance(sequences, bool) or not isinstance(sequences, int)):
        kind = type(sequences).__name__
        raise TypeError(f"sequences is a {kind}, expected how many to draw; your own go into tokens=…")
    if sequences is not None and sequences < 1:
        raise ValueError(f"sequences is {sequences}, expected at least 1")
    check_time_limit(time_limit)
    if run.source.n_states > MAX_STATES:
        raise ValueError(
            f"the source has {run.source.n_states} states, expected at most {MAX_STATES}: "
            f"probes hold tables of states × states for {NULL_MODELS} fresh models"
        )
    return place


def _chosen(
    probes: Sequence[str | Probe] | None,
) -> tuple[list[str], Callable[[str], Probe], dict[str, Probe]]:
    """The names of the probes to ask, how one is found by its name, and those that were given."""
    if isinstance(probes, str):
        raise TypeError(f"probes is {shown(probes)}, expected a list of names: [{shown(probes)}]")
    if probes is not None:
        # `registered()` has them by name.
        probes = list_of("probes", [*probes] if isinstance(probes, Mapping) else probes, "a list of names")
        for one in probes:
            if not isinstance(one, str | Probe):
                raise TypeError(f"probes has {shown(one)}, expected names or probes")
    known = registered()  # the metadata of all distributions are read once, not at every look
    given = {probe.name: probe for probe in probes or () if isinstance(probe, Probe)}
    chosen = known if probes is None else [p.name if isinstance(p, Probe) else p for p in probes]
    names = list(dict.fromkeys(chosen))
    if not names:
        raise ValueError(f"probes is empty, expected some of {', '.join(known)}")
    unknown = [name for name in names if name not in known and name not in given]
    if unknown:
        there = f"{', '.join(known)}{did_you_mean(unknown[0], known)}"
        raise ValueError(f"no probe is named {unknown[0]!r}; there are {there}")
    return names, lambda name: given[name] if name in given else plugins.load(name, Probe, known), given


def _records(
    subject: Subject, names: list[str], find: Callable[[str], Probe], time_limit: float | None
) -> list[Quantity[Any]]:
    """The quantities of those probes that apply."""
    records: list[Quantity[Any]] = []
    for name in names:
        with without_faults(), limited_to(time_limit):  # what fails is reported in its turn
            if find(name).records and why_not(find(name), subject) is None:
                records += find(name).records
    return records


def _waiting(names: list[str], find: Callable[[str], Probe]) -> set[str]:
    """The names of those probes that read the data of others."""
    waiting = set()
    for name in names:
        with without_faults():  # one that cannot be found is reported in its turn
            waiting |= {name} if find(name).after_others else set()
    return waiting
