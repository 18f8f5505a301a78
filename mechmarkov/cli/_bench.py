"""`mechmarkov bench`: interpretability methods against circuits whose effects are known."""

from pathlib import Path

import click

from mechmarkov import catalogue
from mechmarkov.cli._options import (
    JOBS,
    JSON,
    OPEN,
    PATH,
    Whole,
    completing,
    going_on,
    names_of,
    open_page,
    print_json,
    told,
)
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import counted


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
@click.option("--seeds", type=Whole(1, 1000), default=3, help="Draws of each case.")
@click.option(
    "--pairs",
    type=click.Choice(["minimal", "resampled"]),
    default="minimal",
    help="Counterfactuals that differ in one state, or other sequences.",
)
@click.option("--held-out", is_flag=True, help="Draw from the half of the seeds that nothing was shown on.")
@click.option(
    "--verify", "verified", type=PATH, default=None, help="Compute the effects of such a folder again."
)
@JOBS
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT or local.")
@JSON
@OPEN
@click.option("--out", type=PATH, default="bench", help="Folder.")
def bench(
    methods: str | None,
    cases: str | None,
    seeds: int,
    pairs: str,
    held_out: bool,
    verified: Path | None,
    jobs: int | None,
    ray: str | None,
    out: Path,
    as_json: bool,
    opened: bool,
) -> None:
    """Score interpretability methods against circuits whose effects are known.

    Writes bench.html, leaderboard.json, scores.csv, effects.csv and reasons.csv. What each method gave is
    kept in cells/ as it comes: called again with the same --out, it measures only what is missing. With
    --verify it writes nothing, and exits with code 1 if an effect of the folder's effects.csv is another one
    when it is computed again.
    """
    from mechmarkov.bench import CASES, run, save
    from mechmarkov.bench.leaderboard import leaderboard
    from mechmarkov.bench.page import FILES as BENCH_FILES
    from mechmarkov.bench.page import as_text
    from mechmarkov.bench.verify import verify
    from mechmarkov.sweeps import Cluster
    from mechmarkov.utils.forked import can_fork
    from mechmarkov.utils.progress import progress_bar
    from mechmarkov.utils.threads import cores

    if verified is not None:
        wrong = verify(verified, pairs=pairs)
        if as_json:
            print_json({"differ": wrong[["case", "seed", "component", "exact", "again"]].to_dict("records")})
        else:
            click.echo(f"{counted(len(wrong), 'effect')} {'differs' if len(wrong) == 1 else 'differ'}")
        if len(wrong):
            click.get_current_context().exit(1)
        return
    if jobs is not None and ray is not None:
        raise ValueError("--jobs is for this machine, and --ray runs on a cluster: give one of them")
    check_writable(*(out / name for name in BENCH_FILES))
    names = names_of("--cases", cases)
    with going_on(), progress_bar(len(names or CASES) * seeds, "case") as progress:
        found = run(
            names_of("--methods", methods),
            names,
            seeds,
            pairs=pairs,
            held_out=held_out,
            jobs=jobs or (cores() if ray is None and can_fork() else 1),
            cluster=None if ray is None else Cluster(ray),
            out=out,
            progress=progress,
        )
    page = save(found, out)
    if as_json:
        print_json(leaderboard(found))
    else:
        click.echo(as_text(found))
        click.echo(told(page))
    if opened:
        open_page(page)
