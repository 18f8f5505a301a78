"""What stands before the names of weights, and files with more than one model or with a history of one."""

import argparse
import collections
import datetime
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from public_codes import SOURCE, Config, NanoGPT, drawn
from public_codes import tokens as sequences
from run_files import saved
from torch import nn

from mechmarkov.cli import main
from mechmarkov.runs import load
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

GIVEN = {"act_fn": "gelu", "n_heads": 2}
STATE = drawn(NanoGPT(Config())).state_dict()
OTHER = {name: 2 * value for name, value in STATE.items()}
BIAS = "blocks.0.attn.b_O"


def below(prefix: str, state: dict = STATE) -> dict:
    return {prefix + name: value for name, value in state.items()}


def imported(tmp_path: Path, data: object, **options: object):
    return import_run([saved(tmp_path / "model.pt", data)], source=SOURCE, given=GIVEN, **options)


def refusal(tmp_path: Path, data: object, **options: object) -> str:
    with pytest.raises(RunFileError) as error:
        imported(tmp_path, data, **options)
    (line,) = str(error.value).splitlines()
    return line


def is_of(run, state: dict, member: int = -1) -> bool:
    return torch.equal(run.states[BIAS][member], state["transformer.h.0.attn.c_proj.bias"])


PREFIXES = (
    "model.", "net.", "model._orig_mod.", "_forward_module.", "ema_model.", "module.model.", "a.b.c.module.",
    "_forward_module.module._orig_mod.model.", "transformer.",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_any_common_prefix_is_taken_off_and_told(tmp_path, prefix):
    # lightning 2.6.6, trainer/connectors/checkpoint_connector.py, lines 400-430 (`dump_checkpoint`)
    checkpoint = {
        "epoch": 1,
        "global_step": 400,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": below(prefix),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 2}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(3)}}}],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 1e-3},
    }
    result = imported(tmp_path, checkpoint)
    assert result.run.steps.tolist() == [400]
    assert is_of(result.run, STATE)
    assert f"all names begin with {prefix}: taken off" in result.notes


def test_a_model_without_a_prefix_is_told_of_none(tmp_path):
    assert not any("begin with" in note or "wrappers" in note for note in imported(tmp_path, STATE).notes)


def test_parts_that_wrappers_put_into_names(tmp_path):
    """A block compiled and one checkpointed, and FSDP around both.

    torch 2.13: torch/_dynamo/eval_frame.py (`OptimizedModule`), torch/distributed/fsdp/_common_utils.py
    (`FSDP_WRAPPED_MODULE`), torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py.
    """
    model = drawn(NanoGPT(Config()))
    state = {
        f"_fsdp_wrapped_module.{name}".replace("h.0.", "h.0._orig_mod.").replace(
            "h.1.", "h.1._checkpoint_wrapped_module."
        ): value
        for name, value in model.state_dict().items()
    }
    assert "_fsdp_wrapped_module.transformer.h.0._orig_mod.attn.c_attn.weight" in state
    result = imported(tmp_path, state)
    logits = model.eval()(sequences(), sequences())[0].detach()
    torch.testing.assert_close(result.run.model()(sequences()), logits)
    assert "parts that wrappers put into names are taken out" in result.notes
    del state["_fsdp_wrapped_module.transformer.wpe.weight"]
    assert "without _fsdp_wrapped_module.transformer.wpe.weight" in refusal(tmp_path, state)


def test_what_lies_beside_the_model_is_left_out_and_told(tmp_path):
    """A weighted loss, a metric, and a counter of an average."""
    beside = {"loss_fn.weight": torch.ones(5), "accuracy.correct": torch.tensor(3)}
    beside["probe.weight"] = torch.ones(2, 8)
    result = imported(tmp_path, {"state_dict": {**below("net."), **beside}})
    left_out = "left out, not weights of the model: loss_fn.weight, accuracy.correct, probe.weight"
    assert left_out in result.notes
    average = torch.optim.swa_utils.AveragedModel(drawn(NanoGPT(Config())))
    result = imported(tmp_path, average.state_dict())
    assert "left out, not weights of the model: n_averaged" in result.notes
    result = imported(tmp_path, {**STATE, "num_updates": torch.tensor(3)})
    assert "left out, not weights of the model: num_updates" in result.notes


def test_an_unembedding_one_level_above_belongs_to_the_model(tmp_path):
    """A module of one's own around a GPT-2 without its head: `self.gpt` and `self.lm_head`."""
    inner = {name.removeprefix("transformer."): value for name, value in STATE.items()}
    head = {"lm_head.weight": inner.pop("lm_head.weight") + 1, "lm_head.bias": torch.ones(5)}
    for prefix in ("", "net."):
        data = {**below(f"{prefix}gpt.", inner), **below(prefix, head), "loss.weight": torch.ones(5)}
        result = imported(tmp_path, {"state_dict": data})
        assert torch.equal(result.run.states["unembed.W_U"][0], head["lm_head.weight"].T)
        assert torch.equal(result.run.states["unembed.b_U"][0], head["lm_head.bias"])
        assert "left out, not weights of the model: loss.weight" in result.notes
        assert not any("wrappers" in note for note in result.notes)


def test_a_head_beside_the_model_is_not_taken_for_a_tied_one(tmp_path):
    bare = {name: value for name, value in below("gpt.").items() if "lm_head" not in name}
    data = {**bare, "head.weight": STATE["lm_head.weight"]}
    line = refusal(tmp_path, data)
    assert '(gpt.…) has no unembedding, and "head.weight" next to it may be that' in line
    assert line.endswith("--without head.weight")
    assert imported(tmp_path, data, without=["head.weight"]).run.provenance["assumed"]["tied"] is True


def test_weights_that_the_model_does_not_use(tmp_path):
    data = {**STATE, "probe.weight": torch.ones(2, 8), "probe.bias": torch.ones(2), "alpha": torch.ones(1)}
    assert "--without probe.weight, else" in refusal(tmp_path, data)
    result = imported(tmp_path, data, without=["probe", "alpha"])
    assert "left out, not weights of the model: probe.weight, probe.bias, alpha" in result.notes
    assert "--without is 'beta', but no weight is called so" in refusal(tmp_path, data, without=["beta"])
    with pytest.raises(TypeError, match=r"without is 'probe', expected a list of names: \['probe'\]"):
        imported(tmp_path, data, without="probe")


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"model": STATE, "ema": OTHER}, ("model", "ema")),
        ({"state_dict": {**below("model."), **below("ema_model.module.", OTHER)}}, ("model", "ema_model")),
        ({**STATE, **below("ema.", OTHER)}, (".", "ema")),
        ({"state": {"net": STATE, "average": {"shadow": OTHER}}}, ("net", "average")),
        ([STATE, {"x": 1}, OTHER], ("[0]", "[2]")),
    ],
    ids=["two dicts", "one dict", "one without a prefix", "deeper", "a list of other things too"],
)
def test_of_two_models_one_is_chosen(tmp_path, data, names):
    line = refusal(tmp_path, data)
    assert "it holds 2 models, " in line
    assert "in Python" in line
    for name, state in zip(names, (STATE, OTHER), strict=True):
        assert name in line
        result = imported(tmp_path, data, weights=name)
        assert is_of(result.run, state)
        assert any(note.startswith("of 2 models in the file: ") for note in result.notes)
    assert "--weights is 'x', expected one of" in refusal(tmp_path, data, weights="x")


def test_the_command_that_the_message_shows(tmp_path, capsys):
    path = saved(tmp_path / "both.pt", {"model": STATE, "ema": OTHER})
    options = ["--source", SOURCE.model_dump_json(), "--set", "act_fn=gelu", "--set", "n_heads=2"]
    command = ["import", str(path), *options, "--out", str(tmp_path / "run.pt")]
    with pytest.raises(SystemExit) as end:
        main(command)
    line = capsys.readouterr().err
    assert end.value.code == 2
    assert line.count("\n") == 1
    assert "choose with --weights model or --weights ema" in line
    assert not (tmp_path / "run.pt").exists()
    main([*command, "--weights", "ema"])
    assert is_of(load(tmp_path / "run.pt"), OTHER)


def test_one_model_needs_no_choice(tmp_path):
    assert is_of(imported(tmp_path, {"state_dict": STATE, "model": STATE}).run, STATE)  # the same, twice
    assert is_of(imported(tmp_path, {"model": STATE}, weights="model").run, STATE)
    line = refusal(tmp_path, {"model": STATE}, weights="ema")
    assert "--weights is 'ema', but it holds one model" in line


HISTORIES = {
    "a list and its epochs": {"state_dicts": [STATE, OTHER], "epochs": [0, 100]},
    "a list and a tensor of steps": {"weights": [STATE, OTHER], "steps": torch.tensor([0, 100])},
    "a list of checkpoints": [{"step": 0, "model": STATE}, {"step": torch.tensor(100), "model": OTHER}],
    "a tuple": ({"iter": 0, "net": {"sd": STATE}}, {"iter": 100, "net": {"sd": OTHER}}),
    "a dict by step": {"checkpoints": {0: STATE, 100: OTHER}, "lr": 0.1},
    "a dict by name": {"step_0": STATE, "step_100": OTHER, "config": {"lr": 0.1}},
    "a dict by text": {"history": {"100": OTHER, "0": STATE}},
    "the same steps": {"a": [STATE, OTHER], "iters": (0, 100)},
}


@pytest.mark.parametrize("kind", HISTORIES)
def test_a_history_becomes_steps(tmp_path, kind):
    run = imported(tmp_path, HISTORIES[kind]).run
    assert run.steps.tolist() == [0, 100]
    assert is_of(run, STATE, 0)
    assert is_of(run, OTHER, 1)


def test_a_history_that_says_no_steps_is_numbered(tmp_path):
    result = imported(tmp_path, {"history": [STATE, STATE, OTHER]})
    assert result.run.steps.tolist() == [0, 1, 2]
    assert "no training step is said: they stand as steps 0, 1, 2, … in their order" in result.notes
    assert imported(tmp_path, {"history": [STATE, OTHER], "steps": [1, 2, 3]}).run.steps.tolist() == [0, 1]


def test_a_history_beside_a_model_is_one_of_two(tmp_path):
    data = {"history": [STATE, OTHER], "best": {**STATE}}
    assert "it holds 2 models, history and best" in refusal(tmp_path, data)
    assert imported(tmp_path, data, weights="history").run.n_steps == 2
    assert imported(tmp_path, data, weights="best").run.n_steps == 1


def test_seeds_are_no_history(tmp_path):
    assert "it holds 2 models, seed0 and seed1" in refusal(tmp_path, {"seed0": STATE, "seed1": OTHER})
    assert "it holds 2 models" in refusal(tmp_path, {"step_1": STATE, "last": OTHER})


def test_two_steps_alike_in_one_file_are_refused(tmp_path):
    line = refusal(tmp_path, [{"step": 3, "model": STATE}, {"step": 3, "model": OTHER}])
    assert "step 3 is also that of" in line


def test_a_structure_that_holds_itself_ends(tmp_path):
    inner: dict = {"model": STATE}
    inner["self"] = inner
    deep: object = STATE
    for _ in range(200):
        deep = {"a": deep}
    assert is_of(imported(tmp_path, inner).run, STATE)
    assert "its weights are called transformer" in refusal(tmp_path, {"a": deep})


@pytest.mark.timeout(20)
def test_shared_parts_are_walked_once(tmp_path):
    value: object = [OTHER, {"x": [1]}]
    for _ in range(30):
        value = [value, value]
    assert is_of(imported(tmp_path, {"a": value, "model": STATE}, weights="model").run, STATE)


def test_what_training_code_keeps_beside_weights_is_passed_over(tmp_path):
    """A namespace, random states, arrays and paths are data; nothing of them is made."""
    data = {
        "model": STATE,
        "args": argparse.Namespace(n_head=2, out=Path("x"), betas=(0.9, 0.99)),
        "losses": np.arange(1000.0),
        "rng": {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()},
        "best": np.float64(0.5),
        "milestones": collections.Counter({30: 1}),
        "by_layer": collections.defaultdict(list, {"a": [1]}),
        "seen": {1, 2},
        "at": datetime.datetime(2024, 1, 2),
        "shape": torch.Size([2, 3]),
        "key": b"x" * 40,
        "it": 12,
    }
    path = saved(tmp_path / "model.pt", data)
    result = import_run([path], source=SOURCE, given={"act_fn": "gelu"})  # heads from the namespace
    assert (result.run.config.n_heads, result.run.steps.tolist()) == (2, [12])
    assert "settings in the file that are not read: args.out, args.betas" in result.notes


def test_a_whole_module_says_how_to_save_it(tmp_path):
    with pytest.raises(
        RunFileError, match=r"refers to .*Linear.*, torch\.save\(\{'model': model\.state_dict"
    ):
        imported(tmp_path, nn.Linear(2, 2))
    optimiser = torch.optim.AdamW(nn.Linear(2, 2).parameters()).state_dict()
    assert "is the state of an optimiser" in refusal(tmp_path, optimiser)
    assert "holds no weights by name" in refusal(tmp_path, {"loss": 0.3})
