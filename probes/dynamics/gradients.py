"""The gradient norm of every model of a stack, from one backward pass a chunk."""

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.probing.recording.record import chunks, part_of
from mechmarkov.probing.subject import Subject

SEQUENCES = 64  # a norm that is read to two digits
BACKWARD_MEMORY = 4  # a backward pass holds so many times what a forward pass does


def gradient_norms(subject: Subject, sequences: int = SEQUENCES) -> Float[np.ndarray, " member"]:
    """Norm of the gradient of the training loss on the evaluation batch, over what is trained.

    Args:
        subject: Models and batch; a recipe's weight decay is not part of the loss.
        sequences: Of the batch, from its start.

    Returns:
        For each model, nats (or the objective's unit) per unit of parameter.
    """
    batch, decoder, trainable = subject.batch.head(sequences), subject.decoder, subject.run.trainable
    models = max(1, chunks(decoder, batch)[0] // BACKWARD_MEMORY)
    norms = []
    for first in range(0, len(decoder), models):
        part = part_of(decoder, first, min(first + models, len(decoder)))
        weights = {
            name: weight for name, weight in part.named_parameters() if trainable is None or name in trainable
        }
        scores = part(batch.tokens)[..., batch.read, :]
        loss = subject.objective.loss(scores, batch.targets.expand(scores.shape[:-1]))
        # Members share no weight: the gradient of the sum is each member's own.
        gradients = torch.autograd.grad(loss.mean((1, 2)).sum(), list(weights.values()), allow_unused=True)
        square = torch.zeros(len(part), dtype=torch.float64)
        for name, gradient in zip(weights, gradients, strict=True):
            spans = None if trainable is None else trainable[name]
            if gradient is not None:
                kept = gradient[(slice(None), *(slice(*span) for span in spans or ()))]
                square += kept.double().square().flatten(1).sum(1)
        norms.append(square.sqrt())
    found: Float[np.ndarray, " member"] = torch.cat(norms).numpy()
    return found
