"""`mechmarkov show` and `import`: what a run holds, and a run of a model that other code trained."""

from pathlib import Path
from typing import Any

import click

from mechmarkov.cli._options import (
    EXAMPLE,
    JSON,
    MAX_LINE_CHARACTERS,
    PATH,
    Whole,
    names_of,
    paths,
    print_json,
    run_of,
    told,
)
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import NAME_CHARACTERS, printable


@click.command()
@click.argument("run", required=False, metavar="RUN", shell_complete=paths)
@EXAMPLE
@JSON
def show(run: str | None, example: str | None, as_json: bool) -> None:
    """Say what RUN holds, a run.pt file, a folder that `save_folder` wrote, or hf://owner/name."""
    path = run_of(run, example)
    from mechmarkov import runs
    from mechmarkov.runs.description import describe
    from mechmarkov.runs.growth import waiting
    from mechmarkov.runs.stored import place_of, read

    place = place_of(path)
    loaded = runs.load(place) if waiting(place) else read(place)
    rows = {name: value for name, value in describe(loaded).items() if name != "provenance"}
    if as_json:
        return print_json(rows | loaded.contents() | {"provenance": loaded.provenance})
    # Names and texts came from a file: what would steer a terminal is escaped.
    shown = {
        printable(name, NAME_CHARACTERS): "-" if value is None else printable(str(value), MAX_LINE_CHARACTERS)
        for name, value in (rows | loaded.contents() | loaded.provenance).items()
    }
    width = max(map(len, shown))
    for name, text in shown.items():
        click.echo(f"{name:<{width}}  {text}")


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", shell_complete=paths)
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
@click.option("--pad", type=Whole(), metavar="TOKEN", help="The model's padding token.")
@click.option("--bos", type=Whole(), metavar="TOKEN", help="The model's beginning-of-sequence token.")
@click.option("--weights", metavar="NAME", help="Which of several models in a file, such as ema.")
@click.option("--without", metavar="A,B", help="Weights that the model does not use, or how they begin.")
@JSON
@click.option("--out", type=PATH, default="run.pt", help="File.")
def import_(
    files: tuple[str, ...],
    source: str | None,
    objective: str | None,
    given: tuple[str, ...],
    names: Path | None,
    without: str | None,
    out: Path,
    as_json: bool,
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
    if as_json:
        return print_json({"file": str(out), "title": imported.run.title(), "notes": list(imported.notes)})
    click.echo(imported.run.title())
    for note in imported.notes:
        click.echo(note)
    click.echo(told(out))
