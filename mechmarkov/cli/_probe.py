"""`mechmarkov probe`: put the questions to runs and write the reports."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechmarkov import catalogue
from mechmarkov.catalogue.probes import registered
from mechmarkov.cli._options import (
    DEVICE,
    JOBS,
    JSON,
    OPEN,
    PATH,
    SEED,
    SEQUENCES,
    Finite,
    completing,
    names_of,
    open_page,
    paths,
    print_json,
    steps_of,
    told,
)
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import listed, printable

if TYPE_CHECKING:
    from mechmarkov.result import Result

DEFAULT_EXAMPLE = "walk"
FILES = ("report.html", "results.nc", "summary.json")


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=paths)
@click.option(
    "--example",
    metavar="NAME",
    shell_complete=completing(catalogue.examples),
    help="A bundled run instead of RUN (`mechmarkov list`).  [walk]",
)
@click.option(
    "--probes",
    metavar="A,B",
    shell_complete=completing(registered),
    help="Only these probes (`mechmarkov probes` lists them).",
)
@click.option("--steps", default="last", metavar="last|all|10,50", help="Which checkpoints.")
@SEED
@SEQUENCES
@click.option("--time-limit", type=Finite(min=0, min_open=True), metavar="S", help="Seconds for a probe.")
@JOBS
@DEVICE
@click.option("--out", type=PATH, default="report", help="Folder.")
@JSON
@OPEN
def probe(
    runs: tuple[str, ...],
    example: str | None,
    probes: str | None,
    steps: str,
    jobs: int | None,
    device: str,
    out: Path,
    as_json: bool,
    opened: bool,
    **measured: Any,
) -> None:
    """Probe RUN and write report.html, results.nc and summary.json.

    RUN is a run.pt file, a folder with one or several or that `save_folder` wrote, or hf://owner/name.
    Without RUN, a bundled run is probed: a random walk on a circle that was learned. Of several runs, --out
    gets a report with all of them side by side, and a folder for each.
    """
    runs = tuple(file for run in runs for file in _files(run))
    if runs and example is not None:
        raise ValueError("RUN and --example exclude each other")
    chosen = steps_of(steps)
    names = names_of("--probes", probes)
    called = called_names([Path(run) for run in runs])
    folders = _folders(out, called)
    for run in runs:
        catalogue.check_run(run)
    if example is not None:
        catalogue.example_path(example)  # an error unless there is one
    from mechmarkov.probe_run import ProbingInterruptedError
    from mechmarkov.probe_run import probe as probe_run
    from mechmarkov.report.compare import shares_of_results, write_comparison
    from mechmarkov.report.save import save_all
    from mechmarkov.report.shares import told_shares
    from mechmarkov.runs import example as bundled
    from mechmarkov.runs import load
    from mechmarkov.utils.device import pick_device
    from mechmarkov.utils.forked import can_fork
    from mechmarkov.utils.progress import progress_bar
    from mechmarkov.utils.threads import cores

    loaded = [load(run) for run in runs] or [bundled(example or DEFAULT_EXAMPLE)]
    typed = [*map(_as_typed, runs)] or [f"--example {example or DEFAULT_EXAMPLE}"]
    page_names = [*map(page_name, runs)] or [example or DEFAULT_EXAMPLE]
    device = pick_device("cpu" if device == "auto" and (jobs or 1) > 1 else device).type
    jobs = jobs or (cores() if can_fork() and device == "cpu" else 1)
    left: list[str] = []
    results: dict[str, Result] = {}
    with progress_bar(len(names or registered()) * len(loaded), "probe") as progress:
        for name, run_loaded, file, on_page in zip(called, loaded, typed, page_names, strict=True):
            how = measured | {"steps": chosen, "jobs": jobs, "device": device, "progress": progress}
            try:
                results[name] = probe_run(run_loaded, names, **how)
            except ProbingInterruptedError as stopped:
                results[name], left = stopped.result, stopped.left
            except KeyboardInterrupt:
                if not results:
                    raise
                break
            results[name].metadata.update(file=file, name=on_page)
            if left:
                break
    by_folder = {
        folder: results[name] for name, folder in zip(called, folders, strict=True) if name in results
    }
    save_all(by_folder, jobs=jobs)
    if len(results) > 1:
        write_comparison(results, out / "report.html")
    _warn_of_earlier(out, folders)
    page = (out if len(results) > 1 else folders[0]) / "report.html"
    if as_json:
        summaries = {name: result.summary() for name, result in results.items()}
        shares = [asdict(share) for share in shares_of_results(results)]
        print_json({"runs": summaries, "shares": shares} if len(called) > 1 else summaries[called[0]])
    else:
        for name, result in results.items():
            click.echo(
                f"{name}: {result.metadata['title']}" if len(results) > 1 else result.metadata["title"]
            )
            _print(result)
        for line in told_shares(shares_of_results(results)):
            click.echo(told(line))
        click.echo(told(page))
    if opened:
        open_page(page)
    if left or len(results) < len(called):
        given = [shlex.quote(run) for run in runs] or typed
        click.echo(f"interrupted: what had finished is in {told(out)}. The rest:", err=True)
        rest = shlex.quote(f"{told(out)}-rest")
        options = [*(["--steps", steps] if steps != "last" else []), "--out", rest]
        for words in _rest(given, len(results), left, names):
            click.echo(" ".join(["  mechmarkov probe", *words, *options]), err=True)
        sys.exit(130)
    if any(result.failed for result in results.values()):
        sys.exit(1)


def _files(run: str) -> list[str]:
    """The run files of a folder with several, as `mechmarkov train --seeds` leaves it; or what was given."""
    files = [] if run.startswith("hf://") else sorted(Path(run).glob("*.pt"), key=_in_order)
    return [run] if len(files) < 2 else [str(file) for file in files]


def _in_order(file: Path) -> tuple[int, str]:
    """The order of names that end in numbers of their own length: seed-2 before seed-10."""
    return len(file.name), file.name


def _rest(
    given: Sequence[str], finished: int, left: Sequence[str], names: Sequence[str] | None
) -> Iterator[list[str]]:
    """Yields the words of each call that an interrupted one has left: a run's probes, then the other runs."""
    if left:
        yield [given[finished - 1], "--probes", ",".join(left)]
    if others := given[finished:]:
        yield [*others, *(["--probes", ",".join(names)] if names else [])]


def page_name(run: str) -> str:
    """The name of a run on its pages: its file's, after that of its folder; of `run.pt` only the folder's.

    >>> page_name("runs/walk/run.pt"), page_name("runs/walk/seed-3.pt"), page_name("hf://owner/walk")
    ('walk', 'walk/seed-3', 'owner/walk')
    """
    if run.startswith("hf://"):
        return printable(run.removeprefix("hf://"))
    path = Path(run).absolute()
    parts = [path.parent.name, path.stem if path.suffix == ".pt" else path.name]
    named = [part for part in parts if part and part != "run"]
    return printable("/".join(named if path.suffix == ".pt" else parts[-1:]) or "run")


def _folders(out: Path, called: Sequence[str]) -> list[Path]:
    """The folder of each run's files: `--out`, or one in it for each of several runs; all can be written."""
    if str(out) == ".":
        raise ValueError("--out is the current folder, expected one for the report")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, expected a folder")
    folders = [out / name for name in called] if len(called) > 1 else [out]
    check_writable(out / "report.html", *(folder / name for folder in folders for name in FILES))
    return folders


def _as_typed(run: str) -> str:
    """A run as the command to repeat has it: its file's name, or its place on the Hub."""
    return shlex.quote(run if run.startswith("hf://") else printable(Path(run).name))


def _warn_of_earlier(out: Path, folders: Sequence[Path]) -> None:
    reported = [path.parent for path in sorted([*out.glob("summary.json"), *out.glob("*/summary.json")])]
    if earlier := [told(folder) for folder in reported if folder not in folders]:
        click.echo(f"warning: results of earlier calls are still there: {listed(earlier)}", err=True)


def _print(result: "Result") -> None:
    """Print the verdicts of a run's probes, and what does not apply; failures and warnings to stderr."""
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    for name, outcome in result.outcomes.items():
        click.echo(f"\n{name}: {outcome.verdict}")
    for name, why in result.skipped.items():
        click.echo(f"\n{name}: does not apply: {why}")
    for name, error in result.failed.items():
        click.echo(f"\n{name}: failed: {error}", err=True)
    click.echo("")


def called_names(runs: Sequence[Path]) -> list[str]:
    """Returns each run's name on a page of several: its file's, with its folder's where names repeat."""
    if len(runs) < 2:
        return ["run"]
    for parts in range(1, max(len(run.parts) for run in runs) + 1):
        called = ["-".join(run.parts[-parts:]).removesuffix(".pt").strip("/.") or "run" for run in runs]
        if len(set(called)) == len(called):
            return called
    repeated = next((run for i, run in enumerate(runs) if run in runs[:i]), None)
    if repeated is None:
        raise ValueError(f"RUN is {', '.join(map(repr, map(str, runs)))}, expected files with names")
    raise ValueError(f"{repeated} is given twice")
