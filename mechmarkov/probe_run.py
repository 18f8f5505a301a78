"""`mm.probe`: put every question to a run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from mechmarkov.catalogue.probes import registered
from mechmarkov.claims.claim import Claim, Claims, said_by
from mechmarkov.probing.estimated_law import law_in_words, with_law_error
from mechmarkov.probing.nulls import NULL_MODELS
from mechmarkov.probing.outcome import Outcome, check_data, check_outcome
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.recording import SCORES, Quantity
from mechmarkov.probing.score import Score
from mechmarkov.probing.source_check import overconfidence, unlikely_transition
from mechmarkov.probing.subject import DoesNotApplyError, Subject, check_run, unchanged, why_not
from mechmarkov.report.words.outcomes import consistent
from mechmarkov.result import Result
from mechmarkov.runs.run import Run
from mechmarkov.sources import Observed
from mechmarkov.utils import plugins
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.forked import can_fork, forked
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.progress import watched
from mechmarkov.utils.text import counted, error_line, printable, shown
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


def describe(run: Run) -> dict[str, Any]:
    """Returns what a run is, as plain data for people."""
    objective, model = run.objective, run.model
    mlp = [*["gated"] * model.gated_mlp, *["parallel"] * model.parallel_attn_mlp, str(model.act_fn)]
    no_mlp = "attention only" if model.mixer == "attention" else "no MLP"
    shape = [
        f"{counted(model.n_layers, 'layer')} of {counted(model.n_heads, 'head')}",
        no_mlp if model.attn_only else f"MLP of {model.d_mlp} ({', '.join(mlp)})",
        f"width {model.d_model}",
        f"context {model.n_ctx}",
        f"norm {model.normalization_type}" if model.normalization_type else "no norm",
        f"{'no' if model.positional_embedding_type == 'none' else model.positional_embedding_type} positions",
    ]
    shape += [f"{model.n_key_value_heads} key-value heads"] * (model.n_key_value_heads is not None)
    shape += ["norms on queries and keys"] * model.use_qk_norm
    shape += [f"mixer {model.mixer}"] * (model.mixer != "attention")
    shape += ["tied embeddings"] * model.tied
    shape += [f"window of {model.window} back"] * (model.window is not None)
    loss = {
        "cross_entropy": "cross-entropy",
        "raw_log": f"-log(score + {objective.eps:g}) on raw scores",
        "normalised_log": f"-log(score / sum + {objective.eps:g}) on scores",
        "squared": "squared error on scores",
    }[objective.kind]
    trained = f"{loss}, read at {'the last position' if objective.read == 'last' else 'every position'}"
    return {
        "title": run.title(),
        "source": run.source.title(),
        "model": ", ".join(shape),
        "objective": trained
        + (", a query token" if objective.query else "")
        + (", a beginning-of-sequence token" if objective.bos else ""),
        "seed": run.seed,
        **{f"training {name.replace('_', ' ')}": text for name, text in run.sampling_errors().items()},
        "provenance": run.provenance,
    }


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
    device: str = "cpu",
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
            where there is any). A GPU rounds otherwise. All else is computed on the CPU.
        progress: Whether to draw a progress bar, by default in a terminal or a notebook; or a function that
            is called with the name of each probe before it starts, or, with several jobs, once it has ended.

    Raises:
        ValueError: If a probe, a step or the device does not exist, `sequences` or `time_limit` is not
            positive, `law_draws` is 1, negative or above 10 000, `jobs` is
            not positive or above 1 where processes cannot be copied or the device is a GPU, the source has
            more than 512 states, or the model's outputs are not finite, or so large that
            float32 does not tell them apart.
        RuntimeError: One of several processes was ended from outside.
        TypeError: If `run` is not a run, `probes` is one name instead of a list, or another argument is of
            the wrong kind.
    """
    check_run(run)
    if isinstance(probes, str):
        raise TypeError(f"probes is {probes!r}, expected a list of names: [{probes!r}]")
    if probes is not None:
        # `registered()` has them by name.
        probes = list_of("probes", [*probes] if isinstance(probes, Mapping) else probes, "a list of names")
        for one in probes:
            if not isinstance(one, str | Probe):
                raise TypeError(f"probes has {shown(one)}, expected names or probes")
    if law_draws == 1 or isinstance(law_draws, bool) or not isinstance(law_draws, int) or law_draws < 0:
        raise ValueError(f"law_draws is {law_draws!r}, expected 0 or at least 2")
    if law_draws > MAX_LAW_DRAWS:
        raise ValueError(f"law_draws is {shown(law_draws)}, expected at most {MAX_LAW_DRAWS}")
    place = pick_device(device)
    many = can_fork() and place.type == "cpu"  # a copied process cannot use the GPU of its parent
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1 or (jobs > 1 and not many):
        expected = "how many processes" if many else f"1 on {place.type if can_fork() else 'this system'}"
        raise ValueError(f"jobs is {jobs!r}, expected {expected}")
    if sequences is not None and (isinstance(sequences, bool) or not isinstance(sequences, int)):
        kind = type(sequences).__name__
        raise TypeError(f"sequences is a {kind}, expected how many to draw; your own go into tokens=…")
    if sequences is not None and sequences < 1:
        raise ValueError(f"sequences is {sequences}, expected at least 1")
    check_time_limit(time_limit)
    known = registered()
    given = {probe.name: probe for probe in probes or () if isinstance(probe, Probe)}
    chosen = known if probes is None else [p.name if isinstance(p, Probe) else p for p in probes]
    names = list(dict.fromkeys(chosen))
    if run.source.n_states > MAX_STATES:
        raise ValueError(
            f"the source has {run.source.n_states} states, expected at most {MAX_STATES}: "
            f"probes hold tables of states × states for {NULL_MODELS} fresh models"
        )
    if not names:
        raise ValueError(f"probes is empty, expected some of {', '.join(known)}")
    unknown = [name for name in names if name not in known and name not in given]
    if unknown:
        raise ValueError(f"no probe is named {unknown[0]!r}; there are {', '.join(known)}")

    def find(name: str) -> Probe:
        # The metadata of all distributions are read once, not at every look.
        return given[name] if name in given else plugins.load(name, Probe, known)

    subject = Subject.of(
        run,
        steps,
        seed=seed,
        sequences=sequences,
        tokens=tokens,
        find=find,
        device=place,
        keeps_nulls=not given,
    )
    records: list[Quantity[Any]] = []
    for name in names:
        with suppress(Exception, SystemExit), limited_to(time_limit):  # what fails is reported in its turn
            if find(name).records and why_not(find(name), subject) is None:
                records += find(name).records
    subject = replace(subject, records=records)
    _check_outputs(subject)
    doubts = [overconfidence(subject)]
    if tokens is not None:
        doubts.append(unlikely_transition(run.source, subject.batch.states.numpy()))

    def answer(name: str) -> tuple[str, Any]:
        """A probe's outcome without the probe, or why there is none: what can pass between processes."""
        try:
            with limited_to(time_limit), unchanged(subject):
                question = find(name)
                why = why_not(question, subject)
                if probes is None and question.on_request:
                    why = why or f"it takes long, and runs where it is named: probes {name}"
                if not isinstance(why, str | None) or why == "":
                    raise TypeError(f"what applies returned is {shown(why)}, expected None or a reason")
                if why is not None:
                    return "skipped", printable(why)
                outcome = _outcome(question, subject, law_draws)
                return "found", (outcome.data, outcome.null, outcome.scores, outcome.claims)
        except DoesNotApplyError as error:
            return "skipped", printable(str(error))
        except (Exception, SystemExit) as error:  # one probe's failure is that probe's, and is reported
            return "failed", error_line(error)

    answers: dict[str, tuple[str, Any]] = {}
    drawn = watched() if progress is None else progress is True
    with tqdm(names, unit="probe", delay=2.0, leave=False, disable=not drawn) as bar:
        if min(jobs, len(names)) == 1:
            for name in bar:
                bar.set_description(name, refresh=False)
                if callable(progress):
                    progress(name)
                answers[name] = answer(name)
        else:
            for name, said in forked(answer, names, jobs, copied=True, advice="use one job"):
                answers[name] = said
                bar.set_description(", ".join([one for one in names if one not in answers][:jobs]))
                bar.update()
                if callable(progress):
                    progress(name)
    by_kind: dict[str, dict[str, Any]] = {"found": {}, "skipped": {}, "failed": {}}
    for name in names:
        kind, content = answers[name]
        by_kind[kind][name] = content
    outcomes = consistent({name: Outcome(find(name), *content) for name, content in by_kind["found"].items()})
    warnings = tuple(f"the source may be the wrong one: {doubt}" for doubt in doubts if doubt is not None)
    if isinstance(run.source, Observed):
        warnings += (law_in_words(run.source, law_draws),)
        if (doubt := run.source.doubt_of_one_law()) is not None:
            warnings += (doubt,)
    if (n_read := subject.batch.tokens.shape[1]) < run.model.n_ctx:
        warnings += (
            f"the sequences have {n_read + 1} states, so that {n_read} positions have a next state to "
            f"predict: the last {run.model.n_ctx - n_read} of the context are not evaluated",
        )
    if len(subject.batch.tokens) < FEW_SEQUENCES:
        few = counted(len(subject.batch.tokens), "sequence")
        warnings += (
            f"evaluated on only {few}: with fewer than {FEW_SEQUENCES}, intervals are too narrow, and "
            "effects of means too small",
        )
    evaluation = {"sequences": len(subject.batch.tokens), "their seed": seed if tokens is None else "given"}
    evaluation |= {"positions": n_read} if n_read < run.model.n_ctx else {}
    what = describe(run) | {"evaluation": evaluation}
    return Result(what, subject.coordinates, outcomes, by_kind["skipped"], by_kind["failed"], warnings)


def _outcome(probe: Probe, subject: Subject, law_draws: int) -> Outcome:
    def measured(models: Subject) -> xr.Dataset:
        found = models.result(probe.name)
        check_data(found, models.axis, len(models.coordinates))
        return found

    data = measured(subject)
    null = measured(subject.null) if probe.has_null(subject) else None
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
