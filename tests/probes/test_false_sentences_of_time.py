"""Runs and models set by hand that would make a sentence on time, or on where a program fails, false."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.dynamics.trajectory import first_time
from mechmarkov.probes.program import measure
from probing_cases import P3, probe_quickly, run_of
from test_dynamics import model, story

import mechmarkov as mm
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.probes import degeneracy, dynamics, program

LOG_P = torch.tensor(np.log(P3)).float()
TABLE, NOTHING = direct_table(LOG_P, 8), direct_table(torch.zeros(3, 3), 8)


def asked(models, probe, sequences=64, **run):
    steps = "all" if len(models) > 1 else "last"
    return probe_quickly(run_of(*models, **run), [probe], steps=steps, sequences=sequences)[probe]


def with_progress(data, error=0.0, **events):
    """The same data with other progress of some events."""
    data = data.copy(deep=True)
    for name, values in events.items():
        data["progress"].loc[{"event": name}] = values
        data["progress_error"].loc[{"event": name}] = error
    return data


@pytest.fixture(scope="module")
def still():
    """Three steps at which nothing has happened."""
    return asked([NOTHING] * 3, "dynamics").data


def test_nothing_surely_happened_is_not_nothing_happened():
    """The bigram's progress is 0.493 ± 0.036."""
    found = asked([NOTHING, direct_table(0.3 * LOG_P, 8)], "dynamics", 32)
    half = 1.96 * float(found.data["progress_error"].sel(event="bigram")[-1])
    assert 0.5 - half < float(found.data["progress"].sel(event="bigram")[-1]) < 0.5
    assert "Nothing is surely more than halfway between steps 0 and 10." in found.verdict
    assert "Nothing happened" not in found.verdict
    assert found.scores["t_bigram"].reason == "whether the bigram is halfway by step 10 is open"
    assert found.scores["first"].reason == "nothing is surely more than halfway in the probed steps"


@pytest.mark.parametrize(("error", "is_open"), [(0.1, True), (0.001, False)])
def test_a_bigram_that_may_be_halfway_is_not_said_to_be_missing(still, error, is_open):
    data = with_progress(still, error, unigram=[0, 0.9, 0.9], bigram=[0, 0.49, 0.49])
    said, reason = dynamics.verdict(data), dynamics.scores(data, None)["t_bigram"].reason
    assert ("No selection by step 20. Whether the bigram is halfway by step 20 is open." in said) == is_open
    assert ("No selection and no bigram by step 20." in said) != is_open
    assert (reason == "whether the bigram is halfway by step 20 is open") == is_open


def test_what_was_there_at_first_and_lost_was_not_there_from_then_on():
    """It is back at the last step."""
    found = asked([TABLE, NOTHING, TABLE], "dynamics")
    said = "The unigram and the bigram were there at step 0, the first probed. "
    assert found.verdict.startswith(said + "The unigram and the bigram were lost again.")
    assert "lost again later" in asked([NOTHING, TABLE, NOTHING, TABLE], "dynamics").verdict


@pytest.mark.parametrize(
    ("later", "kept", "throughout"), [(0.3, False, False), (0.45, True, False), (0.9, True, True)]
)
def test_only_what_surely_falls_below_half_is_lost(later, kept, throughout):
    event = first_time(np.array([0.9, later, 0.9]), np.full(3, 0.1), np.array([0, 10, 20]))
    assert (event.kept, event.throughout) == (kept, throughout)
    before = first_time(np.array([0.55, 0.2, 0.9]), np.full(3, 0.1), np.array([0, 10, 20]))
    assert before.kept  # what falls before it surely came is not lost


def test_the_one_that_was_lost_is_named(still):
    data = with_progress(still, unigram=[0, 0.9, 0.9], selection=[0, 0.9, 0.1])
    said = "The unigram and selection came first, between steps 0 and 10 (selection lost again later) (both"
    assert dynamics.verdict(data).startswith(said)


def test_what_two_kept_steps_do_not_tell_apart_came_later_together():
    run = story((), ("unigram",), ("bigram",))
    said = probe_quickly(run, ["dynamics"], steps="all", sequences=256)["dynamics"].verdict
    assert "Then the bigram and selection came, both between steps 10 and 20." in said


def test_what_may_have_come_later_is_not_said_to_be_before_what_follows(still):
    """Selection came between 0 and 10, the unigram between 0 and 20, the bigram between 10 and 20."""
    data = with_progress(still, 0.1, unigram=[0, 0.55, 0.9], bigram=[0, 0, 0.9])
    said = dynamics.verdict(with_progress(data, selection=[0, 0.9, 0.9]))
    assert "After selection the bigram came, between steps 10 and 20." in said


@pytest.mark.parametrize(("steps", "said"), [(6, "Then 1 more phase."), (7, "Then 2 more phases.")])
def test_phases_that_are_left_out_are_counted(steps, said):
    models = [model("unigram") if i % 2 else model() for i in range(steps)]
    assert said in asked(models, "dynamics", 16).verdict


def over_training(llc, progress, error=0.0):
    """What is said of coefficients [step, chain] at steps 0, 10, 20, … with this progress to the bigram."""
    data = {
        "llc": (("step", "chain"), llc),
        "progress": (("step", "event"), np.array(progress)[:, None]),
        "progress_error": (("step", "event"), np.full((len(progress), 1), error)),
    }
    steps = 10 * np.arange(len(progress))
    return degeneracy._events(xr.Dataset(data, {"step": steps, "event": ["bigram"]}))


def chains(*means):
    return np.array(means)[:, None] + 0.1 * np.array([-1.0, -1, -1, -1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((1, 2, 3.001), "most between steps 0 and 10, or 10 and 20: the chains' error leaves it open."),
        ((1, 2, 4), "most between steps 10 and 20."),
        ((1, 2, 3, 4, 5), "beyond the chains' error; between which steps most is open."),
        ((1, 1, 1), "nowhere beyond the chains' error."),
    ],
)
def test_all_steps_that_may_be_the_steepest_are_named(means, said):
    assert over_training(chains(*means), np.linspace(0, 1, len(means)))[0] == f"Over training it rises {said}"


@pytest.mark.parametrize(
    ("progress", "error", "said"),
    [
        ([0, 0.501, 0.2], 0.0, "The bigram is half there at step 10, and lost again later."),
        ([0, 0.501, 0.2], 0.1, "Whether the bigram is half there at any step is open."),
        ([0, 0.55, 0.9], 0.1, "The bigram is half there by step 20."),
        ([0, 0.9, 0.9], 0.1, "The bigram is half there at step 10."),
    ],
)
def test_a_bigram_that_is_lost_again_or_not_sure_is_said_to_be(progress, error, said):
    assert over_training(chains(1, 2, 4), progress, error)[1] == said


def test_a_program_names_the_state_after_which_most_is_left_only_where_it_surely_is():
    """Model and chain are the same under a new name for each state."""
    fair = mm.Chain(np.full((3, 3), 1 / 3))
    found = asked([induction_pair(3, 16, lags=(2,), gain=6.0)], "program", 256, source=fair)
    assert found.data["kl_after"].values.std() > 0
    assert "What is left is most at position 2 (0.8" in found.verdict
    assert "after state" not in found.verdict
    assert "1 more term adds to it." in found.verdict


@pytest.fixture(scope="module")
def one_program():
    return asked([value_table(LOG_P, 8)], "program").data


@pytest.mark.parametrize(
    ("after", "at", "said"),
    [
        ([0.1, 0.2, 0.3], 7, "What is left is most after state 2 (0.3 nats) and at position 7 (0.5 nats)."),
        ([0.1, 0.2, 0.3], None, "What is left is most after state 2 (0.3 nats)."),
        ([0.1, 0.3, 0.31], None, "Where most is left is open: after each state it is 0.1 to 0.31 nats."),
        ([np.nan, 0.3, 0.3], 7, "What is left is most at position 7 (0.5 nats)."),
        ([np.nan, np.nan, 0.3], None, "Where most is left is open: after each state it is 0.3 nats."),
    ],
)
def test_where_most_is_left_is_named_only_where_the_interval_is_above_all_others(
    one_program, after, at, said
):
    data = one_program.copy(deep=True)
    data["kl"][:] = 0.2
    data["kl_after"][:], data["kl_after_error"][:] = after, 0.02
    data["kl_at"][:], data["kl_at_error"][:] = 0.2, 0.02
    if at is not None:
        data["kl_at"][:, at] = 0.5
    assert f"{said} Tables read" in program.verdict(data)


def test_the_errors_of_what_is_left_cover_it():
    """Of 300 samples of 40 sequences each, in which one state is seen as often as it happens to be."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(300):
        parents = rng.integers(0, 2, (40, 8))
        nats = rng.gamma(2.0, 0.5, (40, 1)) * (1 + parents)
        batch = SimpleNamespace(parents=torch.from_numpy(parents))
        mean, error = measure._after(batch, nats, 1)
        inside.append(abs(mean - 2) < 1.96 * error)
    assert 0.9 < np.mean(inside) < 0.98
    assert np.isnan(measure._after(batch, nats, 2)).all()
    parents[0, 0] = 2
    assert measure._after(batch, nats, 2) == (pytest.approx(nats[0, 0]), np.inf)


@pytest.mark.parametrize(("number", "said"), [(0, []), (1, ["1 more table adds to it."])])
def test_one_more_table_adds_to_it(number, said):
    assert program._more(number, "table") == said
    assert program._more(2, "table") == ["2 more tables add to it."]
