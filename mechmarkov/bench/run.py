"""`mm.bench.run`: methods × metrics × cases × seeds, every claim next to its exact effect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd

from mechmarkov.bench.cases import CASES
from mechmarkov.bench.counterfactuals import Pairs, check_pairs
from mechmarkov.bench.draws import CLAIMED, REASONS, Draw
from mechmarkov.bench.engines import measured
from mechmarkov.bench.kept_cells import KeptCells
from mechmarkov.bench.method import BrokenPromiseError, Method, load_method, registered
from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.scores import SCORES
from mechmarkov.sweeps.engines import Cluster
from mechmarkov.utils.errors import choice_of, integer_of, list_of
from mechmarkov.utils.forked import can_fork
from mechmarkov.utils.text import did_you_mean, shown

COST = ("seconds", "passes", "declared")
MAX_SEEDS = 10_000
HELD_OUT = 1_000_000  # the first seed of the half that nothing is tuned or shown on
KEYS = ["method", "of", "metric", "own", "case", "seed"]
CELLS = "cells"  # of a run's folder


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
        choice_of("score", score, (*SCORES, *COST))
        choice_of("metric", metric, ("", *METRICS))
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
    jobs: int = 1,
    cluster: Cluster | None = None,
    out: str | Path | None = None,
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
        jobs: How many processes measure, on Linux.
        cluster: Where to measure instead (`mm.Cluster`); its nodes need the same version of this library.
        out: A folder in which what each method gave is kept as it comes, in `cells/`. The same call goes on
            from there after an interruption, and one with more seeds or methods measures only these.
        progress: Told the name of the case for each of its draws that is done.

    Raises:
        TypeError: One name instead of a list, or a `cluster` that is not an `mm.Cluster`.
        ValueError: An unknown method or case, two methods of one name, no seeds, unknown pairs, or more jobs
            than this system allows.
        RuntimeError: A process was killed, or a task of a cluster was lost for good.

    Example:
        >>> import mechmarkov as mm
        >>> benchmark = mm.bench.run(["difference-norm"], cases=["direct"], seeds=1)
        >>> benchmark.table("rank", "logit-difference").shape  # a method, a case
        (1, 1)
    """
    chosen, names = _methods(methods), _cases(cases)
    integer_of("seeds", seeds, least=1, most=MAX_SEEDS)
    check_pairs(pairs)
    _check_engine(jobs, cluster)
    first = HELD_OUT if held_out else 0
    draws = [Draw(name, seed, pairs) for name, seed in product(names, range(first, first + seeds))]
    kept = None if out is None else KeptCells(Path(out) / CELLS)
    by_draw = measured(draws, list(chosen.values()), kept, jobs=jobs, cluster=cluster, progress=progress)
    cells = [by_draw[draw][name] for draw in draws for name in chosen]
    return Benchmark(
        chosen,
        pairs,
        pd.DataFrame([row for cell in cells for row in cell.scores], columns=[*KEYS, *SCORES, *COST]),
        pd.DataFrame([row for cell in cells for row in cell.effects], columns=CLAIMED),
        pd.DataFrame([row for cell in cells for row in cell.reasons], columns=REASONS).astype(
            {"broken": bool}
        ),
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


def _check_engine(jobs: int, cluster: Cluster | None) -> None:
    if cluster is not None and not isinstance(cluster, Cluster):
        raise TypeError(f"cluster is {shown(cluster)}, expected mm.Cluster(address)")
    if integer_of("jobs", jobs, least=1) > 1 and (cluster is not None or not can_fork()):
        why = "with a cluster" if cluster is not None else "on this system"
        raise ValueError(f"jobs is {jobs}, expected 1 {why}")


def _methods(given: Sequence[str | Method] | None) -> dict[str, Method]:
    """Methods by their names, each once."""
    if isinstance(given, str):
        raise TypeError(f"methods is {shown(given)}, expected a list of names: [{shown(given)}]")
    asked = registered() if given is None else list_of("methods", given, "a list of names")
    for each in asked:
        if not isinstance(each, str | Method):
            raise TypeError(f"methods has {shown(each)}, expected names or methods")
    loaded = dict.fromkeys(load_method(each) if isinstance(each, str) else each for each in asked)
    names = [method.name for method in loaded]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two methods are named {shown(name)}, expected different names")
    return {method.name: method for method in loaded}


def _cases(given: Sequence[str] | None) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"cases is {shown(given)}, expected a list of names: [{shown(given)}]")
    names = list(CASES) if given is None else list_of("cases", given, "a list of names")
    for name in names:
        if not isinstance(name, str) or name not in CASES:
            there = f"{', '.join(CASES)}{did_you_mean(name, CASES)}"
            raise ValueError(f"no case is named {shown(name)}; there are {there}")
    return list(dict.fromkeys(names))
