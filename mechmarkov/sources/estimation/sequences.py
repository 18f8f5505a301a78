"""What Python holds sequences in: arrays, tensors, lists, columns of tables and of data sets."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from mechmarkov.sources.estimation import texts
from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.utils.lazy_torch import Tensor, is_tensor, torch
from mechmarkov.utils.text import counted, printable, shown

MAX_TOKENS = 2_000_000  # their text in a run file stays below the 8 MB that `safe/` reads of one
MAX_SEQUENCES = 100_000
MAX_STATES = 2000
MIN_TRANSITIONS = 100
MAX_NUMBER = 2**63 - 1  # of a state: what int64 holds
GAP = "expected a state at every place: at a gap, end the sequence and begin another"

Each = Literal["state", "character", "word"]
Symbols = Shaped[np.ndarray, " token"]  # int64, or texts as objects


def check_count(name: str, value: Any, least: int = 1, most: int = MAX_TOKENS) -> None:
    """Refuse an option that is neither None nor an integer within bounds.

    Raises:
        ValueError: Naming it.
    """
    if value is not None and not (type(value) is int and least <= value <= most):
        raise ValueError(f"{name} is {shown(value)}, expected an integer from {least} to {most}")


def sequences_of(tokens: Any, each: Any) -> Iterable[tuple[str, Any]]:
    """Each sequence and what it is called in messages; see `Observed`.

    Raises:
        OptionError: Texts that may each be one state or a sequence, and `each` is None.
        TypeError: Bytes.
        ValueError: One line, for what is not one sequence or several.
    """
    if each not in (None, "state", "character", "word"):
        raise ValueError(f"each is {shown(each)}, expected 'state', 'character' or 'word'")
    if isinstance(tokens, PurePath):
        raise ValueError(f"tokens is {shown(tokens)}, a path: Observed.read(path) reads a file")
    tokens = plain(tokens, "tokens")
    if isinstance(tokens, str):
        if each == "state":
            raise ValueError("each is 'state', expected 'character' or 'word': tokens are one text")
        return [("tokens", _split(tokens, each))]
    if isinstance(tokens, np.ndarray):
        if tokens.ndim == 1 and tokens.dtype.kind not in "OUT":
            return [("tokens", _without(each, tokens))]
        if tokens.ndim == 2 and len(tokens) and tokens.dtype.kind not in "OUT":
            return [(f"tokens[{i}]", row) for i, row in enumerate(_without(each, tokens))]
        if tokens.ndim > 2:
            raise ValueError(
                f"tokens has shape {list(tokens.shape)}, expected states [sequence, position]"
                + ": tokens[..., 0]" * (tokens.shape[-1] == 1)
            )
        if not len(tokens):
            raise ValueError(f"tokens has shape {list(tokens.shape)}, expected a sequence of states")
        tokens = tokens.tolist()
    nested = [_is_nested(one) for one in tokens]
    if any(nested):
        if not all(nested):
            raise ValueError(
                f"tokens[{nested.index(False)}] is one symbol, expected a sequence as the others are"
            )
        return [(f"tokens[{i}]", plain(one, f"tokens[{i}]")) for i, one in enumerate(_without(each, tokens))]
    if not tokens or not all(isinstance(one, str) for one in tokens):
        return [("tokens", _without(each, tokens))]
    if each is None and max(map(len, tokens)) > 1:
        raise _which(tokens)
    if each in (None, "state"):
        return [("tokens", tokens)]
    return [(f"tokens[{i}]", _split(one, each)) for i, one in enumerate(tokens)]


def _split(text: str, each: Each | None) -> list[str]:
    return texts.words(text) if each == "word" else texts.characters(text)


def _without(each: Each | None, tokens: Any) -> Any:
    """Tokens of which there is no question what a text in them is."""
    if each in (None, "state"):
        return tokens
    raise ValueError(f"each is {each!r}, expected none: tokens hold sequences of states already")


def _which(tokens: Sequence[str]) -> ValueError:
    """The question what a text among several is: of what would leave enough transitions."""
    longest = max(tokens[:1000], key=len)
    ways: list[tuple[dict[str, Any], str]] = []
    if texts.may_be_states(tokens):
        ways.append(({"each": "state"}, "takes each as a state of one sequence"))
    if sum(len(one) - 1 for one in tokens) >= MIN_TRANSITIONS:
        ways.append(({"each": "character"}, "takes each as a sequence of characters"))
    spaced = any(map(str.isspace, longest))
    if spaced and sum(len(texts.words(one)) - 1 for one in tokens) >= MIN_TRANSITIONS:
        ways.append(({"each": "word"}, "takes each as a sequence of words"))
    complaint = f"tokens hold texts such as {shown(longest)}"
    if not ways:
        return ValueError(
            f"{complaint}, {counted(len(tokens), 'text')}: expected {MIN_TRANSITIONS} transitions"
        )
    return OptionError(complaint, *ways)


def _is_nested(one: Any) -> bool:
    """Returns whether an item of a list is a sequence itself; a tensor or an array of no axis is a symbol."""
    return not isinstance(one, str) and hasattr(one, "__len__") and getattr(one, "ndim", 1) > 0


def plain(value: Any, where: str) -> Any:
    """Returns what holds sequences, or one of them, as a text, an array or a list."""
    if isinstance(value, str | np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        if isinstance(value, np.ndarray) and value.ndim == 0:
            raise ValueError(f"{where} is one symbol, {shown(value.item())}, expected a sequence")
        return value
    if is_tensor(value):
        return _of_tensor(value, where)
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            at = np.argwhere(np.ma.getmaskarray(value))[0].tolist()
            raise ValueError(f"{where}[{']['.join(map(str, at))}] is masked, {GAP}")
        return plain(value.data, where)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"{where} is {shown(value)}, expected a text, {where}.decode(), or numbers, "
            f"np.frombuffer({where}, 'uint16')"
        )
    if (names := getattr(value, "column_names", None)) is not None:  # of datasets and pyarrow
        kind, part = ("data set", "split") if isinstance(names, dict) else ("table", "column")
        return plain(_only_column(value, list(names), where, kind, part), where)
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise ValueError(f"{where} is sparse, expected {where}.toarray()")
    if hasattr(value, "columns") and getattr(value, "ndim", 2) == 2:  # a table of pandas or polars
        return plain(_only_column(value, list(value.columns), where, "table", "column"), where)
    if hasattr(value, "__len__"):
        value = _first(value)
    for method in ("to_list", "to_pylist"):  # pandas, polars, awkward; pyarrow
        if hasattr(value, method):
            return getattr(value, method)()
    if hasattr(value, "__array__"):
        return plain(np.asarray(value), where)
    if isinstance(value, Sequence):
        return list(islice(value, MAX_TOKENS + 1))
    if hasattr(value, "__iter__") and not hasattr(value, "__len__"):
        raise ValueError(f"{where} is {shown(value)}, expected a list: list(…)")
    raise ValueError(f"{where} is {shown(value)}, expected a text, an array or a list of sequences")


def _first(value: Any) -> Any:
    """A column without what is beyond any limit, so that it is not read for nothing."""
    if len(value) <= MAX_SEQUENCES:
        return value
    few = value[:1]
    one = next(iter(few.to_list() if hasattr(few, "to_list") else few), None)
    most = MAX_SEQUENCES if _is_nested(one) else MAX_TOKENS
    return value if len(value) <= most else value[: most + 1]


def _only_column(value: Any, names: list[Any], where: str, kind: str, part: str) -> Any:
    if len(names) != 1:
        listed = printable(", ".join(map(str, names)), 120)
        such = f", such as {where}[{shown(names[0])}], of {listed}" if names else ""
        rows = f"; or a row as a sequence: {where}.to_numpy()" if hasattr(value, "iloc") else ""
        raise ValueError(
            f"{where} is a {kind} of {counted(len(names), part)}, expected one of them{such}{rows}"
        )
    return value[names[0]]


def _of_tensor(tensor: Tensor, where: str) -> Any:
    if tensor.is_nested:
        return [one.numpy() for one in tensor.detach().cpu().unbind()]
    if tensor.layout != torch.strided:
        raise ValueError(f"{where} is a sparse tensor, expected {where}.to_dense()")
    if tensor.is_meta:
        raise ValueError(f"{where} is a tensor on the device meta, expected one with values")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized:
        raise ValueError(f"{where} is a tensor of {tensor.dtype}, expected integers: {where}.long()")
    return plain(tensor.detach().cpu().numpy(), where)


def flat(sequence: Any, where: str) -> Symbols:
    """One sequence as an array of integers (int64) or of texts.

    Args:
        sequence: A list, an array or a tensor of one axis, of integers or of texts.
        where: The sequence's name in messages, such as "sequence 3".

    Raises:
        ValueError: One line, for a gap and for what is neither.

    Example:
        >>> flat([2, 0, 1], "tokens").tolist(), flat(["b", "a"], "tokens").tolist()
        ([2, 0, 1], ['b', 'a'])
    """
    values = sequence if isinstance(sequence, np.ndarray) else _as_array(sequence, where)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{where} has shape {list(values.shape)}, expected a sequence of states")
    if values.dtype.kind in "iu":
        if values.max() > MAX_NUMBER:
            at = int(values.argmax())
            raise ValueError(f"{where}[{at}] is {values[at]}, expected at most {MAX_NUMBER}")
        return values.astype(np.int64)
    listed = values.tolist()
    for at, value in enumerate(listed):
        if _is_missing(value):
            raise ValueError(f"{where}[{at}] is {value}, {GAP}")
    for at, value in enumerate(listed):
        if isinstance(value, str):
            continue
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise ValueError(f"{where}[{at}] is {shown(value)}, expected at most {MAX_NUMBER}")
        if any(isinstance(one, str) for one in listed):
            text = next(one for one in listed if isinstance(one, str))
            raise ValueError(
                f"{where} holds {shown(value)} and {shown(text)}, expected only integers or only texts"
            )
        whole = all(isinstance(one, int) or (isinstance(one, float) and one.is_integer()) for one in listed)
        advice = ": np.array(tokens).astype(int)" * whole
        raise ValueError(f"{where}[{at}] is {shown(value)}, expected an integer or a text{advice}")
    if "\0" in "".join(listed):
        at = next(at for at, value in enumerate(listed) if "\0" in value)
        raise ValueError(f"{where}[{at}] is {shown(listed[at])}, expected no NUL byte: a text has none")
    return values.astype(object)


def _as_array(sequence: Any, where: str) -> Shaped[np.ndarray, "..."]:
    """A list as an array; numpy would make texts of integers that stand among texts."""
    items = list(sequence)
    if any(isinstance(one, str) for one in items):
        values = np.empty(len(items), dtype=object)
        values[:] = items
        return values
    try:
        return np.asarray(items)
    except (ValueError, OverflowError, TypeError):
        deep = next((at for at, one in enumerate(items) if _is_nested(one)), None)
        if deep is None:
            raise ValueError(f"{where} holds what is neither an integer nor a text") from None
        raise ValueError(f"{where}[{deep}] is a sequence, expected a state") from None


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # of pandas' NA, which is not even unequal to itself
        return True
