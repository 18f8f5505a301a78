"""What every study shares: trained runs, numbers as text, results on disk, pages, the command line."""

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import plotly.io
import torch
from jaxtyping import Bool, Float, Int
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

import mechmarkov as mm
from experiments.claims import EXACT, Claim, Finding
from experiments.claims_table import details, table
from experiments.exactness import is_exact, no_random_numbers, refuse_samples
from experiments.picture import draw
from experiments.sampling_error import note_training, noting
from experiments.statements import cases, statements
from mechmarkov.utils.threads import cores, threads

EVALUATION_SEED = 2_000_000_000  # a CPU generator keeps 32 bits; training seeds are small
_runs_folder: ContextVar[Path | None] = ContextVar("runs_folder", default=None)


@dataclass(frozen=True)
class Measured:
    """What one measurement gives: its findings, and the figures that show them, by file name."""

    findings: Sequence[Finding]
    figures: Mapping[str, go.Figure] = field(default_factory=dict)


def over_seeds(values: Sequence[float] | Float[np.ndarray, " seed"], digits: int = 3) -> str:
    """Median and range over seeds, as text.

    Example:
        >>> over_seeds([0.25, 0.5, 0.5])
        '0.5 [0.25, 0.5]'
    """
    return f"{np.median(values):.{digits}g} [{min(values):.{digits}g}, {max(values):.{digits}g}]"


def when(steps: Sequence[float] | Float[np.ndarray, " seed"]) -> str:
    """Event times over seeds as text: median and range, "never" for what did not come.

    Example:
        >>> when([20.0, 40.0, np.inf])
        '40 [20, never]'
    """
    shown = [f"{x:.0f}" if np.isfinite(x) else "never" for x in (np.median(steps), min(steps), max(steps))]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def first_time(
    condition: Bool[np.ndarray, " step"],
    steps: Float[np.ndarray, " step"] | Int[np.ndarray, " step"] | None = None,
    stays: int | None = 1,
) -> float:
    """The first step at which a condition holds; infinite if there is none.

    Args:
        condition: At each kept step.
        steps: The kept steps; 0, 1, … by default.
        stays: At how many kept steps in a row it must hold; None: at all that follow.

    Example:
        >>> there = np.array([True, False, True, True])
        >>> first_time(there), first_time(there, stays=2), first_time(there, stays=3)
        (0.0, 2.0, inf)
    """
    condition = np.asarray(condition, dtype=bool)
    if stays is None:
        lasting = np.logical_and.accumulate(condition[::-1])[::-1]
    else:
        lasting = sliding_window_view(condition, stays).all(-1) if len(condition) >= stays else condition[:0]
    if not lasting.any():
        return float("inf")
    first = int(lasting.argmax())
    return float(first if steps is None else steps[first])


def evaluation(source: mm.sources.Source, sequences: int, length: int) -> Int[Tensor, "batch position"]:
    """Sequences that no model was trained on."""
    return source.sample(sequences, length, generator=torch.Generator().manual_seed(EVALUATION_SEED))


def attention_share(run: mm.Run) -> float:
    """`|attention| / |stream after it|` of the last model's first layer, mean over tokens."""
    tokens = evaluation(run.source, 64, run.config.n_ctx)
    _, cache = run.model().run_with_cache(tokens)
    added, stream = cache["blocks.0.hook_attn_out"], cache["blocks.0.hook_resid_mid"]
    return float((added.norm(dim=-1) / stream.norm(dim=-1)).mean())


def every_sequence(n_states: int, length: int) -> Int[Tensor, "batch position"]:
    """All sequences of a length, so that equality on them is a proof up to that length."""
    return torch.tensor(list(product(range(n_states), repeat=length)))


def predictions(
    run: mm.Run, tokens: Int[Tensor, "batch position"]
) -> Float[np.ndarray, "step batch position state"]:
    """What the model predicts at every training step it has kept: probabilities, float64."""
    with torch.no_grad():
        return np.asarray(run.model(steps="all")(tokens).double().softmax(-1).numpy())


def exact(
    source: mm.sources.Source, tokens: Int[Tensor, "batch position"]
) -> dict[str, Float[np.ndarray, "batch position state"]]:
    """What each exact predictor of the source predicts: probabilities."""
    return {name: rule.probabilities(tokens.numpy()) for name, rule in source.predictors().items()}


@contextmanager
def keep_runs(folder: Path | None) -> Iterator[None]:
    """Within it, `trained` keeps its runs in a folder, and reads them again; with None it keeps none."""
    token = _runs_folder.set(folder)
    try:
        yield
    finally:
        _runs_folder.reset(token)


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def _train(members: Sequence[mm.training.Member]) -> list[mm.Run | mm.training.Diverged]:
    """Train members; a compiled step holds Python's lock, so that each core then has a process of its own."""
    n = min(cores(), len(members))
    if n < 2 or not any(member.recipe.compile for member in members):
        return mm.training.train_members(members, device="cpu") if members else []
    parts = [members[i::n] for i in range(n)]
    with ProcessPoolExecutor(n, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        found = list(pool.map(partial(mm.training.train_members, device="cpu", at_once=1), parts))
    return [found[i % n][i // n] for i in range(len(members))]


def trained(recipes: Sequence[mm.Recipe], seeds: Sequence[int]) -> list[list[mm.Run]]:
    """Train every recipe for every seed, on the CPU: a list of runs for each recipe.

    Recipes of one shape share a stack. Within `keep_runs` nothing is trained twice: a run is kept by the hash
    of its recipe, its seed and the library.

    Raises:
        ValueError: A run diverged.
    """
    for recipe in recipes:
        refuse_samples(recipe.data.population, recipe.name)
        note_training(recipe, len(seeds))
    members = [mm.training.Member(recipe, seed) for recipe in recipes for seed in seeds]
    folder = _runs_folder.get()
    paths = [None if folder is None else folder / f"{_content_hash(member)}.pt" for member in members]
    missing = [i for i, path in enumerate(paths) if path is None or not path.is_file()]
    new = _train([members[i] for i in missing])
    runs = dict(zip(missing, new, strict=True))
    for i, run in runs.items():
        if isinstance(run, mm.training.Diverged):
            raise ValueError(run.message)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            run.save(paths[i])
    found = [runs[i] if i in runs else mm.load(path) for i, path in enumerate(paths)]
    return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]


def kept(name: str, train: Callable[[], mm.Run]) -> mm.Run:
    """A run that a study trains by a loop of its own; within `keep_runs` it is not trained twice.

    Args:
        name: Decides, with the library, what is trained.
        train: Called where there is no such run yet.
    """
    folder = _runs_folder.get()
    if folder is None:
        return train()
    path = folder / f"{hashlib.sha256(f'{name} {_library()}'.encode()).hexdigest()}.pt"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        train().save(path)
    return mm.load(path)


def _content_hash(member: mm.training.Member) -> str:
    content = {"recipe": member.recipe.to_data(), "seed": member.seed, "library": _library()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _library() -> str:
    """The versions, and the hash of the library's files: a checkout changes under one version."""
    files = sorted(Path(mm.__file__).parent.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return f"{mm.__version__} {torch.__version__} {digest}"


def save(folder: Path, name: str, measured: Measured, seconds: float) -> None:
    """Write `results/NAME.json`, and each figure as `figures/FIGURE.json` and as a picture for the page."""
    results, figures = folder / "results", folder / "figures"
    for place in (results, figures):
        place.mkdir(parents=True, exist_ok=True)
    record = {
        "seconds": round(seconds, 1),
        "figures": [*measured.figures],
        "findings": [{key: value for key, value in asdict(f).items() if value} for f in measured.findings],
    }
    (results / f"{name}.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    for title, figure in measured.figures.items():
        (figures / f"{title}.json").write_text(figure.to_json() + "\n")
        draw(figure, figures / f"{title}.svg")


def load(folder: Path, name: str) -> tuple[list[Finding], float]:
    """A measurement's findings and the seconds it took. Raises FileNotFoundError before its first run."""
    record = json.loads((folder / "results" / f"{name}.json").read_text())
    tuples = ("count", "sample")
    found = [{k: tuple(v) if k in tuples else v for k, v in row.items()} for row in record["findings"]]
    return [Finding(**row) for row in found], record["seconds"]


def load_figure(folder: Path, title: str) -> go.Figure:
    """A saved figure, to be drawn again."""
    return plotly.io.from_json((folder / "figures" / f"{title}.json").read_text())


@dataclass(frozen=True)
class Study:
    """A folder of experiments, and its command line.

    Attributes:
        folder: Where `reading.md` is, and where the results are committed.
        about: What is measured, for `--help`.
        measures: The measurements, in the order of the page. Each is called with whether to measure less, as
            the tests do.
    """

    folder: Path
    about: str
    measures: Sequence[Callable[[bool], Measured]]

    @property
    def names(self) -> list[str]:
        """How `--only` selects the measurements."""
        return [measure.__name__ for measure in self.measures]

    def measure(self, name: str, quick: bool) -> Measured:
        """One measurement, its findings with what it was trained on and the errors of its means.

        Raises:
            ValueError: A finding is said to be exact, and the measurement is not marked so.
            RandomNumberError: It is marked so, and drew a random number.
        """
        measure = self.measures[self.names.index(name)]
        exact = is_exact(measure)
        with noting() as noted, no_random_numbers() if exact else nullcontext():
            measured = measure(quick)
        for found in measured.findings:
            if found.evidence in EXACT and not exact and found.direction != "untested":
                raise ValueError(
                    f"{name}: {found.key} is {found.evidence}, and {name} is not marked @exactly"
                )
        findings = [replace(f, data=noted.data, error=noted.error) for f in measured.findings]
        return replace(measured, findings=findings)

    def claims(self, name: str, findings: Sequence[Finding]) -> list[Claim]:
        """The claims that findings are about. Raises ValueError for one without a statement."""
        said, named = statements(self.folder), cases(self.folder)
        for found in findings:
            if found.key not in said:
                raise ValueError(f"claims.toml has no [{found.key}], of which {name} is a finding")
            if found.case and found.case not in named:
                raise ValueError(f"claims.toml has no name for the case {found.case!r} in [cases]")
        return [
            Claim(said[found.key], found, self.folder.name, name, named.get(found.case, ""))
            for found in findings
        ]

    def committed(self, folder: Path | None = None) -> list[Claim]:
        """The claims of all committed results, in the order of the page."""
        folder = folder or self.folder
        return [claim for name in self.names for claim in self.claims(name, load(folder, name)[0])]

    def page(self, folder: Path) -> str:
        """A folder's `README.md`: its `reading.md` with `{table}`, `{details}` and `{minutes}` filled in."""
        reading = (folder / "reading.md").read_text()
        minutes = sum(load(folder, name)[1] for name in self.names) / 60
        claims = self.committed(folder)
        filled = reading.replace("{table}", table(claims)).replace("{details}", details(claims))
        return filled.replace("{minutes}", f"{minutes:.1f}")

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Measure, print the tables, and write results where `--out` says."""
        parser = argparse.ArgumentParser(
            prog=f"python -m experiments.{self.folder.name}", description=self.about
        )
        parser.add_argument("--quick", action="store_true", help="smaller settings, as in the tests")
        parser.add_argument(
            "--only", nargs="+", choices=self.names, help="these measurements", metavar="NAME"
        )
        parser.add_argument(
            "--out", type=Path, help="write results, figures and README.md here; printed only without it"
        )
        parser.add_argument(
            "--runs", type=Path, help="keep what is trained here, and read it again; nowhere without it"
        )
        options = parser.parse_args(arguments)
        if options.quick and options.out is not None:
            parser.error("--out keeps what is measured in full: not with --quick")
        if options.out is not None and not (options.out / "reading.md").is_file():
            parser.error(
                f"--out {options.out} has no reading.md to set the table into: "
                f"--out experiments/{self.folder.name}"
            )
        try:  # before hours of measuring, not after them
            statements(self.folder)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        if options.out is not None:
            try:  # before hours of measuring, not after them
                with tempfile.TemporaryDirectory() as place:
                    draw(go.Figure(), Path(place) / "empty.svg")
            except RuntimeError:
                parser.error("--out draws figures with Chrome or Chromium: none was found, or it fails")
        with tempfile.TemporaryDirectory() as folder, keep_runs(options.runs or Path(folder)), threads(1):
            for name in options.only or self.names:
                self._report(name, options.quick, options.out)
        if options.out is not None and all(
            (options.out / "results" / f"{name}.json").is_file() for name in self.names
        ):
            (options.out / "README.md").write_text(self.page(options.out))

    def _report(self, name: str, quick: bool, out: Path | None) -> None:
        started = _processor_seconds()  # by the clock a shared machine would count
        measured = self.measure(name, quick)
        seconds = _processor_seconds() - started
        if quick and not measured.findings:
            print(f"{name}: there is no quick run of it\n")
            return
        claims = self.claims(name, measured.findings)
        numbers = "\n".join(f"{claim.identifier}: {claim.finding.measured}" for claim in claims)
        print(f"{table(claims)}\n\n{numbers}\n\n{name}: {seconds:.0f} s of processor time\n", flush=True)
        if out is not None:
            save(out, name, measured, seconds)
