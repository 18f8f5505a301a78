"""Which of some causes is behind a sequence, by Bayes' rule."""

import numpy as np
from jaxtyping import Float
from scipy.special import softmax


def posterior(
    evidence: Float[np.ndarray, "cause batch position"], prior: Float[np.ndarray, " cause"]
) -> Float[np.ndarray, "batch position cause"]:
    """Returns P(cause | tokens up to and including each position), by Bayes' rule.

        P(c | x_0..t) ∝ prior(c) exp(sum over s <= t of evidence[c, b, s])

    Evidence is in nats, of each token given those before it: not summed. Where all causes are excluded, the
    result is `prior`, which sums to 1.

    Example:
        >>> evidence = np.log([[[0.5, 0.9, 0.9]], [[0.5, 0.1, 0.1]]])
        >>> posterior(evidence, np.array([0.5, 0.5])).round(3).tolist()
        [[[0.5, 0.5], [0.9, 0.1], [0.988, 0.012]]]
    """
    with np.errstate(divide="ignore"):
        weight = np.log(prior)[:, None, None] + evidence.cumsum(axis=-1)
        none_left = np.isinf(weight.max(axis=0))
        weight = np.where(none_left, np.log(prior)[:, None, None], weight)
    return np.moveaxis(softmax(weight, axis=0), 0, -1)
