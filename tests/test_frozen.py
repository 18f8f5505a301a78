"""Results and settings are frozen: what a function returned does not change behind a reader's back."""

import pkgutil
import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module

import jaxtyping
import numpy as np
import pytest
import torch
from pydantic import BaseModel, ValidationError

import mechmarkov
from mechmarkov.training.plan import Stack, TrainingPlan
from mechmarkov.training.recipe import load_recipe

# What is filled while something runs.
FILLED = {
    "mechmarkov.importing.live.name_table.NameTable",
    "mechmarkov.importing.names.weights.Renamed",
    "mechmarkov.probing.subject.Subject",
    "mechmarkov.safe.foreign_file._NumpyType",
    "mechmarkov.safe.plain_data.Foreign",
    "mechmarkov.sweeps.evaluate.Outputs",
}


def classes():
    for module in pkgutil.walk_packages(mechmarkov.__path__, "mechmarkov."):
        if module.name.endswith("__main__"):
            continue
        with suppress(ModuleNotFoundError):  # of an extra, such as a GPU's kernels
            import_module(module.name)
        for value in vars(sys.modules.get(module.name, object)).values():
            if isinstance(value, type) and value.__module__ == module.name:
                yield f"{module.name}.{value.__qualname__}", value


def dataclasses():
    return ((name, kind) for name, kind in classes() if is_dataclass(kind))


def test_dataclasses_are_frozen():
    thawed = {name for name, kind in dataclasses() if not kind.__dataclass_params__.frozen}
    assert thawed == FILLED


def test_models_of_pydantic_are_frozen():
    """Sources, recipes, configs, and what is read from files."""
    models = {name: kind for name, kind in classes() if issubclass(kind, BaseModel)}
    assert len(models) > 70
    assert not {name for name, kind in models.items() if not kind.model_config.get("frozen")}
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe("walk-k6-half").source.kind = "chain"


def test_dataclasses_of_arrays_are_not_compared_by_value():
    """Equality of arrays is an array, which is neither true nor false, and has no hash."""
    compared = {
        name
        for name, kind in dataclasses()
        if kind.__dataclass_params__.eq and any(is_array(field.type) for field in fields(kind))
    }
    assert not compared


def is_array(kind: object) -> bool:
    if isinstance(kind, str):
        return kind.startswith(("Float[", "Int[", "Bool[", "Tensor", "np.ndarray"))
    return isinstance(kind, type) and (
        issubclass(kind, jaxtyping.AbstractArray) or kind in (np.ndarray, torch.Tensor)
    )


def test_plans_of_the_same_work_are_two():
    assert TrainingPlan(()) != TrainingPlan(())
    assert Stack((), (), None) != Stack((), (), None)
