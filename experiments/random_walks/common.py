"""What the measurements share: weights and attention of a walk model, and what it does on fresh sequences."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

import mechmarkov as mm
from experiments.claims import wilson
from experiments.harness import evaluation
from experiments.sampling_error import over_sequences
from mechmarkov.theory import kernel

RECIPES = Path(__file__).parent / "recipes"
FIGURES = {"walk-k6": "figures 4 and 5 (K=6, N=97)", "walk-k20": "figures 8 and 9 (K=20, N=101)"}
FLOAT64 = "model.dtype='float64'"
POPULATION = "data={population=true}"
SHORT_WALK = ["model.n_ctx=25", "model.n_positions=63", "data.n_train=300"]
# First-step information; rounding is about 1e-31, the least of the untrapped settings is above 1e-6.
NO_INFORMATION = 1e-20


def value_matrix(run: mm.Run, step: int = -1) -> Float[np.ndarray, "state_to state_from"]:
    """The paper's V at a training step, float64; the last by default."""
    n = run.source.n_states
    index = len(run.steps) - 1 if step == -1 else run.steps.tolist().index(step)
    W_O = run.states["blocks.0.attn.W_O"]
    return W_O[min(index, len(W_O) - 1), 0, :n, :n].double().numpy().T


def cosine_to(
    V: Float[np.ndarray, "state_to state_from"], P: Float[np.ndarray, "state_from state_to"]
) -> float:
    """Cosine between V^T and a table, both double-centred."""
    return float(kernel.cosine(kernel.double_centred(V.T), kernel.double_centred(P)))


def curve(run: mm.Run, name: str) -> Float[np.ndarray, " step"]:
    """A metric at every step."""
    return run.metrics[name]["value"].double().numpy()


def attention(run: mm.Run, step: int) -> Float[np.ndarray, "sequence lag"]:
    """Attention of the query, lag 1 (the parent) first, on one walk from each state."""
    K, length = run.source.n_states, run.config.n_ctx
    if isinstance(run.source, mm.Circle) and run.source.p == 1:
        states = (torch.arange(K)[:, None] + torch.arange(length)) % K
    else:
        states = evaluation(run.source, 16 * K, length)
        states = states[[int((states[:, 0] == k).nonzero()[0]) for k in states[:, 0].unique()]]
    tokens = torch.cat([states[:, :-1], torch.full((len(states), 1), K)], 1)
    _, cache = run.model(step).run_with_cache(tokens, names_filter="blocks.0.attn.hook_pattern")
    pattern = cache["blocks.0.attn.hook_pattern"][:, 0, -1, :-1]
    return pattern.double().numpy()[:, ::-1]


@dataclass(frozen=True)
class Outcome:
    """What a model does on fresh sequences.

    Attributes:
        accuracy: (low, value, high), 95 % Wilson; ties go to the lowest state.
        attention: Mean attention `[lag]` of the last query in the last layer, lag 1 first; where there is a
            query token, its own is left out.
        spread: Mean over sequences of the largest less the smallest attention on a state.
    """

    accuracy: tuple[float, float, float]
    attention: Float[np.ndarray, " lag"]
    spread: float

    def __str__(self) -> str:
        """`0.512 [0.490, 0.534]`."""
        low, value, high = self.accuracy
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def fresh(run: mm.Run, sequences: int) -> tuple[Int[Tensor, "batch position"], Int[Tensor, " batch"]]:
    """Inputs and labels that no training saw."""
    states = evaluation(run.source, sequences, run.config.n_ctx + (not run.objective.query))
    query = torch.full((sequences, int(run.objective.query)), run.source.n_states)
    return torch.cat([states[:, :-1], query], 1), states[:, -1]


def outcome(run: mm.Run, step: int = -1, sequences: int = 2000) -> Outcome:
    """Accuracy and attention (mean over heads) on fresh sequences."""
    tokens, labels = fresh(run, sequences)
    decoder, name = run.model(step), f"blocks.{run.config.n_layers - 1}.attn.hook_pattern"
    hits, attention, spread = 0, np.zeros(run.config.n_ctx - run.objective.query), 0.0
    for part, wanted in zip(tokens.split(500), labels.split(500), strict=True):
        with torch.no_grad():
            scores, cache = decoder.run_with_cache(part, names_filter=name)
        hits += int((scores[:, -1].argmax(-1) == wanted).sum())
        seen = cache[name][:, :, -1, : len(attention)].mean(1).double().numpy()
        attention += seen[:, ::-1].sum(0) / sequences
        spread += float(np.ptp(seen, axis=1).sum()) / sequences
    return Outcome(wilson(hits, sequences), attention, spread)


def kl_to_law(run: mm.Run) -> Float[np.ndarray, " step"]:
    """Mean KL in nats from the law of the next state to the outputs, made a distribution, at each kept step.

    The walk model's outputs are not probabilities: negative ones count as zero, and eps is added to all.
    """
    tokens, label = fresh(run, 500)
    circle = isinstance(run.source, mm.Circle)  # the answer to a question is certain
    law = (
        torch.tensor(run.source.P)[tokens[:, -2]] if circle else one_hot(label, run.source.n_states).double()
    )
    with torch.no_grad():
        scores = torch.stack([run.model(int(step))(tokens)[:, -1] for step in run.steps])
    positive = scores.double().clamp_min(0) + run.objective.eps
    predicted = positive / positive.sum(-1, keepdim=True)
    distances = (torch.xlogy(law, law) - torch.xlogy(law, predicted)).sum(-1)
    return over_sequences(distances[..., None].numpy())


def thin(steps: int) -> list[int]:
    """At most 150 steps, the first and the last among them."""
    return sorted({round(s) for s in np.linspace(0, steps, min(150, steps + 1))})
