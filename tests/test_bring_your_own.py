"""The page "Bring your own": what its rows say to write is there."""

import inspect
import re
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm
from mechmarkov.cli import import_, main

PAGE = Path(__file__).parents[1] / "docs" / "bring-your-own.md"
TEXT = PAGE.read_text("utf-8")
SPANS = re.findall(r"`([^`]+)`", TEXT)
CALLS = re.findall(r"mm\.([\w.]+)\(([^()]*)", "\n".join(SPANS))


def test_every_name_of_the_library_is_there():
    missing = []
    for name, _ in CALLS:
        try:
            reduce(getattr, name.split("."), mm)
        except AttributeError:
            missing.append(name)
    assert len(CALLS) > 15
    assert sorted(set(missing) - {name for name in missing if name.startswith("HiddenMarkov.from_")}) == []


def test_every_way_to_make_a_hidden_markov_model_is_there():
    names = {name for name, _ in CALLS if name.startswith("HiddenMarkov.")}
    assert {name for name in names if not hasattr(mm.HiddenMarkov, name.split(".")[1])} == set()


def unknown(calls: list[tuple[str, str]]) -> set[str]:
    """Arguments that the functions do not take by these names."""
    found = set()
    for name, arguments in calls:
        taken = inspect.signature(reduce(getattr, name.split("."), mm)).parameters
        found |= {f"{name}({x}=)" for x in re.findall(r"(\w+)=", arguments) if x not in taken}
    return found


def test_every_argument_of_a_model_or_a_loop_is_taken():
    calls = [call for call in CALLS if call[0] in ("Run.from_model", "Recorder")]
    assert len(calls) >= 4
    assert unknown(calls) == set()


def test_every_argument_of_sequences_is_taken():
    calls = [call for call in CALLS if call[0].startswith("Observed")]
    assert len(calls) >= 4
    options = inspect.signature(mm.Observed).parameters
    assert {x for x in unknown(calls) if re.findall(r"\((\w+)=", x)[0] not in options} == set()


@pytest.mark.parametrize("option", ["names", pytest.param("weights"), "tokens", "bos", "set", "source"])
def test_every_option_of_the_command_line_is_there(option):
    known = {name for parameter in import_.params for name in parameter.opts}
    assert f"--{option}" in {word for span in SPANS for word in span.split()}
    assert f"--{option}" in known


# -- what the rows say is done, as it stands there ----------------------------------------------------

OF_DATA = [x for x in re.findall(r"`(mm\.[^`]+)`", TEXT.partition("## Data")[2]) if "…" not in x]
IMPORTS = [
    x for x in re.findall(r"`(mechmarkov import [^`]+)`", TEXT) if "…" not in x.replace("--source …", "")
]
SOURCE = mm.Circle(n_states=3, p=0.3)


def of_a_user() -> dict[str, object]:
    """The data that the rows speak of; files are written into the current folder."""
    rng = np.random.default_rng(0)
    sequences = rng.integers(0, 3, (40, 12))
    texts = ["".join("abc"[state] for state in row) for row in sequences]
    Path("input.txt").write_text("the cat sat on the mat " * 40, "utf-8")
    sequences.astype("uint16").tofile("train.bin")
    pd.DataFrame({"tokens": sequences.tolist(), "n": 12}).to_parquet("data.parquet")
    transitions = [[0.9, 0.1], [0.1, 0.9]]
    cells = {"startprob_": [0.5, 0.5], "transmat_": transitions, "emissionprob_": [[0.8, 0.2], [0.3, 0.7]]}
    T = np.array([[[0.5, 0.0], [0.0, 0.0]], [[0.0, 0.5], [1.0, 0.0]]])
    edges = [(0, 0, 0, 0.5), (0, 1, 1, 0.5), (1, 1, 0, 1.0)]
    states = [
        SimpleNamespace(
            id=state,
            transitions=[
                SimpleNamespace(symbol=symbol, target=target, probability=p)
                for start, symbol, target, p in edges
                if start == state
            ],
        )
        for state in (0, 1)
    ]
    return {
        "mm": mm, "sequences": sequences, "column": pd.Series(sequences.tolist()),
        "strings": texts, "T": T,
        "P": [[0.9, 0.1], [0.2, 0.8]],
        "hmm": SimpleNamespace(**cells), "machine": SimpleNamespace(states=states),
    }  # fmt: skip


@pytest.mark.parametrize("call", OF_DATA)
def test_a_row_of_data_gives_a_source(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = eval(call, of_a_user())
    assert source.n_states >= 2
    assert source.sample(2, 4, generator=torch.Generator().manual_seed(0)).shape == (2, 4)


def test_rows_of_data_are_there():
    assert len(OF_DATA) >= 8
    assert len(IMPORTS) >= 5


@pytest.mark.parametrize("command", IMPORTS)
def test_a_row_of_a_file_gives_a_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shape = {"vocab_size": 3, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    model.save_pretrained("FOLDER")
    state = model.state_dict()
    lightning = {"state_dict": {f"model.{k}": x for k, x in state.items()}, "global_step": 3}
    torch.save(lightning, "last.ckpt")
    mean = {name: x + 0.1 for name, x in state.items()}
    torch.save({"model": state, "ema": mean} if "--weights" in command else state, "ckpt.pt")
    for step in (0, 10):
        torch.save({"model": state, "step": step}, f"ckpt_{step}.pt")
    options = [] if "FOLDER" in command else ["--set", "act_fn=gelu_new"]
    if "n_heads" not in command:
        options += ["--set", "n_heads=2"]
    if "--names" in command:
        shapes = {"tok.weight": (3, 8), "pos.weight": (8, 8), "att.qkv.weight": (24, 8)}
        shapes |= {"att.out.weight": (8, 8)}
        torch.save({name: torch.randn(shape) for name, shape in shapes.items()}, "ckpt.pt")
        lines = [
            'tok.weight = ["embed.W_E", "unembed.W_U"]',
            'pos.weight = "pos_embed.W_pos"',
            f'att.qkv.weight = {{to = {[f"blocks.0.attn.W_{x}" for x in "QKV"]}, split = "parts"}}',
            'att.out.weight = "blocks.0.attn.W_O"',
            'missing = "zeros"',
        ]
        Path("names.toml").write_text("\n".join(lines), "utf-8")
        options = ["--set", "n_heads=2", "--set", "normalization_type=none"]
    words = [word.strip('"') for word in command.removeprefix("mechmarkov ").split()]
    at = words.index("--source")
    words[at + 1 :] = [SOURCE.model_dump_json(), *words[at + 2 :]]
    main([*words, *options])
    assert mm.load("run.pt").n_steps == (2 if "ckpt_*" in command else 1)
