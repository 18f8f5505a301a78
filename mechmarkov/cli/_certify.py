"""`mechmarkov certify` and `verify`: a certificate of a run, and its check."""

import shlex
from pathlib import Path
from typing import Any

import click

from mechmarkov.cli._options import EXAMPLE, JSON, PATH, STEP, Finite, integers_of, paths, print_json, run_of
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import reason

NUMBERS = ("tier", "worst_kl", "worst_log_ratio", "worst_logit_error", "why")


@click.command()
@click.argument("run", required=False, metavar="RUN", shell_complete=paths)
@EXAMPLE
@click.option(
    "--program",
    metavar="NAME|TABLE",
    help="constant, parent, row, an exact predictor, or a table ([[…], …] or its file).  [the smallest near]",
)
@click.option(
    "--lags",
    metavar="N,…",
    help="Lags of the states that a table looks at: 1,2 for the last two.  [1; then the source's]",
)
@STEP
@click.option(
    "--seconds", type=Finite(min=0, min_open=True), metavar="S", help="Budget of the bounds.  [120]"
)
@click.option(
    "--arithmetic",
    type=click.Choice(["float32", "exact"]),
    default="float32",
    help="Which evaluations are covered: in float32 and exact arithmetic, or only the latter.",
)
@JSON
@click.option("--out", type=PATH, default="proof.json", help="File.")
def certify(
    run: str | None,
    example: str | None,
    program: str | None,
    lags: str | None,
    step: int,
    seconds: float | None,
    arithmetic: str,
    out: Path,
    as_json: bool,
) -> None:
    """Certify how far a program is from RUN at most, on every sequence, and write a proof.

    RUN is a run.pt file, a folder that `save_folder` wrote, or hf://owner/name. Where no bound is known the
    worst sequence that a search found is printed, and no proof is written.
    """
    path = run_of(run, example)
    check_writable(out)
    from mechmarkov.certify import EXACT, FLOAT32, proof_of, save_proof
    from mechmarkov.certify import certify as certify_run
    from mechmarkov.certify.proof import check_replaces_proof
    from mechmarkov.certify.sentence import sentences
    from mechmarkov.runs import load

    loaded = load(path)
    check_replaces_proof(out)
    held = int(loaded.steps[-1]) if step == -1 else step
    options: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
    if lags is not None:
        options["lags"] = integers_of("--lags", lags, "numbers such as 1,2")
    unit = FLOAT32 if arithmetic == "float32" else EXACT
    found = certify_run(loaded, _program(program), step=held, unit=unit, **options)
    history = [str(loaded.source.labels[state]) for state in found.seen.history]
    position = found.contexts.reads[found.seen.read]
    if found.worst_kl is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_proof(proof_of(found, held), out)
    if as_json:
        numbers = {name: getattr(found, name) for name in NUMBERS}
        seen = {"kl": found.seen.nats, "position": position, "history": history}
        proof = None if found.worst_kl is None else str(out)
        of_program = {"program": found.program.name, "lags": found.contexts.lags}
        return print_json({**of_program, **numbers, "seen": seen, "proof": proof})
    click.echo(loaded.title())
    for sentence in sentences(found):
        click.echo(sentence)
    click.echo(f"Its sequence, read at position {position}: {' '.join(history)}")
    if found.worst_kl is None:
        click.echo("No proof is written.")
    else:
        typed = f"--example {example}" if run is None else shlex.quote(run)
        click.echo(f"{out}  (mechmarkov verify {shlex.quote(str(out))} {typed})")


def _program(text: str | None) -> Any:
    """Returns what `--program` means: a name, or a table in the text or in the file that it names."""
    from mechmarkov.safe.json_file import parse_json, read_json

    if text is None or (not text.lstrip().startswith("[") and not Path(text).exists()):
        return text
    if not text.lstrip().startswith("["):
        table = read_json(text)
    else:
        try:
            table = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"--program is not JSON: {reason(error)}") from None
    if not isinstance(table, list) or not all(isinstance(row, list) for row in table):
        raise ValueError(
            "--program is not a table, expected a list with a list of probabilities for each state"
        )
    return table


@click.command()
@click.argument("proof", type=PATH)
@click.argument("run", required=False, metavar="RUN", shell_complete=paths)
@EXAMPLE
@JSON
def verify(proof: Path, run: str | None, example: str | None, as_json: bool) -> None:
    """Check PROOF, which `certify` wrote, against RUN.

    Each inequality is computed again from the weights, and the model is run on the sequence that it shows.
    """
    if proof.is_dir() or proof.suffix == ".pt":
        raise ValueError(f"{proof} is not a proof, which comes first: mechmarkov verify PROOF RUN")
    path = run_of(run, example)
    from mechmarkov.certify import load_proof
    from mechmarkov.certify import verify as verify_proof
    from mechmarkov.certify.witness import seen_again
    from mechmarkov.runs import load

    stored, loaded = load_proof(proof), load(path)
    try:
        follows = verify_proof(stored, loaded)
        seen = seen_again(stored, loaded)
    except ValueError as error:
        raise ValueError(f"{proof} does not hold: {error}") from None
    if as_json:
        return print_json({"holds": True, "follows": follows, "claims": stored["claims"], "seen": seen})
    click.echo(f"{proof} holds: {stored['kind']}, covers {stored['arithmetic']} arithmetic")
    for name, value in follows.items():
        claimed = stored["claims"][name]
        said = "nothing is claimed" if claimed is None else f"{claimed:.6g} is claimed"
        click.echo(f"  {name:<16} {value:.6g} follows, {said}")
    click.echo(f"  {'seen':<16} {seen:.6g} on its sequence, at position {stored['seen']['position']}")
