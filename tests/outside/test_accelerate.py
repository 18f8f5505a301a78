"""accelerate: a loop of one's own with `Accelerator.prepare`, in float32 and in mixed precision."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from circle import LENGTH, N_STATES, SOURCE, SPECIAL, assert_same_logits, sequences, steps_differ
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm


@pytest.fixture(autouse=True)
def _one_accelerator_a_test():
    """Accelerate allows one precision a process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def recorded_loop(path, mixed_precision: str, compiled: bool = False) -> tuple[mm.Run, torch.nn.Module]:
    """The loop of accelerate's quick tour, with a recorder."""
    torch.manual_seed(0)
    shape = {"vocab_size": N_STATES, "n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    accelerator = Accelerator(mixed_precision=mixed_precision, cpu=True)
    model = GPT2LMHeadModel(GPT2Config(**shape, **SPECIAL))
    model = torch.compile(model, backend="aot_eager") if compiled else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(sequences(32)), batch_size=8)
    model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
    recorder = mm.Recorder(path, source=SOURCE, every=1)
    for step, (batch,) in enumerate(loader):
        recorder(step, model)
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        optimiser.step()
        optimiser.zero_grad()
    run = recorder.finish(step + 1, model)
    return run, accelerator.unwrap_model(model, keep_fp32_wrapper=False)


def test_a_prepared_model_records_itself(tmp_path):
    run, model = recorded_loop(tmp_path / "run.pt", "no")
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert steps_differ(run)
    assert_same_logits(run, model)


def test_mixed_precision_is_recorded_in_float32(tmp_path):
    run, model = recorded_loop(tmp_path / "run.pt", "bf16")
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert_same_logits(run, model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own imports
def test_a_compiled_model_in_mixed_precision(tmp_path):
    """accelerate's autocast is then around what was compiled, and not around the model inside."""
    run, model = recorded_loop(tmp_path / "run.pt", "bf16", compiled=True)
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert_same_logits(run, model._orig_mod)
