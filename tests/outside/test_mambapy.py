"""mambapy: its Mamba with an embedding around it, as its README writes a language model."""

import pytest
import torch
from circle import LENGTH, N_STATES, SOURCE, assert_same_logits, sequences, steps_differ
from mambapy.mamba import Mamba, MambaConfig, RMSNorm
from torch import nn
from torch.nn import functional as F

import mechmarkov as mm

AT, TO = r"mamba\.layers\.(\d+)\.", r"blocks.\1."
NAMES = {
    "embedding.weight": "embed.W_E",
    "norm_f.weight": "ln_final.w",
    "lm_head.weight": "unembed.W_U",
    AT + r"norm\.weight": TO + "ln1.w",
    AT + r"mixer\.in_proj\.weight": {"to": [TO + "attn.W_V", TO + "attn.W_G"], "split": "parts"},
    AT + r"mixer\.x_proj\.weight": {
        "to": [f"{TO}attn.{x}" for x in ("W_dt_in", "W_B", "W_C")],
        "split": "parts",
    },
    AT + r"mixer\.dt_proj\.weight": TO + "attn.W_dt_out",
    AT + r"mixer\.dt_proj\.bias": TO + "attn.b_dt",
    AT + r"mixer\.conv1d\.weight": TO + "attn.conv_V",
    AT + r"mixer\.conv1d\.bias": TO + "attn.b_conv_V",
    AT + r"mixer\.(A_log|D)": TO + r"attn.\2",
    AT + r"mixer\.out_proj\.weight": TO + "attn.W_O",
    "missing": "zeros",
}
SPACE = {"mixer": "mamba1", "n_heads": 16, "d_head": 1, "d_state": 4, "dt_rank": 1}
GIVEN = SPACE | {"n_ctx": LENGTH, "normalization_type": "RMS"}


class LM(nn.Module):
    """mambapy's `LM`, whose own module asks for Triton kernels."""

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(N_STATES, config.d_model)
        self.mamba = Mamba(config)
        self.norm_f = RMSNorm(config.d_model, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.d_model, N_STATES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm_f(self.mamba(self.embedding(tokens))))


def test_a_loop_records_itself(tmp_path):
    torch.manual_seed(0)
    model = LM(MambaConfig(d_model=8, n_layers=2, d_state=4))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2, names=NAMES, given=GIVEN)
    for step in range(4):
        recorder(step, model)
        batch = sequences(16, seed=step)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    run = recorder.finish(4, model)
    assert run.steps.tolist() == [0, 2, 4]
    assert steps_differ(run)
    assert_same_logits(run, model)


def test_the_norms_of_a_jamba_have_no_line():
    model = LM(MambaConfig(d_model=8, n_layers=1, d_state=4, inner_layernorms=True))
    with pytest.raises(ValueError, match=r"no line for mamba\.layers\.N\.mixer\.dt_layernorm\.weight, "):
        mm.Run.from_model(model, source=SOURCE, names=NAMES, given=GIVEN)
