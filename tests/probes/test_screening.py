"""Deep models: which components are ablated where there are too many for all; nothing large is missed."""

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.ablation import components, screening
from probing_cases import few, random_run, subject_of

from mechmarkov.interventions.paths import replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.objectives import Objective
from mechmarkov.probes import ablation
from mechmarkov.probing import subject as subjects
from mechmarkov.probing.effects import Truth
from mechmarkov.probing.nulls import fresh_models

DEEP = {"n_layers": 3, "n_heads": 6, "d_head": 4}
SMALL_STEP = 1e-3


def deep_null(models=4, std=0.02, **changes):
    run = random_run("LN and MLP", **DEEP, **changes)
    object.__setattr__(run, "recipe", {"init": {"scheme": "normal", "std": std}})
    null = subject_of(run, sequences=16).some(slice(0, 1))
    null.decoder, null.axis, null.coordinates = fresh_models(run, range(models)), "seed", list(range(models))
    return null


def ranked_names(subject):
    return [name for name in components._component_names(subject) if name not in components.NOT_RANKED]


@pytest.mark.parametrize("std", [0.02, 0.2])
def test_the_largest_effect_is_found_by_few(std):
    null = deep_null(std=std)
    names = ranked_names(null)
    found = screening.largest_effects(null, null.batch, names)
    every = components.effects_of_means(null, null.batch).sel(component=names)
    seen = np.isfinite(found["effect"])
    assert np.allclose(found["effect"].where(seen), every["effect"].where(seen), atol=1e-9, equal_nan=True)
    largest = [components.ranked_effects(data).max("component").values for data in (found, every)]
    np.testing.assert_allclose(*largest, rtol=0.1)
    assert (found["ablated"] == seen.sel(measure="loss", kind="mean").sum("component")).all()
    if std == 0.02:  # gradients say almost all of it
        np.testing.assert_allclose(*largest)
        assert found["ablated"].max() <= len(names) // 2


@pytest.mark.parametrize(
    ("shape", "objective"),
    few([("LN and MLP", Objective()), ("relative", Objective()), ("plain", Objective(read="last"))]),
)
def test_estimates_are_slopes_of_the_loss(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=8)
    batch, model = subject.batch, subject.decoder
    names = ranked_names(subject)
    estimate, change = screening.first_order(subject, model, batch, names)

    def loss():
        with torch.no_grad():
            scores = model(batch.tokens, read=batch.read).double()
        return subject.objective.loss(scores, batch.targets.expand(scores.shape[:-1])).mean((1, 2)).numpy()

    def moved(step):
        return lambda x: x + step * (x.mean(-3, keepdim=True) - x)

    for index, name in enumerate(names):
        ends = []
        for step in (-SMALL_STEP, SMALL_STEP):
            direct = name == "direct"
            where = replace_path(model, "embed", "logits", moved(step)) if direct else None
            with where or replace_component(model, name, moved(step)):
                ends.append(loss())
        slope = (ends[1] - ends[0]) / (2 * SMALL_STEP)
        np.testing.assert_allclose(estimate[:, index], slope, atol=2e-3 * max(1, abs(slope).max()))
    assert (change > 0).all()


def test_poor_estimates_leave_no_component_out():
    estimate, change = np.array([[3.0, 2.0, 1.0, 0.0]]), np.ones((1, 4))
    for true, most in ([3.0, 2.0, 1.0, 0.0], 3), ([0.0, 1.0, 2.0, 9.0], 4):
        effect = np.full((1, 4), np.nan)
        order = []
        for index in screening._until_none_may_be_larger(estimate, change, effect):
            effect[0, index] = true[index]
            order.append(index)
        assert np.nanmax(effect) == max(true)
        assert (len(order), len(set(order))) == (most, most)


def test_only_null_models_of_many_parts_are_screened(monkeypatch):
    null = deep_null(models=2)
    screened = ablation.probe.measure(null)
    assert "ablated" in screened
    monkeypatch.setattr(components, "MAX_NULL_COMPONENTS", 22)
    whole = ablation.probe.measure(null)
    assert "ablated" not in whole
    assert np.isfinite(whole["effect"]).all()
    assert components.ranked_effects(whole).sizes["component"] == 22  # 18 heads, 3 MLPs, the direct path


def test_null_models_of_scores_are_not_asked():
    cross_entropy, scores = (
        subject_of(random_run(objective=Objective(kind=kind))) for kind in ("cross_entropy", "raw_log")
    )
    assert ablation.probe.has_null(cross_entropy)
    assert not ablation.probe.has_null(scores)


@pytest.mark.parametrize("kind", ["cross_entropy", "raw_log"])
def test_all_kinds_are_of_the_main_parts(kind, monkeypatch):
    subject = subject_of(random_run("LN and MLP", n_layers=1, objective=Objective(kind=kind)), sequences=8)
    whole = ablation.probe.measure(subject)
    assert whole.attrs["kinds_left_out"] == 0
    monkeypatch.setattr(components, "MAX_ALL_KINDS", 3)
    monkeypatch.setattr(components, "MAIN", 2)
    part = ablation.probe.measure(subject)
    worth = abs(components.ranked_effects(whole)[-1]).to_series().sort_values(ascending=False)
    main, left = [*worth.index[:2], "embed", "pos_embed", "bias"], [*worth.index[2:]]
    assert part.attrs["kinds_left_out"] == len(left) > 0
    assert part["effect"].dims == whole["effect"].dims
    for coordinate in ("component", "kind"):
        assert part[coordinate].values.tolist() == whole[coordinate].values.tolist()
    always = ["mean"] if kind == "cross_entropy" else ["mean", "resample"]
    for name in ("effect", "effect_low", "effect_high"):
        for which in ({"component": main}, {"kind": always}):
            xr.testing.assert_allclose(part[name].sel(which), whole[name].sel(which), rtol=1e-12)
        assert part[name].sel(component=left).drop_sel(kind=always).isnull().all()
    assert f"of the {len(left)} parts worth least" in ablation.probe.figures(part)[0].caption
    assert part["clean"].equals(whole["clean"])


def test_a_deep_model_takes_fewer_passes(monkeypatch):
    monkeypatch.setattr(subjects, "NULL_MODELS", 2)
    run, judge, judged = random_run(n_layers=4, n_heads=6, d_head=4), Truth.judge, []
    monkeypatch.setattr(Truth, "judge", lambda *given: judged.append(1) or judge(*given))

    def passes():
        subject = subject_of(run, sequences=8)
        counts = []
        for models in (subject, subject.null):
            judged.clear()
            ablation.probe.measure(models)
            counts.append(len(judged))
        return np.array(counts)

    few_passes = passes()
    monkeypatch.setattr(components, "MAX_ALL_KINDS", 100)
    monkeypatch.setattr(components, "MAX_NULL_COMPONENTS", 100)
    assert (few_passes < np.array([0.8, 0.75]) * passes()).all()


def test_weights_can_be_trained_after_they_were_frozen():
    subject = subject_of(random_run("LN and MLP"), sequences=8)
    with screening._frozen(subject.decoder):
        assert not any(weight.requires_grad for weight in subject.decoder.parameters())
    assert all(weight.requires_grad for weight in subject.decoder.parameters())
