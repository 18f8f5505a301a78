"""Reading one checkpoint of another program: a file, or a folder that transformers wrote."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mechmarkov.importing import gpt2, hooked_transformer, hugging_face, mamba, transformer_bridge
from mechmarkov.importing.layout import ImportPlan
from mechmarkov.importing.names.plan import LAYOUT, plan_import
from mechmarkov.importing.names.table import Names
from mechmarkov.importing.names.weights import nothing_fits
from mechmarkov.safe import folder as shared_folder
from mechmarkov.safe import foreign_file
from mechmarkov.safe.file import check_regular
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import RUN_FORMAT, RunFileError, readable
from mechmarkov.utils.text import printable, reason

LENS_LAYOUTS = {"HookedTransformer": hooked_transformer, "TransformerBridge": transformer_bridge}
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as `save_pretrained` calls them
STEP_KEYS = ("iter_num", "step", "global_step")
PREFIXES = ("_orig_mod.", "module.")  # of torch.compile and of data-parallel training
MAX_JSON_BYTES = 1 << 20
MAX_STEP = 1 << 62


@dataclass(frozen=True)
class Checkpoint:
    """One saved model.

    Attributes:
        layout: Whose names its weights have.
        plan: How it becomes a HookedDecoder.
        step: Its training step, None where it holds none.
        bytes: What its weights take in float32.
        states: Reads the weights.
    """

    layout: str
    plan: ImportPlan
    step: int | None
    bytes: int
    states: Callable[[], dict[str, Tensor]]


def read_checkpoint(path: Path, given: Mapping[str, Any], names: Names | None = None) -> Checkpoint:
    """Read the structure of a checkpoint, of whose config some fields are given; `states` reads its weights.

    `names` are those of a model with names of its own; its config is then `given` and what shapes tell.

    Raises:
        RunFileError: For a file that cannot be trusted, and for a model that a HookedDecoder cannot express.
    """
    try:
        if names is not None:
            return _named(path, given, names)
        return _folder(path, given) if path.is_dir() else _file(path, given)
    except RunFileError:
        raise
    except ValueError as error:
        raise RunFileError(str(error)) from error
    except (TypeError, ArithmeticError) as error:  # a value that no check above has thought of
        raise RunFileError(f"has a value that makes no sense: {reason(error)}") from error


def _named(path: Path, given: Mapping[str, Any], names: Names) -> Checkpoint:
    """A model with names of its own, or a folder with its weights."""
    inside = [path / name for name in WEIGHTS if (path / name).exists()]
    content = foreign_file.read(inside[0] if inside else path)
    plans = _state_dict(content.content)
    return _checkpoint(LAYOUT, content, plans, plan_import(_shapes(plans), names, given))


def _folder(path: Path, given: Mapping[str, Any]) -> Checkpoint:
    """A folder that transformers' `save_pretrained` wrote."""
    config = path / "config.json"
    if check_regular(config) > MAX_JSON_BYTES:
        raise RunFileError(f"config.json has more than {MAX_JSON_BYTES} bytes")
    try:
        data = json.loads(config.read_bytes(), object_hook=_infinity)
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"config.json is not JSON: {printable(str(error), 100)}") from error
    settings = foreign_file.plain_config(data, "config.json")
    kind = hugging_face.kind_of(settings)
    called = "GPT-2" if kind == "gpt2" else kind
    for name in WEIGHTS:
        if (path / name).exists():
            content = foreign_file.read(path / name)
            plans = _state_dict(content.content)
            plan = hugging_face.plan_import(_shapes(plans), settings, given)
            return _checkpoint(f"{called} of transformers", content, plans, plan)
    if any((path / f"{name}.index.json").exists() for name in WEIGHTS):
        raise RunFileError(
            'holds its weights in several files, expected one: save_pretrained(…, max_shard_size="5GB")'
        )
    raise RunFileError(f"holds neither {' nor '.join(WEIGHTS)}")


def _infinity(value: dict[str, Any]) -> Any:
    """JSON has no infinity: transformers writes a dict for it."""
    return math.inf if value == {"__float__": "Infinity"} else value


def _file(path: Path, given: Mapping[str, Any]) -> Checkpoint:
    if path.name in (shared_folder.RUN, shared_folder.WEIGHTS) and path.with_name(shared_folder.RUN).exists():
        raise RunFileError(
            "is in a folder that `save_folder` wrote, a run already: probe that folder as it is"
        )
    if path.name == "config.json":
        raise RunFileError("is a config, expected the weights with it: give the folder of both")
    content = foreign_file.read(path)
    if content.content.get("format") == RUN_FORMAT:
        raise RunFileError("is a run already: probe it as it is")
    plans = _state_dict(content.content)
    shapes = _shapes(plans)
    for layout, importer in LENS_LAYOUTS.items():
        if importer.recognises(shapes):
            cfg = _settings(content.content, ("cfg", "config"))
            return _checkpoint(layout, content, plans, importer.plan_import(shapes, cfg, given))
    if gpt2.recognises(shapes):
        if path.name in WEIGHTS and path.with_name("config.json").exists():
            raise RunFileError("has its config.json beside it: give the folder of both")
        args = _settings(content.content, ("model_args",))
        loose = None if args else _settings(content.content, ("config",))
        fields = gpt2.fields_of_nanogpt(args or loose or {}, strict=args is not None)
        return _checkpoint("nanoGPT", content, plans, gpt2.plan_import(shapes, fields, given))
    if hugging_face.recognises(shapes) or mamba.recognises(shapes):
        raise RunFileError("it has transformers' names, but no config: give the folder with its config.json")
    raise nothing_fits(shapes, "its weights are called")


def _checkpoint(
    layout: str, content: foreign_file.ForeignFile, plans: Mapping[str, TensorPlan], plan: ImportPlan
) -> Checkpoint:
    def states() -> dict[str, Tensor]:
        return plan.states(content.tensors({name: plans[name] for name in plan.wanted}))

    steps = [content.content[name] for name in STEP_KEYS if type(content.content.get(name)) is int]
    step = steps[0] if steps and 0 <= steps[0] < MAX_STEP else None
    n_bytes = 4 * sum(math.prod(plans[name].shape) for name in plan.wanted)
    return Checkpoint(layout, plan, step, n_bytes, states)


def _state_dict(content: dict[Any, Any]) -> dict[str, TensorPlan]:
    """The one state dict in a file, without what wrappers put before its names."""

    def holds_weights(value: Any) -> bool:
        return type(value) is dict and {type(plan) for plan in value.values()} == {TensorPlan}

    found = {"": content}
    if not holds_weights(content):
        found = dict({id(x): (key, x) for key, x in content.items() if holds_weights(x)}.values())
    if len(found) != 1:
        names = ", ".join(readable(str(name)) for name in found)
        raise RunFileError(f"it holds {len(found)} state dicts{names and ': '}{names}, expected one")
    (plans,) = found.values()
    if not all(type(name) is str for name in plans):
        raise RunFileError("its state dict has keys that are not names")
    for prefix in PREFIXES * 2:
        if all(name.startswith(prefix) for name in plans):
            plans = {name.removeprefix(prefix): value for name, value in plans.items()}
    return plans


def _settings(content: dict[Any, Any], names: Sequence[str]) -> dict[str, Any] | None:
    for name in names:
        if content.get(name) is not None and not isinstance(content[name], TensorPlan):
            return foreign_file.plain_config(content[name], name)
    return None


def _shapes(plans: Mapping[str, TensorPlan]) -> dict[str, tuple[int, ...]]:
    return {name: plan.shape for name, plan in plans.items()}
