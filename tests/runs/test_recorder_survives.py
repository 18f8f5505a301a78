"""Nothing of a recorder stops a training: what goes wrong is told once, and what was recorded is there."""

import random
import re
import resource
import signal
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import transformers
from loops import SOURCE, hugging_face, nanogpt_loop, same_weights
from public_codes import Config, NanoGPT

import mechmarkov as mm
from mechmarkov.recorder import growing_file, recorder
from mechmarkov.runs import growth

pytestmark = pytest.mark.usefixtures("few_nulls")


class Unreadable(NanoGPT):
    """A model of one's own whose logits are not what its weights say."""

    def forward(self, tokens, targets=None):
        logits, loss = super().forward(tokens, targets)
        return 1.5 * logits, loss


@contextmanager
def full_disk(n_bytes: int):
    """No file can grow beyond so many bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def told_in(loop) -> tuple[object, list[str]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = loop()
    return result, [str(one.message) for one in told]


def test_a_model_that_cannot_be_converted_trains_to_the_same_bits_and_is_told_once(tmp_path):
    plain = nanogpt_loop(kind=Unreadable)
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE, at=[0, 4])
    recorded, told = told_in(lambda: nanogpt_loop(loop, kind=Unreadable))
    assert same_weights(recorded, plain)
    assert len(told) == 1
    assert told[0].startswith(
        "step 0 is not kept: Unreadable and its conversion disagree: logits differ by up"
    )
    assert 'given={"window": 8}' in told[0]
    assert told[0].endswith("tells it before a training (told once; the training goes on)")
    assert list(tmp_path.iterdir()) == []


def test_where_warnings_are_errors_the_training_goes_on_and_it_is_told_on_stderr(tmp_path, capsys):
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE, at=[0, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded = nanogpt_loop(loop, kind=Unreadable)
    assert same_weights(recorded, nanogpt_loop(kind=Unreadable))
    assert capsys.readouterr().err.count("warning: step 0 is not kept: Unreadable and") == 1


def test_a_forward_pass_that_warns_where_warnings_are_errors_is_recorded(tmp_path):
    class Warns(NanoGPT):
        def forward(self, tokens, targets=None):
            warnings.warn("an old option", FutureWarning, stacklevel=2)
            return super().forward(tokens, targets)

    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    assert loop.finish(0, Warns(Config())).steps.tolist() == [0]


def test_a_standard_error_that_is_closed_stops_nothing(tmp_path, monkeypatch):
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    monkeypatch.setattr(sys, "stderr", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(0, "model")


def test_a_full_disk_keeps_the_checkpoints_in_memory_and_writes_them_when_it_has_room(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    loop = mm.Recorder(path, source=SOURCE, every=1)
    loop(0, model)

    def crowded():
        with full_disk(100):
            for step in (1, 2, 3):
                loop(step, model)

    _, told = told_in(crowded)
    assert len(told) == 1
    assert told[0].startswith("step 1 is not on the disk: ")
    assert "it is in memory, and is written with the next one if it can be" in told[0]
    assert mm.load(path).steps.tolist() == [0]
    loop(4, model)
    assert mm.load(path).steps.tolist() == [0, 1, 2, 3, 4]
    assert loop.finish(5, model).steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert [found.name for found in tmp_path.iterdir()] == ["run.pt"]


def test_a_disk_that_stays_full_leaves_what_was_on_it_and_finish_returns_the_rest(tmp_path):
    path = tmp_path / "run.pt"
    plain = nanogpt_loop()
    loop = mm.Recorder(path, source=SOURCE, at=[0, 3])
    run = None

    def crowded():
        nonlocal run
        model = nanogpt_loop(loop, finish=False, crowd=lambda step: step == 2 and limit.__enter__())
        run = loop.finish(9, model)
        return model

    limit = full_disk(100)
    try:
        recorded, told = told_in(crowded)
    finally:
        limit.__exit__(None, None, None)
    assert same_weights(recorded, plain)
    assert run.steps.tolist() == [0, 3, 9]
    assert torch.equal(run.model().state_dict()["embed.W_E"], recorded.transformer["wte"].weight)
    assert [line.split(":")[0] for line in told] == ["step 3 is not on the disk", f"{path} is not one file"]
    assert "the run that `finish` returns has all: save it elsewhere" in told[1]
    assert mm.load(path).steps.tolist() == [0]
    run.save(tmp_path / "elsewhere.pt")


def test_a_full_disk_beyond_what_memory_holds_loses_what_it_cannot_keep_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(growing_file, "MAX_UNMERGED_BYTES", 0)
    loop, model = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=1), NanoGPT(Config())
    loop(0, model)
    with full_disk(100), pytest.warns(UserWarning, match="step 1 is not on the disk"):
        loop(1, model)
    assert loop.finish(2, model).steps.tolist() == [0, 2]


def test_a_folder_that_can_no_longer_be_written(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    loop = mm.Recorder(path, source=SOURCE, every=1)
    growth.folder_of(path).write_text("a file where the folder was to be")
    with pytest.warns(UserWarning, match="step 0 is not on the disk: .*File exists"):
        loop(0, model)
    growth.folder_of(path).unlink()
    assert loop.finish(1, model).steps.tolist() == [0, 1]


def test_an_output_folder_that_is_cleared_meanwhile_costs_what_was_in_it(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    loop = mm.Recorder(path, source=SOURCE, every=1)
    loop(0, model)
    path.unlink()
    _, told = told_in(lambda: [loop(step, model) for step in (1, 2, 3)])
    assert len(told) == 1
    run, _ = told_in(lambda: loop.finish(4, model))
    assert run.steps.tolist() == [1, 2, 3, 4]
    assert mm.load(path).steps.tolist() == [1, 2, 3, 4]


def test_a_folder_in_a_checkpoints_place_loses_none(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    loop = mm.Recorder(path, source=SOURCE, every=1)
    loop(0, model)
    growth.checkpoint_path(path, 1).mkdir(parents=True)
    _, told = told_in(lambda: [loop(step, model) for step in (1, 2)])
    assert len(told) == 1
    assert re.match("step 1 is not on the disk: .*step-1.pt: .*it is a directory", told[0])
    run, _ = told_in(lambda: loop.finish(3, model))
    assert run.steps.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["probe", "log"])
def test_a_probe_or_a_log_that_fails_is_told_once(tmp_path, monkeypatch, where):
    def fail(*_, **__):
        raise ConnectionError("no network")

    if where == "probe":
        monkeypatch.setattr(recorder, "probe", fail)
    log = fail if where == "log" else lambda *_, **__: None
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE, at=[0, 4], probes=["attention"], log=log)
    recorded, told = told_in(lambda: nanogpt_loop(loop))
    assert same_weights(recorded, nanogpt_loop())
    assert len(told) == 1
    assert told[0].startswith("step 0 has no scores: ConnectionError: no network; without probes= and log=")
    assert mm.load(tmp_path / "run.pt").steps.tolist() == [0, 4, 9]


def test_a_probe_that_does_not_apply_is_told_once_with_its_reason(tmp_path):
    scores = {"probes": ["graph"], "log": lambda *_, **__: None}
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE, at=[0, 4], **scores)
    _, told = told_in(lambda: nanogpt_loop(loop))
    assert len(told) == 1
    assert told[0].startswith("step 0: no scores of 'graph': ")
    assert "leave 'graph' out of probes, or put it to the finished run" in told[0]


def test_numbers_that_a_log_draws_are_not_missing_in_the_training(tmp_path):
    def log(*_, **__):
        return torch.rand(3), random.random(), np.random.random()

    random.seed(0)
    np.random.seed(0)
    expected = random.random(), float(np.random.random())
    random.seed(0)
    np.random.seed(0)
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE, at=[0, 4], probes=["attention"], log=log)
    assert same_weights(nanogpt_loop(loop), nanogpt_loop())
    assert (random.random(), float(np.random.random())) == expected


def test_a_trainer_whose_model_cannot_be_converted_trains_and_saves(tmp_path):
    class Louder(transformers.GPT2LMHeadModel):
        def forward(self, input_ids=None, labels=None, **options):
            output = super().forward(input_ids, labels=labels, **options)
            output.logits = 1.5 * output.logits
            return output

    plain = hugging_face(tmp_path / "plain", kind=Louder)
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    callbacks = [loop.for_transformers()]
    recorded, told = told_in(lambda: hugging_face(tmp_path / "recorded", callbacks, kind=Louder))
    assert same_weights(recorded, plain)
    assert len([line for line in told if "Louder and its conversion disagree" in line]) == 1


def test_a_loop_that_calls_at_every_micro_step_keeps_each_step_once(tmp_path):
    loop, model = mm.Recorder(tmp_path / "run.pt", source=SOURCE), NanoGPT(Config())
    _, told = told_in(lambda: [loop(step, model) for step in (0, 0, 1, 1, 2, 2)])
    assert len(told) == 1
    assert "a step is the number of updates over the whole training, in each call above the last" in told[0]
    assert loop.finish(2, model).steps.tolist() == [0, 1, 2]


def test_a_finish_behind_the_last_call_returns_what_there_is(tmp_path):
    loop, model = mm.Recorder(tmp_path / "run.pt", source=SOURCE), NanoGPT(Config())
    loop(0, model)
    loop(1, model)
    with pytest.warns(UserWarning, match="step 0 is not kept: step is 0, expected at least 1, the last one"):
        assert loop.finish(0, model).steps.tolist() == [0, 1]
