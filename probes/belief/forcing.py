"""Beliefs put into the stream: does the model predict what they say?"""

import numpy as np
import xarray as xr
from jaxtyping import Float

from mechmarkov.interventions.belief import force_reading
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import normal_interval
from mechmarkov.probing.effects import predictions
from mechmarkov.theory.bootstrap import standard_error
from mechmarkov.theory.kernel import kl

from .carried import Rows, fit

MAX_FORCED = 8  # hidden states that are forced
CONTROLS = 4  # random directions
USED = 0.5  # a forced state is believed if its KL falls below this share of the clean and the random one
FORCED = ("clean_kl", "forced_kl", "random_kl")


def forced_kls(
    subject: Subject,
    model: HookedDecoder,
    layer: int,
    stream: Rows,
    belief: Float[np.ndarray, "batch read hidden"],
    laws: Float[np.ndarray, "batch read hidden state"],
    batch: Batch,
) -> dict[str, np.ndarray]:
    """KLs of one model with each state forced after a layer, by a reading of the other half of the batch.

    Args:
        subject: Whose objective says how outputs are read.
        model: The model.
        layer: After which layer a state is forced; `EMBEDDING` for before the first.
        stream: The residual stream there.
        belief: The exact beliefs, or those over the values of a part.
        laws: The law of the next token under each state (probability).
        batch: The sequences.

    Returns:
        `clean_kl`, `forced_kl`, `random_kl` [hidden] (nats), from the law under a state to the prediction as
        it is, with that state forced, and moved as far in random directions; `short_of_used` [estimate].
    """
    half = len(belief) // 2
    reading = fit(stream[:half], belief[:half])
    n_hidden, rest = belief.shape[-1], batch.part(slice(half, None))

    def distance(state: int) -> Float[np.ndarray, " sequence"]:
        """KL (nats) from the law under a state to what the model now predicts."""
        predicted = predictions(subject, model, rest, rest.tokens).numpy()
        return np.asarray(kl(laws[half:, :, state], predicted).mean(-1))

    rows = []
    for state in range(min(n_hidden, MAX_FORCED)):
        clean, forced = distance(state), []
        for control in (None, *range(CONTROLS)):
            with force_reading(model, layer, reading, np.eye(n_hidden)[state], control=control):
                forced.append(distance(state))
        rows.append((clean, forced[0], np.mean(forced[1:], axis=0)))
    nats = np.array(rows)  # [hidden, kind, sequence]
    clean, forced, random = nats.mean(0)
    short = forced - USED * min(clean, random, key=np.mean)
    short_of_used = [short.mean(), *normal_interval(short.mean(), float(standard_error(short)))]
    return dict(zip(FORCED, nats.mean(-1).T, strict=True)) | {"short_of_used": np.array(short_of_used)}


def mean_kls(last: xr.Dataset) -> tuple[float, float, float]:
    """Returns a model's KL clean, moved in random directions and with a forced state (nats, means).

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    clean, random, forced = (float(last[f"{name}_kl"].mean()) for name in ("clean", "random", "forced"))
    return clean, random, forced
