"""Whether a model is stuck: it has less than half of the best predictor's gain over the unigram.

It need not be at the unigram: a model that predicts something else is as stuck.

Losses are expected ones, `E KL(best ‖ model)` over fresh sequences, which have no noise of the sampled next
states. For a chain of first order the best predictor is the bigram, and the line is half of
`H(pi) - entropy rate`: above it a model's loss is nearer to the unigram's than to the bigram's. Where a
source redraws its chain, the unigram is the in-context one. Where its best predictor has no closed form, the
bigram (in context) stands in for it, and losses are those of the sampled next states.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from mechmarkov.probing.subject import Subject
from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.theory.kernel import FLOOR, kl

MIN_GAIN_NATS = 1e-9  # float64 rounding of two equal losses is 1e-15


@dataclass(frozen=True)
class Line:
    """Between the unigram and the predictor to be learned.

    Attributes:
        predictor: The predictor to be learned.
        expected: Whether losses are expected ones; else those of the sampled next states.
        loss: The predictor's loss (nats): 0 for expected losses, which are counted from it.
        half: Half of its gain over the unigram (nats).
    """

    predictor: str
    expected: bool
    loss: float
    half: float


@dataclass(frozen=True)
class Stuck:
    """The verdict whether a model has less than half of the gain over the unigram.

    Attributes:
        value: Whether it is stuck; None where that cannot be decided.
        reason: Why it cannot be decided.
        excess: The loss above that of the predictor to be learned (nats).
        line: The loss above which it is stuck (nats).
    """

    value: bool | None
    reason: str | None = None
    excess: float | None = None
    line: float | None = None


def line_of(subject: Subject) -> Line | str:
    """The line between the unigram and the best predictor; or, in one line, why there is none."""
    source, best, exact = subject.source, subject.source.best(), subject.exact
    prefix = "in_context_" if source.redraws else ""
    if f"{prefix}unigram" not in exact:
        return "the source knows no unigram"
    unigram = exact[f"{prefix}unigram"]
    if isinstance(best, str):
        targets = subject.batch.targets.numpy()[..., None]

        def loss(law: np.ndarray) -> float:
            return float(-np.log(np.maximum(np.take_along_axis(law, targets, -1), FLOOR)).mean())

        goal = loss(exact[f"{prefix}bigram"])
        line = Line(f"{prefix}bigram", False, goal, (loss(unigram) - goal) / 2)
    elif isinstance(source, FixedChain):
        line = Line(best.name, True, 0.0, (source.unigram_entropy - source.entropy_rate) / 2)
    else:
        line = Line(best.name, True, 0.0, float(np.mean(kl(exact[best.name], unigram))) / 2)
    if line.half < MIN_GAIN_NATS:
        return f"the unigram is as good as the {line.predictor.replace('_', ' ')} here"
    return line


def stuck(data: xr.Dataset, line: Line | str) -> Stuck:
    """Returns whether the one model of `behaviour`'s data is above the line.

    Example:
        >>> names = {"predictor": ["unigram", "bigram"]}
        >>> kl = xr.DataArray([[0.1, 0.3]], dims=("seed", "predictor"), coords=names)
        >>> stuck(xr.Dataset({"kl": kl}), Line("bigram", True, 0.0, 0.2)).value
        True
    """
    if isinstance(line, str):
        return Stuck(None, line)
    lost = data["kl"].sel(predictor=line.predictor) if line.expected else data["loss"] - line.loss
    excess = float(lost[-1])
    return Stuck(excess > line.half, None, excess, line.half)
