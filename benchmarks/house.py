"""How large the house is, and how far from `mm.train(recipe)` to the first gradient step.

    make house

A reader follows the call and reads each function once, where it is called first. A room is a file in which
such a function stands, a stay is a stretch of functions in one room, a return is a stay in a room that was
left before. Frames are the open calls of `mechmarkov.training` at the moment of the optimiser's step: `train`
is one of them, the step itself is not. Rooms of `LEAVES` are counted apart: what a model or a source
computes, and helpers without words of the domain.
"""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mechmarkov as mm
from mechmarkov.training.optimisers import StackOptimiser
from mechmarkov.training.train import train

ROOT = Path(mm.__file__).parent
LEAVES = ("models", "sources", "utils", "objectives.py")
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")  # read with what holds them
SHORT = {"steps": 2, "checkpoints": [2], "data": {"batch": 4}}
RECIPES = {"walk": "walk-k6-half", "induction": "in-context-k3-shortformer"}


def training_walk(recipe: mm.Recipe) -> dict[str, int]:
    """The way from `train(recipe)` to the optimiser's first step, on the CPU.

    Args:
        recipe: A recipe; its shape decides which files are visited.

    Returns:
        `rooms`, `stays`, `returns` and `frames`, and `all_rooms` and `all_returns` with `LEAVES` among them.
    """
    code = getattr(StackOptimiser.step, "__wrapped__", StackOptimiser.step).__code__
    files: dict[CodeType, str] = {}
    stack: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = _file_of(frame)
        if event != "call" or stack or name is None or frame.f_code.co_name in INLINE:
            return
        if frame.f_code is code:
            stack.extend(_open_files(frame))
        files.setdefault(frame.f_code, name)

    train(recipe, seed=0, device="cpu", progress=False)  # kernels that compile do so unwatched
    sys.setprofile(note)
    try:
        train(recipe, seed=0, device="cpu", progress=False)
    finally:
        sys.setprofile(None)
    visited = list(files.values())
    own = [name for name in visited if not name.startswith(LEAVES)]
    rooms, stays = _rooms_and_stays(own)
    all_rooms, all_stays = _rooms_and_stays(visited)
    return {
        "rooms": rooms,
        "stays": stays,
        "returns": stays - rooms,
        "frames": sum(name.startswith("training") for name in stack[1:]),
        "all_rooms": all_rooms,
        "all_returns": all_stays - all_rooms,
    }


def _file_of(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else None


def _open_files(frame: FrameType | None) -> list[str]:
    """The files of the library's open calls, the innermost first."""
    files = []
    while frame is not None:
        files.append(_file_of(frame))
        frame = frame.f_back
    return [name for name in files if name is not None]


def _rooms_and_stays(visited: Sequence[str]) -> tuple[int, int]:
    return len(set(visited)), sum(1 for _ in groupby(visited))


def lines_of(*folders: str) -> int:
    """Returns how many lines the Python files of some folders of the project have."""
    files = [path for folder in folders for path in (ROOT.parent / folder).rglob("*.py")]
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def main() -> None:
    """Print lines, names at the top, and the numbers of both recipes."""
    print(
        f"lines: {lines_of('mechmarkov', 'probes')} in mechmarkov/ and probes/, {lines_of('tests')} in tests/"
    )
    print(f"names at the top: {len(dir(mm))}")
    for name, recipe in RECIPES.items():
        numbers = training_walk(mm.load_recipe(recipe).replace(**SHORT))
        print(f"{name}: " + ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in numbers.items()))


if __name__ == "__main__":
    main()
