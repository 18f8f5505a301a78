"""A source's symbols as a tokeniser writes them: tokens, with their exact law."""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import model_validator

from mechmarkov.sources.base.hidden_chain import HiddenChain, Parts
from mechmarkov.sources.base.registry import AnySource
from mechmarkov.sources.base.source import Predictor, by_name
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.tokens.symbol_chain import symbol_chain
from mechmarkov.sources.tokens.tokenisers import LETTERS, Tokeniser, text_of
from mechmarkov.theory import token_law
from mechmarkov.theory.hidden import Matrices
from mechmarkov.theory.predictors import NextLaws, Tokens, check_tokens
from mechmarkov.theory.token_law import TokenChain, TokenUnigram
from mechmarkov.theory.transducer import Transducer

MAX_HIDDEN = 1 << 12  # 4096 of LZW's words need about 2700; a dense matrix of it is 128 MiB
ORDERS = (2, 3)  # of the predictors that know only that many last tokens


class Tokenised(HiddenChain):
    """Tokens of a source's symbols (Rajaraman, Jiao & Ramchandran 2024, arXiv 2404.08335).

    The source and the tokeniser make one finite hidden chain, so that everything is exact: the law of tokens,
    the predictors that know the last tokens, and what a model could reach. A sequence is a stretch of the
    tokens of one endless text, from a token's beginning on.

    Args:
        source: What makes the symbols: one fixed law with a finite memory.
        tokeniser: A section: kind `strings` of a `length`, `greedy` with its `words`, or `merges`, which are
            pairs of tokens; `a` is state 0 of the source.

    Raises:
        ValueError: One line, for a source of another kind, a dictionary that cannot encode it, or more tokens
            or hidden states than there may be.

    Example:
        >>> from mechmarkov.sources import Switch
        >>> pairs = Tokenised(source=Switch(p=0.8, q=0.8, lag=1), tokeniser={"kind": "strings", "length": 2})
        >>> pairs.labels, pairs.pi.round(3).tolist()
        (('aa', 'ab', 'ba', 'bb'), [0.1, 0.4, 0.4, 0.1])
        >>> round(pairs.unigram_entropy / pairs.symbols_per_token, 4), round(pairs.symbol_entropy_rate, 4)
        (0.5968, 0.5004)
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["tokenised"] = "tokenised"
    example: ClassVar[Mapping[str, Any]] = {
        "source": {"kind": "switch", "p": 0.8, "q": 0.8, "lag": 2},
        "tokeniser": {"kind": "greedy", "words": ["a", "b", "ab", "ba"]},
    }
    source: AnySource
    tokeniser: Tokeniser

    @model_validator(mode="after")
    def _encodes(self) -> "Tokenised":
        if self.source.n_states > len(LETTERS):
            raise ValueError(
                f"source has {self.source.n_states} states, expected at most {len(LETTERS)}: each is a letter"
            )
        _ = self.chain
        return self

    @cached_property
    def symbols(self) -> Matrices:
        """The source: `T[x, h, h']`, to emit symbol x and go to h', given what it remembers."""
        return symbol_chain(self.source)

    @cached_property
    def transducer(self) -> Transducer:
        """The tokeniser on these symbols."""
        return self.tokeniser.transducer(self.source.n_states)

    @cached_property
    def chain(self) -> TokenChain:
        """The hidden chain that takes a step a token."""
        return token_law.token_chain(self.symbols, self.transducer, MAX_HIDDEN)

    @cached_property
    def in_the_long_run(self) -> TokenUnigram:
        """The frequencies of tokens, by one linear solve over symbols."""
        return token_law.unigram(self.symbols, self.transducer)

    @property
    def symbols_per_token(self) -> float:
        """Mean number of source symbols that a token stands for."""
        return self.in_the_long_run.symbols_per_token

    @property
    def n_states(self) -> int:
        """Number of tokens."""
        return len(self.transducer.words)

    @property
    def labels(self) -> tuple[str, ...]:
        """The tokens, by their symbols: `aab`."""
        return tuple(map(text_of, self.transducer.words))

    def title(self) -> str:
        """`Switch chain, p = 0.8, q = 0.8, lag 1, in 4 tokens: blocks of 2`."""
        return f"{self.source.title()}, in {self.n_states} tokens: {self.tokeniser.title()}"

    @cached_property
    def T(self) -> Float[np.ndarray, "hidden_from hidden_to"]:
        """Transitions of the hidden chain, a step a token; read-only."""
        return read_only(self.chain.transitions)

    @cached_property
    def E(self) -> Float[np.ndarray, "hidden state"]:
        """The token that each hidden state has written; read-only."""
        return read_only(np.eye(self.n_states)[self.chain.token])

    @cached_property
    def hidden_law(self) -> Float[np.ndarray, " hidden"]:
        """The stationary law of the hidden chain; read-only."""
        return read_only(self.chain.law)

    @property
    def parts(self) -> Parts:
        """Returns what the source remembers, and what is read and not yet written; those that vary.

        The source's memory is as `symbols` has it: the state of a chain, the last states of a longer one.
        """
        held, queued, memory = zip(*self.chain.pending, strict=True)
        each: dict[str, Sequence[Hashable]] = {
            "memory": memory,
            "pending": list(zip(held, queued, strict=True)),
        }
        found: Parts = {}
        for name, values in each.items():
            number = {value: i for i, value in enumerate(dict.fromkeys(values))}
            if len(number) > 1:
                found[name] = np.eye(len(number))[[number[value] for value in values]]
        return found

    @property
    def symbol_entropy_rate(self) -> float:
        """Entropy rate of the source, the lowest possible loss in nats a symbol.

        Raises:
            AttributeError: It has no closed form, as of a hidden Markov model.
        """
        rate = getattr(self.source, "entropy_rate", None)
        if rate is None:
            raise AttributeError(f"the entropy rate of source {self.source.kind!r} has no closed form")
        return float(rate)

    @property
    def entropy_rate(self) -> float:
        """Entropy of the next token given all before it, in nats: that of the symbols it stands for.

        Tokens and symbols say the same, with a bounded delay.

        Raises:
            AttributeError: That of the source has no closed form.
        """
        return self.symbol_entropy_rate * self.symbols_per_token

    def predictors(self) -> dict[str, Predictor]:
        """Returns those of every hidden chain, and `order_2` and `order_3`: the last tokens only."""
        label = "order {k}: the last {k} tokens, near the start all there are, exact"
        return super().predictors() | by_name(
            *(Predictor(f"order_{k}", label.format(k=k), True, partial(self._last, k=k)) for k in ORDERS)
        )

    def _last(self, tokens: Tokens, k: int) -> NextLaws:
        """The filter, begun anew k tokens back."""
        check_tokens(tokens, self.n_states)
        ahead = np.broadcast_to(self.hidden_law, (*tokens.shape, self.n_hidden))
        for back in range(min(k, tokens.shape[1]) - 1, -1, -1):
            read = tokens[:, : tokens.shape[1] - back]
            seen = ahead[:, back:] * self.E.T[read]
            total = seen.sum(-1, keepdims=True)
            now = np.divide(seen, total, out=ahead[:, back:].copy(), where=total > 0) @ self.T
            ahead = np.concatenate([ahead[:, :back], now], axis=1)
        return ahead @ self.E
