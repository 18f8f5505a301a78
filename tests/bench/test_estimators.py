"""Estimates of an expected loss against sums over all sequences, by hand."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.bench import CASES
from mechmarkov.bench.estimators import estimate, exact_loss, read_program, with_controls
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import cancelling_tables

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.4, 0.1, 0.5]])
SEEDS = range(60)


def near_a_table():
    """The direct path holds a table, two heads write and retract it; attention is soft, weights noisy."""
    model = cancelling_tables(torch.tensor(np.log(P)).float(), n_ctx=5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=generator)
        model.get_parameter("blocks.0.attn.W_Q").mul_(0.2)
    return mm.Run.from_model(model, source=mm.Chain(P))


def without_the_second_head(run):
    model = run.model(-1)
    with torch.no_grad():
        model.get_parameter("blocks.0.attn.W_O")[1].zero_()
    return mm.Run.from_model(model, source=run.source)


def by_hand(run):
    """The sum over all sequences, one at a time."""
    model, total = run.model(-1).double(), 0.0
    pi = np.linalg.matrix_power(P, 400)[0]
    for x in product(range(3), repeat=5):
        weight = pi[x[0]] * np.prod([P[a, b] for a, b in pairwise(x)])
        scores = model(torch.tensor([x])).detach().numpy()[0]
        logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        total += weight * np.mean([-P[a] @ log for a, log in zip(x, logs, strict=True)])
    return total


@pytest.fixture(scope="module")
def run():
    return near_a_table()


def errors(true, run, sequences=12, **given):
    found = [estimate(run, sequences, seed=seed, **given) for seed in SEEDS]
    return np.array([each.value - true for each in found]), np.array([each.error for each in found])


def test_the_exact_loss_is_the_sum_by_hand(run):
    assert exact_loss(run) == pytest.approx(by_hand(run), abs=1e-9)


@pytest.mark.parametrize("effect", [False, True])
def test_a_program_lowers_the_error_of_a_sample(run, effect):
    other = without_the_second_head(run) if effect else None
    programs = [read_program(one) for one in ([run, other] if effect else [run])]
    true = by_hand(other) - by_hand(run) if effect else by_hand(run)
    squares = []
    for controls in ((), programs):
        off, error = errors(true, run, ablated=other, programs=controls)
        squares.append(np.square(off).mean())
        assert abs(off.mean()) < 4 * off.std() / np.sqrt(len(off))
        assert 0.6 < np.sqrt(squares[-1]) / error.mean() < 1.6  # the error is as large as it says
    assert squares[1] < squares[0] / (2 if effect else 10)


def test_passes_of_both_models_count(run):
    programs = [read_program(run)]
    assert estimate(run, 12, seed=0, programs=programs).passes == 12
    assert estimate(run, 12, seed=0, ablated=run, programs=programs).passes == 24


def test_a_program_that_is_the_model_needs_no_sample():
    run = CASES["direct"](0).as_run()
    program = read_program(run)
    tokens = torch.arange(4)[:, None].expand(4, 8)
    predicted = run.model(-1).double()(tokens).softmax(-1).detach().numpy()
    np.testing.assert_allclose(program, predicted.swapaxes(0, 1), atol=1e-6)
    assert estimate(run, 4, seed=3, programs=[program]).value == pytest.approx(exact_loss(run), abs=1e-9)
    assert abs(estimate(run, 4, seed=3).value - exact_loss(run)) > 1e-3


def test_controls_give_the_value_of_a_regression():
    random = np.random.default_rng(0)
    controls, noise = random.normal(size=(2, 50)), random.normal(size=50)
    values, means = 1 + 2 * controls[0] - 3 * controls[1] + noise, np.array([0.3, -0.2])
    design = np.column_stack([np.ones(50), *controls])
    coefficients, (rest,), *_ = np.linalg.lstsq(design, values, rcond=None)
    at = np.array([1, *means])
    error = np.sqrt(rest / 47 * at @ np.linalg.inv(design.T @ design) @ at)
    assert with_controls(values, controls, means) == pytest.approx((at @ coefficients, error))
    twice = np.stack([controls[0], controls[1], controls[0]])
    again = with_controls(values, twice, np.array([*means, means[0]]))
    assert again == pytest.approx((at @ coefficients, error))  # one that says nothing new costs nothing
    mean, of_mean = with_controls(values, controls[:0], means[:0])
    assert (mean, of_mean) == pytest.approx((values.mean(), values.std(ddof=1) / np.sqrt(50)))


def test_where_nothing_can_be_read_is_said():
    two_layers = mm.Run.from_model(induction_pair(3, n_ctx=6), source=mm.Chain(P))
    assert "layer" in read_program(two_layers)
    with pytest.raises(ValueError, match="is not a fixed first-order chain"):
        read_program(CASES["induction"](0).as_run())


def test_too_few_sequences_are_refused(run):
    with pytest.raises(ValueError, match="sequences is 3, expected at least 4"):
        estimate(run, 3, seed=0, programs=[read_program(run)])
