"""What is left of a model's predictions when one weight is cut to a rank."""

from functools import partial

import numpy as np
import torch
import xarray as xr
from einops import einsum, reduce
from jaxtyping import Float
from torch import Tensor

from mechmarkov.interventions.weights import spectrum, truncate, weights_of
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.effects import model_chunks, predictions
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import FLOOR

# Forward passes for all weights together.
MAX_RUNS = 64

PARTS = ("unigram", "bigram", "context")
NO_DIRECTION = 1e-6  # of the largest singular value, up to which float32 weights have none


def loss_parts(
    probabilities: Float[Tensor, "member batch read state"],
    law: Float[Tensor, "batch read state"],
    batch: Batch,
) -> Float[np.ndarray, "member part"]:
    """The loss split by what predictions depend on, `PARTS`, in nats.

    With only the mean prediction the expected loss (under the exact law of the next state) is below that of
    the uniform predictor by the unigram part; with the mean prediction given the current state it is lower
    by the bigram part; with the prediction itself, by the context part. They add up to log K less the loss.
    Behind a first-order chain the context has nothing to tell, so its part is what its noise costs, at
    most 0.

    Args:
        probabilities: The models' predictions.
        law: The exact law of each next state.
        batch: The sequences, which say what the current state is.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=64)
        >>> law = torch.as_tensor(subject.exact["bigram"])
        >>> loss_parts(law[None], law, subject.batch)[0, 1].round(1)  # log 6 - log 2
        np.float64(1.1)
    """
    n = probabilities.shape[-1]
    parent = torch.nn.functional.one_hot(batch.parents, n).double()
    count = reduce(parent, "b read state -> state", "sum").clamp_min(1)
    rows = einsum(probabilities, parent, "m b read to, b read state -> m state to") / count[:, None]
    given = einsum(rows, parent, "m state to, b read state -> m b read to")
    mean = probabilities.mean((1, 2), keepdim=True)
    losses = [-(law * p.clamp_min(FLOOR).log()).sum(-1).mean((1, 2)) for p in (mean, given, probabilities)]
    uniform = torch.full_like(losses[0], float(np.log(n)))
    return -torch.diff(torch.stack([uniform, *losses]), dim=0).mT.numpy()


def truncations(subject: Subject, batch: Batch) -> xr.Dataset:
    """Cut every trainable weight of every model to ranks from 0 to full, and measure the loss.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences to measure on, such as `subject.batch`.

    Returns:
        `loss_parts` [axis, part] (nats): log K less the loss, split into what the unigram, the bigram and
        the context give (`loss_parts`);
        `rank_parts` [axis, weight, rank, part] (nats): the same with the weight cut to that rank;
        `rank_kept` [axis, weight, rank]: the rank that was kept, as directions of equal singular value go
        together; `full_rank` [weight]. NaN where a weight has no such rank.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> truncations(subject, subject.batch).full_rank.to_series().to_dict()
        {'L0H0.QK': 6, 'L0H0.OV': 6}
    """
    trainable, query = subject.run.trainable, subject.objective.query
    weights = [
        name
        for name, made_of in weights_of(subject.decoder).items()
        if (trainable is None or not trainable.keys().isdisjoint(made_of))
        and not (query and name == "direct")
    ]
    values = {name: spectrum(subject.decoder, name).values for name in weights}
    full = {name: known.shape[-1] for name, known in values.items()}
    tried = {name: _ranks(_rank(known), MAX_RUNS // len(weights)) for name, known in values.items()}
    ranks = sorted({rank for some in tried.values() for rank in some})
    shape = (len(subject.decoder), len(weights), len(ranks))
    n_kept, parts = np.full(shape, np.nan), np.full((*shape, len(PARTS)), np.nan)
    whole = []
    best = subject.source.best()
    if isinstance(best, str):  # no law in closed form: what came instead
        law = torch.nn.functional.one_hot(batch.targets, subject.source.n_states).double()
    else:
        law = torch.from_numpy(subject.exact[best.name][: len(batch.tokens)])
    for chunk in model_chunks(subject, batch):
        run = partial(predictions, subject, chunk.model, batch, batch.tokens)
        whole.append(loss_parts(run(), law, batch))
        for i, name in enumerate(weights):
            known = spectrum(chunk.model, name)
            for rank in tried[name]:
                at = (chunk.members, i, ranks.index(rank))
                n_kept[at] = known.keep(rank).sum(-1).numpy()
                with truncate(chunk.model, name, rank, known=known):
                    parts[at] = loss_parts(run(), law, batch)
    axis = subject.axis
    return xr.Dataset(
        variables("nats", (axis, "part"), loss_parts=np.concatenate(whole))
        | variables("nats", (axis, "weight", "rank", "part"), rank_parts=parts)
        | variables("rank", (axis, "weight", "rank"), rank_kept=n_kept)
        | variables("rank", "weight", full_rank=[full[name] for name in weights]),
        coords={axis: subject.coordinates, "weight": weights, "rank": ranks, "part": list(PARTS)},
    )


def _rank(values: Float[Tensor, "*member rank"]) -> int:
    """Returns the largest rank of some matrices by their singular values; that of zeros is full."""
    return int((values >= NO_DIRECTION * values.amax(-1, keepdim=True)).sum(-1).max())


def _ranks(full: int, most: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, … and the full rank; at most that many (but never fewer than three)."""
    between = [rank for power in range(full.bit_length()) for rank in (2 << power, 3 << power) if rank < full]
    return sorted({0, min(1, full), full, *between[: max(0, most - 3)]})
