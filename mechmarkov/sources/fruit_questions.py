"""Questions about fruit, as sentences of a fixed length whose last word is the answer."""

from collections.abc import Mapping
from functools import cached_property, partial
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from mechmarkov.sources.base.rows import laws_of
from mechmarkov.sources.base.source import (
    Count,
    Predictor,
    Source,
    by_name,
    check_question,
    check_request,
    uniform_rule,
)
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, integers, table
from mechmarkov.theory import predictors
from mechmarkov.theory.predictors import NextLaws, Tokens

WORDS = (
    *("apple", "orange", "Based", "on", "the", "which", "type", "of", "fruit", "list", "appears", "most"),
    *("frequently", "sentence", "I", "prefer", "an", "to", "do"),
)
FRUIT = ("apple", "orange")


class FruitQuestions(Source):
    """Shi & Cao's question answering (2025, arXiv 2511.23239): a sentence of words, and then the answer.

    Args:
        task: 1: "Based on the list F F F F F which type of fruit appears most frequently", each F an apple or
            an orange, as likely and independent; the answer is the more frequent. 2: "Based on the sentence I
            prefer an apple to an orange which type of fruit do I prefer", or the same with the fruits
            swapped, as likely; the answer is the first.

    States are the 19 words of both tasks. A sequence is a whole sentence with its answer, 17 or 19 words,
    and there are but 32 or 2 of them, so every predictor is exact, by enumeration. What may be asked of the
    words is not a chain: `unigram` and `bigram` are means over the places of a sentence, `position` knows the
    place only, and `bag_of_words` the words so far, but not their order: that answers task 1, not task 2.

    Example:
        >>> import torch
        >>> source = FruitQuestions(task=2)
        >>> tokens = source.sample(1, 19, generator=torch.Generator().manual_seed(0))
        >>> " ".join(source.labels[word] for word in tokens[0])
        'Based on the sentence I prefer an apple to an orange which type of fruit do I prefer apple'
    """

    takes_streams: ClassVar[bool] = True
    redraws: ClassVar[bool] = False
    kind: Literal["fruit_questions"] = "fruit_questions"
    example: ClassVar[Mapping[str, Any]] = {"task": 1}
    task: Annotated[Count, Field(ge=1, le=2)]

    @property
    def n_states(self) -> int:
        """Number of different words, 19."""
        return len(WORDS)

    @property
    def length(self) -> int:
        """17 or 19: the words of the question and the answer."""
        return self.sentences.shape[1]

    @property
    def labels(self) -> tuple[str, ...]:
        """The words."""
        return WORDS

    def title(self) -> str:
        """`Questions about fruit, task 1: 16 words and the answer`."""
        return f"Questions about fruit, task {self.task}: {self.length - 1} words and the answer"

    @cached_property
    def sentences(self) -> Int[np.ndarray, "sentence position"]:
        """Every sentence with its answer, all as likely."""
        if self.task == 1:
            texts = [
                f"Based on the list {' '.join(fruit)} which type of fruit appears most frequently "
                + max(FRUIT, key=fruit.count)
                for fruit in product(FRUIT, repeat=5)
            ]
        else:
            texts = [
                f"Based on the sentence I prefer an {a} to an {b} which type of fruit do I prefer {a}"
                for a, b in (FRUIT, FRUIT[::-1])
            ]
        words = np.array([[WORDS.index(word) for word in text.split()] for text in texts])
        words.setflags(write=False)
        return words

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw sentences with their answers; see `Source.sample`.

        Raises:
            ValueError: `length` is not that of a sentence and its answer.
        """
        check_request(batch, length, generator, device)
        if length != self.length:
            raise ValueError(
                f"length is {length}, expected {self.length}: a sentence of {self.length - 1} words "
                "and its answer"
            )
        which = integers(generator, device, len(self.sentences), batch)
        return table(generator, device, self.sentences)[which]

    @cached_property
    def unigram(self) -> Float[np.ndarray, " state"]:
        """The law of a word at a place drawn from all 17 or 19; read-only."""
        return read_only(np.bincount(self.sentences.ravel(), minlength=self.n_states) / self.sentences.size)

    @cached_property
    def bigram(self) -> Float[np.ndarray, "state_from state_to"]:
        """The law of the next word given this one, at a place drawn from all but the last; read-only.

        Words of the other task, which never come, have the unigram's row.
        """
        pairs = np.zeros((self.n_states, self.n_states))
        np.add.at(pairs, (self.sentences[:, :-1], self.sentences[:, 1:]), 1)
        return read_only(laws_of(pairs, self.unigram))

    @cached_property
    def by_position(self) -> Float[np.ndarray, "position state"]:
        """The law of the word after each place, whatever the words; read-only."""
        return read_only(np.eye(self.n_states)[self.sentences[:, 1:]].mean(0))

    def predictors(self) -> dict[str, Predictor]:
        """Uniform, unigram, bigram, the place by itself, the words without their order, and all there is."""
        places = "a mean over the places of a sentence, exact"
        bag = "bag of words: the place, and the words so far in any order, exact"
        everything = "all words: everything so far, exact"
        return by_name(
            uniform_rule(self.n_states, "word"),
            Predictor("unigram", f"unigram: {places}", True, self._unigram),
            Predictor("bigram", f"bigram: the current word's successors, {places}", True, self._bigram),
            Predictor("position", "position: only the place, exact", True, self._position),
            Predictor("bag_of_words", bag, True, partial(self._given_words, ordered=False)),
            Predictor("all_words", everything, True, partial(self._given_words, ordered=True)),
        )

    def best(self) -> Predictor | str:
        """Returns what follows in those sentences that begin with the words so far."""
        return self.predictors()["all_words"]

    def _unigram(self, tokens: Tokens) -> NextLaws:
        check_question(tokens, self.n_states, self.length)
        return predictors.unigram(tokens, self.unigram)

    def _bigram(self, tokens: Tokens) -> NextLaws:
        check_question(tokens, self.n_states, self.length)
        return predictors.bigram(tokens, self.bigram)

    def _position(self, tokens: Tokens) -> NextLaws:
        check_question(tokens, self.n_states, self.length)
        return np.tile(self.by_position[: tokens.shape[1]], (len(tokens), 1, 1))

    def _given_words(self, tokens: Tokens, ordered: bool) -> NextLaws:
        """Words that begin no sentence tell nothing: only the place counts."""
        laws = self._position(tokens)
        for t in range(tokens.shape[1]):  # at most 18 places, each with a table of at most 32 beginnings
            begun, given = self.sentences[:, : t + 1], tokens[:, : t + 1]
            if not ordered:
                begun, given = np.sort(begun, axis=1), np.sort(given, axis=1)
            same = (given[:, None] == begun[None]).all(-1)
            following = same @ np.eye(self.n_states)[self.sentences[:, t + 1]]
            laws[:, t] = laws_of(following, laws[:, t])
        return laws
