"""The sampling error of a measurement: what its models were trained on, and the errors of its means.

A measurement meets chance three times. Each seed has weights and training data of its own: that is in the
counts' intervals and in the ranges over seeds. Losses and distances are means over evaluation sequences that
all seeds share: that is in neither, and is noted here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

import mechmarkov as mm
from mechmarkov.utils.text import format_share


@dataclass
class Noted:
    """What a measurement has drawn so far."""

    trained_on: dict[str, None] = field(default_factory=dict)
    sequences: set[int] = field(default_factory=set)
    errors: list[Float[np.ndarray, " mean"]] = field(default_factory=list)  # over the mean

    @property
    def data(self) -> str:
        """What models were trained on, as text; "" where none was."""
        return "; ".join(self.trained_on)

    @property
    def error(self) -> str:
        """Standard errors of means over sequences, as shares of these, as text; "" where there is none."""
        if not self.errors:
            return ""
        errors = np.concatenate(self.errors)
        n = f"{min(self.sequences)}" + f" to {max(self.sequences)}" * (len(self.sequences) > 1)
        typical, most = (format_share(float(share), 1) for share in (np.median(errors), errors.max()))
        return f"{typical} of a mean, at most {most}, over {n} sequences"


_noted: ContextVar[Noted | None] = ContextVar("noted", default=None)


@contextmanager
def noting() -> Iterator[Noted]:
    """Within it, `over_sequences` and `trained` note what they draw."""
    token = _noted.set(noted := Noted())
    try:
        yield noted
    finally:
        _noted.reset(token)


def over_sequences(
    values: Float[np.ndarray, "*lead batch position"], where: Bool[np.ndarray, "batch position"] | None = None
) -> Float[np.ndarray, "*lead"]:
    """The mean over sequences and positions (nats); its standard error over sequences is noted.

    Args:
        values: A loss or a KL of each prediction.
        where: Which predictions count; all by default. The mean is then a ratio of two, and its error that of
            the ratio, to first order.
    """
    counted = np.ones(values.shape[-2:]) if where is None else where.astype(float)
    mean = np.asarray((values * counted).sum((-2, -1)) / counted.sum())
    noted, n = _noted.get(), values.shape[-2]
    if noted is not None and n > 1:
        off = ((values - mean[..., None, None]) * counted).sum(-1)  # of each sequence, 0 on average
        error = off.std(-1, ddof=1) * np.sqrt(n) / counted.sum()
        noted.errors.append(error[mean != 0] / np.abs(mean[mean != 0]))
        noted.sequences.add(n)
    return mean


def note_training(recipe: mm.Recipe, seeds: int) -> None:
    """Note what the models of a recipe are trained on."""
    noted, data = _noted.get(), recipe.data
    if noted is None:
        return
    if data.population:
        text = "the whole law of the chain"
    else:
        drawn = f"{data.n_train} sequences" if data.n_train else f"{data.batch} fresh sequences a step"
        text = f"{drawn}, others for each of {seeds} seeds" if seeds > 1 else f"{drawn}, one seed"
    noted.trained_on[text] = None
