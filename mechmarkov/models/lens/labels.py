"""Tokens as texts: a decoder that `Run.decoder` made knows its states' names."""

from numbers import Integral
from typing import Any, NoReturn

import torch
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.lens.errors import LensError, NoTokenizerError
from mechmarkov.utils.text import shown

MAX_LABELS_SHOWN = 8


class Labels:
    """HookedTransformer's calls between tokens and their texts; the texts are `labels`.

    Attributes:
        labels: The name of each token, from 0; None: their numbers.
        tokenizer: Always None, as of a HookedTransformer for an algorithmic task.
    """

    config: DecoderConfig
    labels: tuple[str, ...] | None = None
    tokenizer: None = None

    @property
    def _names(self) -> tuple[str, ...]:
        return self.labels or tuple(map(str, range(self.config.d_vocab)))

    def to_tokens(self, *_: Any, **__: Any) -> NoReturn:
        """Raise a `NoTokenizerError`: there is no tokenizer, and Markov data are integers already."""
        raise NoTokenizerError("to_tokens")

    def to_str_tokens(
        self,
        input: Any,  # noqa: A002 - HookedTransformer's name
        prepend_bos: bool | None = None,  # noqa: ARG002 - only of text
        padding_side: str | None = None,  # noqa: ARG002
    ) -> Any:
        """Each token's label.

        Args:
            input: Tokens `[pos]` or `[1, pos]`, a tensor, an array or numbers; or a list of such sequences.
            prepend_bos: What it is in `HookedDecoder.forward`.
            padding_side: What it is in `HookedDecoder.forward`.

        Returns:
            A list of strings; of a list of sequences, a list for each.

        Raises:
            NoTokenizerError: For a text.
            LensError: For a batch of several sequences, and a token without a label.
        """
        if isinstance(input, str):
            raise NoTokenizerError("to_str_tokens of a text")
        if isinstance(input, list) and input and not isinstance(input[0], Integral):
            return [self.to_str_tokens(sequence) for sequence in input]
        tokens = torch.as_tensor(input)
        if tokens.ndim > 1:
            tokens = tokens.squeeze()
        if tokens.ndim > 1:
            shape = list(tokens.shape)
            raise LensError(f"to_str_tokens of tokens {shape}, expected [pos] or [1, pos]: give list(tokens)")
        return [self.to_single_str_token(token) for token in tokens.reshape(-1).tolist()]

    def to_string(self, tokens: Any) -> Any:
        """Returns the labels of tokens `[pos]` with spaces between; for `[batch, pos]` a list of these."""
        if not isinstance(tokens, Tensor):
            tokens = torch.as_tensor(tokens)
        if tokens.ndim == 2:
            return [self.to_string(sequence) for sequence in tokens]
        return " ".join(self.to_str_tokens(tokens))

    def to_single_str_token(self, int_token: int) -> str:
        """Returns the label of a token; a `LensError` where there is none."""
        if not 0 <= int_token < len(self._names):
            raise LensError(f"token is {int_token}, expected 0 to {len(self._names) - 1}")
        return self._names[int_token]

    def to_single_token(self, string: str) -> int:
        """Returns the token of a label; a `LensError` where there is none."""
        if string not in self._names:
            some = [*self._names[:MAX_LABELS_SHOWN], *["…"] * (len(self._names) > MAX_LABELS_SHOWN)]
            raise LensError(f"label is {shown(string)}, expected one of {', '.join(some)}")
        return self._names.index(string)

    def get_token_position(
        self,
        single_token: str | int | Tensor,
        input: Any,  # noqa: A002 - HookedTransformer's name
        mode: str = "first",
        prepend_bos: bool | None = None,  # noqa: ARG002 - only of text
        padding_side: str | None = None,  # noqa: ARG002
    ) -> int:
        """The first or the last position of a token, or of a label, in `[pos]` or `[1, pos]`.

        Raises:
            NoTokenizerError: For a text.
            LensError: If the token is not there, `mode` is neither, or there are several sequences.
        """
        if isinstance(input, str):
            raise NoTokenizerError("get_token_position in a text")
        tokens = torch.as_tensor(input)
        if tokens.ndim == 2 and len(tokens) == 1:
            tokens = tokens[0]
        if tokens.ndim != 1:
            raise LensError(f"tokens have shape {list(tokens.shape)}, expected [pos] or [1, pos]")
        if mode not in ("first", "last"):
            raise LensError(f"mode is {shown(mode)}, expected 'first' or 'last'")
        token = self.to_single_token(single_token) if isinstance(single_token, str) else int(single_token)
        places = (tokens == token).nonzero().flatten().tolist()
        if not places:
            raise LensError(f"token {token} does not occur in the sequence")
        position: int = places[0 if mode == "first" else -1]
        return position
