"""`train` and `train_members`: from recipes to runs, with files on request, resumed where it stopped."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, overload

from mechmarkov.runs.owner import clear_lock
from mechmarkov.runs.run import Run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training import resume
from mechmarkov.training.execute import Diverged, execute
from mechmarkov.training.plan import TrainingPlan, plan_training
from mechmarkov.training.recipe import Recipe, load_recipe
from mechmarkov.training.workload import Member
from mechmarkov.utils.errors import list_of, path_of
from mechmarkov.utils.files import made_folder
from mechmarkov.utils.memory import bytes_of, with_less_memory
from mechmarkov.utils.progress import Told
from mechmarkov.utils.text import format_bytes

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
    progress: Told = None,
    save_every: int | float = 10.0,
    memory: int | str | None = None,
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
    progress: Told = None,
    save_every: int | float = 10.0,
    memory: int | str | None = None,
) -> list[Run]: ...
def train(
    recipe: AnyRecipe,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    *,
    device: str = "auto",
    start: Run | None = None,
    out: str | Path | None = None,
    progress: Told = None,
    save_every: int | float = 10.0,
    memory: int | str | None = None,
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
        memory: What training may take, by estimate: bytes, or a text such as "2GB"; a larger fleet is split.
            2 GB by default, on a GPU 70 % of what is free. Where memory runs out all the same, stacks are
            halved and it is said.

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

    Example:
        >>> recipe = load_recipe("walk-k6-half").with_set(["steps=2", "data.n_train=8"])
        >>> run = train(recipe, seed=3)
        >>> run.seed, run.steps.tolist()
        (3, [0, 1, 2])
        >>> [run.seed for run in train(recipe, seeds=range(2))]
        [0, 1]
    """
    if isinstance(seeds, int):
        raise TypeError(f"seeds is {seeds}, expected a list of seeds: range({seeds})")
    if seeds is not None:
        seeds = list_of("seeds", seeds, "a list of seeds, such as range(8)", most=MAX_SEEDS)
    if seed is not None and seeds is not None:
        raise ValueError(f"seed is {seed} and seeds are {list(seeds)}, expected only one of them")
    memory = None if memory is None else bytes_of("memory", memory)
    recipe = load_recipe(recipe)
    chosen = [0 if seed is None else seed] if seeds is None else seeds
    folder = None if out is None else path_of("out", out)
    paths = None
    if folder is not None:
        paths = [folder / ("run.pt" if seeds is None else f"seed-{seed}.pt") for seed in chosen]
    with nullcontext() if folder is None else made_folder(folder, RunFileError):
        plan = plan_training(
            [Member(recipe, seed) for seed in chosen],
            device=device,
            start=start,
            paths=paths,
            save_every=save_every,
            memory=memory,
        )
        results: list[Run | Diverged] = list(plan.earlier.values())
        if plan.stacks:
            results = with_less_memory(
                partial(execute, told=progress), plan, smaller=TrainingPlan.halved, message=_told
            )
        elif folder is not None:
            resume.clear(folder, recipe.to_data(), chosen)
            clear_lock(folder)
        runs = [result for result in results if isinstance(result, Run)]
        lost = [str(result.seed) for result in results if isinstance(result, Diverged)]
        if lost:
            raise TrainingDivergedError(
                f"training diverged: weights of seed {', '.join(lost)} are not finite after "
                f"{recipe.steps} steps; optimiser.lr is {recipe.optimiser.lr:g}, take a smaller one",
                runs,
            )
    return runs if seeds is not None else runs[0]


def train_members(
    members: Sequence[Member],
    *,
    device: str = "auto",
    start: Run | None = None,
    paths: Sequence[Path] | None = None,
    progress: Told = None,
    save_every: int | float = 10.0,
    memory: int | str | None = None,
    at_once: int | None = None,
) -> list[Run | Diverged]:
    """Train a fleet; recipes of one shape share stacks.

    Args:
        members: What to train.
        device: The device, as in `train`.
        start: The one of `train`, not with `paths`: what resumes a training does not say where it began.
        paths: A file for each member, in folders that exist. A member is saved there when its stack is done;
            until then what is needed to resume is next to its stack's first path, and the same call after
            an interruption goes on from there, to the same bits. A stack whose files are all there is read.
        progress: The progress bar, as in `train`; steps are counted over all stacks.
        save_every: The number of seconds, as in `train`.
        memory: Bytes that all stacks that train at once may take together, by estimate (`Workload.bytes`). By
            default 2 GB, or one model where that is more; on a GPU 70 % of what is free. A larger fleet is
            split. Where memory runs out all the same, stacks are halved and it is said.
        at_once: Stacks that train at once on a CPU; by default as many as this process may use cores.

    Returns:
        For each member its run, or `Diverged`.

    Raises:
        RunFileError: Files that cannot be read or written, what another training left, or a folder that
            another one is using.
        ValueError: Members or a device that make no sense, a `start` of another shape, or a budget too small
            for one model.
        TypeError: An argument of the wrong kind.
        MemoryError, RuntimeError: Memory runs out for a single model.
    """
    plan = plan_training(
        members,
        device=device,
        start=start,
        paths=paths,
        save_every=save_every,
        memory=memory,
        at_once=at_once,
    )
    return with_less_memory(partial(execute, told=progress), plan, smaller=TrainingPlan.halved, message=_told)


def _told(plan: TrainingPlan) -> str:
    return f": again in stacks of at most {format_bytes(plan.memory)}"
