"""The rule that turns scores into a badge: solved, partly, at the unigram, another law, trapped or untrained.

The first number is the progress of the loss: 0 at the unigram's loss, 1 at the lowest loss that any exact
predictor reaches on the same sequences. A model with the unigram's loss predicts the unigram only if the
divergence from it is small too.
"""

from dataclasses import dataclass
from typing import Literal

from mechmarkov.utils.text import format_share

Badge = Literal["solved", "partly", "at the unigram", "another law", "trapped", "untrained"]

SOLVED_PROGRESS = 0.9  # at least
UNIGRAM_PROGRESS = 0.1  # within this of the unigram's loss, on either side
UNIGRAM_KL = 0.1  # KL from the unigram, as a share of the way from its loss to the best
# A loss on scores has another optimum than cross-entropy: there the circuit and the accuracy decide.
SOLVED_COSINE = 0.99
SOLVED_ACCURACY = 0.99  # share of the highest accuracy that is possible
MIN_GAP_NATS = 0.01  # between the unigram and the best; below, there is nothing to tell them by
MAX_TITLE_WORDS = 12


@dataclass(frozen=True)
class Evidence:
    """The scores that decide the badge.

    Attributes:
        loss: Cross-entropy of the model, nats.
        unigram_loss: That of the unigram.
        best_loss: The lowest of any exact predictor.
        kl_unigram: KL from the unigram to the model, nats.
        untouched: Whether the model has made no step yet.
        trapped: Whether symmetry holds it (`symmetry`).
        kernel_cosine: Of the best path with its target, where the loss is on scores (`alignment`).
        accuracy_share: Accuracy as a share of the highest possible.
        nearest_is_best: Whether the nearest exact predictor is the best one, or as near.
        nearest_is_unigram: The same of the unigram.
        best_is_unigram: Whether the best predictor is the unigram.
    """

    loss: float
    unigram_loss: float
    best_loss: float
    kl_unigram: float = 0.0
    untouched: bool = False
    trapped: bool = False
    kernel_cosine: float | None = None
    accuracy_share: float | None = None
    nearest_is_best: bool = True
    nearest_is_unigram: bool = True
    best_is_unigram: bool = False

    @property
    def gap(self) -> float:
        """What the best predictor gains over the unigram, nats."""
        return self.unigram_loss - self.best_loss

    @property
    def progress(self) -> float:
        """Share of the way from the unigram's loss to the best."""
        if self.gap < MIN_GAP_NATS:
            return 1.0 if self.loss - self.best_loss < MIN_GAP_NATS else -1.0
        return (self.unigram_loss - self.loss) / self.gap


def badge(evidence: Evidence) -> Badge | None:
    """The one word for a model; None where unigram and best are too near to be told apart.

    >>> badge(Evidence(loss=0.75, unigram_loss=1.5, best_loss=0.7))
    'solved'
    >>> badge(Evidence(loss=1.5, unigram_loss=1.5, best_loss=0.7, trapped=True))
    'trapped'
    >>> badge(Evidence(loss=1.5, unigram_loss=1.5, best_loss=0.7, kl_unigram=0.4))
    'another law'
    """
    alike = evidence.gap < MIN_GAP_NATS and evidence.progress > 0 and not evidence.best_is_unigram
    learned = evidence.progress >= SOLVED_PROGRESS or _circuit_is_exact(evidence)
    if learned and evidence.nearest_is_best and not alike:
        return "solved"
    if evidence.untouched:
        return "untrained"
    if alike:
        return None
    if evidence.progress > UNIGRAM_PROGRESS:
        return "partly"
    if evidence.trapped:
        return "trapped"
    near = evidence.nearest_is_unigram and evidence.kl_unigram <= UNIGRAM_KL * evidence.gap
    return "at the unigram" if near and evidence.progress >= -UNIGRAM_PROGRESS else "another law"


def _circuit_is_exact(evidence: Evidence) -> bool:
    cosine, accuracy = evidence.kernel_cosine or 0.0, evidence.accuracy_share or 0.0
    return cosine >= SOLVED_COSINE and accuracy >= SOLVED_ACCURACY


def title(word: Badge | None, evidence: Evidence, best: str, how: str) -> str:
    """The verdict in at most twelve words.

    Args:
        word: The badge; None where there is none.
        evidence: What decided it.
        best: Name of the best exact predictor: "bigram".
        how: Who does it, in words: "one head reads the parent"; "" where no probe tells.

    >>> title("solved", Evidence(0.7, 1.5, 0.7), "bigram", "L0H0 reads the parent")
    'Learned the bigram: L0H0 reads the parent'
    """
    if word is None:
        return f"Undecided: the unigram is within {MIN_GAP_NATS:g} nats of the {best}"
    if word == "solved":
        learned = "Learned the" if evidence.progress >= SOLVED_PROGRESS else "Has the circuit of the"
        return f"{learned} {best}" + (f": {how}" if how else "")
    if word == "partly":
        return f"Partly learned: {format_share(evidence.progress)} of the way from unigram to {best}"
    if word == "trapped":
        return "Trapped by symmetry: no gradient tells one state from another"
    if word == "at the unigram":
        return f"At the unigram: under {UNIGRAM_PROGRESS:.0%} of the way to the {best}"
    if word == "another law":
        neither = "Not the unigram" if best.endswith("unigram") else f"Neither unigram nor {best}"
        where = "above" if evidence.progress < -UNIGRAM_PROGRESS else "near"
        return f"{neither}: its loss is {where} the unigram's"
    return "Untrained: no step was made"
