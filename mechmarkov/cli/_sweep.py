"""`mechmarkov sweep`: many recipes, one table, one picture."""

import sys
from pathlib import Path
from typing import Any

import click

from mechmarkov import catalogue
from mechmarkov.cli._options import (
    DEVICE,
    JOBS,
    JSON,
    MAX_SEEDS,
    OPEN,
    PATH,
    Finite,
    Whole,
    completing,
    going_on,
    number,
    open_page,
    print_json,
    told,
)


@click.command()
@click.argument("sweep", shell_complete=completing(catalogue.sweeps, files=".toml"))
@click.option("--out", type=PATH, help="Folder. [sweeps/NAME]")
@DEVICE
@number("--fleet", MAX_SEEDS, "Members trained as one stack.  [64]")
@JOBS
@JSON
@OPEN
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT or local.")
@click.option("--gpus-per-task", type=Finite(min=0), metavar="X", help="Of Ray, for a fleet.  [0]")
@click.option("--cpus-per-task", type=Whole(min=1), metavar="N", help="Of Ray, for a fleet.  [1]")
@click.option("--retries", type=Whole(min=0), metavar="N", help="Of Ray, after a lost node.  [3]")
def sweep(
    sweep: str,
    out: Path | None,
    device: str,
    fleet: int | None,
    jobs: int | None,
    ray: str | None,
    as_json: bool,
    opened: bool,
    **of_ray: Any,
) -> None:
    """Run SWEEP, a TOML file or the name of a shipped sweep: many recipes, one table, one picture.

    `mechmarkov list` has the shipped ones. Called again with the same --out, it does only what is missing.
    """
    catalogue.check_written("sweep", sweep)
    from mechmarkov.sweeps import Cluster
    from mechmarkov.sweeps import sweep as run_sweep
    from mechmarkov.sweeps.run import FLEET
    from mechmarkov.utils.threads import cores

    given: dict[str, Any] = {name: value for name, value in of_ray.items() if value is not None}
    if given and ray is None:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ValueError(f"{option} is an option of Ray, but no cluster is given: add its address with --ray")
    cluster = None if ray is None else Cluster(ray, **given)
    if jobs is not None and ray is not None:
        raise ValueError("--jobs is for this machine, and --ray runs on a cluster: give one of them")
    jobs = jobs or (cores() if ray is None else 1)
    with going_on():
        swept = run_sweep(sweep, out, device=device, fleet=fleet or FLEET, jobs=jobs, cluster=cluster)
    if as_json:
        print_json({"folder": str(swept.folder), "rows": swept.table.to_pylist()})
    for line in swept.summary() if not as_json else ():
        click.echo(told(line))
    if opened and swept.phase is None:
        click.echo("warning: no page to open: the sweep has no [phase] and varies several fields", err=True)
    elif opened:
        open_page(swept.folder / "phase.html")
    if any(name.endswith(".failed") for name in swept.table.column_names):
        sys.exit(1)
