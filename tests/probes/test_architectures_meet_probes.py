"""Every probe answers for every architecture, or says truly why it does not."""

from dataclasses import replace

import pytest
from models_by_hand import stacked
from probing_cases import P3, probe_quickly, random_run
from uniform_mixer import Uniform

import mechmarkov as mm
from mechmarkov.catalogue.probes import registered
from mechmarkov.models.attention import Attention
from mechmarkov.models.mixer import MIXERS
from mechmarkov.probes import degeneracy

HIDDEN = mm.HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[P3[0], P3[2]])
SMALL = {"n_layers": 2, "d_model": 4, "d_head": 2, "d_mlp": 5, "n_ctx": 4}
STATE_SPACE = {
    "d_state": 2, "n_groups": 1, "d_conv": 3, "conv_act_fn": "silu", "use_gate": True, "use_gate_norm": True,
    "positional_embedding_type": "none",
}  # fmt: skip
# Shape, what differs, and the probes that do not apply with what their reason says.
NO_TABLE = "no value circuit is a table"
UNATTENDED = dict.fromkeys(
    ("attention", "induction", "ablation", "program", "dynamics", "degeneracy"),
    "no layer has attention weights",
) | {"alignment": NO_TABLE, "symmetry": NO_TABLE}
ARCHITECTURES = {
    "Llama": ("Llama", {}, {}),
    "Qwen3": ("Qwen3", {}, {}),
    "GPT-NeoX": ("GPT-NeoX", {}, {}),
    "Gemma-like": ("Llama", {"act_fn": "gelu_new", "n_key_value_heads": None}, {}),
    "Mamba": ("LN and MLP", STATE_SPACE | {"mixer": "mamba"}, {"alignment": NO_TABLE, "symmetry": NO_TABLE}),
    "LSTM": ("LN and MLP", {"mixer": "lstm", "positional_embedding_type": "none"}, UNATTENDED),
    "MLP over positions": ("LN and MLP", {"mixer": "mlp", "positional_embedding_type": "none"}, UNATTENDED),
    "Mamba, then attention": ("LN and MLP", STATE_SPACE | {"mixer": "mamba_first"}, {}),
    "no attention, then attention": (
        "LN and MLP",
        {"mixer": "uniform_first"},
        {"ablation": "layer 0 has no attention weights"},
    ),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(MIXERS, "mamba_first", stacked(MIXERS["mamba"], Attention))
    monkeypatch.setitem(MIXERS, "uniform_first", stacked(Uniform, Attention))
    for name, value in {"CHAINS": 2, "BURN_IN": 4, "DRAWS": 8}.items():
        monkeypatch.setattr(degeneracy, name, value)


# In `make test` shared keys, rotary positions and gated MLPs; in `make test-system` each kind of mixer.
LEGS = {
    "Llama": (),
    "no attention, then attention": pytest.mark.system,
    "Mamba": pytest.mark.system,
    "LSTM": pytest.mark.system,
    "MLP over positions": pytest.mark.system,
    "Mamba, then attention": pytest.mark.system,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LEGS.get(name, pytest.mark.slow)) for name in ARCHITECTURES]
)
@pytest.mark.usefixtures("one_term")
def test_every_probe_answers_or_says_why_not(name):
    shape, changes, skipped = ARCHITECTURES[name]
    run = random_run(shape, n_steps=2, **(SMALL | changes))
    result = probe_quickly(run, registered(), nulls=2, sequences=8, steps="all", drawn=True)
    assert result.failed == {}
    assert set(result.skipped) == {"belief", "graph", *skipped}
    for probe, reason in skipped.items():
        assert result.skipped[probe].startswith(reason)
    for outcome in result.values():
        for score in outcome.scores.values():
            assert score.value is not None or score.reason
    belief = probe_quickly(replace(run, source=HIDDEN), ["belief"], nulls=2, sequences=8)
    assert 0 <= belief["belief"].scores["belief_r2"].value <= 1
