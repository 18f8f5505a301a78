"""A sweep: which recipes, which seeds, what to measure. Read from TOML."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from tqdm import tqdm

from mechmarkov.training.recipe import Recipe, RecipeError, load_recipe
from mechmarkov.utils.config import Fields, Truth
from mechmarkov.utils.progress import watched
from mechmarkov.utils.text import printable, shown
from mechmarkov.utils.toml import Written, is_file

MAX_RUNS = 1_000_000
MAX_POINTS = 100_000  # each is a recipe that is checked, a third of a millisecond
REPLACED_WHOLE = ("data", "checkpoints", "trainable")  # tables of keys that exclude each other: not merged

Values = dict[str, Any]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class SweepError(ValueError):
    """A sweep that cannot be used, or that was not finished; the message is one line."""


class Phase(Fields):
    """The picture: how often an event happens over two fields, or a score over one.

    Attributes:
        x: A field of the sweep, across.
        y: A field of the sweep, upwards; without it the score is.
        facet: A field with one panel, or one line, a value; other fields are pooled.
        event: `stuck` (`mechmarkov.sweeps.stuck`), `diverged`, or a score that is true or false of a probe
            in `probes`, as in `symmetry.trapped`.
        score: What is drawn over `x`, where there is no `y`: a column of the table, `behaviour.excess_loss`
            by default, or `final_loss` where no best law is known.
    """

    x: Name
    y: Name | None = None
    facet: Name | None = None
    event: Name = "stuck"
    score: Name | None = None


class Sweep(Written):
    """Many recipes: those of a grid, those of a list, each with every seed.

    Attributes:
        name: What it is called, and its folder by default.
        title: In one line, for people.
        recipe: Where the points start from: the name of a shipped recipe, or a TOML file.
        seeds: How many (0, 1, …), or which.
        probes: Whose headline scores are wanted; those of `behaviour` are always there.
        steps: Which checkpoints those probes see.
        keep_runs: Whether a `run.pt` of every member is kept.
        set: Dotted recipe fields that have one value for all points.
        grid: Dotted recipe fields, each with a list of values; all combinations are points.
        list: Points given one by one, each a table of dotted recipe fields.
        phase: The picture at the end.
    """

    error = SweepError
    shipped = Path(__file__).parent / "examples"
    other = ("model", "recipe", "train")

    name: str = Field(min_length=1, max_length=100)
    title: str = Field(default="", max_length=1000)
    recipe: Name
    seeds: int | tuple[int, ...] = 1
    probes: tuple[Name, ...] = ()
    steps: Literal["last", "all"] = "last"
    keep_runs: Truth = False
    phase: Phase | None = None
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    list: tuple[Values, ...] = ()
    set: Values = Field(default_factory=dict)

    def __repr__(self) -> str:
        """The title, and what to do with a sweep."""
        return (
            f"Sweep({': '.join(filter(None, (self.name, self.title)))})\n"
            "  mm.sweep(sweep, 'folder') runs what is missing; sweep.model_dump() has all fields"
        )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not re.fullmatch(r"[\w.-]*\w", name):  # it names a folder
            raise ValueError(
                f"name is {shown(name)}, expected letters, digits, '_', '.' and '-', not '.' or '-' last"
            )
        return name

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, seeds: Any) -> Any:
        if type(seeds) is int and 1 <= seeds <= MAX_RUNS:
            return seeds
        each = list(seeds) if isinstance(seeds, list | tuple | range) else []
        whole = all(type(seed) is int and 0 <= seed < 1 << 63 for seed in each)
        if not each or not whole or len(set(each)) < len(each):
            expected = f"expected how many, or a list of different integers from 0 on, at most {MAX_RUNS}"
            raise ValueError(f"seeds is {shown(seeds)}, {expected}")
        return tuple(each)

    @field_validator("grid", mode="before")
    @classmethod
    def _grid(cls, grid: Any) -> Any:
        if not isinstance(grid, dict):
            return grid
        fields = dict(_dotted(grid, merge_all=True))
        for key, values in fields.items():
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"{key} is {shown(values)}, expected a list of values, such as [0.2, 0.4]")
        return fields

    @field_validator("list", mode="before")
    @classmethod
    def _points(cls, points: Any) -> Any:
        try:
            return [dict(_dotted(point)) for point in points]
        except (TypeError, AttributeError):
            return points  # which is the error to report

    @field_validator("set", mode="before")
    @classmethod
    def _same_for_all(cls, values: Any) -> Any:
        return dict(_dotted(values)) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> "Sweep":
        n_points = len(self.list) + (math.prod(map(len, self.grid.values())) if self.grid else 0)
        if n_points > MAX_POINTS:
            raise ValueError(f"there are {n_points:,} points, expected at most {MAX_POINTS:,}")
        runs = (n_points or 1) * len(seeds_of(self))
        if runs > MAX_RUNS:
            raise ValueError(f"points times seeds are {runs:,} runs, expected at most {MAX_RUNS:,}")
        fields = varied(self)
        twice = [field for field in fields if field in self.set]
        if twice:
            raise ValueError(f"set.{twice[0]} is given, but that field is varied")
        if self.phase is not None:
            self._check_event(self.phase)
        return self

    @classmethod
    def from_toml(cls, path: str | Path) -> "Sweep":
        """Read one from a TOML file, to which the path of a recipe is relative."""
        sweep = super().from_toml(path)
        if not is_file(sweep.recipe):
            return sweep
        return sweep.model_copy(update={"recipe": str(Path(path).parent / sweep.recipe)})

    def _check_event(self, phase: Phase) -> None:
        probe = phase.event.partition(".")[0]
        if phase.event not in ("stuck", "diverged") and probe not in (*self.probes, "behaviour"):
            raise ValueError(
                f"phase.event is {shown(phase.event)}, expected "
                "stuck, diverged or PROBE.SCORE of one of probes"
            )
        if phase.score is not None and phase.y is not None:
            raise ValueError(f"phase.score is {shown(phase.score)}, expected none with y: the event is drawn")


@dataclass(frozen=True)
class Point:
    """A recipe of a sweep.

    Attributes:
        index: The place of the recipe in the sweep, from 1.
        values: Dotted field to value, for every field that the sweep varies; None where this recipe has none.
        recipe: The recipe.
    """

    index: int
    values: Values
    recipe: Recipe


def seeds_of(sweep: Sweep) -> tuple[int, ...]:
    """The seeds that every point is trained with.

    Example:
        >>> seeds_of(Sweep(name="a", recipe="walk-k6-half", seeds=3))
        (0, 1, 2)
    """
    return tuple(range(sweep.seeds)) if isinstance(sweep.seeds, int) else sweep.seeds


def varied(sweep: Sweep) -> tuple[str, ...]:
    """The fields that tell points apart, those of the grid first.

    Example:
        >>> varied(Sweep(name="a", recipe="walk-k6-half", grid={"source": {"p": [0.5, 1]}}))
        ('source.p',)
    """
    return tuple(dict.fromkeys([*sweep.grid, *(field for point in sweep.list for field in point)]))


def points(sweep: Sweep) -> tuple[Point, ...]:
    """All recipes of a sweep, each of them checked.

    Raises:
        SweepError: One line that names the point, and what is wrong with its recipe; or an axis of the phase
            that no field is.

    Example:
        >>> grid = {"source.p": [0.25, 0.5], "init.std": [0.01, 0.02, 0.05]}
        >>> [point.values["init.std"] for point in points(Sweep(name="a", recipe="walk-k6-half", grid=grid))]
        [0.01, 0.02, 0.05, 0.01, 0.02, 0.05]
    """
    fields = varied(sweep)
    try:
        base = load_recipe(sweep.recipe)
    except RecipeError as error:
        raise SweepError(f"recipe: {error}") from None
    chosen: list[Point] = []
    seen: dict[str, int] = {}
    choices = tqdm(_choices(sweep), unit="point", delay=2.0, leave=False, disable=not watched())
    for index, values in enumerate(choices, start=1):
        changes = ", ".join(f"{field} = {value!r}" for field, value in values.items())
        where = f"point {index}" + (f" ({printable(changes, 120)})" if values else "")
        for field in values:
            if lost := [key for key in sweep.set if key.startswith(f"{field}.")]:
                raise SweepError(f"{where}: {field} replaces the {lost[0]} of set, expected one of them")
        try:
            recipe = base.replace(**{**sweep.set, **values})
        except RecipeError as error:
            if _complaint(base, sweep.set) == str(error):
                where = "set"  # to blame for it, without what the point changes
            raise SweepError(printable(f"{where}: {error}")) from None
        data = recipe.to_data()
        same = seen.setdefault(repr(data), index)
        if same != index:
            raise SweepError(f"{where} is the same recipe as point {same}")
        chosen.append(Point(index, {field: _value_of(data, field) for field in fields}, recipe))
    if sweep.phase is not None:
        _check_axes(sweep.phase, fields)
    return tuple(chosen)


def _complaint(base: Recipe, values: Values) -> str | None:
    try:
        base.replace(**values)
    except RecipeError as error:
        return str(error)
    return None


def _check_axes(phase: Phase, fields: tuple[str, ...]) -> None:
    """Refuse axes that are not varied; after the recipes, so that a misspelt field is not taken for one."""
    named = {"x": phase.x, "y": phase.y, "facet": phase.facet}
    used = {axis: field for axis, field in named.items() if field is not None}
    for axis, field in used.items():
        if field not in fields:
            misses = f", expected one of: {', '.join(fields)}" if fields else ", and no field is varied"
            raise SweepError(f"phase.{axis} is {shown(field)}, which is not varied{misses}")
    if len({*used.values()}) < len(used):
        raise SweepError(f"phase has {', '.join(used.values())}, expected different fields")


def load_sweep(sweep: Sweep | Mapping[str, Any] | str | Path) -> Sweep:
    """A sweep from whatever names one: a sweep, plain values, a TOML file, or the name of a shipped one.

    Raises:
        SweepError: One line, naming key, value and what was expected.

    Example:
        >>> from mechmarkov.catalogue import sweeps
        >>> load_sweep(min(sweeps())).name == min(sweeps())
        True
    """
    return Sweep.load(sweep)


def _choices(sweep: Sweep) -> Iterator[Values]:
    """Yields what each point changes."""
    if sweep.grid or not sweep.list:  # a product of nothing is one point that changes nothing
        for values in itertools.product(*sweep.grid.values()):
            yield dict(zip(sweep.grid, values, strict=True))
    yield from sweep.list


def _dotted(table: Mapping[str, Any], prefix: str = "", merge_all: bool = False) -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys; a table that is a value of its own stays one."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and (merge_all or not ("kind" in value or name in REPLACED_WHOLE)):
            yield from _dotted(value, f"{name}.", merge_all)
        else:
            yield name, value


def _value_of(data: Mapping[str, Any], field: str) -> Any:
    value: Any = data
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
