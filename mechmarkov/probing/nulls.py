"""Nulls: the same score on freshly initialised models of the same shape."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.runs.run import Run

NULL_MODELS = 24
# Of one model. The ends of a band over 24 models are uncertain by more than what further tokens would move
# them (`benchmarks/README.md`).
NULL_TOKENS = 1 << 12
MIN_NULL_SEQUENCES, MAX_NULL_SEQUENCES = 8, 64
NULL_STD = 0.02  # where the recipe starts at zero or is unknown
NULL_KIND = f"{NULL_MODELS} fresh models"  # of the same shape: 2.5, 50 and 97.5 % points


def fresh_models(run: Run, seeds: Sequence[int]) -> HookedDecoder:
    """Untrained models of a run's shape, as a stack, one a seed.

    Drawn as the run's recipe draws them, `init.zero` left aside; from N(0, 0.02²) where the recipe starts at
    zero or is unknown.
    Where only some parameters are trainable the others stay as they are in the run: they are part of the
    architecture, not of what was learned.

    Example:
        >>> import mechmarkov as mm
        >>> len(fresh_models(mm.example("walk"), range(3)))
        3
    """
    init = (run.recipe or {}).get("init") or {}
    scheme, std = init.get("scheme", "normal"), init.get("std", NULL_STD)
    if scheme not in ("normal", "gpt2") or not std:
        scheme, std = "normal", NULL_STD
    fresh = HookedDecoder(run.config, n_models=len(seeds))
    initialise(fresh, seeds, scheme=scheme, std=std)
    if run.trainable is None:
        return fresh
    final = run.model(step=-1).state_dict()
    state = {}
    for name, value in fresh.state_dict().items():
        merged = final[name].expand_as(value).clone()
        if name in run.trainable:
            spans = run.trainable[name]
            index = (slice(None), *(slice(*span) for span in spans)) if spans else (slice(None),)
            merged[index] = value[index]
        state[name] = merged
    fresh.load_state_dict(state)
    return fresh


def null_sequences(length: int) -> int:
    """Returns how many sequences of a length (tokens) fresh models are measured on: 4096 tokens, 8 to 64.

    Example:
        >>> null_sequences(97)
        42
    """
    return max(MIN_NULL_SEQUENCES, min(MAX_NULL_SEQUENCES, NULL_TOKENS // length))


def null_band(values: xr.DataArray | np.ndarray) -> tuple[float, float, float] | None:
    """The 2.5, 50 and 97.5 % points of a score over null models; None where none is finite.

    Example:
        >>> null_band(np.array([1.0, 2.0, 3.0]))
        (1.05, 2.0, 2.95)
    """
    finite = np.asarray(values, dtype=float).ravel()
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return None
    low, middle, high = np.quantile(finite, [0.025, 0.5, 0.975])
    return float(low), float(middle), float(high)
