"""The gradient norm of every model of a stack, from one backward pass a chunk."""

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.probing.chunking import chunked
from mechmarkov.probing.subject import Subject

SEQUENCES = 64  # a norm that is read to two digits
FORWARD_PASSES_HELD = 4  # a backward pass holds this many times what a forward pass does


def gradient_norms(subject: Subject, sequences: int = SEQUENCES) -> Float[np.ndarray, " member"]:
    """Norm of the gradient of the training loss on the evaluation batch, over what is trained.

    Args:
        subject: Models and batch; a recipe's weight decay is not part of the loss.
        sequences: The sequences of the batch, from its start.

    Returns:
        For each model, nats (or the objective's unit) per unit of parameter.

    Example:
        >>> import mechmarkov as mm
        >>> gradient_norms(mm.Subject.of(mm.example("induction"), sequences=8)).round(2).tolist()
        [0.14]
    """
    batch, decoder, trainable = subject.batch.head(sequences), subject.decoder, subject.run.trainable
    norms = []
    elements = subject.chunk_elements // FORWARD_PASSES_HELD
    for chunk in chunked(decoder, batch.tokens, elements, sequences=len(batch.tokens)):
        named = chunk.model.named_parameters()
        weights = {name: weight for name, weight in named if trainable is None or name in trainable}
        scores = chunk.model(batch.tokens, read=batch.read)
        loss = subject.objective.loss(scores, batch.targets.expand(scores.shape[:-1]))
        # Members share no weight: the gradient of the sum is each member's own.
        gradients = torch.autograd.grad(loss.mean((1, 2)).sum(), list(weights.values()), allow_unused=True)
        square = torch.zeros(len(chunk.model), dtype=torch.float64)
        for name, gradient in zip(weights, gradients, strict=True):
            spans = None if trainable is None else trainable[name]
            if gradient is not None:
                trained = gradient[(slice(None), *(slice(*span) for span in spans or ()))]
                square += trained.double().square().flatten(1).sum(1)
        norms.append(square.sqrt())
    return np.asarray(torch.cat(norms))
