"""The cases: models set by hand, whose circuit is known by construction, and trained runs.

Each is a function of a seed, which draws the chain and the sequences of a hand-set model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
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
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import (
    cancelling_tables,
    direct_table,
    mlp_table,
    value_table,
)
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.runs import example
from mechmarkov.sources import Chain, DirichletChains, HiddenMarkov, OrderK, Source
from mechmarkov.theory.learning_coefficient import of_bigram_table, of_canonical_line, of_tied_plateau
from mechmarkov.training import load_recipe, train
from mechmarkov.utils.kept_data import kept, name_of

STATES = 4
N_CTX = 8
N_CTX_IN_CONTEXT = 24
N_CTX_BELIEF = 6  # the table of histories has 126 rows
SHORTER = ("steps=800", "model.n_ctx=32", "data.batch=32")  # eight seconds a model


Build = Callable[..., HookedDecoder]


def table_case(seed: int, name: str, question: str, build: Build, **known: Any) -> Case:
    """A chain whose bigram a model holds; the chain is drawn with the seed, its rows from a Dirichlet."""
    P = np.random.default_rng(seed).dirichlet(np.ones(STATES), size=STATES)
    model = build(torch.tensor(np.log(P)).float(), n_ctx=N_CTX)
    weights = [model.state_dict()[key].double().numpy() for key in ("embed.W_E", "pos_embed.W_pos")]
    tokens = weights[0] - weights[0].mean(0)
    known["subspace"] = (-1, np.linalg.svd(tokens)[2][: STATES - 1].T)
    known["features"] = (-1, [block for block in weights if block.any()])
    return case_of(name, question, model, Chain(P), seed=seed, **known)


def in_context_case(seed: int, name: str, question: str, build: Build, source: Source, **known: Any) -> Case:
    """A chain per sequence, whose law a model reads from the context."""
    return case_of(name, question, build(n_ctx=N_CTX_IN_CONTEXT), source, seed=seed, **known)


def trigram_case(seed: int, name: str, question: str) -> Case:
    """A chain of order 2, drawn with the seed, whose table a model reads with a head for each token."""
    kernel = np.random.default_rng(seed).dirichlet(np.ones(3), size=(3, 3))
    model, source = n_gram_model(kernel, N_CTX), OrderK(kernel.tolist())
    return case_of(name, question, model, source, seed=seed, predictor="order_2")


def belief_case(seed: int, name: str, question: str, carries: bool) -> Case:
    """RRXOR, predicted exactly from its belief or without it; the noise of its third bit is drawn."""
    source = HiddenMarkov.rrxor(noise=float(np.random.default_rng(seed).uniform(0.05, 0.2)))
    model = hidden_belief(source, N_CTX_BELIEF, carries=carries, reads=carries)
    known: dict[str, Any] = {"predictor": "forward_filter", "carries": carries}
    if carries:  # all hidden units of the last MLP read one direction of the belief
        reads = model.get_parameter("blocks.1.mlp.W_in")[:, :1].detach().double().numpy()
        known["subspace"] = (0, reads / np.linalg.norm(reads))
    return case_of(name, question, model, source, seed=seed, **known)


def rotated_table(table: Float[Tensor, "state_from state_to"], n_ctx: int) -> HookedDecoder:
    """The table in a head, as in the case `head`, with the stream turned by a random orthogonal matrix."""
    return rotated(value_table(table, n_ctx), seed=0)


def plateau_case(seed: int, name: str, question: str, **shape: int) -> Case:
    """A minimum at the unigram of two states that are mostly followed by each other (p + q above 1)."""
    p, q = np.random.default_rng(seed).uniform(0.6, 0.9, size=2)
    source = Chain([[1 - p, p], [q, 1 - q]])
    model = tied_plateau(source.P, N_CTX, **shape)
    trained, exact = ["embed.W_E", "unembed.b_U"], of_tied_plateau(source.P, source.pi, shape["d_model"])
    if "d_mlp" in shape:
        trained += ["blocks.0.mlp.W_in", "blocks.0.mlp.W_out"]
        exact = of_canonical_line(source.P, (10.0, 7.0))
    return case_of(name, question, model, source, seed=seed, empty=True, coefficient=(tuple(trained), exact))


def bundled_case(seed: int, name: str, question: str) -> Case:
    """The last checkpoint of a bundled run; the seed draws only the sequences."""
    run = example(name.removeprefix("bundled-"))
    return case_of(name, question, run.model(step=-1), run.source, seed=seed, objective=run.objective)


def trained_case(seed: int, name: str, question: str, recipe: str, changes: Sequence[str] = ()) -> Case:
    """A shipped recipe with changes, trained from the seed: some seconds, and kept for the next time."""
    of = load_recipe(recipe).with_set(changes)

    def trained() -> xr.Dataset:
        weights = train(of, seed=seed, progress=False).model(step=-1).state_dict()
        return xr.Dataset(
            {key: ([f"{key} {i}" for i in range(x.ndim)], x.numpy()) for key, x in weights.items()}
        )

    model = HookedDecoder(of.decoder_config)
    state = kept(name_of(["trained case", of.model_dump(mode="json"), seed], {}), trained)
    model.load_state_dict({str(key): torch.from_numpy(x.values.copy()) for key, x in state.items()})
    return case_of(name, question, model, of.source, seed=seed, objective=of.objective)


# Name of each case: what it asks of a method, and how it is built.
_CASES: dict[str, tuple[str, Callable[..., Case]]] = {
    "direct": (
        "Is the table in the direct path found?",
        partial(table_case, build=direct_table, coefficient=(("unembed.W_U",), of_bigram_table(STATES))),
    ),
    "head": ("Is the table in a head found?", partial(table_case, build=value_table)),
    "mlp": ("Is the table in the MLP found?", partial(table_case, build=mlp_table)),
    "split": ("Are both halves of a table found?", partial(table_case, build=split_table)),
    "rotated": ("Is it found in a stream without axes of its own?", partial(table_case, build=rotated_table)),
    "cancel": (
        "Are two heads that cancel given their signs, and the direct path its own?",
        partial(table_case, build=cancelling_tables),
    ),
    "backup": (
        "Is a head found whose work an MLP takes over only where the head writes nothing?",
        partial(table_case, build=backup_table),
    ),
    "induction": (
        "Is the pair of heads found next to a head that attends as sharply and is not read?",
        partial(in_context_case, build=partial(induction_with_decoy, 3), source=DirichletChains(n_states=3)),
    ),
    "contrary": (
        "Are the heads found that take what followed the other state from what followed either?",
        partial(in_context_case, build=contrary_induction, source=DirichletChains(n_states=2)),
    ),
    "order-2": (
        "Are the heads found that match two tokens?",
        partial(
            in_context_case,
            build=partial(induction_pair, 2, lags=(1, 2)),
            source=DirichletChains(n_states=2, order=2, start="uniform"),
            predictor="order_2",
        ),
    ),
    "trigram": ("Are both heads found that copy a token each for one table of pairs?", trigram_case),
    "plateau": (
        "Is nothing claimed of a model that predicts the unigram with heads that are not read?",
        partial(table_case, build=plateau, empty=True),
    ),
    "trap": (
        "Is nothing claimed of a head that attends to all equally and writes the same whatever it reads?",
        partial(table_case, build=trap, empty=True),
    ),
    "tied-plateau": (
        "Is nothing claimed of tied embeddings at zero, and how degenerate are they?",
        partial(plateau_case, d_model=3),
    ),
    "canonical": (
        "The same on the line e = 0 of Makkuva et al.'s canonical coordinates.",
        partial(plateau_case, d_model=1, d_mlp=2),
    ),
    "belief": (
        "Is the belief over hidden states found, from which the model predicts?",
        partial(belief_case, carries=True),
    ),
    "no-belief": (
        "Is no belief claimed of a model that predicts as well from only the tokens?",
        partial(belief_case, carries=False),
    ),
    "bundled-walk": ("Is the head of the walk found?", bundled_case),
    "bundled-induction": ("Are the induction heads of a trained model found?", bundled_case),
    "trained-table": (
        "Is it found where each of eight trained models holds its bigram?",
        partial(trained_case, recipe="binary-p02-q03-untied"),
    ),
    "trained-walk": (
        "Is the head found of eight trained models that walk on a circle?",
        partial(trained_case, recipe="walk-k6-half"),
    ),
    "trained-induction": (
        "Are the heads found with which trained models count pairs in context?",
        partial(trained_case, recipe="in-context-k3-shortformer", changes=SHORTER),
    ),
}
QUESTIONS = {name: question for name, (question, _) in _CASES.items()}
CASES: dict[str, Callable[[int], Case]] = {
    name: partial(build, name=name, question=question) for name, (question, build) in _CASES.items()
}
