"""The page of all fields of a recipe, in Markdown: docs/recipes.md."""

from mechmarkov.sources.base.source import Source
from mechmarkov.training.new_recipe import new_recipe, toml
from mechmarkov.training.recipe_fields import SECTIONS, RecipeField, fields_of, models
from mechmarkov.utils.text import markdown_code

START = """\
# Recipes

## How do I train my own model?

```
mechmarkov recipe new --source chain > mine.toml
mechmarkov train mine.toml --out runs/mine
mechmarkov probe runs/mine
```

A recipe is a TOML file that says everything about a training but its seed.
`mechmarkov recipe new --source KIND > mine.toml` writes one with comments.
`mechmarkov train mine.toml` trains it, and `mechmarkov recipe NAME` prints one that comes with the library.
`mechmarkov recipe schema` prints the JSON schema, by which editors complete and check a recipe.

This page is what `mechmarkov recipe fields` prints. A field without a default is required.
"none" is what is not there unless it is given, and "follows" what follows from other fields.
In a decoder's section `"none"` takes away what a default would bring, as in `normalization_type = "none"`.
"""


def page() -> str:
    """Write docs/recipes.md: all fields of a recipe with type, default, meaning and examples."""
    blocks, titled = [START, "## Without a section\n"], ""
    for section, kind, model in models():
        if section != titled:
            blocks.append(f"## `[{section}]`\n")
            titled = section
        if kind:
            blocks.append(f'### `kind = "{kind}"`\n')
        if issubclass(model, Source) and model.example:
            lines = [f"{name} = {toml(value)}" for name, value in {"kind": kind, **model.example}.items()]
            blocks.append("\n".join(["```toml", "[source]", *lines, "```", ""]))
        rows = [_row(field) for field in fields_of(model) if section or field.name not in SECTIONS]
        blocks.append("\n".join(["| Field | Takes | Default | Meaning |", "|---|---|---|---|", *rows, ""]))
    example = new_recipe("circle")
    blocks.append(f"## An example\n\n`mechmarkov recipe new --source circle`\n\n```toml\n{example}```\n")
    return "\n".join(blocks)


def _row(field: RecipeField) -> str:
    default = "follows" if field.follows else "none" if field.default is None else ""
    if not default and field.default is not ...:
        default = markdown_code(toml(field.default))
    words = [text.replace("|", "\\|") for text in (field.type, default, field.meaning)]
    return f"| {' | '.join([markdown_code(field.name), *words])} |"
