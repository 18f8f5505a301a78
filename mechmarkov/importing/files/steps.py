"""The training step that a file says, whatever it calls it."""

from collections.abc import Iterable, Mapping
from typing import Any

from mechmarkov.importing.files.folders import Parts
from mechmarkov.safe.foreign_file import ForeignFile
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import INTEGERS

MAX_STEP = 1 << 62
STEPS = (
    "global_step", "iter_num", "step", "iteration", "iter", "itr", "it", "step_count", "iter_count",
    "training_step", "train_step", "current_step", "current_iter", "cur_step", "n_step", "n_iter", "n_steps",
    "num_steps", "steps", "iterations", "step_num", "optimizer_step", "update", "num_updates", "n_updates",
)  # fmt: skip
EPOCH = "epoch"  # counts where nothing else does
STEPS_OF_HISTORY = tuple(f"{name}s" for name in (*STEPS, EPOCH))
# Dicts next to the weights that may hold the step.
STATES = ("trainer_state", "trainer", "state", "meta", "metadata", "info", "progress")


def step_of(around: Iterable[Mapping[Any, Any]], file: ForeignFile | Parts) -> tuple[int | None, str]:
    """Find the training step that the dicts around a model say.

    Args:
        around: The dicts that its weights lie in, from inside out.
        file: The file, which reads a step that is a tensor.

    Returns:
        The step and the name it stands under, of which "epoch" counts last; None and "" where none says one.
    """
    dicts: list[Mapping[Any, Any]] = []
    for one in around:
        dicts += [one, *(one[name] for name in STATES if type(one.get(name)) is dict)]
    for names in (STEPS, (EPOCH,)):
        for one in dicts:
            for name in names:
                if (step := _number(one.get(name), file)) is not None:
                    return step, name
    return None, ""


def steps_of_history(
    around: Iterable[Mapping[Any, Any]], length: int, file: ForeignFile | Parts
) -> tuple[tuple[int, ...] | None, str]:
    """Find the training steps that a list next to several checkpoints says, one for each.

    Args:
        around: The dicts that the checkpoints lie in, from inside out.
        length: How many checkpoints there are.
        file: The file, which reads steps that are tensors.

    Returns:
        The steps and the name they stand under; None and "" where no list says them.
    """
    for one in around:
        for name in (*STEPS_OF_HISTORY, *STEPS, EPOCH):
            value: Any = one.get(name)
            if type(value) is TensorPlan and value.dtype in INTEGERS and value.shape == (length,):
                value = file.integers(value)
            if isinstance(value, list | tuple) and len(value) == length:
                steps = [_number(item, file) for item in value]
                if None not in steps:
                    return tuple(step for step in steps if step is not None), name
    return None, ""


def _number(value: Any, file: ForeignFile | Parts) -> int | None:
    if type(value) is TensorPlan and value.dtype in INTEGERS and value.shape in ((), (1,)):
        (value,) = file.integers(value)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is str and value.isascii() and value.isdecimal():  # safetensors keeps texts only
        value = int(value[:19])
    return value if type(value) is int and 0 <= value < MAX_STEP else None
