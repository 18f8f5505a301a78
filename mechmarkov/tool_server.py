"""`mechmarkov mcp`: the commands as tools of the Model Context Protocol, for programs that reason about runs.

A tool is a command of ours in a process of its own, with a limit of seconds and of output; it ends with the
server, however that ends (`mechmarkov.called`). Files are read and written only below one folder; nothing is
fetched from a network. What a command refuses is the tool's error, and the server goes on.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from mechmarkov import __version__
from mechmarkov.catalogue import EXAMPLES
from mechmarkov.claims.claim import Status
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import near_misses, reason, shown

MAX_SECONDS = 600
MAX_OUTPUT = 4 << 20  # bytes that a command prints
MAX_SEEDS = 256
MAX_WORD = 200  # characters of a name
Texts = list[str]  # `Commands` has a method `list`
NOTHING: Texts = []
Kind = Literal["zero", "mean", "resample", "same_token"]
INSTRUCTIONS = """Train small transformers on Markov data, probe them, and read what is claimed of them.
Begin with `list`. `train` a recipe, `probe` the run file that it names, then read `claims` of that report:
each has a status (shown, excluded, open, does not apply), a value, an interval and its null. Test an
explanation with `ablate`; `certify` bounds a program's distance on every sequence. A score without its null
says nothing."""


class Commands:
    """The tools below one folder.

    Args:
        root: The folder; paths of all tools are in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    async def list(self) -> dict[str, Any]:
        """List what has a name: recipes, sweeps, bundled runs, sources, methods and cases, and the probes."""
        names = await self._json(["list"], 60)
        return {**names, "probes": await self._json(["probes"], 60)}

    async def train(
        self, recipe: str, changes: Texts = NOTHING, seeds: int = 1, seconds: float = 300
    ) -> dict[str, Any]:
        """Train a recipe: a shipped name, or a TOML file. `changes` are KEY=VALUE, such as steps=500.

        Returns the run files. Stopped at `seconds`, the same call goes on where it stopped.
        """
        name = self._recipe(recipe)
        out = self._relative(f"runs/{Path(recipe).stem}")
        words = ["train", name, "--out", out, "--device", "cpu"]
        for change in changes:
            words += ["--set", _word("changes", change)]
        if seeds != 1:
            words += ["--seeds", str(_count("seeds", seeds, MAX_SEEDS))]
        return await self._json(words, seconds)

    async def probe(
        self, run: str, probes: Texts = NOTHING, steps: str = "last", seconds: float = 300
    ) -> dict[str, Any]:
        """Probe a run file, a folder of them, or a bundled run ("example:walk"), and write its report.

        Returns the folder of the report and each probe's verdict (under `runs`, of several); `claims` has the
        claims as data.
        """
        if run.startswith("example:"):
            name = _word("run", run.removeprefix("example:"))
            words = ["probe", "--example", name]
        elif run in EXAMPLES and not (self.root / run).exists():
            raise ToolError(f"run is {run!r}, which is not there; the bundled run is 'example:{run}'")
        else:
            name, words = _named(run), ["probe", self._relative(run)]
        out = self._relative(f"reports/{name}")
        words += ["--out", out, "--steps", _word("steps", steps), "--device", "cpu"]
        if probes:
            words += ["--probes", _words("probes", probes)]
        summary = await self._json(words, seconds, may_fail=True)
        if "runs" in summary:  # of a folder with several
            told = {name: _told(one) for name, one in summary["runs"].items()}
            return {"report": out, "runs": told, "shares": summary["shares"]}
        return {"report": out, **_told(summary)}

    async def claims(self, report: str, status: Status | None = None) -> dict[str, Any]:
        """The claims of a report that `probe` wrote, as data; of one status, if it is given."""
        named = f"{self._relative(report)}/summary.json"
        path = self.root / named
        if not path.is_file() or path.stat().st_size > MAX_OUTPUT:
            raise ToolError(
                f"{report} is not a folder with a summary.json of at most {MAX_OUTPUT} bytes, expected a "
                "report of `probe`"
            )
        try:
            claims = json.loads(path.read_text("utf-8"), parse_constant=_refused)["claims"]
            chosen = [claim for claim in claims if status in (None, claim["status"])]
            json.dumps(chosen, ensure_ascii=False, allow_nan=False).encode()  # 1e999, half a surrogate
            return {"claims": chosen}
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{named} is not JSON: {reason(error)}, expected a report of `probe`") from None
        except (KeyError, TypeError):
            raise ToolError(f"{named} has no list of claims, expected one of a report of `probe`") from None

    async def ablate(
        self, run: str, parts: Texts, kind: Kind = "mean", seconds: float = 120
    ) -> dict[str, Any]:
        """The rise of the loss (nats) when the outputs of parts (L0H0, L0.mlp, direct …) are replaced.

        `kind` is zero, mean, resample or same_token. Several parts are replaced together.
        """
        words = ["ablate", self._relative(run), "--parts", _words("parts", parts)]
        return await self._json([*words, "--kind", kind], seconds)

    async def certify(self, run: str, program: str | None = None, seconds: float = 120) -> dict[str, Any]:
        """Bound, over every sequence, how far a program (constant, parent, row …) is from a run."""
        out = self._relative(f"proofs/{_named(run)}.json")
        words = ["certify", self._relative(run), "--out", out, "--seconds", str(seconds / 2)]
        words += [] if program is None else ["--program", _word("program", program)]
        return await self._json(words, seconds)

    async def bench(self, methods: Texts, cases: Texts, seconds: float = 300) -> dict[str, Any]:
        """Score methods of attribution against circuits whose effects are known, two draws a case."""
        words = ["bench", "--seeds", "2", "--out", self._relative("bench")]
        words += ["--methods", _words("methods", methods), "--cases", _words("cases", cases)]
        return await self._json(words, seconds)

    def _relative(self, path: str) -> str:
        """A path below the folder, as a command takes it there."""
        text = _word("path", path, MAX_WORD * 4)
        place = (self.root / text).resolve()
        if ":" in text or not place.is_relative_to(self.root):
            raise ToolError(
                f"{path!r} is not below the folder of this server, expected a relative path in it"
            )
        # A command reads what lies in a folder, and the checkpoints that wait next to a run.
        for folder in (place, place.with_name(f"{place.name}.steps")):
            for entry in folder.iterdir() if folder.is_dir() else ():
                if not entry.resolve().is_relative_to(self.root):
                    raise ToolError(f"{path!r} holds a link that leads outside, expected files of the folder")
        return "./" + place.relative_to(self.root).as_posix()

    def _recipe(self, recipe: str) -> str:
        return (
            self._relative(recipe) if "/" in recipe or recipe.endswith(".toml") else _word("recipe", recipe)
        )

    async def _json(self, words: Sequence[str], seconds: float, *, may_fail: bool = False) -> Any:
        """Run a command and return what it prints as JSON; its error line is the tool's error."""
        if not 0 < seconds <= MAX_SECONDS:
            raise ToolError(f"seconds is {seconds}, expected above 0 and at most {MAX_SECONDS}")
        command = [sys.executable, "-m", "mechmarkov.called", *words, "--json"]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
        process = await anyio.open_process(
            command, cwd=self.root, env=offline, stdin=subprocess.PIPE, start_new_session=True
        )
        printed: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

        async def read(name: str) -> None:
            async for part in getattr(process, name):
                if len(printed[name]) <= MAX_OUTPUT:
                    printed[name] += part

        try:
            with anyio.move_on_after(seconds) as limit:
                async with anyio.create_task_group() as group:
                    group.start_soon(read, "stdout")
                    group.start_soon(read, "stderr")
                await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()
        if limit.cancelled_caught:
            raise ToolError(f"{words[0]} took longer than {seconds:g} seconds and was stopped")
        if len(printed["stdout"]) > MAX_OUTPUT:
            raise ToolError(f"{words[0]} printed more than {MAX_OUTPUT} bytes")
        if process.returncode != 0 and not (may_fail and printed["stdout"]):
            lines = printed["stderr"].decode("utf-8", "replace").strip().splitlines() or ["no message"]
            raise ToolError(lines[-1].removeprefix("error: ")[:2000])
        return json.loads(printed["stdout"])


def _word(name: str, text: str, most: int = MAX_WORD) -> str:
    """A text that is one word of a command, and not an option of it."""
    if not text or len(text) > most or text.startswith("-") or not text.isprintable():
        raise ToolError(f"{name} is {text[:MAX_WORD]!r}, expected up to {most} characters, the first not '-'")
    return text


def _words(name: str, texts: Texts) -> str:
    """Texts as one word of a command, with commas between."""
    if not texts:
        raise ToolError(f"{name} is empty, expected a list of one name or more")
    return ",".join(_word(name, text) for text in texts)


def _told(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns what is said of a probed run: its title, verdicts, and what was not answered."""
    verdicts = {name: probe["verdict"] for name, probe in summary["probes"].items()}
    told = {key: summary[key] for key in ("skipped", "failed", "warnings")}
    return {"title": summary["run"]["title"], "verdicts": verdicts, **told}


def _named(run: str) -> str:
    """A name for what is made of a run: that of its file, with its folder's; of `run.pt` its folder's."""
    path = Path(run).parent if Path(run).name == "run.pt" else Path(run)
    return f"{path.parent.name}-{path.stem}".strip("-.") or "run"


def _refused(constant: str) -> float:
    """Refuse NaN and infinities, for which JSON has no word."""
    raise ValueError(f"it holds {constant}")


def _count(name: str, value: int, most: int) -> int:
    if not 1 <= value <= most:
        raise ToolError(f"{name} is {value}, expected 1 to {most}")
    return value


class _Server(MCPServer):
    """The SDK's server, whose complaint about arguments is one line that names one."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool.

        Raises:
            ToolError: What the tool raised, and arguments that do not fit.
        """
        known = next(
            (list(tool.input_schema["properties"]) for tool in await self.list_tools() if tool.name == name),
            None,
        )
        unknown = [] if known is None else [key for key in arguments if key not in known]
        if known is not None and unknown:
            expected = near_misses(unknown[0], known) if known else ", expected none"
            raise ToolError(f"{name} has no argument {shown(unknown[0])}{expected}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(one_line(error.__cause__)) from None
            if isinstance(error.__cause__, OSError):  # a name that is too long, a folder that went away
                raise ToolError(f"{name} cannot read or write: {reason(error.__cause__)}") from None
            raise


def server(root: Path) -> MCPServer:
    """The server of the tools below a folder."""
    made = _Server("mechmarkov", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    commands = Commands(root)
    for name in ("list", "train", "probe", "claims", "ablate", "certify", "bench"):
        made.add_tool(getattr(commands, name))
    return made
