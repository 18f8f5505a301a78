"""Do the data come from the declared source? Sequences against its law; a model surer than it is right."""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Predictor, Source
from mechmarkov.theory.bootstrap import standard_error
from mechmarkov.theory.kernel import FLOOR

FALSE_ALARMS = 1e-4  # how often a right source is doubted, over all pairs of states together
MIN_EVENTS = 30
MIN_GAP_NATS = 0.05
MIN_GAP_STANDARD_ERRORS = 5.0
MIN_RIGHT_SHARE = (
    0.99  # of how often the best law is right: below it a model of scores may be of another source
)


def unlikely_transition(source: Source, states: Int[np.ndarray, "batch position"]) -> str | None:
    """The transition that fits the source least, where it cannot be chance, in words.

    How often state b follows a is compared with what the source's best predictor says of each place where a
    stood. The difference is a sum of martingale differences, so near normal with the summed variance. Of
    chains that are redrawn for every sequence only the mean is judged.

    Args:
        source: What the sequences are said to come from.
        states: The sequences.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> turning = np.arange(40)[None, :] % 4
        >>> unlikely_transition(Circle(n_states=4, p=1.0), turning)
        >>> unlikely_transition(Circle(n_states=4, p=0.0), turning)
        'state 1 follows 0 10 times of 10, where the source never has it'
    """
    best = source.best()
    if not isinstance(best, Predictor):
        return None
    history, following = states[:, :-1], states[:, 1:]
    p = best.probabilities(history)
    pairs = source.n_states**2
    place = (history * source.n_states)[..., None] + np.arange(source.n_states)
    expected = np.bincount(place.ravel(), p.ravel(), pairs)
    variance = np.bincount(place.ravel(), (p * (1 - p)).ravel(), pairs)
    seen = np.bincount((history * source.n_states + following).ravel(), minlength=pairs)
    never = (seen > 0) & (expected < 1e-12 * np.maximum(seen, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(never, np.inf, np.where(variance > 0, np.abs(seen - expected) / np.sqrt(variance), 0.0))
    # The normal law is a poor one for a handful of events: a pair that is expected less often is left out.
    z[~never & (seen + expected < MIN_EVENTS)] = 0
    worst = int(z.argmax())
    if z[worst] <= -ndtri(FALSE_ALARMS / 2 / pairs):
        return None
    a, b = divmod(worst, source.n_states)
    times = int(seen.reshape(source.n_states, -1)[a].sum())
    usual = f"has it {expected[worst]:.1f} ± {variance[worst] ** 0.5:.1f} times"
    return (
        f"state {source.labels[b]} follows {source.labels[a]} {seen[worst]} times of {times}, "
        f"where the source {'never has it' if never[worst] else usual}"
    )


def overconfidence(subject: Subject) -> str | None:
    """Returns whether the last model expects far less loss of its predictions than it has, in words.

    A model that has learned these data is as right as it is sure. One of other data is sure and wrong, and so
    is one that has learned a few sequences by heart, or has large random weights: the start of a training
    is not asked. A loss on scores does not ask for probabilities, so that a model of it is doubted only if
    it is less often right than the best law.
    """
    if subject.run.recipe is not None and subject.coordinates[-1] == 0:
        return None
    predicted = subject.probabilities[-1]
    if subject.objective.kind != "cross_entropy" and _is_as_right(subject, predicted):
        return None
    log = np.log(np.maximum(predicted, FLOOR))
    taken = np.take_along_axis(log, subject.batch.targets.numpy()[..., None], -1)[..., 0]
    expected = -(predicted * log).sum(-1).mean(-1)
    gap = -taken.mean(-1) - expected  # [batch]
    # What is sure and wrong at some positions only is the source's law elsewhere: `behaviour` tells where.
    typical = float(np.median((-taken + (predicted * log).sum(-1)).mean(0)))
    least = max(MIN_GAP_NATS, MIN_GAP_STANDARD_ERRORS * float(standard_error(gap)))
    if typical < MIN_GAP_NATS or gap.mean() < least:
        return None
    return (
        f"predictions have an entropy of {expected.mean():.3f} nats and a loss of "
        f"{expected.mean() + gap.mean():.3f}: overconfident, overfitted or untrained"
    )


def _is_as_right(subject: Subject, predicted: Float[np.ndarray, "batch read state"]) -> bool:
    """Returns whether the likeliest states come as often as the best law's, in expectation."""
    best = subject.source.best()
    if isinstance(best, str):
        return False
    law = subject.exact[best.name]
    right = np.take_along_axis(law, predicted.argmax(-1)[..., None], -1).mean()
    return bool(right >= MIN_RIGHT_SHARE * law.max(-1).mean())
