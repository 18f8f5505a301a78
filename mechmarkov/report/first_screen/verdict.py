"""The rule that turns scores into a badge: solved, partly, at the unigram, another law, trapped or untrained.

The first number is the progress of the expected loss: 0 at the unigram's, 1 at that of the best exact
predictor. A word that stands for a range is used where the whole interval is in it. A model with the
unigram's loss predicts the unigram only if the divergence from it is small too.
"""

from dataclasses import dataclass
from typing import Literal

from mechmarkov.probing.dataset import MIN_GAP_NATS, normal_interval
from mechmarkov.utils.text import format_share

Badge = Literal["solved", "partly", "at the unigram", "another law", "trapped", "untrained"]

SOLVED_PROGRESS = 0.9  # at least
UNIGRAM_PROGRESS = 0.1  # within this of the unigram's loss, on either side
UNIGRAM_KL = 0.1  # KL from the unigram, as a share of the way from its loss to the best
# A loss on scores has another optimum than cross-entropy: there the circuit and the accuracy decide.
SOLVED_COSINE = 0.99
SOLVED_ATTENTION = 0.99  # of a head on the parent
SOLVED_ACCURACY = 0.99  # share of the highest accuracy that is possible
MAX_TITLE_WORDS = 12


@dataclass(frozen=True)
class Evidence:
    """The scores that decide the badge.

    Attributes:
        excess: What the model loses to the best exact predictor, nats.
        gap: What the unigram loses to it.
        error: Standard error of the progress.
        kl_unigram: KL from the unigram to the model, nats.
        untouched: Whether the model has made no step yet.
        trapped: Whether symmetry holds it (`symmetry`).
        kernel_cosine: Of the best path with its target, where the loss is on scores (`alignment`).
        parent_score: The most attention that a head gives the parent (`attention`).
        accuracy_share: Accuracy as a share of the highest possible.
        nearest_is_best: Whether the nearest exact predictor is the best one, or as near.
        nearest_is_unigram: The same of the unigram.
        best_is_unigram: Whether the best predictor is the unigram.
    """

    excess: float
    gap: float
    error: float = 0.0
    kl_unigram: float = 0.0
    untouched: bool = False
    trapped: bool = False
    kernel_cosine: float | None = None
    parent_score: float | None = None
    accuracy_share: float | None = None
    nearest_is_best: bool = True
    nearest_is_unigram: bool = True
    best_is_unigram: bool = False

    @property
    def tells_apart(self) -> bool:
        """Whether the unigram and the best are so far apart that a model can be between them."""
        return self.gap >= MIN_GAP_NATS

    @property
    def progress(self) -> float:
        """Share of the way from the unigram's loss to the best; where these are one, 1 near it and -1 far."""
        if self.tells_apart:
            return 1 - self.excess / self.gap
        return 1.0 if self.excess < MIN_GAP_NATS else -1.0

    @property
    def surely(self) -> tuple[float, float]:
        """The 95 % interval of the progress; of no way there is no share to be unsure of."""
        if not self.tells_apart:
            return self.progress, self.progress
        return normal_interval(self.progress, self.error)


def badge(evidence: Evidence) -> Badge | None:
    """The one word for a model; None where the unigram is not told apart from the best, or from the model.

    >>> badge(Evidence(excess=0.05, gap=0.8))
    'solved'
    >>> badge(Evidence(excess=0.05, gap=0.8, error=0.03))  # 0.94, or 0.88 to 1.00
    'partly'
    >>> badge(Evidence(excess=0.8, gap=0.8, trapped=True))
    'trapped'
    >>> badge(Evidence(excess=0.8, gap=0.8, kl_unigram=0.4))
    'another law'
    """
    alike = not evidence.tells_apart and evidence.progress > 0 and not evidence.best_is_unigram
    low, high = evidence.surely
    learned = low >= SOLVED_PROGRESS or circuit_is_exact(evidence)
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
    if high > UNIGRAM_PROGRESS and evidence.progress > 0:
        return "partly"
    near = evidence.nearest_is_unigram and evidence.kl_unigram <= UNIGRAM_KL * evidence.gap
    if not near or evidence.progress < -UNIGRAM_PROGRESS:
        return "another law"
    return "at the unigram" if high <= UNIGRAM_PROGRESS else None


def circuit_is_exact(evidence: Evidence) -> bool:
    """Whether a head reads the parent alone and looks it up in the target's table."""
    return (
        (evidence.kernel_cosine or 0.0) >= SOLVED_COSINE
        and (evidence.parent_score or 0.0) >= SOLVED_ATTENTION
        and (evidence.accuracy_share or 0.0) >= SOLVED_ACCURACY
    )


def title(word: Badge | None, evidence: Evidence, best: str, how: str) -> str:
    """The verdict in at most twelve words.

    Args:
        word: The badge; None where there is none.
        evidence: What decided it.
        best: Name of the best exact predictor: "bigram".
        how: Who does it, in words: "one head reads the parent"; "" where no probe tells.

    >>> title("solved", Evidence(0.0, 0.8), "bigram", "L0H0 reads the parent")
    'Learned the bigram: L0H0 reads the parent'
    """
    if word is None and evidence.tells_apart:
        return "Undecided: too few sequences tell it from the unigram"
    if word is None:
        return f"Undecided: the unigram is within {MIN_GAP_NATS:g} nats of the {best}"
    if word == "solved":
        learned = "Learned the" if evidence.surely[0] >= SOLVED_PROGRESS else "Has the circuit of the"
        return f"{learned} {best}" + (f": {how}" if how else "")
    if word == "partly":
        share = format_share(evidence.progress)
        return f"{share} towards the {best}: {how}" if how else f"{share} of the way from unigram to {best}"
    if word == "trapped":
        return "Trapped by symmetry: no gradient tells one state from another"
    if word == "at the unigram":
        return f"At the unigram: under {UNIGRAM_PROGRESS:.0%} of the way to the {best}"
    if word == "another law":
        neither = "Not the unigram" if best.endswith("unigram") else f"Neither unigram nor {best}"
        verb = "is near" if evidence.progress >= -UNIGRAM_PROGRESS else "is above"
        if verb == "is above" and evidence.surely[1] >= 0:
            verb = "may exceed"
        return f"{neither}: its loss {verb} the unigram's"
    return "Untrained: no step was made"
