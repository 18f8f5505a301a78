"""Which layout weights have, and what their file says of the model, in the words of that layout."""

from collections.abc import Mapping, Sequence
from typing import Any

from mechmarkov.importing import (
    config_fields,
    gpt2,
    hooked_transformer,
    hugging_face,
    layout,
    mamba,
    relative_transformer,
    transformer_bridge,
)
from mechmarkov.importing.files import configs, folders
from mechmarkov.importing.files.state_dicts import Layouts
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.importing.names.plan import plan_import
from mechmarkov.importing.names.table import Names, table_of
from mechmarkov.importing.names.weights import nothing_fits
from mechmarkov.models.config import STATE_SPACES
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, first_of, printable, shown

OF_LENS = {"HookedTransformer": hooked_transformer, "TransformerBridge": transformer_bridge}
OF_GPT = {"nanoGPT": gpt2, "Relative_Transformer": relative_transformer}
MAX_NAMES = 12  # in a note
HEADS = [theirs for theirs, ours in gpt2.NANOGPT.items() if ours == "n_heads"]
# Fields of a HookedTransformerConfig that mean the same in anybody's settings.
PLAIN_FIELDS = {
    "n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "d_vocab_out", "n_ctx", "act_fn", "eps",
    "normalization_type", "positional_embedding_type", "attn_only", "n_key_value_heads", *configs.PLACES,
}  # fmt: skip


MODULES = (*OF_LENS.values(), *OF_GPT.values(), hugging_face, mamba)
MARKS = tuple(group for module in MODULES for group in module.MARKS)
LAYOUTS = Layouts(
    tuple(sorted((first for first, *_ in MARKS), key=len, reverse=True)),
    lambda names: layout.recognises(MARKS, names),
    heads=("lm_head.weight", "lm_head.bias"),
)


def of_table(names: Names) -> Layouts:
    """Returns how to recognise a model with names of its own: by what a table calls the embedding.

    Args:
        names: The table of names, as of `Run.from_model`.

    Example:
        >>> of_table({"tok": "embed.W_E"}).before("net.tok")
        'net.'
    """
    table = table_of(names)

    def is_embedding(name: str) -> bool:
        return any("embed.W_E" in [match.expand(x) for x in line.to] for line, match in table.of(name))

    return Layouts((), lambda _: True, is_embedding)


def planned(
    shapes: Shapes, around: Sequence[Mapping[Any, Any]], given: Mapping[str, Any], called: Called
) -> tuple[str, ImportPlan, list[str]]:
    """Recognise the layout of weights, and work out how they become those of a `HookedDecoder`.

    A context that is shorter than the table of positions is taken: what is computed on it stays.

    Args:
        shapes: The shape of every weight, by its name.
        around: The dicts that the weights lie in, from inside out, with settings among their entries.
        given: Fields of a `DecoderConfig` that the caller says.
        called: What the file calls a weight, for messages.

    Returns:
        The name of the layout, the plan, and lines on settings that are not used.

    Raises:
        ValueError: As of the layout, and for settings that no weight shows and nobody explains.
    """
    try:
        return _planned(shapes, around, given, called)
    except config_fields.DisagreementError as error:
        n_ctx = error.given
        shorter = error.name == "n_ctx" and type(n_ctx) is type(error.found) is int
        if not shorter or not 1 <= n_ctx < error.found:
            raise
    rest = {name: value for name, value in given.items() if name != "n_ctx"}
    name, plan, notes = _planned(shapes, around, rest, called)
    return name, layout.shortened(plan, n_ctx), notes


def _planned(
    shapes: Shapes, around: Sequence[Mapping[Any, Any]], given: Mapping[str, Any], called: Called
) -> tuple[str, ImportPlan, list[str]]:
    saved_configs = configs.configs_of(around)
    of_transformers = saved_configs.get(folders.CONFIG, {})
    if "model_type" in of_transformers:
        kind = hugging_face.kind_of(of_transformers)
        plan = hugging_face.plan_import(shapes, of_transformers, given, called=called)
        return f"{'GPT-2' if kind == 'gpt2' else kind} of transformers", plan, []
    for name, lens in OF_LENS.items():
        if layout.recognises(lens.MARKS, shapes):
            return name, *_of_lens(lens, shapes, saved_configs, given, called)
    for name, gpt in OF_GPT.items():
        if layout.recognises(gpt.MARKS, shapes):
            return name, *_of_gpt(gpt, shapes, saved_configs, given, called)
    raise RunFileError(
        "it has transformers' names, but no config: model.save_pretrained(folder) writes both, or "
        "model.config.save_pretrained(folder) its config.json; then give the folder"
    )


def _of_lens(
    module: Any, shapes: Shapes, saved_configs: Mapping[str, Any], given: Mapping[str, Any], called: Called
) -> tuple[ImportPlan, list[str]]:
    """A layout of TransformerLens: with a HookedTransformerConfig, or with somebody's own settings."""
    whole = [
        name for name, cfg in saved_configs.items() if name == "cfg" or cfg.keys() >= configs.LENS_FIELDS
    ]
    if whole:
        return module.plan_import(shapes, saved_configs[whole[0]], given, called=called), []
    fields: dict[str, Any] = {}
    for where, config in saved_configs.items():
        configs.check_settings(config, where, given)
        fields = {**{name: x for name, x in config.items() if name in PLAIN_FIELDS}, **fields}
    plan = module.plan_import(shapes, None, config_fields.agree(fields, given, "in the file"), called=called)
    return plan, _unused(saved_configs, PLAIN_FIELDS, plan, given)


def _of_gpt(
    module: Any, shapes: Shapes, saved_configs: Mapping[str, Any], given: Mapping[str, Any], called: Called
) -> tuple[ImportPlan, list[str]]:
    """A layout with nanoGPT's settings, or with somebody's own next to them."""
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for where, config in saved_configs.items():
        configs.check_settings(config, where, given)
        from_config = gpt2.fields_of_nanogpt(config, strict=where == "model_args")
        if given.get("act_fn") is not None:  # what a name such as "gelu" means the caller knows better
            from_config.pop("act_fn", None)
        theirs = {ours: name for name, ours in gpt2.NANOGPT.items() if name in config}
        names = {**{field: f"{where}: {theirs.get(field, field)}" for field in from_config}, **names}
        fields = {**from_config, **fields}
    try:
        plan = module.plan_import(shapes, fields, given, called=called)
    except config_fields.DisagreementError as error:
        if error.name not in names or error.where != layout.BY_SHAPES:
            raise
        raise RunFileError(
            f"{names[error.name]} is {shown(error.given)}, but it is {shown(error.found)} by the shapes"
        ) from error
    notes = _unused(saved_configs, {*gpt2.NANOGPT, *gpt2.NANOGPT_HARMLESS}, plan, given)
    if "act_fn" in fields:
        notes.insert(0, f"act_fn is {fields['act_fn']}, as a setting in the file says")
    return plan, notes


def of_names(
    shapes: Shapes, around: Sequence[Mapping[Any, Any]], names: Names, given: Mapping[str, Any]
) -> tuple[ImportPlan, list[str]]:
    """Work out a model whose names a table tells; what the file's settings say of it counts too.

    Args:
        shapes: The shapes of its weights.
        around: The dicts that they lie in, from inside out, with settings among their entries.
        names: The table.
        given: Fields of a `DecoderConfig` that the caller says.

    Returns:
        The plan, and lines on settings that are not used.

    Raises:
        ValueError: As of the plan, for settings that no weight shows and nobody explains, and for those that
            contradict `given`.
    """
    fields: dict[str, Any] = {}
    saved_configs = configs.configs_of(around)
    for where, config in saved_configs.items():
        configs.check_settings(config, where, given)
        heads = [config[name] for name in HEADS if type(config.get(name)) is int]
        fields |= {"n_heads": heads[0]} if heads and "n_heads" not in fields else {}
        fields = {**configs.numbers(config), **configs.places(config), **configs.activation(config), **fields}
    idle = ["act_fn"] * (given.get("act_fn") is not None)  # what a name such as "gelu" means the caller knows
    idle += ["n_heads"] * (given.get("mixer") in STATE_SPACES)
    idle += ["rotary_base"] * (given.get("positional_embedding_type") != "rotary")
    fields = {name: value for name, value in fields.items() if name not in idle}
    plan = plan_import(shapes, names, config_fields.agree(fields, given, "in the file"))
    return plan, _unused(saved_configs, {*gpt2.NANOGPT, *gpt2.NANOGPT_HARMLESS}, plan, given)


def _unused(
    saved_configs: Mapping[str, Any], read: set[str], plan: ImportPlan, given: Mapping[str, Any]
) -> list[str]:
    """Returns what is said of settings that nothing reads."""
    notes = []
    if given.get("act_fn") is not None and plan.config.attn_only:
        notes.append("act_fn is given and not used: the model has no MLP")
    if unread := configs.unread(saved_configs, read):
        notes.append(f"settings in the file that are not read: {first_of(unread, MAX_NAMES)}")
    return notes


def of_no_layout(content: Any, outside: Mapping[str, Any], is_table: bool) -> RunFileError:
    """Returns the error about a file in which no weights have names of a known layout or of a table.

    Args:
        content: What the file holds.
        outside: What lies next to it: a config, if there is one.
        is_table: Whether the caller gave a table of names.
    """
    if is_table and (names := _names(content)):
        return nothing_fits(names, "no line of the table of names fits an embedding: the weights are called")
    model_type = outside.get(folders.CONFIG, {}).get("model_type")
    if model_type is not None and model_type not in hugging_face.KINDS:
        return hugging_face.unknown(model_type)
    if type(content) is dict and {"state", "param_groups"} <= content.keys():
        return RunFileError("is the state of an optimiser, expected the weights of a model")
    names = _names(content)
    if not names:
        return RunFileError("it holds no weights by name: torch.save(model.state_dict(), 'new.pt')")
    near = [name for name in names if name.endswith("wte.weight")]
    why = ""
    if near:
        block = printable(near[0].removesuffix("wte.weight") + "h.0.attn.c_attn.weight", NAME_CHARACTERS)
        why = f" ({printable(near[0], NAME_CHARACTERS)} is one of GPT-2's, but there is no {block})"
    return RunFileError(f"{nothing_fits(names, 'its weights are called')}{why}")


def _names(content: Any) -> list[str]:
    """The names of the most tensors that lie in one dict."""
    most: list[str] = []
    seen, left = set[int](), [content]
    while left:
        value = left.pop()
        if type(value) not in (dict, list, tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        left += value.values() if type(value) is dict else value
        names = [name for name, x in value.items() if type(x) is TensorPlan] if type(value) is dict else []
        most = max(most, [name for name in names if type(name) is str], key=len)
    return most
