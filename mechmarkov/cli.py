"""`mechmarkov …`: train, probe, certify, verify, show, import, sweep, bench, recipe, probes, list.

Nothing heavy is imported before a command needs it: `mechmarkov --help` loads neither torch nor
TransformerLens. Bad input ends with one line `error: …` on stderr and exit code 2.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mechmarkov.cli_certify import certify, verify
from mechmarkov.cli_options import DEVICE, DEVICES, PATH, Finite, names_of, number, steps_of, told
from mechmarkov.cli_recipe import recipe
from mechmarkov.shadowed import explaining
from mechmarkov.utils.files import check_writable, plain_stem
from mechmarkov.utils.memory import is_out_of_memory
from mechmarkov.utils.text import NAME_CHARACTERS, listed, printable, reason

DEFAULT_EXAMPLE = "walk"
MAX_SEEDS = 10_000
MAX_LINE_CHARACTERS = 1000
MAX_FAULTS_CHARACTERS = 2000  # of a recipe or a sweep, which may have several
OF_FILES = ("RecipeError", "SweepError")  # by their names, because importing them takes time
MAX_SEQUENCES = 100_000
FILES = ("report.html", "results.nc", "summary.json")
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(context_settings=SETTINGS)
@click.version_option(package_name="mechmarkov", message="%(prog)s %(version)s")
def cli() -> None:
    """Show what a small transformer learned from Markov data, where it lives and why it is stuck."""


@cli.command()
@click.argument("recipe")
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, help="Change a recipe field; repeatable."
)
@click.option("--seed", type=int, help="Seed of weights and data (0 by default).")
@number("--seeds", MAX_SEEDS, "Train seeds 0 … N-1 as a fleet.")
@click.option(
    "--memory", type=Finite(0.01, 1e6), metavar="GB", help="A fleet larger than that is split.  [2]"
)
@DEVICE
@click.option("--out", type=PATH, help="Folder for run.pt. [runs/RECIPE]")
def train(
    recipe: str,
    changes: tuple[str, ...],
    seed: int | None,
    seeds: int | None,
    memory: float | None,
    device: str,
    out: Path | None,
) -> None:
    """Train RECIPE, a TOML file or the name of a shipped recipe (`mechmarkov list` has them).

    Called again after an interruption with the same --out, it goes on where it stopped.
    """
    if seed is not None and seeds is not None:
        raise ValueError("--seed and --seeds exclude each other: give one seed, or how many")
    from mechmarkov.shipped import check_written

    check_written("recipe", recipe)
    from mechmarkov.training import load_recipe
    from mechmarkov.training import train as train_run

    chosen = load_recipe(recipe).with_set(changes)
    folder = out or Path("runs") / plain_stem(recipe, "recipe")
    check_writable(folder / ("run.pt" if seeds is None else "seed-0.pt"))
    room = None if memory is None else round(memory * 1e9)
    if seeds is None:
        made = {folder / "run.pt": train_run(chosen, seed=seed, device=device, out=folder, memory=room)}
    else:
        runs = train_run(chosen, seeds=range(seeds), device=device, out=folder, memory=room)
        made = {folder / f"seed-{run.seed}.pt": run for run in runs}
    for path, run in made.items():
        errors = [f"{name} {text}" for name, text in run.sampling_errors().items()]
        click.echo("\n".join([run.title(), *errors, told(path)]))


@cli.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option("--example", metavar="NAME", help="A bundled run instead of RUN (`mechmarkov list`).  [walk]")
@click.option("--probes", metavar="A,B", help="Only these probes (`mechmarkov probes` lists them).")
@click.option("--steps", default="last", metavar="last|all|10,50", help="Which checkpoints.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the evaluation data.")
@number("--sequences", MAX_SEQUENCES, "Evaluation sequences.  [64 to 512]")
@click.option("--time-limit", type=Finite(min=0, min_open=True), metavar="S", help="Seconds for a probe.")
@number("--jobs", 256, "Processes that measure.  [the cores, on Linux; 1 with --device cuda]")
@click.option("--device", default="cpu", type=DEVICES, help="Where models are recorded.")
@click.option("--out", type=PATH, default="report", help="Folder.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json and nothing else.")
def probe(
    runs: tuple[str, ...],
    example: str | None,
    probes: str | None,
    steps: str,
    jobs: int | None,
    device: str,
    out: Path,
    as_json: bool,
    **measured: Any,
) -> None:
    """Probe RUN and write report.html, results.nc and summary.json.

    RUN is a run.pt file, a folder that `save_folder` wrote, or hf://owner/name. Without RUN, a bundled run is
    probed: a random walk on a circle that was learned. Of several runs, --out gets a report with all of them
    side by side, and a folder for each.
    """
    if runs and example is not None:
        raise ValueError("RUN and --example exclude each other")
    chosen = steps_of(steps)
    names = names_of("--probes", probes)
    if str(out) == ".":
        raise ValueError("--out is the current folder, expected one for the report")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, expected a folder")
    called = _names([Path(run) for run in runs])
    folders = [out / name for name in called] if len(called) > 1 else [out]
    check_writable(out / "report.html", *(folder / name for folder in folders for name in FILES))
    from mechmarkov.shipped import check_example, check_run

    for run in runs:
        check_run(run)
    if example is not None:
        check_example(example)
    from mechmarkov.probe_names import registered
    from mechmarkov.probe_run import probe as probe_run
    from mechmarkov.report.compare import compare
    from mechmarkov.report.save import save_all
    from mechmarkov.runs import example as bundled
    from mechmarkov.runs import load
    from mechmarkov.runs.hub import PREFIX
    from mechmarkov.utils.device import pick_device
    from mechmarkov.utils.forked import can_fork
    from mechmarkov.utils.progress import progress_bar
    from mechmarkov.utils.threads import cores

    loaded = [load(run) for run in runs] or [bundled(DEFAULT_EXAMPLE if example is None else example)]
    subjects = dict(zip(called, loaded, strict=True))
    several = len(subjects) > 1
    shown = [run if run.startswith(PREFIX) else printable(Path(run).name) for run in runs]
    chosen_runs = [*map(shlex.quote, shown)] or [f"--example {example or DEFAULT_EXAMPLE}"]
    files = dict(zip(called, chosen_runs, strict=True))
    results = {}
    total = len(names or registered()) * len(subjects)
    device = pick_device(device).type
    jobs = jobs or (cores() if can_fork() and device == "cpu" else 1)
    with progress_bar(total, "probe") as progress:
        for name, subject in subjects.items():
            results[name] = probe_run(
                subject, names, steps=chosen, jobs=jobs, device=device, progress=progress, **measured
            )
            results[name].run["file"] = files[name]
    save_all(dict(zip(folders, results.values(), strict=True)))
    if several:
        compare(results, out / "report.html")
    reported = [path.parent for path in sorted([*out.glob("summary.json"), *out.glob("*/summary.json")])]
    if earlier := [told(folder) for folder in reported if folder not in folders]:
        click.echo(f"warning: results of earlier calls are still there: {listed(earlier)}", err=True)
    if as_json:
        found = {name: result.summary() for name, result in results.items()}
        (alone, *_) = found.values()
        click.echo(json.dumps({"runs": found} if several else alone, ensure_ascii=False, allow_nan=False))
    for name, result in results.items() if not as_json else ():
        title = subjects[name].title()
        click.echo(f"{name}: {title}" if several else title)
        for warning in result.warnings:
            click.echo(f"warning: {warning}", err=True)
        for probe_name, outcome in result.outcomes.items():
            click.echo(f"\n{probe_name}: {outcome.verdict}")
        for probe_name, why in result.skipped.items():
            click.echo(f"\n{probe_name}: does not apply: {why}")
        for probe_name, error in result.failed.items():
            click.echo(f"\n{probe_name}: failed: {error}", err=True)
        click.echo("")
    if not as_json:
        click.echo(told(out / "report.html"))
    if any(result.failed for result in results.values()):
        sys.exit(1)


def _names(runs: Sequence[Path]) -> list[str]:
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


@cli.command()
@click.argument("run")
def show(run: str) -> None:
    """Say what RUN holds, a run.pt file, a folder that `save_folder` wrote, or hf://owner/name."""
    from mechmarkov.shipped import check_run

    check_run(run)
    from mechmarkov.probing.description import describe
    from mechmarkov.runs import load

    loaded = load(run)
    rows = {name: value for name, value in describe(loaded).items() if name != "provenance"}
    # Names and texts came from a file: what would steer a terminal is escaped.
    shown = {
        printable(name, NAME_CHARACTERS): "-" if value is None else printable(str(value), MAX_LINE_CHARACTERS)
        for name, value in (rows | loaded.contents() | loaded.provenance).items()
    }
    width = max(map(len, shown))
    for name, text in shown.items():
        click.echo(f"{name:<{width}}  {text}")


@cli.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "--source",
    metavar="JSON|FILE",
    help='What it was trained on: {"kind": …} (`mechmarkov list` has the kinds), or its text.',
)
@click.option("--objective", metavar="JSON", help="What it was trained for.  [cross-entropy everywhere]")
@click.option(
    "--set", "given", metavar="KEY=VALUE", multiple=True, help="What the file does not tell; repeatable."
)
@click.option(
    "--names", type=PATH, metavar="FILE", help="TOML: which weight is which, where names are its own."
)
@click.option("--tokens", "token_map", metavar="MAP", help='The model\'s token of each state: "a=0,b=1".')
@click.option("--pad", type=int, metavar="TOKEN", help="The model's padding token.")
@click.option("--bos", type=int, metavar="TOKEN", help="The model's beginning-of-sequence token.")
@click.option("--weights", metavar="NAME", help="Which of several models in a file, such as ema.")
@click.option("--without", metavar="A,B", help="Weights that the model does not use, or how they begin.")
@click.option("--out", type=PATH, default="run.pt", help="File.")
def import_(
    files: tuple[str, ...],
    source: str | None,
    objective: str | None,
    given: tuple[str, ...],
    names: Path | None,
    without: str | None,
    out: Path,
    **chosen: Any,
) -> None:
    """Make a run of a model that other code trained.

    FILE is a state dict of HookedTransformer or TransformerBridge, a checkpoint of nanoGPT, or a folder of
    transformers (GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, GPT-NeoX, Mamba, Mamba-2). Several, a folder or
    a pattern ("ckpt_*.pt") make one run with many steps.
    """
    from mechmarkov.importing.names.table import read_names
    from mechmarkov.importing.options import from_json, settings, source_of
    from mechmarkov.objectives import Objective
    from mechmarkov.runs.import_run import import_run
    from mechmarkov.runs.loading import check_replaces_run

    if source is None:
        example = """--source '{"kind": "circle", "n_states": 6, "p": 0.5}'"""
        raise ValueError(f"--source is missing: what the model was trained on, such as {example} or its text")
    check_writable(out)
    check_replaces_run(out)
    data = source_of(source)
    goal = None if objective is None else from_json("--objective", objective, Objective.model_validate)
    chosen |= {"without": names_of("--without", without) or []}
    chosen |= {"names": None if names is None else read_names(names)}
    imported = import_run(files, source=data, objective=goal, given=settings(given), **chosen)
    out.parent.mkdir(parents=True, exist_ok=True)
    imported.run.save(out)
    click.echo(imported.run.title())
    for note in imported.notes:
        click.echo(note)
    click.echo(told(out))


@cli.command()
@click.argument("sweep")
@click.option("--out", type=PATH, help="Folder. [sweeps/NAME]")
@DEVICE
@number("--fleet", MAX_SEEDS, "Members trained as one stack.  [64]")
@number("--processes", 512, "Fleets at once on a processor.  [its cores]")
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT or local.")
@click.option("--gpus-per-task", type=Finite(min=0), metavar="X", help="Of Ray, for a fleet.  [0]")
@click.option("--cpus-per-task", type=click.IntRange(min=1), metavar="N", help="Of Ray, for a fleet.  [1]")
@click.option("--retries", type=click.IntRange(min=0), metavar="N", help="Of Ray, after a lost node.  [3]")
def sweep(
    sweep: str,
    out: Path | None,
    device: str,
    fleet: int | None,
    processes: int | None,
    ray: str | None,
    **of_ray: Any,
) -> None:
    """Run SWEEP, a TOML file or the name of a shipped sweep: many recipes, one table, one picture.

    `mechmarkov list` has the shipped ones. Called again with the same --out, it does only what is missing.
    """
    from mechmarkov.shipped import check_written

    check_written("sweep", sweep)
    from mechmarkov.sweeps import Cluster
    from mechmarkov.sweeps import sweep as run_sweep
    from mechmarkov.sweeps.run import FLEET
    from mechmarkov.utils.threads import cores

    given: dict[str, Any] = {name: value for name, value in of_ray.items() if value is not None}
    if given and ray is None:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ValueError(f"{option} is an option of Ray, but no cluster is given: add its address with --ray")
    cluster = None if ray is None else Cluster(ray, **given)
    if processes is not None and ray is not None:
        raise ValueError("--processes is for this machine, and --ray runs on a cluster: give one of them")
    at_once = processes or (cores() if ray is None else 1)
    swept = run_sweep(sweep, out, device=device, fleet=fleet or FLEET, processes=at_once, cluster=cluster)
    for line in swept.summary():
        click.echo(told(line))
    if any(name.endswith(".failed") for name in swept.table.column_names):
        sys.exit(1)


@cli.command()
@click.option("--methods", metavar="A,B", help="Only these methods (`mechmarkov list`).  [all]")
@click.option("--cases", metavar="A,B", help="Only these cases (`mechmarkov list`).  [all]")
@click.option("--seeds", type=click.IntRange(1, 1000), default=8, help="Draws of each case.")
@click.option("--out", type=PATH, default="bench", help="Folder.")
def bench(methods: str | None, cases: str | None, seeds: int, out: Path) -> None:
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
    click.echo((out / "bench.md").read_text("utf-8"))
    for (method, why), rows in found.reasons.groupby(["method", "reason"]):
        click.echo(f"{method}: {why} ({', '.join(sorted(set(rows['case'])))})")
    click.echo(told(page))


@cli.command()
def probes() -> None:
    """List the probes and the question each answers, as their sources state it; none is loaded."""
    from mechmarkov.probe_names import question, registered

    found = registered()
    width = max(map(len, found), default=0)
    for name, entry in found.items():
        click.echo(f"{name:<{width}}  {question(entry)}")


@cli.command("list")
def list_() -> None:
    """List what has a name: recipes, sweeps, bundled runs, kinds of source, methods and cases of bench."""
    from mechmarkov.shipped import names

    for title, entries in names().items():
        width = max(map(len, entries))
        lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in entries.items()]
        click.echo("\n".join([title, *lines, ""]))


cli.add_command(recipe)
cli.add_command(certify)
cli.add_command(verify)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never a traceback for what a person typed."""
    words = None if arguments is None else list(arguments)
    try:
        with explaining():
            cli.main(args=words, prog_name="mechmarkov", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        _fail(
            _message(error),
            MAX_FAULTS_CHARACTERS if type(error).__name__ in OF_FILES else MAX_LINE_CHARACTERS,
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail("not enough memory: choose smaller sizes (model, data.batch, data.n_train, --seeds)")


def _message(error: Exception) -> str:
    if type(error).__name__ == "ValidationError":  # by its name, because importing pydantic takes time
        from mechmarkov.utils.errors import one_line

        return one_line(error)  # type: ignore[arg-type]  # told by its name above
    named = isinstance(error, OSError) and error.strerror and error.filename
    return f"{error.filename}: {error.strerror}" if named else reason(error)  # type: ignore[attr-defined]


def _fail(message: str, limit: int = MAX_LINE_CHARACTERS) -> None:
    """End with one line on stderr; names and paths in it may hold what would steer a terminal."""
    click.echo(f"error: {printable(' '.join(message.split()), limit)}", err=True)
    sys.exit(2)
