"""What the datasets of all probes share: units, the last model, the best head, scores next to their nulls."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from mechmarkov.models import components
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.score import Score

NORMAL_95 = 1.96  # standard errors on either side of a 95 % interval

# Predictors that agree to this many nats on a batch are one predictor (float64 rounding is 1e-15).
TIE_NATS = 1e-9
IMITATION_NATS, IMITATION_SHARE = 0.01, 0.1
# Of two predictors that are nearer than this no model is said to be on the way from one to the other.
MIN_GAP_NATS = 0.01

Variables = dict[str, tuple[str | tuple[str, ...], Any, dict[str, str]]]


def variables(unit: str, dims: str | tuple[str, ...], **arrays: Any) -> Variables:
    """Variables of one unit over the same axes, as `xr.Dataset` takes them.

    Example:
        >>> xr.Dataset(variables("nats", "step", loss=[1.0, 0.5]))["loss"].attrs
        {'unit': 'nats'}
    """
    return {name: (dims, values, {"unit": unit}) for name, values in arrays.items()}


def model_axis(data: xr.Dataset) -> str:
    """The axis that tells the models of a probe's data apart: "step" of a run, "seed" of its null.

    Example:
        >>> model_axis(xr.Dataset({"loss": ("step", [1.0, 0.5])}))
        'step'
    """
    return "step" if "step" in data.dims else "seed"


def last_model(data: xr.Dataset) -> xr.Dataset:
    """The data of the last model, that of the last probed step, without the axis `model_axis`.

    Example:
        >>> float(last_model(xr.Dataset({"loss": ("step", [1.0, 0.5])}))["loss"])
        0.5
    """
    return data.isel({model_axis(data): -1})


def head_name(head: Mapping[Any, Any]) -> str:
    """The name of the head at an index.

    Example:
        >>> head_name({"layer": 0, "head": 1})
        'L0H1'
    """
    return components.head_name(int(head["layer"]), int(head["head"]))


def head_names(data: xr.Dataset) -> list[str]:
    """The names of all heads, in the order of the flattened axes `layer` and `head`.

    Example:
        >>> head_names(xr.Dataset({"spread": (("layer", "head"), [[0.1, 0.2]])}))
        ['L0H0', 'L0H1']
    """
    return [components.head_name(*at) for at in np.ndindex(data.sizes["layer"], data.sizes["head"])]


def best_heads(values: xr.DataArray) -> dict[Hashable, xr.DataArray]:
    """For each model the head with the largest value, as an indexer; a NaN is never the largest.

    Example:
        >>> values = xr.DataArray([[[0.1, 0.9]], [[0.8, 0.2]]], dims=("step", "layer", "head"))
        >>> values.isel(best_heads(values)).values
        array([0.9, 0.8])
    """
    return dict(values.reset_coords(drop=True).fillna(-np.inf).argmax(("layer", "head")))


def is_nearest(kl: xr.DataArray) -> xr.DataArray:
    """Returns which predictors are nearest to a model, from KLs (nats) along `predictor`; several if equal.

    Example:
        >>> is_nearest(xr.DataArray([0.5, 0.1, 0.1], dims="predictor")).values
        array([False,  True,  True])
    """
    return kl <= kl.min("predictor") + TIE_NATS


def imitates(kl: xr.DataArray, error: xr.DataArray) -> bool | None:
    """Returns whether a model clearly predicts like its nearest predictor, from KLs (nats) along `predictor`.

    It does within 0.01 nats, or a tenth of the distance to the next predictor that is not its equal.

    Args:
        kl: From each predictor.
        error: Their standard errors.

    Returns:
        None if the 95 % interval of the smallest holds the limit.

    Example:
        >>> def near(nats): return xr.DataArray([nats, 0.5], dims="predictor")
        >>> [imitates(near(nats), 0 * near(nats) + 0.005) for nats in (0.03, 0.045, 0.07)]
        [True, None, False]
    """
    next_one = float(kl.where(~is_nearest(kl)).min("predictor").fillna(0))
    limit = max(IMITATION_NATS, IMITATION_SHARE * next_one)
    nearest = kl.argmin("predictor")
    low, high = normal_interval(float(kl[nearest]), float(error[nearest]))
    return None if low < limit <= high else high < limit


def interval_at(data: xr.Dataset, name: str, **where: Hashable) -> tuple[float, float]:
    """The last model's interval of a variable: its `<name>_low` and `<name>_high` at some labels.

    Example:
        >>> data = xr.Dataset({"gain_low": ("step", [0.1, 0.2]), "gain_high": ("step", [0.3, 0.4])})
        >>> interval_at(data, "gain")
        (0.2, 0.4)
    """
    low, high = (float(data[f"{name}_{end}"].sel(where)[-1]) for end in ("low", "high"))
    return low, high


def normal_interval(value: float, standard_error: float, least: float = -np.inf) -> tuple[float, float]:
    """The 95 % interval of a value, `value ± 1.96 standard errors`; `least` is the smallest value there is.

    Example:
        >>> normal_interval(1.0, 1.0, least=0.0)
        (0.0, 2.96)
    """
    return max(least, value - NORMAL_95 * standard_error), max(least, value + NORMAL_95 * standard_error)


def score_with_null(
    quantity: Callable[[xr.Dataset], xr.DataArray],
    data: xr.Dataset,
    null: xr.Dataset | None,
    unit: str,
    *,
    interval: tuple[float, float] | None = None,
    reason: str | None = None,
) -> Score:
    """The last model's value of a quantity, next to that of the null models, where there are any.

    Args:
        quantity: Reads one value of each model, `[axis]`, from `data` or from `null`.
        data: What a probe measured of a run.
        null: That of fresh models, or None.
        unit: The unit of the quantity.
        interval: The 95 % interval of the value.
        reason: Why there is no value, where it is not finite.

    Example:
        >>> data = xr.Dataset({"loss": ("step", [1.0, 0.5])})
        >>> fresh = xr.Dataset({"loss": ("seed", [1.0, 1.1, 1.2])})
        >>> print(score_with_null(lambda d: d["loss"], data, fresh, "nats"))
        0.5 nats, null 1.1 (1.005 to 1.195)
    """
    value = float(quantity(data)[-1])
    if not np.isfinite(value):
        return Score(None, unit, reason=reason or f"the value is {value}")
    band = None if null is None else null_band(quantity(null))
    return Score(value, unit, band, interval, None if band is None else NULL_KIND)
