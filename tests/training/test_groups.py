"""Standard errors over groups of a fresh batch, against exact values and repeated draws."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fitting import fit_members, start_of

import mechmarkov as mm
from mechmarkov.cli import cli
from mechmarkov.training.learner import with_errors
from mechmarkov.training.recipe import RecipeError, load_recipe
from mechmarkov.training.workload import Member

RECIPE = load_recipe("walk-k6-half").replace(
    **{
        "model": {"kind": "walk", "n_ctx": 5, "n_positions": 5, "dtype": "float64"},
        "source": {"kind": "chain", "P": [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.15, 0.6]]},
        "init": {"scheme": "normal", "std": 0.05},
        "optimiser.lr": 1e-9,  # weights stay where they are, so that steps are independent draws
        "data": {"batch": 256, "groups": 8},
        "steps": 300,
        "checkpoints": [300],
    }
)


def exact(recipe):
    """Population loss and gradient at the start of seed 0."""
    training = start_of([Member(recipe.replace(**{"data": {"population": True}}), 0)])
    loss = training.learner.measure(*training.fixed, training.batches.weights)["loss"].sum()
    return float(loss.detach()), torch.cat(
        [g.ravel() for g in torch.autograd.grad(loss, [*training.learner.parameters.values()])]
    )


def test_errors_are_those_of_repeated_draws():
    """Over 300 independent batches: distances to the exact values have the size that is printed."""
    metrics = {name: x[:, 0].numpy() for name, x in fit_members([Member(RECIPE, 0)]).metrics.items()}
    loss, gradient = exact(RECIPE)
    off = metrics["loss"] - loss
    assert abs(off.mean()) < 4 * off.std() / np.sqrt(len(off))
    assert np.sqrt((off**2).mean() / (metrics["loss_error"] ** 2).mean()) == pytest.approx(1, abs=0.15)
    norm_off = metrics["gradient_norm"] - float(gradient.norm())
    bound = np.sqrt((metrics["gradient_norm_error"] ** 2).mean())
    assert 0.05 * bound < np.sqrt((norm_off**2).mean()) < bound


def test_a_gradients_error_is_its_distance_to_exact():
    """Of vectors drawn around a known mean: the mean square distance is the variance over n, summed."""
    generator, n, trials = np.random.default_rng(0), 8, 4000
    parts = torch.tensor(generator.normal(1.0, [0.5, 1.0, 2.0], (n, trials, 3)))
    losses = torch.tensor(generator.normal(3.0, 0.7, (n, trials)))
    measured, gradient = with_errors([({"loss": one}, part) for one, part in zip(losses, parts, strict=True)])
    torch.testing.assert_close(gradient, parts.mean(0))
    expected = (0.25 + 1 + 4) / n
    assert float(measured["gradient_norm_error"].square().mean()) == pytest.approx(expected, rel=0.03)
    assert float((gradient - 1).square().sum(-1).mean()) == pytest.approx(expected, rel=0.05)
    assert float(measured["loss_error"].square().mean()) == pytest.approx(0.49 / n, rel=0.03)


def test_groups_do_not_change_the_training():
    recipe = RECIPE.with_set(["optimiser.lr=0.1", "steps=20", "checkpoints=[20]"])
    other = recipe.replace(**{"data": {"batch": 256}})
    one, other = (fit_members([Member(r, 0), Member(r, 1)]) for r in (recipe, other))
    torch.testing.assert_close(one.metrics["loss"], other.metrics["loss"], rtol=1e-10, atol=1e-12)
    for name, tensor in one.checkpoints[20].items():
        torch.testing.assert_close(tensor, other.checkpoints[20][name], rtol=1e-9, atol=1e-12)
    assert "loss_error" not in other.metrics


def test_errors_are_printed(tmp_path):
    changes = ["steps=2", "data={batch=64,groups=4}", "checkpoints=[2]", "model.n_ctx=16"]
    arguments = ["train", "binary-p02-q03-untied", *(x for c in changes for x in ("--set", c))]
    shown = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)]).output
    run = mm.load(tmp_path / "run.pt")
    loss, error = (run.metrics[name]["value"][-1].item() for name in ("loss", "loss_error"))
    row = f"{loss:.6g} ± {error:.2g} (standard error) at step 1"
    assert f"loss {row}" in shown
    assert run.contents()["loss"] == row
    assert "gradient_norm" in shown
    report = mm.probe(run, ["behaviour"]).save(tmp_path / "report")
    assert row in (report if report.is_file() else report / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    "data", ["{batch=10,groups=4}", "{n_train=8,groups=4}", "{population=true,groups=4}"]
)
def test_groups_need_fresh_batches_they_divide(data):
    with pytest.raises(RecipeError, match=r"groups is 4, batch is .*: expected fresh batches of a multiple"):
        RECIPE.with_set([f"data={data}"])
