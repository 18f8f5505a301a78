"""`mechmarkov bench`: interpretability methods against circuits whose effects are known."""

from pathlib import Path

import click

from mechmarkov import catalogue
from mechmarkov.cli._options import JSON, PATH, completing, names_of, print_json, told
from mechmarkov.utils.files import check_writable


@click.command()
@click.option(
    "--methods",
    metavar="A,B",
    shell_complete=completing(catalogue.methods),
    help="Only these methods (`mechmarkov list`).  [all]",
)
@click.option(
    "--cases",
    metavar="A,B",
    shell_complete=completing(catalogue.questions),
    help="Only these cases (`mechmarkov list`).  [all]",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=4, help="Draws of each case.")
@click.option(
    "--pairs",
    type=click.Choice(["minimal", "resampled"]),
    default="minimal",
    help="Counterfactuals that differ in one state, or other sequences.",
)
@JSON
@click.option("--out", type=PATH, default="bench", help="Folder.")
def bench(methods: str | None, cases: str | None, seeds: int, pairs: str, out: Path, as_json: bool) -> None:
    """Score interpretability methods against circuits whose effects are known.

    Writes bench.html, leaderboard.json, scores.csv, effects.csv and reasons.csv.
    """
    from mechmarkov.bench import CASES, run, save
    from mechmarkov.bench.leaderboard import leaderboard
    from mechmarkov.bench.page import FILES as BENCH_FILES
    from mechmarkov.bench.page import as_text
    from mechmarkov.utils.progress import progress_bar

    check_writable(*(out / name for name in BENCH_FILES))
    names = names_of("--cases", cases)
    with progress_bar(len(names or CASES) * seeds, "case") as progress:
        found = run(names_of("--methods", methods), names, seeds, pairs=pairs, progress=progress)
    page = save(found, out)
    if as_json:
        return print_json(leaderboard(found))
    click.echo(as_text(found))
    click.echo(told(page))
