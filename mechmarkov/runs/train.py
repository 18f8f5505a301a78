"""`train`: from a recipe to a `Run`, with files where they are asked for, and on from where it stopped."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from sys import stderr
from typing import Any, overload

import torch
from torch import Tensor

from mechmarkov.runs import safe_file
from mechmarkov.runs.plain import RunFileError
from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import Run, load
from mechmarkov.training.fit import Fitted, Snapshot, fit, pick_device
from mechmarkov.training.recipe import Recipe, load_recipe
from mechmarkov.training.threads import threads

PARTIAL_FORMAT, PARTIAL_VERSION = "mechmarkov.partial", 1
PARTIAL_NAME = "partial.pt"
TOY_WIDTH = 1024  # up to this d_model one thread is the fastest, and the only one that is never slow

AnyRecipe = Recipe | Mapping[str, Any] | str | Path
Progress = bool | Callable[[int, int], None] | None


class TrainingDivergedError(ValueError):
    """Weights that are no longer finite; the message is one line that names the seeds."""


@overload
def train(
    recipe: AnyRecipe,
    seed: int | None = None,
    seeds: None = None,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
) -> Run: ...
@overload
def train(
    recipe: AnyRecipe,
    seed: None = None,
    *,
    seeds: Sequence[int],
    device: str = "auto",
    out: str | Path | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
) -> list[Run]: ...
def train(
    recipe: AnyRecipe,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
) -> Run | list[Run]:
    """Train a recipe.

    Args:
        recipe: A recipe, its data, a TOML file, or the name of a shipped recipe.
        seed: What weights and data are drawn from; 0 by default.
        seeds: Several seeds instead, trained as one stack.
        device: `auto` (CUDA where there is any), `cpu` or `cuda`.
        out: A folder for the result: `run.pt`, or `seed-<s>.pt` for each of `seeds`. While training, what is
            needed to resume is kept there, and the same call after an interruption goes on from it, to the
            same bits. Results that are already there are read, not trained again.
        progress: Whether to draw a progress bar, by default if stderr is a terminal; or a function that is
            called after every step with its number and the number of steps.
        save_every: Seconds between writes of what is needed to resume.

    Returns:
        The run, or with `seeds` a list of them in that order.

    Raises:
        RecipeError: A recipe that cannot be used.
        RunFileError: Files in `out` that cannot be read or written, or that another recipe left there.
        TrainingDivergedError: Some seed's weights are not finite; the others are saved first.
        ValueError: Seeds or a device that make no sense.
    """
    if seed is not None and seeds is not None:
        raise ValueError(f"seed is {seed} and seeds are {list(seeds)}, expected only one of them")
    recipe = load_recipe(recipe)
    chosen = [0 if seed is None else seed] if seeds is None else list(seeds)
    folder = None if out is None else _folder(Path(out))
    paths = None if folder is None else _paths(folder, chosen, several=seeds is not None)
    runs = None if paths is None else _already_there(paths, recipe, chosen)
    if runs is None:
        fitted = _fit(recipe, chosen, device, folder, progress, save_every)
        runs = _finish(fitted, paths)
        if folder is not None:
            (folder / PARTIAL_NAME).unlink(missing_ok=True)
    return runs if seeds is not None else runs[0]


def _fit(
    recipe: Recipe,
    seeds: list[int],
    device: str,
    folder: Path | None,
    progress: Progress,
    save_every: int | float,
) -> Fitted:
    place = pick_device(device)
    partial = None if folder is None else folder / PARTIAL_NAME
    resume_from = None if partial is None else _read_partial(partial, recipe, seeds, place)
    written = time.monotonic()

    def on_step(step: int, snapshot: Snapshot) -> None:
        nonlocal written
        if partial is not None and step < recipe.steps and time.monotonic() - written >= save_every:
            safe_file.write(partial, _partial(recipe, seeds, place, snapshot()))
            written = time.monotonic()
        if callable(progress):
            progress(step, recipe.steps)

    bar = stderr.isatty() if progress is None else progress is True
    toy = place.type == "cpu" and recipe.decoder_config.d_model <= TOY_WIDTH
    with threads(1) if toy else nullcontext():
        return fit(recipe, seeds, place.type, resume_from=resume_from, on_step=on_step, progress=bar)


def _finish(fitted: Fitted, paths: list[Path] | None) -> list[Run]:
    """The runs of a stack, saved where there are paths; a member that diverged does not keep the others."""
    runs, lost = [], []
    for index, seed in enumerate(fitted.seeds):
        if fitted.diverged(index):
            lost.append(seed)
            continue
        run = _run(fitted, index)
        if paths is not None:
            run.save(paths[index])
        runs.append(run)
    if lost:
        raise TrainingDivergedError(
            f"training diverged: weights of seed {', '.join(map(str, lost))} are not finite after "
            f"{fitted.recipe.steps} steps; optimiser.lr is {fitted.recipe.optimiser.lr:g}, take a smaller one"
        )
    return runs


def _run(fitted: Fitted, index: int) -> Run:
    recipe = fitted.recipe
    states, metrics = fitted.member(index)
    return Run(
        model=recipe.decoder_config,
        source=recipe.source,
        objective=recipe.objective,
        trainable=recipe.trainable_slices,
        recipe=recipe.to_data(),
        seed=fitted.seeds[index],
        steps=torch.tensor(sorted(fitted.checkpoints)),
        states={name: tensor.to(torch.float32) for name, tensor in states.items()},
        metrics={name: {"step": torch.arange(len(v)), "value": v} for name, v in metrics.items()},
        provenance={
            **provenance(fitted.device, wall_seconds=fitted.seconds),
            "trained_together": len(fitted.seeds),
        },
    )


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFileError(f"{folder}: {error.strerror}, expected a folder for results") from None
    return folder


def _paths(folder: Path, seeds: list[int], several: bool) -> list[Path]:
    return [folder / (f"seed-{seed}.pt" if several else "run.pt") for seed in seeds]


def _already_there(paths: list[Path], recipe: Recipe, seeds: list[int]) -> list[Run] | None:
    """The results of an earlier call, or None if there are not all of them."""
    runs = []
    for path, seed in zip(paths, seeds, strict=True):
        if not path.exists():
            continue
        run = load(path)
        if run.recipe != recipe.to_data() or run.seed != seed:
            what = "recipe" if run.recipe != recipe.to_data() else f"seed ({run.seed})"
            raise RunFileError(f"{path} is of another {what}: delete it or choose another folder")
        runs.append(run)
    return runs if len(runs) == len(paths) else None


def _partial(
    recipe: Recipe, seeds: list[int], device: torch.device, snapshot: dict[str, Any]
) -> dict[str, Any]:
    return {
        "format": PARTIAL_FORMAT,
        "version": PARTIAL_VERSION,
        "recipe": recipe.to_data(),
        "seeds": list(seeds),
        "device": device.type,
        "snapshot": snapshot,
    }


def _read_partial(
    path: Path, recipe: Recipe, seeds: list[int], device: torch.device
) -> dict[str, Any] | None:
    """What an interrupted call left, if it did.

    Raises:
        RunFileError: If the file is damaged, or belongs to another recipe, other seeds or another device.
    """
    if not path.exists():
        return None
    data = safe_file.read(path)
    safe_file.verify(path)
    if data.get("format") != PARTIAL_FORMAT or data.get("version") != PARTIAL_VERSION:
        raise RunFileError(f"{path} is no interrupted training of this version: delete it to start again")
    ours = _partial(recipe, seeds, device, {})
    for key in ("recipe", "seeds", "device"):
        if data.get(key) != ours[key]:
            what = _difference(data.get(key), ours[key], key)
            raise RunFileError(
                f"{path} belongs to another interrupted training ({what}): "
                "finish that one, delete the file, or choose another folder"
            )
    snapshot: dict[str, Any] = _owned(data["snapshot"])
    return snapshot


def _difference(theirs: Any, ours: Any, key: str) -> str:
    """The first key at which two settings differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*ours, *theirs]:
            if theirs.get(name) != ours.get(name):
                return _difference(
                    theirs.get(name), ours.get(name), name if key == "recipe" else f"{key}.{name}"
                )
    return f"{key} is {str(theirs)[:60]!r} there and {str(ours)[:60]!r} here"


def _owned(value: Any) -> Any:
    """A copy that no longer looks into the file."""
    if isinstance(value, Tensor):
        return value.clone()
    return {name: _owned(item) for name, item in value.items()} if isinstance(value, dict) else value
