"""The notebook example of the README runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.system
def test_the_notebook_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, example, own = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    exec(compile(first, str(README), "exec"), {})
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    (tmp_path / "report.html").unlink()
    names: dict = {}
    exec(compile(example, str(README), "exec"), names)
    assert "sqrt P" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert tuple(names["logits"].shape) == (512, 97, 6)
    assert names["result"].steps == [0, 1, 2, 50]
    assert len(own.splitlines()) == 6
    (tmp_path / "input.txt").write_text("the cat sat on the mat. " * 100, "utf-8")
    given = of_a_users_own(mm.Observed.read("input.txt"))
    exec(compile(own, str(README), "exec"), given)
    assert mm.load("mine.pt").steps.tolist() == [0, 1, 2, 3]
    assert (tmp_path / "mine.html").stat().st_size > 1_000_000


def of_a_users_own(source):
    """A model, its batches and a step of training."""
    shape = {"vocab_size": source.n_states, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    optimiser = torch.optim.AdamW(model.parameters())

    def train_step(model, batch):
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()

    batches = [source.sample(4, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    return {"model": model, "batches": batches, "train_step": train_step}


def test_every_linked_file_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text("utf-8"))
    missing = [link for link in links if not link.startswith("http") and not (README.parent / link).exists()]
    assert missing == []
