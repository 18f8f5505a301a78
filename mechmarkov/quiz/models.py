"""The hidden models of a key: set by hand, decoys, empty ones and trained ones, with their heads shuffled."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mechmarkov.bench.case import Case, case_of
from mechmarkov.bench.cases import CASES
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.quiz.questions import Question, questions_of, truth_of
from mechmarkov.sources import Chain
from mechmarkov.utils.errors import integer_of
from mechmarkov.utils.text import is_utf8, shown

KEY = "public"  # of the set whose answers anybody can look up
MAX_MODELS = 64
MAX_KEY = 200  # characters

SET_BY_HAND = ("direct", "head", "mlp", "split", "cancel", "backup", "induction", "order-2", "trigram")
DECOYS = ("plateau", "trap")  # heads or tables that are not used
TRAINED = ("trained-walk", "trained-trigram", "trained-lagged", "trained-selective", "trained-induction")
EMPTY = "fresh"  # never trained
KINDS: dict[str, Sequence[str]] = {
    "set by hand": SET_BY_HAND,
    "a decoy": DECOYS,
    "trained": TRAINED,
    "empty": (EMPTY,),
}
PER_HEAD = re.compile(r"blocks\.(\d+)\.attn\.(?:W|b)_[QKV]|blocks\.(\d+)\.attn\.W_O")


@dataclass(frozen=True, eq=False)
class Hidden:
    """A hidden model.

    Attributes:
        name: What it is called in the quiz: `model-1`, ….
        kind: How it was made: set by hand, a decoy, trained, or empty.
        case: The model, its source and how its outputs are read.
    """

    name: str
    kind: str
    case: Case

    @property
    def questions(self) -> list[Question]:
        """Everything that is asked of it."""
        return questions_of(self.case.model, self.case.source, self.case.objective)

    def truth(self) -> dict[Question, float]:
        """The value of every question (nats, or a probability)."""
        return truth_of(self.case.model, self.case.source, self.case.objective)


def hidden_models(key: str, count: int, progress: Callable[[str], object] | None = None) -> list[Hidden]:
    """The models of a key, in their order; each kind is there once before one is there twice.

    Args:
        key: Any text. The same key and count give the same models.
        count: How many.
        progress: Told the name of each that is made; a trained one takes seconds.

    Raises:
        ValueError: A key without a character or of more than 200, or a count that is not from 1 to 64.

    Example:
        >>> [hidden.name for hidden in hidden_models("an example", 2)]
        ['model-1', 'model-2']
    """
    integer_of("models", count, least=1, most=MAX_MODELS)
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or not is_utf8(key):
        raise ValueError(f"key is {shown(key)}, expected a text of 1 to {MAX_KEY} characters")
    draw = np.random.default_rng(list(hashlib.sha256(key.encode()).digest()))
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += draw.permutation(list(KINDS)).tolist()
    found = []
    for number, kind in enumerate(kinds[:count], 1):
        case = str(draw.choice(KINDS[kind]))
        seed = int(draw.integers(1 << 30))
        made = _fresh(seed) if case == EMPTY else CASES[case](seed)
        found.append(Hidden(f"model-{number}", kind, _shuffled(made, draw)))
        if progress is not None:
            progress(found[-1].name)
    return found


def _fresh(seed: int) -> Case:
    """A chain, and a model of two layers that never saw it."""
    draw = np.random.default_rng(seed)
    shape = DecoderConfig(n_layers=2, d_model=16, n_ctx=8, d_head=8, n_heads=2, d_vocab=4, attn_only=True)
    model = HookedDecoder(shape)
    initialise(model, [seed])
    return case_of(EMPTY, "", model, Chain(draw.dirichlet(np.ones(4), size=4)), seed=seed)


def _shuffled(case: Case, draw: np.random.Generator) -> Case:
    """The case with the heads of each layer in another order, which changes no output."""
    orders = [
        torch.from_numpy(draw.permutation(case.model.config.n_heads))
        for _ in range(case.model.config.n_layers)
    ]
    weights = {}
    for name, value in case.model.state_dict().items():
        match = PER_HEAD.fullmatch(name)
        weights[name] = value if match is None else value[orders[int(match[1] or match[2])]]
    model = HookedDecoder(case.model.config).double().requires_grad_(False)
    model.load_state_dict(weights)
    return replace(case, name="", question="", model=model)
