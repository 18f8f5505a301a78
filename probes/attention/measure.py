"""What the attention probe measures: where every head looks, and the trap's order parameters."""

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from mechmarkov.models.decoder import activations
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.preconditions import has_one_parent, is_determined, parent_lag, why_no_value_circuit
from mechmarkov.probing.recording import ATTENTION

from .by_token import explained_by_tokens, qk_tables

# A whole pattern of 97 tokens is unreadable; the end of the sequence is where the prediction is made.
EXAMPLE_POSITIONS = 24
EXAMPLE_SEQUENCES = 4  # for a reader to choose from
EXAMPLE_PATTERNS = 256  # over all models: fewer sequences of a long trajectory

# Of what is taken from `AttentionStats` as it is, a value for each head.
UNITS = {
    **dict.fromkeys(("previous_token", "first_token", "selector", "spread"), "probability"),
    "effective_tokens": "tokens",
    **dict.fromkeys(("position_share", "token_share"), "share of variance"),
    "token_mean_variance": "probability squared",
}


def measure(subject: Subject) -> xr.Dataset:
    """Lag profiles and the trap's order parameters of every head.

    Returns:
        `lag_mass` [axis, layer, head, lag] (probability; lag 1 is the last known token, 0 one that is no
        state: a query's own, or the beginning of the sequence);
        `previous_token`, `selector`, `spread`, `position_share`, `token_share` (probability),
        `effective_tokens` (tokens), `token_mean_variance` [axis, layer, head];
        `first_token` [axis, layer, head] (probability): mean attention on the first token;
        `qk_table` [axis, layer, head, state_from, state_to] (score units): attention logits by embeddings
        only; `token_scores` [.., state_from, state_to], `token_pair_share` [axis, layer, head]: the table of
        query and key tokens that fits the logits best, and the share of their variance that it explains;
        `example` [axis, sequence, layer, head, query, key_shown] (probability): attention on the end of the
        first sequences, whose states are `example_token` [sequence, key_shown]; null models have none of
        these from `qk_table` on;
        `reach` [lag]: the share of predictions that have a token at that lag; `uniform_mass` [lag]
        (probability): what uniform attention gives it there;
        `near_mass` [axis, layer, head, position, near_lag] (probability): mean attention of each prediction
        on the tokens at the first lags, 0 where there is none; `near_uniform` [position] (probability): of
        attention that is uniform over states;
        `last_mass` [axis, layer, head, key]: mean attention of the last prediction;
        `lag_class` [axis, layer, head, modulo] (probability, circle sources): mean attention of the last
        prediction on lags 1, 2, …, K modulo K, which a deterministic walk cannot tell apart within a class.

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.lag_mass.sel(lag=1).round(2).values.tolist()  # step, layer, head: all on the parent
        [[[1.0]]]
    """
    stats, axis, batch = subject.recorded(ATTENTION), subject.axis, subject.batch
    per_head = (axis, "layer", "head")
    uniform, uniform_first, uniform_tokens = _uniform_mass(
        batch, subject.config.window, stats.lag_mass.shape[-1]
    )
    data = xr.Dataset(
        variables("probability", (*per_head, "lag"), lag_mass=stats.lag_mass)
        | variables("share", "lag", reach=batch.reach.numpy())
        | variables("probability", "lag", uniform_mass=uniform)
        | variables("probability", (*per_head, "position", "near_lag"), near_mass=stats.near_mass)
        | variables("probability", "position", near_uniform=1 / _states_seen(batch, subject.config.window))
        | variables("probability", (*per_head, "key"), last_mass=stats.last_mass)
        | {name: (per_head, getattr(stats, name), {"unit": unit}) for name, unit in UNITS.items()},
        coords={
            axis: subject.coordinates,
            "lag": np.arange(stats.lag_mass.shape[-1]),
            "key": np.arange(stats.last_mass.shape[-1]),
            "position": batch.read.numpy(),
            "near_lag": np.arange(1, stats.near_mass.shape[-1] + 1),
        },
        attrs={
            "source": subject.source.title(),
            "labels": list(subject.source.labels),
            "first_seen": batch.seen(subject.config.window).start,
            "real_tokens": batch.history.shape[1],
            "parent_lag": batch.parent_lag,
            "begins": batch.first,
            "source_lag": parent_lag(subject.source),
            "one_parent": int(has_one_parent(subject.source)),
            "determined": int(is_determined(subject.source)),
            "predictions": len(batch.read),
            "uniform_first": uniform_first,
            "uniform_tokens": uniform_tokens,
            "is_linear": int(why_no_value_circuit(subject.decoder) is None),
            "convolved": subject.config.d_conv or 1,
        },
    )
    if axis == "step":
        table, share = explained_by_tokens(subject)
        by_pair = {"qk_table": qk_tables(subject), "token_scores": table}
        example, example_token = _examples(subject)
        shown = axis, "sequence", "layer", "head", "query", "key_shown"
        data = data.assign(
            variables("score", (*per_head, "state_from", "state_to"), **by_pair)
            | variables("share of variance", per_head, token_pair_share=share)
            | variables("probability", shown, example=example)
            | {"example_token": (("sequence", "key_shown"), example_token)}
        )
    if subject.source.kind != "circle":
        return data
    n, real = subject.source.n_states, batch.history.shape[1]
    lag, modulo = real - np.arange(real), np.arange(1, n + 1)
    lag_class = stats.last_mass[..., :real] @ (lag[:, None] % n == modulo % n)
    by_class = variables("probability", (*per_head, "modulo"), lag_class=lag_class)
    return data.assign(by_class).assign_coords(modulo=modulo)


def _examples(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Patterns [axis, sequence, layer, head, query, key] on the end of some sequences, and their states.

    A layer without attention weights has zeros.
    """
    members = range(len(subject.decoder))
    tokens = subject.batch.tokens[: max(1, min(EXAMPLE_SEQUENCES, EXAMPLE_PATTERNS // len(members)))]
    shown = slice(max(0, tokens.shape[1] - EXAMPLE_POSITIONS), None)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(subject.config.n_layers)]
    patterns = []
    for member in members:  # one at a time: whole patterns of many models would fill the memory
        seen = activations(subject.decoder[member], tokens, names)
        pattern_of = {name: x[..., shown, shown].numpy() for name, x in seen.items()}
        none = np.zeros_like(next(iter(pattern_of.values())))
        patterns.append(np.stack([pattern_of.get(name, none) for name in names], axis=1))
    extra = "beginning" if subject.objective.bos else "query"
    labels = np.array([*subject.source.labels, extra], dtype=object)
    return np.stack(patterns), labels[tokens[:, shown].numpy()]


def _states_seen(batch: Batch, window: int | None) -> Int[np.ndarray, " position"]:
    """Returns how many states each prediction may look at."""
    seen = batch.known.numpy() + 1
    return seen if window is None else np.minimum(seen, window + 1 - batch.parent_lag).clip(1)


def _uniform_mass(
    batch: Batch, window: int | None, lags: int
) -> tuple[Float[np.ndarray, " lag"], float, float]:
    """Returns what uniform attention gives the token at each lag, mean over the predictions that have one.

    And what it gives the first token, and to how many tokens it goes, means over all predictions.
    """
    back = np.arange(lags)[:, None] - 1 + batch.parent_lag
    read = batch.read.numpy()
    state = read - batch.first
    seen = read + 1 if window is None else np.minimum(read + 1, window + 1)
    has = (back >= 0) & (state >= back) & (window is None or back <= window)
    if batch.first:
        has[0] = batch.extra_visible(window).numpy()
    first = (state < seen) / seen
    return np.asarray((has / seen).sum(1) / has.sum(1).clip(1)), float(first.mean()), float(seen.mean())
