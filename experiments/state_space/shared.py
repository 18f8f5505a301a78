"""What the measurements share: the recipe, and how far a model is from the add-beta estimator."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

import mechmarkov as mm
from experiments.harness import evaluation, exact, predictions
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

RECIPES = Path(__file__).parent / "recipes"
SEQUENCES = 256
LEARNED = 0.25  # of what the best predictor of one order less is away
ORDER = "in_context_order_{}"


def recipe(*changes: str, name: str = "mamba") -> mm.Recipe:
    """One of the folder's recipes with some fields changed."""
    return mm.load_recipe(RECIPES / f"{name}.toml").with_set(list(changes))


def order_less(order: int) -> str:
    """The best predictor that is of one order less, by name."""
    names = {1: "in_context_unigram", 2: "in_context_bigram"}
    return names.get(order, ORDER.format(order - 1))


def distances(runs: list[mm.Run]) -> Float[np.ndarray, " seed"]:
    """Mean KL from the add-beta estimator to each model at its last step, over that of one order less."""
    source = runs[0].source
    tokens = evaluation(source, SEQUENCES, runs[0].config.n_ctx)
    best = source.best().probabilities(tokens.numpy())
    short = over_sequences(kl(best, exact(source, tokens)[order_less(source.order)]))
    away = [over_sequences(kl(best, predictions(run, tokens)[-1])) for run in runs]
    return np.array(away) / short


def setting(varied: mm.Recipe, seeds: int) -> str:
    """The sizes of a training in words."""
    model, data = varied.model, varied.data
    mlp = "" if model.attn_only else f", an MLP of {model.d_mlp}"
    return (
        f"{seeds} seeds; T = {model.n_ctx}, batch {data.batch}, {varied.steps} steps of AdamW at "
        f"{varied.optimiser.lr:g}, d_model {model.d_model}, {model.n_heads * model.d_head} channels{mlp}"
    )
