"""Types of the command line's options, and how their texts are read."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import escape, glob
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class

from mechmarkov.catalogue import check_run, example_path, examples
from mechmarkov.utils.text import printable, shown

MAX_PATH_CHARACTERS = 5000
MAX_LINE_CHARACTERS = 1000
MAX_SEEDS = 10_000
Command = TypeVar("Command", bound=Callable[..., Any])


class _Path(click.Path):
    """A path; what no system takes for one is told by the option's name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path that a text is; click's error for an empty one, or one with a null character."""
        if not str(value):
            self.fail("it is empty, expected a path: the current folder is `.`", param, ctx)
        if "\0" in str(value):
            self.fail(f"{str(value)!r} has a null character, expected a path", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)


class Finite(click.FloatRange):
    """A finite number in a range; to click, nan is in any."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that a text is; click's error for any other text."""
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{found} is not a finite number.", param, ctx)


class Whole(click.IntRange):
    """An integer in a range; what is not one is told by the option's name, its value and the range."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The integer that a text is; click's error for any other text."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            option = param.opts[-1] if param is not None else "it"
            message = f"{option} is {shown(value)}, expected {self._range()}"
            raise click.BadParameter(message, ctx, param) from error

    def _describe_range(self) -> str:
        """The range that `--help` shows; nothing where there is none, of which click makes `x<=None`."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def _range(self) -> str:
        return "an integer" if self.min is None else f"an integer with {self._describe_range()}"


def number(name: str, most: int, text: str) -> Callable[[Command], Command]:
    """An option that says how many, at least one."""
    return click.option(name, type=Whole(1, most), metavar="N", help=text)


DEVICES = click.Choice(["auto", "cpu", "cuda"])
DEVICE = click.option("--device", default="auto", type=DEVICES, help="auto: CUDA where there is any.")
MEMORY = click.option("--memory", metavar="SIZE", help="A fleet larger than that is split.  [2GB]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
OPEN = click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
JOBS = number("--jobs", 512, "Processes.  [the cores; 1 on a GPU]")
STEP = click.option("--step", type=Whole(), default=-1, help="Checkpoint, -1 for the last.")
SEED = click.option("--seed", type=Whole(min=0), default=0, help="Of the evaluation data.")
SEQUENCES = number("--sequences", 100_000, "Evaluation sequences.  [64 to 2048]")


def completing(
    names: Callable[[], Iterable[str]], *, files: str | None = None
) -> Callable[..., list[CompletionItem]]:
    """Completes a name, or the last of several with commas between them, in a shell.

    Args:
        names: Gives the names that there are.
        files: How a file's name ends that may stand instead: those here are completed next to the names.
            Where none of either begins so but a path does, the shell completes paths.
    """

    def complete(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        found = [f"{before}{comma}{name}" for name in names() if name.startswith(last)]
        here = [] if files is None else glob(f"{escape(os.path.expanduser(incomplete))}*")
        found += sorted(path for path in here if "/" not in path and path.endswith(str(files)))
        return [CompletionItem(name) for name in found] or (paths(ctx, param, incomplete) if here else [])

    return complete


def paths(_: click.Context, __: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """Has the shell complete a path: of a run, which may be a file, a folder or no path at all."""
    return [CompletionItem(incomplete, type="file")]


EXAMPLE = click.option(
    "--example", metavar="NAME", shell_complete=completing(examples), help="A bundled run instead of RUN."
)


def run_of(run: str | None, example: str | None) -> str:
    """Returns where the run of a command is: RUN, or the file of the bundled one that `--example` names.

    Raises:
        ValueError: Both are given, or neither, or there is no such run.
    """
    if run is not None and example is not None:
        raise ValueError("RUN and --example exclude each other")
    if example is not None:
        return str(example_path(example))
    if run is None:
        raise ValueError("RUN is missing: a run.pt file, or --example NAME")
    check_run(run)
    return run


@add_completion_class
class Fish(FishComplete):
    """Completion in fish of words with commas in them, which click's own cuts at the first."""

    source_template = FishComplete.source_template.replace('split ","', 'split --max 1 ","')


@contextmanager
def going_on() -> Iterator[None]:
    """Say of an interrupted command that the same one goes on where it stopped."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("The same command goes on where this one stopped.", err=True)
        raise


def names_of(option: str, text: str | None) -> list[str] | None:
    """The names of an option, separated by commas, each once."""
    names = list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if text is not None and not names:
        raise ValueError(f"{option} is {text!r}, expected names separated by commas")
    return names or None


def steps_of(text: str) -> Literal["last", "all"] | list[int]:
    """Returns which checkpoints `--steps` means."""
    if text == "last" or text == "all":
        return text  # type: ignore[return-value]  # narrowed by the comparison, which mypy does not see
    return integers_of("--steps", text, "last, all or numbers such as 10,50")


def integers_of(option: str, text: str, expected: str) -> list[int]:
    """The integers of an option, separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} is {text!r}, expected {expected}") from None


def print_json(data: Any) -> None:
    """Print plain data as JSON; numbers that are not finite, which JSON has no words for, become null."""
    click.echo(json.dumps(_finite(data), ensure_ascii=False, allow_nan=False))


def open_page(page: Path) -> None:
    """Open a page in a browser, or say on standard error that there is none."""
    import webbrowser  # its search for browsers takes a while

    if not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"warning: no browser was found to open {told(page)}", err=True)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def told(path: object) -> str:
    """A path as it is printed: bytes of its name that are not text are shown by their code."""
    return printable(str(path), MAX_PATH_CHARACTERS)
