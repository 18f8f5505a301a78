"""Tokenisers as finite-state transducers: they read symbols one at a time and write tokens.

A state is what has been read and not yet written. A token is written as soon as no symbol that may come can
change it, so that one symbol may write none, one, or several. Three kinds: every string of a length; the
longest word of a dictionary that fits (greedy: LZW's encoder, WordPiece's); and merges one after the other
(byte pairs, Sennrich et al. 2016). Pure functions, no randomness.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import product

Word = tuple[int, ...]
"""The symbols that a token stands for."""
Written = tuple[int, ...]
"""Tokens, by their numbers."""
Step = Callable[[Hashable, int], tuple[Hashable, Written]]
"""The next state and what is written, of a state and the symbol that is read."""


@dataclass(frozen=True)
class Transducer:
    """A tokeniser: nothing is pending at first.

    Attributes:
        words: The symbols that each token stands for.
        start: The state where nothing is pending.
        step: The next state and the tokens written, of a state and the symbol that is read.
    """

    words: tuple[Word, ...]
    start: Hashable
    step: Step

    def encode(self, symbols: Iterable[int]) -> list[int]:
        """Tokens of a sequence, without those that are still pending at its end.

        Example:
            >>> greedy([(0,), (1,), (0, 1, 0)], 2).encode([0, 1, 1, 0, 1, 0, 0])
            [0, 1, 1, 2]
        """
        state, written = self.start, list[int]()
        for symbol in symbols:
            state, tokens = self.step(state, symbol)
            written += tokens
        return written


def strings(n_symbols: int, length: int) -> Transducer:
    """All strings of a length, in the order of numbers: the sequence cut into blocks.

    Example:
        >>> strings(2, 2).encode([0, 1, 1, 1, 0])
        [1, 3]
    """
    words = tuple(product(range(n_symbols), repeat=length))
    number = {word: token for token, word in enumerate(words)}

    return Transducer(words, (), partial(_block, number=number, length=length))


def greedy(words: Sequence[Word], n_symbols: int) -> Transducer:
    """The longest word that the rest of the sequence begins with, again and again.

    A word is written once it is clear that no longer one fits; what was read beyond it is read again.

    Args:
        words: The dictionary; every single symbol must be in it, so that all sequences can be encoded.
        n_symbols: How many symbols there are.

    Raises:
        ValueError: A symbol is not a word.

    Example:
        >>> greedy([(0,), (1,), (0, 0)], 2).encode([0, 0, 0, 1])
        [2, 0, 1]
    """
    number = {tuple(word): token for token, word in enumerate(words)}
    missing = [symbol for symbol in range(n_symbols) if (symbol,) not in number]
    if missing:
        raise ValueError(f"words do not hold symbol {missing[0]}, expected every single symbol among them")
    goes_on = {word[:n] for word in number for n in range(len(word))}

    return Transducer(tuple(number), (), partial(_longest, number=number, goes_on=goes_on))


def merges(pairs: Sequence[tuple[int, int]], n_symbols: int) -> Transducer:
    """Byte pairs: every merge in turn joins its two tokens, from left to right, wherever they meet.

    That is what encoders do that always merge the pair of the lowest rank, the leftmost first. Each merge is
    a transducer that holds back its first token, and they run one behind the other.

    Args:
        pairs: The two tokens of each merge. Symbols are tokens 0 to `n_symbols - 1`, then come the merges'.
        n_symbols: How many symbols there are.

    Example:
        >>> merges([(0, 1), (2, 2)], 2).encode([0, 1, 0, 1, 0, 1, 1])
        [3, 2, 1]
    """
    words: list[Word] = [(symbol,) for symbol in range(n_symbols)]
    for first, second in pairs:
        words.append(words[first] + words[second])

    return Transducer(
        tuple(words), (0,) * len(pairs), partial(_merged, pairs=tuple(pairs), n_symbols=n_symbols)
    )


# The steps are functions of a module, so that a source with a tokeniser can be pickled.
def _block(
    pending: Hashable, symbol: int, *, number: Mapping[Word, int], length: int
) -> tuple[Hashable, Written]:
    read = (*_word(pending), symbol)
    return ((), (number[read],)) if len(read) == length else (read, ())


def _longest(
    pending: Hashable, symbol: int, *, number: Mapping[Word, int], goes_on: Set[Word]
) -> tuple[Hashable, Written]:
    read, written = (*_word(pending), symbol), []
    while read not in goes_on:  # no longer word begins with it
        length = next(n for n in range(len(read), 0, -1) if read[:n] in number)
        written.append(number[read[:length]])
        read = read[length:]
    return read, tuple(written)


def _merged(
    pending: Hashable, symbol: int, *, pairs: tuple[tuple[int, int], ...], n_symbols: int
) -> tuple[Hashable, Written]:
    holds, stream = list(_word(pending)), [symbol]
    for rank, (first, second) in enumerate(pairs):
        passed: list[int] = []
        for token in stream:
            if holds[rank] and token == second:
                passed.append(n_symbols + rank)
                holds[rank] = 0
                continue
            if holds[rank]:
                passed.append(first)
            holds[rank] = int(token == first)
            if not holds[rank]:
                passed.append(token)
        stream = passed
        if not stream:
            break
    return tuple(holds), tuple(stream)


def _word(pending: Hashable) -> Word:
    assert isinstance(pending, tuple)
    return pending
