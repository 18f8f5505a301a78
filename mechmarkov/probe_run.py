"""`mm.probe`: put every question to a run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from traceback import extract_tb
from types import FunctionType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from mechmarkov.catalogue.probes import registered
from mechmarkov.claims.claim import Claim, Claims, said_by
from mechmarkov.probing.estimated_law import law_in_words, with_law_error
from mechmarkov.probing.nulls import NULL_MODELS
from mechmarkov.probing.outcome import Outcome, check_data, check_outcome
from mechmarkov.probing.own_tokens import own_tokens
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.recording import SCORES, Quantity
from mechmarkov.probing.score import Score
from mechmarkov.probing.source_check import overconfidence, unlikely_transition
from mechmarkov.probing.subject import DoesNotApplyError, Subject, check_run, unchanged, why_not
from mechmarkov.report.words.outcomes import consistent
from mechmarkov.result import Result
from mechmarkov.runs.description import describe
from mechmarkov.runs.run import Run
from mechmarkov.runs.training_curve import training_curve
from mechmarkov.sources import Observed
from mechmarkov.utils import plugins
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.forked import can_fork, forked
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.progress import watched
from mechmarkov.utils.text import counted, did_you_mean, error_line, printable, shown
from mechmarkov.utils.threads import threads
from mechmarkov.utils.time_limit import check_time_limit
from mechmarkov.utils.time_limit import time_limit as limited_to

MAX_LAW_DRAWS = 10_000
MAX_LOGIT = float(1 << 24)  # float32 has 24 bits
MAX_SCORE = 1e18
# All probes of a circle of 512 states take 3.1 GB (docs/robustness.md).
MAX_STATES = 512
# Below this many the means that ablation puts in are largely a sequence's own, and intervals too narrow.
FEW_SEQUENCES = 16
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
        run: The run.
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
    _check_outputs(subject)
    doubts = [overconfidence(subject)]
    if tokens is not None:
        doubts.append(unlikely_transition(run.source, subject.batch.states.numpy()))

    def answer(name: str) -> Answer:
        return _answer(lambda: find(name), subject, law_draws, time_limit, is_asked=probes is not None)

    answers: dict[str, Answer] = {}
    interrupted = False
    try:
        for name, one in _answers(names, answer, _waiting(names, find), jobs, progress):
            answers[name] = one
            if one.kind == "measured":
                subject.take(name, one.content[0])
    except KeyboardInterrupt:
        if not answers:
            raise
        interrupted = True
    left = [name for name in names if name not in answers]
    answers |= dict.fromkeys(left, Answer("skipped", "interrupted before it was answered"))
    given_as = {kind: {n: answers[n].content for n in names if answers[n].kind == kind} for kind in KINDS}
    outcomes = consistent({n: Outcome(find(n), *content) for n, content in given_as["measured"].items()})
    which = _evaluation(subject, "given" if tokens is not None else seed)
    what = describe(run) | {"kept steps": run.n_steps, "evaluation": which}
    warnings = tuple(_warnings(subject, doubts, law_draws))
    skipped, failed = given_as["skipped"], given_as["failed"]
    first = subject.batch.history[0].tolist()
    sequence = None if tokens is None else own_tokens(run, first, step=subject.coordinates[-1])
    curve = training_curve(run.metrics)
    result = Result(what, subject.coordinates, outcomes, skipped, failed, warnings, sequence, curve)
    if interrupted:
        raise ProbingInterruptedError(result, left) from None
    return result


def _checked_arguments(
    run: Run, law_draws: int, device: str, jobs: int, sequences: int | None, time_limit: float | None
) -> torch.device:
    """Refuse arguments that cannot be; the device that models run on."""
    if law_draws == 1 or isinstance(law_draws, bool) or not isinstance(law_draws, int) or law_draws < 0:
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
        raise TypeError(f"probes is {probes!r}, expected a list of names: [{probes!r}]")
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
        with suppress(Exception, SystemExit), limited_to(time_limit):  # what fails is reported in its turn
            if find(name).records and why_not(find(name), subject) is None:
                records += find(name).records
    return records


def _waiting(names: list[str], find: Callable[[str], Probe]) -> set[str]:
    """The names of those probes that read the data of others."""
    waiting = set()
    for name in names:
        with suppress(Exception, SystemExit):  # one that cannot be found is reported in its turn
            waiting |= {name} if find(name).after_others else set()
    return waiting


class Answer(NamedTuple):
    """The answer of a probe, without the probe: it can pass between processes."""

    kind: Literal["measured", "skipped", "failed"]
    content: Any  # data, null, scores and claims; or why there are none


KINDS = ("measured", "skipped", "failed")


def _answer(
    find: Callable[[], Probe], subject: Subject, law_draws: int, time_limit: float | None, is_asked: bool
) -> Answer:
    """Ask one probe; its failure, to be found among others, is its own, and is reported."""
    probe: Probe | None = None
    try:
        with limited_to(time_limit), unchanged(subject):
            probe = find()
            why = why_not(probe, subject)
            if not is_asked and probe.on_request:
                named = f"--probes {probe.name}, or mm.probe(run, [{probe.name!r}])"
                why = why or f"it takes long, and runs only if named: {named}"
            if not isinstance(why, str | None) or why == "":
                raise TypeError(f"what applies returned is {shown(why)}, expected None or a reason")
            if why is not None:
                return Answer("skipped", printable(why))
            outcome = _outcome(probe, subject, law_draws)
            return Answer("measured", (outcome.data, outcome.null, outcome.scores, outcome.claims))
    except DoesNotApplyError as error:
        return Answer("skipped", printable(str(error)))
    except (Exception, SystemExit) as error:
        return Answer("failed", error_line(error) + ("" if probe is None else _place(error, probe)))


def _place(error: BaseException, probe: Probe) -> str:
    """Returns the line of the probe's own file that an error came from, for whoever writes it."""
    parts = (probe.applies, probe.measure, probe.scores, probe.claims, probe.figures)
    files = {part.__code__.co_filename for part in parts if isinstance(part, FunctionType)}
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename in files]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _answers(
    names: list[str],
    answer: Callable[[str], Answer],
    waiting: Set[str],
    jobs: int,
    progress: bool | Callable[[str], None] | None,
) -> Iterator[tuple[str, Answer]]:
    """Yields all probes' answers, one after the other or from several processes.

    What waits for others' data is answered here, once they are. The last of the others begin first: they
    take longest.
    """
    done: set[str] = set()
    drawn = watched() if progress is None else progress is True
    with tqdm(names, unit="probe", delay=2.0, leave=False, disable=not drawn) as bar:
        if min(jobs, len(names)) == 1:
            for name in bar:
                bar.set_description(name, refresh=False)
                if callable(progress):
                    progress(name)
                yield name, answer(name)
        else:
            first = [name for name in reversed(names) if name not in waiting]
            others = ((name, answer(name)) for name in names if name in waiting)
            copies = forked(answer, first, jobs, copied=True, advice="use one job")
            for name, given in chain(copies, others):
                yield name, given
                done.add(name)
                bar.set_description(", ".join([one for one in names if one not in done][:jobs]))
                bar.update()
                if callable(progress):
                    progress(name)


def _warnings(subject: Subject, doubts: Iterable[str | None], law_draws: int) -> Iterator[str]:
    """Yields why the whole may not mean what it says, a sentence each."""
    run, (n_sequences, n_read) = subject.run, subject.batch.tokens.shape
    yield from (f"the source may be the wrong one: {doubt}" for doubt in doubts if doubt is not None)
    if isinstance(run.source, Observed):
        yield law_in_words(run.source, law_draws)
        if (doubt := run.source.doubt_of_one_law()) is not None:
            yield doubt
    if n_read < run.config.n_ctx:
        yield (
            f"the sequences have {n_read + 1} states, so that {n_read} positions have a next state to "
            f"predict: the last {run.config.n_ctx - n_read} of the context are not evaluated"
        )
    if n_sequences < FEW_SEQUENCES:
        yield (
            f"evaluated on only {counted(n_sequences, 'sequence')}: with fewer than {FEW_SEQUENCES}, "
            "intervals are too narrow, and effects of means too small"
        )


def _evaluation(subject: Subject, seed: int | str) -> dict[str, int | str]:
    """Returns which sequences were evaluated."""
    n_sequences, n_read = subject.batch.tokens.shape
    positions = {"positions": n_read} if n_read < subject.config.n_ctx else {}
    return {"sequences": n_sequences, "their seed": seed, **positions}


def _outcome(probe: Probe, subject: Subject, law_draws: int) -> Outcome:
    def measured(models: Subject) -> xr.Dataset:
        data = models.result(probe.name)
        check_data(data, models.axis, len(models.coordinates))
        return data

    data = measured(subject)
    null = None
    if probe.has_null(subject):
        fresh = subject.null
        of = {"null_models": len(fresh.coordinates), "null_sequences": len(fresh.batch.tokens)}
        null = measured(fresh).assign_attrs(of)
    scores = probe.scores(data, null)
    if isinstance(source := subject.source, Observed) and law_draws:

        def ask(other: Subject) -> dict[str, Score]:
            return probe.scores(other.result(probe.name), null)

        scores = with_law_error(scores, subject, source, ask, law_draws)
    claims = probe.claims(data, scores)
    if not isinstance(claims, list | tuple):
        raise TypeError(f"what claims returned is a {type(claims).__name__}, expected a list of claims")
    for claim in claims:
        if not isinstance(claim, Claim):
            raise TypeError(f"a claim is a {type(claim).__name__}, expected a Claim")
    outcome = Outcome(probe, data, null, scores, Claims(said_by(probe.name, claims)))
    check_outcome(outcome)
    return outcome


def _check_outputs(subject: Subject) -> None:
    outputs, most = subject.recorded(SCORES), MAX_SCORE
    what, why = "outputs", "squares overflow beyond it"
    if subject.objective.kind == "cross_entropy":
        most, what, why = MAX_LOGIT, "logits", "beyond it float32 rounds by more than a nat"
    for step, scores in zip(subject.coordinates, outputs, strict=True):
        if not np.isfinite(scores).all():
            raise ValueError(
                f"the model's outputs at step {step} are not finite, expected numbers: its weights are "
                "damaged or it has diverged; choose other steps"
            )
        if (largest := float(np.abs(scores).max(initial=0.0))) > most:
            raise ValueError(
                f"the model's {what} at step {step} reach {largest:.3g}, expected at most {most:.3g}: {why}; "
                "choose other steps"
            )
