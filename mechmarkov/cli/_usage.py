"""Tell what a call gets wrong, and the call that works."""

from difflib import get_close_matches

import click

from mechmarkov import catalogue
from mechmarkov.cli._options import Whole


def usage_line(error: click.UsageError) -> str:
    """Returns what is wrong with the words of a call, and how it is written.

    Example:
        >>> usage_line(click.NoSuchOption("--lr", possibilities=["--help"]))
        "No such option '--lr'."
    """
    message = error.format_message()
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        return error.message if error.param and isinstance(error.param.type, Whole) else message
    if isinstance(error, click.NoSuchCommand):
        there = "" if message.endswith("?") else f" There are {', '.join(_commands(error))}."
        return message + (_of_another_command(error.command_name) or there)
    if isinstance(error, click.NoSuchOption):
        message = _unknown_option(error)
    if error.ctx is None or message.endswith("?"):
        return message
    return f"{message}{'' if message.endswith('.') else '.'} {error.ctx.get_usage()}"


def _commands(error: click.UsageError) -> list[str]:
    group = None if error.ctx is None else error.ctx.command
    return group.list_commands(error.ctx) if error.ctx and isinstance(group, click.Group) else []


def _of_another_command(name: str) -> str:
    """The call that takes a name, where it is that of a recipe, a bundled run or a sweep."""
    calls = {"train": catalogue.recipes, "probe --example": catalogue.examples, "sweep": catalogue.sweeps}
    taking = [f"mechmarkov {call} {name}" for call, names in calls.items() if name in names()]
    return f" Did you mean {taking[0]}?" if taking else ""


def _unknown_option(error: click.NoSuchOption) -> str:
    """A field of a recipe is not an option of `train`; `--help` resembles nothing."""
    train = error.ctx is not None and error.ctx.command.name == "train"
    if train and (field := _field(error.option_name.lstrip("-").replace("-", "_"))):
        return f"{error.message} Did you mean --set {field}=VALUE?"
    others = [name for name in error.possibilities or () if name != "--help"]
    similar = get_close_matches(error.option_name, others, n=2, cutoff=0.7)  # else `--memory` is `--ray`
    return f"{error.message} Did you mean {' or '.join(similar)}?" if similar else error.message


def _field(name: str) -> str | None:
    """The field of a recipe that is called so or nearly so, the first of several."""
    from mechmarkov.training.recipe_fields import fields_of, models

    names: dict[str, str] = {}
    for section, _, model in models():
        for field in fields_of(model):
            names.setdefault(field.name, f"{section}.{field.name}" if section else field.name)
    nearest = get_close_matches(name, names, n=1, cutoff=0.75)
    return names[nearest[0]] if nearest else None
