"""`mechmarkov quiz`: models whose circuit is hidden, baselines that explain them, and scores."""

import json
from pathlib import Path

import click

from mechmarkov.cli._options import JSON, PATH, number, print_json, told
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import shown


@click.command()
@click.argument("folder", type=PATH)
@number("--models", 64, "How many.  [8]")
@click.option("--key", default="public", help="Which models; whoever has it has the answers.")
@click.option("--by", type=click.Choice(["probe", "random"]), help="Write the answers of a baseline.")
@click.option("--answers", type=PATH, metavar="FILE", help="Score answers.")
@JSON
def quiz(
    folder: Path, models: int | None, key: str, by: str | None, answers: Path | None, as_json: bool
) -> None:
    """Make a quiz of hidden circuits in FOLDER, answer it by a baseline, or score answers.

    Writes a run file a model and quiz.json, which says what is asked. Answers are JSON: for each model a list
    of claims. --by writes answers-BY.json. --answers scores each as right, wrong, overclaimed or open.
    """
    if by is not None and answers is not None:
        raise ValueError("--by and --answers exclude each other: one writes answers, the other scores them")
    if models is not None and (by is not None or answers is not None):
        raise ValueError("--models is for a new quiz, expected none with --by or --answers")
    if answers is not None and not answers.is_file():
        raise ValueError(f"--answers {answers} is not a file")
    if answers is not None:
        return _score(folder, key, answers, as_json)
    if by is not None:
        return _answer(folder, by, as_json)
    check_writable(folder / "quiz.json")
    from mechmarkov.quiz import hidden_models, make

    hidden = hidden_models(key, models or 8)
    make(folder, key, hidden)
    if as_json:
        return print_json({"folder": str(folder), "models": {one.name: one.parts for one in hidden}})
    for one in hidden:
        click.echo(f"{one.name}: {one.case.source.title()}; parts {', '.join(one.parts) or 'none'}")
    click.echo(told(folder / "quiz.json"))
    return None


def _answer(folder: Path, by: str, as_json: bool) -> None:
    from mechmarkov.quiz import answers_by, opened
    from mechmarkov.runs import load
    from mechmarkov.utils.files import replacing

    sheet, file = opened(folder), folder / f"answers-{by}.json"
    check_writable(file)
    found = {
        name: answers_by(by, load(folder / f"{name}.pt"), parts, seed)  # type: ignore[arg-type]  # click's choice
        for seed, (name, parts) in enumerate(sheet["models"].items())
    }
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if as_json:
        return print_json({"file": str(file), "answers": found})
    click.echo(told(file))
    return None


def _score(folder: Path, key: str, answers: Path, as_json: bool) -> None:
    from mechmarkov.quiz import hidden_models, opened, read_answers, score, truth
    from mechmarkov.quiz.sheet import commitment

    sheet = opened(folder)
    count = len(sheet["models"])
    if commitment(key, count) != sheet["key"]:
        raise ValueError(f"--key is {shown(key)}, expected the key that the quiz in {folder} was made with")
    hidden = hidden_models(key, count)
    given = read_answers(answers, {one.name: one.parts for one in hidden})
    truths = {one.name: truth(one) for one in hidden}
    scores = score(given, truths)
    if as_json:
        kinds = {one.name: one.kind for one in hidden}
        told_scores = {name: found.to_data() for name, found in scores.items()}
        return print_json({"scores": told_scores, "truth": truths, "kinds": kinds})
    click.echo(f"{'model':<10} {'kind':<12} points right wrong overclaimed open  nats off")
    for one in [*hidden, None]:
        name, kind = ("all", "") if one is None else (one.name, one.kind)
        found = scores[name]
        off = "-" if found.nats is None else f"{found.nats:.3g}"
        click.echo(
            f"{name:<10} {kind:<12} {found.points:>6} {found.right:>5} {found.wrong:>5} "
            f"{found.overclaimed:>11} {found.open:>4}  {off}"
        )
    return None
