"""The logits of somebody's model: how it is asked for them, and where they are in what it returns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechmarkov.importing.live.untouched import call, forward_before_accelerate
from mechmarkov.importing.names.weights import PAGE
from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.text import NAME_CHARACTERS, error_line, printable

TARGETS = ("targets", "target", "labels", "label", "y")  # parameters without which some models give no logits
WRAPPING = f"{PAGE}#when-its-forward-pass-gives-no-logits"
Tokens = Int[Tensor, "batch position"]
Form = Callable[[Tokens], Tensor]  # what a forward pass reads for tokens
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """Tensors that a model returned and that may be its logits.

    Attributes:
        candidates: Tensors of that shape, `[batch, position, d_vocab_out]`; with `last` of one position.
        last: Whether they are of the last position only.
    """

    candidates: list[Float[Tensor, "batch position d_vocab_out"]]
    last: bool


def forms(d_vocab: int, *, position_first: bool = True) -> dict[str, Form]:
    """Returns what a forward pass may read, by what is said of it; tokens as they are have the name "".

    Args:
        d_vocab: The number of tokens.
        position_first: Whether `[position, batch]` is tried too.

    Example:
        >>> forms(4)["one-hot vectors"](torch.tensor([[0, 2, 1]])).shape
        torch.Size([1, 3, 4])
    """

    def one_hot(tokens: Tokens) -> Tensor:
        return F.one_hot(tokens, d_vocab).to(torch.get_default_dtype())

    ways: dict[str, Form] = {"": lambda tokens: tokens}
    if position_first:
        ways["tokens, position first"] = lambda tokens: tokens.T
    ways["one-hot vectors"] = one_hot
    if position_first:
        ways["one-hot vectors, position first"] = lambda tokens: one_hot(tokens.T)
    return ways


def ask(
    model: nn.Module, tokens: Tokens, width: int, dtype: torch.dtype, form: Form = lambda tokens: tokens
) -> Answer:
    """Call a model with tokens, and find its logits: bare, in a tuple, a dict or an object of fields.

    Their axes may be `[batch, d_vocab_out, position]`, as `F.cross_entropy` has them, or position first.

    It is asked with the tokens, then with what its forward pass has for logits (`get_logits=True`), then with
    targets, then with both: nanoGPT gives the last position only where there are no targets.

    Raises:
        ValueError: One line, with what it returned, or how it failed.

    Example:
        >>> model = nn.Embedding(3, 3)  # any module of tokens
        >>> answer = ask(model, torch.tensor([[0, 2]]), 3, torch.float32)
        >>> answer.candidates[0].shape, answer.last
        (torch.Size([1, 2, 3]), False)
    """
    told, last = "", list[Tensor]()
    for output in outputs(model, form(tokens), dtype):
        if isinstance(output, Exception):
            told = told or f"fails: {error_line(output)}"
            continue
        tensors = list(_tensors(output))
        whole = [logits for y in tensors for logits in _readings(y, tokens.shape, width)]
        if whole:
            return Answer(whole, last=False)
        last = last or [y.reshape(-1, 1, width) for y in tensors if _is_of(y, tokens.shape[:1], width)]
        told = f"returns {_described(output)}"
    if last:
        return Answer(last, last=True)
    raise ValueError(
        f"{type(model).__name__} {told}: expected logits {[*tokens.shape, width]}, bare, in a tuple, in a "
        f"dict or in an object of fields; where another call gives them, pass a module around it ({WRAPPING})"
    )


def outputs(model: nn.Module, tokens: Tensor, dtype: torch.dtype) -> Iterator[Any]:
    """Yields what a model returns, called in each way in turn, or the exception with which it fails."""
    tokens = tokens.contiguous().to(next(model.parameters()).device)  # `view` may flatten targets
    tokens = tokens.to(dtype) if tokens.is_floating_point() else tokens
    for arguments, options in _calls(model, tokens):
        try:
            yield call(model, dtype, *arguments, **options)
        except Exception as error:  # somebody's code
            if is_by_signal(error):
                raise
            yield error


def _is_of(y: Tensor, positions: torch.Size, width: int) -> bool:
    """Returns whether these are numbers `[*positions, width]`; with axes of length one or flattened."""
    return (
        y.is_floating_point()
        and y.ndim > 1
        and y.shape[-1] == width
        and y.numel() == positions.numel() * width
        and y.shape[0] in (positions[0], positions.numel())
    )


def _readings(y: Tensor, positions: torch.Size, width: int) -> Iterator[Tensor]:
    """Yields a tensor as logits `[*positions, width]`: as it is, classes second, or positions first."""
    if _is_of(y, positions, width):
        yield y.reshape(*positions, width)
    if y.ndim == 3 and y.is_floating_point():
        turned = (y.transpose(1, 2), y.transpose(0, 1))
        yield from (one for one in turned if one.shape == (*positions, width))


def _calls(model: nn.Module, tokens: Tensor) -> list[Call]:
    """Ways to ask a model, the plainest first."""
    try:
        forward = forward_before_accelerate(vars(model)) or model.forward
        parameters = dict(signature(forward).parameters)
    except (TypeError, ValueError):  # written in C, or with a signature that does not tell
        parameters = {}
    keywords = [name for name, x in parameters.items() if x.kind is Parameter.KEYWORD_ONLY]
    positional = [
        name
        for name, x in parameters.items()
        if x.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [name for name, x in parameters.items() if "mask" in name and x.default is Parameter.empty]
    by_name = keywords if not positional else positional if positional[0] in needed else []
    by_name = [name for name in by_name if name not in needed]
    read: Call = ((), {by_name[0]: tokens}) if by_name else ((tokens,), {})
    read[1].update(dict.fromkeys(needed, torch.ones_like(tokens)))  # nothing is masked
    targets = {name: tokens for name in TARGETS if name in parameters}
    switches = {name: True for name, x in parameters.items() if "logits" in name and x.default is False}
    ways = [read]
    for extra in (switches, targets, targets | switches):
        if extra:
            ways.append((read[0], read[1] | extra))
    takes_any = any(x.kind is Parameter.VAR_POSITIONAL for x in parameters.values())
    if takes_any or not parameters or (len(positional) > 1 and not targets):
        ways.append(((tokens, tokens), {}))
    return ways


def _tensors(output: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in an output, those called logits first."""
    if isinstance(output, Tensor):
        yield output
        return
    if depth:
        for _, part in sorted(_parts(output), key=lambda item: item[0] != "logits"):
            yield from _tensors(part, depth - 1)


def _parts(output: Any) -> list[tuple[str, Any]]:
    """The parts of an output by their names, "" for those that have none."""
    if isinstance(output, Mapping):
        return [(str(name), part) for name, part in output.items()]
    if isinstance(output, tuple | list):
        names = getattr(output, "_fields", [""] * len(output))
        return [*zip(names, output, strict=True)]
    if is_dataclass(output):
        return [(field.name, getattr(output, field.name, None)) for field in fields(output)]
    attributes: dict[str, Any] = getattr(output, "__dict__", {})
    return [(name, part) for name, part in attributes.items() if not isinstance(part, nn.Module)]


def _described(output: Any, depth: int = 1) -> str:
    """An output in words: `dict(loss [], logits None)`."""
    if isinstance(output, Tensor):
        return str([*output.shape]) if output.ndim else "one number"
    kind = type(output).__name__
    if output is None or not depth:
        return printable(str(output) if output is None else kind, NAME_CHARACTERS)
    parts = [f"{name} {_described(part, 0)}".strip() for name, part in _parts(output)[:6]]
    return printable(f"{kind}({', '.join(parts)})", 2 * NAME_CHARACTERS)
