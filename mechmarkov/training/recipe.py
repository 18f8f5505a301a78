"""A recipe: everything that decides a training run but its seed. Read from TOML."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic import ModelWrapValidatorHandler as Handler

from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.models.decoder import parameter_shapes
from mechmarkov.objectives import Objective, check_length
from mechmarkov.sources.base.registry import AnySource
from mechmarkov.training.model_sections import Model
from mechmarkov.training.sections import AdamW, Checkpoints, Data, Init, Optimiser
from mechmarkov.utils.config import Integer, Truth
from mechmarkov.utils.errors import generator_in, list_of
from mechmarkov.utils.text import fact_table, format_bytes, shown
from mechmarkov.utils.toml import Written

MAX_STATES = 1 << 28  # of one batch: 2 GB of tokens, and far more of activations
MAX_KEPT_BYTES = 1 << 32  # of all checkpoints of a run


class RecipeError(ValueError):
    """A recipe that cannot be used; the message is one line."""


class Recipe(Written):
    """Everything that decides a training run but its seed; frozen, unknown keys refused.

    Attributes:
        name: What the recipe is called.
        title: What it is, in one line.
        source: What the sequences are drawn from.
        objective: What the model is trained for.
        model: Which model is trained.
        init: How its weights start.
        optimiser: What moves them.
        data: The sequences that a step trains on.
        steps: How often the weights are moved.
        checkpoints: At which steps weights are kept.
        trainable: By a parameter's name, the part that is trained: `[start, stop]` for each axis. By default
            all parameters are.
        frozen: Parameters that stay at their start, by how their names end (`b_V` is that of every layer). A
            layer whose bias stays at zero has none.
        precision: The type that matrix products compute in, under `torch.autocast`. Weights, losses and the
            optimiser stay in float32. On a CPU float32 is faster: only it has kernels of our own.
        grad_scaler: Whether losses are scaled, which keeps gradients of float16 from vanishing (one factor a
            member).
        compile: Whether the decoder runs through `torch.compile`, which needs a C++ compiler on the CPU and
            pays off for long trainings only.

    Example:
        >>> recipe = load_recipe("walk-k6-half").with_set(["steps=5", "source.p=0.25"])
        >>> recipe.steps, recipe.source.p, recipe.decoder_config.d_model
        (5, 0.25, 103)
    """

    error = RecipeError
    shipped = Path(__file__).parent / "recipes"
    other = ("recipe", "sweep", "sweep")

    name: str = Field(min_length=1, max_length=200)
    title: str = Field(default="", max_length=1000)
    source: AnySource
    objective: Objective = Objective()
    model: Model
    init: Init = Init()
    optimiser: Optimiser = AdamW()
    data: Data = Data(batch=16)
    steps: Integer = Field(ge=1, le=100_000_000)
    checkpoints: Checkpoints = Checkpoints(log=20)
    trainable: Slices | None = None
    frozen: tuple[str, ...] = ()
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    grad_scaler: Truth = False
    compile: Truth = False

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _remember(cls, data: Any, handler: Handler["Recipe"]) -> "Recipe":
        """Keep what was written, so that a change starts from it and not from the defaults it led to."""
        recipe = handler(data)
        if isinstance(data, dict):
            recipe._given = deepcopy(data)
        return recipe

    @field_validator("model", mode="before")
    @classmethod
    def _vocabulary(cls, model: Any, info: Any) -> Any:
        """Fill the decoder's vocabulary, or check the one that was given."""
        if not isinstance(model, dict) or model.get("kind") != "decoder":
            return model
        if "source" not in info.data or "objective" not in info.data:
            return {"d_vocab": 2, **model}  # the fault is the other section's
        n_states, query = info.data["source"].n_states, info.data["objective"].query
        follows = {"d_vocab": n_states + query, "d_vocab_out": n_states}
        for name, value in follows.items():
            if model.get(name, value) != value:
                raise ValueError(
                    f"{name} is {model[name]}, expected {value} for a source with {n_states} states"
                    + (" and a query token" if query else "")
                )
        return model | follows

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        sequences = self.data.batch or self.data.n_train or 0
        if sequences * self.model.n_ctx > MAX_STATES:
            key = "batch" if self.data.batch else "n_train"
            raise ValueError(
                f"data.{key} is {sequences}, expected at most {MAX_STATES // self.model.n_ctx} sequences of "
                f"model.n_ctx {self.model.n_ctx}"
            )
        if self.objective.query and self.objective.read != "last":
            raise ValueError("objective.read is 'all', expected 'last' where sequences end in a query token")
        if self.objective.bos:
            raise ValueError(
                "objective.bos is true, expected false: only models from elsewhere have that token"
            )
        check_length(self.source, self.objective, self.model.n_ctx)
        for key, allowed, message in self.model.requirements():
            value = attrgetter(key)(self)
            if value not in allowed:
                raise ValueError(message.format(key=key, value=value, expected=allowed[0]))
        count, each = len(self.checkpoint_steps), self.model.checkpoint_bytes(self.decoder_config)
        if count * each > MAX_KEPT_BYTES:
            raise ValueError(
                f"checkpoints keep {count:,} steps of {format_bytes(each)}, expected at most "
                f"{format_bytes(MAX_KEPT_BYTES)} together"
            )
        if self.grad_scaler and self.precision != "float16":
            raise ValueError(f"grad_scaler is true, expected false where precision is {self.precision!r}")
        if self.grad_scaler and self.data.groups:
            raise ValueError(f"grad_scaler is true, expected false where data.groups is {self.data.groups}")
        if self.init.scheme == "guideline" and self.decoder_config.attn_only:
            raise ValueError("init.scheme is 'guideline', which sets the MLP, but model.attn_only is true")
        if self.trainable == {}:
            raise ValueError("trainable is empty, expected parameters to train, or leave it out to train all")
        if self.frozen:
            names = parameter_shapes(self.decoder_config)
            for ending in self.frozen:
                if not any(name.endswith(ending) for name in names):
                    raise ValueError(f"frozen names {ending!r}, which ends no parameter: {', '.join(names)}")
        if self.trainable_slices == {}:
            raise ValueError("frozen leaves nothing to train")
        return self

    @cached_property
    def decoder_config(self) -> DecoderConfig:
        """Returns the shape of the decoder that checkpoints are weights of."""
        return self.model.decoder_config(self.source.n_states)

    @cached_property
    def trainable_slices(self) -> Slices | None:
        """Returns what is trained of that decoder; None for all of it."""
        slices = self.trainable
        if slices is None:
            slices = self.model.trainable(self.source.n_states)
        if not self.frozen:
            return slices
        names = parameter_shapes(self.decoder_config) if slices is None else slices
        trained = [name for name in names if not name.endswith(self.frozen)]
        return {name: None if slices is None else slices[name] for name in trained}

    @cached_property
    def checkpoint_steps(self) -> list[int]:
        """The steps at which weights are kept, ascending."""
        return self.checkpoints.steps(self.steps)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: all that decides the training, section by section."""
        return fact_table(self.title or self.name, {"name": self.name, **self.to_data()})

    def __repr__(self) -> str:
        """The title, and what to do with a recipe."""
        return (
            f"Recipe({': '.join(filter(None, (self.name, self.title)))})\n"
            "  mm.train(recipe, seed=0) trains it; recipe.with_set(['steps=100']), recipe.to_data()"
        )

    def to_data(self) -> dict[str, Any]:
        """Returns the recipe as plain values, every default written out; `Recipe.from_data` undoes it."""
        data = self.model_dump(mode="json")
        for name in ("d_vocab", "d_vocab_out"):
            data["model"].pop(name, None)
        return data

    def to_keep(self) -> dict[str, Any]:
        """Returns what `to_data` returns, without what follows from other fields and was not written.

        So a change of what is read back leads to the recipe that the same change of this one leads to.
        """
        data, written = self.to_data(), self._given.get("model")
        for name in self.model.follows.difference(
            written if isinstance(written, dict) else self.model.follows
        ):
            data["model"].pop(name, None)
        return data

    def with_set(self, changes: Sequence[str]) -> "Recipe":
        """Returns the recipe with `key=value` changes: a dotted key, a TOML value (a bare word is a string).

        Raises:
            RecipeError: One line; for an unknown key it names the near misses.
            TypeError: One change instead of a list.

        Example:
            >>> load_recipe("walk-k6-half").with_set(["steps=5", "init.scheme=normal"]).init.scheme
            'normal'
        """
        if isinstance(changes, str):
            raise TypeError(f"changes is {shown(changes)}, expected a list of changes: [{shown(changes)}]")
        values = {}
        for change in list_of("changes", changes, "a list of texts: ['steps=100']"):
            if not isinstance(change, str):
                raise TypeError(f"changes has {shown(change)}, expected texts such as 'steps=100'")
            key, equals, text = change.partition("=")
            if not equals or not all(key.strip().split(".")):
                raise RecipeError(
                    f"{shown(change)} is not a change, expected key=value, as in optimiser.lr=0.1"
                )
            values[key.strip()] = _toml_value(change, text.strip())
        return self.replace(**values)

    def replace(self, **values: Any) -> "Recipe":
        """The recipe with some fields changed, each named by its dotted key; a table is replaced whole.

        Raises:
            RecipeError: One line; for an unknown key it names the near misses.

        Example:
            >>> load_recipe("walk-k6-half").replace(**{"source.p": 0.25}, data={"batch": 8}).data.batch
            8
        """
        if (where := generator_in(values)) is not None:
            raise RecipeError(f"{where[1:]} is a generator, expected a list")
        data = deepcopy(self._given)
        for key, value in values.items():
            path = key.split(".")
            table = data
            if path[0] == "optimiser" and len(path) > 1:  # where it was left out, its kind is the default
                data.setdefault("optimiser", {"kind": self.optimiser.kind})
            for part in path[:-1]:
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise RecipeError(f"unknown key {key}: {part} is a value, not a table")
            table[path[-1]] = deepcopy(value)
        return Recipe.from_data(data)


def _toml_value(change: str, text: str) -> Any:
    if re.fullmatch(r"[A-Za-z_][\w-]*", text) and text not in ("true", "false", "inf", "nan"):
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # TOML, an integer without end, brackets without end
        table = {}
    if set(table) != {"value"}:
        raise RecipeError(f"{shown(change)}: {shown(text)} is not a TOML value (quote strings)")
    return table["value"]


def load_recipe(recipe: Recipe | Mapping[str, Any] | str | Path) -> Recipe:
    """Returns the recipe that plain values, a TOML file, the name of a shipped one or a `Recipe` say.

    Raises:
        RecipeError: One line, which names all that is wrong.

    Example:
        >>> load_recipe("walk-k6-half").source.title()
        'Circle walk on 6 states, p = 0.5'
    """
    return Recipe.load(recipe)
