"""How well a linear reading of the residual stream gives the belief, and what forcing a state does."""

from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.interventions.belief import EMBEDDING, Reading, fit_reading, force_belief, streams
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.nulls import null_sequences
from mechmarkov.sources import HiddenMarkov
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import kl

from .constrained import after_attention, carried_on

FOLDS = 5  # of sequences; each is read by a map fitted to the others
RECENT = 8  # tokens back that the baseline knows
DETERMINED = 0.99  # a baseline R² from which on nothing is left for the stream to tell
NEARLY_R2 = 1e-3  # an earlier stream is as good as the best with an error twice as large, and this more
MAX_POINTS = 600  # of the picture
MAX_DRAWN = 3  # hidden states in the picture, and
MAX_FORCED = 8  # those that are forced
CONTROLS = 4  # random directions
Rows = Float[np.ndarray, "batch read _"]  # of any width


def measure(subject: Subject) -> xr.Dataset:
    """Held-out readings of the exact belief, their baseline, and predictions under forced states.

    One map a stream is fitted to all positions by least squares, on four fifths of the sequences, and read on
    the rest. A run and its null read equally many sequences (`null_sequences`).

    Returns:
        `r2`, `r2_low` and `r2_high` [axis, stream] (share of the belief's variance, over all hidden states;
        95 % over sequences); `r2_at` [axis, stream, position];
        `baseline_r2` (share): the same reading of the law of the next token, apart after each current token,
        and of the last 8 tokens: what a model has that predicts and does not carry the belief;
        `beyond` [axis, stream] (share of what the baseline leaves; NaN where it leaves less than 1 %);
        `best` [axis] (index): the earliest stream whose R² is nearly the largest;
        `exact` [point, drawn] and `image` [axis, point, drawn] (probability): beliefs, and held-out readings
        of the best stream;
        of a hidden chain `attention_r2` [axis, layer], of the stream after each block's attention, beside
        `additive_r2` of the best sum of an update for each of the last 8 tokens, and `carried_r2` of the sum
        of updates carried on by the chain (shares): what one layer of attention can make;
        of runs, with a state forced at the best stream: `clean_kl`, `forced_kl`, `random_kl` [axis, hidden]
        (nats), from the law under that state to the prediction.
    """
    batch = subject.batch.head(null_sequences(subject.batch.tokens.shape[1]))
    if len(batch.tokens) < 2:
        raise ValueError(f"sequences is {len(batch.tokens)}, expected at least 2: a reading is held out")
    source: Any = subject.source
    history = batch.history.numpy()
    belief = batch.in_context(source.beliefs(history))
    laws = source.laws_of_hidden(history)[:, batch.known.numpy()]
    law = np.einsum("brh,brhj->brj", belief, laws)
    centred = belief - belief.mean((0, 1))
    spread = (centred**2).sum(-1)  # [batch, read]

    def error(features: Rows) -> float:
        """The mean squared error of a held-out reading."""
        return float(((held_out(features, belief) - belief) ** 2).sum(-1).mean())

    tokens = np.eye(law.shape[-1])[history]
    back = [np.pad(tokens, ((0, 0), (lag, 0), (0, 0)))[:, : tokens.shape[1]] for lag in range(RECENT)]
    recent = np.concatenate([batch.in_context(x) for x in back], axis=-1)
    by_token = batch.in_context(tokens)[..., None] * law[..., None, :]
    baseline = error(np.concatenate([recent, by_token.reshape(*law.shape[:2], -1)], axis=-1))
    constrained = isinstance(source, HiddenMarkov)
    of_models, layers, names = [], list[int](), list(range(EMBEDDING, subject.config.n_layers))
    for i in range(len(subject.decoder)):
        model = subject.decoder[i]
        found = {layer: x[:, batch.read.numpy()] for layer, x in streams(model, batch.tokens).items()}
        readings = np.stack([held_out(found[layer], belief) for layer in names])
        of_models.append(_of_model(model, names, found, readings, belief, laws, spread, batch, subject))
        mixed = after_attention(model, batch.tokens) if constrained else {}
        layers = list(mixed)
        if mixed:
            errors = np.array([error(x[:, batch.read.numpy()]) for x in mixed.values()])
            of_models[-1]["attention_r2"] = 1 - errors / spread.mean()
    arrays = {name: np.stack([one[name] for one in of_models]) for name in of_models[0]}
    points = np.linspace(0, belief[..., 0].size - 1, min(MAX_POINTS, belief[..., 0].size)).astype(int)
    shown = belief.reshape(-1, belief.shape[-1])[points, :MAX_DRAWN]
    axis, left = subject.axis, float(baseline / spread.mean())
    beyond = np.where(left < 1 - DETERMINED, np.nan, 1 - arrays.pop("error") / baseline)
    forced = {name: arrays.pop(name) for name in ("clean_kl", "forced_kl", "random_kl") if name in arrays}
    sums: dict[str, Any] = {}
    if "attention_r2" in arrays:
        sums = variables("share", (axis, "layer"), attention_r2=arrays.pop("attention_r2"))
        carried = error(batch.in_context(carried_on(source, history)))
        off = {"additive_r2": error(recent), "carried_r2": carried}
        sums |= variables("share", (), **{name: 1 - each / spread.mean() for name, each in off.items()})
    return xr.Dataset(
        sums
        | variables("share", (axis, "stream"), beyond=beyond, **_named(arrays, "r2", "r2_low", "r2_high"))
        | variables("share", (axis, "stream", "position"), r2_at=arrays["r2_at"])
        | variables("share", (), baseline_r2=1 - left)
        | variables("index", axis, best=arrays["best"])
        | variables("probability", ("point", "drawn"), exact=shown)
        | variables(
            "probability",
            (axis, "point", "drawn"),
            image=np.stack(
                [image.reshape(-1, belief.shape[-1])[points, :MAX_DRAWN] for image in arrays["image"]]
            ),
        )
        | variables("nats", (axis, "hidden"), **forced),
        coords={
            axis: subject.coordinates,
            "stream": [stream_name(layer) for layer in names],
            "position": batch.read.numpy(),
        }
        | ({"layer": layers} if sums else {}),
        attrs={"n_hidden": belief.shape[-1], "source": source.title()},
    )


def stream_name(layer: int) -> str:
    """The stream after a block, `L0`, and what the first block reads, `embed`."""
    return "embed" if layer == EMBEDDING else f"L{layer}"


def held_out(
    features: Float[np.ndarray, "batch read feature"], belief: Float[np.ndarray, "batch read hidden"]
) -> Float[np.ndarray, "batch read hidden"]:
    """Each sequence's belief as read by a least-squares map that was fitted to other sequences."""
    fold = np.arange(len(belief)) % min(FOLDS, len(belief))
    found = np.empty_like(belief)
    for k in range(fold.max() + 1):
        found[fold == k] = _fit(features[fold != k], belief[fold != k]).read(features[fold == k])
    return found


def _fit(features: Rows, belief: Rows) -> Reading:
    return fit_reading(features.reshape(-1, features.shape[-1]), belief.reshape(-1, belief.shape[-1]))


def _named(arrays: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: arrays[name] for name in names}


def _of_model(
    model: HookedDecoder,
    layers: list[int],
    found: dict[int, Rows],
    readings: Float[np.ndarray, "stream batch read hidden"],
    belief: Rows,
    laws: Float[np.ndarray, "batch read hidden state"],
    spread: Float[np.ndarray, "batch read"],
    batch: Batch,
    subject: Subject,
) -> dict[str, np.ndarray]:
    """Of one model: errors and R² of every stream, the best one's image, and what forcing does."""
    off = ((readings - belief) ** 2).sum(-1)  # [stream, batch, read]
    r2 = 1 - off.mean((1, 2)) / spread.mean()
    low, high = interval(1 - off.mean(-1) / spread.mean())
    around = ((belief - belief.mean(0)) ** 2).sum(-1).mean(0)
    at = 1 - off.mean(1) / np.where(around > np.finfo(float).eps, around, np.nan)
    best = int(np.argmax(1 - r2 <= 2 * (1 - r2.max()) + NEARLY_R2))
    arrays = {"r2": r2, "r2_low": low, "r2_high": high, "r2_at": at, "error": off.mean((1, 2))}
    arrays |= {"best": np.array(best), "image": readings[best]}
    if subject.axis == "seed":
        return arrays
    half = len(belief) // 2
    reading = _fit(found[layers[best]][:half], belief[:half])
    n_hidden, rest = belief.shape[-1], batch.part(slice(half, None))

    def distance(state: int) -> float:
        """KL (nats) from the law under a state to what the model now predicts."""
        with torch.no_grad():
            scores = model(rest.tokens)[:, rest.read].double()
        predicted = subject.objective.predict(scores).numpy()
        return float(kl(laws[half:, :, state], predicted).mean())

    rows = []
    for state in range(min(n_hidden, MAX_FORCED)):
        clean, forced = distance(state), []
        for control in (None, *range(CONTROLS)):
            with force_belief(model, layers[best], reading, np.eye(n_hidden)[state], control=control):
                forced.append(distance(state))
        rows.append((clean, forced[0], np.mean(forced[1:])))
    return arrays | dict(zip(("clean_kl", "forced_kl", "random_kl"), np.array(rows).T, strict=True))
