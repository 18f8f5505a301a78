"""`mechmarkov quiz`: models whose circuit is hidden, baselines that explain them, and scores."""

import json
import shlex
from pathlib import Path

import click

from mechmarkov.cli._options import JSON, PATH, number, print_json, told
from mechmarkov.utils.files import check_writable
from mechmarkov.utils.text import is_utf8, shown


@click.command()
@click.argument("folder", type=PATH)
@number("--models", 64, "How many.  [8]")
@click.option("--key", default="public", help="Which models; whoever has it has the answers.")
@click.option(
    "--by", type=click.Choice(["probe", "random", "acdc", "eap-ig"]), help="Write the answers of a baseline."
)
@click.option("--answers", type=PATH, metavar="FILE", help="Score answers.")
@JSON
def quiz(
    folder: Path, models: int | None, key: str, by: str | None, answers: Path | None, as_json: bool
) -> None:
    """Make a quiz of hidden circuits in FOLDER, answer it by a baseline, or score answers.

    Writes a run file a model and quiz.json, which says what is asked: which parts are needed, where heads
    attend, which paths carry, which laws are imitated. Answers are JSON: for each model a list of claims.
    --by writes answers-BY.json. --answers scores each as right, wrong, overclaimed or open.
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
    from mechmarkov.quiz.sheet import check_place
    from mechmarkov.utils.progress import progress_bar

    if is_utf8(key):
        check_place(folder, key, models or 8)
    with progress_bar(models or 8, "model") as done:
        hidden = hidden_models(key, models or 8, done)
    make(folder, key, hidden)
    if as_json:
        questions = {one.name: [question.to_data() for question in one.questions] for one in hidden}
        return print_json({"folder": str(folder), "models": questions})
    for one in hidden:
        click.echo(f"{one.name}: {one.case.source.title()}; {len(one.questions)} questions")
    click.echo(told(folder / "quiz.json"))
    click.echo(f"  {_call(folder)} --by probe")
    return None


def _answer(folder: Path, by: str, as_json: bool) -> None:
    from mechmarkov.quiz import answers_by, opened
    from mechmarkov.quiz.answers import to_data
    from mechmarkov.runs import load
    from mechmarkov.utils.files import replacing
    from mechmarkov.utils.progress import progress_bar

    sheet, file = opened(folder), folder / f"answers-{by}.json"
    check_writable(file)
    answers = {}
    with progress_bar(len(sheet.questions), "model") as done:
        for seed, (name, asked) in enumerate(sheet.questions.items()):
            run = load(folder / f"{name}.pt")
            answers[name] = to_data(answers_by(by, run, asked, seed))  # type: ignore[arg-type]  # click's
            done(name)
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(answers, indent=1) + "\n", "utf-8")
    if as_json:
        return print_json({"file": str(file), "answers": answers})
    click.echo(told(file))
    click.echo(f"  {_call(folder)} --answers {told(shlex.quote(str(file)))}")
    return None


def _call(folder: Path) -> str:
    """The words of a call that goes on with a quiz."""
    return f"mechmarkov quiz {told(shlex.quote(str(folder)))}"


def _score(folder: Path, key: str, answers: Path, as_json: bool) -> None:
    from mechmarkov.quiz import RULES, hidden_models, opened, read_answers, score
    from mechmarkov.quiz.sheet import commitment
    from mechmarkov.utils.progress import progress_bar

    sheet = opened(folder)
    if commitment(key, len(sheet.questions)) != sheet.key:
        raise ValueError(f"--key is {shown(key)}, expected the key that the quiz in {folder} was made with")
    with progress_bar(len(sheet.questions), "model") as done:
        hidden = hidden_models(key, len(sheet.questions), done)
    given = read_answers(answers, {one.name: one.questions for one in hidden})
    truths = {one.name: one.truth() for one in hidden}
    scores = score(given, truths)
    if as_json:
        truth = {
            name: [question.to_data() | {"value": value} for question, value in values.items()]
            for name, values in truths.items()
        }
        kinds = {one.name: one.kind for one in hidden}
        return print_json(
            {"scores": {name: one.to_data() for name, one in scores.items()}, "truth": truth, "kinds": kinds}
        )
    kinds = {one.name: one.kind for one in hidden}
    click.echo(f"{'':<11}{'':<12}  score right wrong overclaimed  open  hold  off")
    for name, one in scores.items():
        off = "" if one.off is None else f"{one.off:.3g} {RULES[name].unit}"
        click.echo(
            f"{name:<11}{kinds.get(name, ''):<12} {one.balanced:>6.2f} {one.right:>5} {one.wrong:>5} "
            f"{one.overclaimed:>11} {one.open:>5} {one.holding:>5}  {off}".rstrip()
        )
    return None
