"""litgpt: its GPT in a loop of Lightning's Fabric, as a Pythia and as a Llama."""

import lightning
import pytest
import torch
from circle import LENGTH, N_STATES, SOURCE, assert_same_logits, sequences, steps_differ
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy

import mechmarkov as mm

AT, TO = r"transformer\.h\.(\d+)\.", r"blocks.\1."
NAMES = {
    "transformer.wte.weight": "embed.W_E",
    "lm_head.weight": "unembed.W_U",
    "transformer.ln_f.weight": "ln_final.w",
    "transformer.ln_f.bias": "ln_final.b",
    AT + r"norm_(\d)\.weight": TO + r"ln\2.w",
    AT + r"norm_(\d)\.bias": TO + r"ln\2.b",
    AT + r"attn\.qkv\.weight": {"to": [f"{TO}attn.W_{x}" for x in "QKV"], "split": "parts"},
    AT + r"attn\.qkv\.bias": {"to": [f"{TO}attn.b_{x}" for x in "QKV"], "split": "parts"},
    AT + r"attn\.proj\.weight": TO + "attn.W_O",
    AT + r"attn\.proj\.bias": TO + "attn.b_O",
    AT + r"mlp\.fc\.weight": TO + "mlp.W_in",
    AT + r"mlp\.fc\.bias": TO + "mlp.b_in",
    AT + r"mlp\.fc_1\.weight": TO + "mlp.W_gate",
    AT + r"mlp\.fc_2\.weight": TO + "mlp.W_in",
    AT + r"mlp\.proj\.weight": TO + "mlp.W_out",
    AT + r"mlp\.proj\.bias": TO + "mlp.b_out",
    "missing": "zeros",
}
ROTARY = {
    "positional_embedding_type": "rotary",
    "rotary_base": 10000,
    "rotary_adjacent_pairs": False,
    "n_ctx": LENGTH,
}
SIZES = {
    "block_size": LENGTH,
    "vocab_size": N_STATES,
    "padded_vocab_size": N_STATES,
    "n_layer": 2,
    "n_embd": 16,
}
PYTHIA = (
    {"n_head": 2},
    {"n_heads": 2, "act_fn": "gelu", "parallel_attn_mlp": True, "rotary_dim": 2},
)
LLAMA = (
    {
        "n_head": 4,
        "n_query_groups": 2,
        "mlp_class_name": "LLaMAMLP",
        "intermediate_size": 24,
        "bias": False,
        "norm_class_name": "RMSNorm",
        "rotary_percentage": 1.0,
        "parallel_residual": False,
    },
    {"n_heads": 4, "n_key_value_heads": 2, "act_fn": "silu", "normalization_type": "RMS"},
)


@pytest.mark.parametrize(("config", "given"), [PYTHIA, LLAMA], ids=["as a Pythia", "as a Llama"])
def test_a_loop_of_fabric_records_itself(tmp_path, config, given):
    """The loop of litgpt's pretrain.py: Fabric, its model, its loss in chunks."""
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(0, verbose=False)
    model = GPT(Config(**SIZES, **config))
    model.apply(model._init_weights)
    inner = model
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimiser = fabric.setup(model, optimiser)
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2, names=NAMES, given=ROTARY | given)
    for step in range(4):
        recorder(step, inner)
        batch = sequences(16, seed=step)
        loss = chunked_cross_entropy(model(batch[:, :-1]), batch[:, 1:])
        fabric.backward(loss)
        optimiser.step()
        optimiser.zero_grad()
    run = recorder.finish(4, inner)
    assert run.steps.tolist() == [0, 2, 4]
    assert steps_differ(run)
    assert_same_logits(run, inner)


def test_what_no_decoder_computes_differs_in_its_logits():
    """Soft caps, as of Gemma 2: no weight shows them."""
    config, given = LLAMA
    model = GPT(Config(**SIZES, **config, final_logit_softcapping=0.1))
    with pytest.raises(ValueError, match=r"^GPT and its conversion disagree: logits differ by up to"):
        mm.Run.from_model(model, source=SOURCE, names=NAMES, given=ROTARY | given)
