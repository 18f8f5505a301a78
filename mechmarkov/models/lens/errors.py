"""Errors where HookedTransformer has an assertion: they are assertions, and this library's own kinds too."""


class LensError(AssertionError, ValueError):
    """Raised for a call that HookedTransformer asserts against; it is an AssertionError and a ValueError."""


class NoTokenizerError(AssertionError, TypeError):
    """Raised for a text, as there is no tokenizer to read it; it is an AssertionError and a TypeError."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"{call}: a HookedDecoder has no tokenizer, expected integer tokens [batch, position]"
        )
