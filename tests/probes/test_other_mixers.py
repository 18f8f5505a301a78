"""A run whose mixer has no attention weights: probes that read them are skipped, the others answer."""

import pytest
from probing_cases import probe_quickly, random_run
from uniform_mixer import Uniform

import mechmarkov as mm
from mechmarkov.models.mixer import MIXERS
from mechmarkov.runs import RunFileError, load

READ_ATTENTION = {"attention", "alignment", "induction", "ablation", "symmetry", "program"}


@pytest.fixture(scope="module")
def run():
    return random_run("LN and MLP", n_steps=2, mixer="uniform", n_layers=2, n_heads=1, n_ctx=5)


def test_probes_that_need_attention_weights_are_skipped_and_none_fails(run):
    result = probe_quickly(run, nulls=2, sequences=8, steps="all")
    assert result.failed == {}
    assert set(result.skipped) >= READ_ATTENTION
    for name in READ_ATTENTION:
        assert result.skipped[name].startswith("no layer has attention weights"), name
    assert {"behaviour", "storage", "landscape"} <= set(result)
    assert "attention: does not apply: no layer has attention weights" in repr(result)


def test_its_run_file_comes_back_where_the_mixer_is_known(run, tmp_path, monkeypatch):
    run.save(tmp_path / "run.pt")
    again = load(tmp_path / "run.pt")
    assert again.model.mixer == "uniform"
    assert isinstance(again.decoder().blocks[0].attn, Uniform)
    monkeypatch.delitem(MIXERS, "uniform")
    with pytest.raises(RunFileError, match="model: mixer is 'uniform', expected one of attention"):
        mm.load(tmp_path / "run.pt")
