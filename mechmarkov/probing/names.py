"""Names of laws and of tokens: they are made here, and read back here only.

Datasets, run files and sources of other packages hold names as plain texts (`in_context_bigram`, `step_2`,
`3 tokens back`), so that somebody has to know what their parts mean. Sentences get these parts.
"""

import re
from dataclasses import dataclass

_LAW = re.compile(r"(in_context_)?(?:(step|order|lag)_(\d+)|(.*))", re.DOTALL)
_BACK = re.compile(r"(\d+) tokens back")


@dataclass(frozen=True)
class LawName:
    """The name of an exact predictor in its parts.

    Attributes:
        in_context: Whether the law is estimated from each sequence.
        base: "bigram", "unigram", …; "step", "order" and "lag" of numbered laws.
        number: How many steps, or which order; None of a law without a number.

    Example:
        >>> LawName.read("in_context_order_2")
        LawName(in_context=True, base='order', number=2)
        >>> LawName.read("bag_of_words").words
        'bag of words'
    """

    in_context: bool
    base: str
    number: int | None = None

    @staticmethod
    def read(name: str) -> "LawName":
        """Returns the parts of a name; of one of another package all of it is the base."""
        match = _LAW.fullmatch(name)
        assert match is not None  # anything is a name
        context, kind, number, base = match.groups()
        return LawName(context is not None, kind or base, None if number is None else int(number))

    @property
    def words(self) -> str:
        """The name as people write it."""
        base = {"step": f"{self.number}-step", "order": f"order {self.number}", "lag": f"lag {self.number}"}
        told = self.base.replace("_", " ") if self.number is None else base[self.base]
        return f"in-context {told}" if self.in_context else told


def in_words(predictor: str) -> str:
    """The name of an exact predictor as people write it.

    Example:
        >>> in_words("in_context_bigram"), in_words("step_2")
        ('in-context bigram', '2-step')
    """
    return LawName.read(predictor).words


def token_names(lag: int, query_shift: int, source: int) -> tuple[str, ...]:
    """Returns what a token is called, by its distance from the position that reads it.

    The parent is the token that the next one depends on.

    Args:
        lag: Counted from the predicted token.
        query_shift: `Batch.parent_lag`: 1 behind a query token, else 0.
        source: The lag of the source's parent; 0 where it has none (`has_one_parent`).

    Example:
        >>> token_names(1, 0, 1), token_names(2, 0, 1), token_names(3, 0, 3)
        (('parent', 'current token'), ('previous token',), ('parent', '2 tokens back'))
    """
    back = lag - 1 + query_shift
    name = {-1: "query token", 0: "current token", 1: "previous token"}.get(back, f"{back} tokens back")
    return ("parent", name) if lag == source else (name,)


def tokens_back(name: str) -> int | None:
    """Returns how many tokens back a name of `token_names` is; None of one that is called otherwise.

    Example:
        >>> tokens_back("3 tokens back"), tokens_back("current token")
        (3, None)
    """
    match = _BACK.fullmatch(name)
    return None if match is None else int(match[1])
