"""One draw of a case: what each method claims of it, what that costs, and how it scores."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechmarkov.bench.beliefs import score_claim
from mechmarkov.bench.case import Case
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.counterfactuals import Pairs
from mechmarkov.bench.degeneracy import score_coefficient
from mechmarkov.bench.faithfulness import score_circuits
from mechmarkov.bench.features import score_features
from mechmarkov.bench.method import BrokenPromiseError, Method, checked_claims, counted_passes
from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.patching import Effects, exact_effects
from mechmarkov.bench.scores import score_built, score_claims
from mechmarkov.bench.subspaces import score_subspace
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.text import error_line

EFFECTS = ("nodes", "edges", "layers")
# Of claims that are not numbers by component.
SCORERS: dict[str, Callable[[Case, Any], dict[str, float]]] = {
    "beliefs": score_claim,
    "subspaces": score_subspace,
    "features": score_features,
    "coefficients": score_coefficient,
}
# Columns of the tables of claims and of reasons.
CLAIMED = ["method", "metric", "case", "seed", "component", "claimed", "exact", "low", "high", "in_circuit"]
REASONS = ["method", "metric", "case", "seed", "broken", "reason"]


@dataclass(frozen=True)
class Draw:
    """A case drawn with a seed.

    Attributes:
        case: The name of the case.
        seed: What its sequences, and its chain or model, are drawn with.
        pairs: The kind of counterfactual.
    """

    case: str
    seed: int
    pairs: Pairs | str


@dataclass(frozen=True)
class Cell:
    """The answer of one method in one draw: plain rows of the tables of a `Benchmark`."""

    scores: list[dict[str, Any]] = field(default_factory=list)
    effects: list[list[Any]] = field(default_factory=list)
    reasons: list[list[Any]] = field(default_factory=list)

    @property
    def is_tabled(self) -> bool:
        """Returns whether its rows have the tables' columns: a file that was edited may have others."""
        tables = ((self.effects, CLAIMED), (self.reasons, REASONS))
        return all(len(row) == len(columns) for rows, columns in tables for row in rows)


@dataclass(frozen=True)
class _Answer:
    """A method's answer about a case, asked for one metric ("" for none), and what that cost."""

    metric: str
    claims: Any
    cost: dict[str, Any]
    scores: dict[str, float]
    reason: str = ""
    broken: bool = False


def cells(draw: Draw, methods: Iterable[Method]) -> Iterator[tuple[Method, Cell]]:
    """Each method with what it gave in a draw, as it comes; the exact effects are computed once."""
    case = CASES[draw.case](draw.seed, pairs=draw.pairs)
    exact = exact_effects(case)
    under = {metric: case.under(metric) for metric in METRICS}  # what one keeps serves all methods
    for method in methods:
        cell = Cell()
        key = {"method": method.name, "of": method.of, "case": draw.case, "seed": draw.seed}
        for answer in _answers(method, case):
            about = [method.name, answer.metric, draw.case, draw.seed]
            if answer.reason:
                cell.reasons.append([*about, answer.broken, answer.reason])
            cell.scores.extend([key | row | answer.cost for row in _scored(method, under, answer, exact)])
            if method.of in EFFECTS and answer.metric and not answer.reason:
                rows = _claimed(answer.claims, exact[method.of, answer.metric])
                cell.effects.extend([[*about, *row] for row in rows])
        yield method, cell


def _answers(method: Method, case: Case) -> Iterator[_Answer]:
    """One answer for each metric that a method claims in, and otherwise one."""
    for metric in (method.metrics if method.of in EFFECTS else ()) or ("",):
        asked = case.under(metric) if metric else replace(case)  # each pays for what a case keeps
        began, broken, reason, claims, declared = time.process_time(), False, "", None, None
        before = [(value, value.clone()) for value in _tensors(case)]
        with counted_passes() as passes, our_own_numbers():
            try:
                declared = method.declared(asked)
                claims = checked_claims(method, asked)
            except BrokenPromiseError as error:
                broken, reason = True, str(error)
            except (Exception, SystemExit) as error:  # of anybody's code: the run goes on
                if is_by_signal(error):
                    raise
                broken, reason = True, error_line(error)
        cost = {"seconds": time.process_time() - began, "passes": len(passes), "declared": declared}
        if isinstance(claims, str):
            reason = claims
        if declared is not None and len(passes) > declared:
            broken, reason = True, f"takes {len(passes)} forward passes, and declares at most {declared}"
        if _restored(case.model, before):
            broken, reason = True, "leaves weights or hooks of the model changed, or sequences or laws"
        scores: dict[str, float] = {}
        if method.of in SCORERS and not broken:
            try:
                scores = SCORERS[method.of](case, claims)
            except Exception as error:  # of anybody's claims
                if is_by_signal(error):
                    raise
                broken, reason = True, f"cannot be scored: {error_line(error)}"
        yield _Answer(metric, claims, cost, scores, reason, broken)


def _tensors(case: Case) -> Iterator[Tensor]:
    """The model's weights, and the sequences and laws that all methods are given."""
    yield from case.model.state_dict().values()
    for one in (case, case.tuning):
        held = {} if one is None else vars(one)
        yield from (value for value in held.values() if isinstance(value, Tensor))


def _restored(model: HookedDecoder, before: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Returns whether tensors are other than before or the model has hooks, and puts both back."""
    changed = [(value, was) for value, was in before if not torch.equal(value, was)]
    hooked = any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())
    with torch.no_grad():
        for value, was in changed:
            value.copy_(was)
    if hooked:
        model.reset_hooks()
    return bool(changed) or hooked


def _scored(
    method: Method,
    under: Mapping[str, Case],
    answer: _Answer,
    exact: Mapping[tuple[str, str], Effects],
) -> Iterator[dict[str, Any]]:
    """Rows of scores of one answer: under its own metric, and of the first also under those it is not in."""
    claims = answer.claims
    if method.of not in EFFECTS:
        yield {"metric": "", "own": True, **answer.scores}
        return
    first = answer.metric == (method.metrics or ("",))[0]
    for metric in METRICS:
        case, own = under[metric], metric == answer.metric
        if not own and (metric in method.metrics or not first):
            continue
        row: dict[str, Any] = {"metric": metric, "own": own}
        if not answer.reason:
            truth, sizes = exact[method.of, metric], not method.metrics
            row |= score_claims(claims, truth, metric=metric, own=own, sizes=sizes, empty=case.empty)
            if own or not method.metrics:
                row |= score_built(case, claims, method.of) if method.of != "layers" else {}
            if own and method.of == "edges" and not case.empty:
                row |= score_circuits(case, claims)
        yield row


def _claimed(claims: Mapping[str, float], truth: Effects) -> Iterator[tuple[Any, ...]]:
    for name, *row, inside in zip(
        truth.names, truth.value, truth.low, truth.high, truth.in_circuit, strict=True
    ):
        yield (name, claims[name], *map(float, row), bool(inside))
