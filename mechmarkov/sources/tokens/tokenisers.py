"""Tokenisers as data: all strings of a length, the words of a dictionary, and merges of byte pairs.

A symbol is a letter here: `a` is state 0, `b` is state 1, and so on; a token is the letters it stands for.
"""

import string
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from mechmarkov.sources.base.rows import as_lists
from mechmarkov.sources.base.source import Count
from mechmarkov.theory import transducer
from mechmarkov.theory.transducer import Transducer, Word
from mechmarkov.utils.config import Fields
from mechmarkov.utils.text import first_of

LETTERS = string.ascii_letters
MAX_TOKENS = 1 << 12
SHOWN = 12  # tokens that an error names
Text = Annotated[str, Field(min_length=1, max_length=1 << 12)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(as_lists)]


class Strings(Fields):
    """All strings of a length: the sequence is cut into blocks.

    Args:
        length: Symbols in each token.
    """

    kind: Literal["strings"] = "strings"
    length: Count = Field(ge=1, le=64)

    def title(self) -> str:
        """`blocks of 2`."""
        return f"blocks of {self.length}"

    def transducer(self, n_symbols: int) -> Transducer:
        """The blocks of that many symbols.

        Raises:
            ValueError: There are too many.
        """
        check_size(n_symbols**self.length)
        return transducer.strings(n_symbols, self.length)


class Greedy(Fields):
    """The longest word of a dictionary that the rest begins with, as LZW's and WordPiece's encoders do.

    Args:
        words: The dictionary, `["a", "b", "ab"]`, every single symbol among it; the order is the tokens'.
    """

    kind: Literal["greedy"] = "greedy"
    words: Texts

    def title(self) -> str:
        """`longest words first`."""
        return "longest words first"

    def transducer(self, n_symbols: int) -> Transducer:
        """The dictionary's encoder.

        Raises:
            ValueError: Too many words, one twice, one of letters that are not symbols, or a symbol that is no
                word.
        """
        check_size(len(self.words))
        for letter in LETTERS[:n_symbols]:
            if letter not in self.words:
                raise ValueError(
                    f"tokeniser.words lack {letter!r}, expected every symbol: some texts have no tokens"
                )
        first: dict[str, int] = {}
        for i, text in enumerate(self.words):
            if first.setdefault(text, i) != i:
                raise ValueError(
                    f"tokeniser.words[{i}] is {text!r}, as words[{first[text]}] is, expected each once"
                )
        words = [word_of(text, n_symbols, f"tokeniser.words[{i}]") for i, text in enumerate(self.words)]
        return transducer.greedy(words, n_symbols)


class Merges(Fields):
    """Byte-pair encoding (BPE): all symbols, and a token for each merge, in turn (Sennrich et al. 2016).

    `a` is state 0, `b` state 1, …; tokens 0 to K-1 are the symbols, and merge i is token K+i.

    Args:
        merges: The two tokens of each merge, `[["a", "b"], ["ab", "a"]]`; `bpe` finds them in law.

    Example:
        >>> Merges(merges=[["a", "b"], ["ab", "a"]]).transducer(2).words
        ((0,), (1,), (0, 1), (0, 1, 0))
    """

    kind: Literal["merges"] = "merges"
    merges: Annotated[tuple[Texts, ...], BeforeValidator(as_lists)]

    @field_validator("merges")
    @classmethod
    def _pairs(cls, merges: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for i, merge in enumerate(merges):
            if len(merge) != 2:
                raise ValueError(f"merges[{i}] is {list(merge)}, expected two tokens")
        return merges

    def title(self) -> str:
        """`3 merges of byte pairs`."""
        return f"{len(self.merges)} merge{'s' * (len(self.merges) != 1)} of byte pairs"

    def transducer(self, n_symbols: int) -> Transducer:
        """The merges' encoder.

        Raises:
            ValueError: Too many tokens, or a merge of two that are not tokens at that point.
        """
        check_size(n_symbols + len(self.merges))
        number = {letter: token for token, letter in enumerate(LETTERS[:n_symbols])}
        pairs = []
        for i, merge in enumerate(self.merges):
            if not set(merge) <= set(number):
                known = first_of(list(number), SHOWN)
                raise ValueError(
                    f"tokeniser.merges[{i}] is {list(merge)}, expected two of the tokens before it: {known}"
                )
            pairs.append((number[merge[0]], number[merge[1]]))
            if (joined := "".join(merge)) in number:
                raise ValueError(f"tokeniser.merges[{i}] makes {joined!r} again, expected each token once")
            number[joined] = len(number)
        return transducer.merges(pairs, n_symbols)


Tokeniser = Annotated[Strings | Greedy | Merges, Field(discriminator="kind")]


def word_of(text: str, n_symbols: int, name: str) -> Word:
    """The symbols of letters.

    Raises:
        ValueError: A letter that is not a symbol.
    """
    symbols = LETTERS[:n_symbols]
    for letter in text:
        if letter not in symbols:
            raise ValueError(f"{name} is {text!r}, expected letters from {symbols[0]} to {symbols[-1]}")
    return tuple(map(symbols.index, text))


def text_of(word: Word) -> str:
    """The letters of symbols.

    Example:
        >>> text_of((0, 0, 1))
        'aab'
    """
    return "".join(LETTERS[symbol] for symbol in word)


def check_size(n_tokens: int) -> None:
    """Refuse fewer than two tokens, or more than there may be, in words."""
    if not 2 <= n_tokens <= MAX_TOKENS:
        raise ValueError(f"tokeniser has {n_tokens} tokens, expected 2 to {MAX_TOKENS}")
