"""`mechmarkov ablate`: the loss of a run without some of its parts."""

from functools import partial
from typing import Any

import click

from mechmarkov.cli._options import (
    EXAMPLE,
    JSON,
    SEED,
    SEQUENCES,
    STEP,
    integers_of,
    names_of,
    paths,
    print_json,
    run_of,
)

KINDS = ("zero", "mean", "resample", "same_token")


@click.command(options_metavar="[OPTIONS] --parts A,B")
@click.argument("run", required=False, metavar="RUN", shell_complete=paths)
@EXAMPLE
@click.option("--parts", metavar="A,B", required=True, help="L0H0, L0.mlp, direct, embed, pos_embed, bias.")
@click.option("--kind", type=click.Choice(KINDS), default="mean", help="What takes their place.")
@click.option("--positions", metavar="5,-1", help="Only there, from the end if negative.  [everywhere]")
@STEP
@SEED
@SEQUENCES
@JSON
def ablate(
    run: str | None,
    example: str | None,
    parts: str,
    kind: str,
    positions: str | None,
    step: int,
    seed: int,
    sequences: int | None,
    as_json: bool,
) -> None:
    """Say how far the loss of RUN rises when the outputs of its parts, together, are replaced."""
    names = names_of("--parts", parts) or []
    where = None if positions is None else integers_of("--positions", positions, "numbers such as 5,-1")
    path = run_of(run, example)
    from mechmarkov.interventions.ablate import ablate as without
    from mechmarkov.probing.effects import effects
    from mechmarkov.probing.subject import Subject
    from mechmarkov.runs import load

    loaded = load(path)
    held = int(loaded.steps[-1]) if step == -1 else step
    subject = Subject.of(loaded, [held], seed=seed, sequences=sequences)
    cut: Any = partial(without, component=names, kind=kind, seed=seed, positions=where)
    data = effects(subject, subject.batch, {("together",): cut}, ("cut",), "rise").sel(measure="loss")
    loss = float(data["clean"][0])
    rise, low, high = (float(data[f"rise{end}"][0, 0]) for end in ("", "_low", "_high"))
    if as_json:
        measured = {"loss": loss, "rise": rise, "interval": [low, high], "unit": "nats"}
        return print_json({"parts": names, "kind": kind, "step": held, **measured})
    click.echo(loaded.title())
    click.echo(f"loss {loss:.4g} nats; without {', '.join(names)} ({kind}) it rises by {rise:.4g} nats")
    click.echo(f"95 % interval {low:.4g} to {high:.4g}, over {len(subject.batch.tokens)} sequences")
