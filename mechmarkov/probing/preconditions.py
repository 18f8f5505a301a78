"""What a source must be for a question to make sense, each as one line why it is not."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.sources import CausalGraph, DirichletChains, FixedChain, Observed, Source, Stationary
from mechmarkov.sources.base.lagged import Lagged
from mechmarkov.sources.sampling.symmetries import SymmetriesUnknownError

# Beyond, the automorphisms of P take minutes.
MAX_SYMMETRY_STATES = 256

ROUNDING = 1e-9  # of a probability: laws that differ by less coincide


def why_no_table(source: Source) -> str | None:
    """Returns why no one table of successors could be held in weights, or None.

    Example:
        >>> why_no_table(DirichletChains(n_states=3))
        'the source redraws its chain for every sequence, so no fixed table could hold it'
    """
    if source.redraws:
        return "the source redraws its chain for every sequence, so no fixed table could hold it"
    if not isinstance(source, Stationary):
        return "the source is not stationary: no single table says what follows a state"
    return None


def why_no_bigram(source: Source) -> str | None:
    """Returns why there is no bigram to be stored in weights, or None; for a chain there always is.

    Example:
        >>> import mechmarkov as mm
        >>> why_no_bigram(mm.Circle(n_states=4, p=0.5)) is None
        True
    """
    if isinstance(source, FixedChain) or not isinstance(source, Stationary):
        return why_no_table(source)
    # Rows that are the unigram, up to the rounding of a few hundred float64 additions.
    if np.abs(source.P - source.pi)[source.pi > 0].max() < 1e-12:
        return "neighbours are independent in this source, so there is no bigram to store"
    return why_no_table(source)


def why_no_chain(source: Source, so: str) -> str | None:
    """Returns why the source is not one first-order chain, or None.

    Args:
        source: The source.
        so: What cannot be where every sequence has a chain of its own.

    Example:
        >>> import mechmarkov as mm
        >>> why_no_chain(mm.DirichletChains(n_states=3), so="no P to compare with")
        'the source redraws its chain for every sequence, so no P to compare with'
    """
    if source.redraws:
        return f"the source redraws its chain for every sequence, so {so}"
    if not isinstance(source, FixedChain):
        if getattr(source, "order", None) == 1:
            form = "estimated from sequences" if isinstance(source, Observed) else "in another form"
            return f"the source is a first-order chain {form}: as mm.Chain(source.P) its symmetries are known"
        return "the source is not a first-order chain, the only kind whose symmetries are known"
    if source.n_states > MAX_SYMMETRY_STATES:
        return f"{source.n_states} states are more than the {MAX_SYMMETRY_STATES} whose symmetries are sought"
    try:
        source.automorphism_generators()
    except SymmetriesUnknownError as error:
        return str(error)
    return None


def why_no_value_circuit(decoder: HookedDecoder) -> str | None:
    """Returns why no head's values say by a table of tokens what it writes, or None: no mixer is linear."""
    mixers: list[Any] = [block.attn for block in cast("list[Any]", decoder.blocks)]
    if any(mixer.is_linear for mixer in mixers):
        return None
    kind = type(mixers[0]).__name__
    return f"no value circuit is a table: what {kind} writes is not linear in its values"


def why_no_token_is_read(decoder: HookedDecoder) -> str | None:
    """Returns why attention does not tell which token is read, or None.

    In a state space with a convolution a position holds parts of several tokens.
    """
    if why_no_value_circuit(decoder) is None or (tokens := decoder.config.d_conv or 1) == 1:
        return None
    return f"a position holds a convolution of its last {tokens} tokens: attention does not say which is read"


def parent_lag(source: Source) -> int:
    """The lag of the one token that the next one depends on: 1, unless the source says otherwise.

    Example:
        >>> from mechmarkov.sources import LaggedChain
        >>> parent_lag(LaggedChain([[0.9, 0.1], [0.1, 0.9]], lag=3))
        3
    """
    return source.lag if isinstance(source, Lagged) else 1


def has_one_parent(source: Source) -> bool:
    """Returns whether the next token depends on one token before it, by the law of each sequence.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> has_one_parent(Circle(n_states=3, p=0.5))
        True
    """
    if isinstance(source, (FixedChain, Lagged)):
        return True
    if isinstance(source, DirichletChains) and source.rows == "alike":
        return False  # given the law of their sequence, tokens are independent
    order = getattr(source, "order", None)
    return source.redraws and not isinstance(source, CausalGraph) if order is None else bool(order == 1)


def is_determined(source: Source) -> bool:
    """Returns whether any token of a sequence determines all others: each state has one next and one before.

    Example:
        >>> from mechmarkov.sources import Chain, Circle
        >>> is_determined(Chain([[0, 1], [1, 0]])), is_determined(Circle(n_states=3, p=0.5))
        (True, False)
    """
    if not isinstance(source, FixedChain):
        return False
    seen = source.pi > 0
    certain = source.P[np.ix_(seen, seen)] == 1
    return bool((certain.sum(0) == 1).all() and (certain.sum(1) == 1).all())


def predictor_of(source: Source, name: str) -> str:
    """The name of the exact "unigram" or "bigram" of a source: in context where sequences have own chains.

    Example:
        >>> predictor_of(DirichletChains(n_states=3), "bigram")
        'in_context_bigram'
    """
    return f"in_context_{name}" if source.redraws else name


def best_of(source: Source, exact: Mapping[str, Float[np.ndarray, "batch read state"]]) -> str | None:
    """Returns the name of the best exact predictor, that of the bigram where these coincide; None if unknown.

    Args:
        source: The source.
        exact: What its exact predictors say on some sequences, by name.

    Example:
        >>> from mechmarkov.sources import HiddenMarkov
        >>> source = HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[1, 0], [0, 1]])
        >>> tokens = np.array([[0, 1, 1, 0]])
        >>> exact = {name: law.probabilities(tokens) for name, law in source.predictors().items()}
        >>> source.best().name, best_of(source, exact)
        ('forward_filter', 'bigram')
    """
    if isinstance(best := source.best(), str):
        return None
    bigram = predictor_of(source, "bigram")
    if {best.name, bigram} <= exact.keys() and np.allclose(exact[best.name], exact[bigram], 0, ROUNDING):
        return bigram
    return best.name
