"""`mechmarkov train`: a recipe becomes a run, or a fleet of runs."""

import shlex
from pathlib import Path

import click

from mechmarkov import catalogue
from mechmarkov.cli._options import (
    DEVICE,
    JSON,
    MAX_SEEDS,
    MEMORY,
    PATH,
    Whole,
    completing,
    going_on,
    number,
    print_json,
    told,
)
from mechmarkov.utils.files import check_writable


@click.command(options_metavar="[--set KEY=VALUE]… [OPTIONS]")
@click.argument("recipe", shell_complete=completing(catalogue.recipes, files=".toml"))
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, help="Change a recipe field; repeatable."
)
@click.option("--seed", type=Whole(), help="Seed of weights and data (0 by default).")
@number("--seeds", MAX_SEEDS, "Train seeds 0 … N-1 as a fleet.")
@MEMORY
@DEVICE
@JSON
@click.option("--out", type=PATH, help="Folder for run.pt. [runs/RECIPE]")
def train(
    recipe: str,
    changes: tuple[str, ...],
    seed: int | None,
    seeds: int | None,
    memory: str | None,
    device: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train RECIPE, a TOML file or the name of a shipped recipe (`mechmarkov list` has them).

    Called again after an interruption with the same --out, it goes on where it stopped.
    """
    if seed is not None and seeds is not None:
        raise ValueError("--seed and --seeds exclude each other: give one seed, or how many")
    catalogue.check_written("recipe", recipe)
    from mechmarkov.training import load_recipe
    from mechmarkov.training import train as train_run
    from mechmarkov.training.execute import aim_in_words

    chosen = load_recipe(recipe).with_set(changes)
    folder = out or Path("runs") / (Path(recipe).stem.strip(".") or "recipe")
    check_writable(folder / ("run.pt" if seeds is None else "seed-0.pt"))
    with going_on():
        if seeds is None:
            runs = [train_run(chosen, seed=seed, device=device, out=folder, memory=memory)]
        else:
            runs = train_run(chosen, seeds=range(seeds), device=device, out=folder, memory=memory)
    if seeds is None:
        made = {folder / "run.pt": runs[0]}
    else:
        made = {folder / f"seed-{run.seed}.pt": run for run in runs}
    if as_json:
        rows = [{"file": str(path), "title": run.title(), **run.contents()} for path, run in made.items()]
        return print_json({"runs": rows})
    aim = aim_in_words([chosen])
    for path, run in made.items():
        told_of = {"loss": run.contents().get("loss"), **run.sampling_errors()}
        ends = {"loss": aim}
        numbers = [f"{name} {text}{ends.get(name, '')}" for name, text in told_of.items() if text is not None]
        click.echo("\n".join([run.title(), *numbers, told(path)]))
    click.echo(f"  mechmarkov probe {told(shlex.quote(str(folder)))} --steps all")
