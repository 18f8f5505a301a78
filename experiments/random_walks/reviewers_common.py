"""What the reviewers' questions share: claims, models on fresh sequences, hand-set decoders."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Claim, Verdict, wilson
from mechmarkov.models.constructions.walk import (
    WalkShape,
    walk_decoder_config,
    walk_frozen_state,
    walk_trainable,
)

RECIPES = Path(__file__).parent / "recipes"
ASKED = "Shi & Cao 2025, asked in review"
COLOURS = ["#332288", "#CC6677", "#117733", "#DDCC77", "#88CCEE", "#AA4499", "#44AA99", "#882255", "#661100"]
FRESH_SEED = 2_000_000_001  # a CPU generator keeps 32 bits; training seeds are small
# A short walk for variants: 6 divides N - 1 = 24, the fair walk is learned within 5 steps, and rounding keeps
# the deterministic one's attention flat (below FLAT) for 10.
SHORT = WalkShape(n_states=6, n_ctx=25, n_positions=63)
FLAT = 1e-3  # attention spread over real tokens; uniform mass is 1/25
# First-step information; rounding is about 1e-31, the least of the untrapped settings is above 1e-6.
NO_INFORMATION = 1e-20
POPULATION = "data={population=true}"


def claim(
    name: str, text: str, measured: str, verdict: Verdict, how: str, *, source: str = ASKED, paper: str = ""
) -> Claim:
    """A row of the table; `paper` is left out where no number is given."""
    command = f"python -m experiments.random_walks --only {name}"
    return Claim(name, text, source, paper or "no number given", measured, verdict, how, command)


def holds(ok: bool) -> Verdict:
    """The verdict where there is no middle."""
    return "holds" if ok else "does not hold"


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
    attention: np.ndarray
    spread: float

    def __str__(self) -> str:
        """`0.512 [0.490, 0.534]`."""
        low, value, high = self.accuracy
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def fresh(run: mm.Run, sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels that no training saw."""
    length = run.model.n_ctx + (not run.objective.query)
    states = run.source.sample(sequences, length, generator=torch.Generator().manual_seed(FRESH_SEED))
    query = torch.full((sequences, int(run.objective.query)), run.source.n_states)
    return torch.cat([states[:, :-1], query], 1), states[:, -1]


def outcome(run: mm.Run, step: int = -1, sequences: int = 2000) -> Outcome:
    """Accuracy and attention (mean over heads) on fresh sequences."""
    tokens, labels = fresh(run, sequences)
    decoder, name = run.decoder(step), f"blocks.{run.model.n_layers - 1}.attn.hook_pattern"
    hits, attention, spread = 0, np.zeros(run.model.n_ctx - run.objective.query), 0.0
    for part, wanted in zip(tokens.split(500), labels.split(500), strict=True):
        with torch.no_grad():
            scores, cache = decoder.run_with_cache(part, names_filter=name)
        hits += int((scores[:, -1].argmax(-1) == wanted).sum())
        seen = cache[name][:, :, -1, : len(attention)].mean(1).double().numpy()
        attention += seen[:, ::-1].sum(0) / sequences
        spread += float(np.ptp(seen, axis=1).sum()) / sequences
    return Outcome(wilson(hits, sequences), attention, spread)


def value_matrix(run: mm.Run, step: int = -1) -> np.ndarray:
    """The walk model's `V[state_to, state_from]`, float64."""
    K = run.source.n_states
    W_O = run.states["blocks.0.attn.W_O"]
    index = len(run.steps) - 1 if step == -1 else run.steps.tolist().index(step)
    return W_O[min(index, len(W_O) - 1), 0, :K, :K].double().numpy().T


def curve(run: mm.Run, name: str) -> np.ndarray:
    """A metric at every step."""
    return run.metrics[name]["value"].double().numpy()


def first_beyond(values: np.ndarray, level: float) -> int | None:
    """The first step at which a curve is above a level."""
    beyond = np.flatnonzero(values > level)
    return int(beyond[0]) if len(beyond) else None


def optimal_accuracy(P: np.ndarray, pi: np.ndarray) -> float:
    """Of whoever knows the parent."""
    return float(pi @ P.max(1))


@dataclass(frozen=True)
class HandSet:
    """A decoder whose frozen weights are set by hand.

    Attributes:
        recipe: What trains it.
        start: Its weights before the first step, as a run.
    """

    recipe: mm.Recipe
    start: mm.Run

    def train(self, p: float, *changes: str, seed: int = 0) -> mm.Run:
        """Train it on a circle walk; a deterministic one on all its walks, which have no sampling error."""
        data = [POPULATION] if p in (0.0, 1.0) else []
        return mm.train(self.recipe.with_set([f"source.p={p}", *data, *changes]), seed=seed, start=self.start)


def hand_set(
    model: Mapping[str, Any],
    states: Mapping[str, torch.Tensor],
    trainable: Mapping[str, list[list[int]] | None],
    *changes: str,
) -> HandSet:
    """A variant: fields of the decoder, its weights (those not named are zero), and what is trained."""
    values = {"model": {"kind": "decoder", **model}, "trainable": dict(trainable)}
    recipe = mm.load_recipe(RECIPES / "reviewers-variant.toml").with_values(values).with_set(changes)
    decoder = mm.HookedDecoder(recipe.decoder_config)
    weights = {name: torch.zeros_like(value) for name, value in decoder.state_dict().items()}
    decoder.load_state_dict(weights | dict(states))
    return HandSet(recipe, mm.Run.from_model(decoder, source=recipe.source, objective=recipe.objective))


def walk_fields(shape: WalkShape) -> dict[str, Any]:
    """The decoder that the walk model is, as fields of a recipe."""
    left_out = {"d_vocab", "d_vocab_out", "act_fn", "d_mlp", "window", "rotary_dim", "normalization_type"}
    return walk_decoder_config(shape).model_dump(exclude=left_out) | {"normalization_type": "none"}


def walk_variant(shape: WalkShape = SHORT, **fields: Any) -> HandSet:
    """The walk model as a decoder, `V` and `u` trained from zero, with some fields changed."""
    return hand_set(walk_fields(shape) | fields, walk_frozen_state(shape), walk_trainable(shape))
