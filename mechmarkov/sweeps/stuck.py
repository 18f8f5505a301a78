"""Whether a model stayed at the unigram: its loss is nearer to the unigram's than to the bigram's.

Losses are excesses over the Bayes-optimal predictor's, as expected under it: `E KL(best ‖ model)` over fresh
sequences, which has no noise of the sampled next states. For a chain of first order the best predictor is the
bigram, and the line is half of `H(pi) - entropy rate`: what the unigram loses to it.
"""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from mechmarkov.probing.subject import Subject
from mechmarkov.sources.fixed_chain import FixedChain
from mechmarkov.theory.kernel import kl

SAME = 1e-9  # nats; float64 rounding of two equal losses is 1e-15


@dataclass(frozen=True)
class Stuck:
    """Whether a model is at the unigram.

    Attributes:
        value: None where there is no telling.
        reason: Why, then.
        excess: Its loss above the best predictor's, in nats.
        line: Half way between the unigram's and the bigram's, in nats.
    """

    value: bool | None
    reason: str | None = None
    excess: float | None = None
    line: float | None = None


def threshold(subject: Subject) -> float | str:
    """The excess loss half way between bigram and unigram, in nats; or one line why there is none."""
    source, best = subject.source, subject.source.best()
    if isinstance(best, str):
        return f"no exact loss to compare with: {best}"
    if isinstance(source, FixedChain):
        unigram, bigram = source.unigram_entropy - source.entropy_rate, 0.0
    else:
        prefix = "in_context_" if source.redraws else ""
        law, exact = subject.exact[best.name], subject.exact
        unigram, bigram = (float(np.mean(kl(law, exact[prefix + name]))) for name in ("unigram", "bigram"))
    if unigram - bigram < SAME:
        return "the unigram is as good as the bigram here"
    return (unigram + bigram) / 2


def stuck(data: xr.Dataset, line: float | str) -> Stuck:
    """Whether the one model of `behaviour`'s data is above the line.

    Example:
        >>> names = {"predictor": ["unigram", "bigram"]}
        >>> kl = xr.DataArray([[0.1, 0.3]], dims=("seed", "predictor"), coords=names)
        >>> stuck(xr.Dataset({"kl": kl}, attrs={"best": "bigram"}), 0.2).value
        True
    """
    if isinstance(line, str):
        return Stuck(None, line)
    excess = float(data["kl"].sel(predictor=data.attrs["best"])[-1])
    return Stuck(excess > line, None, excess, line)
