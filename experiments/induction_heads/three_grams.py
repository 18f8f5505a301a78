"""Figure 5: models on three-grams count tokens, then pairs, then what followed the last two tokens."""

import numpy as np
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share, unfinished
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import BIGRAM, UNIGRAM, recipe, setting
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

HALF = 0.5
TRIGRAM = "in_context_order_2"
STAGES = ["uniform", UNIGRAM, BIGRAM, TRIGRAM]


def three_grams(quick: bool) -> Measured:
    """Two layers of three heads on a fresh chain of order two per sequence: which count when?"""
    seeds, steps = (1, 50) if quick else (16, 1000)
    varied = recipe(
        "source.n_states=2",
        "source.order=2",
        "model.n_heads=3",
        "model.d_model=24",
        "model.d_head=8",
        "optimiser.lr=5e-3",
        f"steps={steps}",
        "checkpoints={every=25}",
    )
    (runs,) = trained([varied], range(seeds))
    each = [order_distances(run) for run in runs]
    labels = [[STAGES[i] for i in np.stack([near[name] for name in STAGES]).argmin(0)] for near in each]
    ordered = sum(list(dict.fromkeys(row)) == STAGES and row[-1] == TRIGRAM for row in labels)
    left = np.array([near[TRIGRAM][-1] / near["apart"] for near in each])
    near_best = int((left < HALF).sum())
    how = f"two symbols, three heads of width 8 a layer; {setting(varied, seeds)}"
    curves = {name: np.stack([near[name] for near in each], axis=1) for name in STAGES}
    figure = over_training(
        {"order two": (runs[0].steps.numpy(), curves)}, "KL from each count to the model", "KL (nats)"
    )
    findings = [
        Finding(
            "three_gram_stages",
            f"{share(ordered, seeds)} seeds in this order",
            holds(ordered == seeds),
            f"nearest exact predictor, last quarter of positions; {how}",
            "trained at another",
            (ordered, seeds),
        ),
        Finding(
            "three_gram_optimum",
            f"{share(near_best, seeds)} seeds nearer to the optimum than to counts of pairs; "
            f"{over_seeds(left)} of what lies between is left",
            holds(near_best == seeds),
            f"counts after two tokens are the exact posterior mean; {how}",
            "trained at another",
            (near_best, seeds),
        ),
    ]
    return Measured(unfinished(findings) if quick else findings, {"three_grams": figure})


def order_distances(run: mm.Run) -> dict[str, Float[np.ndarray, " step"]]:
    """KL from each count to a run's models (nats), and `apart`, that from the optimum to counts of pairs."""
    tokens = evaluation(run.source, 128, run.config.n_ctx)
    late = slice(3 * tokens.shape[1] // 4, None)
    model, laws = predictions(run, tokens)[..., late, :], exact(run.source, tokens)
    near = {name: np.asarray(over_sequences(kl(law[:, late], model))) for name, law in laws.items()}
    return near | {"apart": np.asarray(over_sequences(kl(laws[TRIGRAM][:, late], laws[BIGRAM][:, late])))}
