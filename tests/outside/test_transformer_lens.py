"""TransformerLens' own training loops: HookedTransformer in 3.9, a native TransformerBridge in 4.3."""

import itertools
from importlib.metadata import version

import torch
from circle import LENGTH, N_STATES, SOURCE, assert_same_logits, sequences, steps_differ
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset

import mechmarkov as mm

IS_3 = version("transformer-lens").startswith("3.")
SIZES = {
    "n_layers": 2, "d_model": 16, "n_ctx": LENGTH, "d_head": 8, "n_heads": 2, "d_vocab": N_STATES,
    "act_fn": "gelu", "d_mlp": 32, "normalization_type": "LN", "device": "cpu",
}  # fmt: skip


class Tokens(Dataset):
    """What both loops read: a dict with the tokens."""

    def __init__(self) -> None:
        self.rows = sequences(64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"tokens": self.rows[index]}


def lens_model() -> torch.nn.Module:
    if IS_3:
        from transformer_lens import HookedTransformer, HookedTransformerConfig

        return HookedTransformer(HookedTransformerConfig(**SIZES, seed=0))
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(0)
    bridge = TransformerBridge.boot_native(TransformerBridgeConfig(**SIZES))
    for parameter in bridge.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return bridge


def trained(model: torch.nn.Module, **changes: object) -> torch.nn.Module:
    """Eight updates of the library's own loop."""
    if IS_3:
        from transformer_lens.train import HookedTransformerTrainConfig as Config
        from transformer_lens.train import train
    else:
        from transformer_lens.tools.training import TrainConfig as Config
        from transformer_lens.tools.training import train
    return train(
        model,
        Config(num_epochs=1, batch_size=8, lr=1e-2, device="cpu", print_every=None, **changes),
        Tokens(),
    )


def test_a_hook_of_the_optimiser_records_its_loop(tmp_path):
    """The loop has no callbacks; torch calls a hook after each update of any optimiser."""
    recorder, model = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=4), lens_model()
    recorder(0, model)
    updates = itertools.count(1)
    hook = register_optimizer_step_post_hook(lambda *_: recorder(next(updates), model))
    try:
        trained(model)
    finally:
        hook.remove()
    run = recorder.finish(8, model)
    assert run.steps.tolist() == [0, 4, 8]
    assert steps_differ(run)
    assert_same_logits(run, model)


def test_checkpoints_of_its_loop_are_steps(tmp_path):
    """`save_every` writes bare state dicts, `model_0.pt` after the first update and so on."""
    model = trained(lens_model(), save_every=7, save_dir=str(tmp_path))
    given = {"n_heads": 2, "n_ctx": LENGTH, "act_fn": "gelu", "normalization_type": "LN"}
    given |= {"positional_embedding_type": "standard"}
    run = mm.import_run([tmp_path], source=SOURCE, given=given).run
    assert run.steps.tolist() == [0, 7]
    assert_same_logits(run, model)
