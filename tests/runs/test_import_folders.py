"""Folders as transformers' Trainer and `save_pretrained`, accelerate and others write them, by their code."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from public_codes import SOURCE, Config, NanoGPT, drawn
from run_files import saved
from safetensors.torch import load_file, save_file
from torch import nn

from mechmarkov.cli import main
from mechmarkov.importing.training_steps import checkpoints, steps_of
from mechmarkov.runs import load
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

K, LENGTH = 5, 7
NANO = {"act_fn": "gelu", "n_heads": 2}


def gpt2() -> transformers.GPT2LMHeadModel:
    tokens = {"bos_token_id": None, "eos_token_id": None}
    shape = {"vocab_size": K, "n_positions": LENGTH, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**shape, **tokens)
    return drawn(transformers.GPT2LMHeadModel(config))


class Untied(NanoGPT):
    """A module that Trainer can save: transformers 5 refuses tensors that share memory."""

    def __init__(self) -> None:
        super().__init__(Config())
        self.lm_head.weight = nn.Parameter(self.lm_head.weight.detach().clone())

    def forward(self, input_ids, labels=None):
        logits, _ = super().forward(input_ids, input_ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def trained(folder: Path, model: nn.Module, steps: int = 6) -> transformers.Trainer:
    rows = [{"input_ids": x, "labels": x} for x in torch.randint(K, (16, LENGTH))]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_steps=1000,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def trainer_run(tmp_path_factory):
    """A Trainer's folder: three checkpoints, and the final model beside them."""
    folder = tmp_path_factory.mktemp("trainer") / "run"
    trainer = trained(folder, gpt2())
    trainer.save_model()
    trainer.save_state()
    return folder, trainer.model


def test_a_trainers_folder_stands_for_its_checkpoints(tmp_path, capsys, trainer_run):
    folder, model = trainer_run
    assert {"config.json", "model.safetensors", "checkpoint-4"} <= {path.name for path in folder.iterdir()}
    main(["import", str(folder), "--source", SOURCE.model_dump_json(), "--out", str(tmp_path / "run.pt")])
    printed = capsys.readouterr().out
    assert "checkpoint-2, checkpoint-4 and checkpoint-6" in printed
    assert (
        f"left out next to them: model.safetensors: {folder}/model.safetensors gives the model in it"
        in printed
    )
    run = load(tmp_path / "run.pt")
    assert run.steps.tolist() == [2, 4, 6]
    weight = model.state_dict()["transformer.wte.weight"].cpu()
    assert torch.equal(run.states["embed.W_E"][-1], weight)
    final = import_run([folder / "model.safetensors"], source=SOURCE).run
    assert (final.steps.tolist(), final.config) == ([6], run.config)


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("checkpoint-*", [2, 4, 6]),
        ("checkpoint-[24]", [2, 4]),
        ("*/model.safetensors", [2, 4, 6]),
        ("*", [2, 4, 6]),
        ("checkpoint-4", [4]),
        ("checkpoint-4/model.safetensors", [4]),
    ],
)
def test_patterns_in_a_trainers_folder(trainer_run, pattern, steps):
    assert import_run([trainer_run[0] / pattern], source=SOURCE).run.steps.tolist() == steps


def test_the_home_folder_is_written_as_a_tilde(monkeypatch, trainer_run):
    folder = trainer_run[0]
    monkeypatch.setenv("HOME", str(folder.parent))
    for path in ("~/run", "~/run/checkpoint-*"):
        assert import_run([path], source=SOURCE).run.steps.tolist() == [2, 4, 6]
    assert import_run(["~/run/checkpoint-2"], source=SOURCE).run.steps.tolist() == [2]


def test_a_trainer_of_a_plain_module_writes_no_config(tmp_path):
    trainer = trained(tmp_path / "run", Untied())
    trainer.save_model()
    run = import_run([tmp_path / "run"], source=SOURCE, given=NANO).run
    assert run.steps.tolist() == [2, 4, 6]
    weight = trainer.model.state_dict()["lm_head.weight"].cpu()
    assert torch.equal(run.states["unembed.W_U"][-1], weight.T)
    alone = import_run([tmp_path / "run" / "checkpoint-4"], source=SOURCE, given=NANO).run
    assert alone.steps.tolist() == [4]  # of its trainer_state.json


@pytest.mark.parametrize("index", [True, False])
def test_weights_in_several_files_are_read(tmp_path, index):
    model = gpt2()
    model.save_pretrained(tmp_path / "parts", max_shard_size="1KB")
    model.save_pretrained(tmp_path / "whole")
    parts = sorted(path.name for path in (tmp_path / "parts").glob("*.safetensors"))
    assert len(parts) > 3
    if not index:
        (tmp_path / "parts" / "model.safetensors.index.json").unlink()
    both = [import_run([tmp_path / name], source=SOURCE).run for name in ("parts", "whole")]
    assert both[0].config == both[1].config
    assert all(torch.equal(both[0].states[name], both[1].states[name]) for name in both[1].states)
    with pytest.raises(RunFileError, match=f"is one of the {len(parts)} files of a model: give their folder"):
        import_run([tmp_path / "parts" / parts[1]], source=SOURCE)
    (tmp_path / "parts" / parts[1]).unlink()
    words = (
        f"has no {parts[1]}, a part of its" if index else f"holds {len(parts) - 1} of the {len(parts)} files"
    )
    with pytest.raises(RunFileError, match=words):
        import_run([tmp_path / "parts"], source=SOURCE)


def test_parts_of_torch_save(tmp_path):
    """As transformers 4 wrote them: `pytorch_model-00001-of-00002.bin` and an index."""
    state = drawn(NanoGPT(Config())).state_dict()
    names = list(state)
    files = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in (0, 1)}
    for file, some in files.items():
        saved(tmp_path / file, {name: state[name] for name in some})
    weight_map = {name: file for file, some in files.items() for name in some}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    run = import_run([tmp_path], source=SOURCE, given=NANO).run
    assert torch.equal(run.states["pos_embed.W_pos"][0], state["transformer.wpe.weight"])
    for bad, words in (
        ({"weight_map": {"a": "../x.bin"}}, "names no files of this folder as its weight_map"),
        ({"weight_map": []}, "names no files of this folder"),
        ([], "is a list, expected an object"),
        ({"weight_map": {**weight_map, "a": "pytorch_model-00001-of-00003.bin"}}, "holds 3 of the 2 files"),
    ):
        index.write_text(json.dumps(bad))
        with pytest.raises(RunFileError, match=words):
            import_run([tmp_path], source=SOURCE, given=NANO)


def test_a_weight_in_two_parts_is_refused(tmp_path):
    state = drawn(NanoGPT(Config())).state_dict()
    for part in (1, 2):
        saved(tmp_path / f"pytorch_model-0000{part}-of-00002.bin", state)
    with pytest.raises(RunFileError, match=r'has the weight "transformer\.wte\.weight" in two files'):
        import_run([tmp_path], source=SOURCE, given=NANO)


def test_states_of_accelerate(tmp_path):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(drawn(NanoGPT(Config())))
    accelerator.prepare(torch.optim.AdamW(model.parameters()))
    for step in (10, 20):
        accelerator.save_state(str(tmp_path / "run" / f"step_{step}"))
    result = import_run([tmp_path / "run"], source=SOURCE, given=NANO)
    assert result.run.steps.tolist() == [10, 20]
    assert result.run.config.tied
    assert "training steps by the names: 10, 20" in result.notes
    accelerator.save_state(str(tmp_path / "run" / "epoch_1"), safe_serialization=False)
    with pytest.raises(RunFileError, match=r"epoch_1, .*step_20 count epochs and steps: give those of one"):
        import_run([tmp_path / "run"], source=SOURCE, given=NANO)
    accelerator.save_model(model, str(tmp_path / "parts"), max_shard_size="1KB")
    assert import_run([tmp_path / "parts"], source=SOURCE, given=NANO).run.config == result.run.config


def test_checkpoints_that_accelerate_names(tmp_path):
    project = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(drawn(NanoGPT(Config())))
    accelerator.save_state()
    accelerator.save_state()
    assert import_run([tmp_path], source=SOURCE, given=NANO).run.steps.tolist() == [0, 1]


def test_a_model_of_transformers_without_its_config(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=K, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=LENGTH, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "llama")
    (tmp_path / "llama" / "config.json").unlink()
    with pytest.raises(RunFileError, match=r"no config: .*model\.config\.save_pretrained\(folder\)"):
        import_run([tmp_path / "llama"], source=SOURCE)
    model.config.save_pretrained(tmp_path / "llama")
    assert import_run([tmp_path / "llama"], source=SOURCE).run.config.n_ctx == LENGTH
    windowed = import_run([tmp_path / "llama"], source=SOURCE, given={"window": 3}).run
    assert windowed.config.window == 3
    assert "window" not in windowed.provenance["assumed"]
    state = load_file(tmp_path / "llama" / "model.safetensors")
    compiled = {f"_orig_mod.{name}": value for name, value in state.items()}
    save_file(compiled, tmp_path / "llama" / "model.safetensors", {"format": "pt"})
    result = import_run([tmp_path / "llama"], source=SOURCE)
    assert "all names begin with _orig_mod.: taken off" in result.notes
    del compiled["_orig_mod.model.layers.0.mlp.up_proj.weight"]
    save_file(compiled, tmp_path / "llama" / "model.safetensors")
    with pytest.raises(RunFileError, match=r"it has no _orig_mod\.model\.layers\.0\.mlp\.up_proj\.weight"):
        import_run([tmp_path / "llama"], source=SOURCE)


def test_a_config_of_ones_own_beside_the_weights(tmp_path):
    """As huggingface_hub's PyTorchModelHubMixin writes it: the arguments of the class."""
    state = drawn(Untied()).state_dict()
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"n_head": 2, "block_size": LENGTH, "lr": 1, "foo": 2}))
    result = import_run([tmp_path], source=SOURCE, given={"act_fn": "gelu"})
    assert result.run.config.n_heads == 2
    assert "settings in the file that are not read: config.json.foo" in result.notes
    (tmp_path / "config.json").write_text(json.dumps({"n_head": 2, "sliding_window": 3}))
    with pytest.raises(RunFileError, match=r"config\.json: sliding_window is 3, which no weight shows"):
        import_run([tmp_path], source=SOURCE, given={"act_fn": "gelu"})
    (tmp_path / "config.json").write_text(json.dumps({"n_head": 2, "model_type": "mygpt"}))
    with pytest.raises(RunFileError, match=r"model_type is 'mygpt', expected gpt2, llama"):
        import_run([tmp_path], source=SOURCE, given={"act_fn": "gelu"})


def test_a_folder_per_step(tmp_path):
    state = drawn(NanoGPT(Config())).state_dict()
    for step in (100, 20):
        folder = tmp_path / "ck" / str(step)
        folder.mkdir(parents=True)
        saved(folder / "model.pt", state)
        saved(folder / "optimizer.pt", {"state": {}})
    for path in ("ck", "ck/*"):
        run = import_run([tmp_path / path], source=SOURCE, given=NANO).run
        assert run.steps.tolist() == [20, 100]
    assert import_run([tmp_path / "ck" / "1*"], source=SOURCE, given=NANO).run.steps.tolist() == [100]
    saved(tmp_path / "ck" / "final.pt", state)
    result = import_run([tmp_path / "ck"], source=SOURCE, given=NANO)
    assert result.run.steps.tolist() == [20, 100]
    assert "left out next to them: final.pt" in result.notes
    saved(tmp_path / "ck" / "20" / "ema.pt", state)
    with pytest.raises(
        RunFileError, match=r"ck/20: holds ema\.pt and model\.pt: say which, such as '.*ck/\*/ema"
    ):
        import_run([tmp_path / "ck"], source=SOURCE, given=NANO)
    run = import_run([tmp_path / "ck" / "*" / "model.pt"], source=SOURCE, given=NANO).run
    assert run.steps.tolist() == [20, 100]


def test_folders_of_several_trainings_are_not_mixed(tmp_path):
    state = drawn(NanoGPT(Config())).state_dict()
    for version in (0, 1):  # as Lightning's loggers number them
        folder = tmp_path / "lightning_logs" / f"version_{version}" / "checkpoints"
        folder.mkdir(parents=True)
        saved(folder / "epoch=0-step=5.ckpt", {"state_dict": state, "global_step": 5, "epoch": 0})
    with pytest.raises(RunFileError, match=r"2 folders in it hold checkpoints: give one, of .*version_0 and"):
        import_run([tmp_path], source=SOURCE, given=NANO)
    shutil.rmtree(tmp_path / "lightning_logs" / "version_0")
    assert import_run([tmp_path], source=SOURCE, given=NANO).run.steps.tolist() == [5]


def test_a_copy_of_the_last_checkpoint_is_left_out(tmp_path):
    state = drawn(NanoGPT(Config())).state_dict()
    for step in (2, 4):
        saved(tmp_path / f"epoch=0-step={step}.ckpt", {"state_dict": state, "global_step": step, "epoch": 0})
    shutil.copy(tmp_path / "epoch=0-step=4.ckpt", tmp_path / "last.ckpt")
    result = import_run([tmp_path], source=SOURCE, given=NANO)
    assert result.run.steps.tolist() == [2, 4]
    assert any(note.startswith("left out, a copy of ") and "last.ckpt" in note for note in result.notes)
    other = {name: 2 * value for name, value in state.items()}
    saved(tmp_path / "last.ckpt", {"state_dict": other, "global_step": 4, "epoch": 0})
    with pytest.raises(RunFileError, match=r"last\.ckpt: step 4 is also that of .*step=4\.ckpt"):
        import_run([tmp_path], source=SOURCE, given=NANO)


def test_files_without_a_suffix(tmp_path):
    state = drawn(NanoGPT(Config())).state_dict()
    for step in (0, 30):
        saved(tmp_path / f"model_{step}", state)
    (tmp_path / "README").write_text("notes")
    assert import_run([tmp_path], source=SOURCE, given=NANO).run.steps.tolist() == [0, 30]


STEP_KEYS = (
    "iter_num", "step", "global_step", "iter", "itr", "iteration", "it", "epoch", "current_step", "n_iter",
    "steps", "num_updates", "optimizer_step",
)  # fmt: skip


STEP_VALUES = (12.0, torch.tensor(12), torch.tensor([12], dtype=torch.int))


@pytest.mark.parametrize(
    ("key", "value"),
    [*((key, 12) for key in STEP_KEYS), *(("step", value) for value in STEP_VALUES)],
    ids=repr,
)
def test_steps_by_any_of_their_names(tmp_path, key, value):
    state = drawn(NanoGPT(Config())).state_dict()
    for data in ({"model": state, key: value}, {"ckpt": {"model": state}, key: value}):
        path = saved(tmp_path / "model.pt", data)
        assert import_run([path], source=SOURCE, given=NANO).run.steps.tolist() == [12]


def test_of_a_step_and_an_epoch_the_step_counts(tmp_path):
    state = drawn(NanoGPT(Config())).state_dict()
    path = saved(tmp_path / "model.pt", {"model": state, "epoch": 3, "state": {"itr": 700}})
    assert import_run([path], source=SOURCE, given=NANO).run.steps.tolist() == [700]
    alone = saved(tmp_path / "e.pt", {"model": state, "epoch": 3})
    notes = import_run([alone], source=SOURCE, given=NANO).notes
    assert "training steps are epochs: the files say no other" in notes
    for step in (100, 200):  # two in an epoch: the names say more
        saved(tmp_path / f"c_{step}.pt", {"model": state, "epoch": 1})
    assert import_run([tmp_path / "c_*.pt"], source=SOURCE, given=NANO).run.steps.tolist() == [100, 200]


@pytest.mark.parametrize("value", [-1, 1.5, True, "x", 1 << 62, torch.tensor(0.5), None, [3]], ids=repr)
def test_what_is_no_step_is_none(tmp_path, value):
    path = saved(tmp_path / "model.pt", {"model": drawn(NanoGPT(Config())).state_dict(), "step": value})
    assert import_run([path], source=SOURCE, given=NANO).run.title().endswith("step unknown")


def test_a_step_in_the_texts_of_safetensors(tmp_path):
    state = drawn(Untied()).state_dict()
    for name, notes in (("a", {"step": "40"}), ("b", {"global_step": "7", "epoch": "1"})):
        save_file(state, tmp_path / f"{name}.safetensors", notes)
    assert import_run([tmp_path], source=SOURCE, given=NANO).run.steps.tolist() == [7, 40]
    shutil.move(tmp_path / "a.safetensors", tmp_path / "renamed.pt")  # what it is decides, not its name
    assert import_run([tmp_path / "renamed.pt"], source=SOURCE, given=NANO).run.steps.tolist() == [40]


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("epoch=0-step=100.pt", "epoch=1-step=200.pt"), [100, 200]),
        (("run-1/iter7.pt", "run-1/iter30.pt"), [7, 30]),
        (("ckpt_500.pt",), [500]),
        (("runs/step_70/weights.pt",), [70]),
        (("checkpoint-500",), [500]),
        (("a/epoch3.ckpt",), [3]),
        (("gpt2.pt",), [None]),
        (("seed3/model.pt",), [None]),
    ],
)
def test_steps_by_names(names, steps):
    assert steps_of([Path(name) for name in names], [None] * len(names)) == steps


def test_a_folder_without_a_checkpoint_says_what_is_there(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    saved(tmp_path / "optimizer.pt", {})
    (tmp_path / "train.bin").write_bytes(b"12")
    with pytest.raises(RunFileError, match=r"holds no checkpoint: expected \.pt, \.pth, \.ckpt"):
        checkpoints([tmp_path])
