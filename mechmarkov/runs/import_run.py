"""`mechmarkov import`: saved models of other programs as a run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from mechmarkov.importing import vocabulary
from mechmarkov.importing.checkpoint import Checkpoint, read_checkpoint
from mechmarkov.importing.layout import tie
from mechmarkov.importing.training_steps import checkpoints, steps_of
from mechmarkov.objectives import Objective
from mechmarkov.runs import schema
from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import UNKNOWN_STEP, Run, check_source, checked_objective, example_tokens
from mechmarkov.safe import file as safe_file
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Source
from mechmarkov.utils.errors import list_of, path_of
from mechmarkov.utils.text import NAME_CHARACTERS, counted, printable

MAX_WEIGHT_BYTES = 1 << 31  # of all checkpoints together
MAX_FILES_NAMED = 16  # in provenance


@dataclass(frozen=True)
class Imported:
    """A run, and notes for the user: what was assumed, and what was checked."""

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
) -> Imported:
    """Read models that other programs saved.

    Args:
        paths: A file, a folder of transformers, or several checkpoints of one training: files, a folder or
            a pattern.
        source: What the model was trained on.
        objective: What it was trained for; by default cross-entropy at every position.
        given: Fields of the config that the files do not tell.
        token_map: The token of each state, "a=0,b=1", where they are not 0, 1, …
        pad: The model's padding token: no sequence of a run holds it.
        bos: The model's beginning-of-sequence token: no sequence of a run holds it either, so a model whose
            logits change without it is refused (`vocabulary.pick`).

    Raises:
        TypeError: One path, where a list of them is expected.
        ValueError: One line, for a file that cannot be read or trusted, a model that cannot be expressed or
            whose vocabulary is not the source's, and checkpoints that do not belong together.
    """
    if isinstance(paths, str | os.PathLike):
        raise TypeError(f"paths is {os.fspath(paths)!r}, expected a list of them: [{os.fspath(paths)!r}]")
    check_source(source)
    objective = checked_objective(objective)
    paths = [path_of("paths", path) for path in list_of("paths", paths, "a list of paths")]
    ids = None if token_map is None else vocabulary.parse_tokens(token_map, source, objective)
    paths = checkpoints(paths)
    read: list[Checkpoint] = []
    for path in paths:
        with safe_file.naming(path):
            read.append(read_checkpoint(path, given or {}))
            _check_same_model(read[-1], read[0])
    steps = steps_of(paths, [checkpoint.step for checkpoint in read])
    in_order = sorted(zip(steps, paths, read, strict=True), key=itemgetter(0))
    plan = read[0].plan
    config = plan.config
    with safe_file.naming(paths[0]):
        ids = vocabulary.tokens_of_states(config, source, objective, ids, pad, bos)
        kept = config if ids is None else vocabulary.picked_config(config, len(ids), source.n_states, bos)
        schema.check_consistent(kept, source, objective)
        if (total := len(read) * read[0].bytes) > MAX_WEIGHT_BYTES:
            raise RunFileError(
                f"{len(read)} such checkpoints take {total} bytes, expected at most {MAX_WEIGHT_BYTES}"
            )
    members = []
    for _, path, checkpoint in in_order:
        with safe_file.naming(path):
            members.append(checkpoint.states())
    states = {name: torch.stack([member[name] for member in members]) for name in members[0]}
    if plan.may_tie:
        with safe_file.naming(paths[0]):
            config, states = tie(config, states)
            kept = kept.model_copy(update={"tied": config.tied})
    origin: dict[str, Any] = {
        "imported_from": read[0].layout,
        "files": [printable(path.name, NAME_CHARACTERS) for _, path, _ in in_order[:MAX_FILES_NAMED]],
        "assumed": dict(plan.assumed),
    }
    if len(read) == 1 and read[0].step is None:
        origin |= UNKNOWN_STEP
    if ids is not None:
        part = vocabulary.pick(config, kept, states, ids, bos, example_tokens(kept, source, objective))
        states = part.states
        origin |= {"logit_difference": part.difference.largest} | part.origin(objective)
    run = Run(
        model=kept,
        source=source,
        objective=objective,
        steps=torch.tensor([step for step, _, _ in in_order]),
        states=states,
        provenance={**provenance("cpu"), **origin},
    )
    return Imported(run, _notes(origin, len(read)))


def _notes(origin: dict[str, Any], n_files: int) -> tuple[str, ...]:
    """What the user should know of an import, a line each."""
    notes = [f"{origin['imported_from']}, {counted(n_files, 'checkpoint')}"]
    if origin["assumed"]:
        values = ", ".join(f"{name} = {value}" for name, value in origin["assumed"].items())
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


def _check_same_model(one: Checkpoint, first: Checkpoint) -> None:
    """Refuse checkpoints of different models."""
    if one.layout != first.layout:
        raise RunFileError(f"its layout is {one.layout}, but the first checkpoint's is {first.layout}")
    for (name, value), (_, theirs) in zip(one.plan.config, first.plan.config, strict=True):
        if value != theirs:
            raise RunFileError(f"{name} is {value}, but it is {theirs} in the first checkpoint")
