"""One sentence of conclusion over many runs: on the page of a sweep, and on that of a benchmark."""

from collections.abc import Mapping, Sequence

from mechmarkov.utils.text import clean, counted, format_number, listed, words

FIRST = 2  # methods that the sentence names


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


def of_bench(metric: str, scores: Mapping[str, float]) -> str:
    """Returns which methods are first by a metric; "" where there are none.

    Args:
        metric: What the scores are, with its unit.
        scores: The score of each method, the larger the better.

    Example:
        >>> of_bench("correlation with exact effects in nats", {"a": 0.9, "b": 0.95, "c": 0.1})
        'By correlation with exact effects in nats the first of 3 methods are b (0.95) and a (0.9).'
    """
    if not scores:
        return ""
    order = sorted(scores, key=lambda name: -scores[name])[:FIRST]
    named = listed([f"{clean(name)} ({format_number(scores[name], 2)})" for name in order])
    are = "is" if len(order) == 1 else "are"
    return f"By {metric} the first of {counted(len(scores), 'method')} {are} {named}."
