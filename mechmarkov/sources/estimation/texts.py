"""Texts as symbols: characters, words or numbers; and whether their lines are sequences."""

import re
from collections.abc import Sequence
from typing import Literal

from mechmarkov.sources.estimation.choices import OptionError
from mechmarkov.utils.text import shown

Unit = Literal["character", "word"]
MIN_REPEATED = 100  # texts, of which each may be a state
MIN_LINES = 3  # of one length, before they are taken for sequences
WORD = re.compile(r"\w+|[^\w\s]")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)  # as Python writes what int64 holds: 007 is a name
FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan", re.ASCII | re.IGNORECASE)
BETWEEN_NUMBERS = re.compile(r"[\s,;]+")
PEEK = 2000  # characters that tell whether it is worth looking at all


def are_numbers(symbols: Sequence[str]) -> bool:
    """Returns whether every symbol is an integer in figures; of no symbols, no.

    >>> are_numbers(["0", "-1", "10"]), are_numbers(["0", "01"]), are_numbers([])
    (True, False, False)
    """
    return bool(symbols) and all(map(NUMBER.fullmatch, symbols))


def may_be_states(symbols: Sequence[str]) -> bool:
    """Returns whether texts may each be a state: they are many, and some repeat."""
    return len(symbols) > MIN_REPEATED and len(set(symbols)) < len(symbols)


def words(text: str) -> list[str]:
    """The words and punctuation marks of a text; of one that holds only integers, those.

    >>> words("It is. It was."), words("0, -1, 10")
    (['It', 'is', '.', 'It', 'was', '.'], ['0', '-1', '10'])
    """
    return _numbers(text) or WORD.findall(text)


def characters(text: str) -> list[str]:
    r"""The characters of a text, without the line end that ends it.

    Example:
        >>> characters("abb\n")
        ['a', 'b', 'b']
    """
    return list(text.removesuffix("\n"))


def lines_of(text: str) -> list[str]:
    """The lines of a text that hold anything but white space."""
    return [line for line in text.split("\n") if line.strip()]


def _numbers(text: str) -> list[str] | None:
    """Integers with white space, commas or semicolons between them; None where there is anything else."""
    peek = _parts(text[:PEEK])[:-1]  # the last may be cut
    if peek and not are_numbers(peek):
        return None
    parts = _parts(text)
    return parts if are_numbers(parts) else None


def _parts(text: str) -> list[str]:
    return [part for part in BETWEEN_NUMBERS.split(text) if part]


def check_meaning(text: str, name: str, unit: Unit | None, lines: bool | None) -> None:
    """Ask where a text shows signs of another meaning than characters in one sequence.

    Args:
        text: The whole of it.
        name: The name of the file.
        unit: What the user said of it; None for nothing.
        lines: Whether the user said that lines are sequences; None for nothing.

    Raises:
        OptionError: It holds numbers, or lines that seem to be sequences, and nothing was said of that.
        ValueError: It holds numbers that are not integers.
    """
    if unit == "character" and lines is not None:
        return
    rows = lines_of(text)
    numbers = _numbers(text)
    if unit is None and numbers is None:
        _check_integers(_parts(text[:PEEK])[:-1], name)
    if numbers is not None and len(numbers) > 1 and unit != "character":
        _check_numbers(rows, len(numbers), name, unit, lines)
    elif lines is None:
        _check_lines(rows, name, unit)


def _check_integers(some: list[str], name: str) -> None:
    """Refuse numbers of which any is written with a point or an exponent."""
    if some and all(map(FLOAT.fullmatch, some)) and not are_numbers(some):
        first = next(one for one in some if not NUMBER.fullmatch(one))
        if re.search(r"[.eEnN]", first):  # 007 is a name
            raise ValueError(
                f"{name} holds numbers such as {shown(first)}, expected integers: "
                'np.savetxt(…, fmt="%d") writes them so'
            )


def _check_numbers(rows: list[str], count: int, name: str, unit: Unit | None, lines: bool | None) -> None:
    """Check a text that holds only numbers: single ones on their lines, or several."""
    complaint = f"{name} holds {count} numbers"
    if len(rows) == count:  # one on each line, or figures without white space
        if unit is None and lines is None:
            figures = ({"lines": True}, "takes each line as a sequence of figures")
            one_each = ({"unit": "word"}, "takes each line as a state")
            raise OptionError(complaint, one_each, *[figures] * (min(map(len, rows)) > 1))
    elif unit is None or (lines is None and len(rows) > 1):
        if len(rows) == 1 or lines is not None:
            whole = {"unit": "word"} if lines is None else {"unit": "word", "lines": lines}
            ways = [(whole, "takes them as states")]
        else:
            ways = [
                ({"unit": "word", "lines": True}, f"takes each of its {len(rows)} lines as a sequence"),
                ({"unit": "word", "lines": False}, "takes all of them as one"),
            ]
        ways += [({"unit": "character", "lines": bool(lines)}, "takes figures and white space as states")] * (
            unit is None
        )
        raise OptionError(complaint, *ways)


def _check_lines(rows: list[str], name: str, unit: Unit | None) -> None:
    """Check a text with lines of one length, or without any white space in its lines."""
    if len(rows) < MIN_LINES:
        return
    lengths = [len(words(row) if unit == "word" else row) for row in rows]
    same = lengths[0] > 1 and set(lengths[:-1]) == {lengths[0]} and lengths[-1] <= lengths[0]
    same = same and len(set(rows)) > 1
    dense = unit is None and min(lengths) > 1 and not any(map(re.compile(r"\s").search, rows))
    if not same and not dense:
        return
    in_words = unit is None and len(words(rows[0])) > 1
    items = "words" if unit == "word" else "characters"
    kind = f"of {lengths[0]} {items}" if same else "without white space"
    end = "" if unit == "word" else ", a line end as a state"
    raise OptionError(
        f"{name} has {len(rows)} lines {kind}",
        ({"lines": True}, f"takes each as a sequence of {items}"),
        *[({"unit": "word", "lines": True}, "takes each as a sequence of words")] * in_words,
        *[({"unit": "word", "lines": False}, "takes each as a state")] * (dense and may_be_states(rows)),
        ({"lines": False}, f"takes the whole as one sequence{end}"),
    )
