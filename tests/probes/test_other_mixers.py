"""A run whose mixer has no attention weights: probes that read them are skipped, the others answer."""

import numpy as np
import pytest
from models_by_hand import stacked
from probing_cases import probe_quickly, random_run
from uniform_mixer import Uniform

import mechmarkov as mm
from mechmarkov.models.attention import Attention
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


def test_where_only_some_layers_have_attention(monkeypatch):
    monkeypatch.setitem(MIXERS, "first", stacked(Uniform, Attention))
    run = random_run("LN and MLP", n_steps=2, mixer="first", n_layers=2, n_heads=2, n_ctx=7)
    result = probe_quickly(run, ["attention", "induction", "program"], nulls=2, sequences=16, steps="all")
    assert result.failed == result.skipped == {}
    program = result["program"].data
    assert {"direct", "L0.mlp", "L1H0", "L1H1", "L1.mlp"} == set(program["path"].values)  # none selects by L0
    assert np.isnan(program["lag_weight"].sel(layer=0)).all()
    assert np.allclose(program["lag_weight"].sel(layer=1).sum("lag"), 1)
    assert np.isfinite(program["kl_by_weights"]).all()
    found = result["induction"].data.isel(step=-1)
    assert np.isnan(found["effect"].sel(layer=0)).all()
    assert np.isfinite(found["effect"].sel(layer=1)).all()
    # Layer 1's keys read what layer 0's values write.
    between = found.sel(from_layer=0, layer=1)
    w = {name: value[-1].double().numpy() for name, value in run.states.items()}
    for head, other in [(0, 0), (1, 0)]:
        write = w["blocks.0.attn.W_V"][head] * w["blocks.0.ln1.w"][:, None]
        read = w["blocks.1.attn.W_Q"][other] * w["blocks.1.ln1.w"][:, None]
        key = w["blocks.1.attn.W_K"][other] * w["blocks.1.ln1.w"][:, None]
        write, read, key = (x - x.mean(0) for x in (write, read, key))
        a, b = write @ w["blocks.0.attn.W_O"][head], key @ read.T
        expected = np.linalg.norm(a @ b) / np.linalg.norm(a) / np.linalg.norm(b)
        value = float(between["k_composition"].sel(from_head=head, head=other))
        assert value == pytest.approx(expected, rel=1e-4)
    assert str(result["induction"].scores["induction_head"].value or "L1").startswith("L1")


def test_its_run_file_comes_back_where_the_mixer_is_known(run, tmp_path, monkeypatch):
    run.save(tmp_path / "run.pt")
    again = load(tmp_path / "run.pt")
    assert again.config.mixer == "uniform"
    assert isinstance(again.model().blocks[0].attn, Uniform)
    monkeypatch.delitem(MIXERS, "uniform")
    with pytest.raises(RunFileError, match=r"model: mixer is 'uniform', expected one of .*attention"):
        mm.load(tmp_path / "run.pt")
