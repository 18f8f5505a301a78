"""What a bound of the worst case says of the mean: a bound that holds for the law, from samples of it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.certify.certificate import Certificate
from mechmarkov.certify.nats import MOST
from mechmarkov.certify.search import Judge
from mechmarkov.objectives import sequence_length
from mechmarkov.population import population_law
from mechmarkov.runs.run import Run
from mechmarkov.sources import Observed

DELTA: Final = 1e-6  # probability that the bound fails, over the draw of the sequences
SEQUENCES: Final = 512
SAMPLE_SEED: Final = 0x5EED0FF  # the sequences are not those that chose the program
MOST_ROWS: Final = 4096  # sequences over which the mean is summed exactly


@dataclass(frozen=True)
class Mean:
    """E[KL(program ‖ model)] under the source's law, or of the other direction (nats).

    It is a mean over the positions that are read.

    Attributes:
        sample: The mean over the sequences that were drawn; None where none can be.
        bound: The expectation is at most this with probability 1 - `DELTA`; None without a bound.
        sequences: How many were drawn.
        exact: The expectation, where a sum over few sequences gives it.
        why: Why there is no sample.
    """

    sample: float | None
    bound: float | None
    sequences: int
    exact: float | None
    why: str | None = None


def empirical_bernstein(values: Float[np.ndarray, " sample"], most: float, delta: float) -> float:
    """An upper bound of a mean from independent samples between 0 and `most`, with probability 1 - delta.

    `mean + sqrt(2 var log(2 / delta) / n) + 7 most log(2 / delta) / (3 (n - 1))`, the variance unbiased
    (Maurer & Pontil 2009, arXiv 0907.3740, theorem 4).

    Example:
        >>> round(empirical_bernstein(np.full(1001, 0.5), most=1.0, delta=1e-6), 4)
        0.5339
    """
    n, log = len(values), float(np.log(2 / delta))
    spread = np.sqrt(2 * values.var(ddof=1) * log / n)
    return float(values.mean() + spread + 7 * most * log / (3 * (n - 1)))


def mean_kl(run: Run, certificate: Certificate, step: int = -1, *, reverse: bool = False) -> Mean:
    """The mean of what a certificate bounds in the worst case.

    Args:
        run: The run.
        certificate: The one at that step. Its `worst_kl` bounds each sequence; without one that is what
            floored probabilities leave.
        step: The step of the run.
        reverse: Whether the mean is of KL(model ‖ program), of which the largest log(model / program) bounds
            each sequence. Where the program holds a state impossible there is no bound.
    """
    decoder, contexts = run.model(step), certificate.contexts
    judge = Judge(decoder, run.objective, contexts, certificate.program)
    exact = _exact(run, judge, reverse)
    if isinstance(run.source, Observed):
        return Mean(None, None, 0, exact, "the sequences were observed: none can be drawn from their law")
    generator = torch.Generator().manual_seed(SAMPLE_SEED)
    length = sequence_length(run.objective, run.config.n_ctx)
    states = run.source.sample(SEQUENCES, length, generator=generator)
    nats = judge.nats(states[:, : judge.length].numpy(), reverse=reverse).mean(1)
    most = MOST if certificate.worst_kl is None else certificate.worst_kl
    if reverse:
        most = np.inf if certificate.worst_log_ratio is None else certificate.worst_log_ratio[1]
    bound = empirical_bernstein(nats, most, DELTA) if np.isfinite(most) else None
    return Mean(float(nats.mean()), bound, SEQUENCES, exact)


def _exact(run: Run, judge: Judge, reverse: bool) -> float | None:
    """The expectation as a sum over all sequences, where few are enough."""
    try:
        states, weights = population_law(run.source, run.objective, run.config)
    except ValueError:
        return None
    if len(states) > MOST_ROWS:
        return None
    nats = judge.nats(states[:, : judge.length].numpy(), reverse=reverse)
    return float((nats * weights.numpy()).mean(1).sum())
