"""Fields of a model's config: what is known, given or assumed, and what no `HookedDecoder` has."""

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import NAME_CHARACTERS, listed, printable, shown

# What stands before a field of a config of transformers in a file; of a live model it is `config.`.
FILE = "config.json: "
# What no shape tells: HookedTransformer's defaults, named to the user wherever they are assumed.
ASSUMED: dict[str, Any] = {"eps": 1e-5, "use_attn_scale": True, "window": None}
PLACES: dict[str, Any] = {
    "norm_first": True,
    "final_norm": True,
}  # of norms in TransformerLens and transformers
EXAMPLES = {
    "n_heads": "2",
    "act_fn": "gelu|gelu_new|relu|silu",
    "normalization_type": "LN|LNPre|RMS|RMSPre|none",
    "positional_embedding_type": "standard|shortformer|rotary|alibi|relative|relative_bias|none",
    "n_ctx": "32",
    "rotary_adjacent_pairs": "false",
    "rotary_base": "10000",
    "window": "3 (a query sees itself and 3 tokens before it)",
    "attn_scale": "4.0 (what scores are divided by)",
    "parallel_attn_mlp": "true",
    "norm_first": "false",
    "final_norm": "false",
    "use_qk_norm": "true",
    "n_key_value_heads": "1",
}
# Fields of transformers' configs that do not change what a loaded model computes, or that shapes tell too.
HARMLESS = {
    "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label",
    "initializer_range", "label2id", "model_type", "pad_token_id", "return_dict", "tie_word_embeddings",
    "torch_dtype", "transformers_version", "use_cache", "_name_or_path",
}  # fmt: skip


class DisagreementError(RunFileError):
    """A field of the config that has two values.

    Attributes:
        name: The field.
        found: Its value.
        where: Where that is found.
        given: The other value.
    """

    def __init__(self, name: str, found: Any, where: str, given: Any) -> None:
        super().__init__(f"{name} is {shown(found)} {where}, but {shown(given)} was given")
        self.name, self.found, self.where, self.given = name, found, where, given


def assumptions(config: DecoderConfig, known: Container[str]) -> dict[str, Any]:
    """Returns what no weight of such a model shows and nobody says, with what is taken.

    Soft caps are not fields of a config: a HookedDecoder has none.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> assumptions(config, ("eps", "window", "attn_scale", "norm_first"))
        {'attn_scores_soft_cap': None, 'output_logits_soft_cap': None, 'use_qk_norm': False}
    """
    if config.mixer != "attention":
        return {}
    rotary, mlp = config.positional_embedding_type == "rotary", not config.attn_only
    norm = config.normalization_type is not None
    settings: dict[str, Any] = {"eps": config.eps} if norm else {}
    if "attn_scale" not in known:
        settings["use_attn_scale"] = config.use_attn_scale
        if config.use_attn_scale and "use_attn_scale" not in known:
            settings["attn_scale"] = config.attn_scale
    settings |= {"window": config.window, "attn_scores_soft_cap": None, "output_logits_soft_cap": None}
    settings |= {} if config.use_qk_norm else {"use_qk_norm": False}  # one without gains has no weight
    settings |= {"parallel_attn_mlp": config.parallel_attn_mlp} if mlp else {}
    settings |= {"rotary_base": config.rotary_base, "rotary_dim": config.rotary_dim} if rotary else {}
    settings |= {"norm_first": config.norm_first} if norm else {}
    if norm and not (config.final_norm and config.normalization_type in ("LN", "RMS")):
        settings["final_norm"] = config.final_norm  # otherwise its weights show it
    return {name: value for name, value in settings.items() if name not in known}


def agree(known: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns both mappings as one; where both name a field they must agree.

    Args:
        known: Fields that are found.
        given: Others; they win over a None.
        where: Where those are found, for the message.

    Raises:
        DisagreementError: Naming the field and both values.

    Example:
        >>> agree({"n_heads": 2}, {"n_heads": 4}, "by the shapes")
        Traceback (most recent call last):
        mechmarkov.importing.config_fields.DisagreementError: n_heads is 2 by the shapes, but 4 was given
    """
    for name, value in given.items():
        if known.get(name) is not None and known[name] != value:
            raise DisagreementError(name, known[name], where, value)
    return {**known, **given}


def needed_parts(fields: Mapping[str, Any]) -> list[str]:
    """Returns the fields that no shape tells and that an MLP and rotary positions need, if there are any.

    Example:
        >>> needed_parts({"attn_only": False, "positional_embedding_type": "rotary"})
        ['act_fn', 'rotary_adjacent_pairs']
    """
    mlp = [] if fields.get("attn_only") else ["act_fn"]
    rotary = fields.get("positional_embedding_type") == "rotary"
    return mlp + ["rotary_adjacent_pairs"] * rotary


def require(fields: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    """Refuse to guess a field of the config.

    Args:
        fields: Those that are known.
        names: Those that are needed.
        why: The beginning of the message, what does not tell them.

    Raises:
        RunFileError: Naming every field that is not given.

    Example:
        >>> require({}, ["n_heads"], "a state dict")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: a state dict does not determine n_heads: give --set ...
    """
    missing = [name for name in names if name not in fields]
    if missing:
        given = " ".join(f"--set {name}={EXAMPLES.get(name, 'VALUE')}" for name in missing)
        raise RunFileError(f"{why} does not determine {listed(missing)}: give {given}, or `given=` in Python")


def cannot_express(name: str, value: Any, where: str = FILE) -> RunFileError:
    """Returns the error about a field of a config that no `HookedDecoder` has.

    Example:
        >>> str(cannot_express("rope_scaling", 2.0))
        'config.json: rope_scaling is 2.0: a HookedDecoder cannot express it'
    """
    return RunFileError(f"{where}{name} is {shown(value)}: a HookedDecoder cannot express it")


def check_fields(
    config: Mapping[str, Any], needed: Collection[str], others: Container[str], where: str = FILE
) -> None:
    """Compare the names in a config of transformers with those that are read and those that may be there.

    Args:
        config: Its fields; one that is None or False is off.
        needed: Names that must be there.
        others: Names that may be there.
        where: What stands before a field's name in a message.

    Raises:
        RunFileError: Naming a field that cannot be expressed, or else one that is missing.

    Example:
        >>> check_fields({"n_layer": 2, "alibi": True}, ["n_layer"], set())
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: config.json: alibi is True: a HookedDecoder cannot express it
    """
    for name, value in config.items():
        known = name in needed or name in others or name in HARMLESS
        if not known and value not in (None, False):
            raise cannot_express(printable(name, NAME_CHARACTERS), value, where)
    for name in needed:
        if name not in config:
            raise RunFileError(f"{where}{name} is missing")


def one_of(value: Any, known: Collection[str], where: str) -> str:
    """Returns the value of a field that takes a few texts only.

    Raises:
        RunFileError: Naming the field (`where`) and what it takes.

    Example:
        >>> one_of("relu", ("relu", "gelu"), "act_fn")
        'relu'
    """
    if type(value) is not str or value not in known:
        raise RunFileError(f"{where} is {shown(value)}, expected {', '.join(known)}")
    return value


def head_size(n_heads: Any, width: int, called: str) -> int:
    """Returns the width of each head, where `n_heads` share a width that the file calls `called`.

    Raises:
        RunFileError: If that many heads cannot share it.

    Example:
        >>> head_size(2, 8, "d_model 8")
        4
    """
    if type(n_heads) is not int or n_heads < 1 or width % n_heads:
        raise RunFileError(f"n_heads is {shown(n_heads)}, expected a divisor of {called}")
    return width // n_heads


def make_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """Make a `DecoderConfig` from fields of the file and of the caller.

    Raises:
        RunFileError: Naming the field that is wrong.

    Example:
        >>> make_config({"n_layers": 1, "d_model": 4, "n_ctx": 6, "d_head": 2, "d_vocab": 3}).n_heads
        2
    """
    try:
        return DecoderConfig.model_validate(dict(fields))
    except ValidationError as error:
        raise RunFileError(one_line(error, DecoderConfig, name="model")) from error
