"""`mm.bench.run`: methods × cases × seeds, every claim next to its exact effect."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from mechmarkov.bench.beliefs import score_claim
from mechmarkov.bench.case import Case
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.degeneracy import score_coefficient
from mechmarkov.bench.features import score_features
from mechmarkov.bench.method import Method, checked_claims, load_method, registered
from mechmarkov.bench.patching import exact_effects
from mechmarkov.bench.scores import SCORES, score_circuits, score_claims
from mechmarkov.bench.subspaces import score_subspace
from mechmarkov.theory.bootstrap import interval
from mechmarkov.utils.errors import integer_of, list_of
from mechmarkov.utils.threads import threads

COST = ("seconds", "passes")
MAX_SEEDS = 10_000
MIN_SEEDS = 3  # of an interval over them
DIGITS = 9  # of scores that are ranked: what differs by less is rounding
COLUMNS = ["method", "case", "seed", "component", "claimed", "exact", "low", "high", "in_circuit"]
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
        scores: Each of `SCORES`, processor `seconds` and forward `passes`, `[method_name, case, seed]`; NaN
            where a score does not apply.
        effects: A row for each claim: `method`, `case`, `seed`, `component`, `claimed`, `exact` with `low`
            and `high`, and whether the component is `in_circuit`.
        reasons: A row for each case that a method says nothing of: `method`, `case`, `seed`, `reason`.
    """

    scores: xr.Dataset
    effects: pd.DataFrame
    reasons: pd.DataFrame

    def table(self, score: str = "pearson") -> pd.DataFrame:
        """The mean of a score over seeds, a row a method and a column a case.

        Raises:
            ValueError: There is no such score.
        """
        if score not in self.scores:
            raise ValueError(f"score is {score!r}, expected one of {', '.join(map(str, self.scores))}")
        return self.scores[score].mean("seed").to_pandas()

    def summary(self) -> pd.DataFrame:
        """For each method its mean scores over the cases where they apply, and what a case costs."""
        return self.scores.mean("seed").mean("case").to_dataframe()[[*SCORES, *COST]]

    def ranks(self) -> pd.DataFrame:
        """Returns where methods stand by AUROC and by correlation with exact effects, all on the same cases.

        These are the cases that every ranked method answers in every draw. A method that answers fewer than
        half of those that any answers is not ranked.

        Returns:
            `auroc` and `pearson`, means over the cases; `cases`, how many these are; their ranks, 1 the best;
            and `moves`, how many places correlation puts a method above its place by AUROC: counted in each
            seed, so that the mean may differ from that of the pooled ranks, with its 95 % interval over
            seeds, which is NaN for fewer than three. Methods that claim effects of nodes and of edges are
            ranked apart; without either it is empty.
        """
        scores, tables = self.scores[["auroc", "pearson"]], []
        answered = scores.notnull().to_array().all(("variable", "seed"))  # method_name, case
        for of in np.unique(scores["of"].values):
            some = answered.isel(method_name=scores["of"].values == of)
            counts = some.sum("case")
            some = some.isel(method_name=(counts > 0) & (2 * counts >= some.any("method_name").sum()))
            if not some.sizes["method_name"] or not (shared := some.all("method_name")).any():
                continue
            by_seed = scores.sel(method_name=some["method_name"], case=shared).mean("case")
            means = by_seed.mean("seed").to_dataframe()[list(scores)]
            ranks: dict[str, Any] = {f"{name}_rank": _rank(means[name]) for name in scores}
            moves = _rank(by_seed["auroc"]) - _rank(by_seed["pearson"])
            low, high = interval(moves) if moves.shape[-1] >= MIN_SEEDS else (np.nan, np.nan)
            ranks |= {"moves": moves.mean(-1), "low": low, "high": high}
            tables.append(means.assign(**ranks, of=of, cases=int(shared.sum())))
        return pd.concat(tables) if tables else pd.DataFrame(columns=["of", "moves"])


def _rank(values: ArrayLike) -> np.ndarray:
    """Places along the first axis, 1 for the largest; methods that tie share the mean of their places."""
    return np.asarray(rankdata(-np.round(np.asarray(values), DIGITS), axis=0))


def run(
    methods: Sequence[str | Method] | None = None,
    cases: Sequence[str] | None = None,
    seeds: int = 8,
    *,
    progress: Callable[[str], None] | None = None,
) -> Benchmark:
    """Score methods against circuits whose effects are known.

    Args:
        methods: Names of registered methods, or methods; by default all that are registered. One that is
            given twice is run once.
        cases: Names of cases, each run once; by default all (`mechmarkov.bench.CASES`).
        seeds: How many draws of each case.
        progress: Told the name of each case before it is measured.

    Raises:
        TypeError: One name instead of a list.
        ValueError: An unknown method or case, two methods of one name, no seeds, or claims that are not one
            finite number for each component or of another shape; the message names the method.
    """
    for name, given in (("methods", methods), ("cases", cases)):
        if isinstance(given, str):
            raise TypeError(f"{name} is {given!r}, expected a list of names: [{given!r}]")
        if given is not None:
            list_of(name, given, "a list of names")
    integer_of("seeds", seeds, least=1, most=MAX_SEEDS)
    loaded = [load_method(each) if isinstance(each, str) else each for each in methods or registered()]
    chosen = list(dict.fromkeys(loaded))
    called = [method.name for method in chosen]
    for name in called:
        if called.count(name) > 1:
            raise ValueError(f"two methods are named {name!r}, expected different names")
    names = list(CASES if cases is None else dict.fromkeys(cases))
    for name in names:
        if name not in CASES:
            raise ValueError(f"no case is named {name!r}; there are {', '.join(CASES)}")
    scores = np.full((len(SCORES) + len(COST), len(chosen), len(names), seeds), np.nan)
    rows: list[tuple[Any, ...]] = []
    reasons: list[tuple[str, str, int, str]] = []
    with threads(1):
        for (c, name), seed in product(enumerate(names), range(seeds)):
            if progress is not None:
                progress(name)
            case = CASES[name](seed)
            exact = exact_effects(case)
            for m, method in enumerate(chosen):
                claims, cost = _asked(method, case)
                scored = dict.fromkeys(SCORES, np.nan)
                if isinstance(claims, str):
                    reasons.append((method.name, name, seed, claims))
                if method.of in SCORERS:
                    scored |= SCORERS[method.of](case, claims)
                elif not isinstance(claims, str):
                    truth, in_nats = exact[method.of], method.unit == "nats"
                    scored |= score_claims(claims, truth, in_nats=in_nats, empty=case.empty)
                    if method.of == "edges" and not case.empty:
                        scored |= score_circuits(case, claims, truth, in_nats=in_nats)
                    values = zip(truth.value, truth.low, truth.high, truth.in_circuit, strict=True)
                    keys = [(method.name, name, seed, part, claims[part]) for part in truth.names]
                    rows += [(*claim, *value) for claim, value in zip(keys, values, strict=True)]
                scores[:, m, c, seed] = [*scored.values(), *cost]
    dims = ("method_name", "case", "seed")  # `method` is an argument of xarray's `sel`
    data = xr.Dataset(
        {name: (dims, scores[i]) for i, name in enumerate((*SCORES, *COST))},
        coords={
            "method_name": called,
            "case": names,
            "seed": range(seeds),
            "of": ("method_name", [method.of for method in chosen]),
        },
    )
    silent = pd.DataFrame(reasons, columns=["method", "case", "seed", "reason"])
    return Benchmark(data, pd.DataFrame(rows, columns=COLUMNS), silent)


def _asked(method: Method, case: Case) -> tuple[Any, tuple[float, int]]:
    """A method's claims or its reason to make none, their processor seconds and forward passes."""
    case, passes = replace(case), []  # what a case keeps would make the first method that asks pay for all
    handle = case.model.register_forward_pre_hook(lambda *_: passes.append(1))
    began = time.process_time()
    try:
        claims = checked_claims(method, case)
    finally:
        handle.remove()
    return claims, (time.process_time() - began, len(passes))
