"""Two GPTs of the index in the manner of nanoGPT's lecture: a module for each head, and one for all."""

import itertools

import torch
from autoresearch.config import Config
from autoresearch.model import GPT, GPTConfig
from autoresearch.toy_train import toy_train
from circle import LENGTH, N_STATES, SOURCE, assert_same_logits, sequences, steps_differ
from picogpt.model import TinyGPT
from torch.optim.optimizer import register_optimizer_step_post_hook

import mechmarkov as mm

AT, TO = r"blocks\.(\d+)\.", r"blocks.\1."
NORMS = {
    "ln_f.weight": "ln_final.w",
    "ln_f.bias": "ln_final.b",
    AT + r"ln(\d)\.weight": TO + r"ln\2.w",
    AT + r"ln(\d)\.bias": TO + r"ln\2.b",
    "head.weight": "unembed.W_U",
    "missing": "zeros",
}
PICOGPT = {
    **NORMS,
    "token_emb.weight": "embed.W_E",
    "head.bias": "unembed.b_U",
    AT + r"sa\.proj\.weight": TO + "attn.W_O",
    AT + r"sa\.proj\.bias": TO + "attn.b_O",
    **{
        AT + rf"sa\.heads\.(\d+)\.{name}\.weight": {"to": f"{TO}attn.W_{name[0].upper()}", "head": r"\2"}
        for name in ("query", "key", "value")
    },
    AT + r"ff\.net\.0\.weight": TO + "mlp.W_in",
    AT + r"ff\.net\.0\.bias": TO + "mlp.b_in",
    AT + r"ff\.net\.2\.weight": TO + "mlp.W_out",
    AT + r"ff\.net\.2\.bias": TO + "mlp.b_out",
}
AUTORESEARCH = {
    **NORMS,
    "tok_emb.weight": "embed.W_E",
    "pos_emb.weight": "pos_embed.W_pos",
    AT + r"attn\.qkv\.weight": {"to": [f"{TO}attn.W_{x}" for x in "QKV"], "split": "parts"},
    AT + r"attn\.proj\.weight": TO + "attn.W_O",
    AT + r"mlp\.fc\.weight": TO + "mlp.W_in",
    AT + r"mlp\.fc\.bias": TO + "mlp.b_in",
    AT + r"mlp\.proj\.weight": TO + "mlp.W_out",
    AT + r"mlp\.proj\.bias": TO + "mlp.b_out",
}


def test_picogpt_records_itself(tmp_path):
    """Rotary positions in adjacent pairs; the loop is that of its `PicoGPT.train`."""
    torch.manual_seed(0)
    model = TinyGPT(N_STATES, 16, 2, 2, LENGTH, dropout=0.1, rope_base=10000.0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rotary = {"positional_embedding_type": "rotary", "rotary_base": 10000, "rotary_adjacent_pairs": True}
    given = rotary | {"n_ctx": LENGTH, "act_fn": "gelu"}
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2, names=PICOGPT, given=given)
    for step in range(4):
        recorder(step, model)
        batch = sequences(16, seed=step)
        _, loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    run = recorder.finish(4, model)
    assert run.config.n_heads == 2
    assert steps_differ(run)
    assert_same_logits(run, model)


def test_autoresearch_is_recorded_from_inside_its_own_loop(tmp_path, monkeypatch):
    """`toy_train` makes its model and gives none back; torch calls a hook after each update."""
    made, given = [], {"n_heads": 2, "act_fn": "gelu"}
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=1, names=AUTORESEARCH, given=given)

    def make(config: GPTConfig) -> GPT:
        made.append(GPT(config))
        recorder(0, made[0])
        return made[0]

    updates = itertools.count(1)
    hook = register_optimizer_step_post_hook(lambda *_: recorder(next(updates), made[0]))
    monkeypatch.setattr("autoresearch.toy_train.GPT", make)
    sizes = {"vocab_size": N_STATES, "block_size": LENGTH, "n_layer": 2, "n_head": 2, "n_embd": 16}
    try:
        result = toy_train(Config(**sizes, max_steps=3), metrics_path=str(tmp_path / "metrics.json"))
    finally:
        hook.remove()
    run = recorder.finish(3, made[0])
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert run.config.tied
    assert steps_differ(run)
    assert result["num_params"] == sum(value[0].numel() for value in run.states.values()) - extra_biases(run)
    assert_same_logits(run, made[0])


def extra_biases(run: mm.Run) -> int:
    """How many biases the run has and the model does not."""
    names = ("attn.b_Q", "attn.b_K", "attn.b_V", "attn.b_O", "unembed.b_U")
    return sum(value[0].numel() for name, value in run.states.items() if name.endswith(names))
