"""What must not matter: the names of states, and whether steps are probed together or alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_by_hand import assert_equal, relabelled
from probing_cases import RAW_LOG, SHAPES, claims_of, random_run, run_of, subject_of

from mechmarkov.models import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probes import alignment, attention, behaviour
from mechmarkov.probing import Subject
from mechmarkov.probing.score import Score
from mechmarkov.report.words.sentences import sentences
from mechmarkov.runs.run import Run
from mechmarkov.sources import Circle

PROBES = (behaviour.probe, attention.probe, alignment.probe)
FLAT = ("one token of context", "two tokens of context", "window of itself alone")


def scores_of(subject: Subject) -> dict[str, Score]:
    return {
        f"{probe.name}.{name}": score
        for probe in PROBES
        for name, score in probe.scores(probe.measure(subject), None).items()
    }


def both(run: Run, new: list[int]) -> tuple[dict[str, Score], dict[str, Score]]:
    subject = subject_of(run, sequences=8)
    changed, batch = relabelled(run, subject.batch, new)
    steps = [int(step) for step in run.steps]
    moved = Subject(changed, changed.model(steps=steps), batch, axis="step", coordinates=steps)
    return scores_of(subject), scores_of(moved)


@settings(deadline=None, max_examples=6)
@given(
    new=st.permutations([0, 1, 2]),
    shape=st.sampled_from(["plain", "LN and MLP", "RMSPre, tied", "rotary", "window"]),
    objective=st.sampled_from([Objective(), RAW_LOG, Objective(kind="squared", read="last")]),
)
def test_renaming_states_changes_no_score(new, shape, objective):
    assert_equal(*both(random_run(shape, n_steps=2, objective=objective), new))


@settings(deadline=None, max_examples=3)
@given(new=st.permutations(range(5)))
def test_renaming_the_states_of_a_circle_changes_the_circulant_share_alone(new):
    source = Circle(n_states=5, p=0.3)
    config = random_run("plain", d_vocab=5).config
    generator = torch.Generator().manual_seed(1)
    decoder = HookedDecoder(config)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    assert_equal(*both(run_of(decoder, source=source), new), leave_out={"alignment.circulant_share"})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stack_probed_at_all_steps_is_each_step_probed_alone(shape, recorded):
    together = recorded(shape)
    measured = {probe: probe.measure(together) for probe in PROBES}
    for step in range(2):
        alone = recorded(shape, steps=(10 * step,))
        for probe, ours in measured.items():
            theirs = probe.measure(alone)
            for name, values in theirs.data_vars.items():
                if "step" not in values.dims:
                    continue
                of_stack = ours[name].isel(step=[step])
                assert np.allclose(of_stack, values, rtol=1e-4, atol=1e-5, equal_nan=True), (probe.name, name)


@pytest.mark.parametrize(
    ("shape", "objective"),
    [(shape, Objective()) for shape in SHAPES]
    + [(shape, RAW_LOG) for shape in ("plain", "Llama", *FLAT[1:])],
    ids=lambda value: "query" if value == RAW_LOG else "next token" if value == Objective() else value,
)
def test_every_shape_gets_finite_scores_or_a_reason_and_sentences(shape, objective, recorded):
    subject = recorded(shape, objective)
    measured = {probe: probe.measure(subject) for probe in PROBES}
    scores = {
        f"{probe.name}.{name}": score
        for probe, data in measured.items()
        for name, score in probe.scores(data, None).items()
    }
    assert len(scores) >= 20
    for name, score in scores.items():
        if score.value is None:
            expected = {"alignment.kernel_slope"} if objective.query else set()
            if shape in FLAT:  # one real token to look at
                expected |= {f"attention.{score}" for score in ("position_share", "parent_head", "best_lag")}
            assert name in expected, (name, score.reason)
        elif not isinstance(score.value, str):
            assert np.isfinite(score.value)
    for probe, data in measured.items():
        told = sentences(claims_of(probe, data))
        assert told
        assert all(said.endswith(".") and "nan" not in said for said in told)
        assert len(probe.figures(data)) >= 2
