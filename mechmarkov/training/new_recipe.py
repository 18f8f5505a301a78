"""A recipe for a decoder on any kind of source, in TOML, with a comment for what one would change."""

import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from mechmarkov.catalogue import check_source
from mechmarkov.objectives import Objective
from mechmarkov.sources import OrderK
from mechmarkov.sources.base.registry import load_source, source_from_data
from mechmarkov.sources.base.source import Source
from mechmarkov.training.model_sections import DecoderSection
from mechmarkov.training.recipe import Recipe, RecipeError
from mechmarkov.training.recipe_fields import RecipeField, fields_of, first_sentence
from mechmarkov.training.sections import AdamW, Checkpoints, Data, Init
from mechmarkov.utils.text import shown

WIDTH = 100  # of a comment
WRITTEN_OUT = ("chain", "order_k")  # sources whose whole law stands in a recipe
MAX_WRITTEN_OUT = 10_000  # numbers of it
SHOWN: dict[str, tuple[str, ...]] = {  # what a person would change; docs/recipes.md has all
    "": ("frozen", "precision"),
    "model": (
        "attn_only", "d_mlp", "act_fn", "normalization_type", "positional_embedding_type", "tied", "window",
        "mixer",
    ),
    "objective": ("kind",),
    "init": ("scheme", "std"),
    "optimiser": ("weight_decay", "schedule", "warmup", "max_grad_norm"),
    "data": ("n_train", "population"),
    "checkpoints": ("every", "at"),
}  # fmt: skip


def new_recipe(
    source: str,
    *,
    layers: int | None = None,
    heads: int = 1,
    width: int = 32,
    context: int | None = None,
    states: int | None = None,
    order: int | None = None,
    steps: int = 1000,
) -> str:
    """Write a recipe for a decoder on a kind of source, in TOML with comments; it trains as it is.

    Args:
        source: A kind of source, such as "circle"; `mechmarkov list` has all.
        layers: Layers; by default 1, and 2 for a source that draws a new chain for every sequence.
        heads: Heads a layer.
        width: Width of the residual stream, a multiple of `heads`.
        context: Tokens that the model reads; by default 64, or what the source's sequences have.
        states: States of the source; by default its example's.
        order: States back that the law of a `chain`, an `order_k` or `dirichlet_chains` looks. A chain of
            order 2 or more is an `order_k`. Its law is written out, drawn from seed 0.
        steps: Steps of the training.

    Raises:
        RecipeError: One line, for a source that has no example, or numbers that do not fit.
        ValueError: One line, for a source that is not registered.

    Example:
        >>> text = new_recipe("circle", width=8)
        >>> text.splitlines()[1]
        '# Train it: mechmarkov train FILE'
        >>> Recipe.from_data(tomllib.loads(text)).model.d_model
        8
    """
    if heads < 1 or width % heads:
        raise RecipeError(f"heads is {heads}, expected a divisor of the width, {width}")
    data = _sized(_example_of(source), states, order)
    example = source_from_data(data)
    given: dict[str, dict[str, Any]] = {
        "": {"name": f"my-{source.replace('_', '-')}", "steps": steps},
        "source": data,
        "model": {
            "kind": "decoder",
            "n_layers": layers or (2 if example.redraws else 1),
            "d_model": width,
            "n_heads": heads,
            "d_head": width // heads,
            "n_ctx": context or (64 if example.length is None else example.length - 1),
        },
        "objective": {"read": "all" if example.length is None else "last"},
        "init": {},
        "optimiser": {"kind": "adamw", "lr": AdamW().lr},
        "data": {"batch": 32},
        "checkpoints": {"log": 20},
    }
    models: dict[str, type[BaseModel]] = {
        "": Recipe, "source": type(example), "model": DecoderSection, "objective": Objective, "init": Init,
        "optimiser": AdamW, "data": Data, "checkpoints": Checkpoints,
    }  # fmt: skip
    text = "\n".join(
        [f"# {example.title()}.", "# Train it: mechmarkov train FILE", "", *_lines(given, models)]
    )
    Recipe.from_data(tomllib.loads(text))
    return text + "\n"


def _example_of(kind: str) -> Source:
    """The small example of a kind of source.

    Raises:
        RecipeError: It has none.
        ValueError: No source is registered for the kind.
    """
    check_source(kind)
    model = load_source(kind)
    needed = [field.name for field in fields_of(model) if field.default is ...]
    if needed and not model.example:
        raise RecipeError(
            f"source {kind!r} has no example, expected data of your own ({', '.join(needed)}): make it in "
            "Python and put it in the recipe of another kind, "
            "load_recipe(…).replace(source=source.model_dump())"
        )
    return source_from_data({"kind": kind, **model.example})


def _sized(example: Source, states: int | None, order: int | None) -> dict[str, Any]:
    """The data of an example, with that many states and a law that looks that far back.

    Raises:
        RecipeError: The source has no such field, or its law is too large to be written out.
    """
    kind, fields = example.kind, {field.name for field in fields_of(type(example))}
    data: dict[str, Any] = {"kind": kind, **type(example).example}
    if states is None and order is None:
        return data
    if kind in WRITTEN_OUT:
        return _drawn(
            states or example.n_states, order or (example.order if isinstance(example, OrderK) else 1)
        )
    for name, field, value in (("states", "n_states", states), ("order", "order", order)):
        if value is not None and field not in fields:
            sized = "chain, order_k, dirichlet_chains" if field == "order" else "chain, circle, …"
            raise RecipeError(
                f"{name} is {value}, but source {kind!r} has no field {field}, expected such as {sized}"
            )
        data |= {} if value is None else {field: value}
    if kind == "graph" and states is not None:  # as the example: a ring, and one chord
        ring = [[node, (node + 1) % states] for node in range(states if states > 2 else 1)]
        data["edges"] = ring + ([[0, 2, 2.0]] if states > 3 else [])
    return data | ({"start": "uniform"} if (order or 1) > 1 else {})  # the only law of such an order


def _drawn(states: int, order: int) -> dict[str, Any]:
    """A law of thousandths, none of them 0, drawn from seed 0."""
    # A power of thousands of digits would be computed for minutes.
    if order >= MAX_WRITTEN_OUT.bit_length() or states ** (order + 1) > MAX_WRITTEN_OUT:
        raise RecipeError(
            f"order is {shown(order)} on {shown(states)} states, expected a law of at most "
            f"{MAX_WRITTEN_OUT:,} numbers"
        )
    random = np.random.default_rng(0)
    rows = random.multinomial(1000 - states, random.dirichlet(np.ones(states), states**order)) + 1
    kernel = (rows / 1000).reshape([states] * (order + 1)).tolist()
    return {"kind": "chain", "P": kernel} if order == 1 else {"kind": "order_k", "kernel": kernel}


def _lines(given: Mapping[str, Mapping[str, Any]], models: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    for section, model in models.items():
        values = given[section]
        if section:
            yield from ("", f"[{section}]")
        if "kind" in values:
            yield f"kind = {toml(values['kind'])}"
        known = {field.name: field for field in fields_of(model)}
        for name, value in values.items():
            if name != "kind":
                yield from _comment(known[name], value)
                yield f"{name} = {toml(value)}"
        for name in SHOWN.get(section, [name for name in known if name not in values]):
            default = known[name].default
            yield from _comment(known[name], default)
            yield f"# {name} = {'…' if default is None or known[name].follows else toml(default)}"


def _comment(field: RecipeField, value: Any) -> Iterator[str]:
    """The field's meaning, its type, and its default where the line below does not show it."""
    parts = [first_sentence(field.meaning), f"Takes: {field.type}." if field.type else ""]
    if field.default is None and not field.follows:
        parts.append("Not given by default.")
    elif field.default not in (..., value) and not field.follows:
        parts.append(f"Default: {toml(field.default)}.")
    text = " ".join(part for part in parts if part)
    yield from textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def toml(value: Any) -> str:
    """Write a plain value as TOML does on one line, which is JSON's way for all but tables.

    Example:
        >>> toml([True, 2]), toml({"p": 0.5})
        ('[true, 2]', '{ p = 0.5 }')
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
