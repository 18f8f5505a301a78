"""`mechmarkov import`: saved models of other programs as a run."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechmarkov.importing import file, gpt2, hooked_transformer
from mechmarkov.importing import transformer_bridge as bridge
from mechmarkov.importing import vocabulary as tokens
from mechmarkov.importing.layout import Described, tie
from mechmarkov.importing.training_steps import checkpoints, steps_of
from mechmarkov.models import DecoderConfig
from mechmarkov.objectives import Objective
from mechmarkov.runs import schema
from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import Run, example_tokens
from mechmarkov.safe import file as safe_file
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import RunFileError, one_safe_line, readable
from mechmarkov.sources import Source

STEPS = ("iter_num", "step", "global_step")  # where a checkpoint says its training step
PREFIXES = ("_orig_mod.", "module.")  # of torch.compile and of data-parallel training
MAX_JSON = 1 << 20
MAX_STEP = 1 << 62
MAX_BYTES = 1 << 31  # of all checkpoints together


@dataclass(frozen=True)
class Checkpoint:
    """One saved model.

    Attributes:
        layout: Whose names its weights have.
        described: What it says of itself.
        step: The training step that it says, if it does.
        bytes: What its weights take in float32.
        states: Reads the weights.
    """

    layout: str
    described: Described
    step: int | None
    bytes: int
    states: Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Imported:
    """A run, and what to tell the person who asked for it."""

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
            logits change without it is refused (`tokens.pick`).

    Raises:
        ValueError: One line, for a file that cannot be read or trusted, a model that cannot be expressed or
            whose vocabulary is not the source's, and checkpoints that do not belong together.
    """
    objective = objective or Objective()
    ids = None if token_map is None else tokens.parse_tokens(token_map, source, objective)
    found = checkpoints(paths)
    read = []
    for path in found:
        with safe_file.naming(path):
            read.append(_as_error(path, given or {}))
            _alike(read[-1], read[0])
    steps = steps_of(found, [checkpoint.step for checkpoint in read])
    config = read[0].described.config
    with safe_file.naming(found[0]):
        ids = _vocabulary(config, source, objective, ids, pad, bos)
        kept = config if ids is None else tokens.picked_config(config, len(ids), source.n_states, bos)
        schema.check_consistent(kept, source, objective)
        if (total := len(found) * read[0].bytes) > MAX_BYTES:
            raise RunFileError(
                f"{len(found)} such checkpoints take {total} bytes, expected at most {MAX_BYTES}"
            )
    order = sorted(range(len(found)), key=steps.__getitem__)
    members = []
    for index in order:
        with safe_file.naming(found[index]):
            members.append(read[index].states())
    states = {name: torch.stack([member[name] for member in members]) for name in members[0]}
    if read[0].described.may_tie:
        with safe_file.naming(found[0]):
            config, states = tie(config, states)
            kept = kept.model_copy(update={"tied": config.tied})
    facts: dict[str, Any] = {"imported_from": read[0].layout}
    facts["files"] = [one_safe_line(found[index].name) for index in order][:16]
    facts["assumed"] = dict(read[0].described.assumed)
    if ids is not None:
        drawn = example_tokens(kept, source, objective)
        part = tokens.pick(config, kept, states, ids, bos, drawn)
        states = part.states
        facts |= {"tokens": ids, "logit_difference": part.difference.largest}
        if objective.kind == "cross_entropy":
            facts["probability_left_out"] = part.left_out
    run = Run(
        model=kept,
        source=source,
        objective=objective,
        steps=torch.tensor([steps[index] for index in order]),
        states=states,
        provenance={**provenance("cpu"), **facts},
    )
    return Imported(run, _notes(facts, len(found)))


def _notes(facts: dict[str, Any], n_files: int) -> tuple[str, ...]:
    """What a person should know of an import."""
    notes = [f"{facts['imported_from']}, {n_files} checkpoint{'s' if n_files > 1 else ''}"]
    if facts["assumed"]:
        values = ", ".join(f"{name} = {value}" for name, value in facts["assumed"].items())
        notes.append(f"not said by the file, taken: {values}")
    if "tokens" in facts:
        notes.append(f"states are the model's tokens {', '.join(map(str, facts['tokens'][:16]))}")
        notes.append(f"largest logit difference from the whole model: {facts['logit_difference']:.3g}")
    else:
        notes.append("no live original to compare with: names, shapes and finite values were checked")
    if facts.get("probability_left_out"):
        notes.append(f"up to {facts['probability_left_out']:.3g} of the probability was on other tokens")
    return tuple(notes)


def _as_error(path: Path, given: Mapping[str, Any]) -> Checkpoint:
    """Read one checkpoint; what is wrong with its config is wrong with the file."""
    try:
        return _folder(path, given) if path.is_dir() else _file(path, given)
    except RunFileError:
        raise
    except ValueError as error:
        raise RunFileError(str(error)) from error


def _folder(path: Path, given: Mapping[str, Any]) -> Checkpoint:
    """A folder that transformers' `save_pretrained` wrote."""
    config = path / "config.json"
    if safe_file.check_regular(config) > MAX_JSON:
        raise RunFileError(f"config.json has more than {MAX_JSON} bytes")
    try:
        data = json.loads(config.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"config.json is no JSON: {one_safe_line(str(error), 100)}") from error
    fields = gpt2.fields_of_gpt2(file.settings(data, "config.json"))
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).exists():
            content = file.read(path / name)
            plans = _state_dict(content.content)
            return _checkpoint(
                "GPT-2 of transformers", content, plans, gpt2.describe(_shapes(plans), fields, given)
            )
    raise RunFileError("holds neither model.safetensors nor pytorch_model.bin")


def _file(path: Path, given: Mapping[str, Any]) -> Checkpoint:
    content = file.read(path)
    plans = _state_dict(content.content)
    shapes = _shapes(plans)
    if hooked_transformer.recognises(shapes):
        cfg = _settings(content.content, ("cfg", "config"))
        return _checkpoint(
            "HookedTransformer", content, plans, hooked_transformer.describe(shapes, cfg, given)
        )
    if bridge.recognises(shapes):
        cfg = _settings(content.content, ("cfg", "config"))
        return _checkpoint("TransformerBridge", content, plans, bridge.describe(shapes, cfg, given))
    if gpt2.recognises(shapes):
        args = _settings(content.content, ("model_args",))
        loose = None if args else _settings(content.content, ("config",))
        fields = gpt2.fields_of_nanogpt(args or loose or {}, strict=args is not None)
        return _checkpoint("nanoGPT", content, plans, gpt2.describe(shapes, fields, given))
    names = ", ".join(one_safe_line(name) for name in list(shapes)[:3])
    raise RunFileError(
        f"its weights are called {names}, …: expected names of HookedTransformer, a bridge or GPT-2"
    )


def _checkpoint(
    layout: str, content: file.ForeignFile, plans: Mapping[str, TensorPlan], described: Described
) -> Checkpoint:
    def size(name: str) -> int:
        return math.prod(plans[name].shape)

    def states() -> dict[str, Tensor]:
        return described.states(content.tensors({name: plans[name] for name in described.wanted}))

    said = [content.content[name] for name in STEPS if type(content.content.get(name)) is int]
    step = said[0] if said and 0 <= said[0] < MAX_STEP else None
    return Checkpoint(layout, described, step, 4 * sum(map(size, described.wanted)), states)


def _state_dict(content: dict[Any, Any]) -> dict[str, TensorPlan]:
    """The one state dict in a file, without what wrappers put before its names."""
    if content and all(isinstance(value, TensorPlan) for value in content.values()):
        found = {"": content}
    else:
        dicts = {id(value): (key, value) for key, value in content.items() if type(value) is dict}
        found = {
            key: value
            for key, value in dicts.values()
            if value and all(isinstance(plan, TensorPlan) for plan in value.values())
        }
    if len(found) != 1:
        names = ", ".join(readable(str(name)) for name in found)
        raise RunFileError(f"it holds {len(found)} state dicts{names and ': '}{names}, expected one")
    (plans,) = found.values()
    if not all(type(name) is str for name in plans):
        raise RunFileError("its state dict has keys that are no names")
    for prefix in PREFIXES * 2:
        if all(name.startswith(prefix) for name in plans):
            plans = {name.removeprefix(prefix): value for name, value in plans.items()}
    return plans


def _settings(content: dict[Any, Any], names: Sequence[str]) -> dict[str, Any] | None:
    for name in names:
        if content.get(name) is not None and not isinstance(content[name], TensorPlan):
            return file.settings(content[name], name)
    return None


def _shapes(plans: Mapping[str, TensorPlan]) -> dict[str, tuple[int, ...]]:
    return {name: plan.shape for name, plan in plans.items()}


def _alike(one: Checkpoint, first: Checkpoint) -> None:
    """Refuse checkpoints of different models."""
    if one.layout != first.layout:
        raise RunFileError(f"its layout is {one.layout}, but the first checkpoint's is {first.layout}")
    ours, theirs = one.described.config.model_dump(), first.described.config.model_dump()
    for name, value in ours.items():
        if value != theirs[name]:
            raise RunFileError(f"{name} is {value}, but it is {theirs[name]} in the first checkpoint")


def _vocabulary(
    config: DecoderConfig,
    source: Source,
    objective: Objective,
    ids: list[int] | None,
    pad: int | None,
    bos: int | None,
) -> list[int] | None:
    """The token of each state; None where the vocabulary is the source's states already."""
    n_states = source.n_states
    n_tokens = n_states + objective.query
    special = {name: token for name, token in (("--pad", pad), ("--bos", bos)) if token is not None}
    for name, token in special.items():
        if not 0 <= token < config.d_vocab:
            raise RunFileError(f"{name} is {token}, expected a token below d_vocab {config.d_vocab}")
        if ids is not None and token in ids:
            raise RunFileError(f"{name} is {token}, but --tokens gives that token to a state")
    if ids is None and special:
        ids = [token for token in range(config.d_vocab) if token not in special.values()]
        if len(ids) != n_tokens:
            raise RunFileError(
                f"without {' and '.join(special)} {len(ids)} tokens remain for {n_tokens} of the source: "
                'map them with --tokens "STATE=TOKEN,…"'
            )
    if ids is not None:
        tokens.check_tokens(config, ids, source)
    elif (config.d_vocab, config.d_vocab_out) != (n_tokens, n_states):
        raise RunFileError(
            f"the model reads {config.d_vocab} tokens and predicts {config.d_vocab_out}, but the source has "
            f"{n_states} states{' and a query token' if objective.query else ''}: map them with --tokens "
            '"STATE=TOKEN,…", or name --bos and --pad'
        )
    return ids
