"""The recipe of `docs/other-tools.md`: train with TransformerLens 3.9, save, import the file elsewhere."""

import sys
from pathlib import Path

import pytest
import torch

import mechmarkov as mm
from mechmarkov.cli import main

sys.path.append(str(Path(__file__).parents[1] / "models"))
from lens_pairs import hooked_transformer, needs_live

pytestmark = pytest.mark.tl

FOREIGN = Path(__file__).with_name("golden") / "foreign"
PAGE = Path(__file__).parents[2] / "docs" / "other-tools.md"
SOURCE = '{"kind": "binary", "p": 0.5, "q": 0.8}'


def test_the_page_imports_what_it_saves():
    page = PAGE.read_text()
    assert f"mechmarkov import model.pt --source '{SOURCE}' --out run.pt" in page
    assert 'torch.save({"model": model.state_dict(), "cfg": model.cfg.to_dict()}, "model.pt")' in page


@needs_live
def test_what_the_script_of_the_page_saves(tmp_path, monkeypatch):
    """In the environment that trains."""
    monkeypatch.chdir(tmp_path)
    fields = {"n_layers": 2, "d_model": 8, "n_ctx": 9, "d_head": 4, "d_vocab": 2, "act_fn": "gelu"}
    model = hooked_transformer(**fields)
    torch.save({"model": model.state_dict(), "cfg": model.cfg.to_dict()}, "model.pt")
    main(["import", "model.pt", "--source", SOURCE, "--out", "run.pt"])
    tokens = torch.arange(9)[None] % 2
    assert torch.allclose(mm.load("run.pt").model()(tokens), model(tokens), atol=1e-5)


def test_a_file_of_such_a_script_is_read_without_it(tmp_path):
    """In the environment that reads: a file that TransformerLens 3.9 wrote."""
    expected = torch.load(FOREIGN / "tl3_mlp_ln.logits.pt", weights_only=True)
    source = '{"kind": "dirichlet_chains", "n_states": %d, "concentration": 1.0}'
    states = expected["logits"].shape[-1]
    out = tmp_path / "run.pt"
    main(["import", str(FOREIGN / "tl3_mlp_ln.pt"), "--source", source % states, "--out", str(out)])
    found = mm.load(out).model()(expected["tokens"])
    assert torch.allclose(found, expected["logits"], atol=1e-4)
