"""What the tests of other people's packages share: the data, and what a run is compared with."""

from itertools import pairwise

import torch
from torch import nn

import mechmarkov as mm

N_STATES, LENGTH = 5, 12
SOURCE = mm.Circle(n_states=N_STATES, p=0.3)
SPECIAL = {
    "bos_token_id": 0,
    "eos_token_id": 0,
}  # of transformers' configs, whose defaults are above the vocabulary


def sequences(count: int, seed: int = 0, length: int = LENGTH) -> torch.Tensor:
    """Sequences `[sequence, position]` of the circle."""
    return SOURCE.sample(count, length, generator=torch.Generator().manual_seed(seed))


def rows(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """The same as transformers' Trainer takes them."""
    return [{"input_ids": row, "labels": row} for row in sequences(count, seed)]


@torch.no_grad()
def logits_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Logits `[sequence, position, state]` of somebody's model."""
    output = model.eval()(tokens)
    output = output[0] if isinstance(output, tuple) else output
    return getattr(output, "logits", output)


def assert_same_logits(run: mm.Run, model: nn.Module, step: int = -1) -> None:
    """Whether a run computes what the model does, on sequences that the import did not see."""
    tokens = sequences(16, seed=99, length=run.config.n_ctx)
    logits = logits_of(model, tokens)
    torch.testing.assert_close(run.model(step)(tokens), logits, rtol=1e-4, atol=1e-4)
    assert logits.std() > 0.01  # a model that says nothing is like any other


def steps_differ(run: mm.Run) -> bool:
    """Whether the training that was recorded changed the model at each step that was kept."""
    tokens = sequences(4, seed=98, length=run.config.n_ctx)
    each = run.model(steps="all")(tokens.expand(run.n_steps, *tokens.shape))
    return all(bool((a - b).abs().max() > 1e-6) for a, b in pairwise(each))
