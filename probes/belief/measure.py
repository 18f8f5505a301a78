"""How well a linear reading of the residual stream gives the belief, and what forcing a state does."""

from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.special import stdtrit

from mechmarkov.interventions.belief import EMBEDDING, Reading, fit_reading, force_reading, streams
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import normal_interval, variables
from mechmarkov.probing.effects import predictions
from mechmarkov.probing.nulls import null_sequences
from mechmarkov.probing.subject import DoesNotApplyError
from mechmarkov.sources import HiddenMarkov
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import kl

from .constrained import after_attention, carried_on
from .parts import laws_of_values, overlaps, pairs_of, parts_of, r2_of_parts

FOLDS = 5  # of sequences; each is read by a map fitted to the others
MIN_SEQUENCES = FOLDS
RECENT = 8  # tokens back that the baseline knows
MIN_VARIANCE = 1e-12  # of the belief; below, it is rounding
DETERMINED = 0.99  # a baseline R² from which on nothing is left for the stream to tell
NEARLY_R2 = 1e-3  # an earlier stream is as good as the best with an error twice as large, and this more,
NEARLY_SHARE = 0.9  # and with this share of its R²
SAME_LAW = 1e-3  # nats: laws under hidden states that are no further apart give nothing to follow
MAX_POINTS = 600  # of the picture
MAX_DRAWN = 3  # hidden states in the picture, and
MAX_FORCED = 8  # those that are forced
CONTROLS = 4  # random directions
USED = 0.5  # a forced state is believed if its KL falls below this share of the clean and the random one
Rows = Float[np.ndarray, "batch read _"]  # of any width

FORCED = ("clean_kl", "forced_kl", "random_kl")
# What is measured of each model: its unit, and its axes.
OF_MODEL = {
    **dict.fromkeys(("r2", "r2_low", "r2_high", "beyond"), ("share", "stream")),
    "r2_at": ("share", "stream", "position"),
    "best": ("index",),
    "image": ("probability", "point", "drawn"),
    **dict.fromkeys(FORCED, ("nats", "hidden")),
    "short_of_used": ("nats", "estimate"),
    "attention_r2": ("share", "layer"),
    **dict.fromkeys(("part_r2", "part_r2_error"), ("share", "part", "stream")),
    "part_overlap": ("share", "pair"),
    **dict.fromkeys((f"part_{name}" for name in FORCED), ("nats", "part")),
}


def first_nearly_best(missed: Float[np.ndarray, " stream"]) -> int:
    """Returns the earliest stream that is read nearly as well as any, by the shares that are missed.

    Example:
        >>> first_nearly_best(np.array([1.01, 0.002, 0.001])), first_nearly_best(np.array([0.74, 0.5]))
        (1, 1)
    """
    least = missed.min()
    nearly = (missed <= 2 * least + NEARLY_R2) & (1 - missed >= NEARLY_SHARE * (1 - least))
    return int(np.argmax(nearly | (missed == least)))


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
        `best` [axis] (index): the earliest stream whose error is at most twice the least, plus 0.001;
        `laws_apart` (nats): KL from the law under a hidden state to the mean over states, averaged;
        `exact` [point, drawn] and `image` [axis, point, drawn] (probability): beliefs, and held-out readings
        of the best stream;
        of a hidden chain `attention_r2` [axis, layer], of the stream after each block's attention, next to
        `additive_r2` of the best sum of an update for each of the last 8 tokens, and `carried_r2` of the sum
        of updates carried on by the chain (shares): what one layer of attention can make;
        of runs, with a state forced at the best stream: `clean_kl`, `forced_kl`, `random_kl` [axis, hidden]
        (nats), from the law under that state to the prediction; `short_of_used` [axis, estimate] (nats): the
        mean forced KL less half of the smaller of the others, and its 95 % interval over sequences;
        where what is hidden has parts, as a task and a state, `part_r2` [axis, part, stream] of each one's
        belief and its standard error, `part_overlap` [axis, pair] (share) of the subspaces that follow them
        at the best stream, and of runs, where parts are independent, `part_clean_kl`, `part_forced_kl`,
        `part_random_kl` [axis, part] (nats): the same KLs with only that part forced, over its values.
    """
    batch = subject.batch.head(null_sequences(subject.batch.tokens.shape[1]))
    if len(batch.tokens) < MIN_SEQUENCES:
        raise ValueError(
            f"sequences is {len(batch.tokens)}, expected at least {MIN_SEQUENCES}: a reading is held out"
        )
    source: Any = subject.source
    history = batch.history.numpy()
    belief = batch.in_context(source.beliefs(history))
    laws = source.laws_of_hidden(history)[:, batch.known.numpy()]
    law = np.einsum("brh,brhj->brj", belief, laws)
    spread = ((belief - belief.mean((0, 1))) ** 2).sum(-1)  # [batch, read]
    if spread.mean() < MIN_VARIANCE:
        raise DoesNotApplyError("the exact belief is the same in every context: there is nothing to read")

    def error(features: Rows) -> float:
        """The mean squared error of a held-out reading, as a share of the belief's variance."""
        return float(((held_out(features, belief) - belief) ** 2).sum(-1).mean() / spread.mean())

    tokens = np.eye(law.shape[-1])[history]
    back = [np.pad(tokens, ((0, 0), (lag, 0), (0, 0)))[:, : tokens.shape[1]] for lag in range(RECENT)]
    recent = np.concatenate([batch.in_context(x) for x in back], axis=-1)
    by_token = batch.in_context(tokens)[..., None] * law[..., None, :]
    known = np.concatenate([recent, by_token.reshape(*law.shape[:2], -1)], axis=-1)
    left = error(known)
    around = ((belief - belief.mean(0)) ** 2).sum(-1).mean(0)
    around = np.where(around > np.finfo(float).eps, around, np.nan)
    points = np.linspace(0, spread.size - 1, min(MAX_POINTS, spread.size)).astype(int)

    def shown(beliefs: Rows) -> np.ndarray:
        return beliefs.reshape(-1, beliefs.shape[-1])[points, :MAX_DRAWN]

    parts = parts_of(source)
    of_models, layers, names = [], list[int](), list(range(EMBEDDING, subject.config.n_layers))
    for i in range(len(subject.decoder)):
        model = subject.decoder[i]
        stream_of = {layer: x[:, batch.read.numpy()] for layer, x in streams(model, batch.tokens).items()}
        readings = np.stack([held_out(stream_of[layer], belief) for layer in names])
        off = ((readings - belief) ** 2).sum(-1)  # [stream, batch, read]
        missed, error_of = ratio(off.mean(-1), spread.mean(-1))
        r2, half = 1 - missed, stdtrit(len(spread) - 1, 0.975) * error_of
        best = first_nearly_best(missed)
        one = {"r2": r2, "r2_low": r2 - half, "r2_high": np.minimum(r2 + half, 1)}
        one |= {"r2_at": 1 - off.mean(1) / around}
        one |= {"best": np.array(best), "image": shown(readings[best])}
        if parts:
            one["part_r2"], one["part_r2_error"] = r2_of_parts(readings, belief, parts)
            one["part_overlap"] = overlaps(stream_of[names[best]], belief, parts)
        if subject.axis == "step":
            forced = partial(_forced, subject, model, names[best], stream_of[names[best]], batch=batch)
            one |= forced(belief=belief, laws=laws)
            if parts and source.parts_are_independent:
                of_parts = [
                    forced(belief=belief @ values, laws=laws_of_values(belief, laws, values))
                    for values in parts.values()
                ]
                one |= {f"part_{name}": np.array([kls[name].mean() for kls in of_parts]) for name in FORCED}
        mixed = after_attention(model, batch.tokens) if isinstance(source, HiddenMarkov) else {}
        layers = list(mixed)
        if mixed:
            one["attention_r2"] = 1 - np.array([error(x[:, batch.read.numpy()]) for x in mixed.values()])
        of_models.append(one)
    arrays = {name: np.stack([one[name] for one in of_models]) for name in of_models[0]}
    arrays["beyond"] = np.where(left < 1 - DETERMINED, np.nan, 1 - (1 - arrays["r2"]) / left)
    data = xr.Dataset(
        {
            name: ((subject.axis, *dims), arrays[name], {"unit": unit})
            for name, (unit, *dims) in OF_MODEL.items()
            if name in arrays
        }
        | variables("share", (), baseline_r2=1 - left)
        | variables("nats", (), laws_apart=kl(laws, laws.mean(-2, keepdims=True)).mean())
        | variables("probability", ("point", "drawn"), exact=shown(belief)),
        coords={
            subject.axis: subject.coordinates,
            "stream": ["embed" if layer == EMBEDDING else f"L{layer}" for layer in names],
            "position": batch.read.numpy(),
        }
        | ({"part": list(parts), "pair": pairs_of(parts)} if parts else {}),
        attrs={
            "n_hidden": belief.shape[-1],
            "hidden": f"hidden {getattr(source, 'hidden', 'states')}",
            "source": source.title(),
        },
    )
    if not layers:
        return data
    sums = {"additive_r2": recent, "carried_r2": batch.in_context(carried_on(source, history))}
    of_sums = {name: 1 - error(features) for name, features in sums.items()}
    return data.assign(variables("share", (), **of_sums)).assign_coords(layer=layers)


def mean_kls(last: xr.Dataset) -> tuple[float, float, float]:
    """Returns a model's KL clean, moved in random directions and with a forced state (nats, means).

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    clean, random, forced = (float(last[f"{name}_kl"].mean()) for name in ("clean", "random", "forced"))
    return clean, random, forced


def held_out(
    features: Float[np.ndarray, "batch read feature"], belief: Float[np.ndarray, "batch read hidden"]
) -> Float[np.ndarray, "batch read hidden"]:
    """Each sequence's belief as read by a least-squares map that was fitted to other sequences.

    Args:
        features: The stream that is read.
        belief: The exact beliefs.

    Example:
        >>> belief = np.random.default_rng(0).dirichlet(np.ones(3), size=(20, 4))
        >>> features = belief @ np.random.default_rng(1).normal(size=(3, 5))
        >>> float(abs(held_out(features, belief) - belief).max()) < 1e-6
        True
    """
    fold = np.arange(len(belief)) % min(FOLDS, len(belief))
    reading = np.empty_like(belief)
    for k in range(fold.max() + 1):
        reading[fold == k] = _fit(features[fold != k], belief[fold != k]).read(features[fold == k])
    return reading


def _fit(features: Rows, belief: Rows) -> Reading:
    return fit_reading(features.reshape(-1, features.shape[-1]), belief.reshape(-1, belief.shape[-1]))


def _forced(
    subject: Subject,
    model: HookedDecoder,
    layer: int,
    stream: Rows,
    belief: Rows,
    laws: Float[np.ndarray, "batch read hidden state"],
    batch: Batch,
) -> dict[str, np.ndarray]:
    """KLs of one model with each state forced after a layer, by a reading of the other half of the batch."""
    half = len(belief) // 2
    reading = _fit(stream[:half], belief[:half])
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
