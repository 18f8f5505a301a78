"""The JSON schema of a recipe as it is written, for editors."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mechmarkov.sources.base.registry import GROUP, load_source
from mechmarkov.training.model_sections import DecoderSection
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.recipe_fields import FROM_SOURCE
from mechmarkov.utils.plugins import registered


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
    for model in sources:
        definition = definitions[refs[model, "validation"]["$ref"].rsplit("/", 1)[-1]]
        definition["required"] = ["kind", *definition.get("required", [])]
    decoder = definitions[DecoderSection.__name__]
    for name in FROM_SOURCE:
        del decoder["properties"][name]
    decoder["required"] = [name for name in decoder["required"] if name not in FROM_SOURCE]
    for field in decoder["properties"].values():
        field["anyOf"] = [{"const": "none"} if s == {"type": "null"} else s for s in field.get("anyOf", [{}])]
    recipe = definitions[Recipe.__name__]["properties"]
    recipe["source"] = {"anyOf": [refs[model, "validation"] for model in sources]}
    steps = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    recipe["checkpoints"] = {"anyOf": [{"$ref": "#/$defs/Checkpoints"}, steps]}
    return schema | refs[Recipe, "validation"]
