"""Models with more tokens than the source has states: which token is which state, and what is left out.

A run's vocabulary is the source's states. Their rows of the embedding and of the unembedding are kept, in the
states' order, so the logits of the states are the original's. Other tokens can then neither be read nor
predicted. Their probability goes to the states, in proportion, and how much that is is measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechmarkov.importing.live.difference import MAX_LOGIT_DIFFERENCE, Difference, difference, disagree
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Source
from mechmarkov.utils.text import NAME_CHARACTERS, printable, shown


@dataclass(frozen=True)
class Options:
    """The names that a user has for the options of a vocabulary: on the command line, or in Python."""

    tokens: str
    map: str
    pad: str
    bos: str


MAX_EXAMPLE = 12  # states in an example of a map
ON_THE_COMMAND_LINE = Options("--tokens", '--tokens "STATE=TOKEN,…"', "--pad", "--bos")
IN_PYTHON = Options("tokens", "tokens={state: token, …}", "pad", "bos")


def source_and_ids(
    tokens: str | Mapping[str | int, int], source: Source, objective: Objective
) -> tuple[Source, list[int]]:
    """Read a map of states to the model's tokens.

    Args:
        tokens: A text such as "a=0,b=1,query=2", of the command line: a state's label, or its number, and the
            model's token. Or a mapping of labels, numbers and "query" to tokens.
        source: The source.
        objective: The objective.

    Returns:
        The source, without states that never occur and are left out of the map, and the token of each state,
        then of the query where the objective has one.

    Raises:
        RunFileError: For a state that is unknown, missing or named twice, and for a token that is not a
            number or belongs to two states.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> source_and_ids("0=3,1=1", Binary(p=0.5, q=0.8), Objective())[1]
        [3, 1]
        >>> source_and_ids({0: 3, "1": 1}, Binary(p=0.5, q=0.8), Objective())[1]
        [3, 1]
    """
    pairs: list[tuple[str, int]] = []
    who = "--tokens" if isinstance(tokens, str) else "tokens"
    number = _states(source, objective)
    if isinstance(tokens, str):
        for part in tokens.split(","):
            name, equals, token = (piece.strip() for piece in part.partition("="))
            if not equals or not (token.isascii() and token.isdecimal()):
                such = f'such as "{next(iter(number))}=0"'
                raise RunFileError(f"--tokens holds {shown(part)}, expected STATE=TOKEN, {such}")
            pairs.append((name, int(token[:9])))
    elif isinstance(tokens, Mapping):
        numbered: dict[str | int, str] = dict(enumerate(source.labels))  # integers are not labels
        for state, each in tokens.items():
            if type(each) is not int or each < 0:
                raise RunFileError(f"tokens[{state!r}] is {each!r}, expected a token of the model")
            pairs.append((numbered.get(state, str(state)), each))
    else:
        raise RunFileError(f"tokens is {shown(tokens)}, expected each state's token, such as {{0: 3, 1: 7}}")
    label = {name: source.labels[i] for name, i in number.items() if i < source.n_states}
    smaller = source.named_only({label[name] for name, _ in pairs if name in label})
    if smaller is not source:
        pairs = [(label.get(name, name), token) for name, token in pairs]
    return smaller, _ids(pairs, smaller, objective, who)


def _states(source: Source, objective: Objective) -> dict[str, int]:
    names = {str(state): state for state in range(source.n_states)}
    names |= {label: state for state, label in enumerate(source.labels)}
    return names | ({"query": source.n_states} if objective.query else {})


def _ids(pairs: list[tuple[str, int]], source: Source, objective: Objective, who: str) -> list[int]:
    names, such_as = _states(source, objective), _example(source, objective, who)
    tokens: dict[int, int] = {}
    for name, token in pairs:
        if name not in names:
            raise RunFileError(
                f"{who} holds {shown(f'{name}={token}')}, but the source has no such state: "
                f"it has {', '.join([*names][:8])}{such_as}"
            )
        if names[name] in tokens:
            raise RunFileError(f"{who} names the state {printable(name, NAME_CHARACTERS)} twice{such_as}")
        tokens[names[name]] = token
    for state, label in enumerate([*source.labels, *["query"] * objective.query]):
        if state not in tokens:
            raise RunFileError(f"{who} leaves out the state {printable(label, NAME_CHARACTERS)}{such_as}")
    if len(set(tokens.values())) < len(tokens):
        raise RunFileError(f"{who} gives one token to two states{such_as}")
    return [tokens[state] for state in range(len(tokens))]


def _example(source: Source, objective: Objective, who: str) -> str:
    """Returns a whole map, as an example: each state with the token of its own number."""
    labels = [printable(label, NAME_CHARACTERS) for label in source.labels] + ["query"] * objective.query
    pairs = [*enumerate(labels)][:MAX_EXAMPLE]
    more = ["…"] * (len(labels) > MAX_EXAMPLE)
    if who == ON_THE_COMMAND_LINE.tokens:
        return f': such as --tokens "{",".join([*(f"{label}={token}" for token, label in pairs), *more])}"'
    return f": such as tokens={{{', '.join([*(f'{label!r}: {token}' for token, label in pairs), *more])}}}"


def check_tokens(config: DecoderConfig, tokens: list[int], source: Source, who: str = "--tokens") -> None:
    """Refuse a map to tokens that the model does not have.

    Args:
        config: The shape of the model.
        tokens: The token of each state, then of the query.
        source: The source; only its states must be predicted.
        who: What the user calls the map.

    Raises:
        RunFileError: Naming the token.
    """
    for state, token in enumerate(tokens):
        if token >= config.d_vocab or (state < source.n_states and token >= config.d_vocab_out):
            raise RunFileError(
                f"{who} names the token {token}, but the model has {config.d_vocab} "
                f"and predicts {config.d_vocab_out}"
            )


def tokens_of_states(
    config: DecoderConfig,
    source: Source,
    objective: Objective,
    ids: list[int] | None,
    pad: int | None,
    bos: int | None,
    names: Options = ON_THE_COMMAND_LINE,
) -> list[int] | None:
    """Work out the model's token of each state, then of the query or of the sequence's beginning.

    Args:
        config: The shape of the model.
        source: The source.
        objective: The objective.
        ids: The user's map, from `source_and_ids`, or None for all tokens but `pad` and `bos`.
        pad: The model's padding token, or None.
        bos: The token that sequences begin with, or None.
        names: What messages call these options.

    Returns:
        The tokens; None where token i is state i already.

    Raises:
        RunFileError: For tokens that the model lacks, and for a vocabulary that is not the source's states.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=3, attn_only=True)
        >>> tokens_of_states(config, Binary(p=0.5, q=0.8), Objective(), None, pad=0, bos=None)
        [1, 2]
    """
    n_states = source.n_states
    n_tokens = n_states + objective.query
    special = {name: token for name, token in ((names.pad, pad), (names.bos, bos)) if token is not None}
    for name, token in special.items():
        if type(token) is not int or not 0 <= token < config.d_vocab:
            raise RunFileError(f"{name} is {shown(token)}, expected a token below d_vocab {config.d_vocab}")
        if ids is not None and token in ids:
            raise RunFileError(f"{name} is {token}, but {names.tokens} gives that token to a state")
    if ids is None and special:
        ids = [token for token in range(config.d_vocab) if token not in special.values()]
        if len(ids) != n_tokens:
            raise RunFileError(
                f"without {' and '.join(special)} {len(ids)} tokens remain for {n_tokens} of the source: "
                f"map them with {names.map}"
            )
    if ids is not None:
        check_tokens(config, ids, source, names.tokens)
        ids = ids if bos is None else [*ids, bos]
    elif (config.d_vocab, config.d_vocab_out) != (n_tokens, n_states):
        raise RunFileError(
            f"the model reads {config.d_vocab} tokens and predicts {config.d_vocab_out}, but the source has "
            f"{n_states} states{' and a query token' if objective.query else ''}: map them with "
            f"{names.map}, or name {names.bos} and {names.pad}{source.advice(config.d_vocab_out)}"
        )
    return ids


def named_states(
    tokens: Mapping[str | int, int], source: Source, objective: Objective
) -> tuple[Source, dict[str | int, int]]:
    """Returns the source of `source_and_ids`, and the token of each state by its label.

    Args:
        tokens: The model's token of each state, by its number or label.
        source: The data.
        objective: Says whether there is a query token.

    Raises:
        RunFileError: As `source_and_ids`.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> named_states({0: 7, 1: 3}, Binary(p=0.5, q=0.8), Objective())[1]
        {'0': 7, '1': 3}
    """
    source, ids = source_and_ids(tokens, source, objective)
    labels = [*source.labels, *["query"] * objective.query]
    return source, dict(zip(labels, ids, strict=True))


@dataclass(frozen=True)
class _Picked:
    """A model of the source's states only."""

    states: dict[str, Tensor]  # its weights `[step, ...]`
    difference: Difference  # between its logits of the states and the whole model's, at the last step
    tokens: list[int]  # the token of each state, and of the query
    # The largest probability of tokens that are not states, in the whole model at the last step.
    left_out: float

    def origin(self, objective: Objective) -> dict[str, Any]:
        """Returns what a run's provenance keeps; scores have no probability to leave out."""
        left_out = {"probability_left_out": self.left_out} if objective.kind == "cross_entropy" else {}
        return {"tokens": self.tokens, **left_out}


@torch.no_grad()
def pick(
    config: DecoderConfig, ours: DecoderConfig, states: dict[str, Tensor], tokens: list[int], drawn: Tensor
) -> _Picked:
    """Make a model of the given tokens only, which predicts those of the states; compare it with the whole.

    Args:
        config: The shape of the whole model.
        ours: That of the part, from `picked_config`.
        states: Weights of the whole `[step, ...]`.
        tokens: The token of each state that is predicted, and of the query or of the sequence's beginning.
        drawn: Sequences of states `[batch, position]` with those tokens, as `example_tokens` draws them.

    Raises:
        RunFileError: If the logits differ, with the largest difference.
    """
    whole, part = HookedDecoder(config), HookedDecoder(ours)
    whole.load_state_dict({name: value[-1] for name, value in states.items()})
    predicted = tokens[: ours.d_vocab_out]
    chosen = dict(states)
    chosen["embed.W_E"] = states["embed.W_E"][:, tokens]
    chosen["unembed.b_U"] = states["unembed.b_U"][:, predicted]
    if "unembed.W_U" in states:
        chosen["unembed.W_U"] = states["unembed.W_U"][:, :, predicted]
    part.load_state_dict({name: value[-1] for name, value in chosen.items()})
    logits = whole(torch.tensor(tokens)[drawn])
    apart = difference(logits[..., predicted], part(drawn))
    if not apart.is_below(MAX_LOGIT_DIFFERENCE):
        raise disagree(apart, "the model and its part for the states disagree:", MAX_LOGIT_DIFFERENCE)
    left_out = 1 - logits.softmax(-1)[..., predicted].sum(-1)
    return _Picked(chosen, apart, tokens, float(left_out.clamp_min(0).max()))


def picked_config(config: DecoderConfig, n_tokens: int, n_states: int) -> DecoderConfig:
    """Returns the config of the part of a model that reads some of its tokens only.

    Args:
        config: The whole model.
        n_tokens: How many tokens it still reads.
        n_states: How many of them, the first, it predicts.

    Example:
        >>> words = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=9, attn_only=True)
        >>> config = picked_config(words, 3, 2)
        >>> config.d_vocab, config.d_vocab_out
        (3, 2)
    """
    return config.model_copy(update={"d_vocab": n_tokens, "d_vocab_out": n_states})
