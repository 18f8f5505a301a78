"""`mechmarkov probes` and `list`: what has a name; nothing of it is loaded."""

from collections.abc import Mapping

import click

from mechmarkov.cli._options import JSON, print_json


@click.command()
@JSON
def probes(as_json: bool) -> None:
    """List the probes and the question each answers, as their sources state it; none is loaded."""
    from mechmarkov.catalogue.probes import questions as questions_of

    questions = questions_of()
    if as_json:
        return print_json(questions)
    width = max(map(len, questions), default=0)
    for name, text in questions.items():
        click.echo(f"{name:<{width}}  {text}")


@click.command("list")
@JSON
def list_(as_json: bool) -> None:
    """List what has a name: recipes, sweeps, bundled runs, kinds of source, methods and cases of bench."""
    from mechmarkov.catalogue import names

    if as_json:
        return print_json({title.partition(":")[0]: entries for title, entries in names().items()})
    for title, entries in names().items():
        print_names(title, entries)


def print_names(title: str, entries: Mapping[str, str]) -> None:
    """Print names with what each is, below a title."""
    width = max(map(len, entries))
    lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in entries.items()]
    click.echo("\n".join([title, *lines, ""]))
