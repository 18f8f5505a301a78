"""Losses and predictions against the equations in numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pydantic import ValidationError

from mechmarkov.objectives import Objective
from mechmarkov.utils.config import FieldError

KINDS = ["cross_entropy", "raw_log", "normalised_log", "squared"]


def predicted(kind, scores):
    """Row by row: softmax, or the positive part over its sum, uniform where there is none."""
    out = np.empty_like(scores)
    for index in np.ndindex(scores.shape[:-1]):
        row = np.exp(scores[index] - scores[index].max())
        if kind != "cross_entropy":
            row = np.where(scores[index] > 0, scores[index], 0.0)
        out[index] = row / row.sum() if row.sum() > 0 else 1 / len(row)
    return out


def lost(kind, scores, targets, eps):
    out = np.empty(scores.shape[:-1])
    for index in np.ndindex(out.shape):
        row, y = scores[index], targets[index]
        if kind == "cross_entropy":
            out[index] = np.log(np.exp(row - row[y]).sum())
        elif kind == "raw_log":
            out[index] = -np.log(row[y] + eps)
        elif kind == "normalised_log":
            out[index] = -np.log(predicted(kind, row[None])[0, y] + eps)
        else:
            out[index] = sum((row[j] - (j == y)) ** 2 for j in range(len(row)))
    return out


def scores_and_targets(kind, lead=(2, 3, 5)):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(*lead, 4))
    if kind == "raw_log":
        scores = np.abs(scores)
    targets = rng.integers(4, size=lead)
    if kind != "cross_entropy":
        scores[0, 0] = 0.0  # rows of zeros
    if kind in ("normalised_log", "squared"):
        scores[0, 1] = -np.abs(scores[0, 1])  # rows without anything positive
        scores[0, 2, :, 1:] = 0.0
    return scores, targets


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.1, 1e-6])
def test_losses(kind, eps):
    objective = Objective(kind=kind, eps=eps)
    scores, targets = scores_and_targets(kind)
    ours = objective.loss(torch.tensor(scores), torch.tensor(targets))
    assert ours.shape == targets.shape
    assert np.allclose(ours, lost(kind, scores, targets, eps), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions(kind):
    scores, _ = scores_and_targets(kind)
    ours = Objective(kind=kind).predict(torch.tensor(scores)).numpy()
    assert np.allclose(ours, predicted(kind, scores), atol=1e-14)
    if kind != "cross_entropy":
        assert (ours[0, 0] == 0.25).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    """Against differences of the numpy loss, where it has a derivative."""
    rng = np.random.default_rng(1)
    scores, targets = rng.uniform(0.2, 2.0, size=(3, 4)), np.array([0, 3, 3])
    scores[2, 1] = -0.7  # floored, and not read by the raw log
    x = torch.tensor(scores, requires_grad=True)
    Objective(kind=kind).loss(x, torch.tensor(targets)).sum().backward()
    h = 1e-6
    for index in np.ndindex(scores.shape):
        up, down = scores.copy(), scores.copy()
        up[index] += h
        down[index] -= h
        slope = (lost(kind, up, targets, 0.1).sum() - lost(kind, down, targets, 0.1).sum()) / (2 * h)
        assert x.grad[index].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("kind", ["raw_log", "normalised_log", "squared"])
def test_a_row_of_zeros_has_a_finite_gradient(kind):
    x = torch.zeros(2, 3, requires_grad=True)
    Objective(kind=kind).loss(x, torch.tensor([0, 2])).sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad != 0).any() == (kind != "normalised_log")


def test_another_score_of_minus_eps_is_harmless():
    x = torch.tensor([[0.5, -0.1, -3.0]], requires_grad=True)
    Objective(kind="raw_log", eps=0.1).loss(x, torch.tensor([0])).sum().backward()
    assert torch.allclose(x.grad, torch.tensor([[-1 / 0.6, 0.0, 0.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_one_example_alone(kind):
    """Scores of one prediction, without a batch."""
    scores, targets = scores_and_targets(kind, lead=(1, 3, 1))
    ours = Objective(kind=kind).loss(torch.tensor(scores[0, 2, 0]), torch.tensor(targets[0, 2, 0]))
    assert ours.item() == pytest.approx(lost(kind, scores, targets, 0.1)[0, 2, 0])


SCORES = arrays(np.float64, array_shapes(min_dims=2, max_dims=3, max_side=4), elements=st.floats(-30, 30))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), SCORES)
def test_predictions_are_probabilities(kind, scores):
    probability = Objective(kind=kind).predict(torch.tensor(scores)).numpy()
    assert (probability >= 0).all()
    assert np.allclose(probability.sum(-1), 1, atol=1e-12)
    assert np.allclose(probability, predicted(kind, scores), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_predicts_nothing(kind):
    """Not a uniform guess that looks like a model at chance."""
    scores = torch.tensor([[1.0, float("nan"), 0.5], [1.0, 2.0, 3.0]])
    probability = Objective(kind=kind).predict(scores)
    assert probability[0].isnan().any()
    assert probability[1].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_no_state(kind):
    """Also the -100 that torch's own cross-entropy passes over in silence."""
    for outside in (-100, 4):
        with pytest.raises((IndexError, RuntimeError), match=r"out of bounds|num_classes|negative|smaller"):
            Objective(kind=kind).loss(torch.ones(2, 4), torch.tensor([0, outside]))


def test_defaults_and_mistakes():
    assert Objective().model_dump() == {"kind": "cross_entropy", "eps": 0.1, "read": "all", "query": False}
    mistakes = {"kind": "hinge", "eps": 0.0, "read": "first", "query": "maybe", "temperature": 1.0}
    for field, value in mistakes.items():
        with pytest.raises(FieldError, match=f"^Objective: (unknown key )?{field}( is |, )"):
            Objective(**{field: value})
    with pytest.raises(ValidationError, match="frozen"):
        Objective().eps = 0.2
