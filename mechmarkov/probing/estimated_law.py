"""Where the law of a source is an estimate: its error in the intervals of scores, by the block bootstrap."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from mechmarkov.probing.score import Score
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Observed
from mechmarkov.utils.text import format_number

Scores = dict[str, Score]


def law_in_words(source: Observed, draws: int) -> str:
    """Returns what a reader must know of scores that compare with an estimated law, as one sentence.

    Args:
        source: The source whose law was estimated.
        draws: Over how many bootstrap draws its error is in the intervals; 0 where it is left out.
    """
    blocks = int(source.training_blocks.sum())
    error = f"include its error, over {draws} draws of the blocks" if draws else "leave out its error"
    return (
        f"the law is an estimate from {blocks} blocks of observed sequences; the intervals of scores {error}"
    )


def with_law_error(
    scores: Scores, subject: Subject, source: Observed, ask: Callable[[Subject], Scores], draws: int
) -> Scores:
    """Scores whose intervals hold the error of the law that they compare with.

    The law is estimated again from blocks drawn with replacement, and the probe is put to the same models and
    sequences with each of these laws. The variance over draws is added to that of the interval, on both
    sides, and the interval reaches as far as without the bias that the draws show. Order and smoothing stay
    as they are, so their choice is not in the error. A probe whose scores the first draw does not change does
    not use the law.

    Args:
        scores: The scores of the law itself.
        subject: What they were measured on.
        source: Its source.
        ask: The probe's scores on a subject.
        draws: How many, at least 2.
    """
    drawn: list[Scores] = []
    for seed in range(draws):
        other = replace(subject, run=replace(subject.run, source=source.resampled(seed)))
        other._recorded = subject._recorded  # what models make of tokens does not depend on the law
        drawn.append(ask(other))
        if _values(drawn[0]) == _values(scores):
            return scores
    return {
        name: _widened(score, [one[name] for one in drawn if name in one]) for name, score in scores.items()
    }


def _values(scores: Scores) -> dict[str, object]:
    return {name: score.value for name, score in scores.items()}


def _widened(score: Score, drawn: Sequence[Score]) -> Score:
    value, values = score.value, [one.value for one in drawn]
    if isinstance(value, (str, bool, int)):
        same = sum(one == value for one in values)
        return replace(score, law=f"estimated: the same in {same} of {len(values)} draws")
    numbers = [float(one) for one in values if isinstance(one, (int, float))]
    if value is None or len(numbers) < 2:
        return replace(score, law="estimated")
    error = float(stdtrit(len(numbers) - 1, 0.975) * np.std(numbers, ddof=1))
    if error == 0:  # one score of several that does not compare with the law
        return score
    low, high = score.interval or (value, value)
    ends = (value - np.hypot(value - low, error), value + np.hypot(high - value, error))
    # A distance from an estimated law is larger than from the law itself, and from one that was estimated
    # again larger by about as much once more: the interval reaches around both values.
    bias = float(np.mean(numbers)) - value
    ends = (min(ends[0], ends[0] - bias), max(ends[1], ends[1] - bias))
    if low >= 0:  # of a quantity that is not negative; one that may be has its interval across 0 or below
        ends = (max(0.0, ends[0]), ends[1])
    if score.unit == "probability":
        ends = (ends[0], min(1.0, ends[1]))
    law = f"estimated: ± {format_number(error)} over {len(numbers)} draws"
    law += f", which show a bias of {format_number(bias)}" * (abs(bias) > error / 2)
    return replace(score, interval=(float(ends[0]), float(ends[1])), law=law)
