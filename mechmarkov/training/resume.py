"""What a training leaves in its folder: finished runs, and all it needs to go on to the same bits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mechmarkov.runs.loading import load
from mechmarkov.runs.run import Run
from mechmarkov.safe import file as safe_file
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training.recipe import Recipe, RecipeError
from mechmarkov.training.workload import Member
from mechmarkov.utils.text import shown

FORMAT, VERSION = "mechmarkov.partial", 2


def earlier_runs(paths: Sequence[Path], members: Sequence[Member]) -> dict[int, Run]:
    """Read the runs that an earlier call has finished.

    Args:
        paths: A file for each member, or none at all.
        members: The recipe and the seed that each file must be of.

    Returns:
        The runs, by the place of the member whose file is there.

    Raises:
        RunFileError: For one that cannot be read, or is of another recipe or seed than its member.
    """
    runs = {}
    for place, (path, member) in enumerate(zip(paths, members, strict=bool(paths))):
        if not path.exists():
            continue
        run = load(path)
        try:  # a recipe that was written before a setting existed has its default
            theirs = None if run.recipe is None else Recipe.from_data(run.recipe).to_data()
        except RecipeError as error:
            raise RunFileError(
                f"{path} has a recipe that cannot be read ({error}): delete it or choose another folder"
            ) from None
        same = theirs == member.recipe.to_data()
        if not same or run.seed != member.seed:
            name, there, here = _difference(theirs or {}, member.recipe.to_data())
            field = f" ({name} is {shown(there)} there, {shown(here)} here)" if name else ""
            what = f"seed ({run.seed})" if same else f"recipe{field}"
            raise RunFileError(f"{path} is of another {what}: delete it or choose another folder (--out)")
        runs[place] = run
    return runs


def _difference(there: Any, here: Any, name: str = "") -> tuple[str, Any, Any]:
    """Returns the first field in which two settings differ, by its dotted name, and both its values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*here, *there]:
            if there.get(key) != here.get(key):
                return _difference(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
    return name, there, here


def partial_path(folder: Path, stack: int, stacks: int) -> Path:
    """Returns the file that one of that many stacks resumes from.

    Example:
        >>> partial_path(Path("out"), 0, 1).name, partial_path(Path("out"), 3, 8).name
        ('partial.pt', 'partial-3.pt')
    """
    return folder / (f"partial-{stack}.pt" if stacks > 1 else "partial.pt")


def write(path: Path, members: Sequence[Member], device: torch.device, snapshot: dict[str, Any]) -> None:
    """Write what an interrupted training resumes from to a file, atomically.

    Args:
        path: The file.
        members: What the stack trains, which the file must belong to when it is read.
        device: Where it trains.
        snapshot: What `StackInTraining.snapshot` returns.
    """
    safe_file.write(path, {**_identity(members, device), "snapshot": snapshot})


def read(path: Path, members: Sequence[Member], device: torch.device) -> dict[str, Any] | None:
    """Read what an interrupted training of the same stack left.

    Args:
        path: The file that `write` wrote.
        members: What the stack trains.
        device: Where it trains.

    Returns:
        The snapshot, for `StackInTraining.restore`; None where there is no file.

    Raises:
        RunFileError: The file is damaged, or belongs to other recipes, other seeds or another device.
    """
    if not path.exists():
        return None
    data = safe_file.read(path)
    safe_file.verify(path)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise RunFileError(f"{path} is not an interrupted training of this version: delete it to start again")
    ours = _identity(members, device)
    for key in ("recipes", "recipe_of", "seeds", "device"):
        if data.get(key) != ours[key]:
            there, here, name = data.get(key), ours[key], key
            if key == "recipes" and isinstance(there, list) and len(there) == len(here):
                there, here = next(pair for pair in zip(there, here, strict=True) if pair[0] != pair[1])
                name = ""
            name, there, here = _difference(there, here, name)
            what = f"{name or key} is {str(there)[:60]!r} there and {str(here)[:60]!r} here"
            raise RunFileError(
                f"{path} belongs to another interrupted training ({what}): "
                "finish that one, delete the file, or choose another folder"
            )
    return safe_file.own_copy(data["snapshot"])


def clear(folder: Path, recipe: dict[str, Any], seeds: Sequence[int]) -> None:
    """Remove from a folder what a training of these seeds left that was killed before it could clear up.

    Args:
        folder: Where its results are.
        recipe: What it trained, as `Recipe.to_data` returns it.
        seeds: The seeds; what another training left stays.
    """
    for path in folder.glob("partial*.pt"):
        try:
            data = safe_file.read(path)
        except RunFileError:
            continue  # whatever it is, it is not needed
        ours = data.get("recipes") == [recipe] and set(data.get("seeds", [None])) <= set(seeds)
        if data.get("format") == FORMAT and ours:
            path.unlink(missing_ok=True)


def _identity(members: Sequence[Member], device: torch.device) -> dict[str, Any]:
    """Returns which stack it is; a recipe that members share is written once."""
    recipes = {id(member.recipe): member.recipe for member in members}
    order = list(recipes)
    return {
        "format": FORMAT,
        "version": VERSION,
        "recipes": [recipe.to_data() for recipe in recipes.values()],
        "recipe_of": [order.index(id(member.recipe)) for member in members],
        "seeds": [member.seed for member in members],
        "device": device.type,
    }
