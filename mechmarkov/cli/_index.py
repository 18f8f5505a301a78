"""`mechmarkov index`: the probed runs of a folder on one page."""

from pathlib import Path

import click

from mechmarkov.cli._options import JSON, OPEN, PATH, open_page, print_json, told
from mechmarkov.utils.files import check_writable


@click.command()
@click.argument("folder", type=PATH)
@JSON
@OPEN
def index(folder: Path, as_json: bool, opened: bool) -> None:
    """List the probed runs in FOLDER on one page: badges, losses, filters, a link to each report.

    Of runs that differ in their seed it says how many have a badge, an induction head and the like, with the
    interval of that share. Writes index.html and index.json into FOLDER.

    `mechmarkov probe RUN --out FOLDER/NAME` adds a run, `mechmarkov probe RUNS --out FOLDER` several.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder, expected one with reports of `mechmarkov probe`")
    check_writable(folder / "index.html", folder / "index.json")
    from mechmarkov.report.dashboard import read_dashboard, write_dashboard
    from mechmarkov.report.shares import told_shares

    board = read_dashboard(folder)
    page = write_dashboard(board)
    if as_json:
        print_json({**board.to_data(), "page": str(page)})
    else:
        for name, why in board.unread.items():
            click.echo(f"warning: {told(name)}: {told(why)}", err=True)
        for run in board.runs:
            click.echo(told(f"{run.folder}: {run.badge or 'undecided'}: {run.headline}"))
        for line in told_shares(board.shares()):
            click.echo(told(line))
        click.echo(told(page))
    if opened:
        open_page(page)
