"""`mm.Recorder` in loops that are not ours: nanoGPT's and transformers' Trainer."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from loops import SOURCE, hugging_face, nanogpt_loop, same_weights
from public_codes import Config, NanoGPT

import mechmarkov as mm
from mechmarkov.recorder.scores import headline_numbers
from mechmarkov.runs import growth, loading

pytestmark = pytest.mark.usefixtures("few_nulls")


def numbers_drawn_next():
    return torch.rand(3).tolist(), random.random(), float(np.random.random())


WITH_SCORES = {"probes": ["behaviour"], "log": lambda *_, **__: None}


@pytest.mark.parametrize("options", [{}, WITH_SCORES])
def test_a_recorded_nanogpt_ends_with_the_same_bits(tmp_path, options):
    random.seed(0)
    np.random.seed(0)
    plain = nanogpt_loop()
    expected = numbers_drawn_next()
    random.seed(0)
    np.random.seed(0)
    recorded = nanogpt_loop(mm.Recorder(tmp_path / "run.pt", source=SOURCE, **options))
    assert numbers_drawn_next() == expected
    assert same_weights(recorded, plain)
    assert recorded.training
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 1, 2, 4, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    assert run.provenance["logit_difference"] <= 1e-5
    tokens = SOURCE.sample(4, 7, generator=torch.Generator().manual_seed(3))
    logits = plain.eval()(tokens, tokens)[0]
    torch.testing.assert_close(run.model()(tokens), logits, rtol=1e-5, atol=1e-5)


def test_a_recorded_trainer_ends_with_the_same_bits_and_logs_scores(tmp_path):
    plain = hugging_face(tmp_path / "plain")
    logged = []
    recorder = mm.Recorder(
        tmp_path / "run.pt",
        source=SOURCE,
        at=[0, 3],
        probes=["attention"],
        log=lambda scores, step: logged.append((step, scores)),
    )
    recorded = hugging_face(tmp_path / "recorded", [recorder.for_transformers()])
    assert same_weights(recorded, plain)
    run = mm.load(tmp_path / "run.pt")
    assert run.steps.tolist() == [0, 3, 6]
    assert [step for step, _ in logged] == [0, 3, 6]
    expected = mm.probe(run, ["attention"])["attention"].scores["parent_score"].value
    assert logged[-1][1]["mechmarkov/parent_score"] == pytest.approx(expected, abs=1e-12)
    assert "mechmarkov/parent_head" not in logged[-1][1]  # a name is no number
    assert recorded.transformer.wte.weight.requires_grad


def test_scores_of_one_name_carry_their_probe():
    result = mm.probe(mm.example("walk"), ["attention", "alignment"])
    found = headline_numbers(result)
    lag = result["alignment"].scores["best_lag"].value
    assert found["mechmarkov/alignment/best_lag"] == lag
    assert found["mechmarkov/attention/best_lag"] == result["attention"].scores["best_lag"].value
    assert "mechmarkov/best_lag" not in found


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"at": "log2"}, [0, 1, 2, 4, 8, 9]),
        ({"at": [7, 3, 3]}, [3, 7, 9]),
        ({"every": 4}, [0, 4, 8, 9]),
    ],
)
def test_schedules(tmp_path, options, kept):
    nanogpt_loop(mm.Recorder(tmp_path / "run.pt", source=SOURCE, **options))
    assert mm.load(tmp_path / "run.pt").steps.tolist() == kept


def test_a_file_grows_and_is_whole_at_every_step(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    recorder = mm.Recorder(path, source=SOURCE, every=1)
    written = 0
    for step in range(9):
        before = path.stat().st_mtime_ns if path.exists() else 0
        recorder(step, model)
        written += path.stat().st_mtime_ns != before
        run = mm.load(path)
        assert run.steps.tolist() == list(range(step + 1))
    assert written == 3  # with 1, 3 and 7 checkpoints: the others wait in files of their own
    assert recorder.finish(8, model).steps.tolist() == list(range(9))


def test_checkpoints_that_memory_does_not_hold_are_merged(tmp_path, monkeypatch):
    """The same file, whether none, only the first or all of those that wait are still in memory."""

    def recorded(name):
        nanogpt_loop(mm.Recorder(tmp_path / name, source=SOURCE, every=1), steps=7)
        return mm.load(tmp_path / name)

    expected = recorded("in memory.pt")
    of_one = 4 * sum(value[0].numel() for value in expected.states.values())
    for checkpoints in (0, 1.5):
        monkeypatch.setattr("mechmarkov.recorder.growing_file.MAX_UNMERGED_BYTES", checkpoints * of_one)
        run = recorded(f"{checkpoints} from files.pt")
        assert run.steps.tolist() == expected.steps.tolist() == list(range(8))
        assert run.states.keys() == expected.states.keys()
        assert all(torch.equal(value, expected.states[name]) for name, value in run.states.items())


def test_resuming_goes_on_with_the_file(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    first = mm.Recorder(path, source=SOURCE, every=1)
    for step in range(3):
        first(step, model)
    again = mm.Recorder(path, source=SOURCE, every=1, resume=True)
    again(3, model)
    assert mm.load(path).steps.tolist() == [0, 1, 2, 3]
    told = (
        r"^a call at step 3 is left out: step is 3, .* above 3, the last one; resume='drop_later' drops what"
    )
    with pytest.warns(UserWarning, match=told):
        mm.Recorder(path, source=SOURCE, resume=True)(3, model)
    with pytest.raises(ValueError, match=r"^source is Circle\(.*, but .*run.pt has .*: expected the same$"):
        mm.Recorder(path, source=mm.Circle(n_states=5, p=0.4), resume=True)


@pytest.mark.parametrize("first", [0, 2, 3, 5])
def test_a_loop_that_starts_again_earlier_drops_what_is_later(tmp_path, first):
    path, old, new = tmp_path / "run.pt", NanoGPT(Config()), NanoGPT(Config())
    recorder = mm.Recorder(path, source=SOURCE, every=1)
    for step in range(5):
        recorder(step, old)
    again = mm.Recorder(path, source=SOURCE, every=1, resume="drop_later")
    assert mm.load(path).steps.tolist() == [0, 1, 2, 3, 4]  # until the loop says where it is
    again(first, new)
    run = mm.load(path)
    assert run.steps.tolist() == list(range(first + 1))
    expected = [old.transformer.wte.weight] * first + [new.transformer.wte.weight]
    assert torch.equal(run.states["embed.W_E"], torch.stack(expected).detach())
    with pytest.warns(UserWarning, match=rf"step is {first}, expected above {first}, the last one; a step"):
        again(first, new)  # only the first call may go back
    assert again.finish(first + 1, new).steps.tolist() == list(range(first + 2))


def test_a_loop_that_goes_back_and_leaves_a_step_out_keeps_the_next(tmp_path):
    path, model = tmp_path / "run.pt", NanoGPT(Config())
    recorder = mm.Recorder(path, source=SOURCE, at=[0, 4, 5])
    for step in range(6):
        recorder(step, model)
    recorder.finish(5, model)
    with pytest.warns(UserWarning, match="step 2 was to be kept, but after 0 the next call is at 4"):
        mm.Recorder(path, source=SOURCE, every=2, resume="drop_later")(4, model)
    assert mm.load(path).steps.tolist() == [0, 4]


def test_checkpoints_of_another_recording_are_refused(tmp_path):
    model = NanoGPT(Config())
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, at=[0, 1])
    for step in range(2):
        recorder(step, model)
    assert list(growth.waiting(tmp_path / "run.pt")) == [1]
    mm.Run.from_model(model, source=SOURCE).save(tmp_path / "run.pt")
    with pytest.raises(
        ValueError, match=r"step-1\.pt: provenance.recording is '\w+', but the run file next to"
    ):
        mm.load(tmp_path / "run.pt")


WRONG_STEPS = [
    ([3, 3], {}, "a call at step 3 is left out: step is 3, expected above 3, the last one", []),
    ([3, 2], {}, "a call at step 2 is left out: step is 2, expected above 3, the last one", []),
    (
        [0, 1, 3],
        {},
        "step 2 was to be kept, but after 1 the next call is at 3, kept instead; every=2",
        [0, 1, 3],
    ),
    ([0, 250], {}, "step 1 was .*, but after 0 the next call is at 250, kept instead; every=250", [0, 250]),
    ([0, 7], {"at": [5]}, "step 5 was to be kept, but after 0 the next call is at 7, kept instead", [7]),
    ([-1], {}, "a call at step -1 is left out: step is -1, expected an integer of at least 0", []),
    ([1.0], {}, "a call at step 1.0 is left out: step is 1.0, expected an integer of at least 0", []),
]


@pytest.mark.parametrize(("steps", "options", "message", "kept"), WRONG_STEPS)
def test_loops_that_repeat_go_back_or_skip_are_told_so_and_go_on(tmp_path, steps, options, message, kept):
    model = NanoGPT(Config())
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, **options)
    for step in steps[:-1]:
        recorder(step, model)
    with pytest.warns(UserWarning, match=rf"^{message}.*\(told once; the training goes on\)$"):
        recorder(steps[-1], model)
    assert not kept or mm.load(tmp_path / "run.pt").steps.tolist() == kept


REFUSED = [
    ({"at": "log10"}, "at is 'log10', expected 'log2' or a list of steps"),
    ({"at": 50}, "at is 50, expected 'log2' or a list of steps"),
    ({"at": []}, "at is empty, expected 'log2' or a list of steps"),
    ({"at": [1], "every": 2}, r"at is \[1\] and every is 2, expected one of the two"),
    ({"every": 0}, "every is 0, expected an integer of at least 1"),
    ({"probes": "attention"}, "probes is 'attention', expected a list of names"),
    ({"probes": ["attentoin"], "log": print}, r"probes holds 'attentoin', expected some of \w+, "),
    ({"probes": ["attention"]}, r"probes is \['attention'\], but log is None: expected both"),
    ({"resume": "later"}, "resume is 'later', expected True, False or 'drop_later'"),
    ({"probes": ["attention"], "log": "wandb"}, "log is 'wandb', expected a function such as wandb.log"),
    ({"source": "input.txt"}, r"source is a str, expected a source such as mm\.Circle\("),
    ({"probes": ["attention"], "log": print}, r"log is <.*print>, expected a .* as log\(scores, step=8\)"),
    ({"log": print}, "log is given, but probes is empty: expected both"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_arguments_that_make_no_sense(tmp_path, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        mm.Recorder(tmp_path / "run.pt", **({"source": SOURCE} | options))
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_model_of_a_known_kind(tmp_path):
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    bert = transformers.BertConfig(vocab_size=5, **dict.fromkeys(sizes, 1))
    for step, model, message in (
        (0, "model", "step 0 is not kept: model is 'model', expected a torch module with parameters"),
        (0, torch.nn.Identity(), r"step 0 is not kept: model is Identity\(\), expected a torch module"),
        (0, transformers.BertForMaskedLM(bert), "step 0 .*: config.model_type is 'bert', expected gpt2, "),
        (
            NanoGPT(Config()),
            0,
            r"a call at step NanoGPT\(.* is left out: step is .*, expected an integer of at",
        ),
    ):
        recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
        with pytest.warns(UserWarning, match=f"^{message}") as told:
            recorder(step, model)
        assert len(told) == 1
        assert "\n" not in str(told[0].message)
        recorder(1, model)  # it is told once
        assert recorder.finish(1, model) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_made(tmp_path):
    path = tmp_path / "new" / "er" / "run.pt"
    assert mm.Recorder(path, source=SOURCE).finish(0, NanoGPT(Config())).steps.tolist() == [0]
    assert mm.load(path).n_steps == 1


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "run.pt").write_text("precious", "utf-8")
    with pytest.raises(ValueError, match=r"run.pt, which exists: expected a new file, or resume=True$"):
        mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    assert (tmp_path / "run.pt").read_text("utf-8") == "precious"


def test_tokens_that_are_not_the_sources_states(tmp_path):
    recorder = mm.Recorder(tmp_path / "run.pt", source=mm.Circle(n_states=4, p=0.3))
    with pytest.warns(
        UserWarning, match=r"model\.d_vocab is 5, but the source has 4 states: say which token"
    ):
        recorder(0, NanoGPT(Config()))
    assert list(tmp_path.rglob("*.pt")) == []
    tokens = {state: state + 1 for state in range(4)}
    recorder = mm.Recorder(tmp_path / "mapped.pt", source=mm.Circle(n_states=4, p=0.3), tokens=tokens)
    assert recorder.finish(0, NanoGPT(Config())).provenance["tokens"] == [1, 2, 3, 4]


def test_a_model_of_another_shape_is_refused(tmp_path):
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=1)
    recorder(0, NanoGPT(Config()))
    with pytest.warns(UserWarning, match=r"model\.n_layers is 1, expected 2 as at the checkpoints before"):
        recorder(1, NanoGPT(Config(n_layer=1)))
    assert recorder.finish(1, NanoGPT(Config())).steps.tolist() == [0, 1]


LOOP = """
import sys
import mechmarkov as mm
config = mm.DecoderConfig(n_layers=1, d_model=64, n_ctx=6, d_head=16, d_vocab=5, attn_only=True)
recorder = mm.Recorder(sys.argv[1], source=mm.Circle(n_states=5, p=0.3), every=1)
for step in range(100_000):
    recorder(step, mm.HookedDecoder(config))
    print(step, flush=True)
"""


@pytest.mark.system
def test_a_kill_loses_at_most_the_checkpoint_that_was_being_written(tmp_path):
    rng = random.Random(0)
    for attempt in range(3):
        path = tmp_path / f"run{attempt}.pt"
        command = [sys.executable, "-c", textwrap.dedent(LOOP), str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = [int(process.stdout.readline()) for _ in range(rng.randint(3, 16))]
        os.kill(process.pid, signal.SIGKILL)
        said += [int(line) for line in process.communicate()[0].splitlines()]
        assert process.returncode == -signal.SIGKILL
        steps = mm.load(path).steps.tolist()
        assert steps in (list(range(said[-1] + 1)), list(range(said[-1] + 2)))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_file_that_is_merged_while_it_is_read_is_whole(tmp_path, monkeypatch, before):
    model, path, real, read = NanoGPT(Config()), tmp_path / "run.pt", loading.load_file, []
    recorder = mm.Recorder(path, source=SOURCE, every=1)
    for step in range(5):
        recorder(step, model)
    assert list(growth.waiting(path)) == [3, 4]

    def load_file(path):
        read.append(path)
        if len(read) == before + 1:
            recorder.finish(4, model)
        return real(path)

    monkeypatch.setattr(loading, "load_file", load_file)
    assert mm.load(path).steps.tolist() == [0, 1, 2, 3, 4]


def test_a_kill_between_merging_and_removing_changes_nothing(tmp_path, monkeypatch):
    model, path = NanoGPT(Config()), Path(tmp_path / "run.pt")
    recorder = mm.Recorder(path, source=SOURCE, every=1)
    for step in range(2):
        recorder(step, model)

    def remove(path):
        raise KeyboardInterrupt  # the process ends at this line

    monkeypatch.setattr(growth, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        recorder.finish(1, model)
    monkeypatch.undo()
    assert path.exists()
    assert growth.waiting(path)
    assert mm.load(path).steps.tolist() == [0, 1]
    mm.Recorder(path, source=SOURCE, every=1, resume=True)(2, model)
    assert mm.load(path).steps.tolist() == [0, 1, 2]
