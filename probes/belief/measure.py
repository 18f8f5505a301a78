"""How well a linear reading of the residual stream gives the belief, and what forcing a state does."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.special import stdtrit

from mechmarkov.interventions.belief import EMBEDDING, streams
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import variables
from mechmarkov.sources import HiddenMarkov
from mechmarkov.theory.bootstrap import ratio
from mechmarkov.theory.kernel import kl

from .carried import Carried, Rows, held_out
from .constrained import after_attention, carried_on
from .forcing import FORCED, forced_kls
from .parts import laws_of_values, overlaps, pairs_of, parts_of, r2_of_parts

DETERMINED = 0.99  # a baseline R² from which on nothing is left for the stream to tell
NEARLY_R2 = 1e-3  # an earlier stream is as good as the best with an error twice as large, and this more,
NEARLY_SHARE = 0.9  # and with this share of its R²
SAME_LAW = 1e-3  # nats: laws under hidden states that are no further apart give nothing to follow
MAX_POINTS = 600  # of the picture
MAX_DRAWN = 3  # hidden states in the picture

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
    carried = Carried.of(subject)
    models = [_of_model(subject, subject.decoder[i], carried) for i in range(len(subject.decoder))]
    arrays = {name: np.stack([one[name] for one in models]) for name in models[0]}
    left = carried.error(carried.baseline)
    arrays["beyond"] = np.where(left < 1 - DETERMINED, np.nan, 1 - (1 - arrays["r2"]) / left)
    parts, source = parts_of(subject.source), subject.source
    data = xr.Dataset(
        {
            name: ((subject.axis, *dims), arrays[name], {"unit": unit})
            for name, (unit, *dims) in OF_MODEL.items()
            if name in arrays
        }
        | variables("share", (), baseline_r2=1 - left)
        | variables("nats", (), laws_apart=kl(carried.laws, carried.laws.mean(-2, keepdims=True)).mean())
        | variables("probability", ("point", "drawn"), exact=_drawn(carried.belief)),
        coords={
            subject.axis: subject.coordinates,
            "stream": ["embed" if layer == EMBEDDING else f"L{layer}" for layer in _layers(subject)],
            "position": carried.batch.read.numpy(),
        }
        | ({"part": list(parts), "pair": pairs_of(parts)} if parts else {}),
        attrs={
            "n_hidden": carried.belief.shape[-1],
            "hidden": f"hidden {getattr(source, 'hidden', 'states')}",
            "source": source.title(),
        },
    )
    if "attention_layers" not in arrays or not isinstance(source, HiddenMarkov):
        return data
    on = carried.batch.in_context(carried_on(source, carried.batch.history.numpy()))
    sums = {"additive_r2": 1 - carried.error(carried.recent), "carried_r2": 1 - carried.error(on)}
    return data.assign(variables("share", (), **sums)).assign_coords(layer=arrays["attention_layers"][0])


def _layers(subject: Subject) -> list[int]:
    """The layers whose streams are read, the embedding's first."""
    return list(range(EMBEDDING, subject.config.n_layers))


def _of_model(subject: Subject, model: HookedDecoder, carried: Carried) -> dict[str, np.ndarray]:
    """The arrays that `OF_MODEL` names, of one model."""
    batch, belief, spread = carried.batch, carried.belief, carried.spread
    read, source = batch.read.numpy(), subject.source
    stream_of = {layer: x[:, read] for layer, x in streams(model, batch.tokens).items()}
    layers = _layers(subject)
    readings = np.stack([held_out(stream_of[layer], belief) for layer in layers])
    off = ((readings - belief) ** 2).sum(-1)  # [stream, batch, read]
    missed, error_of = ratio(off.mean(-1), spread.mean(-1))
    r2, half = 1 - missed, stdtrit(len(spread) - 1, 0.975) * error_of
    best = first_nearly_best(missed)
    around = ((belief - belief.mean(0)) ** 2).sum(-1).mean(0)
    around = np.where(around > np.finfo(float).eps, around, np.nan)
    one = {
        "r2": r2,
        "r2_low": r2 - half,
        "r2_high": np.minimum(r2 + half, 1),
        "r2_at": 1 - off.mean(1) / around,
    }
    one |= {"best": np.array(best), "image": _drawn(readings[best])}
    if parts := parts_of(source):
        one["part_r2"], one["part_r2_error"] = r2_of_parts(readings, belief, parts)
        one["part_overlap"] = overlaps(stream_of[layers[best]], belief, parts)
    if subject.axis == "step":
        one |= _with_forced_states(subject, model, layers[best], stream_of[layers[best]], carried)
    if isinstance(source, HiddenMarkov) and (mixed := after_attention(model, batch.tokens)):
        one["attention_r2"] = 1 - np.array([carried.error(x[:, read]) for x in mixed.values()])
        one["attention_layers"] = np.array(list(mixed))
    return one


def _with_forced_states(
    subject: Subject, model: HookedDecoder, layer: int, stream: Rows, carried: Carried
) -> dict[str, np.ndarray]:
    """KLs with each hidden state forced and, where parts are independent, with each value of a part."""
    batch, belief, laws = carried.batch, carried.belief, carried.laws
    one = forced_kls(subject, model, layer, stream, belief, laws, batch)
    source: Any = subject.source
    parts = parts_of(source)
    if parts and source.parts_are_independent:
        of_parts = [
            forced_kls(
                subject, model, layer, stream, belief @ values, laws_of_values(belief, laws, values), batch
            )
            for values in parts.values()
        ]
        one |= {f"part_{name}": np.array([kls[name].mean() for kls in of_parts]) for name in FORCED}
    return one


def _drawn(beliefs: Rows) -> Float[np.ndarray, "point drawn"]:
    """Some of the beliefs, for a picture."""
    rows = beliefs.reshape(-1, beliefs.shape[-1])
    points = np.linspace(0, len(rows) - 1, min(MAX_POINTS, len(rows))).astype(int)
    return rows[points, :MAX_DRAWN]
