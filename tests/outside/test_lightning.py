"""Lightning: a LightningModule around somebody's GPT, its Trainer, and the .ckpt files that it writes."""

import lightning
import torch
from circle import LENGTH, N_STATES, SOURCE, SPECIAL, assert_same_logits, sequences, steps_differ
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm


class LanguageModel(lightning.LightningModule):
    """As Lightning's own guide writes one: the network is an attribute."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.network(tokens).logits

    def training_step(self, batch, batch_index):
        (tokens,) = batch
        return self.network(tokens, labels=tokens).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Recording(lightning.Callback):
    """A recorder called where Lightning's Trainer counts its updates."""

    def __init__(self, recorder: mm.Recorder) -> None:
        self.recorder = recorder

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.recorder(trainer.global_step, module.network)

    def on_train_end(self, trainer, module):
        self.recorder.finish(trainer.global_step, module.network)


def trained(folder, callbacks=(), **changes) -> tuple[LanguageModel, lightning.Trainer]:
    lightning.seed_everything(0, verbose=False)
    shape = {"vocab_size": N_STATES, "n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    module = LanguageModel(GPT2LMHeadModel(GPT2Config(**shape, **SPECIAL)))
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=list(callbacks), **changes,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(sequences(64)), batch_size=8))
    return module, trainer


def test_a_trainer_records_itself(tmp_path):
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2)
    module, _ = trained(tmp_path, [Recording(recorder)])
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 2, 4]
    assert steps_differ(run)
    assert_same_logits(run, module.network)


def test_a_checkpoint_comes_in_with_its_step(tmp_path):
    module, trainer = trained(tmp_path)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    given = {"n_heads": 2, "act_fn": "gelu_new", "normalization_type": "LN"}
    run = mm.import_run([tmp_path / "last.ckpt"], source=SOURCE, given=given).run
    assert run.steps.tolist() == [4]
    assert_same_logits(run, module.network)


def test_a_checkpoint_comes_in_with_a_table_of_names(tmp_path):
    module, trainer = trained(tmp_path)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    at, to = r".*\.h\.(\d+)\.", r"blocks.\1."
    names = {
        r".*wte\.weight": "embed.W_E",
        r".*wpe\.weight": "pos_embed.W_pos",
        r".*ln_f\.weight": "ln_final.w",
        r".*ln_f\.bias": "ln_final.b",
        r".*lm_head\.weight": "unembed.W_U",
        at + r"ln_(\d)\.weight": to + r"ln\2.w",
        at + r"ln_(\d)\.bias": to + r"ln\2.b",
        # Conv1D of transformers keeps [d_in, d_out] and calls it weight.
        at + r"attn\.c_attn\.weight": {
            "to": [f"{to}attn.W_{x}" for x in "QKV"], "split": "parts", "transpose": False
        },
        at + r"attn\.c_attn\.bias": {"to": [f"{to}attn.b_{x}" for x in "QKV"], "split": "parts"},
        at + r"attn\.c_proj\.weight": {"to": to + "attn.W_O", "transpose": False},
        at + r"attn\.c_proj\.bias": to + "attn.b_O",
        at + r"mlp\.c_fc\.weight": to + "mlp.W_in",
        at + r"mlp\.c_fc\.bias": to + "mlp.b_in",
        at + r"mlp\.c_proj\.weight": to + "mlp.W_out",
        at + r"mlp\.c_proj\.bias": to + "mlp.b_out",
        "missing": "zeros",
    }  # fmt: skip
    given = {"n_heads": 2, "act_fn": "gelu_new", "normalization_type": "LN"}
    run = mm.import_run([tmp_path / "last.ckpt"], source=SOURCE, names=names, given=given).run
    assert run.steps.tolist() == [4]
    assert_same_logits(run, module.network)


def test_accumulated_gradients_in_mixed_precision_leave_nothing_out(tmp_path, recwarn):
    """One call an update: Lightning counts a step once for several batches."""
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2)
    options = {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}
    plain, _ = trained(tmp_path, **options)
    module, _ = trained(tmp_path, [Recording(recorder)], **options)
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 2, 4]
    assert_same_logits(run, module.network)
    weights = zip(plain.state_dict().values(), module.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert not [warning for warning in recwarn if "the training goes on" in str(warning.message)]
