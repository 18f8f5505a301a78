"""What is read from measured attention: the parent's share, the lag that stands out, whether it is flat."""

from typing import Any

import xarray as xr

# Attention counts as flat if the most and the least attended token differ by less than this share of uniform.
FLAT_SHARE = 0.01

# Lag classes count as looked at together if they hold this share of the attention.
CLASS_SHARE = 0.95

# A head is named by what it looks at if that gets more than this share of the way from uniform attention to
# all of it.
MIN_ATTENTION = 0.5
# A lag that fewer predictions reach is not one that a head looks at.
MIN_REACH = 0.25
MOST_REACH = 0.9  # above, nearly all predictions do

# A head reads a token at some positions if each gives it more than this share of the way from uniform
# attention to all of it, and each other one less than the second: at this many positions, and not at others.
MIN_READ, MAX_UNREAD = 0.75, 0.25
MIN_PLACES = 3
MIN_AWAY, FEW_AWAY = 2, 0.1  # positions, and share of them, at which a head does not look there


def is_looked_at(mass: Any, uniform: Any) -> Any:
    """Returns whether a head looks at something: over half of the way from uniform attention to all of it.

    Args:
        mass: The head's attention on it (probability), or an array of such.
        uniform: The attention that a uniform head gives it, likewise.

    Example:
        >>> is_looked_at(0.7, uniform=0.1), is_looked_at(0.7, uniform=0.5)
        (True, False)
    """
    return mass > MIN_ATTENTION + (1 - MIN_ATTENTION) * uniform


def parent_score(data: xr.Dataset) -> xr.DataArray:
    """Each head's mean attention on the parent, [axis, layer, head] (probability).

    Args:
        data: What `measure` returned. 0 where no prediction reaches as far back as the parent.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probes.attention import probe
        >>> data = probe.measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> parent_score(data).round(2).values.tolist()
        [[[1.0]]]
    """
    return on_parent(data, "lag_mass")


def on_parent(data: xr.Dataset, name: str) -> xr.DataArray:
    """A variable of what `measure` returned, at the parent's lag; 0 where no prediction reaches that far.

    Args:
        data: What `measure` returned.
        name: A variable over `lag`, such as "lag_mass" or "reach".
    """
    lag = int(data.attrs["source_lag"])
    return data[name].reindex(lag=[lag], fill_value=0.0).isel(lag=0, drop=True)


def best_lag(data: xr.Dataset) -> int:
    """For the last model, the lag with the most attention of any head (the query token's own apart).

    The attention is that over all predictions, those that do not reach so far too. A head that always looks
    at the first token has all its attention at lag N in the one prediction that reaches that far: that is not
    a lag it looks at.

    Args:
        data: What `measure` returned.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probes.attention import probe
        >>> best_lag(probe.measure(mm.Subject.of(mm.example("walk"), sequences=8)))
        1
    """
    over_all = (data["lag_mass"] * data["reach"]).sel(lag=slice(1, None))
    return int(over_all.max(("layer", "head")).idxmax("lag")[-1])


def real_tokens(data: xr.Dataset) -> slice:
    """The indices of the keys that the last prediction may look at and that are states of the sequence.

    Args:
        data: What `measure` returned; its attributes say where a query token or a first token stands.
    """
    return slice(int(data.attrs["first_seen"]), int(data.attrs["real_tokens"]))


def uniform_share(last: xr.Dataset) -> float:
    """The mean attention (probability) that the last prediction gives to a state of the sequence.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    return float(last["last_mass"].isel(key=real_tokens(last)).mean())


def is_flat(last: xr.Dataset) -> bool:
    """Returns whether no head of one model tells the states of the sequence apart.

    In the last prediction the most and the least attended differ by less than 1 % of a uniform share; over
    all predictions, each head's attention goes to as many tokens as it can (`is_flat_everywhere`).

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probes.attention import probe
        >>> is_flat(probe.measure(mm.Subject.of(mm.example("walk"), sequences=8)).isel(step=-1))
        False
    """
    if float(last["spread"].max()) >= FLAT_SHARE * uniform_share(last):
        return False
    if last.attrs["predictions"] == 1:
        return True
    mass, uniform = (last[name].sel(lag=slice(1, None)) for name in ("lag_mass", "uniform_mass"))
    return not bool((abs(mass - uniform) > FLAT_SHARE * uniform).any())


def is_flat_everywhere(last: xr.Dataset) -> bool:
    """Returns whether one model's attention goes to as many tokens as it can, in every prediction of many.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
    """
    tokens, uniform = last["effective_tokens"], last.attrs["uniform_tokens"]
    return last.attrs["predictions"] > 1 and bool(tokens.min() >= (1 - FLAT_SHARE**2) * uniform)
