"""The models in a file: which of its dicts are weights of a known layout, and how their names begin."""

import re
import shlex
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechmarkov.importing.layout import plain_name
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import RunFileError, readable
from mechmarkov.utils.text import NAME_CHARACTERS, listed, printable, shown

MAX_DEPTH = 8
MAX_MODELS = 1000  # apart from histories
MAX_NAMES_SHOWN = 8
# Keys of a dict of checkpoints: a number, or a word for it and a number.
NUMBERED = re.compile(
    r"(?:(?:step|steps|iter|itr|iteration|epoch|checkpoint|ckpt)[-_= ]?)?([0-9]{1,15})", re.I
)


@dataclass(frozen=True)
class Layouts:
    """The known names.

    Attributes:
        marks: Names of which every model of a layout has one, the longest first.
        recognises: Whether names, without what stands before them, are of a layout.
        is_mark: Whether a name is one that every model has, where no list can tell.
        heads: Names of an unembedding that may lie next to the module of all other weights.
    """

    marks: tuple[str, ...]
    recognises: Callable[[Container[str]], bool]
    is_mark: Callable[[str], bool] = lambda _: False
    heads: tuple[str, ...] = ()

    def before(self, name: str) -> str | None:
        """Returns what stands before a mark in a name, or None where there is none."""
        parts = name.split(".")
        ends = [".".join(parts[i:]) for i in range(len(parts))]
        mark = next((x for x in self.marks if name == x or name.endswith(f".{x}")), None)
        mark = mark or next((end for end in ends if self.is_mark(end)), None)
        return None if mark is None else name[: len(name) - len(mark)]


@dataclass(frozen=True)
class StateDict:
    """The weights of a model.

    Attributes:
        keys: Where in the file their dict is.
        prefix: What stands before every name.
        plans: The plan of each tensor, by its name without the prefix and without the parts of wrappers.
        names: What the file calls each.
        beside: The names of other tensors in their dict.
        around: The dicts that they lie in, from inside out, the first their own.
    """

    keys: tuple[str, ...]
    prefix: str
    plans: dict[str, TensorPlan]
    names: Mapping[str, str]
    beside: tuple[str, ...]
    around: tuple[Mapping[Any, Any], ...]

    def called(self, name: str) -> str:
        """Returns what the file calls a weight, or would call one that it does not have."""
        return self.names.get(name, self.prefix + name)

    @property
    def is_wrapped(self) -> bool:
        """Returns whether wrappers put parts into names beyond the prefix."""
        own = (name.removeprefix(self.prefix) for name in self.names.values())
        return any(plain_name(name) != name for name in own)

    @property
    def place(self) -> tuple[str, ...]:
        """Returns the keys on the way to the dict, and then the parts of the prefix."""
        return (*self.keys, *self.prefix.split(".")[:-1])


@dataclass(frozen=True)
class Found:
    """One model in a file, or a history of it.

    Attributes:
        members: Its weights, at several training steps where it is a history.
        steps: The steps of a history, where keys of its dict say them.
        place: The keys on the way, and the parts of the prefix of one model.
        identity: A name for one thing that the file holds in two places.
        is_history: Whether it is a history of one model.
    """

    members: tuple[StateDict, ...]
    steps: tuple[int, ...] | None
    place: tuple[str, ...]
    identity: Any
    is_history: bool = False


def find(content: Any, layouts: Layouts) -> list[Found]:
    """Find every model of a known layout in what a file holds, however deep in dicts and lists.

    Raises:
        RunFileError: The file holds thousands of models.
    """
    known: dict[int, list[Found]] = {}

    def inside(value: Any, depth: int) -> list[Found]:
        if type(value) not in (dict, list, tuple) or depth > MAX_DEPTH:
            return []
        if id(value) not in known:
            known[id(value)] = []  # a structure that holds itself ends here
            known[id(value)] = held_by(value, depth)
            if len(known[id(value)]) > MAX_MODELS:
                raise RunFileError(f"it holds more than {MAX_MODELS} models")
        return known[id(value)]

    def held_by(value: Any, depth: int) -> list[Found]:
        if type(value) is not dict:
            parts = {f"[{i}]": inside(item, depth + 1) for i, item in enumerate(value)}
            history = _history(list(parts.values()), value, ())
            return [history] if history else _below(parts, ())
        parts = {key: part for key, item in value.items() if (part := inside(item, depth + 1))}
        history = _history(list(parts.values()), value, _numbers(parts))
        return _in_one_dict(value, layouts) + ([history] if history else _below(parts, (value,)))

    return inside(content, 0)


def _below(parts: Mapping[Any, list[Found]], around: tuple[Mapping[Any, Any], ...]) -> list[Found]:
    """Returns what lies deeper, each once, with the key on the way to it."""
    by_identity: dict[Any, Found] = {}
    for key, models in parts.items():
        name = str(key)
        for model in models:
            members = tuple(
                replace(one, keys=(name, *one.keys), around=(*one.around, *around)) for one in model.members
            )
            by_identity.setdefault(
                model.identity, replace(model, members=members, place=(name, *model.place))
            )
    return list(by_identity.values())


def _in_one_dict(value: dict[Any, Any], layouts: Layouts) -> list[Found]:
    """The models whose weights are entries of this dict: more than one where names begin in several ways."""
    tensors = [name for name, x in value.items() if type(name) is str and type(x) is TensorPlan]
    plain = {name: plain_name(name) for name in tensors}
    begins = {begin for name in plain.values() if (begin := layouts.before(name)) is not None}
    prefixes = [
        prefix
        for prefix in sorted(begins, key=len, reverse=True)[:MAX_MODELS]
        if layouts.recognises({x.removeprefix(prefix) for x in plain.values() if x.startswith(prefix)})
    ]
    groups: dict[str, dict[str, str]] = {prefix: {} for prefix in prefixes}
    beside = []
    for name, short in plain.items():
        longest = next((prefix for prefix in prefixes if short.startswith(prefix)), None)
        if longest is None or short.removeprefix(longest) in groups[longest]:
            beside.append(name)
        else:
            groups[longest][short.removeprefix(longest)] = name
    by_short = {short: name for name, short in plain.items()}
    models = []
    for prefix, group in groups.items():
        own = _common(group)
        above = "".join(f"{part}." for part in prefix.split(".")[:-2])
        for head in layouts.heads if prefix else ():
            one_above = by_short.get(above + head, "")
            if head not in group and one_above in beside:
                group[head] = one_above
                beside.remove(one_above)
        plans = {short: value[name] for short, name in group.items()}
        one = StateDict((), own, plans, group, tuple(beside), (value,))
        models.append(Found((one,), None, one.place, (id(value), one.prefix)))
    return models


def _common(group: Mapping[str, str]) -> str:
    """Returns what stands before all names of a model, as the file has it, parts of wrappers among it."""
    first, *others = (name.split(".")[: -short.count(".") - 1] for short, name in group.items())
    shared = first
    for parts in others:
        same = [one == other for one, other in zip(shared, parts, strict=False)]
        shared = shared[: same.index(False) if False in same else len(same)]
    return "".join(f"{part}." for part in shared)


def _numbers(keys: Collection[Any]) -> tuple[int, ...] | None:
    """The training steps that the keys of a dict say, or None."""
    numbers = []
    for key in keys:
        match = NUMBERED.fullmatch(str(key)) if type(key) in (int, str) else None
        if match is None:
            return None
        numbers.append(int(match[1]))
    return tuple(numbers)


def _history(parts: list[list[Found]], value: Any, steps: tuple[int, ...] | None) -> Found | None:
    """A list, or a dict by training step, whose every item holds one and the same model."""
    alike = {(model.place, model.is_history) for part in parts for model in part}
    if steps is None or not parts or any(len(part) != 1 for part in parts) or len(alike) != 1:
        return None
    if any(model.is_history for part in parts for model in part):
        return None
    members = tuple(part[0].members[0] for part in parts)
    return Found(members, steps or None, (), id(value), is_history=True)


def choose(models: Sequence[Found], weights: str | None) -> Found:
    """Choose the one model that is asked for.

    Args:
        models: Those that `find` returns.
        weights: A key on the way to it, or what its names begin with; None where there is only one.

    Raises:
        RunFileError: Naming all of them, and the call that chooses.
    """
    labels = _labels(models)
    if weights is not None and len(models) == 1 and not _is_part(tuple(weights.split(".")), models[0].place):
        raise RunFileError(f"--weights is {shown(weights)}, but it holds one model: leave out --weights")
    if weights is None:
        if len(models) == 1:
            return models[0]
        calls = " or ".join(
            f"--weights {shlex.quote(printable(label, NAME_CHARACTERS))}" for label in labels[:2]
        )
        raise RunFileError(
            f"it holds {len(models)} models, {_named(labels)}: choose with {calls}, "
            f"or weights={shown(labels[-1])} in Python"
        )
    parts = tuple(weights.split("."))
    exact = [model for model, label in zip(models, labels, strict=True) if label == weights]
    matching = exact or [model for model in models if _is_part(parts, model.place)]
    if len(matching) != 1:
        raise RunFileError(f"--weights is {shown(weights)}, expected one of {_named(labels)}")
    return matching[0]


def _named(labels: Sequence[str]) -> str:
    more = ["others"] if len(labels) > MAX_NAMES_SHOWN else []
    return listed([*map(readable, labels[:MAX_NAMES_SHOWN]), *more])


def _labels(models: Sequence[Found]) -> list[str]:
    """Returns what each model is called: the first part of its place that not all of them share."""
    places = [model.place for model in models]
    shared = 0
    while len({place[shared : shared + 1] for place in places}) == 1 and all(
        len(place) > shared + 1 for place in places
    ):
        shared += 1
    labels = [place[shared] if len(place) > shared else "." for place in places]
    return labels if len(set(labels)) == len(labels) else [".".join(place) or "." for place in places]


def _is_part(parts: tuple[str, ...], place: tuple[str, ...]) -> bool:
    return any(place[i : i + len(parts)] == parts for i in range(len(place)))
