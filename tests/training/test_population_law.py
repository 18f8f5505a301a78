"""Exact sums of each kind of model against a loop over all sequences, and models that no such sum fits."""

from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch
from fitting import fit, fit_members

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.constructions.walk import WalkModel, WalkShape
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.population import memory_of, n_rows, population_law
from mechmarkov.sources import Chain
from mechmarkov.sources.sampling.prefix_classes import class_law
from mechmarkov.theory.walk.first_step import first_step_gradient
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.workload import Member

K, N = 3, 6
SOURCE = Chain(P=[[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.15, 0.6]])
ATTENTION = {"attn_only": True, "normalization_type": None}
MODELS = {  # fields, and what an output depends on
    "no positions": ({"positional_embedding_type": "none"}, "counts"),
    "no positions, plain": ({"positional_embedding_type": "none", **ATTENTION}, "counts"),
    "no positions, parallel": ({"positional_embedding_type": "none", "parallel_attn_mlp": True}, "counts"),
    "window, standard": ({"window": 1}, 2),
    "window, relative": ({"window": 2, "positional_embedding_type": "relative"}, 3),
    "window, rotary": ({"window": 1, "positional_embedding_type": "rotary"}, 2),
    "window, two layers": ({"window": 1, "n_layers": 2, "positional_embedding_type": "shortformer"}, 3),
    "window, no positions": ({"window": 1, "positional_embedding_type": "none"}, 2),
    "last token": ({"window": 0, "n_layers": 2}, 1),
}
ORDERED = {  # models to which the order of tokens matters
    "standard": {},
    "relative": {"positional_embedding_type": "relative", **ATTENTION},
    "relative bias": {"positional_embedding_type": "relative_bias", **ATTENTION},
    "two layers": {"positional_embedding_type": "none", "n_layers": 2, **ATTENTION},
}
OBJECTIVES = {
    "all": Objective(),
    "last": Objective(read="last"),
    "squared": Objective(kind="squared"),
    "query": Objective(read="last", query=True),
}


def config_of(fields, query=False):
    shape = {"n_layers": 1, "d_model": 8, "n_ctx": N, "d_head": 4, "d_vocab": K + query, "d_vocab_out": K}
    return DecoderConfig(**shape | fields)


def model_of(config):
    """Random weights, large enough that attention is far from uniform, in float64."""
    generator = torch.Generator().manual_seed(0)
    decoder = HookedDecoder(config).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return decoder


def with_gradient(decoder, tokens, targets, weights, objective):
    """Loss and all its derivatives in one array."""
    scores = decoder(tokens)[:, -targets.shape[-1] :]
    loss = (objective.loss(scores, targets) * weights).mean(-1).sum()
    gradients = torch.autograd.grad(loss, list(decoder.parameters()), materialize_grads=True)
    return np.concatenate([loss.detach().numpy()[None], *(g.numpy().ravel() for g in gradients)])


def split(states, objective):
    """What is read and what is predicted, of sequences that the model reads as they are but for a query."""
    if objective.query:
        return torch.cat([states[:, :-1], torch.full((len(states), 1), K)], 1), states[:, -1:]
    return states[:, :-1], states[:, 1:] if objective.read == "all" else states[:, -1:]


def enumerated(objective):
    """All sequences and their probabilities, one by one."""
    walks = list(product(range(K), repeat=N if objective.query else N + 1))
    weights = [SOURCE.pi[w[0]] * np.prod([SOURCE.P[a, b] for a, b in pairwise(w)]) for w in walks]
    return *split(torch.tensor(walks), objective), torch.tensor(weights)[:, None]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient_are_those_of_all_sequences(name, objective):
    objective = OBJECTIVES[objective]
    fields, memory = MODELS[name]
    config = config_of(fields, objective.query)
    assert memory_of(config) == memory
    decoder = model_of(config)
    states, weights = population_law(SOURCE, objective, config)
    assert n_rows(SOURCE, objective, config) == len(states) < K ** (N + 1) / 4
    found = with_gradient(decoder, *split(states, objective), weights, objective)
    expected = with_gradient(decoder, *enumerated(objective), objective)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "wrong"), [(ORDERED["relative"], "counts"), (MODELS["window, relative"][0], 2)]
)
def test_a_sum_over_coarse_classes_is_noticed(fields, wrong):
    objective, decoder = Objective(), model_of(config_of(fields))
    states, weights = class_law(SOURCE, N + 1, wrong)
    found = with_gradient(decoder, *split(states, objective), weights, objective)
    expected = with_gradient(decoder, *enumerated(objective), objective)
    assert abs(found[0] / expected[0] - 1) > 1e-3


@pytest.mark.parametrize("name", ORDERED)
def test_two_orders_of_tokens_have_two_outputs(name):
    """So no sum over counts and last tokens is exact, and all sequences are asked for."""
    config = config_of(ORDERED[name])
    assert memory_of(config) is None
    one, other = model_of(config)(torch.tensor([[0, 1, 2, 0], [1, 0, 2, 0]]))[:, -1]
    assert float((one - other).detach().abs().max()) > 0.1
    assert len(population_law(SOURCE, Objective(), config)[0]) == K ** (N + 1)


def test_walks_with_equal_position_logits_read_counts():
    model = WalkModel(WalkShape(K, 5, n_positions=5), dtype=torch.float64)
    with torch.no_grad():
        model.V.copy_(torch.rand(K, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        model.u[:K] = torch.tensor([1.0, 0, -1])  # any token logits
        orders = torch.tensor([[*order, K] for order in permutations((0, 0, 1, 2))])
        torch.testing.assert_close(model(orders), model(orders[:1]).expand(24, -1), rtol=1e-13, atol=0)
        model.u[K] = 1  # of the first position
        assert float((model(orders) - model(orders[:1])).detach().abs().max()) > 0.01


def test_training_beyond_all_sequences():
    """2^64 of them. Chains of two supports share a stack; the loss that is logged is the exact one."""
    recipe = load_recipe("binary-p02-q03-untied").replace(
        **{
            "model.n_ctx": 63,
            "model.positional_embedding_type": "none",
            "data": {"population": True},
            "steps": 20,
            "checkpoints": [20],
            "optimiser.lr": 0.01,
        }
    )
    other = recipe.replace(**{"source": {"kind": "chain", "P": [[0.0, 1.0], [0.5, 0.5]]}})
    fitted = fit_members([Member(recipe, 0), Member(other, 0)])
    loss = fitted.metrics["loss"]
    for index, one in enumerate([recipe, other]):
        decoder = HookedDecoder(one.decoder_config)
        decoder.load_state_dict({name: x[-1] for name, x in fitted.member(index)[0].items()})
        states, weights = population_law(one.source, one.objective, one.decoder_config)
        exact = with_gradient(decoder.double(), *split(states, one.objective), weights, one.objective)[0]
        assert float(loss[-1, index]) == pytest.approx(exact, rel=1e-5)
        assert one.source.entropy_rate < exact < loss[0, index]
        alone = fit_members([Member(one, 0)]).metrics["loss"][:, 0]
        torch.testing.assert_close(loss[:, index], alone, rtol=1e-5, atol=1e-6)


def loss_after_first_step(length):
    """By the law of counts: attention is still uniform, so scores are `V` times the counts, over N."""
    V = first_step_gradient(SOURCE.P, SOURCE.pi, length) / (0.1 * length)
    states, weights = (x.numpy() for x in class_law(SOURCE, length, "counts", "last"))
    counts = (states[:, :-1, None] == np.arange(K)).sum(1)
    scores = np.take_along_axis(counts @ V.T / length, states[:, -1:], 1)
    return V, -(weights * np.log(scores + 0.1)).sum()


def test_the_walks_second_loss_sums_over_counts():
    """For any P, K and N, where all sequences are far too many."""
    recipe = load_recipe("walk-k6-half").replace(
        **{
            "source": {"kind": "chain", "P": SOURCE.P.tolist()},
            "model": {"kind": "walk", "n_ctx": N, "dtype": "float64"},
            "data": {"population": True},
            "steps": 2,
            "checkpoints": [1, 2],
        }
    )
    fitted = fit(recipe, [0])
    spread = [np.ptp(fitted.checkpoints[step]["blocks.0.attn.W_K"][0, 0, K:, 0].numpy()) for step in (1, 2)]
    assert spread[0] == 0 < 1e-3 < spread[1]  # of what positions add
    found = float(fitted.metrics["loss"][1])
    assert found == pytest.approx(loss_after_first_step(N)[1], rel=1e-12)
    length, sequences = 64, 20_000
    V, expected = loss_after_first_step(length)
    walks = SOURCE.sample(sequences, length, generator=torch.Generator().manual_seed(0)).numpy()
    seen = (walks[:, :-1, None] == np.arange(K)).sum(1)
    losses = -np.log((seen @ V.T)[np.arange(sequences), walks[:, -1]] / length + 0.1)
    assert losses.mean() == pytest.approx(expected, abs=4 * losses.std() / np.sqrt(sequences))
