"""transformers' Trainer: its loop records itself, its checkpoints come in as steps."""

import pytest
import torch
import transformers
from circle import LENGTH, N_STATES, SOURCE, SPECIAL, assert_same_logits, rows, steps_differ

import mechmarkov as mm


def gpt2() -> torch.nn.Module:
    shape = {"vocab_size": N_STATES, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2}
    transformers.set_seed(1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **SPECIAL))


def llama() -> torch.nn.Module:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=N_STATES, max_position_embeddings=LENGTH, num_key_value_heads=1, **shape, **SPECIAL
    )
    transformers.set_seed(1)
    return transformers.LlamaForCausalLM(config)


def trained(model: torch.nn.Module, folder, callbacks, **changes: object) -> torch.nn.Module:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=8, learning_rate=1e-2, report_to=[],
        use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
        **({"save_strategy": "no"} | changes),
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=rows(64), callbacks=callbacks).train()
    return model


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_trainer_records_itself(tmp_path, make):
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2)
    model = trained(make(), tmp_path / "out", [recorder.for_transformers()])
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 2, 4]
    assert steps_differ(run)
    assert_same_logits(run, model)


@pytest.mark.xfail(raises=ValueError, reason="issue 47, loops: accelerate puts autocast into `forward`")
@pytest.mark.parametrize("make", [gpt2, llama])
def test_mixed_precision_trains_on_and_records_the_model_in_float32(tmp_path, make):
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2)
    model = trained(make(), tmp_path / "out", [recorder.for_transformers()], bf16=True)
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 2, 4]
    model.forward = type(model).forward.__get__(model)  # without what accelerate puts around it
    assert_same_logits(run, model.float())


@pytest.mark.parametrize("make", [gpt2, llama])
def test_checkpoints_of_a_trainer_are_steps(tmp_path, make):
    model = trained(make(), tmp_path / "out", [], save_strategy="steps", save_steps=2)
    run = mm.import_run([tmp_path / "out"], source=SOURCE).run
    assert run.steps.tolist() == [2, 4]
    assert_same_logits(run, model)
