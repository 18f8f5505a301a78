"""One sentence of conclusion over many runs: on the page of a sweep, and on that of a benchmark."""

from collections.abc import Mapping, Sequence
from math import isnan

from mechmarkov.utils.text import clean, counted, format_number, words


def of_sweep(event: str, cells: Sequence[Sequence[bool | None]]) -> str:
    """Returns in how many runs and cells an event of the diagram happened.

    Args:
        event: Its name.
        cells: Whether, for each cell, it happened in each of its runs; None where that is undecided.

    Example:
        >>> of_sweep("learned", [[True, True], [True, False], [False, None]])
        'Learned in 3 of 6 runs (1 undecided): in every run of 1 cell, in none of 0 cells.'
    """
    runs = [run for cell in cells for run in cell]
    happened, open_ = runs.count(True), runs.count(None)
    undecided = f" ({open_} undecided)" if open_ else ""
    every = sum(all(run is True for run in cell) for cell in cells)
    none = sum(all(run is False for run in cell) for cell in cells)
    name = clean(words(event))
    return (
        f"{name[:1].upper()}{name[1:]} in {happened} of {counted(len(runs), 'run')}{undecided}: "
        f"in every run of {counted(every, 'cell')}, in none of {counted(none, 'cell')}."
    )


Interval = tuple[float, float, float]  # value, low, high; NaN ends where there are too few seeds
METRICS = {"kl": "KL from the clean output", "nats": "loss in nats", "logit-difference": "logit difference"}
ORDERED = {"rank": "order the effects of", "error": "state the effects of stopping at"}


def of_bench(
    *,
    metric: str,
    of: str,
    score: str,
    scores: Mapping[str, Interval],
    lead: Interval | None,
    cases: int,
) -> str:
    """Returns which method is first under a metric, or that it is open.

    Args:
        metric: The metric of the effects.
        of: What the methods claim.
        score: What they are ranked by.
        scores: The score of each method, the best first.
        lead: By how much the first is better than the second.
        cases: On how many cases.

    Example:
        >>> of_bench(metric="kl", of="edges", score="rank", scores={"a": (0.9, 0.8, 1.0), "b": (0.5, 0.4, 0.6)},
        ...     lead=(0.4, 0.3, 0.5), cases=7)
        'KL from the clean output: of 2 methods a is first to order the effects of edges, rank 0.9 (0.8 to 1); b has 0.5 (0.4 to 0.6), on 7 cases.'
        >>> of_bench(metric="kl", of="edges", score="rank", scores={"a": (0.9, 0.8, 1.0), "b": (0.8, 0.6, 1.0)},
        ...     lead=(0.1, -0.1, 0.3), cases=7)
        'KL from the clean output: of 2 methods it is open which is first to order the effects of edges: a has rank 0.9 (0.8 to 1), b 0.8 (0.6 to 1), on 7 cases.'
    """
    (first, best), *others = scores.items()
    name, value = others[0] if others else (first, best)
    second, its = clean(name), _estimate(value)
    begins = f"{METRICS[metric][:1].upper()}{METRICS[metric][1:]}: of {counted(len(scores), 'method')}"
    done, on = f"{ORDERED[score]} {of}", f"on {counted(cases, 'case')}"
    if lead is not None and lead[1] > 0:
        return f"{begins} {clean(first)} is first to {done}, {score} {_estimate(best)}; {second} has {its}, {on}."
    if lead is None:
        return f"{begins} only {clean(first)} is ranked to {done}: {score} {_estimate(best)}, {on}."
    both = f"{clean(first)} has {score} {_estimate(best)}, {second} {its}"
    return f"{begins} it is open which is first to {done}: {both}, {on}."


def bench_in_short(of: str, score: str, firsts: Mapping[str, str | None]) -> str:
    """Returns which method is first under each metric, in one sentence.

    Args:
        of: What the methods claim.
        score: What they are ranked by.
        firsts: For each metric the method that is first, None where that is open.

    Example:
        >>> bench_in_short("edges", "rank", {"logit-difference": "eap", "kl": "eap", "nats": None})
        'First to order the effects of edges: eap (logit difference, KL from the clean output); open for loss in nats.'
        >>> bench_in_short("nodes", "rank", {"kl": None})
        'First to order the effects of nodes: open for KL from the clean output.'
    """
    metrics: dict[str, list[str]] = {}
    for metric, name in firsts.items():
        if name is not None:
            metrics.setdefault(clean(name), []).append(METRICS[metric])
    told = [f"{name} ({', '.join(under)})" for name, under in metrics.items()]
    if left := [METRICS[metric] for metric, name in firsts.items() if name is None]:
        told.append(f"open for {' and '.join(left)}")
    return f"First to {ORDERED[score]} {of}: {'; '.join(told)}."


def _estimate(value: Interval) -> str:
    at, low, high = (format_number(x, 2) for x in value)
    return at if isnan(value[1]) else f"{at} ({low} to {high})"
