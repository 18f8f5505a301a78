"""Scores, results and their files: the contract of DESIGN section 4."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from probing_cases import P3, parent_logits, random_run, run_of, walk_run

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probing import subject
from mechmarkov.probing.score import Score
from mechmarkov.sources import Binary, Chain, Circle, DirichletChains

KL = ["kl_unigram", "kl_bigram", "kl_uniform"]
HEADLINES = {
    "behaviour": [
        "nearest_predictor",
        "kl_best",
        "excess_loss",
        "progress",
        *KL,
        "accuracy",
        "optimal_accuracy",
    ],
    "attention": ["parent_score", "parent_head", "best_lag", "effective_tokens", "spread", "position_share"],
    "alignment": [
        "path",
        "kernel_cosine",
        "kernel_slope",
        "kernel_kl",
        "best_lag",
        "recall",
        "target",
        "circulant_share",
    ],
}


def walk(p=0.3):
    source = Circle(n_states=6, p=p)
    return walk_run(source, np.sqrt(source.P).T, parent_logits(13))


def binary():
    source = Binary(p=0.5, q=0.8)
    return run_of(direct_table(torch.tensor(np.log(source.P)).float(), n_ctx=5), source=source)


def dirichlet():
    return run_of(direct_table(torch.zeros(3, 3), n_ctx=5), source=DirichletChains(n_states=3))


RUNS = {
    "walk": walk,
    "deterministic walk": lambda: walk(1.0),
    "binary": binary,
    "chain": lambda: random_run("LN and MLP", n_steps=2),
    "dirichlet": dirichlet,
}


@pytest.fixture(scope="module", params=RUNS)
def saved(request, tmp_path_factory):
    run = RUNS[request.param]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "NULL_MODELS", 4)
        result = mm.probe(run, list(HEADLINES), steps="all", sequences=32)
    folder = result.save(tmp_path_factory.mktemp("saved") / "new" / "folder")
    return request.param, run, result, folder


def test_summary_has_the_contracts_keys_and_is_strict_json(saved):
    kind, run, result, folder = saved

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    summary = json.loads((folder / "summary.json").read_text("utf-8"), parse_constant=refuse)
    told = ["schema", "run", "steps", "probes", "claims", "skipped", "failed", "warnings"]
    assert list(summary) == [*told, "badge", "headline"]  # and a curve where a training has kept its losses
    assert summary["steps"] == run.steps.tolist()
    assert summary["failed"] == {}
    assert summary["run"]["source"] == run.source.title()
    asked = ["behaviour", "attention"] + ["alignment"] * (kind != "dirichlet")
    assert list(summary["probes"]) == asked
    assert list(summary["skipped"]) == ["alignment"] * (kind == "dirichlet")
    for name, answer in summary["probes"].items():
        assert list(answer) == ["question", "verdict", "scores"]
        assert answer["question"].endswith("?")
        assert answer["verdict"].endswith(".")
        assert answer["verdict"] == result[name].verdict
        expected = list(HEADLINES[name])
        if name == "alignment" and run.source.n_states == 2:
            expected.remove("kernel_cosine")
        if name == "alignment" and run.source.kind != "circle":
            expected.remove("circulant_share")
        assert list(answer["scores"]) == expected
        for key, score in answer["scores"].items():
            assert set(score) <= {"value", "unit", "null", "interval", "null_kind", "reason", "of"}, key
            value = score["value"]
            if value is None:
                assert len(score["reason"]) > 10
            else:
                assert isinstance(value, str) or math.isfinite(value)
                assert "reason" not in score
            null = score.get("null")
            assert null is None or isinstance(null, float) or null == sorted(null)
            assert len(score.get("interval", [0, 0])) == 2


def test_every_number_that_can_have_a_null_has_one(saved):
    _, _, result, _ = saved
    without = {"optimal_accuracy"}  # exact, of the source alone
    for outcome in result.outcomes.values():
        for key, score in outcome.scores.items():
            if isinstance(score.value, float) and key not in without:
                if key == "best_lag" and outcome.probe.name == "attention":
                    continue
                assert score.null is not None, key
                assert "fresh models" in score.null_kind


def test_netcdf_opens_group_by_group(saved):
    _, run, result, folder = saved
    for name, outcome in result.outcomes.items():
        with xr.open_dataset(folder / "results.nc", group=name, engine="h5netcdf") as data:
            assert data["step"].values.tolist() == run.steps.tolist()
            assert set(data.data_vars) == set(outcome.data.data_vars)
            for variable, values in outcome.data.items():
                assert data[variable].dims == values.dims
                if values.dtype.kind in "OU":
                    assert data[variable].values.tolist() == values.values.tolist()
                else:
                    assert np.allclose(data[variable].values, values.values, equal_nan=True)
            assert data.attrs["source"] == run.source.title()
        with xr.open_dataset(folder / "results.nc", group=f"null/{name}", engine="h5netcdf") as null:
            assert null.sizes["seed"] == outcome.null.sizes["seed"]


def test_the_three_files_and_nothing_else_are_written(saved):
    folder = saved[3]
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "results.nc", "summary.json"]
    assert oct((folder / "summary.json").stat().st_mode & 0o777) == "0o644"


def test_saving_again_replaces(tmp_path):
    result = mm.probe(binary(), ["attention"], sequences=8)
    folder = result.save(tmp_path)
    (folder / "summary.json").write_text("old", "utf-8")
    result.save(folder)
    assert json.loads((folder / "summary.json").read_text("utf-8"))["steps"] == result.steps


def test_a_file_in_place_of_the_folder_is_named_and_stays(tmp_path):
    (tmp_path / "note").write_text("mine", "utf-8")
    for folder in (tmp_path / "note", tmp_path / "note" / "deeper"):
        with pytest.raises(OSError, match=rf"^{folder}: .+, expected a folder for results$"):
            mm.probe(binary(), ["attention"], sequences=8).save(folder)
    assert [(path.name, path.read_text("utf-8")) for path in tmp_path.iterdir()] == [("note", "mine")]


def test_where_the_chain_is_redrawn_alignment_says_why_and_the_best_has_no_closed_form():
    result = mm.probe(dirichlet(), sequences=32)
    assert "redraws its chain" in result.skipped["alignment"]
    scores = result["behaviour"].scores
    for name in ("kl_best", "excess_loss", "optimal_accuracy"):
        assert scores[name].value is None
        assert "no closed form" in scores[name].reason
    data = result["behaviour"].data
    assert scores["kl_bigram"].value == float(data["kl"].sel(predictor="in_context_bigram")[-1])
    assert scores["kl_unigram"].value == float(data["kl"].sel(predictor="in_context_unigram")[-1])
    assert scores["nearest_predictor"].value == "uniform"
    with pytest.raises(KeyError, match="alignment: the source redraws its chain"):
        result["alignment"]


def test_a_result_says_what_it_has():
    result = mm.probe(binary(), ["attention"], sequences=8)
    with pytest.raises(KeyError, match=r"nope: no such probe here; there are \['attention'\]"):
        result["nope"]
    assert "nope" not in result
    assert list(result) == ["attention"]
    assert len(result) == 1
    assert result["attention"].verdict in repr(result)
    assert "Binary" in repr(result)
    verdict, scores, data = repr(result["attention"]).splitlines()
    assert verdict == f"Outcome(attention: {result['attention'].verdict})"
    assert scores.startswith("  scores: parent_score, parent_head, ")
    assert data.startswith("  data: lag_mass, ")
    untitled = replace(result, metadata={})
    assert repr(untitled).startswith(f"Result(steps {result.steps})\n")


def test_a_score_without_a_value_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        Score(None, "nats")
    assert Score(None, "nats", reason="no data").to_data() == {
        "value": None,
        "unit": "nats",
        "reason": "no data",
    }


def test_a_score_with_a_value_has_no_reason():
    assert Score(0.5, "nats", reason="there would be no data").to_data() == {"value": 0.5, "unit": "nats"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_what_is_not_finite_is_no_score(value):
    score = Score(value, "nats")
    assert score.value is None
    assert score.reason == f"the value is {float(value)}"
    assert Score(value, "nats", reason="it diverged").reason == "it diverged"


def test_a_score_is_plain_data_whatever_numpy_made_it():
    score = Score(np.float64(0.5), "nats", (np.float64(0), 0.5, 1.0), (0.0, 1.0), "fresh")
    assert json.loads(json.dumps(score.to_data(), allow_nan=False)) == {
        "value": 0.5,
        "unit": "nats",
        "null": [0.0, 0.5, 1.0],
        "interval": [0.0, 1.0],
        "null_kind": "fresh",
    }
    assert type(score.value) is float
    assert Score(0.5, "nats", null=0.25).to_data()["null"] == 0.25
    beside = Score(0.5, "nats", (0.0, math.nan, 1.0), (0.0, math.inf))
    assert (beside.null, beside.interval) == (None, None)


@pytest.mark.usefixtures("few_nulls")
def test_labels_of_states_reach_no_file_name_and_every_file(tmp_path):
    class Odd(Chain):
        @property
        def labels(self):
            return ("</div><script>", "ü", '"')

    run = run_of(direct_table(torch.tensor(np.log(P3)).float(), n_ctx=4), source=Odd(P3))
    folder = mm.probe(run, list(HEADLINES), sequences=8).save(tmp_path / "out")
    with xr.open_dataset(folder / "results.nc", group="alignment", engine="h5netcdf") as data:
        assert list(data.attrs["labels"]) == ["</div><script>", "ü", '"']
