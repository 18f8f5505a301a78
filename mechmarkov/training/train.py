"""`train`: from a recipe to a `Run`, with files on request, resumed where it stopped."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, overload

from mechmarkov.runs.owner import clear_lock
from mechmarkov.runs.run import Run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training import resume as partial
from mechmarkov.training.fleet import START_WITH_FILES, Diverged, Progress, finished, train_as_it_fits
from mechmarkov.training.members import check_members, members_of
from mechmarkov.training.recipe import Recipe, load_recipe
from mechmarkov.utils.errors import list_of, number_of, path_of
from mechmarkov.utils.files import made_folder

MAX_SEEDS = 100_000

AnyRecipe = Recipe | Mapping[str, Any] | str | Path


class TrainingDivergedError(ValueError):
    """Weights that are no longer finite; the message is one line that names the seeds.

    Attributes:
        runs: Those of the other seeds.
    """

    def __init__(self, message: str, runs: list[Run]) -> None:
        super().__init__(message)
        self.runs = runs


@overload
def train(
    recipe: AnyRecipe,
    seed: int | None = None,
    seeds: None = None,
    *,
    device: str = "auto",
    start: Run | None = None,
    out: str | Path | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
    memory: int | None = None,
) -> Run: ...
@overload
def train(
    recipe: AnyRecipe,
    seed: None = None,
    *,
    seeds: Sequence[int],
    device: str = "auto",
    start: Run | None = None,
    out: str | Path | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
    memory: int | None = None,
) -> list[Run]: ...
def train(
    recipe: AnyRecipe,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    *,
    device: str = "auto",
    start: Run | None = None,
    out: str | Path | None = None,
    progress: Progress = None,
    save_every: int | float = 10.0,
    memory: int | None = None,
) -> Run | list[Run]:
    """Train a recipe.

    Args:
        recipe: A recipe, its data, a TOML file, or the name of a shipped recipe.
        seed: What weights and data are drawn from; 0 by default.
        seeds: Several seeds instead, trained as a fleet. A member starts from the same weights and sees the
            same data, bit for bit, as if trained by itself; afterwards the two differ by the rounding of
            another order of summation, which near a saddle decides later which way it leaves.
        device: `auto` (CUDA where there is any), `cpu` or `cuda`.
        start: A run of a decoder of that shape, whose last weights training starts from, instead of
            `init`. Without `out`: files do not say where a training began.
        out: A folder for the result: `run.pt`, or `seed-<s>.pt` for each of `seeds`. While training, what is
            needed to resume is kept there, and the same call after an interruption goes on from it, to the
            same bits. Results that are already there are read, not trained again.
        progress: Whether to draw a progress bar, by default in a terminal or a notebook; or a function of
            the steps done and the steps in all, called after every step, or ten times a second where
            several stacks train at once.
        save_every: Seconds between writes of what is needed to resume.
        memory: Bytes that training may take, by estimate; a larger fleet is split. 2 GB by default, on a GPU
            70 % of what is free. Where memory runs out all the same, stacks are halved and it is said.

    Returns:
        The run, or with `seeds` a list of them in that order.

    Raises:
        RecipeError: A recipe that cannot be used.
        TypeError: A number of seeds instead of the seeds, or another argument of the wrong kind.
        RunFileError: Files in `out` that cannot be read or written, or that another recipe left there; a
            folder that another training is using.
        TrainingDivergedError: Some seed's weights are not finite; the others are saved first, and are its
            `runs`.
        ValueError: Seeds or a device that make no sense, a `start` of another shape, or a budget too small
            for one model.
    """
    if isinstance(seeds, int):
        raise TypeError(f"seeds is {seeds}, expected a list of seeds: range({seeds})")
    if seeds is not None:
        seeds = list_of("seeds", seeds, "a list of seeds, such as range(8)", most=MAX_SEEDS)
    if seed is not None and seeds is not None:
        raise ValueError(f"seed is {seed} and seeds are {list(seeds)}, expected only one of them")
    if start is not None and out is not None:
        raise ValueError(START_WITH_FILES)
    number_of("save_every", save_every, "seconds, at least 0", least=0, most=float("inf"))
    place = None if out is None else path_of("out", out)
    recipe = load_recipe(recipe)
    chosen = [0 if seed is None else seed] if seeds is None else list(seeds)
    members = members_of(recipe, chosen)
    check_members(members)
    with nullcontext() if place is None else made_folder(place, RunFileError):
        paths, runs = None, None
        if place is not None:
            folder = place
            paths = [folder / ("run.pt" if seeds is None else f"seed-{seed}.pt") for seed in chosen]
            runs = finished(paths, members)
            if runs is not None:
                partial.clear(folder, recipe.to_data(), chosen)
                clear_lock(folder)
        if runs is None:
            results = train_as_it_fits(
                members,
                device=device,
                start=start,
                paths=paths,
                progress=progress,
                save_every=save_every,
                memory=memory,
            )
            runs = [result for result in results if isinstance(result, Run)]
            lost = [str(result.seed) for result in results if isinstance(result, Diverged)]
            if lost:
                raise TrainingDivergedError(
                    f"training diverged: weights of seed {', '.join(lost)} are not finite after "
                    f"{recipe.steps} steps; optimiser.lr is {recipe.optimiser.lr:g}, take a smaller one",
                    runs,
                )
    return runs if seeds is not None else runs[0]
