"""Reading checkpoints of another program: a file or a folder, with one model in it or a history of one."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mechmarkov.importing import layout
from mechmarkov.importing.files import folders, recognise, state_dicts
from mechmarkov.importing.files.state_dicts import Found, StateDict
from mechmarkov.importing.layout import ImportPlan
from mechmarkov.importing.names.plan import LAYOUT
from mechmarkov.importing.names.table import Names
from mechmarkov.importing.training_steps import EPOCH, step_of, steps_of_history
from mechmarkov.safe import folder as shared_folder
from mechmarkov.safe import foreign_file, formats
from mechmarkov.safe.foreign_file import ForeignFile
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import FLOATS, RUN_FORMAT, RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, first_of, printable, quoted, reason, shown

MAX_NAMES = 12  # in a note


@dataclass(frozen=True)
class Checkpoint:
    """One saved model.

    Attributes:
        path: The file or folder that it is in.
        layout: The program or format whose names its weights have.
        plan: How it becomes a HookedDecoder.
        step: Its training step, None where it says none.
        is_epoch: Whether that counts epochs.
        bytes: What its weights take in float32.
        states: A function that reads the weights.
        notes: What the user should know of how it was read, a line each.
    """

    path: Path
    layout: str
    plan: ImportPlan
    step: int | None
    is_epoch: bool
    bytes: int
    states: Callable[[], dict[str, Tensor]]
    notes: tuple[str, ...]


def read_checkpoints(
    path: Path,
    given: Mapping[str, Any],
    weights: str | None = None,
    without: Sequence[str] = (),
    names: Names | None = None,
) -> list[Checkpoint]:
    """Read the structure of a file or folder; `states()` of each checkpoint in it reads its weights.

    Args:
        path: A file, or a folder of one model.
        given: Fields of a `DecoderConfig` that it does not tell.
        weights: Which of several models in it.
        without: Weights that the model does not use: their names, or what these begin with.
        names: For a model with names of its own, which weight is which.

    Raises:
        RunFileError: For a file that cannot be trusted, and for a model that a HookedDecoder cannot express.

    Example:
        >>> import tempfile, torch
        >>> from mechmarkov.models import DecoderConfig, HookedDecoder
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save({"model": HookedDecoder(config).state_dict(), "step": 8}, file.name)
        ...     given = {"positional_embedding_type": "standard"}
        ...     (checkpoint,) = read_checkpoints(Path(file.name), given)
        ...     checkpoint.layout, checkpoint.step, checkpoint.states()["embed.W_E"].shape
        ('HookedTransformer', 8, torch.Size([2, 4]))
    """
    try:
        file, outside = _opened(path)
        layouts = recognise.LAYOUTS if names is None else recognise.of_table(names)
        models = state_dicts.find(file.content, layouts)
        if not models:
            raise recognise.of_no_layout(file.content, outside, names is not None)
        chosen = state_dicts.choose(models, weights)
        notes = []
        if len(models) > 1:
            place = printable(".".join(chosen.place) or "the first", NAME_CHARACTERS)
            notes.append(f"of {len(models)} models in the file: {place}")
        counted = _steps(chosen, file, outside)
        return [
            _checkpoint(path, file, one, step, outside, given, without, notes, names)
            for one, step in zip(chosen.members, counted, strict=True)
        ]
    except layout.UnknownWeightError as error:
        name = shlex.quote(printable(error.name, NAME_CHARACTERS))
        raise RunFileError(
            f"{error}: if the model does not use it, --without {name}, else save it by a name that is known"
        ) from error
    except RunFileError:
        raise
    except ValueError as error:
        raise RunFileError(str(error)) from error
    except (TypeError, ArithmeticError) as error:  # a value that no check above has thought of
        raise RunFileError(f"has a value that makes no sense: {reason(error)}") from error


def _opened(path: Path) -> tuple[ForeignFile | folders.Parts, dict[str, Any]]:
    """Returns what a path holds and what lies next to it: a config, training state, safetensors' texts."""
    if path.name in (shared_folder.RUN, shared_folder.WEIGHTS) and path.with_name(shared_folder.RUN).exists():
        raise RunFileError(
            "is in a folder that `save_folder` wrote, a run already: probe that folder as it is"
        )
    if path.name == folders.CONFIG:
        raise RunFileError("is a config, expected the weights with it: give the folder of both")
    if path.is_dir():
        if not folders.is_model(path):
            formats.check_folder(path)
        return folders.open_model(path), folders.beside(path)
    if (part := folders.PART.fullmatch(path.name)) is not None:
        raise RunFileError(f"is one of the {int(part[3])} files of a model: give their folder")
    file = foreign_file.read(path)
    if type(file.content) is dict and file.content.get("format") == RUN_FORMAT:
        raise RunFileError("is a run already: probe it as it is")
    return file, folders.beside(path.parent) if path.name in folders.WEIGHTS else {}


def _steps(
    chosen: Found, file: ForeignFile | folders.Parts, outside: Mapping[str, Any]
) -> list[tuple[int | None, str]]:
    """The training step of each member, and what the file calls it."""
    length = len(chosen.members)
    if chosen.is_history:
        if chosen.steps is not None:
            return [(step, "") for step in chosen.steps]
        listed, name = steps_of_history(chosen.members[0].around, length, file)
        if listed is not None:
            return [(step, name.removesuffix("s")) for step in listed]
    beside = [outside.get(folders.STATE, {}), file.notes]
    return [step_of([*one.around, *beside], file) for one in chosen.members]


def _checkpoint(
    path: Path,
    file: ForeignFile | folders.Parts,
    one: StateDict,
    counted: tuple[int | None, str],
    outside: Mapping[str, Any],
    given: Mapping[str, Any],
    without: Sequence[str],
    notes: Sequence[str],
    names: Names | None,
) -> Checkpoint:
    plans, left_out = _own_weights(one, without)
    shapes = {name: plan.shape for name, plan in plans.items()}
    if names is None:
        name, plan, unused = recognise.planned(shapes, [*one.around, outside], given, one.called)
    else:
        name, (plan, unused) = LAYOUT, recognise.of_names(shapes, [*one.around, outside], names, given)
    _check_head(one, plan, without)
    remarks = [*notes]
    if one.prefix:
        remarks.append(f"all names begin with {printable(one.prefix, NAME_CHARACTERS)}: taken off")
    if one.is_wrapped:
        remarks.append("parts that wrappers put into names are taken out")
    if left_out:
        named = [printable(name, NAME_CHARACTERS) for name in left_out]
        remarks.append(f"left out, not weights of the model: {first_of(named, MAX_NAMES)}")
    remarks += unused

    def states() -> dict[str, Tensor]:
        wanted = {one.called(name): plans[name] for name in plan.wanted}
        read = file.tensors(wanted, frozenset(map(one.called, plan.masks)))
        return plan.states({name: read[one.called(name)] for name in plan.wanted})

    n_bytes = 4 * sum(math.prod(plans[weight].shape) for weight in plan.wanted)
    step, counts = counted
    return Checkpoint(path, name, plan, step, counts == EPOCH, n_bytes, states, tuple(remarks))


def _own_weights(one: StateDict, without: Sequence[str]) -> tuple[dict[str, TensorPlan], list[str]]:
    """The weights of the model, and the names of those next to it that are left out."""
    names = {name: (name, one.called(name)) for name in one.plans} | {name: (name,) for name in one.beside}
    for begin in without:
        if not any(_begins(x, begin) for both in names.values() for x in both):
            raise RunFileError(f"--without is {shown(begin)}, but no weight is called so or begins so")
    dropped = {name for name in one.plans if any(_begins(x, begin) for begin in without for x in names[name])}
    # A counter, such as `n_averaged`: no weight is one whole number.
    dropped |= {name for name, x in one.plans.items() if x.shape == () and x.dtype not in FLOATS}
    left_out = [*one.beside, *(one.called(name) for name in one.plans if name in dropped)]
    return {name: x for name, x in one.plans.items() if name not in dropped}, left_out


def _begins(name: str, begin: str) -> bool:
    return name == begin or name.startswith(begin.rstrip(".") + ".")


def _check_head(one: StateDict, plan: ImportPlan, without: Sequence[str]) -> None:
    """Refuse to take the embedding for the unembedding where a matrix next to the model may be that."""
    if "tied" not in plan.assumed:
        return
    for name in one.beside:
        beside = one.around[0][name]
        if any(_begins(name, begin) for begin in without):
            continue
        if len(beside.shape) == 2 and beside.dtype in FLOATS:
            raise RunFileError(
                f"the model in it ({one.prefix}…) has no unembedding, and {quoted(name)} next to it may be "
                f"that: save both in one module, or --without {shlex.quote(printable(name, NAME_CHARACTERS))}"
            )
