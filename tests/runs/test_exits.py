"""An exit of somebody's model is told as an error; one that a signal asks for ends the process."""

import functools
import os
import signal
import time
import warnings
from contextlib import contextmanager

import pytest
from loops import SOURCE, nanogpt_loop, same_weights
from public_codes import Config, NanoGPT

import mechmarkov as mm

pytestmark = pytest.mark.usefixtures("few_nulls")


class Guarded(NanoGPT):
    """A model whose guard ends the program where something else than its training calls it."""

    def forward(self, tokens, targets=None):
        if not self.training:
            raise SystemExit("diverged")
        return super().forward(tokens, targets)


class PreemptedError(Exception):
    """Raised by a handler of signals, so that a training saves and ends."""


def ends(number, frame):
    raise SystemExit(143)


def ends_with_an_error(*given):
    raise PreemptedError


class Handlers:
    def __call__(self, number, frame):
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(143)


HANDLERS = {
    "a function": ends,
    "an error": ends_with_an_error,
    "an object": Handlers(),
    "a part": functools.partial(lambda code, number, frame: ends(number, frame), 143),
}


@contextmanager
def handled_by(handler):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def a_signal(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_models_own_exit_stops_no_recording(tmp_path):
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        recorded = nanogpt_loop(loop, kind=Guarded)
    assert same_weights(recorded, nanogpt_loop(kind=Guarded))
    assert [str(one.message)[:26] for one in told] == ["step 0 is not kept: Guarde"]
    assert "exits with SystemExit('diverged')" in str(told[0].message)


def test_an_exit_where_weights_are_read_stops_no_recording(tmp_path):
    class Sharded(NanoGPT):
        def named_buffers(self, *_, **__):
            raise SystemExit(0)

    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    with pytest.warns(UserWarning, match=r"step 0 is not kept: .*its code exits with SystemExit\(0\)"):
        loop(0, Sharded(Config()))


def test_a_model_that_exits_is_one_error():
    with pytest.raises(ValueError, match="exits with SystemExit") as refused:
        mm.Run.from_model(Guarded(Config()), source=SOURCE)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_signal_ends_a_training_within_a_model(tmp_path, handler):
    model = NanoGPT(Config())
    model.register_forward_pre_hook(a_signal)
    loop = mm.Recorder(tmp_path / "run.pt", source=SOURCE)
    with handled_by(handler), pytest.raises((SystemExit, PreemptedError)):
        loop(0, model)


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_signal_ends_a_program_within_a_probe(handler):
    probe = mm.Probe(name="slow", question="?", cites="", measure=a_signal)
    with handled_by(handler), pytest.raises((SystemExit, PreemptedError)):
        mm.probe(mm.example("walk"), [probe], progress=False)


def test_a_time_limit_ends_a_probe_only():
    probe = mm.Probe(name="slow", question="?", cites="", measure=lambda _: time.sleep(60))
    result = mm.probe(mm.example("walk"), [probe], time_limit=0.5, progress=False)
    assert "took longer than the limit" in result.failed["slow"]


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_signal_ends_a_bench_within_a_method(handler):
    method = mm.bench.Method(name="mine", of="edges", claims=a_signal)
    with handled_by(handler), pytest.raises((SystemExit, PreemptedError)):
        mm.bench.check(method)


def test_a_log_of_ones_own_may_end_the_training(tmp_path):
    loop = mm.Recorder(
        tmp_path / "run.pt", source=SOURCE, probes=["behaviour"], log=lambda scores, step: exit(0)
    )
    with pytest.raises(SystemExit):
        loop(0, NanoGPT(Config()))
    assert mm.load(tmp_path / "run.pt").steps.tolist() == [0]
