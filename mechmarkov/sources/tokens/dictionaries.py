"""Dictionaries: of LZW, which depend on the text that they are read from, and byte pairs, found in law."""

from collections.abc import Sequence

import numpy as np

from mechmarkov.sources.base.source import Source
from mechmarkov.sources.tokenised import Tokenised
from mechmarkov.sources.tokens.tokenisers import LETTERS, Greedy, Merges, Text, text_of
from mechmarkov.theory.transducer import Word

TIE = 1e-9  # of the likeliest pair's probability; what is nearer than that has it too
MAX_LISTS = 1 << 10  # of merges, where ties branch


def lzw(symbols: Sequence[int], n_symbols: int, size: int) -> Greedy:
    """The first words that Lempel, Ziv and Welch's encoder notes while it reads a text (Welch 1984).

    Each is the longest known word that the rest begins with, and the symbol behind it.

    Args:
        symbols: The text, states of a source.
        n_symbols: How many states there are; every single one is a word from the start.
        size: How many words to note, the single ones among them.

    Raises:
        ValueError: The text ends before there are that many words.

    Example:
        >>> lzw([0, 1, 0, 1, 0, 1, 0, 0], 2, 6).words
        ('a', 'b', 'ab', 'ba', 'aba', 'abaa')
    """
    words: dict[Word, None] = {(symbol,): None for symbol in range(n_symbols)}
    longest: Word = ()
    for symbol in symbols:
        if len(words) >= size:
            break
        read = (*longest, symbol)
        if read in words:
            longest = read
        else:
            words[read] = None
            longest = (symbol,)
    if len(words) < size:
        raise ValueError(
            f"a text of {len(symbols)} symbols gives {len(words)} words, expected {size}: pass a longer one"
        )
    return Greedy(words=tuple(map(text_of, list(words)[:size])))


def every_bpe(source: Source, n_merges: int) -> list[Merges]:
    """Byte pairs in law: the likeliest pair of neighbouring tokens is merged, again and again.

    Where several pairs are likeliest, each is followed; a sampled text would break the tie by its noise.

    Raises:
        ValueError: There are more than 1024 lists.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> [each.merges for each in every_bpe(Binary(p=0.8, q=0.8), 1)]
        [(('a', 'b'),), (('b', 'a'),)]
    """
    lists: list[tuple[tuple[Text, Text], ...]] = [()]
    for _ in range(n_merges):
        lists = [(*merges, pair) for merges in lists for pair in likeliest_pairs(source, merges)]
        if len(lists) > MAX_LISTS:
            raise ValueError(f"ties branch into more than {MAX_LISTS} lists of merges, expected fewer merges")
    return [Merges(merges=each) for each in lists]


def bpe(source: Source, n_merges: int) -> Merges:
    """The merges of byte pairs in law, where no two pairs tie.

    Raises:
        ValueError: Two pairs are likeliest, so that the law does not say which is merged.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> bpe(Binary(p=0.2, q=0.3), 2).merges
        (('a', 'a'), ('b', 'b'))
    """
    merges: tuple[tuple[Text, Text], ...] = ()
    for i in range(n_merges):
        pairs = likeliest_pairs(source, merges)
        if len(pairs) > 1:
            named = ", ".join("+".join(pair) for pair in pairs)
            raise ValueError(
                f"merges[{i}] is a tie in law of {named}, expected one likeliest pair: "
                f"every_bpe(source, {n_merges}) follows each"
            )
        merges = (*merges, pairs[0])
    return Merges(merges=merges)


def likeliest_pairs(source: Source, merges: Sequence[tuple[Text, Text]]) -> list[tuple[Text, Text]]:
    """The pairs of neighbouring tokens that are most frequent in law, after some merges."""
    if merges:
        tokens = Tokenised(source=source, tokeniser=Merges(merges=tuple(merges)))
    else:
        words = tuple(LETTERS[: source.n_states])
        tokens = Tokenised(source=source, tokeniser=Greedy(words=words))
    joint = tokens.pi[:, None] * tokens.P
    first, second = np.nonzero(joint >= joint.max() * (1 - TIE))
    return [(tokens.labels[i], tokens.labels[j]) for i, j in zip(first, second, strict=True)]
