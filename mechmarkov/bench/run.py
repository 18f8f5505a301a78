"""`mm.bench.run`: methods × metrics × cases × seeds, every claim next to its exact effect."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mechmarkov.bench.beliefs import score_claim
from mechmarkov.bench.case import Case
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.counterfactuals import PAIRS, Pairs
from mechmarkov.bench.degeneracy import score_coefficient
from mechmarkov.bench.faithfulness import score_circuits
from mechmarkov.bench.features import score_features
from mechmarkov.bench.method import (
    BrokenPromiseError,
    Method,
    checked_claims,
    counted_passes,
    load_method,
    registered,
)
from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.patching import Effects, exact_effects
from mechmarkov.bench.scores import SCORES, score_built, score_claims
from mechmarkov.bench.subspaces import score_subspace
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.utils.errors import integer_of, list_of
from mechmarkov.utils.text import error_line, shown
from mechmarkov.utils.threads import threads

COST = ("seconds", "passes", "declared")
MAX_SEEDS = 10_000
HELD_OUT = 1_000_000  # the first seed of the half that nothing is tuned or shown on
KEYS = ["method", "of", "metric", "own", "case", "seed"]
CLAIMED = ["method", "metric", "case", "seed", "component", "claimed", "exact", "low", "high", "in_circuit"]
REASONS = ["method", "metric", "case", "seed", "broken", "reason"]
EFFECTS = ("nodes", "edges", "layers")
# Of claims that are not numbers by component.
SCORERS: dict[str, Callable[[Case, Any], dict[str, float]]] = {
    "beliefs": score_claim,
    "subspaces": score_subspace,
    "features": score_features,
    "coefficients": score_coefficient,
}


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The measurements of the benchmark.

    Attributes:
        methods: Those that were asked, by name.
        pairs: The kind of counterfactual.
        scores: A row for each method, metric, case and seed: `method`, what its claims are `of`, the `metric`
            of the truth ("" where claims are not of effects), whether the claims are in its `own` metric,
            each of `SCORES`, processor `seconds`, forward `passes` and how many were `declared`; NaN where a
            score does not apply.
        effects: A row for each claim in a metric of its own: `method`, `metric`, `case`, `seed`, `component`,
            `claimed`, `exact` with `low` and `high`, and whether the component is `in_circuit`.
        reasons: A row for each case that a method says nothing of: `method`, `metric`, `case`, `seed`, the
            `reason`, and whether it is that the method has `broken` a promise.
    """

    methods: dict[str, Method]
    pairs: Pairs | str
    scores: pd.DataFrame
    effects: pd.DataFrame
    reasons: pd.DataFrame

    def table(self, score: str = "rank", metric: str = "logit-difference") -> pd.DataFrame:
        """The mean of a score over seeds under one metric, a row a method and a column a case.

        Raises:
            ValueError: There is no such score or metric.
        """
        for name, given, known in (
            ("score", score, (*SCORES, *COST)),
            ("metric", metric, ("", *METRICS)),
        ):
            if given not in known:
                raise ValueError(f"{name} is {given!r}, expected one of {', '.join(map(repr, known))}")
        rows = self.scores[self.scores["metric"].isin([metric, ""])]
        table = rows.pivot_table(score, "method", "case", sort=False, dropna=False, observed=False)
        return table.reindex([name for name in self.methods if name in table.index])


def run(
    methods: Sequence[str | Method] | None = None,
    cases: Sequence[str] | None = None,
    seeds: int = 3,
    *,
    pairs: Pairs | str = "minimal",
    held_out: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Benchmark:
    """Score methods against circuits whose effects are known.

    A method that breaks a promise (more passes than it declared, a claim that is not a number or about
    nothing, an exception) has a reason in place of scores, and the run goes on.

    Args:
        methods: Names of registered methods, or methods; by default all that are registered. One that is
            given twice is run once.
        cases: Names of cases, each run once; by default all (`mechmarkov.bench.CASES`).
        seeds: How many draws of each case.
        pairs: `"minimal"` or `"resampled"` counterfactuals.
        held_out: Whether to draw from the other half of the seeds, on which no method here was made or shown.
        progress: Told the name of each case before it is measured.

    Raises:
        TypeError: One name instead of a list.
        ValueError: An unknown method or case, two methods of one name, no seeds, or unknown pairs.
    """
    chosen, names = _methods(methods), _cases(cases)
    integer_of("seeds", seeds, least=1, most=MAX_SEEDS)
    if pairs not in PAIRS:
        raise ValueError(f"pairs is {pairs!r}, expected one of {', '.join(map(repr, PAIRS))}")
    first = HELD_OUT if held_out else 0
    scores: list[dict[str, Any]] = []
    effects: list[tuple[Any, ...]] = []
    reasons: list[tuple[Any, ...]] = []
    with threads(1):
        for name, seed in product(names, range(first, first + seeds)):
            if progress is not None:
                progress(name)
            case = CASES[name](seed, pairs=pairs)
            exact = exact_effects(case)
            under = {metric: case.under(metric) for metric in METRICS}  # what one keeps serves all methods
            for method in chosen.values():
                for answer in _answers(method, case):
                    key = {"method": method.name, "of": method.of, "case": name, "seed": seed}
                    if answer.reason:
                        row = (method.name, answer.metric, name, seed, answer.broken, answer.reason)
                        reasons.append(row)
                    for scored in _scored(method, under, answer, exact):
                        scores.append(key | scored | answer.cost)
                    if method.of in EFFECTS and answer.metric and not answer.reason:
                        truth = exact[method.of, answer.metric]
                        effects += _claimed(method.name, name, seed, answer, truth)
    columns = [*KEYS, *SCORES, *COST]
    return Benchmark(
        chosen,
        pairs,
        pd.DataFrame(scores, columns=columns),
        pd.DataFrame(effects, columns=CLAIMED),
        pd.DataFrame(reasons, columns=REASONS).astype({"broken": bool}),
    )


def check(method: Method, cases: Sequence[str] = ("direct", "split", "induction")) -> None:
    """Ask a method about some cases, and raise if it breaks a promise: what a submission is checked for.

    Raises:
        BrokenPromiseError: It broke one; the message says which, and in which case.
    """
    broken = run([method], cases, seeds=1).reasons.query("broken")
    if len(broken):
        first = broken.iloc[0]
        raise BrokenPromiseError(f"method {method.name!r} in case {first['case']!r}: {first['reason']}")


@dataclass(frozen=True)
class _Answer:
    """A method's answer about a case, asked for one metric ("" for none), and what that cost."""

    metric: str
    claims: Any
    cost: dict[str, Any]
    scores: dict[str, float]
    reason: str = ""
    broken: bool = False


def _answers(method: Method, case: Case) -> Iterator[_Answer]:
    """One answer for each metric that a method claims in, and otherwise one."""
    for metric in (method.metrics if method.of in EFFECTS else ()) or ("",):
        asked = case.under(metric) if metric else replace(case)  # each pays for what a case keeps
        began, broken, reason, claims, declared = time.process_time(), False, "", None, None
        weights = {key: value.clone() for key, value in case.model.state_dict().items()}
        with counted_passes() as passes:
            try:
                declared = method.declared(asked)
                claims = checked_claims(method, asked)
            except BrokenPromiseError as error:
                broken, reason = True, str(error)
            except Exception as error:  # of anybody's code: the run goes on
                broken, reason = True, f"{type(error).__name__}: {error_line(error)}"
        cost = {"seconds": time.process_time() - began, "passes": len(passes), "declared": declared}
        if isinstance(claims, str):
            reason = claims
        if declared is not None and len(passes) > declared:
            broken, reason = True, f"takes {len(passes)} forward passes, and declares at most {declared}"
        if _restored(case.model, weights):
            broken, reason = True, "leaves weights or hooks of the model changed"
        scores: dict[str, float] = {}
        if method.of in SCORERS and not broken:
            try:
                scores = SCORERS[method.of](case, claims)
            except Exception as error:  # of anybody's claims
                broken, reason = True, f"cannot be scored: {type(error).__name__}: {error_line(error)}"
        yield _Answer(metric, claims, cost, scores, reason, broken)


def _restored(model: HookedDecoder, weights: Mapping[str, Tensor]) -> bool:
    """Returns whether a model had other weights or any hooks, and takes them away."""
    changed = any(not torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    hooked = any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())
    if changed:
        model.load_state_dict(weights)
    if hooked:
        model.reset_hooks()
    return changed or hooked


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
            row |= score_claims(claims, exact[method.of, metric], metric=metric, own=own, empty=case.empty)
            if own or not method.metrics:
                row |= score_built(case, claims, method.of) if method.of != "layers" else {}
            if own and method.of == "edges" and not case.empty:
                row |= score_circuits(case, claims)
        yield row


def _claimed(method: str, case: str, seed: int, answer: _Answer, truth: Effects) -> Iterator[tuple[Any, ...]]:
    for row in zip(truth.names, truth.value, truth.low, truth.high, truth.in_circuit, strict=True):
        yield (method, answer.metric, case, seed, row[0], answer.claims[row[0]], *row[1:])


def _methods(given: Sequence[str | Method] | None) -> dict[str, Method]:
    """Methods by their names, each once."""
    if isinstance(given, str):
        raise TypeError(f"methods is {given!r}, expected a list of names: [{given!r}]")
    asked = registered() if given is None else list_of("methods", given, "a list of names")
    for each in asked:
        if not isinstance(each, str | Method):
            raise TypeError(f"methods has {shown(each)}, expected names or methods")
    loaded = dict.fromkeys(load_method(each) if isinstance(each, str) else each for each in asked)
    names = [method.name for method in loaded]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two methods are named {name!r}, expected different names")
    return {method.name: method for method in loaded}


def _cases(given: Sequence[str] | None) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"cases is {given!r}, expected a list of names: [{given!r}]")
    names = list(CASES) if given is None else list_of("cases", given, "a list of names")
    for name in names:
        if not isinstance(name, str) or name not in CASES:
            raise ValueError(f"no case is named {shown(name)}; there are {', '.join(CASES)}")
    return list(dict.fromkeys(names))
