"""The cases: models set by hand, whose circuit is known by construction, trained ones and controls.

Each is a function of a seed, which draws the chain and the sequences of a hand-set model, and of the kind of
pairs. `circuit` names the edges that were built.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.bench.case import Case, case_of
from mechmarkov.bench.circuits import (
    backup_table,
    contrary_induction,
    hidden_belief,
    induction_with_decoy,
    plateau,
    rotated,
    split_table,
    tied_plateau,
    trap,
)
from mechmarkov.bench.counterfactuals import Change
from mechmarkov.bench.trained import random_weights, shuffled_weights, trained_model
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    cancelling_tables,
    direct_table,
    mlp_table,
    value_table,
)
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.runs.loading import example
from mechmarkov.sources import Chain, DirichletChains, HiddenMarkov, OrderK
from mechmarkov.theory.learning_coefficient import of_bigram_table, of_canonical_line, of_tied_plateau

STATES = 4
N_CTX = 8
N_CTX_IN_CONTEXT = 24
N_CTX_BELIEF = 6  # the table of histories has 126 rows
HEAD = ("embed→L0H0.V", "L0H0→logits")
MLP = ("embed→L0.mlp", "L0.mlp→logits")
PAIR = ("embed→L0H0.V", "embed→L1H0.Q", "L0H0→L1H0.K", "embed→L1H0.V", "L1H0→logits")
BELIEF = ("embed→L0H0.V", "L0H0→L0.mlp", "L0.mlp→L1.mlp", "L1.mlp→logits")
NO_BELIEF = ("embed→L0H0.V", "L0H0→L1.mlp", "L1.mlp→logits")

Build = Callable[..., HookedDecoder]


def table_case(seed: int, build: Build, **known: Any) -> Case:
    """A chain whose bigram a model holds; the chain is drawn with the seed, its rows from a Dirichlet."""
    P = np.random.default_rng(seed).dirichlet(np.ones(STATES), size=STATES)
    model = build(torch.tensor(np.log(P)).float(), n_ctx=N_CTX)
    weights = [model.state_dict()[key].double().numpy() for key in ("embed.W_E", "pos_embed.W_pos")]
    tokens = weights[0] - weights[0].mean(0)
    known["subspace"] = (-1, np.linalg.svd(tokens)[2][: STATES - 1].T)
    known["features"] = (-1, [block for block in weights if block.any()])
    return case_of(model=model, source=Chain(P), seed=seed, **known)


def in_context_case(seed: int, build: Build, order: int = 1, **known: Any) -> Case:
    """A chain per sequence, whose law a model reads from the context."""
    return case_of(
        model=build(n_ctx=N_CTX_IN_CONTEXT), seed=seed, change=Change("match", order=order), **known
    )


def trigram_case(seed: int, **known: Any) -> Case:
    """A chain of order 2, drawn with the seed, whose table a model reads with a head for each token."""
    kernel = np.random.default_rng(seed).dirichlet(np.ones(3), size=(3, 3))
    model, source = n_gram_model(kernel, N_CTX), OrderK(kernel.tolist())
    return case_of(model=model, source=source, seed=seed, change=Change(lags=(1, 2)), **known)


def belief_case(seed: int, carries: bool, **known: Any) -> Case:
    """RRXOR, predicted exactly from its belief or without it; the noise of its third bit is drawn."""
    source = HiddenMarkov.rrxor(noise=float(np.random.default_rng(seed).uniform(0.05, 0.2)))
    model = hidden_belief(source, N_CTX_BELIEF, carries=carries, reads=carries)
    if carries:  # all hidden units of the last MLP read one direction of the belief
        reads = model.get_parameter("blocks.1.mlp.W_in")[:, :1].detach().double().numpy()
        known["subspace"] = (0, reads / np.linalg.norm(reads))
    return case_of(model=model, source=source, seed=seed, carries=carries, change=Change("state"), **known)


def rotated_table(table: Float[Tensor, "state_from state_to"], n_ctx: int) -> HookedDecoder:
    """The table in a head, as in the case `head`, with the stream turned by a random orthogonal matrix."""
    return rotated(value_table(table, n_ctx), seed=0)


def plateau_case(seed: int, shape: dict[str, int], **known: Any) -> Case:
    """A minimum at the unigram of two states that are mostly followed by each other (p + q above 1)."""
    p, q = np.random.default_rng(seed).uniform(0.6, 0.9, size=2)
    source = Chain([[1 - p, p], [q, 1 - q]])
    model = tied_plateau(source.P, N_CTX, **shape)
    trained, exact = ["embed.W_E", "unembed.b_U"], of_tied_plateau(source.P, source.pi, shape["d_model"])
    if "d_mlp" in shape:
        trained += ["blocks.0.mlp.W_in", "blocks.0.mlp.W_out"]
        exact = of_canonical_line(source.P, (10.0, 7.0))
    return case_of(
        model=model, source=source, seed=seed, circuit=(), coefficient=(tuple(trained), exact), **known
    )


def bundled_case(seed: int, name: str, change: Change, **known: Any) -> Case:
    """The last checkpoint of a bundled run; the seed draws only the sequences."""
    run = example(name.removeprefix("bundled-"))
    known |= {"objective": run.objective, "change": change}
    return case_of(name=name, model=run.model(step=-1), source=run.source, seed=seed, **known)


def trained_case(
    seed: int, fleet: str, change: Change, changed: Callable[..., HookedDecoder] | None = None, **known: Any
) -> Case:
    """A member of a fleet, trained from the seed; or what is made of it."""
    recipe, model = trained_model(fleet, seed)
    if changed is not None:
        model = changed(model, seed=seed)
    known |= {"objective": recipe.objective, "change": change}
    return case_of(model=model, source=recipe.source, seed=seed, **known)


MATCH = Change("match")


# Name of each case: what it asks of a method, and how it is built.
_CASES: dict[str, tuple[str, Callable[..., Case]]] = {
    "direct": (
        "Is the table in the direct path found?",
        partial(
            table_case,
            build=direct_table,
            circuit=("embed→logits",),
            coefficient=(("unembed.W_U",), of_bigram_table(STATES)),
        ),
    ),
    "head": ("Is the table in a head found?", partial(table_case, build=value_table, circuit=HEAD)),
    "mlp": ("Is the table in the MLP found?", partial(table_case, build=mlp_table, circuit=MLP)),
    "split": (
        "Are both halves of a table found?",
        partial(table_case, build=split_table, circuit=HEAD + MLP),
    ),
    "rotated": (
        "Is it found in a stream without axes of its own?",
        partial(table_case, build=rotated_table, circuit=HEAD),
    ),
    "cancel": (
        "Are two heads that cancel given their signs, and the direct path its own?",
        partial(
            table_case,
            build=cancelling_tables,
            circuit=(*HEAD, "embed→logits", "embed→L0H1.V", "L0H1→logits"),
        ),
    ),
    "backup": (
        "Is a head found whose work an MLP takes over only where the head writes nothing?",
        partial(table_case, build=backup_table, circuit=(*HEAD, *MLP, "L0H0→L0.mlp")),
    ),
    "induction": (
        "Is the pair of heads found next to a head that attends as sharply and is not read?",
        partial(
            in_context_case,
            build=partial(induction_with_decoy, 3),
            source=DirichletChains(n_states=3, start="uniform"),
            circuit=PAIR,
        ),
    ),
    "contrary": (
        "Are the heads found that take what followed the other state from what followed either?",
        partial(
            in_context_case,
            build=contrary_induction,
            source=DirichletChains(n_states=2, start="uniform"),
            circuit=(*PAIR, "embed→L1H1.V", "L1H1→logits"),
        ),
    ),
    "order-2": (
        "Are the heads found that match two tokens?",
        partial(
            in_context_case,
            build=partial(induction_pair, 2, lags=(1, 2)),
            source=DirichletChains(n_states=2, order=2, start="uniform"),
            order=2,
            circuit=(*PAIR, "embed→L0H1.V", "L0H0→L1H0.Q", "L0H1→L1H0.K"),
        ),
    ),
    "trigram": (
        "Are both heads found that copy a token each for one table of pairs?",
        partial(
            trigram_case,
            circuit=("embed→L0H0.V", "embed→L0H1.V", "L0H0→L0.mlp", "L0H1→L0.mlp", "L0.mlp→logits"),
        ),
    ),
    "plateau": (
        "Is nothing claimed of a model that predicts the unigram with heads that are not read?",
        partial(table_case, build=plateau, circuit=()),
    ),
    "trap": (
        "Is nothing claimed of a head that attends to all equally and writes the same whatever it reads?",
        partial(table_case, build=trap, circuit=()),
    ),
    "tied-plateau": (
        "Is nothing claimed of tied embeddings at zero, and how degenerate are they?",
        partial(plateau_case, shape={"d_model": 3}),
    ),
    "canonical": (
        "The same on the line e = 0 of Makkuva et al.'s canonical coordinates.",
        partial(plateau_case, shape={"d_model": 1, "d_mlp": 2}),
    ),
    "belief": (
        "Is the belief over hidden states found, from which the model predicts?",
        partial(belief_case, carries=True, circuit=BELIEF),
    ),
    "no-belief": (
        "Is no belief claimed of a model that predicts as well from only the tokens?",
        partial(belief_case, carries=False, circuit=NO_BELIEF),
    ),
    "bundled-walk": ("Is the head of the walk found?", partial(bundled_case, change=Change())),
    "bundled-induction": (
        "Are the induction heads of a trained model found?",
        partial(bundled_case, change=MATCH),
    ),
    "trained-table": (
        "Is it found where each trained model holds its bigram?",
        partial(trained_case, fleet="table", change=Change()),
    ),
    "trained-walk": (
        "Is the head found of trained models that walk on a circle?",
        partial(trained_case, fleet="walk", change=Change()),
    ),
    "trained-induction-1": (
        "What counts pairs in context in one layer, as well as it can?",
        partial(trained_case, fleet="induction-1", change=MATCH),
    ),
    "trained-induction": (
        "Are the heads found with which trained models of two layers count pairs in context?",
        partial(trained_case, fleet="induction", change=MATCH),
    ),
    "trained-induction-3": (
        "Are they found among three layers?",
        partial(trained_case, fleet="induction-3", change=MATCH),
    ),
    "trained-trigram": (
        "What holds the law of the next state after two?",
        partial(trained_case, fleet="trigram", change=Change(lags=(1, 2))),
    ),
    "trained-lagged": (
        "Is the head found that reads the state three before the next one?",
        partial(trained_case, fleet="lagged", change=Change(lags=(3,))),
    ),
    "trained-selective": (
        "Which heads read the lag that each sequence has?",
        partial(trained_case, fleet="selective", change=Change(lags=(1, 2, 3))),
    ),
    "trained-belief": (
        "What tells hidden states apart in trained models of Mess3?",
        partial(trained_case, fleet="belief", change=Change("state")),
    ),
    "trained-mamba": (
        "Is it found what a layer of Mamba-2 counts pairs with?",
        partial(trained_case, fleet="mamba", change=MATCH),
    ),
    "random-weights": (
        "A control: are effects claimed as they are in a model that was not trained?",
        partial(trained_case, fleet="induction", change=MATCH, changed=random_weights),
    ),
    "shuffled-circuit": (
        "A control: are effects claimed as they are where a trained model's weights stand in random order?",
        partial(trained_case, fleet="induction", change=MATCH, changed=shuffled_weights),
    ),
}
QUESTIONS = {name: question for name, (question, _) in _CASES.items()}

# Each is called with a seed, and with `pairs="resampled"` for the other kind of counterfactual.
CASES: dict[str, Callable[..., Case]] = {
    name: partial(build, name=name, question=question) for name, (question, build) in _CASES.items()
}
