"""What each field of a recipe means, as the models that recipes are made of and their docstrings say."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mechmarkov.models.config import FOLLOWING
from mechmarkov.models.constructions.disentangled import DisentangledShape
from mechmarkov.models.constructions.walk import WalkShape
from mechmarkov.objectives import Objective
from mechmarkov.sources.base.registry import GROUP, load_source
from mechmarkov.training.model_sections import (
    ContextConditionedSection,
    DecoderSection,
    DisentangledSection,
    WalkSection,
)
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.sections import AdamW, Checkpoints, Data, GradientDescent, Init
from mechmarkov.utils.errors import schema_of
from mechmarkov.utils.plugins import registered

SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "source": (),  # any registered one
    "model": (DecoderSection, DisentangledSection, ContextConditionedSection, WalkSection),
    "objective": (Objective,),
    "init": (Init,),
    "optimiser": (AdamW, GradientDescent),
    "data": (Data,),
    "checkpoints": (Checkpoints,),
}
SHAPES: dict[type[BaseModel], type] = {  # whose docstrings describe a section's fields
    DisentangledSection: DisentangledShape,
    WalkSection: WalkShape,
}
FROM_SOURCE = ("d_vocab", "d_vocab_out")  # of a decoder's section
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
HEADINGS = re.compile(r"^(Args|Attributes|Raises|Example|Returns):$", re.MULTILINE)
TYPES = {"number": "number", "integer": "integer", "string": "text", "boolean": "true or false"}


@dataclass(frozen=True)
class RecipeField:
    """One field of a recipe.

    Attributes:
        name: The key as it is written.
        type: What it takes, in words.
        default: The plain value without it; `...` where it is required and None where it is left out.
        meaning: The entry of the class's docstring; empty where it has none.
    """

    name: str
    type: str
    default: Any
    meaning: str

    @property
    def follows(self) -> bool:
        """Returns whether its default follows from other fields."""
        return self.name in FOLLOWING and self.default in (-1, -1.0, None)


def fields_of(model: type[BaseModel]) -> Iterator[RecipeField]:
    """Yields the fields of one section of a recipe but its kind, in their order.

    Args:
        model: The section's class, such as `Init` of `[init]`; `models` yields all.

    Example:
        >>> [(field.name, field.default) for field in fields_of(Init)]
        [('scheme', 'gpt2'), ('std', 0.02), ('zero', ())]
    """
    meanings = _meanings(model)
    for key, field in model.model_fields.items():
        name = field.alias or key
        if key == "kind" and field.default and isinstance(field.default, str) and model is not Objective:
            continue
        if issubclass(model, DecoderSection) and name in FROM_SOURCE:
            continue
        default = ... if field.is_required() else field.get_default(call_default_factory=True)
        default = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
        yield RecipeField(name, _words(schema_of(field)), default, meanings.get(name, ""))


def models() -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Yields a section's name, its kind (empty where there is one only), and the class of its fields.

    Example:
        >>> [(section, kind) for section, kind, _ in models() if section in ("", "init", "optimiser")]
        [('', ''), ('init', ''), ('optimiser', 'adamw'), ('optimiser', 'gd')]
    """
    yield "", "", Recipe
    for section, held in SECTIONS.items():
        for model in held or [load_source(kind) for kind in registered(GROUP)]:
            several = not held or len(held) > 1
            yield section, str(model.model_fields["kind"].default) if several else "", model


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text.

    Example:
        >>> first_sentence("Width of e.g. a head. More.")
        'Width of e.g. a head.'
    """
    return re.split(r"(?<=[.!?]) (?=[A-Z`\"])", text, maxsplit=1)[0]


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The entries of a class's docstring, a base's where the class has none for a field."""
    meanings: dict[str, str] = {}
    described = [SHAPES[model]] if model in SHAPES else []
    for parent in [*described, *reversed(model.__mro__)]:
        text = parent.__dict__.get("__doc__") or ""
        parts = HEADINGS.split(inspect.cleandoc(text))
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            if title in ("Args", "Attributes"):
                meanings |= {name: " ".join(entry.split()) for name, entry in ENTRY.findall(body)}
    return meanings


def _words(schema: dict[str, Any]) -> str:
    """Words for what a field takes, as its JSON schema says."""
    if "$ref" in schema or "properties" in schema or "discriminator" in schema:
        return "section"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_words(s) for s in schema["anyOf"] if s.get("type") != "null"))
    if "enum" in schema:
        return ", ".join(f'"{value}"' for value in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if schema.get("type") == "array":
        held = TYPES.get(schema.get("items", {}).get("type", ""))
        return f"list of {held}s" if held else "list"
    # Of an optional field with an alias pydantic writes its own names of the bounds.
    low, high = schema.get("minimum", schema.get("ge")), schema.get("maximum", schema.get("le"))
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    bounds = {"from": low, "above": above, "to": high, "below": below}
    limits = [f"{word} {value:.15g}" for word, value in bounds.items() if value is not None]
    words = TYPES.get(schema.get("type", ""), "section" if "type" in schema else "")
    return " ".join([words, *limits])


def recipe_schema() -> dict[str, Any]:
    """Returns the JSON schema of a recipe, of every registered source and of every model.

    It differs from pydantic's where a file does: a decoder's vocabulary is left out, None is written "none",
    and checkpoints may be a bare list.
    """
    sources: list[type[BaseModel]] = [load_source(kind) for kind in registered(GROUP)]
    held: list[type[BaseModel]] = [Recipe, *sources]
    refs, schema = models_json_schema(
        [(model, "validation") for model in held], title="A recipe of mechmarkov"
    )
    definitions = schema["$defs"]
    decoder = definitions[DecoderSection.__name__]
    for name in FROM_SOURCE:
        del decoder["properties"][name]
    decoder["required"] = [name for name in decoder["required"] if name not in FROM_SOURCE]
    for field in decoder["properties"].values():
        field["anyOf"] = [{"const": "none"} if s == {"type": "null"} else s for s in field.get("anyOf", [{}])]
    recipe = definitions[Recipe.__name__]["properties"]
    # Only there: a source that holds others may know their kind.
    recipe["source"] = {"required": ["kind"], "anyOf": [refs[model, "validation"] for model in sources]}
    steps = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    recipe["checkpoints"] = {"anyOf": [{"$ref": "#/$defs/Checkpoints"}, steps]}
    return schema | refs[Recipe, "validation"]
