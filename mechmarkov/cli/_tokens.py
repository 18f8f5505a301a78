"""`mechmarkov tokens`: one sequence of a reader's own, as a page and as JSON."""

from pathlib import Path

import click

from mechmarkov.cli._options import (
    EXAMPLE,
    JSON,
    OPEN,
    PATH,
    STEP,
    open_page,
    paths,
    print_json,
    run_of,
    told,
)
from mechmarkov.cli._probe import page_name
from mechmarkov.utils.files import check_writable, made_folder
from mechmarkov.utils.text import printable, shown

PAGE = "tokens.html"
MAX_LINES = 32


@click.command("tokens", options_metavar="[OPTIONS] --tokens '0 1 2'")
@click.argument("run", required=False, shell_complete=paths)
@EXAMPLE
@click.option("--tokens", "text", metavar="'0 1 2'", required=True, help="States by number or label.")
@STEP
@click.option("--out", type=PATH, default="report", help="Folder.")
@JSON
@OPEN
def tokens_(
    run: str | None, example: str | None, text: str, step: int, out: Path, as_json: bool, opened: bool
) -> None:
    """Show what RUN makes of one sequence of yours, and write tokens.html.

    The law of the next state by model and source at every position, attention, logit lens, and what a patch
    of one position of the residual stream brings back.
    """
    path = run_of(run, example)
    sequence = text.replace(",", " ").split()
    if not sequence:
        raise ValueError(f"--tokens is {text!r}, expected states with spaces between: '0 1 2'")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, expected a folder")
    check_writable(out / PAGE)
    from mechmarkov.own_tokens import tokens
    from mechmarkov.report.own_tokens import table
    from mechmarkov.runs import load

    loaded = load(path)
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
        open_page(page)
