"""`mechmarkov recipe NAME`, `recipe new`, `recipe fields` and `recipe schema`: recipes of one's own."""

import json
import tomllib
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem

from mechmarkov import catalogue
from mechmarkov.cli._lists import print_names
from mechmarkov.cli._options import JSON, Whole, completing, print_json
from mechmarkov.utils.text import shown


class Recipes(click.Group):
    """Commands about recipes; any other word is the name of a shipped recipe, which is printed."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of that name, or the one that prints the recipe of that name."""
        command = super().get_command(ctx, cmd_name)
        alike = get_close_matches(cmd_name, self.list_commands(ctx), n=1)
        if command is None and alike and cmd_name not in catalogue.recipes():
            ctx.fail(f"recipe has no command {shown(cmd_name)}, did you mean {alike[0]}?")
        return command or _printing(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and the shipped recipes whose names begin so."""
        named = completing(catalogue.recipes)(ctx, None, incomplete)
        return [*super().shell_complete(ctx, incomplete), *named]


def _printing(name: str) -> click.Command:
    @click.command(name)
    @JSON
    def run(as_json: bool) -> None:
        _print(catalogue.text("recipe", name), as_json)

    return run


def _print(toml: str, as_json: bool) -> None:
    if as_json:
        print_json({"recipe": tomllib.loads(toml)})
    else:
        click.echo(toml, nl=False)


@click.group(cls=Recipes, subcommand_metavar="[NAME | COMMAND [ARGS]…]", invoke_without_command=True)
@JSON
@click.pass_context
def recipe(context: click.Context, as_json: bool) -> None:
    """Print the shipped recipe NAME, in TOML, or write one of your own; without NAME, list the shipped ones.

    `mechmarkov recipe new --source chain > mine.toml`, then `mechmarkov train mine.toml`.
    """
    if as_json and context.invoked_subcommand is not None:
        word = context.invoked_subcommand
        raise ValueError(f"--json stands before {word}, expected it behind: mechmarkov recipe {word} --json")
    if as_json:
        print_json({"recipes": catalogue.recipes()})
    elif context.invoked_subcommand is None:
        print_names("recipes: mechmarkov recipe NAME", catalogue.recipes())
        click.echo("one of your own: mechmarkov recipe new --source chain > mine.toml")


@recipe.command(options_metavar="--source KIND [OPTIONS]", short_help="Print a commented recipe of your own.")
@click.option(
    "--source",
    metavar="KIND",
    shell_complete=completing(catalogue.sources),
    help="Kind of source (`mechmarkov list`).",
)
@click.option("--layers", type=Whole(1), metavar="N", help="Layers.  [1, or 2 for a law a sequence]")
@click.option("--heads", type=Whole(1), default=1, metavar="N", help="Heads a layer.")
@click.option("--width", type=Whole(1), default=32, metavar="N", help="Of the residual stream.")
@click.option("--context", type=Whole(1), metavar="N", help="Tokens to read.  [64, or the source's]")
@click.option("--states", type=Whole(2), metavar="N", help="States.  [the example's]")
@click.option("--order", type=Whole(1), metavar="N", help="States back that the law looks.  [1]")
@click.option("--steps", type=Whole(1), default=1000, metavar="N", help="Steps of the training.")
@JSON
def new(
    source: str | None,
    layers: int | None,
    heads: int,
    width: int,
    context: int | None,
    states: int | None,
    order: int | None,
    steps: int,
    as_json: bool,
) -> None:
    """Print a commented recipe for a decoder on a small example of a source; it trains as it is."""
    if source is None:
        kinds = ", ".join(catalogue.sources())
        raise ValueError(f"--source is missing, expected a kind, such as --source chain; there are {kinds}")
    catalogue.check_source(source)
    if width % heads:
        raise ValueError(f"--heads is {heads}, expected a divisor of --width, {width}")
    from mechmarkov.training.new_recipe import new_recipe

    of_model: dict[str, Any] = {"layers": layers, "heads": heads, "width": width, "context": context}
    _print(new_recipe(source, states=states, order=order, steps=steps, **of_model), as_json)


@recipe.command(short_help="Print all fields of a recipe, in Markdown.")
@JSON
def fields(as_json: bool) -> None:
    """Print all fields of a recipe with type, default, meaning and example, in Markdown.

    With --json, print what `mechmarkov recipe schema` prints.
    """
    from mechmarkov.training.recipe_fields import recipe_schema
    from mechmarkov.training.recipe_page import page

    if as_json:
        print_json(recipe_schema())
    else:
        click.echo(page(), nl=False)


@recipe.command(short_help="Print the JSON schema of a recipe.")
@JSON
def schema(as_json: bool) -> None:
    """Print the JSON schema of a recipe, by which editors complete and check one."""
    from mechmarkov.training.recipe_fields import recipe_schema

    if as_json:
        print_json(recipe_schema())
    else:
        click.echo(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
