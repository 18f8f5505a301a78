"""Losses and accuracies, and what is lost to the best predictor that is known."""

import numpy as np
from jaxtyping import Float

from mechmarkov.probing.dataset import Variables, variables
from mechmarkov.sources import Tokenised
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import FLOOR, kl

from .after_states import mean_after_states
from .compared import Compared


def of_losses(seen: Compared) -> Variables:
    """Losses on the states that came next, the expected loss beyond the best, and the unigram's (nats).

    Args:
        seen: The models' predictions.
    """
    axis, rare, best = seen.subject.axis, seen.rare, seen.best
    losses = _losses(seen.model, seen.onehot)
    of_each = np.stack([_losses(p, seen.onehot) for p in seen.laws])
    if isinstance(best, str):
        lowest = of_each[of_each.mean((1, 2)).argmin()]
        excess, gap = (losses - lowest).mean(-1), (of_each[seen.at_unigram] - lowest).mean(-1)
        rare_error: Float[np.ndarray, " member"] | float = 0.0
    else:
        at_best = [*seen.subject.exact].index(best.name)
        excess, rare_error = seen.kl[:, at_best], rare.kl_error[:, at_best]
        gap = (kl(seen.truth, seen.laws[seen.at_unigram]) * rare.common).mean(-1) + rare.gaps[seen.at_unigram]
    left, left_error = ratio(excess, gap) if gap.any() else np.full((2, len(losses)), np.nan)
    if gap.any():
        left_error = np.hypot(left_error, rare_error / gap.mean())
    above = excess - gap  # the unigram's, of the same sequences
    above_error = np.hypot(standard_error(above), rare_error)
    after = mean_after_states(seen.subject, losses[..., None])[..., 0]
    return (
        variables("nats", axis, loss=losses.mean((1, 2)))
        | variables("nats", axis, excess=excess.mean(-1))
        | variables("nats", (), gap=gap.mean())
        | variables("share", axis, left=left, left_error=left_error)
        | variables("nats", axis, above_unigram=above.mean(-1), above_unigram_error=above_error)
        | variables("nats", "predictor", predictor_loss=of_each.mean((1, 2)))
        | variables("nats", (axis, "state_from"), loss_after=after)
        | _beyond_the_best(seen, losses)
        | _per_symbol(seen, losses)
    )


def _beyond_the_best(seen: Compared, losses: Float[np.ndarray, "member batch read"]) -> Variables:
    """The best predictor's loss, and what other exact ones lose to it; nothing where none is known."""
    if isinstance(seen.best, str):
        return {}
    best_losses = _losses(seen.truth, seen.onehot)
    above = np.array([(kl(seen.truth, p) * seen.rare.common).mean() for p in seen.laws]) + seen.rare.gaps
    error = standard_error((losses - best_losses).mean(-1))
    return (
        variables("nats", (), best_loss=best_losses.mean())
        | variables("nats", "predictor", predictor_excess=above)
        | variables("nats", seen.subject.axis, excess_loss_error=error)
    )


def _per_symbol(seen: Compared, losses: Float[np.ndarray, "member batch read"]) -> Variables:
    """Losses of models of tokens on each symbol of the source, and the least that can be lost."""
    source = seen.subject.source
    if not isinstance(source, Tokenised):
        return {}
    symbols = np.array([len(label) for label in source.labels])[seen.subject.batch.targets.numpy()].sum(-1)
    value, error = ratio(losses.sum(-1), symbols)
    least = getattr(source, "symbol_entropy_rate", np.nan)  # not known of every source
    unit = "nats a symbol"
    of_models = variables(unit, seen.subject.axis, loss_per_symbol=value, loss_per_symbol_error=error)
    return of_models | variables(unit, (), least_per_symbol=least)


def accuracies(seen: Compared) -> Variables:
    """The probability that the likeliest state is the next one, of models and of exact predictors.

    Args:
        seen: The models' predictions.
    """
    axis, right = seen.subject.axis, _right(seen.model, seen.truth)
    of_each = np.array([_right(p, seen.truth).mean() for p in seen.laws])
    after = mean_after_states(seen.subject, right[..., None])[..., 0]
    error = standard_error(right.mean(-1))
    known = {} if isinstance(seen.best, str) else {"optimal_accuracy": seen.truth.max(-1).mean()}
    return (
        variables("probability", axis, accuracy=right.mean((1, 2)), accuracy_error=error)
        | variables("probability", "predictor", predictor_accuracy=of_each)
        | variables("probability", (axis, "state_from"), accuracy_after=after)
        | variables("probability", (), **known)
    )


def _right(
    predicted: Float[np.ndarray, "*many state"], truth: Float[np.ndarray, "*some state"]
) -> Float[np.ndarray, "*many"]:
    """Returns how often the likeliest state is the next one (probability); ties are drawn among."""
    top = predicted >= predicted.max(-1, keepdims=True)
    return ((top / top.sum(-1, keepdims=True)) * truth).sum(-1)


def _losses(q: np.ndarray, onehot: np.ndarray) -> np.ndarray:
    """Cross-entropies (nats) of probabilities `[.., sequence, read, state]` on the states that came."""
    return np.asarray(-np.log(np.maximum((q * onehot).sum(-1), FLOOR)))
