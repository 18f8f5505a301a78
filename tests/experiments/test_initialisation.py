"""Initialisation: each check can fail, and weights at (e, w) are what the theory says."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from experiments.initialisation import basins as theory
from experiments.initialisation import flow as flows
from experiments.initialisation import models, networks, one_layer, pictures
from mechmarkov.theory import canonical


def verdicts(measured):
    return [claim.verdict for claim in measured.claims]


def test_a_wrong_map_does_not_hold(monkeypatch):
    monkeypatch.setattr(canonical, "SADDLE_ENERGY", canonical.SADDLE_ENERGY + 1)
    assert verdicts(theory.basins(True))[1] == "does not hold"


def test_a_wrong_force_does_not_hold(monkeypatch):
    right = flows.pull
    monkeypatch.setattr(flows, "pull", lambda s, p, q: -right(s, p, q))
    monkeypatch.setattr(flows, "LONGEST", 30.0)
    assert verdicts(theory.gaussian(True)) == ["does not hold"]


def test_the_border_of_weights_is_judged_by_hits():
    def verdict(printed, corrected):
        return theory._border({1: printed, networks.STRETCH: corrected}, 200, "", theory.AGREE).verdict

    assert verdict(200, 160) == "holds"
    assert verdict(160, 200) == "holds with a correction"
    assert verdict(160, 180) == "does not hold"


def test_the_trap_is_judged_by_who_stays():
    assert theory._trap(50, 50, 50, "").verdict == "holds"
    assert theory._trap(50, 0, 50, "").verdict == "holds with a correction"
    assert theory._trap(0, 0, 50, "").verdict == "does not hold"


def test_untrained_models_do_not_show_the_guideline(monkeypatch):
    recipe = one_layer.recipe

    def barely(path, p, q, *changes):
        return recipe(path, p, q, *changes, "steps=1")

    monkeypatch.setattr(one_layer, "recipe", barely)
    found = verdicts(models.guideline(True))
    assert found[:2] == ["does not hold"] * 2
    assert found[3] == "holds"  # nothing has left the unigram either


def test_leaving_and_staying_are_judged_by_counts():
    assert models._converges(0, 8, 8) == "holds"
    assert models._converges(5, 8, 8) == "holds with a correction"
    assert models._converges(5, 6, 8) == "does not hold"


def test_ranks_are_judged_by_the_share_of_the_first():
    rows = np.array([[0.3, 0.995], [0.3, 0.997]])
    assert models._formed("W", rows, "").verdict == "holds"
    assert models._formed("W", rows - 0.1, "").verdict == "holds with a correction"
    assert models._formed("W", rows[:, [0, 0]], "").verdict == "does not hold"
    assert models._kept("W", rows[:, [1, 1]], "").verdict == "holds"
    assert models._kept("W", rows, "").verdict == "does not hold"


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.1), (0.2, 0.3), (0.8, 0.5)])
def test_the_force_is_the_slope_of_the_loss(p, q):
    for s in (-3.0, -0.5, 0.0, 2.0):
        loss = canonical.loss(np.array([s - 1e-5, s + 1e-5]), p, q)
        assert flows.pull(s, p, q) == pytest.approx((loss[1] - loss[0]) / 2e-5, abs=1e-9)


@pytest.mark.parametrize(("e", "w", "p", "q"), [(1.2, 0.4, 0.2, 0.3), (0.7, -1.1, 0.5, 0.8)])
def test_a_decoder_at_e_w_has_the_log_odds_of_e_w(e, w, p, q):
    decoder = networks.at([(e, w, p, q)])
    with torch.no_grad():
        log_odds = decoder(torch.tensor([[0], [1]]))[0, :, 0].double().numpy() @ [-1, 1]
    s = float(canonical.slope(np.array(e), np.array(w)))
    offset = float(canonical.best_offset(np.array(s), p, q))
    assert log_odds == pytest.approx([offset, offset + s], abs=1e-5)  # float32


def test_weights_keep_the_stretched_energy():
    # Along a line of gradient descent with small steps: e and w read off the weights.
    start = (0.9, -0.9, 0.2, 0.3)
    decoder = networks.at([start])
    source = mm.Binary(p=0.2, q=0.3)
    weight = torch.tensor(source.pi[:, None] * source.P).float()
    parameters = [decoder.get_parameter(name) for name in networks.WEIGHTS]
    energies = {1: [], networks.STRETCH: []}
    for step in range(90):
        loss = -(weight * decoder(torch.tensor([[0], [1]]))[0, :, 0].log_softmax(-1)).sum()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.06 * gradient
            if step % 30 == 29:
                rows = parameters[0][0]
                e = float((rows[1] - rows[0]).norm())
                w = -float(parameters[1].norm()) / 2
                for stretch, kept in energies.items():
                    kept.append(float(canonical.energy(np.array(e / stretch**0.5), np.array(w))))
    first = {s: float(canonical.energy(np.array(0.9 / s**0.5), np.array(-0.9))) for s in energies}
    assert energies[networks.STRETCH] == pytest.approx([first[networks.STRETCH]] * 3, abs=5e-3)
    assert abs(energies[1][-1] - first[1]) > 0.1


def inside(x, y, a, b):
    """Whether (a, b) is inside an outline: a ray to the right crosses it an odd number of times."""
    x_next, y_next = np.roll(x, -1), np.roll(y, -1)
    crosses = (y > b) != (y_next > b)
    at = x[crosses] + (b - y[crosses]) * (x_next - x)[crosses] / (y_next - y)[crosses]
    return bool((at > a).sum() % 2)


def test_the_shaded_region_is_the_predicted_basin():
    for below, (p, q) in ((True, (0.1, 0.1)), (False, (0.9, 0.9))):
        [(x, y)] = pictures._stuck(below, (-3, 3), 3.0, 1)
        rng = np.random.default_rng(3)
        for e, w in zip(rng.uniform(0.05, 2.95, 300), rng.uniform(-2.9, 2.9, 300), strict=True):
            border = w**2 - np.log(abs(w)) + canonical.SADDLE_ENERGY
            if w < 0 and abs(e - np.sqrt(max(border, 0))) < 0.05:
                continue  # the outline is drawn with straight pieces
            assert inside(x, y, w, e) == (canonical.basin(e, w, p, q) == "unigram"), (e, w)
