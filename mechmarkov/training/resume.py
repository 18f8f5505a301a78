"""What an interrupted training leaves: all it needs to go on to the same bits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mechmarkov.safe import file as safe_file
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training.members import Member

FORMAT, VERSION = "mechmarkov.partial", 2
NAME = "partial.pt"


def write(path: Path, members: Sequence[Member], device: torch.device, snapshot: dict[str, Any]) -> None:
    """Write a snapshot of a stack, atomically."""
    safe_file.write(path, {**_identity(members, device), "snapshot": snapshot})


def read(path: Path, members: Sequence[Member], device: torch.device) -> dict[str, Any] | None:
    """Returns what an interrupted training of the same stack left, if it did.

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
            what = _difference(data.get(key), ours[key], key)
            raise RunFileError(
                f"{path} belongs to another interrupted training ({what}): "
                "finish that one, delete the file, or choose another folder"
            )
    return safe_file.own_copy(data["snapshot"])


def clear(folder: Path, recipe: dict[str, Any], seeds: Sequence[int]) -> None:
    """Remove what a training left that was killed between its last result and its own clearing up."""
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


def _difference(theirs: Any, ours: Any, key: str) -> str:
    """The first key at which two settings differ, with both values."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours) and key == "recipes":
        for one, other in zip(theirs, ours, strict=True):
            if one != other:
                return _difference(one, other, key)
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*ours, *theirs]:
            if theirs.get(name) != ours.get(name):
                return _difference(
                    theirs.get(name), ours.get(name), name if key == "recipes" else f"{key}.{name}"
                )
    return f"{key} is {str(theirs)[:60]!r} there and {str(ours)[:60]!r} here"
