"""Random walks on a circle: a wrong model or law fails the checks of the paper's claims."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.random_walks import (
    escapes,
    first_step,
    questions,
    relu_layer,
    small_start,
    spectrum,
    theorems,
    token_mean_rule,
)


def verdicts(measured):
    return [claim.direction for claim in measured.findings]


def longer(recipe):
    """K no longer divides N - 1."""
    return recipe.with_set([f"model.n_ctx={recipe.model.n_ctx + 1}"])


def test_an_untrained_model_is_not_learned(change_training):
    change_training(lambda recipe: recipe.with_set(["optimiser.lr=1e-6", "checkpoints=[5, 50]"]))
    assert set(verdicts(theorems.learned(True))) == {"against"}


def test_a_walk_that_is_not_trapped_is_told(change_training):
    change_training(longer)
    assert set(verdicts(theorems.trapped(True))) == {"against"}


def test_a_trap_at_other_lengths_is_refused(change_training):
    change_training(longer)
    assert verdicts(first_step.one_step(True)) == ["against"]


@pytest.mark.usefixtures("shared_runs")
def test_rates_of_another_trap_are_refused(monkeypatch):
    theory = escapes.predicted_rates
    monkeypatch.setattr(escapes, "predicted_rates", lambda K, N, norm, steps: 1.2 * theory(K, N, norm, steps))
    assert verdicts(escapes.escape_rates(True))[0] == "against"


@pytest.mark.usefixtures("shared_runs")
def test_a_closed_form_of_another_trap_is_refused(monkeypatch):
    theory = spectrum.trap_spectrum

    def off(**given):
        return theory(**(given | {"position_norm": 1.1 * given["position_norm"]}))

    monkeypatch.setattr(spectrum, "trap_spectrum", off)
    assert verdicts(spectrum.spectrum(True)) == ["against"]


@pytest.mark.experiments
@pytest.mark.usefixtures("shared_runs")
def test_escapes_that_prefer_a_class_are_told(monkeypatch):
    found = escapes.lag_class
    monkeypatch.setattr(escapes, "lag_class", lambda r, step: (max(1, found(r, step)[0] - 1), 1.0))
    assert verdicts(escapes.lag_classes(True))[:2] == ["against", "against"]


@pytest.mark.experiments
def test_without_competing_words_nothing_corrects_the_layer(monkeypatch):
    alone = questions.LAYERS[questions.PRINTED]
    monkeypatch.setitem(questions.LAYERS, questions.COMPETING, alone)
    (found,) = [one for one in questions.extra_layer(True).findings if one.key == "layer_competing"]
    assert found.direction == "against"


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.experiments
def test_the_calibration_can_fail(monkeypatch):
    monkeypatch.setitem(small_start.ETAS, 0.2, small_start.ETAS[small_start.SUMMED])
    monkeypatch.setattr(small_start, "SUMMED", 0.2)
    found = {(one.key, one.case): one.direction for one in small_start.small_start(True).findings}
    assert found["small_start_fair", small_start.ETAS[0.2]] == "against"


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.experiments
def test_the_rule_fails_where_the_token_mean_is_misjudged(monkeypatch):
    monkeypatch.setattr(token_mean_rule, "token_mean_variance", lambda P, pi, N: (0.0, 1.0))
    monkeypatch.setattr(token_mean_rule, "population_spread", lambda K, N, p: 0.1)
    assert verdicts(token_mean_rule.token_mean_rule(True)) == ["against", "against"]


def test_the_variance_of_a_question_is_by_hand():
    # Task 1: 16 words; the more frequent of five fruits comes 3.4375 times on the mean, the other 1.5625.
    by_hand = 2 * ((3.4375 - 2.5) / 16) ** 2
    assert token_mean_rule.question_variance(mm.sources.FruitQuestions(task=1)) == pytest.approx(
        by_hand, rel=1e-12
    )
    assert token_mean_rule.question_variance(mm.sources.FruitQuestions(task=2)) == 0


def test_the_population_of_walks_is_flat_where_the_first_step_is():
    assert token_mean_rule.population_spread(4, 97, 0.5) < 1e-6
    assert token_mean_rule.population_spread(4, 98, 0.5) > 0.1


def test_the_layer_is_its_formula():
    shape = replace(mm.load_recipe("walk-k6-half").model.shape(6), n_states=4, n_ctx=5)
    model = relu_layer.ReluLayer(shape, range(2), std=0.5, biases=True)
    tokens = torch.randint(0, 4, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    found = model.scores(model.one_hot(tokens)).detach().double().numpy()
    for member in range(2):
        V, A = (getattr(model, name)[member].detach().double().numpy() for name in "VA")
        b, c = (getattr(model, name)[member, 0].detach().double().numpy() for name in "bc")
        plain = model.run(model.one_hot(tokens))[1][member].detach().double().numpy()
        for i in range(3):
            mean = plain[i, :-1] @ np.eye(4)[tokens[member, i, :-1]]
            np.testing.assert_allclose(
                found[member, i], A @ np.maximum(V @ mean + b, 0) + c, rtol=1e-4, atol=1e-5
            )
