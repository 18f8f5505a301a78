"""The settings of somebody's model: its config, whatever kind of object, and what its modules keep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import nn

from mechmarkov.importing.live.inside import Inside
from mechmarkov.utils.exits import without_faults

CONFIGS = ("config", "cfg", "args", "hparams")  # the attributes that a config is kept in
HEADS = ("n_head", "n_heads", "num_heads", "num_attention_heads", "nhead", "heads", "nh")
PLAIN = (nn.Module, str, bytes, bool, int, float, list, set, type(None))  # these are not a config


def settings_of(config: Any) -> dict[str, Any] | None:
    """Returns a config's fields by name: of a mapping, a NamedTuple, a dataclass, an object or a class.

    >>> from types import SimpleNamespace
    >>> settings_of(SimpleNamespace(n_head=2)), settings_of({"n_head": 2}), settings_of(3)
    ({'n_head': 2}, {'n_head': 2}, None)
    """
    if isinstance(config, Mapping):
        return {str(name): value for name, value in config.items()}
    if isinstance(config, tuple):
        return dict(zip(config._fields, config, strict=True)) if hasattr(config, "_fields") else None
    if isinstance(config, PLAIN):
        return None
    if not isinstance(config, type):
        with without_faults():  # somebody's method, which may want arguments
            if isinstance(data := config.to_dict(), Mapping):
                return settings_of(data)
        if is_dataclass(config):
            return {field.name: getattr(config, field.name, None) for field in fields(config)}
    return dict(_attributes(config)) or None


def _attributes(config: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object and its class keep, with neither methods nor private names."""
    kinds = (config if isinstance(config, type) else type(config)).__mro__[:-1]
    for kind in reversed(kinds):
        slots = vars(kind).get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else slots
        for name, value in vars(kind).items():
            in_slot = not isinstance(config, type) and name in slots and hasattr(config, name)
            if not name.startswith("_") and (in_slot or not (callable(value) or hasattr(value, "__get__"))):
                yield name, getattr(config, name) if in_slot else value
    if not isinstance(config, type):
        yield from ((x, y) for x, y in getattr(config, "__dict__", {}).items() if not x.startswith("_"))


def configs(live: Inside) -> Iterator[dict[str, Any]]:
    """Yields the configs of a model and of what holds it, as mappings of their fields."""
    for module in dict.fromkeys((live.model, live.holder)):
        for name in CONFIGS:
            if (settings := settings_of(getattr(module, name, None))) is not None:
                yield settings


def norm_first(live: Inside) -> bool | None:
    """Returns whether a model's blocks say that norms stand first: torch's `norm_first`, or `pre_norm`."""
    says = {vars(part).get(name) for part in live.model.modules() for name in ("norm_first", "pre_norm")}
    told = says & {True, False}
    return told.pop() if len(told) == 1 else None


def n_heads(live: Inside) -> list[int]:
    """Returns the numbers of heads that a model says; minGPT's GPT keeps no config at all."""
    return numbers_called(live, HEADS)


def numbers_called(live: Inside, names: Sequence[str]) -> list[int]:
    """Returns the integers that a model keeps under some names.

    Its blocks are asked first, for they are what computes; then its configs, then itself.
    """
    inner = (vars(part) for name, part in live.model.named_modules() if name)
    own_configs = list(configs(live))
    sections = (part for one in own_configs for value in one.values() if (part := settings_of(value)))
    for holders in (inner, own_configs, sections, (vars(part) for part in (live.model, live.holder))):
        numbers = {holder[name] for holder in holders for name in names if type(holder.get(name)) is int}
        if numbers:
            return sorted(numbers)
    return []
