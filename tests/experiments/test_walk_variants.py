"""Variants of the walk, its data and its training: every check can fail."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.random_walks import (
    answers,
    attention_variants,
    common,
    graphs,
    hand_set,
    hidden_first_step,
    lags,
    larger_start,
    position_variants,
    pretraining,
    sample_size,
    token_mean,
    two_layers,
)


def direction(measured, key):
    (found,) = [finding.direction for finding in measured.findings if finding.key == key]
    return found


@pytest.mark.experiments
def test_models_that_were_not_trained_have_learned_nothing(change_training):
    change_training(lambda recipe: recipe.with_set(["optimiser.lr=1e-9"]))
    assert direction(lags.lags(True), "lag_fair") == "against"
    assert direction(lags.lags(True), "lag_trap") == "against"
    assert direction(sample_size.sample_size(True), "few_sequences") == "against"
    assert {one.direction for one in graphs.graphs(True).findings} == {"against"}
    assert direction(larger_start.larger_start(True), "larger_sure") == "for"
    assert direction(attention_variants.softmax_scale(True), "softmax_scale") == "against"
    assert direction(position_variants.rotary(True), "rotary_sure") == "for"
    depth = two_layers.two_layers(True)
    assert direction(depth, "decoder_trap") == "for"
    assert direction(depth, "second_layer_helps") == "against"


def test_a_query_that_is_not_zero_is_seen_through_the_residual(monkeypatch):
    train = answers.trained

    def with_a_query(recipes, seeds):
        ((run,),) = train(recipes, seeds)
        states = {name: value.clone() for name, value in run.states.items()}
        states["embed.W_E"][..., -1, 0] = 0.01
        return [[replace(run, states=states)]]

    assert direction(answers.residual_stream(True), "residual_void") == "for"
    monkeypatch.setattr(answers, "trained", with_a_query)
    assert direction(answers.residual_stream(True), "residual_void") == "against"


def test_a_start_off_zero_moves_attention_with_two_factors(monkeypatch):
    zeros = torch.zeros

    def off(*size, requires_grad=False, **options):
        return (zeros(*size, **options) + 0.1 * requires_grad).requires_grad_(requires_grad)

    assert direction(answers.factors(True), "separate_qk_zero") == "for"
    monkeypatch.setattr(torch, "zeros", off)
    assert direction(answers.factors(True), "separate_qk_zero") == "against"


@pytest.mark.usefixtures("shared_runs")
def test_another_rate_than_the_saddles_is_noticed(monkeypatch):
    spectrum = token_mean.trap_spectrum

    def steeper(**settings):
        return spectrum(**settings | {"slope": 1.5 * settings["slope"]})

    monkeypatch.setattr(token_mean, "trap_spectrum", steeper)
    assert direction(token_mean.token_mean(True), "mean_grows") == "against"


def test_a_trap_that_is_left_in_exact_arithmetic_is_none(monkeypatch):
    variance = token_mean.token_mean_variance

    def left(run):
        values, query = variance(run)
        values[-1] = 2.7e-9
        return values, query

    monkeypatch.setattr(token_mean, "token_mean_variance", left)
    assert direction(token_mean.mean_stays(True), "mean_stays") == "against"


@pytest.mark.experiments
def test_without_pretraining_there_is_no_help(monkeypatch):
    pretrained = pretraining._pretrained
    monkeypatch.setattr(pretraining, "_pretrained", lambda recipe, seed, steps: pretrained(recipe, seed, 0))
    assert direction(pretraining.pretraining(True), "pretraining") == "against"


def test_the_hand_set_decoder_is_the_walk_model():
    shape = hand_set.SHORT
    changes = [f"model.n_ctx={shape.n_ctx}", f"model.n_positions={shape.n_positions}"]
    walk = mm.train(
        mm.load_recipe("walk-k6-half").with_set([*changes, "data.n_train=500", "steps=10"]), seed=0
    )
    decoder = hand_set.walk_variant().train(0.5)
    assert decoder.steps.tolist() == walk.steps.tolist()
    for name in ("blocks.0.attn.W_O", "blocks.0.attn.W_K"):
        # Sums of up to 500 terms of order one in another order, in float32.
        torch.testing.assert_close(decoder.states[name], walk.states[name], rtol=1e-4, atol=1e-5)


def test_a_hand_set_decoder_has_zeros_where_nothing_is_said():
    variant = hand_set.walk_variant()
    assert not variant.start.states["blocks.0.attn.W_O"].any()
    assert not variant.start.states["blocks.0.attn.W_K"].any()
    assert variant.recipe.decoder_config.n_ctx == hand_set.SHORT.n_ctx


def test_information_of_lagged_walks_against_enumeration():
    P = np.array([[0.2, 0.8, 0.0], [0.0, 0.3, 0.7], [0.6, 0.0, 0.4]])
    source, length = mm.LaggedChain(P.tolist(), 2), 5
    joint = np.zeros((3, 3))
    for path in product(range(3), repeat=length):
        p = source.pi[path[0]] * source.pi[path[1]]
        for t in range(2, length):
            p *= P[path[t - 2], path[t]]
        for token in path[:-1]:
            joint[path[-1], token] += p
    independent = np.outer(joint.sum(1), joint.sum(0)) / joint.sum()
    expected = ((joint - independent) ** 2).sum() / (joint**2).sum()
    assert lags.lag_information(source, length) == pytest.approx(expected, rel=1e-9)


def test_the_outcome_of_a_model_with_known_attention():
    # V reads the parent's successor and attention is on the parent alone: all is known.
    variant = hand_set.walk_variant()
    decoder = variant.start.model()
    shape = hand_set.SHORT
    with torch.no_grad():
        decoder.blocks[0].attn.W_K[0, shape.n_states + shape.n_ctx - 2, 0] = 100.0
        decoder.blocks[0].attn.W_O[0, :, : shape.n_states] = torch.roll(torch.eye(shape.n_states), 1, 1)
    source = mm.Circle(n_states=6, p=1.0)
    run = mm.Run.from_model(decoder, source=source, objective=variant.recipe.objective)
    found = common.outcome(run, sequences=600)
    assert found.accuracy[1] == 1.0
    np.testing.assert_allclose(found.attention, np.eye(shape.n_ctx - 1)[0], atol=1e-6)
    assert found.spread == pytest.approx(1.0, abs=1e-6)


def test_the_pull_has_the_shape_of_its_own_base_only():
    width, d_head = 7, 32
    states = {
        "embed.W_E": torch.eye(width),
        "blocks.0.attn.W_Q": torch.zeros(1, width, d_head),
        "blocks.0.attn.W_V": hand_set.token_block(width, d_head),
        "unembed.W_U": torch.eye(width)[:, :6].clone(),
    }
    states["blocks.0.attn.W_Q"][0, 6] = 2.0
    fields = {"d_model": width, "d_head": d_head, "positional_embedding_type": "rotary"}
    more = {"rotary_dim": d_head, "rotary_base": 20.0}
    trained = {"blocks.0.attn.b_K": None} | hand_set.V_BLOCK
    variant = hand_set.hand_set(
        hand_set.walk_fields(hand_set.SHORT) | fields | more, states, trained, "steps=2"
    )
    run = variant.train(1.0)
    assert position_variants._pull(run, 20.0, d_head, 25) > 0.9999
    assert position_variants._pull(run, 10_000.0, d_head, 25) < 0.99


STAR = [[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
PATH = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
PRODUCTS = [[1, 2, 3], [2, 4, 6], [3, 6, 9]]


@pytest.mark.parametrize(
    ("weights", "flat"),
    [
        (STAR, [False, True, False, True]),
        (PATH, [False] * 4),
        (PRODUCTS, [True] * 4),
        ([[0, 1], [1, 0]], [False, True, False, True]),
    ],
)
def test_the_label_is_independent_of_a_token_where_all_paths_say_so(weights, flat):
    n, degrees = len(weights), [sum(row) for row in weights]
    for length, expected in enumerate(flat, 2):
        joint = {pair: Fraction(0) for pair in product(range(n), repeat=2)}
        for path in product(range(n), repeat=length):
            steps = prod(Fraction(weights[i][j], degrees[i]) for i, j in pairwise(path))
            for token in path[:-1]:
                joint[token, path[-1]] += Fraction(degrees[path[0]], sum(degrees)) * steps / (length - 1)
        label, token = (
            [sum(joint[pair] for pair in joint if pair[side] == i) for i in range(n)] for side in (1, 0)
        )
        assert expected == all(joint[i, j] == token[i] * label[j] for i, j in joint)
    exact = [[Fraction(weight) for weight in row] for row in weights]
    assert list(hidden_first_step.walk(exact, 5)) == flat
    assert [hidden_first_step.graph_hides(exact, length) for length in range(2, 6)] == flat


@pytest.mark.parametrize(
    ("rule", "key"), [("circle_hides", "hidden_circles"), ("graph_hides", "hidden_graphs")]
)
def test_a_rule_that_is_wrong_at_one_length_is_refused(monkeypatch, rule, key):
    right = getattr(hidden_first_step, rule)
    monkeypatch.setattr(hidden_first_step, rule, lambda *walk: walk[-1] != 5 and right(*walk))
    assert direction(hidden_first_step.hidden_first_step(True), key) == "against"


def test_the_connected_graphs_are_as_many_as_there_are():
    assert [len([*hidden_first_step.connected_graphs(n)]) for n in range(2, 6)] == [1, 2, 6, 21]
