"""One context tree for all sequences: does one layer learn each leaf's law, and look no further back?"""

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor

import mechmarkov as mm
from experiments.claims import of_seeds, share
from experiments.figures import fill, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, trained
from experiments.sampling_error import over_sequences
from experiments.variable_order.shared import KINDS, recipe_of
from mechmarkov.theory.kernel import kl

SEQUENCES = 1000
N_CTX = 16
# Context, the oldest state first, and the probability of 0 and 1 after it.
LEAVES = {(1,): (0.7, 0.3), (1, 0): (0.2, 0.8), (1, 0, 0): (0.6, 0.4), (0, 0, 0): (0.9, 0.1)}
ORDER = 3
LEARNED = 2e-3  # nats from each leaf's law
SEEDS = {"attention only": 48, "with an MLP": 128}
NO_FURTHER = 0.1  # of the change that a leaf's oldest state makes


def leaf_of(tokens: Int[np.ndarray, "batch position"]) -> Int[np.ndarray, "batch position"]:
    """The number of the leaf that each past ends with; -1 where fewer than three states are known.

    Example:
        >>> leaf_of(np.array([[0, 0, 0, 1, 0, 0, 0]])).tolist()
        [[-1, -1, 3, 0, 1, 2, 3]]
    """
    last = [np.pad(tokens, ((0, 0), (lag, 0)))[:, : tokens.shape[1]] for lag in range(ORDER)]
    leaf = np.where(last[0] == 1, 0, np.where(last[1] == 1, 1, np.where(last[2] == 1, 2, 3)))
    leaf[:, : ORDER - 1] = -1
    return leaf


def laws_of(model: mm.HookedDecoder, tokens: Tensor) -> Float[np.ndarray, "batch position state"]:
    """Probabilities that one model predicts."""
    with torch.no_grad():
        return np.asarray(model(tokens).double().softmax(-1).numpy())


def changes(
    model: mm.HookedDecoder, tokens: Tensor, leaf: Int[np.ndarray, " batch"]
) -> Float[np.ndarray, "leaf lag"]:
    """KL (nats) that another state at a lag makes in the last prediction; lag 1 is the current one."""
    clean, rows = laws_of(model, tokens)[:, -1], []
    for lag in range(1, ORDER + 2):
        other = tokens.clone()
        other[:, -lag] = 1 - other[:, -lag]
        rows.append(kl(clean, laws_of(model, other)[:, -1]))
    return np.array([[row[leaf == i].mean() for row in rows] for i in range(len(LEAVES))])


def leaves(quick: bool) -> Measured:
    """Train one layer on one tree of depth 3, with an MLP and without."""
    steps, seeds = (400, dict.fromkeys(KINDS, 2)) if quick else (1500, SEEDS)
    source = {
        "kind": "context_tree",
        "leaves": [{"context": list(context), "law": list(law)} for context, law in LEAVES.items()],
    }
    runs = {
        kind: trained([recipe_of(1, mlp, steps, N_CTX).replace(source=source)], range(seeds[kind]))[0]
        for kind, mlp in KINDS.items()
    }
    tree = runs["with an MLP"][0].source
    tokens = evaluation(tree, SEQUENCES, N_CTX)
    laws, leaf = exact(tree, tokens), leaf_of(tokens.numpy())
    best, known = np.array(list(LEAVES.values()))[leaf], leaf >= 0
    apart = {
        kind: np.array(
            [
                [over_sequences(kl(best, law), leaf == i) for i in range(len(LEAVES))]
                for law in (laws_of(run.model(), tokens) for run in group)
            ]
        )
        for kind, group in runs.items()
    }  # [seed, leaf]
    models = [run.model() for run in runs["with an MLP"]]
    moved = np.array([changes(model, tokens, leaf[:, -1]) for model in models])  # [seed, leaf, lag]
    depth = np.array([len(context) for context in LEAVES])
    oldest, before = (moved[:, np.arange(len(LEAVES)), depth - 1 + more] for more in (0, 1))
    lost = {
        part: [over_sequences(kl(best, ablated(model, part, tokens)), known) for model in models]
        for part in ("L0.mlp", "L0H0", "L0H1")
    }
    learned = {kind: (rows < LEARNED).all(-1) for kind, rows in apart.items()}
    no_further = (before < NO_FURTHER * oldest).all(-1)
    pairs = float(over_sequences(kl(best, laws["bigram"]), known))
    mlp = learned["with an MLP"]
    names = ["".join(map(str, context)) for context in LEAVES]
    each = ", ".join(f"{name} {over_seeds(apart['with an MLP'][:, i])}" for i, name in enumerate(names))
    setting = (
        "one tree on 2 symbols with the leaves 1, 10, 100 and 000; one layer of two heads, width 16, an MLP "
        f"of 32, contexts of {N_CTX}, {steps} steps of AdamW on 32 sequences"
    )
    parts = ", ".join(f"{part} {over_seeds(values)}" for part, values in lost.items())
    hits = {
        "leaves_are_learned": (
            mlp,
            f"KL in nats after {each}; attention only: the worst leaf "
            f"{over_seeds(apart['attention only'].max(-1))}, learned in "
            f"{share(int(learned['attention only'].sum()), seeds['attention only'])}; "
            f"a bigram is off by {pairs:.3g} on average; "
            f"with a mean in place of a component: {parts}",
            f"learned: within {LEARNED:g} of every leaf's law",
        ),
        "no_further_than_the_leaf": (
            no_further,
            f"another state before the leaf changes {over_seeds(before.max(-1))} nats at most, another "
            f"oldest state of the leaf {over_seeds(oldest.min(-1))} at least",
            f"no further: below {NO_FURTHER:g} of it at every leaf",
        ),
    }
    findings = [of_seeds(key, true, text, f"{setting}; {rule}") for key, (true, text, rule) in hits.items()]
    figure = go.Figure()
    for lag in range(ORDER + 1):
        figure.add_bar(x=names, y=np.median(moved[..., lag], 0), name=f"lag {lag + 1}", marker=fill(lag))
    figure.update_xaxes(type="category")
    titled(figure, "What another state at a lag changes (median over seeds)", "leaf", "KL (nats)")
    shown = findings[1:] if quick else findings  # 400 steps do not learn the leaves
    return Measured(shown, {"leaves": figure})


def ablated(model: mm.HookedDecoder, part: str, tokens: Tensor) -> Float[np.ndarray, "batch position state"]:
    """Predictions with the mean over sequences in place of a component's output."""
    with mm.ablate(model, part, kind="mean"):
        return laws_of(model, tokens)
