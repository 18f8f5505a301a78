"""Initialisation: each check can fail, and weights at (e, w) are what the theory says."""

from itertools import product

import numpy as np
import pytest
import torch

from experiments.initialisation import attention, models, networks, one_layer, pictures
from experiments.initialisation import basins as theory
from experiments.initialisation import flow as flows
from mechmarkov.theory import canonical


def verdicts(measured):
    return [claim.direction for claim in measured.findings]


def test_a_wrong_map_does_not_hold(monkeypatch):
    monkeypatch.setattr(canonical, "SADDLE_ENERGY", canonical.SADDLE_ENERGY + 1)
    assert verdicts(theory.basins(True))[1] == "against"


def test_a_wrong_force_does_not_hold(monkeypatch):
    right = flows.pull
    monkeypatch.setattr(flows, "pull", lambda s, p, q: -right(s, p, q))
    monkeypatch.setattr(flows, "LONGEST", 30.0)
    assert verdicts(theory.gaussian(True)) == ["against"]


def test_the_border_of_weights_is_judged_by_hits():
    def direction(plain, stretched):
        return theory._border({1: plain, networks.STRETCH: stretched}, 200, "", theory.AGREE).direction

    assert direction(160, 200) == "for"
    assert direction(200, 160) == "against"
    assert direction(160, 180) == "against"


def test_the_trap_is_judged_by_who_stays():
    assert theory._trap(50, 50, 50, "").direction == "for"
    assert theory._trap(50, 0, 50, "").direction == "for"
    assert theory._trap(0, 0, 50, "").direction == "against"


@pytest.mark.experiments
def test_untrained_models_do_not_show_the_guideline(monkeypatch):
    recipe = one_layer.recipe

    def barely(path, p, q, *changes):
        return recipe(path, p, q, *changes, "steps=1")

    monkeypatch.setattr(one_layer, "recipe", barely)
    found = verdicts(models.guideline(True))
    assert found[:2] == ["against"] * 2
    assert found[3] == "for"  # nothing has left the unigram either


def test_ranks_are_judged_by_the_share_of_the_first():
    rows = np.array([[0.3, 0.995], [0.3, 0.997]])
    assert models._formed("W", rows, [0, 100], True).direction == "for"
    assert models._formed("W", rows - 0.1, [0, 100], True).count == (0, 2)
    assert models._formed("W", rows[:, [0, 0]], [0, 100], False).direction == "against"
    assert models._kept("W", rows[:, [1, 1]], "").direction == "for"
    assert models._kept("W", rows, "").direction == "against"


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


def test_weights_keep_the_derived_quantity():
    start = (1.4, -1.2, 0.5, 0.8)  # p and q apart: e² / 16 alone is not enough
    coarse, fine = (networks.drifts(start, lr=lr, steps=round(40 / lr)) for lr in (0.2, 0.1))
    assert fine[0] < 0.6 * coarse[0]  # in proportion to the step size
    assert fine[1] > 2 * fine[0]


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


def enumerated_loss(e, w, a, p, q):
    """Cross-entropy over all paths of N + 1 tokens; the best bias by bisection."""
    n = attention.CONTEXT
    paths = torch.tensor(list(product((0, 1), repeat=n + 1)))
    P = torch.tensor([[1 - p, p], [q, 1 - q]], dtype=torch.float64)
    start = torch.tensor([q, p], dtype=torch.float64) / (p + q)
    weight = start[paths[:, 0]] * P[paths[:, :-1], paths[:, 1:]].prod(1)
    x, m, y = paths[:, n - 1].double(), paths[:, :n].double().mean(1), paths[:, n].double()
    z = e**2 * (1 + 2 * w * abs(w)) * (x + a * m)
    low, high = -100.0, 100.0
    for _ in range(200):
        c = (low + high) / 2
        low, high = (low, c) if float(weight @ ((z.detach() + c).sigmoid() - y)) > 0 else (c, high)
    return weight @ (torch.nn.functional.softplus(z + c) - y * (z + c))


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.1), (0.2, 0.3), (0.5, 0.8)])
@pytest.mark.parametrize("at", [(1.2, 0.4, 0.7), (0.7, -1.1, -3.0)])
def test_the_flow_with_attention_follows_the_enumerated_loss(at, p, q):
    e_w_a = [torch.tensor(number, dtype=torch.float64, requires_grad=True) for number in at]
    enumerated = enumerated_loss(*e_w_a, p, q)
    gradient = [float(each) for each in torch.autograd.grad(enumerated, e_w_a)]  # the best c has none
    seen = attention.contexts(p, q)
    e, w, a = at
    assert attention.loss(flows.slope(e, w), a, seen)[0] == pytest.approx(
        float(enumerated.detach()), abs=1e-12
    )
    assert attention.gradient(e, w, a, seen) == pytest.approx(gradient, abs=1e-11)


def test_without_attention_it_is_the_flow_of_e_w():
    seen = attention.contexts(0.2, 0.3)
    for s in (-3.0, 0.5, 2.0):
        assert attention.loss(s, 0.0, seen)[1] == pytest.approx(flows.pull(s, 0.2, 0.3), abs=1e-12)


def test_the_sides_change_places_nowhere_else(monkeypatch):
    assert attention._sides(0.2, 0.3)
    right = attention.turning(0.2, 0.3)
    monkeypatch.setattr(attention, "turning", lambda p, q: 1.3 * right)
    assert not attention._sides(0.2, 0.3)
