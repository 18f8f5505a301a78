"""Doubts about a whole result: outputs that are not numbers, and reasons for a warning."""

from collections.abc import Iterable, Iterator

import numpy as np

from mechmarkov.probing.estimated_law import law_in_words
from mechmarkov.probing.recording import SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Observed
from mechmarkov.utils.text import counted

MAX_LOGIT = float(1 << 24)  # float32 has 24 bits
MAX_SCORE = 1e18
# Below this many the means that ablation puts in are largely a sequence's own, and intervals too narrow.
FEW_SEQUENCES = 16


def check_outputs(subject: Subject) -> None:
    """Refuse a model whose outputs are not finite, or so large that float32 does not tell them apart.

    Raises:
        ValueError: Naming the step.
    """
    outputs, most = subject.recorded(SCORES), MAX_SCORE
    what, why = "outputs", "squares overflow beyond it"
    if subject.objective.kind == "cross_entropy":
        most, what, why = MAX_LOGIT, "logits", "beyond it float32 rounds by more than a nat"
    for step, scores in zip(subject.coordinates, outputs, strict=True):
        if not np.isfinite(scores).all():
            raise ValueError(
                f"the model's outputs at step {step} are not finite, expected numbers: its weights are "
                "damaged or it has diverged; choose other steps"
            )
        if (largest := float(np.abs(scores).max(initial=0.0))) > most:
            raise ValueError(
                f"the model's {what} at step {step} reach {largest:.3g}, expected at most {most:.3g}: {why}; "
                "choose other steps"
            )


def warnings_of(subject: Subject, doubts: Iterable[str | None], law_draws: int) -> Iterator[str]:
    """Yields why the whole may not mean what it says, a sentence each.

    Args:
        subject: The models and their sequences.
        doubts: Reasons to think that the source is another one; None for what was looked at and is right.
        law_draws: How often an estimated law is drawn again.
    """
    run, (n_sequences, n_read) = subject.run, subject.batch.tokens.shape
    yield from (f"the source may be the wrong one: {doubt}" for doubt in doubts if doubt is not None)
    if isinstance(run.source, Observed):
        yield law_in_words(run.source, law_draws)
        if (doubt := run.source.doubt_of_one_law()) is not None:
            yield doubt
    if n_read < run.config.n_ctx:
        yield (
            f"the sequences have {n_read + 1} states, so that {n_read} positions have a next state to "
            f"predict: the last {run.config.n_ctx - n_read} of the context are not evaluated"
        )
    if n_sequences < FEW_SEQUENCES:
        yield (
            f"evaluated on only {counted(n_sequences, 'sequence')}: with fewer than {FEW_SEQUENCES}, "
            "intervals are too narrow, and effects of means too small"
        )


def evaluation_of(subject: Subject, seed: int | str) -> dict[str, int | str]:
    """Returns which sequences were evaluated."""
    n_sequences, n_read = subject.batch.tokens.shape
    positions = {"positions": n_read} if n_read < subject.config.n_ctx else {}
    return {"sequences": n_sequences, "their seed": seed, **positions}
