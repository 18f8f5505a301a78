"""Certificates: how far a program is from its model in the worst case, over every sequence, and where."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int

from mechmarkov.certify.bounds import norm_bound
from mechmarkov.certify.bounds.ball import EXACT, FLOAT32
from mechmarkov.certify.bounds.every import Bounds, bounds, counted, why_no_bounds
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.choose import NEAR, read_off, smallest, worst_contexts
from mechmarkov.certify.contexts import Contexts, cases, n_cases
from mechmarkov.certify.programs import READ_OFF, Program, from_rows, from_source, middle, of_table
from mechmarkov.certify.search import Judge, WorstSeen, largest, largest_of_all, search
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective, sequence_length
from mechmarkov.runs.run import Run
from mechmarkov.sources import Observed
from mechmarkov.sources.base.lagged import Lagged
from mechmarkov.sources.base.stationary import Stationary
from mechmarkov.theory.kernel import FLOOR, kl
from mechmarkov.utils.errors import list_of, number_of
from mechmarkov.utils.text import at_most, shown

SECONDS: Final = 120.0
SEARCHED_TOKENS: Final = 1 << 20
DRAWN = 64  # sequences of the source: where a search starts, and what is seen besides
CHECKED = 256  # of the worst contexts that bounds name, those that the model itself is run on
DRAW_SEED = 0x7C0FFEE
MOST_CASES: Final = 1024  # of the states at all lags of a table
MOST_OWN_CASES: Final = 64  # of a table that nobody asked for

Rows = Sequence[Sequence[float]]
Histories = Int[np.ndarray, "batch known_position"]


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """A statement about every sequence, and the worst sequence that was seen.

    Attributes:
        program: What the model is compared with.
        contexts: What "every sequence" means.
        kl_at: The bound of `worst_kl` at each position that is read; NaN without bounds. At the first
            `exhausted` positions it is the largest of every context, as the model was run here.
        seen: The worst prediction that the model itself made.
        unit: Unit roundoff of the evaluations that are covered.
        bounds: The model's; None where there are none of its log odds, and then `why` says why.
        worst_kl: KL(program ‖ model) of no prediction is larger (nats; a state that the model gives less than
            1e-12 counts as if that were 1e-12). Without bounds what a final norm says of any program, or
            None.
        worst_log_ratio: None without bounds, as the next; the smallest and the largest `log(model / program)`
            of a state that the program holds possible; infinite where the model may hold it impossible.
        worst_logit_error: The log odds of no two states are off by more.
        seconds: That it took.
        why: Why the program is not certified.
        exhausted: At this number of positions, the first that are read, every context was run.
    """

    program: Program
    contexts: Contexts
    kl_at: Float[np.ndarray, " read"]
    seen: WorstSeen
    unit: float
    bounds: Bounds | None = None
    worst_kl: float | None = None
    worst_log_ratio: tuple[float, float] | None = None
    worst_logit_error: float | None = None
    seconds: float = math.nan
    why: str | None = None
    exhausted: int = 0

    @property
    def tier(self) -> str:
        """The tier: `1` support functions, `1b` relaxed, `2` several layers, `norm` a norm, `0` none."""
        if self.bounds is None:
            return "0" if self.worst_kl is None else "norm"
        return {"relaxed": "1b", "layers": "2"}.get(self.bounds.kind, "1")

    @property
    def is_vacuous(self) -> bool:
        """Returns whether the bound is no better than for a model that finds all states equally likely."""
        return self.worst_kl is not None and self.worst_kl >= math.log(self.contexts.n_states)

    def __repr__(self) -> str:
        """The bound, and what to do with a certificate."""
        bound = f"no bound: {self.why}" if self.worst_kl is None else f"at most {at_most(self.worst_kl)} nats"
        return (
            f"Certificate({self.program.name}: KL(program ‖ model) {bound}, tier {self.tier})\n"
            "  proof_of(certificate, step) is its proof; .seen is the worst that was seen"
        )


def certify(
    run: Run,
    program: str | Rows | None = None,
    *,
    lags: Sequence[int] | None = None,
    step: int = -1,
    seconds: float = SECONDS,
    unit: float = FLOAT32,
    tokens: int = SEARCHED_TOKENS,
) -> Certificate:
    """Certify how far a program is from a model at most, on every sequence.

    Args:
        run: A run of a softmax transformer, from `mm.train`, `mm.load` or `mm.Run.from_model`.
        program: `constant`, `parent` or `row`, read off the model, an exact predictor of the source by its
            name, or a table with the law after each state. None for the smallest that is near the model.
        lags: The lags of the states that a table has: (1,) for the parent, (1, 2) for the last two states,
            (1, 3) for the parent and the state two in front of it. None for the parent, and where that is not
            near and the source depends on few other lags, for these too.
        step: A training step the run has kept, -1 for the last.
        seconds: Budget of the bounds; of what is left of it a search for the worst sequence, where there are
            none. Each tries something once.
        unit: Which evaluations of the model are covered: those in float32 and those in exact arithmetic
            (`ball.FLOAT32`), or the latter only (`ball.EXACT`).
        tokens: Budget of the search for the worst sequence, where there are no bounds.

    Raises:
        ValueError: `program` is not one, a weight is not finite, or the source has no sequence of the model's
            length.
        RuntimeError: A prediction was seen that is further off than the bound: a defect of this code.

    Example:
        >>> import mechmarkov as mm
        >>> certificate = certify(mm.example("walk"), "parent")
        >>> certificate.worst_kl < 1e-6  # nats, of every sequence
        True
    """
    if not isinstance(run, Run):
        raise TypeError(f"run is {shown(run)}, expected a Run: mm.load(path) reads one from a file")
    number_of("seconds", seconds, "seconds from 1e-12 to 1e8", least=1e-12, most=1e8)
    began = time.monotonic()
    if program is not None and not isinstance(program, str):  # a table may be an array
        program = list_of("program", program, "a name, or a table with a row for each state")
    contexts, given = Contexts.of(run.source, run.objective, run.config), _given(run, program)
    decoder = run.model(step).double() if unit == EXACT else run.model(step)
    layer = Layer(run.config, _finite_weights(decoder), unit)
    drawn, tried = _drawn(run, contexts), [replace(contexts, lags=own) for own in _lags(run, program, lags)]
    models = [_Model(run, decoder, layer, one, drawn) for one in tried]
    certificate, reasons = None, list[str]()
    for index, model in enumerate(models):
        left = began + seconds - time.monotonic() if index else seconds  # the first is always tried
        if left <= 0:
            break
        one = _of_lags(model, program, given, left, tokens)
        if isinstance(one, str):
            reasons.append(one)
        elif certificate is None or one.kl_at.max() < certificate.kl_at.max():
            certificate = one
        if certificate is not None and certificate.kl_at.max() <= NEAR:
            break
    if certificate is None:
        if program == "row":
            raise ValueError(f"program is 'row', but {reasons[0]}")
        chosen = given or _by_samples(models[0], program)
        certificate = _without_bounds(models[0], chosen, reasons[0], tokens, began + seconds)
    return replace(certificate, seconds=time.monotonic() - began)


def _of_lags(
    model: "_Model", program: str | Rows | None, given: Program | None, seconds: float, tokens: int
) -> Certificate | str:
    """The certificate by bounds of a table of the states at the lags of a model's contexts, or why none."""
    bounded, why = _bounds(model, model.run.objective, program, seconds)
    if given is None:
        name = program if isinstance(program, str) else None
        options = [(made, one) for one in bounded for made in read_off(one, name, model.contexts.lags)]
    else:
        options = [(given, one) for one in bounded if given.is_table and one.kind != "counts"]
    if not options:
        return why or _why_no_options(given)
    certificate = _with_bounds(model, options, tokens)
    if certificate.is_vacuous and certificate.tier == "2":
        return f"what bounds are known of its {model.run.config.n_layers} layers are vacuous"
    by_norm = _by_norm(model)
    if certificate.is_vacuous and by_norm is not None and by_norm < float(certificate.kl_at.max()):
        return "what bounds are known behind its attention are vacuous"
    return certificate


def _by_norm(model: "_Model") -> float | None:
    """Returns what a final norm says of KL from any program (nats), where a softmax reads the scores."""
    if model.run.objective.kind != "cross_entropy":
        return None
    return norm_bound.largest_kl(model.run.config, model.layer.weights, model.layer.unit)


@dataclass(frozen=True, eq=False)
class _Model:
    """A model that is to be certified, and sequences of its source."""

    run: Run
    decoder: HookedDecoder
    layer: Layer
    contexts: Contexts
    drawn: Histories

    @torch.no_grad()
    def last_scores(self, tokens: Int[np.ndarray, "context key"]) -> Float[np.ndarray, "context state"]:
        """The scores behind the last of some tokens, in the precision that the model has."""
        last = torch.tensor([tokens.shape[1] - 1])
        scores = self.decoder(torch.from_numpy(tokens.astype(np.int64)), read=last)[:, 0]
        return np.asarray(scores.double().numpy())


def _with_bounds(model: _Model, options: Sequence[tuple[Program, Bounds]], tokens: int) -> Certificate:
    """The certificate of the smallest program of all that have bounds."""
    contexts, objective = model.contexts, model.run.objective
    program, of_model, worst = smallest(options)
    judge = Judge(model.decoder, objective, contexts, program)
    if of_model.kind == "counts":
        seen = search(judge, model.drawn, tokens // 8)
    else:
        named, at = worst_contexts(program, of_model, contexts, objective, CHECKED)
        starts = np.concatenate([named, model.drawn])
        # Of several layers the contexts that bounds name are not the worst.
        seen = _searched(judge, starts, tokens)[0] if of_model.kind == "layers" else largest(judge, starts)
        seen = replace(seen, at=np.maximum(seen.at, at))
    kl_at = worst.kl.max(1)
    if (seen.at > kl_at).any():
        i = int((seen.at - kl_at).argmax())
        raise RuntimeError(
            f"{seen.at[i]:g} nats were seen at position {contexts.reads[i]}, where {kl_at[i]:g} was certified"
        )
    return Certificate(
        program=program,
        contexts=contexts,
        bounds=of_model,
        worst_kl=float(kl_at.max()),
        worst_log_ratio=worst.log_ratio,
        worst_logit_error=worst.logit_error,
        kl_at=kl_at,
        seen=seen,
        unit=model.layer.unit,
    )


def _without_bounds(model: _Model, program: Program, why: str, tokens: int, end: float) -> Certificate:
    """The certificate by a final norm, by all contexts of the first positions, and by a search."""
    run, layer, contexts = model.run, model.layer, model.contexts
    judge = Judge(model.decoder, run.objective, contexts, program)
    seen, every = _searched(judge, model.drawn, tokens, end)
    by_norm = _by_norm(model)
    kl_at = np.full(len(contexts.reads), np.nan if by_norm is None else by_norm)
    kl_at[:every] = seen.at[:every]
    return Certificate(
        program=program,
        contexts=contexts,
        worst_kl=by_norm,
        kl_at=kl_at,
        seen=seen,
        unit=layer.unit,
        why=why,
        exhausted=every,
    )


def _searched(judge: Judge, starts: Histories, tokens: int, end: float = math.inf) -> tuple[WorstSeen, int]:
    """The worst sequence by a search and by all contexts of the first positions, and how many these are."""
    seen = search(judge, starts, tokens, end)
    every = largest_of_all(judge, tokens) if time.monotonic() < end else None
    if every is None:
        return seen, 0
    at = np.maximum(seen.at, np.pad(every.at, (0, len(seen.at) - len(every.at))))
    return replace(every if every.nats > seen.nats else seen, at=at), len(every.at)


def _finite_weights(decoder: HookedDecoder) -> dict[str, Float[np.ndarray, "..."]]:
    """A decoder's weights in float64.

    Raises:
        ValueError: One is not finite.
    """
    weights = {name: value.double().numpy() for name, value in decoder.state_dict().items()}
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"states[{name!r}] holds NaN or infinite values, expected finite weights to certify"
            )
    return weights


def _given(run: Run, program: str | Rows | None) -> Program | None:
    """A program that is not read off the model."""
    if program is None or (isinstance(program, str) and program in READ_OFF):
        return None
    if isinstance(program, str):
        return from_source(program, run.source)
    return from_rows(program, run.source.n_states)


def _lags(run: Run, program: str | Rows | None, lags: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Returns the lags of the tables that are tried, one after the other while none is near.

    Raises:
        ValueError: They are not lags that the model can read, or the program has no such table.
    """
    whole = program is None or program in ("constant", "parent")
    if lags is None:
        own = _of_source(run) if whole else (1,)
        few = n_cases(run.source.n_states, own) <= MOST_OWN_CASES
        return [(1,), own] if len(own) > 1 and few else [(1,)]
    given, most = list_of("lags", lags, "numbers from 1 that begin with 1"), run.config.n_ctx
    whole_numbers = all(isinstance(lag, int) and not isinstance(lag, bool) for lag in given)
    if not whole_numbers or given[:1] != [1] or given != sorted(set(given)) or given[-1] > most:
        raise ValueError(f"lags is {shown(lags)}, expected ascending lags from 1 to {most} that begin with 1")
    if given != [1] and not whole:
        raise ValueError(
            f"program is {shown(program)}, which looks at the parent only: lags {shown(lags)} are for "
            "the programs constant and parent"
        )
    if n_cases(run.source.n_states, given) > MOST_CASES:
        raise ValueError(
            f"lags has {len(given)} entries, expected fewer: {run.source.n_states} states have more than "
            f"{MOST_CASES} cases there"
        )
    return [tuple(given)]


def _of_source(run: Run) -> tuple[int, ...]:
    """The lags that the source's next state depends on, with the parent's, where the model can read them."""
    source, known = run.source, run.config.n_ctx - run.objective.query
    order = source.order if isinstance(source, Stationary | Observed) else None
    if order is None or not 1 < order <= known:
        return (1,)
    return (1, order) if isinstance(source, Lagged) else tuple(range(1, order + 1))


def _bounds(
    model: _Model, objective: Objective, program: str | Rows | None, seconds: float
) -> tuple[list[Bounds], str | None]:
    """All bounds of a model that the program may need, and why there are none."""
    layer, contexts, softmax = model.layer, model.contexts, objective.kind == "cross_entropy"
    if (why := why_no_bounds(layer.config, contexts.n_states, softmax, objective.query)) is not None:
        return [], why
    if contexts.lags == (1,) and (program is None or program == "row"):
        by_counts = "a softmax reads the scores" if softmax else counted(layer, contexts)
        if isinstance(by_counts, Bounds):
            return [by_counts], None
        if program == "row":
            return [], f"no bound is known of counts times a row: {by_counts}"
    try:
        # Several layers take long, and may end with nothing: half is left for a search.
        budget = seconds / 2 if layer.config.n_layers > 1 else seconds
        return [bounds(layer, contexts, softmax, budget, model.last_scores)], None
    except (TimeoutError, ValueError) as error:
        return [], str(error)


def _why_no_options(given: Program | None) -> str:
    if given is None:
        return (
            "the model may hold a state impossible in one context and not in another: "
            "no table of the parent is near it"
        )
    return f"the predictor {given.name} sees more than the parent: no bound is known"


def _drawn(run: Run, contexts: Contexts) -> Histories:
    """Sequences of the source."""
    generator = torch.Generator().manual_seed(DRAW_SEED)
    states = run.source.sample_held_out(
        DRAWN, sequence_length(run.objective, run.config.n_ctx), generator=generator
    )
    return np.asarray(states[:, : contexts.reads[-1] + 1 - contexts.query].numpy())


def _by_samples(model: _Model, name: object) -> Program:
    """A program where no bound is known: read off the model's samples, or the nearest exact predictor."""
    run, contexts, drawn = model.run, model.contexts, model.drawn
    n, known = contexts.n_states, np.array(contexts.reads) - contexts.query
    predictors = [from_source(rule, run.source) for rule in run.source.predictors()]
    predicted = Judge(model.decoder, run.objective, contexts, predictors[0]).predictions(drawn)
    if name is None:
        return min(predictors, key=lambda one: float(kl(one.rule(drawn)[:, known], predicted).mean()))
    logs = np.log(np.maximum(predicted, FLOOR)).reshape(-1, n)
    of_drawn, table = cases(drawn, n, contexts.lags)[:, known].ravel(), np.full((contexts.n_cases, n), 1 / n)
    for case in range(contexts.n_cases):
        here = logs[of_drawn == case] if name == "parent" else logs
        if len(here):
            table[case] = middle(here[:, :, None] - here[:, None])
    return of_table(str(name), table, n if name == "constant" else table.size, contexts.lags)
