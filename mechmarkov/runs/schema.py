"""The contract of `run.pt`, version 1, checked field by field.

Every check looks at memory-mapped tensors and at configs whose numbers are capped; nothing in proportion to
what a file claims is allocated before its shapes are known to be right.
"""

import math
from typing import Any, TypedDict, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.models.shapes import parameter_shapes
from mechmarkov.objectives import Objective, check_length
from mechmarkov.safe.plain_data import (
    FROM_ELSEWHERE,
    RUN_FORMAT,
    RunFileError,
    check_plain,
    describe,
    is_plain_tensor,
    readable,
)
from mechmarkov.sources import Source
from mechmarkov.sources.base.registry import validated_source
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.lazy_torch import Tensor
from mechmarkov.utils.text import printable, quoted, shown

VERSION = 1
FLOAT, INTEGERS = "torch.float32", "torch.int64"  # of weights; of steps
CHUNK_STEPS = 1 << 22  # compared at once, so that no mask of a file's size is made
Config = TypeVar("Config", bound=BaseModel)


class Fields(TypedDict):
    """The checked content of a run file: the arguments of `Run`."""

    config: DecoderConfig
    source: Source
    objective: Objective
    trainable: Slices | None
    recipe: dict[str, Any] | None
    seed: int | None
    steps: Tensor
    states: dict[str, Tensor]
    metrics: dict[str, dict[str, Tensor]]
    provenance: dict[str, Any]


# A file's key of the shape is "model", as in a recipe.
KEYS = ("format", "version", "model", *[name for name in Fields.__annotations__ if name != "config"])


def parse(data: dict[str, Any]) -> Fields:
    """Check the plain content of a run file, and give its parts their types; tensors are not copied.

    Args:
        data: The dict that `mechmarkov.safe.file.read` returns.

    Returns:
        The arguments of `Run`.

    Raises:
        RunFileError: One line that names the field, what it is and what was expected.

    Example:
        >>> parse({"format": "other"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: format is "other", expected "mechmarkov.run"; ...
    """
    _check_header(data)
    model = _config(DecoderConfig, data["model"], "model")
    objective = _config(Objective, data["objective"], "objective")
    source = _source(data["source"])
    check_consistent(model, source, objective)
    steps = _ascending(_tensor(data["steps"], "steps", INTEGERS), "steps", least=1)
    shapes = _expected_shapes(model, data["states"])
    return Fields(
        config=model,
        source=source,
        objective=objective,
        trainable=_trainable(data["trainable"], shapes),
        recipe=_recipe(data["recipe"]),
        seed=_seed(data["seed"]),
        metrics=_metrics(data["metrics"]),
        provenance=_provenance(data["provenance"]),
        steps=steps,
        states=_states(data["states"], shapes, steps, model),
    )


def dump(fields: Fields) -> dict[str, Any]:
    """Returns the content of a run file as plain values and tensors: the reverse of `parse`."""
    configs = {"model": fields["config"], "source": fields["source"], "objective": fields["objective"]}
    plain = {key: config.model_dump(mode="json") for key, config in configs.items()}
    data = {"format": RUN_FORMAT, "version": VERSION, **fields, **plain}
    return {key: data[key] for key in KEYS}


def check_consistent(model: DecoderConfig, source: Source, objective: Objective) -> None:
    """Refuse a model that cannot read its source's states or cannot predict them.

    `d_vocab` is the number of states, and one more where there is a query token or one that sequences begin
    with; `d_vocab_out` is the number of states.

    Raises:
        RunFileError: Naming the field of the model.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=5, d_head=4, d_vocab=3, attn_only=True)
        >>> check_consistent(config, Binary(p=0.5, q=0.8), Objective())
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: model.d_vocab is 3, but the source has 2 states
    """
    states = source.n_states
    extra = "a query token" if objective.query else "a beginning-of-sequence token"
    tokens = f"{states} states and {extra}" if objective.n_extra else f"{states} states"
    if model.d_vocab != states + objective.n_extra:
        raise RunFileError(f"model.d_vocab is {model.d_vocab}, but the source has {tokens}")
    if model.d_vocab_out != states:
        raise RunFileError(f"model.d_vocab_out is {model.d_vocab_out}, but the source has {states} states")
    if model.n_ctx < 1 + objective.n_extra:
        raise RunFileError(f"model.n_ctx is {model.n_ctx}, expected at least a state and {extra}")
    try:
        check_length(source, objective, model.n_ctx)
    except ValueError as error:
        raise RunFileError(str(error)) from None


def _check_header(data: dict[str, Any]) -> None:
    """Format, then version (a newer one may have other keys), then the keys."""
    if data.get("format") != RUN_FORMAT or type(data["format"]) is not str:
        found = quoted(data["format"]) if type(data.get("format")) is str else describe(data.get("format"))
        raise RunFileError(f"format is {found}, expected {quoted(RUN_FORMAT)}; {FROM_ELSEWHERE}")
    version = data.get("version")
    if type(version) is not int:
        raise RunFileError(f"version is {describe(version)}, expected the integer {VERSION}")
    if version > VERSION:
        raise RunFileError(f"version is {version}, this mechmarkov reads up to {VERSION}: upgrade mechmarkov")
    if version != VERSION:
        raise RunFileError(f"version is {version}, expected {VERSION}")
    _exact_keys(data, KEYS, "")


def _exact_keys(data: dict[str, Any], keys: tuple[str, ...], path: str) -> None:
    prefix = f"{path}." if path else ""
    for key in keys:
        if key not in data:
            raise RunFileError(f"{prefix}{key} is missing")
    for key in data:
        if key not in keys:
            raise RunFileError(f"{prefix}{readable(key)} is unknown")


def _dict(value: Any, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise RunFileError(f"{path} is {describe(value)}, expected a dict")
    return value


def _plain(value: Any, path: str) -> dict[str, Any]:
    """A dict without tensors."""

    def refuse(tensor: Tensor, where: str) -> None:
        raise RunFileError(f"{where} is {describe(tensor)}, expected a plain value")

    check_plain(value, refuse, path=path)
    return _dict(value, path)


def _check_numbers(value: Any, path: str) -> None:
    """Refuse numbers that JSON, and so a summary, has no word for."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(item, f"{path}.{readable(key)}" if isinstance(key, str) else f"{path}[{key}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise RunFileError(f"{path} is {value}, expected a finite number")


def _config(kind: type[Config], value: Any, name: str) -> Config:
    try:
        return kind.model_validate(_plain(value, name), strict=True)
    except ValidationError as error:
        raise RunFileError(one_line(error, kind, name=name)) from error


def _source(value: Any) -> Source:
    try:
        return validated_source(_dict(value, "source"))
    except ValidationError as error:
        raise RunFileError(one_line(error, name="source", skip=1)) from error
    except (ValueError, TypeError) as error:
        raise RunFileError(f"source: {printable(str(error), 200)}") from error


def _recipe(value: Any) -> dict[str, Any] | None:
    recipe = None if value is None else _plain(value, "recipe")
    check_recipe(recipe)
    _check_numbers(recipe, "recipe")
    return recipe


def _provenance(value: Any) -> dict[str, Any]:
    provenance = _plain(value, "provenance")
    _check_numbers(provenance, "provenance")
    return provenance


def _seed(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    raise RunFileError(f"seed is {describe(value)}, expected an integer or None")


def _tensor(value: Any, path: str, dtype: str) -> Tensor:
    if not is_plain_tensor(value):
        raise RunFileError(f"{path} is {describe(value)}, expected a tensor")
    if str(value.dtype) != dtype:
        raise RunFileError(f"{path} is a tensor of {value.dtype}, expected {dtype}")
    tensor: Tensor = value
    return tensor


def _numbers(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor, in its own memory where that is the processor's: for torch or without it."""
    return tensor.numpy(force=True)


def _ascending(values: Tensor, path: str, least: int) -> Tensor:
    """Training steps: at least that many, from 0 up, each after the one before."""
    if values.ndim != 1 or len(values) < least:
        raise RunFileError(f"{path} has shape {list(values.shape)}, expected [n] with n of at least {least}")
    numbers = _numbers(values)
    for start in range(0, len(numbers), CHUNK_STEPS):
        chunk = numbers[start : start + CHUNK_STEPS + 1]
        if int(chunk[0]) < 0 or bool((chunk[1:] <= chunk[:-1]).any()):
            raise RunFileError(f"{path} is not ascending from 0 up")
    return values


def _expected_shapes(model: DecoderConfig, states: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, from a decoder without memory, built only where the file could fill it."""
    names = _dict(states, "states")
    blocks = {name.split(".")[1] for name in names if name.startswith("blocks.")}
    if len(blocks) != model.n_layers:
        raise RunFileError(f"states hold {len(blocks)} blocks, but model.n_layers is {model.n_layers}")
    try:
        return parameter_shapes(model)
    except ValueError as error:  # a mixer that nothing here is called by
        raise RunFileError(f"model: {error}") from None


def _states(
    value: dict[str, Any], shapes: dict[str, tuple[int, ...]], steps: Tensor, model: DecoderConfig
) -> dict[str, Tensor]:
    """Every parameter's values at every step: names, types and shapes first, the numbers last."""
    n = len(steps)
    allowed = dict(shapes)
    if model.tied and "unembed.W_U" in value:  # HookedTransformer has it; here it is the embedding
        allowed["unembed.W_U"] = (model.d_model, model.d_vocab_out)
    for name in shapes:
        if name not in value:
            raise RunFileError(f"states[{quoted(name)}] is missing")
    for name in value:
        if name not in allowed:
            raise RunFileError(f"states[{quoted(name)}] is unknown, expected parameters of the model")
    for name, shape in allowed.items():
        tensor = _tensor(value[name], f"states[{quoted(name)}]", FLOAT)
        if tensor.ndim == 0 or tensor.shape[0] not in (1, n) or tuple(tensor.shape[1:]) != shape:
            steps_axis = "1" if n == 1 else f"{n} (or 1)"
            raise RunFileError(
                f"states[{quoted(name)}] has shape {list(tensor.shape)}, "
                f"expected [{', '.join([steps_axis, *map(str, shape)])}] by the model's config and {n} steps"
            )
    for name in allowed:
        _check_finite(value[name], name, steps)
    if len(allowed) > len(shapes):
        _check_tied(value["unembed.W_U"], value["embed.W_E"], model.d_vocab_out, steps)
    return {name: value[name] for name in shapes}


def _check_finite(tensor: Tensor, name: str, steps: Tensor) -> None:
    if _all_finite(_numbers(tensor)):
        return
    if len(tensor) == 1:
        raise RunFileError(f"states[{quoted(name)}] holds NaN or infinite values")
    of_steps = zip(steps.tolist(), _numbers(tensor), strict=True)
    first = next(step for step, values in of_steps if not _all_finite(values))
    raise RunFileError(f"states[{quoted(name)}] holds NaN or infinite values at step {first}")


def _all_finite(values: np.ndarray) -> bool:
    """Returns whether all values are finite; NaN and infinity show in the extremes, without a large mask."""
    return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def _check_tied(W_U: Tensor, W_E: Tensor, d_vocab_out: int, steps: Tensor) -> None:
    unembeds, embeds = _numbers(W_U), _numbers(W_E)
    for index, step in enumerate(steps.tolist()):
        unembed, embed = unembeds[min(index, len(unembeds) - 1)], embeds[min(index, len(embeds) - 1)]
        if not np.array_equal(unembed, embed[:d_vocab_out].T):
            raise RunFileError(
                f'model.tied is true, but states["unembed.W_U"] is not the transpose of '
                f'states["embed.W_E"] at step {step}'
            )


def _trainable(value: Any, shapes: dict[str, tuple[int, ...]]) -> Slices | None:
    if value is None:
        return None
    for name, slices in _plain(value, "trainable").items():
        path = f"trainable[{quoted(name)}]"
        if name not in shapes:
            raise RunFileError(f"{path} is unknown, expected parameters of the model")
        if slices is None:
            continue
        if type(slices) is not list or len(slices) != len(shapes[name]):
            raise RunFileError(
                f"{path} is {shown(slices)}, expected [start, stop] for each of {len(shapes[name])} axes"
            )
        for axis, (slice_, size) in enumerate(zip(slices, shapes[name], strict=True)):
            if type(slice_) is not list or [type(end) for end in slice_] != [int, int]:
                raise RunFileError(f"{path}[{axis}] is {shown(slice_)}, expected two integers, [start, stop]")
            if not 0 <= slice_[0] < slice_[1] <= size:
                raise RunFileError(f"{path}[{axis}] is {slice_}, expected 0 <= start < stop <= {size}")
    return _dict(value, "trainable")


def _metrics(value: Any) -> dict[str, dict[str, Tensor]]:
    """Curves: `step` `[m]` ascending, `value` `[m, ...]`."""
    for name, metric in _dict(value, "metrics").items():
        path = f"metrics[{quoted(name)}]"
        _exact_keys(_dict(metric, path), ("step", "value"), path)
        step = _ascending(_tensor(metric["step"], f"{path}.step", INTEGERS), f"{path}.step", least=0)
        curve = metric["value"]
        if not is_plain_tensor(curve) or curve.ndim == 0 or len(curve) != len(step):
            raise RunFileError(f"{path}.value is {describe(curve)}, expected a tensor with {len(step)} rows")
    return _dict(value, "metrics")


MOST_STD = 1e3  # as in a recipe


def check_recipe(recipe: dict[str, Any] | None) -> None:
    """Refuse a start or an optimiser that cannot be one.

    Args:
        recipe: Plain values; `init` and `optimiser` are tables, or not there.

    Raises:
        RunFileError: One line that names the field, its value and what was expected.

    Example:
        >>> check_recipe({"optimiser": {"kind": "gd", "lr": "fast"}})
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: recipe.optimiser.lr is 'fast', expected a number above 0
    """
    recipe = recipe or {}
    tables = {name: recipe.get(name) for name in ("init", "optimiser")}
    for name, table in tables.items():
        if table is not None and type(table) is not dict:
            raise RunFileError(f"recipe.{name} is {shown(table)}, expected a section")
    init, optimiser = tables["init"] or {}, tables["optimiser"] or {}
    _expect("optimiser.kind", optimiser.get("kind"), _is_text, "a text such as 'gd'")
    _expect("optimiser.lr", optimiser.get("lr"), lambda x: _is_number(x) and x > 0, "a number above 0")
    _expect("init.scheme", init.get("scheme"), _is_text, "a text such as 'normal'")
    expected = f"a number from 0 to {MOST_STD:g}"
    _expect("init.std", init.get("std"), lambda x: _is_number(x) and 0 <= x <= MOST_STD, expected)


def _expect(name: str, value: Any, good: Any, expected: str) -> None:
    if value is not None and not good(value):
        raise RunFileError(f"recipe.{name} is {shown(value)}, expected {expected}")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
