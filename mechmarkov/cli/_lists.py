"""`mechmarkov probes` and `list`: what has a name; nothing of it is loaded."""

import click


@click.command()
def probes() -> None:
    """List the probes and the question each answers, as their sources state it; none is loaded."""
    from mechmarkov.catalogue.probes import question, registered

    found = registered()
    width = max(map(len, found), default=0)
    for name, entry in found.items():
        click.echo(f"{name:<{width}}  {question(entry)}")


@click.command("list")
def list_() -> None:
    """List what has a name: recipes, sweeps, bundled runs, kinds of source, methods and cases of bench."""
    from mechmarkov.catalogue import names

    for title, entries in names().items():
        width = max(map(len, entries))
        lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in entries.items()]
        click.echo("\n".join([title, *lines, ""]))
