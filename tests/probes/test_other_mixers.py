"""A run whose mixer has no attention weights: probes that read them are skipped, the others answer."""

import pytest
import torch
from probing_cases import probe_quickly, random_run

import mechmarkov as mm
from mechmarkov.models.mixer import MIXERS, Mixer
from mechmarkov.runs import RunFileError, load

READ_ATTENTION = {"attention", "alignment", "induction", "ablation", "symmetry", "program"}


class Mean(Mixer, name="mean"):
    """Each head averages its values over all positions so far."""

    inputs = ("V",)
    has_attention_weights = False

    def forward(self, query_input, key_input, value_input, tokens=None):
        v = self.project("V", value_input)
        count = torch.arange(1, v.shape[-3] + 1, dtype=v.dtype)
        return self.write(v.cumsum(-3) / count[:, None, None])


@pytest.fixture(scope="module")
def run():
    return random_run("LN and MLP", n_steps=2, mixer="mean", n_layers=2, n_heads=1, n_ctx=5)


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
    assert again.model.mixer == "mean"
    assert isinstance(again.decoder().blocks[0].attn, Mean)
    monkeypatch.delitem(MIXERS, "mean")
    with pytest.raises(RunFileError, match="model: mixer is 'mean', expected one of attention"):
        mm.load(tmp_path / "run.pt")
