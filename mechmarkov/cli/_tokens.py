"""`mechmarkov tokens`: one sequence of a reader's own, as a page and as JSON."""

from pathlib import Path

import click

from mechmarkov.catalogue import examples
from mechmarkov.cli._options import JSON, PATH, Whole, completing, paths, print_json, told
from mechmarkov.cli._probe import page_name
from mechmarkov.utils.files import check_writable, made_folder
from mechmarkov.utils.text import printable, shown

PAGE = "tokens.html"
MAX_LINES = 32


@click.command("tokens", options_metavar="[OPTIONS] --tokens '0 1 2'")
@click.argument("run", required=False, shell_complete=paths)
@click.option(
    "--example", metavar="NAME", shell_complete=completing(examples), help="A bundled run instead of RUN."
)
@click.option("--tokens", "text", metavar="'0 1 2'", required=True, help="States by number or label.")
@click.option("--step", type=Whole(), default=-1, help="Checkpoint, -1 for the last.")
@click.option("--out", type=PATH, default="report", help="Folder.")
@JSON
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
def tokens_(
    run: str | None, example: str | None, text: str, step: int, out: Path, as_json: bool, opened: bool
) -> None:
    """Show what RUN makes of one sequence of yours, and write tokens.html.

    The law of the next state by model and source at every position, attention, logit lens, and what a patch
    of one position of the residual stream brings back.
    """
    from mechmarkov.catalogue import check_example, check_run

    if run is not None and example is not None:
        raise ValueError("RUN and --example exclude each other")
    if run is None and example is None:
        raise ValueError("RUN is missing: a run.pt file, or --example NAME")
    sequence = text.replace(",", " ").split()
    if not sequence:
        raise ValueError(f"--tokens is {text!r}, expected states with spaces between: '0 1 2'")
    if run is None:
        check_example(str(example))
    else:
        check_run(run)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, expected a folder")
    check_writable(out / PAGE)
    from mechmarkov.own_tokens import tokens
    from mechmarkov.report.own_tokens import table
    from mechmarkov.runs import example as bundled
    from mechmarkov.runs import load

    loaded = bundled(str(example)) if run is None else load(run)
    labels = [str(label) for label in loaded.source.labels]
    together = sequence[0] if len(sequence) == 1 and sequence[0] not in labels else ""
    if 1 < len(together) <= loaded.config.n_ctx + 1 and {*together} <= {*labels}:
        between = "expected states with spaces between: '0 1 2'"
        raise ValueError(f"--tokens is {shown(together)}, which is not a state, {between}")
    found = tokens(loaded, sequence, step=step)
    if run is not None:
        found.data.attrs["file"] = page_name(run)
    with made_folder(out, OSError):
        page = found.report(out / PAGE)
    if as_json:
        print_json({**found.to_data(), "page": str(page)})
    else:
        for warning in found.to_data()["warnings"]:
            click.echo(f"warning: {warning}", err=True)
        click.echo(found.data.attrs["title"])
        rows = table(found.data)
        for row in rows[-MAX_LINES:]:
            after = printable(row.token)
            click.echo(
                f"{row.position:>4} {after}: model {row.model}; source {row.law}; {row.divergence} nats"
            )
        click.echo(told(page))
    if opened:
        click.launch(str(page))
