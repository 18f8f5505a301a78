"""Training on the whole law of a fixed chain, against numpy, against samples, and against known limits."""

import itertools

import numpy as np
import pytest
import torch
from fitting import fit, fit_members, start_of
from scipy.integrate import solve_ivp
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from mechmarkov.sources.sampling.whole_law import whole_law
from mechmarkov.training.data import Batches
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.split import split_fleet
from mechmarkov.training.workload import Member, members_of, workload_of

P = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.15, 0.6]])
CPU = torch.device("cpu")
DENSE = load_recipe("walk-k6-half").replace(
    **{
        "source": {"kind": "chain", "P": P.tolist()},
        "model.n_ctx": 5,
        "model.n_positions": 5,
        "model.dtype": "float64",
        "data": {"population": True},
        "init": {"scheme": "normal", "std": 0.05},
        "steps": 1,
    }
)


def losses_and_learner(recipe, seed=0):
    """The loss with its gradient by autograd, of the start."""
    training = start_of([Member(recipe, seed)])
    return training.learner, *training.fixed, training.batches.weights


def loss_and_gradient(learner, tokens, targets, weights):
    """Loss, then the gradients of V and u, in one array."""
    loss = learner.measure(tokens, targets, weights)["loss"]
    gradients = torch.autograd.grad(loss.sum(), [learner.model.V, learner.model.u])
    return np.concatenate([loss.detach().numpy(), *(g.numpy().ravel() for g in gradients)])


def by_hand(V, u, n_ctx, norm, eps=0.1):
    """Loss and its gradient for V and u, sequence by sequence, by the chain rule written out in numpy."""
    K, pi = len(P), np.linalg.matrix_power(P, 200)[0]
    loss, dV, du = 0.0, np.zeros_like(V), np.zeros_like(u)
    for walk in itertools.product(range(K), repeat=n_ctx):
        weight = pi[walk[0]] * np.prod([P[a, b] for a, b in itertools.pairwise(walk)])
        keys = np.zeros((n_ctx, K + n_ctx))
        for i, state in enumerate(walk[:-1]):
            keys[i, state] = 1
        keys[:, K:] = norm * np.eye(n_ctx)
        S = np.exp(keys @ (norm * u))
        S /= S.sum()
        values = np.zeros((n_ctx, K))
        values[:-1] = keys[:-1, :K]
        scores, y = V @ (values.T @ S), walk[-1]
        loss -= weight * np.log(scores[y] + eps)
        slope = -weight / (scores[y] + eps)
        dV[y] += slope * (values.T @ S)
        du += slope * norm * keys.T @ (S * (values @ V[y] - scores[y]))
    return loss, dV, du


def test_loss_and_gradient_are_those_of_numpy():
    learner, tokens, targets, weights = losses_and_learner(DENSE)
    with torch.no_grad():
        learner.model.V += 0.3  # where every score is well above -eps
    loss = learner.measure(tokens, targets, weights)["loss"]
    found = torch.autograd.grad(loss.sum(), [learner.model.V, learner.model.u])
    V, u = (p.detach().numpy()[0] for p in (learner.model.V, learner.model.u))
    expected, *gradients = by_hand(V, u, 5, learner.shape.norm)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    for one, other in zip(found, gradients, strict=True):
        np.testing.assert_allclose(one[0].numpy(), other, rtol=1e-12, atol=1e-14)


def test_samples_agree_within_their_standard_error():
    learner, tokens, targets, weights = losses_and_learner(DENSE)  # all from the same start, seed 0
    exact = loss_and_gradient(learner, tokens, targets, weights)
    sampled = DENSE.replace(**{"data": {"n_train": 1000}})
    found = []
    for seed in range(30):
        _, tokens, targets, none = losses_and_learner(sampled, seed)  # read by the model of seed 0
        assert none is None
        found.append(loss_and_gradient(learner, tokens, targets, none))
    error = np.std(found, 0, ddof=1) / np.sqrt(len(found))
    moves = error > 1e-12  # the gradient of u's entry for the query and of unused directions is fixed
    assert moves.sum() >= 10
    assert (np.abs(np.mean(found, 0) - exact)[moves] < 4.5 * error[moves]).all()
    np.testing.assert_allclose(np.mean(found, 0)[~moves], exact[~moves], atol=1e-12)


def test_a_decoder_trains_on_the_whole_law():
    """Its loss falls to the entropy rate and no lower."""
    recipe = load_recipe("binary-p02-q03-untied").with_set(
        ["model.n_ctx=6", "data={population=true}", "steps=200", "checkpoints=[200]", "optimiser.lr=0.01"]
    )
    (fitted,) = [fit_members(members_of(recipe, [0, 1]))]
    assert (fitted.metrics["loss"][0] > fitted.metrics["loss"][-1]).all()
    excess = fitted.metrics["loss"][-1] - recipe.source.entropy_rate
    assert (excess > -1e-6).all()
    assert (excess < 0.01).all()


def test_V_turns_to_the_root_of_P():
    """V + eps = sqrt(eps^2 + 2 eta t pi P) entry by entry, for a chain whose every transition is possible."""
    recipe = load_recipe("walk-k6-half").replace(
        **{
            "source": {"kind": "chain", "P": P.tolist()},
            "model.n_ctx": 6,
            "model.dtype": "float64",
            "data": {"population": True},
            "steps": 1000,
            "checkpoints": [1000],
        }
    )
    fitted = fit(recipe, [0])
    assert fitted.metrics["parent_attention"][-1] > 1 - 1e-9
    V = fitted.checkpoints[1000]["blocks.0.attn.W_O"][0, 0, :, :3].numpy()  # [state_from, state_to]
    expected = np.sqrt(0.1**2 + 2000 * recipe.source.pi[:, None] * P) - 0.1
    np.testing.assert_allclose(V, expected, rtol=0.01)
    straight = 2000 * recipe.source.pi[:, None] * P
    assert np.abs(V / V.sum() - straight / straight.sum()).max() > 0.02


@pytest.mark.parametrize(
    "change",
    [
        "model.n_ctx=97",
        "source={kind='circle', n_states=6, p=0.5}; model.n_ctx=97",
        "source={kind='dirichlet_chains', n_states=3}",
    ],
)
def test_refusals_are_one_line(change):
    with pytest.raises(ValueError, match=r"data.population is true, but .*: give data.n_train") as error:
        fit(DENSE.with_set(change.split("; ")), [0])
    assert "\n" not in str(error.value)


def test_the_law_sums_to_one_and_starts_stationary():
    states, weights = whole_law(DENSE.source, 5)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-14)
    for position in range(5):
        marginal = np.bincount(states[:, position], weights, minlength=3)
        np.testing.assert_allclose(marginal, DENSE.source.pi, rtol=1e-13)


def test_descent_approaches_the_flow_at_first_order():
    time, recipe = 0.2, DENSE.replace(**{"init": {"scheme": "zero"}, "model.n_positions": 5})
    learner, *population = losses_and_learner(recipe)
    parameters = [learner.model.V, learner.model.u]

    def velocity(_, theta):
        with torch.no_grad():
            vector_to_parameters(torch.from_numpy(theta.copy()), parameters)
        return -loss_and_gradient(learner, *population)[1:]

    start = parameters_to_vector(parameters).detach().numpy()
    flow = solve_ivp(velocity, (0, time), start, "LSODA", rtol=1e-9, atol=1e-12).y[: len(P) ** 2, -1]
    errors = []
    for n in (200, 400, 800):
        run = recipe.replace(**{"optimiser.lr": time / n, "steps": n, "checkpoints": [n]})
        V = fit(run, [0]).checkpoints[n]["blocks.0.attn.W_O"][0, 0, :, :3].numpy().T
        errors.append(np.abs(V - flow.reshape(V.shape)).max())
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.1)


def test_a_trapped_random_circle_stays_but_for_rounding():
    """Four states, p = 1/2: at odd N the first step is hidden, at N = 6 it is not.

    Only deterministic circles have the symmetry built in. What is left after two steps is rounding,
    which later steps let grow.
    """

    def spread(n_ctx):
        changes = {
            "source.n_states": 4,
            "source.p": 0.5,
            "model.n_ctx": n_ctx,
            "steps": 2,
            "checkpoints": [2],
        }
        return float(
            fit(load_recipe("walk-k6-trap").replace(**changes), [0]).metrics["attention_spread"].max()
        )

    assert max(spread(5), spread(9), spread(13)) < 1e-9 < 0.3 < spread(6)


def test_a_random_circles_reduced_form_is_the_tensors():
    reduced = load_recipe("walk-k6-trap").replace(
        **{"source.p": 0.7, "model.n_ctx": 9, "steps": 5, "checkpoints": [5]}
    )
    one, other = fit(reduced, [0]), fit(reduced.with_set(["model.form=small"]), [0])
    torch.testing.assert_close(one.metrics["loss"], other.metrics["loss"], rtol=1e-12, atol=1e-13)


def test_a_population_counts_as_all_its_sequences():
    """By stacks, which hold so many tokens at most."""
    changes = ["model.n_ctx=40", "model.window=1", "data={population=true}"]
    recipe = load_recipe("binary-p05-q08-untied").with_set(changes)
    members = members_of(recipe, range(4))
    read = Batches(members, 41, CPU).fixed
    work = workload_of(recipe)
    assert len(read) == work.sequences == 8
    assert split_fleet([work] * 4, 10**12, most=2 * len(read) * 40) == [[0, 1], [2, 3]]
