"""A run as its file has it, without its model: nothing here imports TransformerLens."""

import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mechmarkov.catalogue import call_of
from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.objectives import Objective
from mechmarkov.runs import growth, hub, schema
from mechmarkov.safe import file as safe_file
from mechmarkov.safe import folder as shared_folder
from mechmarkov.safe import without_torch
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Source
from mechmarkov.utils.errors import path_of
from mechmarkov.utils.lazy_torch import Tensor
from mechmarkov.utils.text import counted, listed

RESULTS = {  # what `Result.save` writes, and what reads it
    "results.nc": "read by xarray.open_dataset(…, group='behaviour')",
    "summary.json": "read by json.load",
    "report.html": "read in a browser",
}
TENSORS_IN = ("steps", "states", "metrics")
MOST_INSIDE = 3  # run files below a folder that a line names


@dataclass(frozen=True, eq=False, repr=False)
class Stored:
    """The content of a run file, whose fields are described in `Run`; `Run` has the model too.

    Example:
        >>> from importlib.resources import files
        >>> read(files("mechmarkov.runs") / "examples" / "walk.pt").contents()["parameters"]
        '13,929'
    """

    config: DecoderConfig
    source: Source
    objective: Objective
    steps: Tensor
    states: dict[str, Tensor]
    trainable: Slices | None = None
    recipe: dict[str, Any] | None = None
    seed: int | None = None
    metrics: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def n_steps(self) -> int:
        """Returns how many training steps the run holds weights of."""
        return len(self.steps)

    @property
    def _last_step(self) -> str:
        return "unknown" if self.provenance.get("step") == "unknown" else str(int(self.steps[-1]))

    def title(self) -> str:
        """Returns one line for people: the data, the model and the training."""
        model = self.config
        attention = model.mixer == "attention"
        mlp = ("attention only" if attention else "no MLP") if model.attn_only else "with MLP"
        kind = mlp if attention else f"mixer {model.mixer}, {mlp}"
        parts = [
            self.source.title(),
            f"{counted(model.n_layers, 'layer')} of {counted(model.n_heads, 'head')}, {kind}, "
            f"width {model.d_model}",
            self.objective.kind.replace("_", " "),
            f"step {self._last_step}",
        ]
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return " ".join(" · ".join(parts).split())

    def contents(self) -> dict[str, str]:
        """Returns what the run holds, a row each: steps, number of parameters, last values of the metrics."""
        steps = [str(step) for step in self.steps.tolist()]
        named = steps if len(steps) <= 12 else [*steps[:6], "…", *steps[-3:]]
        rows = {
            "steps": "unknown (1)" if self._last_step == "unknown" else f"{', '.join(named)} ({len(steps)})",
            "parameters": f"{sum(math.prod(value.shape[1:]) for value in self.states.values()):,}",
        }
        if self.trainable is not None:
            rows["trainable"] = ", ".join(self.trainable)
        for name, series in self.metrics.items():
            if len(series["value"]):
                last = series["value"][-1]
                value = f"{last.item():.6g}" if last.ndim == 0 else f"values {list(last.shape)}"
                rows[name] = f"{value} at step {int(series['step'][-1])}"
        return rows | self.sampling_errors()

    def sampling_errors(self) -> dict[str, str]:
        """Returns the last values of metrics that have a standard error (`data.groups`), as texts by name."""
        rows = {}
        for name, series in self.metrics.items():
            error, value = self.metrics.get(f"{name}_error", {}).get("value"), series["value"]
            if error is not None and value.shape == error.shape == (len(value),) != (0,):
                shown = f"{value[-1].item():.6g} ± {error[-1].item():.2g} (standard error)"
                rows[name] = f"{shown} at step {int(series['step'][-1])}"
        return rows


def read(path: str | os.PathLike[str]) -> Stored:
    """Read a run as `mechmarkov.runs.load` does, with every check of it, and without torch.

    What the run says of itself is the same. Its tensors are read as a `FileTensor` each.

    Raises:
        RunFileError: One line that begins with the path and names what is wrong; also where checkpoints of a
            `Recorder` wait next to the file, which only `load` joins.
        TypeError: What is not a path.
    """
    place = place_of(path)
    if growth.waiting(place):
        raise RunFileError(f"{place}: checkpoints wait next to it, expected one file: mm.load joins them")
    if (place / shared_folder.RUN).exists():
        return Stored(**folder_fields(place, without_torch.weights))
    data = without_torch.read(place, TENSORS_IN)
    if data is None:
        return Stored(**file_fields(place))
    with safe_file.naming(place):
        return Stored(**schema.parse(data))


def place_of(path: str | os.PathLike[str]) -> Path:
    """Returns the file, or the folder that `Run.save_folder` wrote, that a run's path stands for.

    Args:
        path: The path, as of `mechmarkov.runs.load`; what is on the Hub is fetched.

    Raises:
        RunFileError: A directory without one run file.
        TypeError: What is not a path.
    """
    if isinstance(path, str) and path.startswith(hub.PREFIX):
        path = hub.fetch(path)
    place = Path(path_of("path", path))
    if place.suffix == ".toml" and place.is_file():
        with safe_file.naming(place):
            raise RunFileError(f"is a recipe, expected a run: mm.train({str(place)!r}) trains one")
    if place.name in RESULTS and place.is_file():
        with safe_file.naming(place):
            raise RunFileError(
                f"is what probes found, {RESULTS[place.name]}; expected the run, a file run.pt"
            )
    if not place.exists() and not growth.waiting(place) and (call := call_of(str(place))):
        raise RunFileError(f"{place}: {os.strerror(errno.ENOENT)}, did you mean {call}?")
    if not (place / shared_folder.RUN).exists() and place.is_dir():
        with safe_file.naming(place):
            return _only_run_file(place)
    return place


def folder_fields(
    path: Path, weights: Callable[[Path], dict[str, Any]] = shared_folder.weights_by_torch
) -> schema.Fields:
    """Returns the checked content of a folder that `Run.save_folder` wrote.

    Args:
        path: The folder.
        weights: What reads its tensors.
    """
    data = shared_folder.read(path, weights)
    with safe_file.naming(path):
        return schema.parse(data)


def file_fields(path: str | os.PathLike[str]) -> schema.Fields:
    """Returns the checked content of one run file, in memory of its own.

    Raises:
        RunFileError: One line that begins with the path and names what is wrong.
    """
    data = safe_file.read(path)
    with safe_file.naming(Path(path)):
        fields = schema.parse(data)
    safe_file.verify(path)
    return cast(schema.Fields, safe_file.own_copy(fields))


def _only_run_file(folder: Path) -> Path:
    """The one run file of a folder, as `mechmarkov train --out` leaves it."""
    files = sorted(folder.glob("*.pt"))
    if len(files) == 1:
        return files[0]
    held = listed([file.name for file in files]) if files else "no run file"
    inside = sorted(folder.glob("*/*.pt"))[:MOST_INSIDE]
    below = f"; below it is {listed([file.relative_to(folder.parent).as_posix() for file in inside])}"
    reported = "; its summary.json is what probes found" if (folder / "summary.json").exists() else ""
    raise RunFileError(
        f"is a directory with {held}, expected a file, a directory with one run file (*.pt), or a folder "
        f"that `save_folder` wrote{below if inside else reported}"
    )
