"""`mechmarkov import`: saved models of other programs as a run."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechmarkov.importing import vocabulary
from mechmarkov.importing.checkpoint import Checkpoint, read_checkpoints
from mechmarkov.importing.layout import tie
from mechmarkov.importing.names.table import Names
from mechmarkov.importing.training_steps import checkpoints, steps_of
from mechmarkov.objectives import Objective, evaluated_length, sequence_length
from mechmarkov.runs import schema
from mechmarkov.runs.given import check_source, checked_objective, example_tokens
from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import UNKNOWN_STEP, Run
from mechmarkov.safe import file as safe_file
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Observed, Source
from mechmarkov.utils.errors import list_of, path_of
from mechmarkov.utils.text import NAME_CHARACTERS, counted, printable, shown

MAX_WEIGHT_BYTES = 1 << 31  # of all checkpoints together
MAX_FILES_NAMED = 16  # in provenance


@dataclass(frozen=True)
class Imported:
    """A run that was read from other people's files, and what was assumed and checked, a line each."""

    run: Run
    notes: tuple[str, ...]


def import_run(
    paths: Sequence[str | os.PathLike[str]],
    *,
    source: Source,
    objective: Objective | None = None,
    given: Mapping[str, Any] | None = None,
    token_map: str | None = None,
    pad: int | None = None,
    bos: int | None = None,
    weights: str | None = None,
    without: Sequence[str] = (),
    names: Names | None = None,
) -> Imported:
    """Read models that other programs saved as a run; nothing in the files is executed.

    Args:
        paths: A file, a folder of transformers, or several checkpoints of one training: files, a folder or
            a pattern.
        source: The data that the model was trained on.
        objective: The loss that it was trained for; by default cross-entropy at every position.
        given: Fields of the config that the files do not tell.
        token_map: The token of each state, "a=0,b=1", where they are not 0, 1, …
        pad: The model's padding token: no sequence of a run holds it.
        bos: The token that every sequence begins with: so does every sequence of the run (`Objective.bos`).
        weights: Which of several models in a file, by its key there ("ema"), or by what its names begin with.
        without: Weights that the model does not use, by their names or by what these begin with.
        names: For models with names of their own, which weight is which of HookedTransformer's; see
            `Run.from_model`.

    Raises:
        TypeError: One path or one name, where a list of them is expected.
        ValueError: One line, for a file that cannot be read or trusted, a model that cannot be expressed or
            whose vocabulary is not the source's, and checkpoints that do not belong together.

    Example:
        >>> import tempfile
        >>> from mechmarkov.models import DecoderConfig, HookedDecoder
        >>> from mechmarkov.sources import Binary
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save(HookedDecoder(config).state_dict(), file.name)
        ...     given = {"positional_embedding_type": "standard"}
        ...     imported = import_run([file.name], source=Binary(p=0.5, q=0.8), given=given)
        >>> imported.notes[0], imported.run.config.n_heads
        ('HookedTransformer, 1 checkpoint', 1)
    """
    if isinstance(paths, str | os.PathLike):
        text = shown(os.fspath(paths))
        raise TypeError(f"paths is {text}, expected a list of them: [{text}]")
    if not isinstance(weights, str | None):
        raise TypeError(f"weights is {shown(weights)}, expected the name of a model in the file")
    if isinstance(without, str):
        raise TypeError(f"without is {shown(without)}, expected a list of names: [{shown(without)}]")
    if not isinstance(given, Mapping | None):
        raise TypeError(f'given is {shown(given)}, expected fields of a config such as {{"n_heads": 2}}')
    check_source(source)
    objective = checked_objective(objective)
    paths = [path_of("paths", path) for path in list_of("paths", paths, "a list of paths")]
    if bos is not None:
        objective = objective.beginning()
    elif objective.bos:
        raise RunFileError(
            "objective.bos is true, but no token is named: give --bos TOKEN, or bos= in Python"
        )
    ids = None
    if token_map is not None:
        source, ids = vocabulary.source_and_ids(token_map, source, objective)
    found = checkpoints(paths)
    read: list[Checkpoint] = []
    for path in found.paths:
        with safe_file.naming(path):
            for checkpoint in read_checkpoints(path, given or {}, weights, without, names):
                read.append(checkpoint)
                _check_same_model(checkpoint, read[0])
    first = read[0]
    config = first.plan.config
    with safe_file.naming(first.path):
        ids = vocabulary.tokens_of_states(config, source, objective, ids, pad, bos)
        kept = config if ids is None else vocabulary.picked_config(config, len(ids), source.n_states)
        schema.check_consistent(kept, source, objective)
        drawn = example_tokens(kept, source, objective)
        if (total := len(read) * first.bytes) > MAX_WEIGHT_BYTES:
            raise RunFileError(
                f"{len(read)} such checkpoints take {total} bytes, expected at most {MAX_WEIGHT_BYTES}"
            )
    steps, step_notes = _steps(read, found.steps)
    members: list[_Member] = []
    for step, one in sorted(zip(steps, read, strict=True), key=lambda pair: pair[0] or 0):
        with safe_file.naming(one.path):
            members.append(_Member(one, step or 0, one.states()))
    members, repeated = _without_repeats(members)
    states = {name: torch.stack([one.states[name] for one in members]) for name in members[0].states}
    if first.plan.may_tie:
        with safe_file.naming(first.path):
            config, states = tie(config, states)
            kept = kept.model_copy(update={"tied": config.tied})
    origin: dict[str, Any] = {
        "imported_from": first.layout,
        "files": [
            printable(name, NAME_CHARACTERS)
            for name in [*dict.fromkeys(one.checkpoint.path.name for one in members)][:MAX_FILES_NAMED]
        ],
        "assumed": dict(first.plan.assumed),
    }
    if steps == [None]:
        origin |= UNKNOWN_STEP
    if ids is not None:
        part = vocabulary.pick(config, kept, states, ids, drawn)
        states = part.states
        origin |= {"logit_difference": part.difference.largest} | part.origin(objective)
    run = Run(
        config=kept,
        source=source,
        objective=objective,
        steps=torch.tensor([one.step for one in members]),
        states=states,
        provenance={**provenance("cpu"), **origin},
    )
    of_files = (note for one in read for note in one.notes)
    notes = [*found.notes, *step_notes, *repeated, *dict.fromkeys(of_files)]
    return Imported(run, (*_notes(origin, len(members), notes), *_notes_of_sequences(run)))


@dataclass(frozen=True)
class _Member:
    """A checkpoint with its step and its weights."""

    checkpoint: Checkpoint
    step: int
    states: dict[str, Tensor]


def _steps(read: Sequence[Checkpoint], of_folders: Mapping[Path, int]) -> tuple[list[int | None], list[str]]:
    """The training step of each checkpoint, and what the user should know of where it is from."""
    paths, stored = [one.path for one in read], [one.step for one in read]
    epochs = [one.is_epoch for one in read]
    if all(epochs) and len(set(stored)) == len(stored):
        return [*stored], ["training steps are epochs: the files say no other"]
    if any(epochs):  # several in an epoch, or only some say steps
        stored = [None] * len(read)
    if None not in stored:
        return [*stored], []
    if len(read) > 1 and set(stored) == {None} and len(set(paths)) == 1:
        return [*range(len(read))], [
            "no training step is said: they stand as steps 0, 1, 2, … in their order"
        ]
    by_folder = [of_folders.get(path, step) for path, step in zip(paths, stored, strict=True)]
    steps = by_folder if None not in by_folder else steps_of(paths, stored)
    if None in steps:
        return steps, []
    first = ", ".join(map(str, sorted(step for step in steps if step is not None)[:MAX_FILES_NAMED]))
    return steps, [f"training steps by the names: {first}"]


def _without_repeats(members: Sequence[_Member]) -> tuple[list[_Member], list[str]]:
    """The checkpoints without those that are a copy of another, as a `last.ckpt` is; by step.

    Raises:
        RunFileError: For two of one step that differ, or whose step is that of their names only.
    """
    kept: list[_Member] = []
    notes: list[str] = []
    for one in members:
        if not kept or kept[-1].step != one.step:
            kept.append(one)
            continue
        same = one.checkpoint.step is not None and all(
            value.equal(kept[-1].states[name]) for name, value in one.states.items()
        )
        path, other = (safe_file.printable_path(x.checkpoint.path) for x in (one, kept[-1]))
        if not same:
            raise RunFileError(f"{path}: step {one.step} is also that of {other}")
        notes.append(f"left out, a copy of {other}: {path}")
    return kept, notes


def _notes(origin: dict[str, Any], n_files: int, of_files: Sequence[str]) -> tuple[str, ...]:
    """Returns what the user should know of an import, a line each."""
    notes = [f"{origin['imported_from']}, {counted(n_files, 'checkpoint')}", *of_files]
    if origin["assumed"]:
        values = ", ".join(f"{name} = {_value(value)}" for name, value in origin["assumed"].items())
        notes.append(f"not said by the file, assumed: {values}")
    if "step" in origin:
        notes.append("its training step is unknown: it stands as step 0")
    if "tokens" in origin:
        notes.append(f"states are the model's tokens {', '.join(map(str, origin['tokens'][:16]))}")
        notes.append(f"largest logit difference from the whole model: {origin['logit_difference']:.3g}")
    else:
        notes.append("no live original to compare with: names, shapes and finite values were checked")
    if origin.get("probability_left_out"):
        notes.append(f"up to {origin['probability_left_out']:.3g} of the probability was on other tokens")
    return tuple(notes)


def _value(value: Any) -> str:
    return f"{value:.6g}" if type(value) is float else str(value)


def _notes_of_sequences(run: Run) -> Iterator[str]:
    """Lines on sequences that stand for a law: how much of the context they fill, and doubts of them."""
    if isinstance(run.source, Observed):
        length = evaluated_length(run.source, run.objective, run.config.n_ctx)
        if length < sequence_length(run.objective, run.config.n_ctx):
            read = f"{length - 1} of {run.config.n_ctx} positions"
            yield f"its sequences have {length} states: probes read {read}"
        yield from filter(None, (run.source.doubt_of_one_law(), run.source.never_zero()))


def _check_same_model(one: Checkpoint, first: Checkpoint) -> None:
    """Refuse checkpoints of different models."""
    if one.layout != first.layout:
        raise RunFileError(f"its layout is {one.layout}, but the first checkpoint's is {first.layout}")
    for (name, value), (_, theirs) in zip(one.plan.config, first.plan.config, strict=True):
        if value != theirs:
            raise RunFileError(f"{name} is {value}, but it is {theirs} in the first checkpoint")
