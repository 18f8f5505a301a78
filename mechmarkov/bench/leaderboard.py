"""Who is first: places under each metric with intervals over seeds, and the file that says so.

`python -m mechmarkov.bench.leaderboard > mechmarkov/bench/leaderboard.schema.json` writes its schema again.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.run import COST, Benchmark
from mechmarkov.bench.scores import SCORES
from mechmarkov.report.schema import object_of
from mechmarkov.theory.bootstrap import interval

SCHEMA_VERSION = 1
MIN_SEEDS = 3  # of an interval over them
# What methods are ranked by, and whether more of it is better. Every claim is scored by its order.
RANKED_BY = {"nodes": ("rank", True), "edges": ("rank", True), "layers": ("error", False)}
# The others are of what a model was set by hand for, and of cases in which nothing has an effect.
RANKED_ON_SHARED = [name for name in SCORES if name not in ("built", "alarms")]


@dataclass(frozen=True)
class Estimate:
    """A mean over cases and seeds, with its 95 % bootstrap interval over seeds.

    Attributes:
        value: The mean.
        low: The lower end of the interval; NaN for fewer than three seeds.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, seeds: np.ndarray) -> "Estimate":
        """The estimate of values, one a seed."""
        low, high = interval(seeds) if len(seeds) >= MIN_SEEDS else (np.nan, np.nan)
        return cls(float(seeds.mean()), float(low), float(high))


@dataclass(frozen=True)
class Placed:
    """The places of the methods that claim one kind of component under one metric.

    Attributes:
        metric: The metric of the truth.
        of: What the methods claim.
        score: What they are ranked by.
        cases: The cases that every ranked method answers in every draw.
        methods: The ranked methods and their scores, the best first.
        lead: By how much the first is better than the second, by seed; None for fewer than two.
    """

    metric: str
    of: str
    score: str
    cases: tuple[str, ...]
    methods: dict[str, Estimate]
    lead: Estimate | None

    @property
    def is_open(self) -> bool:
        """Returns whether it is open which is first: the lead has 0 in its interval, or no interval."""
        return self.lead is None or not self.lead.low > 0


def places(benchmark: Benchmark) -> Iterator[Placed]:
    """The ranks of methods under each metric, all of one kind on the same cases.

    References are not ranked, and no method that answers fewer than half of the cases that any answers.
    """
    references = [name for name, method in benchmark.methods.items() if method.reference]
    rows = benchmark.scores[~benchmark.scores["method"].isin(references)]
    for metric in METRICS:
        for of, (score, more) in RANKED_BY.items():
            some = rows[(rows["metric"] == metric) & (rows["of"] == of)]
            table = some.pivot_table(score, ["case", "seed"], "method", dropna=False, observed=False)
            answered = table.notna().groupby(level="case").all()  # case, method
            counts = answered.sum()
            enough = (counts > 0) & (2 * counts >= answered.any(axis=1).sum())
            ranked = [name for name in benchmark.methods if enough.get(name, False)]
            shared = answered.index[answered[ranked].all(axis=1)]
            if not ranked or not len(shared):
                continue
            seeds = table.loc[list(shared), ranked].groupby(level="seed").mean()
            order = seeds.mean().sort_values(ascending=not more, kind="stable").index
            lead = None
            if len(order) > 1:
                first, second = (seeds[name].to_numpy() for name in order[:2])
                lead = Estimate.of(first - second if more else second - first)
            found = {str(name): Estimate.of(seeds[name].to_numpy()) for name in order}
            yield Placed(metric, of, score, tuple(map(str, shared)), found, lead)


def summary(benchmark: Benchmark) -> pd.DataFrame:
    """The mean of each score over cases, a row a method, metric and kind of claim.

    Scores of ranked methods and of references are over the cases that they are ranked on, so that a table's
    rows compare. `built` and `alarms`, those of other methods and of other claims are over the cases where
    they apply. What a claim costs is a mean over the draws that it has a score in. `cases` says how many
    cases the score has that methods of this kind are ranked by.
    """
    keys = ["of", "metric", "method", "own"]
    scored = benchmark.scores[[*SCORES]].notna().any(axis=1)
    costs = benchmark.scores[[*COST]].astype(float).where(scored)
    by_case = benchmark.scores.assign(**costs).groupby([*keys, "case"], sort=False)[[*SCORES, *COST]].mean()
    of, metric, method, _, case = (by_case.index.get_level_values(level) for level in range(5))
    references = {name for name, each in benchmark.methods.items() if each.reference}
    for each in places(benchmark):
        same = (of == each.of) & (metric == each.metric) & method.isin(references.union(each.methods))
        by_case.loc[same & ~case.isin(each.cases), [*RANKED_ON_SHARED]] = np.nan
    groups = by_case.groupby(keys, sort=False)
    counts = groups.count()
    ranked_by = [RANKED_BY[key[0]][0] if key[0] in RANKED_BY else None for key in counts.index]
    cases = [
        math.nan if score is None else row[score]
        for score, (_, row) in zip(ranked_by, counts.iterrows(), strict=True)
    ]
    return groups.mean().assign(cases=cases)


def leaderboard(benchmark: Benchmark) -> dict[str, Any]:
    """Returns what `leaderboard.json` has, by `leaderboard_schema`."""
    placed = [*places(benchmark)]
    rows = []
    for (of, metric, name, own), means in summary(benchmark).iterrows():
        method = benchmark.methods[name]
        some = benchmark.reasons[benchmark.reasons["method"] == name]
        row = {
            "method": name,
            "of": of,
            "metric": metric,
            "claims_in": list(method.metrics),
            "own": bool(own),
            "reference": method.reference,
            "cites": method.cites,
            "tunes": method.tunes,
            "cost": {key: _number(means[key]) for key in COST},
            "scores": {key: _number(means[key]) for key in SCORES if not math.isnan(means[key])},
            "broken": sorted(set(some[some["broken"]]["reason"])),
        }
        for each in placed:
            if (each.metric, each.of) == (metric, of) and name in each.methods:
                row["place"] = [*each.methods].index(name) + 1
                row[each.score] = _interval(each.methods[name])
        rows.append(row)
    firsts = [
        {
            "metric": each.metric,
            "of": each.of,
            "score": each.score,
            "first": next(iter(each.methods)),
            "lead": None if each.lead is None else _interval(each.lead),
            "open": each.is_open,
            "cases": list(each.cases),
        }
        for each in placed
    ]
    return {
        "schema": SCHEMA_VERSION,
        "mechmarkov": version("mechmarkov"),
        "pairs": benchmark.pairs,
        "seeds": int(benchmark.scores["seed"].nunique()),
        "cases": sorted(set(benchmark.scores["case"])),
        "firsts": firsts,
        "rows": rows,
    }


def _number(value: float) -> float | None:
    return None if not math.isfinite(value) else float(value)


def _interval(estimate: Estimate) -> dict[str, float | None]:
    return {name: _number(getattr(estimate, name)) for name in ("value", "low", "high")}


def leaderboard_schema() -> dict[str, Any]:
    """Returns the schema (JSON Schema 2020-12) of `leaderboard.json`."""
    text, number = {"type": "string"}, {"type": ["number", "null"]}
    texts = {"type": "array", "items": text}
    estimate = object_of(dict.fromkeys(("value", "low", "high"), number))
    by_name = {"type": "object", "additionalProperties": number}
    flag, of = {"type": "boolean"}, {"type": "string"}
    row = object_of(
        {"method": text, "of": of, "metric": {"enum": ["", *METRICS]}, "claims_in": texts, "own": flag}
        | {"reference": flag, "cites": text, "tunes": text, "broken": texts}
        | {"cost": object_of(dict.fromkeys(COST, number)), "scores": by_name},
        {"place": {"type": "integer", "minimum": 1}, "rank": estimate, "error": estimate},
    )
    first = object_of(
        {"metric": {"enum": [*METRICS]}, "of": {"enum": [*RANKED_BY]}, "score": text, "first": text}
        | {"lead": {"anyOf": [estimate, {"type": "null"}]}, "open": flag, "cases": texts}
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://mechmarkov.github.io/schema/leaderboard-{SCHEMA_VERSION}.json",
        "title": "What the benchmark of methods found",
        "description": "Scores: " + " ".join(f"{name}: {words}." for name, (_, _, words) in SCORES.items()),
        **object_of(
            {
                "schema": {"const": SCHEMA_VERSION},
                "mechmarkov": text,
                "pairs": {"enum": ["minimal", "resampled"]},
                "seeds": {"type": "integer", "minimum": 1},
                "cases": texts,
                "firsts": {"type": "array", "items": first},
                "rows": {"type": "array", "items": row},
            }
        ),
    }


if __name__ == "__main__":
    print(json.dumps(leaderboard_schema(), indent=1, ensure_ascii=False))
