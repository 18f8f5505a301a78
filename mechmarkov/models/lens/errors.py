"""Errors where HookedTransformer has an assertion: they are assertions, and this library's own kinds too."""


class LensError(AssertionError, ValueError):
    """A call that HookedTransformer asserts against."""


class NoTokenizerError(AssertionError, TypeError):
    """A text, where there is no tokenizer to read it."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"{call}: a HookedDecoder has no tokenizer, expected integer tokens [batch, position]"
        )
