"""One probe's faults stay its own: outcomes that cannot be kept, models it changed, time it took."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from probing_cases import RAW_LOG, random_run

import mechmarkov as mm
from mechmarkov.claims.claim import Claim
from mechmarkov.objectives import Objective
from mechmarkov.probing import Probe
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.recording import Quantity
from mechmarkov.probing.score import Score
from mechmarkov.utils.time_limit import time_limit

RUN = random_run()


def entropies(subject):
    p = subject.probabilities
    values = -(p * np.log(p)).sum(-1).mean((1, 2))
    return xr.Dataset({"entropy": (subject.axis, values)}, coords={subject.axis: subject.coordinates})


GOOD = Probe(
    "good",
    "How sure is it?",
    "-",
    applies=lambda subject: None,
    measure=entropies,
    scores=lambda data, null: {"entropy": Score(float(data["entropy"][-1]), "nats")},
    claims=lambda data, scores: [Claim(("model",), "measures", ("entropy",), 0.5, unit="nats")],
    figures=lambda data: [],
)


def measured(change):
    return replace(GOOD, name="bad", measure=lambda subject: change(entropies(subject)))


def scoring(value, unit="nats", **fields):
    return replace(GOOD, scores=lambda *_: {"s": Score(value, unit, **fields)})


def raising(error):
    def stop(*_):
        raise error

    return stop


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError


HEADS = Figure("Heads", "c", "attention", AttentionView(["a"], np.full((1, 1, 1), 0.5), ["L0H0", "L0H1"]))
FAULTS = {
    "no data": (replace(GOOD, measure=lambda subject: None), "NoneType"),
    "no axis": (
        measured(lambda data: data.isel({next(iter(data.dims)): 0})),
        "expected one named 'step' of 1",
    ),
    "a slash": (measured(lambda data: data.rename(entropy="a/b")), "'a/b', expected a text without '/'"),
    "a dict": (measured(lambda data: data.assign_attrs(about={"a": 1})), "attribute 'about' is a dict"),
    "objects": (measured(lambda data: data.assign(who=("x", [object()]))), "'who' holds objects"),
    "complex": (measured(lambda data: data * 1j), "complex128, expected numbers"),
    "scores": (replace(GOOD, scores=lambda data, null: {"entropy": "0.5"}), "score 'entropy' is a str"),
    "a value": (scoring([1.0]), "value is [1.0], expected a number"),
    "a null": (scoring(0.5, null=(0.1, "b", 0.3)), "null is (0.1, 'b', 0.3), expected 3 numbers"),
    "an interval": (scoring(0.5, interval=[0.1, 0.9]), "interval is [0.1, 0.9], expected 2 numbers"),
    "a unit": (scoring(0.5, unit="\ud800"), "ud800', expected a text"),
    "an integer of NetCDF": (measured(lambda data: data.assign_attrs(n=10**5000)), "attribute 'n' is a int"),
    "half a character": (measured(lambda data: data.rename(entropy="\ud800")), "expected a text without '/'"),
    "an error without words": (replace(GOOD, claims=raising(UnspeakableError())), "UnspeakableError"),
    "an error with escapes": (replace(GOOD, claims=raising(ValueError("\x1b[31m"))), "\\x1b[31m"),
    "a reason": (replace(GOOD, applies=lambda subject: ["no"]), "what applies returned is ['no'], expected"),
    "no claims": (replace(GOOD, claims=lambda *_: None), "NoneType"),
    "a claim": (replace(GOOD, claims=lambda *_: ["It is sure."]), "a claim is a str, expected a Claim"),
    "a tile": (replace(GOOD, headline=lambda claims: ["Sure."]), "a tile is a str, expected a Tile"),
    "a figure": (replace(GOOD, figures=lambda data: [1]), "a figure is a int, expected a Figure"),
    "heads": (replace(GOOD, figures=lambda data: [HEADS]), "expected (head 2, query 1, key 1)"),
    "its figures": (replace(GOOD, figures=lambda data: data["missing"]), "KeyError"),
    "no content": (
        replace(GOOD, figures=lambda data: [Figure("t", "c", "plotly", "text")]),
        "figure 't': its content is a str",
    ),
    "an exit": (replace(GOOD, measure=lambda subject: exit(0)), "SystemExit"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_probe_with_a_fault_fails_alone_and_all_files_are_written(fault, tmp_path):
    bad, words = FAULTS[fault]
    result = mm.probe(RUN, [replace(bad, name="bad"), GOOD], sequences=4)
    assert list(result) == ["good"]
    assert words in result.failed["bad"]
    result.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.nc", "summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"))["failed"] == result.failed
    assert "How sure is it?" in (tmp_path / "report.html").read_text("utf-8")


def change_weights(subject):
    with torch.no_grad():
        subject.decoder.blocks[0].attn.W_V.zero_()
    return subject.result("good")  # measured of the changed model, and kept for whoever asks next


def change_tokens(subject):
    subject.batch.tokens.zero_()
    return entropies(subject)


def leave_a_hook(subject):
    subject.decoder.add_hook("blocks.0.attn.hook_z", lambda z, hook: z * 0)
    return entropies(subject)


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        (change_weights, "blocks.0.attn.W_V"),
        (change_tokens, "tokens"),
        (leave_a_hook, "blocks.0.attn.hook_z"),
    ],
)
def test_a_probe_that_changes_the_models_is_told_and_changes_no_score(measure, name):
    bad = replace(GOOD, name="bad", measure=measure)
    clean = mm.probe(RUN, [GOOD], sequences=4)
    result = mm.probe(RUN, [bad, GOOD], sequences=4)
    assert f"changed {name} of the shared model" in result.failed["bad"]
    assert result["good"].scores == clean["good"].scores
    xr.testing.assert_identical(result["good"].null, clean["good"].null)


def test_a_probe_that_never_ends_is_ended():
    def endless(subject):
        while True:
            try:
                while True:
                    subject.decoder(subject.batch.tokens)
            except ValueError:
                pass

    bad = replace(GOOD, name="bad", measure=endless)
    result = mm.probe(RUN, [bad, GOOD], sequences=4, time_limit=0.3)
    assert result.failed["bad"].startswith("TimeoutError: took longer than the limit of 0.3 s")
    assert list(result) == ["good"]


def test_a_time_limit_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="time limit is 0 s, expected a positive number"), time_limit(0):
        pass


def test_a_quantity_that_cannot_be_recorded_fails_its_probe_alone():
    def begin(scope):
        raise RuntimeError("no such hook")

    broken = Quantity("broken", begin)
    bad = replace(GOOD, name="bad", records=(broken,), measure=lambda subject: subject.recorded(broken))
    result = mm.probe(RUN, [bad, GOOD], sequences=4)
    assert result.failed["bad"].startswith("RuntimeError: no such hook (test_contract.py, line ")
    assert result["good"].scores == mm.probe(RUN, [GOOD], sequences=4)["good"].scores


def test_outputs_that_are_not_finite_are_refused_before_any_probe():
    """Weights of 3e38 are finite numbers, and their products are not."""
    huge = replace(RUN, states={name: values.clone() for name, values in RUN.states.items()})
    huge.states["unembed.W_U"][-1] = 3e38
    with pytest.raises(ValueError, match="outputs at step 0 are not finite"):
        mm.probe(huge, [GOOD], sequences=4)


@pytest.mark.parametrize(
    ("objective", "most", "words"),
    [(Objective(), 2.0**24, "logits at step 0 reach 1.68e"), (RAW_LOG, 1e18, "outputs at step 0 reach 1e")],
)
def test_outputs_too_large_are_refused_before_probes(objective, most, words):
    run = random_run(objective=objective)
    run.states["unembed.W_U"].zero_()
    zero = xr.Dataset({"entropy": 0.0})
    blind = replace(
        GOOD,
        measure=lambda subject: zero.expand_dims({subject.axis: subject.coordinates}),
    )
    # The last float32 that is allowed, and the first that is not.
    last = np.float32(most) if np.float32(most) <= most else np.nextafter(np.float32(most), np.float32(0))
    for size, refused in ((last, False), (np.nextafter(last, np.float32(np.inf)), True)):
        run.states["unembed.b_U"].fill_(-float(size))
        if refused:
            with pytest.raises(ValueError, match=words):
                mm.probe(run, [GOOD], sequences=4)
        else:
            assert not mm.probe(run, [blind], sequences=4).failed


def test_a_limit_is_disarmed_wherever_its_alarm_comes():
    """In the block, before it, or while the timer is set or disarmed; an armed one ends what runs later."""
    before = signal.getsignal(signal.SIGALRM)
    caught = 0
    for microseconds in range(1, 2000):
        try:
            with time_limit(microseconds * 1e-6 / 20):
                pass
        except TimeoutError:
            caught += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is before
    assert caught > 0
