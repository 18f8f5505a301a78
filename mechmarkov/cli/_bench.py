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
@click.option("--seeds", type=click.IntRange(1, 1000), default=8, help="Draws of each case.")
@JSON
@click.option("--out", type=PATH, default="bench", help="Folder.")
def bench(methods: str | None, cases: str | None, seeds: int, out: Path, as_json: bool) -> None:
    """Score interpretability methods against circuits whose effects are known in nats.

    Writes bench.html, bench.md, scores.nc, effects.csv and reasons.csv.
    """
    from mechmarkov.bench import CASES, run, save
    from mechmarkov.bench.page import FILES as BENCH_FILES
    from mechmarkov.utils.progress import progress_bar

    check_writable(*(out / name for name in BENCH_FILES))
    names = names_of("--cases", cases)
    with progress_bar(len(names or CASES) * seeds, "case") as progress:
        found = run(names_of("--methods", methods), names, seeds, progress=progress)
    page = save(found, out)
    if as_json:
        means = found.scores.mean("seed").to_dataframe().reset_index()
        why = found.reasons[["method", "case", "seed", "reason"]]
        return print_json({"scores": means.to_dict("records"), "reasons": why.to_dict("records")})
    click.echo((out / "bench.md").read_text("utf-8"))
    for (method, why), rows in found.reasons.groupby(["method", "reason"]):
        click.echo(f"{method}: {why} ({', '.join(sorted(set(rows['case'])))})")
    click.echo(told(page))
