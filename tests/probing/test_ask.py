"""`mm.probe`: what is asked, what fails alone, and the same answers twice."""

import re
from dataclasses import replace
from inspect import unwrap

import numpy as np
import pytest
import torch
import xarray as xr
from distributions import install
from probing_cases import random_run, subject_of

import mechmarkov as mm
from mechmarkov.catalogue.probes import GROUP
from mechmarkov.claims.claim import Claim
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing import subject as subjects
from mechmarkov.probing.probe import load_probe
from mechmarkov.training.data import data_seed
from mechmarkov.utils import kept_data

THIRD_PARTY = """
import numpy as np
import xarray as xr
from mechmarkov.probing import Probe
from mechmarkov.probing.score import Score


def measure(subject):
    means = subject.result("behaviour")["kl"].mean("predictor").values
    return xr.Dataset({"value": (subject.axis, means)}, coords={subject.axis: subject.coordinates})


def fail(subject):
    raise RuntimeError("no luck\\nand a second line")


def ask(other):
    return lambda subject: subject.result(other)


def probe(name, measure, applies=lambda subject: None):
    def scores(data, null):
        return {"mean": Score(float(data["value"][-1]), "nats")}

    return Probe(name, f"What is {name}?", "nobody", applies, measure, scores, lambda d, s: [], lambda d: [])


works = probe("works", measure)
breaks = probe("breaks", fail)
apart = probe("apart", measure, lambda subject: "not on a Tuesday")
hen = probe("hen", ask("egg"))
egg = probe("egg", ask("hen"))
"""
NAMES = ("works", "breaks", "apart", "hen", "egg")


@pytest.fixture(scope="module")
def third_party(tmp_path_factory):
    site = tmp_path_factory.mktemp("third-party")
    entries = "\n".join(f"{name} = third_party_probes:{name}" for name in NAMES)
    install(site, "third-party", GROUP, entries, third_party_probes=THIRD_PARTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


def ask_everything(shape):
    run = random_run(shape, n_steps=2, n_layers=2 if shape == "window" else 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subjects, "NULL_MODELS", 2)
        patch.setattr("mechmarkov.probes.program.fit.MAX_TERMS", 1)
        patch.setenv(kept_data.VARIABLE, "off")  # a null of such programs is of no other test
        return mm.probe(run, steps="all", seed=7, sequences=8)


@pytest.fixture(scope="module")
def everything(third_party):
    """What all probes say of one run, third parties' included."""
    return ask_everything("window")


def test_a_probe_that_fails_or_does_not_apply_is_reported_and_stops_no_other(everything):
    result = everything
    assert list(result)[:3] == ["behaviour", "attention", "alignment"]
    assert list(result)[-1] == "works"
    assert result.skipped["apart"] == "not on a Tuesday"
    assert list(result.failed) == ["breaks", "egg", "hen"]
    assert re.fullmatch(r"RuntimeError: no luck \(third_party_probes.py, line \d+\)", result.failed["breaks"])
    assert "in a cycle: egg → hen → egg" in result.failed["egg"]
    assert "in a cycle: hen → egg → hen" in result.failed["hen"]
    mean = result["behaviour"].data["kl"].mean("predictor").values[-1]
    assert result["works"].scores["mean"].value == pytest.approx(mean)
    with pytest.raises(KeyError, match="breaks: RuntimeError: no luck"):
        result["breaks"]
    summary = result.summary()
    assert summary["failed"] == result.failed
    assert summary["skipped"] == result.skipped
    assert "breaks: failed: RuntimeError: no luck" in repr(result)
    assert "apart: does not apply: not on a Tuesday" in repr(result)


def test_a_result_of_nothing_saves_too(third_party, tmp_path):
    result = mm.probe(random_run(), ["breaks"], sequences=4)
    assert len(result) == 0
    result.save(tmp_path / "out")
    assert (tmp_path / "out" / "summary.json").exists()


def test_what_a_third_partys_probe_measured_is_saved(third_party, tmp_path):
    mm.probe(random_run(n_steps=2), ["works", "breaks"], steps="all", sequences=4).save(tmp_path / "out")
    with xr.open_dataset(tmp_path / "out" / "results.nc", group="works", engine="h5netcdf") as data:
        assert data["value"].sizes == {"step": 2}


def test_a_probe_that_is_none_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="no probe is named 'atention'; there are behaviour, attention"):
        mm.probe(random_run(), ["behaviour", "atention"])


def test_a_path_or_a_single_name_is_told_what_was_meant():
    with pytest.raises(TypeError, match=r"run is a str, expected a Run: mm.load\(path\)"):
        unwrap(mm.probe)("run.pt")  # as outside of tests, where nothing else checks types
    with pytest.raises(TypeError, match=r"run is a HookedDecoder, expected a Run: mm.Run.from_model\("):
        unwrap(mm.probe)(random_run().model())
    with pytest.raises(TypeError, match=r"expected a list of names: \['attention'\]"):
        mm.probe(random_run(), "attention")


def test_more_states_than_its_tables_hold_are_refused_before_anything_runs():
    config = mm.DecoderConfig(n_layers=1, d_model=2, d_head=2, n_ctx=4, d_vocab=513, attn_only=True)
    run = mm.Run.from_model(mm.HookedDecoder(config), source=mm.Circle(n_states=513, p=0.5))
    with pytest.raises(ValueError, match="the source has 513 states, expected at most 512"):
        mm.probe(run)


def test_probes_are_asked_in_the_order_given_and_once():
    asked = []
    result = mm.probe(
        random_run(), ["attention", "behaviour", "attention"], sequences=4, progress=asked.append
    )
    assert asked == list(result) == ["attention", "behaviour"]


def test_a_probe_of_ones_own_is_asked_beside_those_that_are_registered():
    asked = load_probe("behaviour")
    own = [Claim(("model",), "measures", ("my number",), 1.5)]
    mine = replace(asked, name="mine", claims=lambda data, scores: own)
    result = mm.probe(random_run(), [mine, "attention"], sequences=4)
    assert list(result) == ["mine", "attention"]
    assert [claim.object for claim in result["mine"].claims] == [("my number",)]
    assert result["mine"].claims[0].probe == "mine"
    instead = replace(asked, claims=lambda data, scores: own)
    result = mm.probe(random_run(), [instead], sequences=4)
    assert [claim.object for claim in result["behaviour"].claims] == [("my number",)]


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [("last", [20]), ("all", [0, 10, 20]), ([10], [10]), ([20, 0, 20], [0, 20]), ([-1], [20])],
)
def test_steps_are_chosen(steps, chosen):
    result = mm.probe(random_run(n_steps=3), ["behaviour"], steps=steps, sequences=4)
    assert result.steps == chosen
    assert result["behaviour"].data["step"].values.tolist() == chosen


def test_a_step_that_was_not_kept_is_refused_with_those_that_were():
    with pytest.raises(ValueError, match=r"step is 5, expected -1 .* or one of 0, 10, 20"):
        Subject.of(random_run(n_steps=3), [10, 5])
    with pytest.raises(ValueError, match="steps is empty"):
        Subject.of(random_run(n_steps=3), [])


@pytest.mark.system  # `test_kept_data` asks every probe twice
@pytest.mark.parametrize("shape", ["LN and MLP", "window"])
def test_the_same_run_seed_and_steps_give_the_same_bits(shape, everything, monkeypatch):
    first = everything if shape == "window" else ask_everything(shape)
    monkeypatch.setenv("MECHMARKOV_CACHE", "off")  # nulls are measured again, not read
    again = ask_everything(shape)
    assert first.summary() == again.summary()
    for name, outcome in first.outcomes.items():
        assert outcome.data.identical(again[name].data), name
        if name == "induction" and shape == "LN and MLP":  # a single layer
            assert outcome.null is None
            continue
        assert outcome.null is not None
        assert outcome.null.identical(again[name].null), name
    quick = ["behaviour", "attention", "alignment", "ablation"]
    run = random_run(shape, n_steps=2, n_layers=2 if shape == "window" else 1)
    other = mm.probe(run, quick, steps="all", seed=8, sequences=8)
    assert all(not first[name].data.identical(other[name].data) for name in quick)


def test_evaluation_sequences_are_no_training_sequences():
    # torch's generator on the CPU takes in 32 bits of a seed: an offset above them would be none.
    run = random_run(n_ctx=7)
    for seed in (0, 1, 3):
        seen = Subject.of(run, seed=seed, sequences=8).batch.tokens
        for trained in {seed, data_seed(seed)}:
            states = run.source.sample(8, 8, generator=torch.Generator().manual_seed(trained))
            assert not torch.equal(seen, states[:, :7])


def test_another_probes_result_is_computed_once():
    counted = []

    def measure(subject):
        counted.append(subject.axis)
        return xr.Dataset({"value": (subject.axis, np.zeros(len(subject.coordinates)))})

    probe = Probe("count", "?", "-", lambda s: None, measure, lambda d, n: {}, lambda d: ".", lambda d: [])
    subject = subject_of(
        random_run(), find={"count": probe, "behaviour": load_probe("behaviour")}.__getitem__
    )
    assert subject.result("count") is subject.result("count")
    assert subject.null.result("count").sizes["seed"] >= 20
    assert counted == ["step", "seed"]
    assert subject.result("behaviour")["kl"].dims == ("step", "predictor")


def test_a_subject_without_other_probes_says_so():
    with pytest.raises(ValueError, match="knows no other probes, so none named 'behaviour'"):
        subject_of(random_run()).result("behaviour")
