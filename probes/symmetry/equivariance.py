"""Does a model treat relabelled states equally?"""

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.curvature.population import Population
from mechmarkov.probing.chunking import chunked
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.symmetry import Permutation

MAX_SEQUENCES = 128  # relabelled ones among them
MIN_SEQUENCES = 4


def relabel(states: torch.Tensor, g: Permutation) -> torch.Tensor:
    """States, and whatever tokens there are beyond them, renamed.

    Args:
        states: Any array of states and of tokens beyond them, such as one that begins a sequence.
        g: The permutation: state x becomes `g[x]`.

    Example:
        >>> relabel(torch.tensor([0, 1, 2, 3]), (1, 2, 0)).tolist()
        [1, 2, 0, 3]
    """
    beyond = range(len(g), max(len(g), int(states.max()) + 1))
    return torch.tensor([*g, *beyond])[states]


@torch.no_grad()
def equivariance_error(
    subject: Subject, population: Population, group: list[Permutation]
) -> Float[np.ndarray, " member"]:
    """`E|f(gX) - P_g f(X)| / E|f(X)|`, the mean over the relabellings g but the identity.

    Under a softmax a score has no zero of its own, and f is the prediction. NaN where all scores are zero.

    Args:
        subject: The models: `Subject.of(run)`.
        population: The sequences X: `population_of(subject)`.
        group: The relabellings that leave the source as it is.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.curvature.population import population_of
        >>> subject = mm.Subject.of(mm.example("trap"), sequences=8)
        >>> turns = [tuple((x + m) % 6 for x in range(6)) for m in range(6)]
        >>> equivariance_error(subject, population_of(subject), turns).round(3)
        array([0.])
    """
    moves = [g for g in group if g != tuple(range(len(g)))]
    tokens = population.tokens[:, 0]
    tokens = tokens[: max(MIN_SEQUENCES, MAX_SEQUENCES // (len(moves) + 1))]
    softmax = subject.objective.kind == "cross_entropy"
    by_chunk = []
    for chunk in chunked(subject.decoder, tokens, subject.chunk_elements, sequences=len(tokens)):

        def scores(of: torch.Tensor, model: torch.nn.Module = chunk.model) -> torch.Tensor:
            out: torch.Tensor = model(of, read=population.read).double()
            return out.softmax(-1) if softmax else out

        plain = scores(tokens)
        size = plain.norm(dim=-1).mean((-2, -1))
        moved = (scores(relabel(tokens, g))[..., list(g)] for g in moves)  # entry y: the score of g y
        errors = [(one - plain).norm(dim=-1).mean((-2, -1)) for one in moved]
        by_chunk.append(torch.stack(errors).mean(0) / size)
    return torch.cat(by_chunk).numpy()
