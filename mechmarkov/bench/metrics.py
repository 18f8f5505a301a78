"""The metrics that an effect can be stated in. Each is larger the farther a model is from its clean answer.

A claim under one metric says nothing of the size of an effect under another.
"""

from jaxtyping import Float
from torch import Tensor

from mechmarkov.objectives import Objective
from mechmarkov.theory.kernel import FLOOR

# Name of each metric: what an effect is under it.
METRICS: dict[str, str] = {
    "logit-difference": "fall of the expected logit of the clean answer less that of the corrupt one",
    "kl": "KL from the clean output to the changed one (nats)",
    "nats": "rise of the expected loss under the exact law (nats)",
}
UNSIGNED = "kl"  # it is 0 at the clean output and nowhere below: its effects have no sign

Scores = Float[Tensor, "batch read state"]
Law = Float[Tensor, "batch read state"]


def logit_difference(scores: Scores, law: Law, corrupt_law: Law) -> Float[Tensor, "batch read"]:
    """Minus the expected score of an answer drawn from the clean law, less that of one from the corrupt law.

    Where both laws are certain it is minus the logit difference of Wang et al. (2022, arXiv 2211.00593).

    Example:
        >>> import torch
        >>> scores = torch.tensor([[[3.0, 1.0]]])
        >>> clean, corrupt = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
        >>> logit_difference(scores, clean, corrupt)
        tensor([[-2.]])
    """
    return -((law - corrupt_law) * scores).sum(-1)


def kl_from(output: Law, objective: Objective, scores: Scores) -> Float[Tensor, "batch read"]:
    """KL from what a model predicted to what these scores predict (nats).

    Example:
        >>> import torch
        >>> kl_from(torch.tensor([[[0.5, 0.5]]]), Objective(), torch.tensor([[[0.0, 0.0]]]))
        tensor([[0.]])
    """
    if objective.kind == "cross_entropy":
        log = scores.log_softmax(-1)
    else:
        log = objective.predict(scores).clamp_min(FLOOR).log()
    return (output * (output.clamp_min(FLOOR).log() - log)).sum(-1)
