"""The command line: a file holds a command, or two of a kind.

Nothing heavy is imported before a command needs it:
`mechmarkov --help` loads neither torch nor TransformerLens. Bad input ends with one line `error: …` on stderr
and exit code 2.
"""

import atexit
import gc
import sys
from collections.abc import Sequence

import click

from mechmarkov.cli._ablate import ablate
from mechmarkov.cli._bench import bench
from mechmarkov.cli._certify import certify, verify
from mechmarkov.cli._index import index
from mechmarkov.cli._lists import list_, probes
from mechmarkov.cli._mcp import mcp
from mechmarkov.cli._options import MAX_LINE_CHARACTERS
from mechmarkov.cli._probe import probe
from mechmarkov.cli._quiz import quiz
from mechmarkov.cli._recipe import recipe
from mechmarkov.cli._runs import import_, show
from mechmarkov.cli._sweep import sweep
from mechmarkov.cli._tokens import tokens_
from mechmarkov.cli._train import train
from mechmarkov.cli._usage import usage_line
from mechmarkov.utils.memory import ProcessKilledError, is_out_of_memory
from mechmarkov.utils.shadowed import explaining
from mechmarkov.utils.text import printable

MAX_WORD = 200  # characters of a word in a long line
MAX_FAULTS_CHARACTERS = 2000  # of a recipe or a sweep, which may have several
OF_FILES = ("RecipeError", "SweepError")  # by their names, because importing them takes time
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


BEGIN = """\b
Begin with a bundled run, or with a recipe of your own:
  mechmarkov probe --open
  mechmarkov recipe new --source chain > mine.toml
  mechmarkov train mine.toml
  mechmarkov probe runs/mine --steps all --open
"""


class InOrder(click.Group):
    """Commands in the order in which they are used."""

    def list_commands(self, _: click.Context) -> list[str]:
        """The names of the commands, as they were added."""
        return list(self.commands)


@click.group(cls=InOrder, context_settings=SETTINGS, epilog=BEGIN)
@click.version_option(package_name="mechmarkov", message="%(prog)s %(version)s")
def cli() -> None:
    """Show what a small transformer learned from Markov data, where it lives and why it is stuck."""


COMMANDS = {  # and what each does, on one line of a terminal
    recipe: "Print a shipped recipe, or write one of your own.",
    train: "Train RECIPE, a shipped name or a TOML file.",
    probe: "Probe RUN and write report.html, results.nc and summary.json.",
    tokens_: "Show what RUN makes of one sequence of yours.",
    ablate: "Say how far the loss of RUN rises without some of its parts.",
    certify: "Bound how far a program is from RUN on every sequence.",
    verify: "Check PROOF, which `certify` wrote, against RUN.",
    index: "List the probed runs in FOLDER on one page.",
    show: "Say what RUN holds.",
    import_: "Make a run of a model that other code trained.",
    sweep: "Run SWEEP: many recipes, one table, one picture.",
    bench: "Score interpretability methods against known circuits.",
    quiz: "Make a quiz of hidden circuits, answer it, or score answers.",
    list_: "List recipes, sweeps, bundled runs, sources, methods and cases.",
    probes: "List the probes and the question each answers.",
    mcp: "Serve the commands as tools of the Model Context Protocol.",
}
for command, told in COMMANDS.items():
    command.short_help = told
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never a traceback for what a person typed."""
    words = None if arguments is None else list(arguments)
    if words is None:
        _collect_seldom()
    try:
        with explaining():
            cli.main(args=words, prog_name="mechmarkov", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        _fail(usage_line(error))
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
    except ProcessKilledError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(
            "not enough memory: choose smaller sizes (model, data.batch, data.n_train, --seeds, --sequences)"
        )


def _collect_seldom() -> None:
    """Look for unreachable cycles every 100 000 objects, and not at the end of the process.

    What is imported makes 360 000 objects that stay. Looking for cycles among them takes a second in all.
    """
    gc.set_threshold(100_000, 20, 50)
    atexit.register(gc.freeze)


def _message(error: Exception) -> str:
    if type(error).__name__ == "ValidationError":  # by its name, because importing pydantic takes time
        from mechmarkov.utils.errors import one_line

        return one_line(error)  # type: ignore[arg-type]  # told by its name above
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()  # several, where the name of a file holds the end of one
    return "\\n".join(lines) or type(error).__name__


def _fail(message: str, limit: int = MAX_LINE_CHARACTERS) -> None:
    """End with one line on stderr; names and paths in it may hold what would steer a terminal.

    Of a long line the longest words are cut first: what was expected stands at its end.
    """
    words = message.split()
    if sum(map(len, words)) + len(words) > limit:
        words = [word if len(word) <= MAX_WORD else f"{word[:MAX_WORD]}…" for word in words]
    click.echo(f"error: {printable(' '.join(words), limit)}", err=True)
    sys.exit(2)
