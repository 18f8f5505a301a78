"""Null models: fresh where the run was trained, the run's own where it was not, and scored alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from probing_cases import parent_logits, random_run, subject_of, walk_run

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.probing import subject as subjects
from mechmarkov.probing.nulls import NULL_MODELS, fresh_models, null_band
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Circle

SEEDS = range(5)


def walk(**fields):
    source = Circle(n_states=6, p=0.3)
    return walk_run(source, np.sqrt(source.P).T, parent_logits(13), **fields)


def test_a_walk_keeps_what_is_frozen_and_redraws_what_was_trained():
    run = walk()
    fresh = fresh_models(run, SEEDS).state_dict()
    for name, value in fresh.items():
        trained = run.states[name].expand_as(value)
        if name in run.trainable:
            index = (slice(None), *(slice(*span) for span in run.trainable[name]))
            inside = torch.zeros_like(value, dtype=torch.bool)
            inside[index] = True
            assert torch.equal(value[~inside], trained[~inside]), name
            assert (value[inside] != trained[inside]).all(), name
            assert value[inside].std() == pytest.approx(0.02, rel=0.2), name
        else:
            assert torch.equal(value, trained), name


def test_there_are_at_least_twenty_and_they_are_reproducible():
    assert NULL_MODELS >= 20
    run = random_run("LN and MLP")
    null = subject_of(run).null
    assert len(null.decoder) == len(null.coordinates) == NULL_MODELS
    assert null.axis == "seed"
    again = subject_of(run).null.decoder.state_dict()
    for name, value in null.decoder.state_dict().items():
        assert torch.equal(value, again[name]), name
    embeddings = null.decoder.embed.W_E
    assert not torch.equal(embeddings[0], embeddings[1])
    with pytest.raises(ValueError, match="a null has no null"):
        _ = null.null


@pytest.mark.parametrize("init", [{"scheme": "normal", "std": 0.5}, {"scheme": "gpt2", "std": 0.1}])
def test_a_recipe_says_how_null_models_are_drawn(init):
    run = random_run("LN and MLP", n_steps=1)
    object.__setattr__(run, "recipe", {"init": init})
    expected = HookedDecoder(run.config, n_models=5)
    initialise(expected, SEEDS, **init)
    found = fresh_models(run, SEEDS).state_dict()
    for name, value in expected.state_dict().items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    "recipe", [None, {}, {"init": {"scheme": "zero"}}, {"init": {"scheme": "normal", "std": 0.0}}]
)
def test_without_a_start_or_from_zero_they_are_small_gaussians(recipe):
    run = random_run("plain")
    object.__setattr__(run, "recipe", recipe)
    expected = HookedDecoder(run.config, n_models=5)
    initialise(expected, SEEDS, scheme="normal", std=0.02)
    assert torch.equal(fresh_models(run, SEEDS).blocks[1].attn.W_O, expected.blocks[1].attn.W_O)


def test_a_band_is_made_of_quantiles_of_what_is_finite():
    values = np.arange(101.0)
    assert null_band(values) == pytest.approx((2.5, 50, 97.5))
    assert null_band(np.append(values, np.nan)) == pytest.approx((2.5, 50, 97.5))
    assert null_band(np.full(3, np.nan)) is None


def test_nulls_take_the_same_maximum_over_heads():
    run = random_run("three layers", n_heads=2)
    outcome = mm.probe(run, ["attention"], sequences=32)["attention"]
    mass = outcome.null["lag_mass"].values  # [seed, layer, head, lag]
    best = mass[..., 1].reshape(NULL_MODELS, -1)
    assert outcome.scores["parent_score"].null == pytest.approx(
        tuple(np.quantile(best.max(1), [0.025, 0.5, 0.975]))
    )
    tokens = outcome.null["effective_tokens"].values.reshape(NULL_MODELS, -1)
    of_best = tokens[np.arange(NULL_MODELS), best.argmax(1)]
    assert outcome.scores["effective_tokens"].null == pytest.approx(
        tuple(np.quantile(of_best, [0.025, 0.5, 0.975]))
    )
    spread = outcome.null["spread"].values.reshape(NULL_MODELS, -1).max(1)
    assert outcome.scores["spread"].null == pytest.approx(tuple(np.quantile(spread, [0.025, 0.5, 0.975])))


def test_nulls_take_the_same_maximum_over_paths():
    run = random_run("plain")
    outcome = mm.probe(run, ["alignment"], sequences=32)["alignment"]
    gain, cosine = outcome.null["gain"].values, outcome.null["kernel_cosine"].values
    of_best = [cosine[i, gain[i].argmax()] for i in range(NULL_MODELS)]
    assert outcome.scores["kernel_cosine"].null == pytest.approx(
        tuple(np.quantile(of_best, [0.025, 0.5, 0.975]))
    )
    assert outcome.null.sizes["path"] == 5


def test_a_learned_walk_is_outside_its_null():
    scores = mm.probe(walk(), sequences=64)["alignment"].scores
    assert scores["kernel_cosine"].value > scores["kernel_cosine"].null[2]
    assert scores["kernel_kl"].value < scores["kernel_kl"].null[0]


def test_what_was_recorded_on_a_gpu_is_kept_under_a_name_of_its_own():
    null = Subject.of(mm.example("walk"), sequences=8).null
    there = replace(null, device=torch.device("cuda"))
    assert there._null_name("attention") != null._null_name("attention")


def test_a_null_says_how_many_models_and_sequences():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subjects, "NULL_MODELS", 3)
        outcome = mm.probe(mm.example("walk"), ["attention"], sequences=64)["attention"]
    assert (outcome.null.attrs["null_models"], outcome.null.attrs["null_sequences"]) == (3, 42)
