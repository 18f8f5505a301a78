"""Orders, lags and mixtures: checks that can fail, and the folder's own arithmetic."""

from itertools import product

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.order_and_lag import (
    algorithms,
    construction,
    heads,
    hidden_tasks,
    lags,
    mixtures,
    n_grams,
    orders,
    simplified,
    stages,
)
from experiments.order_and_lag.shared import RECIPES

pytestmark = pytest.mark.experiments


@pytest.fixture
def untrained(change_training):
    """Runs of the same shapes that took one step at a tiny rate."""
    changes = ["steps=1", "checkpoints=[0, 1]", "optimiser.schedule=constant", "optimiser.lr=1e-6"]
    change_training(lambda recipe: recipe.with_set(changes))


def verdicts(measured):
    return [claim.direction for claim in measured.findings]


def test_untrained_models_are_no_k_grams_and_have_no_heads(untrained):
    assert verdicts(orders.orders(True))[0] == "against"
    assert set(verdicts(heads.heads(True))) == {"against"}
    assert verdicts(stages.stages(True)) == ["against"]


def test_untrained_models_pick_no_lag(untrained):
    assert verdicts(lags.lags(True))[0] == "against"


def test_untrained_models_run_none_of_the_four_algorithms(untrained):
    found = {claim.key: claim.direction for claim in mixtures.mixtures(True).findings}
    for key in ("unigram_algorithms_first", "bigram_use_grows"):
        assert found[key] == "against"


def test_a_head_that_is_in_its_later_place_is_no_stationary_point(monkeypatch):
    build = stages.sub_n_gram

    def ready(n_states, length, heads, looks_back, sharpness):
        model = build(n_states, length, heads, looks_back, sharpness)
        model.by_position[looks_back].diagonal(-looks_back - 1).fill_(sharpness)
        return model

    monkeypatch.setattr(stages, "sub_n_gram", ready)
    assert verdicts(stages.gradients(True))[0] == "against"


@pytest.mark.parametrize("looks_back", [0, 1, 2])
def test_a_constructed_k_gram_predicts_the_frequency_of_what_followed(looks_back):
    x = mm.DirichletChains(n_states=3, start="uniform", order=2).sample(
        50, 40, generator=torch.Generator().manual_seed(0)
    )
    model = simplified.sub_n_gram(3, 40, 2, looks_back, 40.0)
    law = simplified.predict(model, x).numpy()
    for tokens, found in zip(x.tolist(), law, strict=True):

        def carries(s, j, tokens=tokens):  # a head without a token so far back mixes all there are
            seen = [tokens[s - j]] if s >= j else tokens[: s + 1]
            return set(seen) == {tokens[len(tokens) - j]}

        after = [tokens[s] for s in range(40) if all(carries(s, j) for j in range(1, looks_back + 1))]
        if after:
            expected = np.bincount(after, minlength=3) / len(after)
            # What matches a half is e^-20 as likely.
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_gradient_against_differences():
    source = mm.DirichletChains(n_states=2, start="uniform", order=2)
    drawn = source.sample(200, 13, generator=torch.Generator().manual_seed(1))
    x, y = drawn[:, :-1], drawn[:, -1]
    model = simplified.sub_n_gram(2, 12, 2, 1, 1.5)
    _, by_token = simplified.gradient(model, x, y)

    def loss(by_token):
        law = simplified.predict(simplified.Simplified(model.by_position, by_token), x)
        return -(law.gather(1, y[:, None]) + simplified.FLOOR).log().mean()

    for place in [(0, 0, 0, 0), (1, 0, 2, 1), (2, 1, 1, 1)]:
        step = torch.zeros_like(by_token)
        step[place] = 1e-5
        with torch.no_grad():
            slope = (loss(model.by_token + step) - loss(model.by_token - step)) / 2e-5
        # Central differences of a float64 loss of size 1: 1e-10 from the third derivative, 1e-11 rounding.
        assert float(by_token[place]) == pytest.approx(float(slope), abs=1e-8)


def test_the_limits_against_long_sequences_of_the_same_kernels():
    # Covariances by counting, over 400 kernels in 20 000 steps each, against their stationary laws.
    source = mm.DirichletChains(n_states=2, start="uniform", order=2)
    x, kernel = source.sample_with_hidden(400, 20_000, generator=torch.Generator().manual_seed(0))
    x, K = x.numpy(), 2
    joint = np.stack(
        [
            ((x[:, :-2] == a) & (x[:, 1:-1] == b) & (x[:, 2:] == c)).mean(1)
            for a, b, c in product(range(K), repeat=3)
        ],
        axis=-1,
    ).reshape(-1, K, K, K)
    pairs, one = joint.sum(1), joint.sum((1, 2))
    unigram = (pairs - pairs.sum(2, keepdims=True) * one[:, None]).mean(0)
    law = pairs / np.maximum(pairs.sum(2, keepdims=True), 1e-12)
    bigram = (joint - joint.sum(3, keepdims=True) * law[:, None]).sum(2).mean(0)
    exact = simplified.limit(source, 400)
    same = source.sample_chains(400, generator=torch.Generator().manual_seed(0))
    assert torch.equal(same, kernel)
    for counted, (norm, _) in zip((unigram, bigram), exact, strict=True):
        # Frequencies over 20 000 steps err by 0.5 / sqrt(20 000) times a few for what lasts, and 400 average.
        assert np.linalg.norm(counted) == pytest.approx(norm, abs=3e-3)


def test_a_mixture_of_algorithms_is_found_and_its_conditioning_told():
    rng = np.random.default_rng(0)
    laws = rng.dirichlet(np.ones(3), size=(4, 30, 10))
    weights = np.array([0.5, 0.0, 0.2, 0.3])
    found = algorithms.fit(np.einsum("i,ibts->bts", weights, laws), laws)
    np.testing.assert_allclose(found.weights, weights, atol=1e-5)  # the sum is 1 to a part in 1e6
    assert found.explained == pytest.approx(1, abs=1e-8)
    assert found.condition < 2
    laws[1] = laws[0] + 1e-3 * (laws[1] - laws[0])  # two that are nearly one cannot be told apart
    assert algorithms.fit(laws[0], laws).condition > 1e4


def test_shuffling_changes_nothing_where_only_counts_matter():
    recipe = mm.load_recipe(RECIPES / "mixture.toml").with_set(
        ["steps=1", "model.n_layers=1", "model.positional_embedding_type=none", "model.n_ctx=16"]
    )
    decoder = mm.train(recipe, seed=0).model(steps="all")
    tokens = torch.randint(3, (20, 16), generator=torch.Generator().manual_seed(0))
    # One layer without positions sees a set of tokens and the last: float32 sums in another order.
    assert algorithms.bigram_use(decoder, tokens) == pytest.approx(0, abs=1e-6)


def test_the_construction_is_exact_and_can_fail(monkeypatch):
    assert construction.construction(True).findings[0].direction == "for"
    monkeypatch.setattr(construction, "SHARPNESS", 9.0)
    assert construction.construction(True).findings[0].direction == "against"


def test_tables_that_read_the_oldest_token_first_are_no_n_grams(monkeypatch):
    build = n_grams.n_gram_model
    monkeypatch.setattr(
        n_grams, "n_gram_model", lambda kernel, *args, **kw: build(kernel.swapaxes(0, -2), *args, **kw)
    )
    found = {claim.key: claim.direction for claim in n_grams.n_grams(True).findings}
    for key in ("n_gram_heads", "n_gram_layers", "n_gram_digits", "n_gram_softmax"):
        assert found[key] == "against"


def test_hard_and_sparse_attention_are_what_they_are_called():
    scores = torch.tensor([[3.0, 3.5, -torch.inf], [1.0, 4.0, 0.0]])
    assert n_grams.hardmax(scores).tolist() == [[0, 1, 0], [0, 1, 0]]
    assert n_grams.sparsemax(scores).tolist() == [[0.25, 0.75, 0], [0, 1, 0]]


def test_the_filter_of_all_tasks_is_the_sum_over_tasks_and_hidden_paths():
    tokens = np.array(list(product(range(3), repeat=4)))
    likely = np.zeros((3, len(tokens), 3))  # of each task and next token: joint, by enumeration
    for i, move in enumerate(hidden_tasks.MOVES):
        T, E = hidden_tasks.task(move).T, hidden_tasks.task(move).E
        for path in product(range(3), repeat=5):
            law = np.prod([T[path[t], path[t + 1]] for t in range(4)]) / 3
            seen = np.prod([E[path[t], tokens[:, t]] for t in range(4)], axis=0)
            likely[i] += law * seen[:, None] * E[path[4]]
    joint = likely.sum(0)
    found = hidden_tasks.tasks().best().probabilities(tokens)[:, -1]
    assert found == pytest.approx(joint / joint.sum(-1, keepdims=True), abs=1e-4)  # tasks switch at 1e-6
    alike = (likely / likely.sum(-1, keepdims=True)).mean(0)
    assert hidden_tasks.without_inference(tokens)[:, -1] == pytest.approx(alike, abs=1e-12)
    assert np.abs(found - alike).max() > 0.1
