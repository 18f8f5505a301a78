"""A model against its program, on sequences that neither has seen."""

from collections.abc import Iterator

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from mechmarkov.probing.batch import Batch, draw
from mechmarkov.probing.chunking import chunked
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import kl

from .extraction import Program, contributions, extract

# Other sequences than any subject's batch, whose seeds count on from `EVALUATION_SEED`.
FRESH_SEED = 0x5851F42D

# Predictions that vary by less than this from their own mean are float32 rounding: constant.
CONSTANT_NATS = 1e-9

WORST_SHOWN = 6  # predictions, and the tokens in front of them, where the program fails most


def measure(subject: Subject) -> xr.Dataset:
    """Extract each model's program and run both on sequences that neither has seen."""
    fresh = draw(
        subject.source,
        subject.objective,
        subject.config,
        seed=FRESH_SEED,
        sequences=len(subject.batch.tokens),
    )
    return compare(subject, extract(subject), fresh)


def compare(subject: Subject, program: Program, fresh: Batch) -> xr.Dataset:
    """The models against their programs on a batch.

    Returns, over [axis]:
        `kl` and its standard error over sequences `kl_error` (nats): KL(model ‖ program);
        `kl_mean` (nats): KL(model ‖ its mean prediction), what there is to explain;
        `explained` (share): 1 - kl / kl_mean; negative where the mean alone does better, NaN where the
        predictions are constant;
        `kl_at` [.., position], `kl_after` [.., state_from] (nats): KL by position and by parent state;
        `kl_without` [.., path] (nats): KL of the program with that path at its mean (not on null models);
        `lag_weight` [.., layer, head, lag], `match_bonus` [.., layer, head] (log odds): the selectors;
        `table` [.., path, state_from, state_to], `base` [.., state_to] (scores);
        and for the last model `worst_*` [rank]: the predictions where the program fails most, with the last
        tokens in front of them (-1 in front of the first), `worst_model` and `worst_program` (probability).
    """
    axis = subject.axis
    mean = subject.probabilities.mean((1, 2))
    rows: list[dict[str, float | np.ndarray]] = []
    for member, model_score in model_scores(subject, fresh):
        model = _predict(subject, model_score.astype(np.float64))
        added = contributions(program, fresh, member)
        total = program.base[member] + sum(added.values())
        predicted = _predict(subject, total)
        nats = np.maximum(kl(model, predicted), 0.0)  # equal laws: rounding either way
        row = _left(fresh, nats, model, mean[member])
        if axis == "step":
            without = [_predict(subject, total - path + path.mean((0, 1))) for path in added.values()]
            row["kl_without"] = np.array([kl(model, rest).mean() for rest in without])
        rows.append(row)
    dims = {"kl_at": ("position",), "kl_after": ("state_from",), "kl_without": ("path",)}
    units = {"explained": "share"}
    per_head, tables = (axis, "layer", "head"), np.stack(list(program.tables.values()), axis=1)
    data = xr.Dataset(
        {
            name: (
                (axis, *dims.get(name, ())),
                np.stack([row[name] for row in rows]),
                {"unit": units.get(name, "nats")},
            )
            for name in rows[0]
        }
        | variables("weight", (*per_head, "lag"), lag_weight=program.lag_weight)
        | variables("log odds", per_head, match_bonus=program.match_bonus)
        | variables("score", (axis, "path", "state_from", "state_to"), table=tables)
        | variables("score", (axis, "state_to"), base=program.base),
        coords={
            axis: subject.coordinates,
            "position": fresh.read.numpy(),
            "path": list(program.tables),
            "lag": np.arange(program.lag_weight.shape[-1]),
        },
        attrs={"source": subject.source.title(), "labels": list(subject.source.labels)},
    )
    return data.assign(_worst(fresh, nats, model, predicted))


def _predict(subject: Subject, scores: np.ndarray) -> np.ndarray:
    return np.asarray(subject.objective.predict(torch.from_numpy(scores)).numpy())


def _left(
    fresh: Batch, nats: np.ndarray, model: np.ndarray, mean: np.ndarray
) -> dict[str, float | np.ndarray]:
    """What one program leaves of its model, from KL(model ‖ program) at each prediction `[batch, read]`."""
    n, parents = len(mean), fresh.parents.numpy().ravel()
    count = np.bincount(parents, minlength=n)
    after = np.bincount(parents, nats.ravel(), n)
    left = float(nats.mean())
    kl_mean = max(0.0, float(kl(model, mean).mean()))
    return {
        "kl": left,
        "kl_error": float(nats.mean(-1).std() / np.sqrt(max(1, len(nats) - 1))),
        "kl_mean": kl_mean,
        "explained": 1 - left / kl_mean if kl_mean > CONSTANT_NATS else np.nan,
        "kl_at": nats.mean(0),
        "kl_after": np.where(count > 0, after / np.maximum(count, 1), np.nan),
    }


def _worst(
    fresh: Batch, nats: np.ndarray, model: np.ndarray, predicted: np.ndarray
) -> dict[str, xr.Variable]:
    """The predictions with the largest KL, at most one for each run of tokens in front of them."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for flat in np.argsort(-nats, axis=None, kind="stable"):
        b, read = (int(i) for i in np.unravel_index(flat, nats.shape))
        known = int(fresh.known[read])
        tokens = fresh.history[b, max(0, known + 1 - WORST_SHOWN) : known + 1].tolist()
        found.setdefault((*[-1] * (WORST_SHOWN - len(tokens)), *tokens), (b, read))
        if len(found) == WORST_SHOWN:
            break
    index = tuple(np.array(list(found.values())).T)
    read = fresh.read.numpy()[index[1]]
    return {
        "worst_kl": xr.Variable("rank", nats[index], {"unit": "nats"}),
        "worst_position": xr.Variable("rank", read, {"unit": "position"}),
        "worst_tokens": xr.Variable(("rank", "token"), np.array(list(found)), {"unit": "state"}),
        "worst_model": xr.Variable(("rank", "state_to"), model[index], {"unit": "probability"}),
        "worst_program": xr.Variable(("rank", "state_to"), predicted[index], {"unit": "probability"}),
    }


def model_scores(
    subject: Subject, batch: Batch
) -> Iterator[tuple[int, Float[np.ndarray, "batch read d_vocab_out"]]]:
    """The scores of each model on a batch, run in chunks of bounded memory."""
    scores: list[Tensor] = []
    for chunk in chunked(subject.decoder, batch.tokens, subject.chunk_elements):
        with torch.no_grad():
            scores.append(chunk.model(chunk.tokens)[..., batch.read, :])
        if chunk.sequences.stop == len(batch.tokens):
            yield from enumerate(torch.cat(scores, dim=1).numpy(), start=chunk.members.start)
            scores = []
