"""Names and numbers in sentences: predictors, parts, tokens and events; nats, shares and intervals."""

from collections.abc import Sequence

from mechmarkov.claims.claim import MODEL, Claim
from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing.names import LawName, tokens_back
from mechmarkov.utils.text import clean, format_number, format_range, format_share, listed

MAX_NAMED = 3  # names that a sentence lists; of more it says how many
TINY = 1e-6  # of a number of nats; below, it is said to be under that
DIGITS = 3
MAX_WORDS = 20  # of a sentence

PARTS = {
    "direct": "the direct path",
    "embed": "the embedding",
    "pos_embed": "the positions",
    "bias": "the output bias",
    MODEL: "the model",
}
# Predictors whose names are not nouns.
LAWS = {
    "uniform": "uniform law",
    "all words": "law of all words",
    "bag of words": "bag-of-words law",
    "belief over graphs": "law averaged over graphs",
    "context conditioned": "context-conditioned law",
    "context tree weighting": "context tree weighting",
    "neighbours": "law of neighbours seen",
    "position": "law of the position",
    "posterior lag": "law of the likeliest lag",
    "repeat output": "law that repeats outputs",
    "switching": "switching law",
    "without task": "task-blind filter",
}
BARE_PARTS = {"direct": "direct path", "embed": "embedding", "pos_embed": "positions", "bias": "output bias"}
EVENTS = {
    "unigram": ("the", "unigram"),
    "bigram": ("the", "bigram"),
    "best": ("the", "best law"),
    "selection": ("", "attention on the parent"),
    "previous_token_head": ("a", "previous-token head"),
    "induction_head": ("an", "induction head"),
    "graph_head": ("a", "head along the graph"),
}


def law(name: str) -> str:
    """Returns an exact predictor's name with its article.

    Example:
        >>> law("in_context_bigram"), law("step_2"), law("uniform")
        ('the in-context bigram', 'the 2-step law', 'the uniform law')
    """
    return f"the {bare_law(name)}"


def bare_law(name: str) -> str:
    """Returns an exact predictor's name without an article."""
    parts = LawName.read(clean(name))
    if parts.number is None:
        return LAWS.get(parts.words, parts.words)
    numbered = {"step": f"{parts.number}-step law", "lag": f"law of lag {parts.number}"}
    told = numbered.get(parts.base, f"{parts.number + 1}-gram")
    return f"in-context {told}" if parts.in_context else told


def simplest(names: Sequence[str]) -> str:
    """Returns, of laws that coincide, the first that is not the uniform law."""
    return next((name for name in names if name != "uniform"), names[0])


def part(name: str) -> str:
    """Returns a component's name in a sentence: heads and MLPs by their names."""
    if (layer := mlp_index(name)) is not None:
        return f"the MLP of layer {layer}"
    return PARTS.get(name, clean(name))


def bare_parts(names: Sequence[str]) -> str:
    """Returns the label of what several components are worth together."""
    return " + ".join(map(clean, names)) if len(names) <= MAX_NAMED else f"{len(names)} parts together"


def bare_part(name: str) -> str:
    """Returns a component's name without an article, as the label of a bar."""
    return (
        f"MLP of layer {layer}"
        if (layer := mlp_index(name)) is not None
        else BARE_PARTS.get(name, clean(name))
    )


def parts(names: Sequence[str]) -> str:
    """Returns names of components as words: a list of up to three, otherwise how many they are.

    Without names "". Unknown names stay as they are.

    Example:
        >>> parts(["direct", "L0.mlp"]), parts(["L0H0", "L0H1", "L0H2", "L0H3"])
        ('the direct path and the MLP of layer 0', '4 heads of layer 0')
        >>> parts(["L0.mlp", "L0H0", "L1.mlp"])
        'the MLPs of layers 0 and 1 and L0H0'
    """
    if len(names) > MAX_NAMED:
        layers = {None if (head := head_index(name)) is None else head[0] for name in names}
        if None in layers:
            return f"{len(names)} parts"
        return f"{len(names)} heads of layer {layers.pop()}" if len(layers) == 1 else f"{len(names)} heads"
    mlps = {name: str(layer) for name in names if (layer := mlp_index(name)) is not None}
    together = f"the MLPs of layers {listed(list(mlps.values()))}"
    told = [together if len(mlps) > 1 and name in mlps else part(name) for name in names]
    return listed(list(dict.fromkeys(told)))


def heads(names: Sequence[str]) -> str:
    """Returns heads in a list, or how many they are."""
    return listed([clean(name) for name in names]) if len(names) <= MAX_NAMED else f"{len(names)} heads"


def some(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are, if that is more than one.

    Example:
        >>> some("abcd"), some("abcde")
        ('a, b, c and d', 'a, b, c and 2 more')
    """
    more = len(names) - MAX_NAMED
    if more == 1:
        return listed([clean(name) for name in names])
    return listed([clean(name) for name in names[:MAX_NAMED]] + [f"{more} more"] * (more > 0))


def token(names: Sequence[str]) -> str:
    """Returns a token by its distance from the position that reads it.

    Example:
        >>> token(("parent", "current token")), token(("3 tokens back",)), token(("previous token",))
        ('the current token', 'the token 3 back', 'the previous token')
    """
    back = tokens_back(names[-1])
    return f"the {names[-1]}" if back is None else f"the token {back} back"


def event(name: str, claim: Claim | None = None) -> str:
    """Returns what comes, with its article; the token that is selected by its name, where the claim has it."""
    article, noun = EVENTS.get(name, ("", ""))[0], bare_event(name, claim)
    return f"{article} {noun}" if article else noun


def bare_event(name: str, claim: Claim | None = None) -> str:
    """Returns what comes without an article."""
    parent = None if claim is None or name != "selection" else claim.condition("the parent")
    return EVENTS.get(name, ("", clean(name)))[1] if parent is None else f"attention on {token(parent.words)}"


def fitting(*ways: str) -> str:
    """Returns the first of these, the fullest first, that has at most 20 words; otherwise the last.

    Example:
        >>> fitting("It is closest to the bigram (KL 0.2 nats)", "It is closest to the bigram")
        'It is closest to the bigram (KL 0.2 nats)'
    """
    return next((text for text in ways if len(text.split()) <= MAX_WORDS), ways[-1])


def upper(sentence: str) -> str:
    """Returns a sentence that begins with a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def verb(names: Sequence[str], singular: str, plural: str) -> str:
    """Returns the form of a verb for a number of subjects."""
    return singular if len(names) == 1 else plural


def nats(value: float | None, unit: str = "nats") -> str:
    """Returns a number of nats, or that it is under 10⁻⁶.

    Example:
        >>> nats(0.2234), nats(3e-9), nats(-0.5)
        ('0.223 nats', 'under 10⁻⁶ nats', '−0.5 nats')
    """
    if value is None:
        return f"an unknown number of {unit}"
    return f"{number(value, unit)} {unit}"


def number(value: float, unit: str = "") -> str:
    """Returns a number with three digits; of nats nothing below 10⁻⁶."""
    if unit.startswith("nats") and 0 < abs(value) < TINY:  # below zero by rounding
        return "under 10⁻⁶"
    return format_number(value, DIGITS)


def within(claim: Claim) -> str:
    """Returns a claim's interval in brackets, with a space before it; nothing where there is none."""
    if claim.interval is None:
        return ""
    low, high = claim.interval
    if claim.unit in ("probability", "share"):
        ends = dict.fromkeys(format_share(min(1.0, max(0.0, end)) if claim.unit == "probability" else end, 1)
                             for end in (low, high))  # fmt: skip
        return "" if len(ends) == 1 else f" ({' to '.join(ends)})"
    if format_number(low, DIGITS) == format_number(high, DIGITS):
        return ""
    if claim.unit == "nats" and max(abs(low), abs(high)) < TINY:
        return ""
    return f" ({format_range(low, high, DIGITS)})"


def share(value: float | None, decimals: int = 0) -> str:
    """Returns a share in percent; 0 and 1 are not written for what is only near them."""
    return "some" if value is None else format_share(value, decimals)
