"""Asking: one probe, whose failure is its own, and all of them, in one process or in several."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from traceback import extract_tb
from types import FunctionType
from typing import Any, Literal, NamedTuple

import xarray as xr
from tqdm import tqdm

from mechmarkov.claims.claim import Claim, Claims, said_by
from mechmarkov.probing.estimated_law import with_law_error
from mechmarkov.probing.outcome import Outcome, check_data, check_outcome
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score
from mechmarkov.probing.subject import DoesNotApplyError, Subject, why_not
from mechmarkov.sources import Observed
from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.forked import forked
from mechmarkov.utils.progress import watched
from mechmarkov.utils.text import error_line, printable, shown
from mechmarkov.utils.time_limit import time_limit as limited_to


class Answer(NamedTuple):
    """The answer of a probe, without the probe: it can pass between processes.

    Attributes:
        kind: Whether it was measured, skipped or failed.
        content: Data, null, scores and claims; or why there are none.
    """

    kind: Literal["measured", "skipped", "failed"]
    content: Any


KINDS = ("measured", "skipped", "failed")


def _outcome(probe: Probe, subject: Subject, law_draws: int) -> Outcome:
    """Measure the run and its null; the scores and claims that follow, checked."""

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


@contextmanager
def _unchanged(subject: Subject) -> Iterator[None]:
    """Put the shared models and sequences back where a probe changed them, and say so.

    Null models are looked at if there are any by then.

    Raises:
        ValueError: Weights, sequences or hooks differ; the message names the first. They are as before, and
            what was recorded from the changed ones is forgotten.
    """
    expected = [(subject, subject.original)]
    try:
        yield
    finally:
        if (null := vars(subject).get("null")) is not None:
            expected.append((null, null.original))
        named = [original.first_changed(one.decoder, one.batch) for one, original in expected]
        changed = [name for name in named if name is not None]
        if changed:
            subject.restore()
    if changed:
        raise ValueError(f"the probe changed {changed[0]} of the shared model, expected it as it was")


def answer_of(
    find: Callable[[], Probe], subject: Subject, law_draws: int, time_limit: float | None, is_asked: bool
) -> Answer:
    """Ask one probe; whatever it raises is its own failure, and is reported.

    Args:
        find: Imports the probe, which may fail too.
        subject: The models. What the probe changes of them is put back, and is a failure.
        law_draws: How often an estimated law is drawn again.
        time_limit: Seconds of wall time; None for none.
        is_asked: Whether the probe was named: one that takes long is asked only then.
    """
    probe: Probe | None = None
    try:
        with limited_to(time_limit), _unchanged(subject):
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
        if is_by_signal(error):
            raise
        return Answer("failed", error_line(error) + ("" if probe is None else _place(error, probe)))


def _place(error: BaseException, probe: Probe) -> str:
    """Returns the line of the probe's own file that an error came from, for whoever writes it."""
    parts = (probe.applies, probe.measure, probe.scores, probe.claims, probe.figures)
    files = {part.__code__.co_filename for part in parts if isinstance(part, FunctionType)}
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename in files]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def all_answers(
    names: list[str],
    answer: Callable[[str], Answer],
    waiting: Set[str],
    jobs: int,
    progress: bool | Callable[[str], None] | None,
) -> Iterator[tuple[str, Answer]]:
    """Yields all probes' answers, one after the other or from several processes.

    Args:
        names: The probes, in the order in which one process asks them.
        answer: Asks one.
        waiting: Those that read the data of others: answered in this process, once the others are.
        jobs: How many processes. The last of the others begin first: they take longest.
        progress: The bar, or a function that is told of each probe (`mm.probe`).
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
