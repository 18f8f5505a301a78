"""Modules that no training tree holds are named, by a recorder too, and weights of complex numbers."""

import pytest
import torch
from loops import SOURCE
from public_codes import Config, NanoGPT

import mechmarkov as mm


@pytest.mark.parametrize("place", ["model.me", "model.transformer.h[0].parent"])
def test_a_module_within_itself_is_named(place, tmp_path):
    model = NanoGPT(Config())
    holder = model if place == "model.me" else model.transformer.h[0]
    setattr(holder, place.rpartition(".")[2], model)
    with pytest.raises(ValueError, match="is a part of itself") as refused:
        mm.Run.from_model(model, source=SOURCE)
    assert str(refused.value) == (
        f"{place} is a part of itself, expected modules in a tree: keep it in a list, {place} = [parent]"
    )
    with pytest.warns(UserWarning, match="step 0 is not kept: model.* is a part of itself"):
        mm.Recorder(tmp_path / "run.pt", source=SOURCE)(0, model)


def test_a_parent_in_a_list_comes_in():
    model = NanoGPT(Config())
    model.transformer.h[0].parent = [model]
    assert mm.Run.from_model(model, source=SOURCE).config.n_layers == 2


@pytest.mark.parametrize("name", ["lm_head.weight", "freqs"])
def test_complex_weights_are_told_as_such(name):
    model = NanoGPT(Config())
    if name == "freqs":
        model.freqs = torch.nn.Parameter(torch.polar(torch.ones(3), torch.ones(3)))
    else:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().to(torch.complex64))
    with pytest.raises(ValueError, match="complex numbers") as refused:
        mm.Run.from_model(model, source=SOURCE)
    assert str(refused.value).startswith(f"{name} holds complex numbers, expected real ones: ")
    assert f'names={{…, "{name}": ""}} leaves it out' in str(refused.value)
