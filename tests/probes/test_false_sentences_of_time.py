"""Runs and models set by hand that would make a sentence on time, or on where a program fails, false."""

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.dynamics.trajectory import first_time
from models_by_hand import LOG_P, asked, holding, story
from probing_cases import claims_of, probe_quickly

import mechmarkov as mm
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.probes import degeneracy, dynamics, program
from mechmarkov.theory.bootstrap import mean_after

TABLE, NOTHING = direct_table(LOG_P, 8), direct_table(torch.zeros(3, 3), 8)


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
    assert found.claims.first("came_by", object="bigram").status == "open"
    assert found.scores["t_bigram"].reason == "whether the bigram is halfway by step 10 is open"
    assert found.scores["first"].reason == "nothing is clearly more than halfway in the probed steps"


@pytest.mark.parametrize(("error", "is_open"), [(0.1, True), (0.001, False)])
def test_a_bigram_that_may_be_halfway_is_not_said_to_be_missing(still, error, is_open):
    data = with_progress(still, error, unigram=[0, 0.9, 0.9], bigram=[0, 0.49, 0.49])
    told, reason = claims_of(dynamics.probe, data), dynamics.scores(data, None)["t_bigram"].reason
    assert told.first("came_by", object="bigram").status == ("open" if is_open else "excluded")
    assert told.first("came_by", object="selection").status == "excluded"
    assert (reason == "whether the bigram is halfway by step 20 is open") == is_open


def test_what_was_there_at_first_and_lost_was_not_there_from_then_on():
    """It is back at the last step."""
    found = asked([TABLE, NOTHING, TABLE], "dynamics")
    for name in ("unigram", "bigram"):
        came = found.claims.first("came_by", object=name)
        assert came.condition("from the first probed step").holds is False
        assert came.condition("lost again")
        assert found.claims.first("was_lost", object=name).status == "excluded"  # it is there at the end
    later = asked([NOTHING, TABLE, NOTHING, TABLE], "dynamics").claims.first("came_by", object="bigram")
    assert later.condition("lost again")


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
    told = claims_of(dynamics.probe, data)
    assert [claim.object for claim in told.where("was_lost", status="shown")] == [("selection",)]
    assert told.first("came_by", object="unigram").condition("lost again") is None


def test_what_two_kept_steps_do_not_tell_apart_came_later_together():
    run = story((), ("unigram",), ("bigram",))
    told = probe_quickly(run, ["dynamics"], steps="all", sequences=256)["dynamics"].claims
    assert {told.first("came_by", object=name).interval for name in ("bigram", "selection")} == {(10, 20)}
    before = told.first("came_before")
    assert (before.subject, set(before.object)) == (("unigram",), {"bigram", "selection"})


def test_what_may_have_come_later_is_not_said_to_be_before_what_follows(still):
    """Selection came between 0 and 10, the unigram between 0 and 20, the bigram between 10 and 20."""
    data = with_progress(still, 0.1, unigram=[0, 0.55, 0.9], bigram=[0, 0, 0.9])
    told = claims_of(dynamics.probe, with_progress(data, selection=[0, 0.9, 0.9]))
    before = told.first("came_before")
    assert before is None or "bigram" not in before.object or before.subject == ("selection",)


def test_every_phase_is_a_claim():
    models = [holding("unigram") if i % 2 else holding() for i in range(6)]
    phases = asked(models, "dynamics", 16).claims.where("passed")
    assert [claim.where.steps for claim in phases] == [(10 * i, 10 * i) for i in range(6)]


def over_training(llc, progress):
    """What is said of coefficients [step, chain] at steps 0, 10, 20, … with this progress to the bigram."""
    data = {"llc": (("step", "chain"), llc), "progress": (("step", "event"), np.array(progress)[:, None])}
    steps = 10 * np.arange(len(progress))
    (claim,) = degeneracy._over_training(xr.Dataset(data, {"step": steps, "event": ["bigram"]}))
    return claim


def chains(*means):
    return np.array(means)[:, None] + 0.1 * np.array([-1.0, -1, -1, -1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("means", "status", "between"),
    [
        ((1, 2, 3.001), "open", (0, 20)),
        ((1, 2, 4), "shown", (10, 20)),
        ((1, 2, 3, 4, 5), "open", (0, 40)),
        ((1, 1, 1), "excluded", None),
    ],
)
def test_all_steps_that_may_be_the_steepest_are_named(means, status, between):
    rise = over_training(chains(*means), np.linspace(0, 1, len(means)))
    assert (rise.status, rise.interval) == (status, between)


def test_a_program_names_the_state_after_which_most_is_left_only_where_it_surely_is():
    """Model and chain are the same under a new name for each state."""
    fair = mm.Chain(np.full((3, 3), 1 / 3))
    found = asked([induction_pair(3, 16, lags=(2,), gain=6.0)], "program", 256, source=fair)
    assert found.data["kl_after"].values.std() > 0
    (fails,) = found.claims.where("fails_at")
    assert (fails.where.positions, fails.where.states) == ((2,), ())
    assert fails.value == pytest.approx(0.85, abs=0.05)


@pytest.fixture(scope="module")
def one_program():
    return asked([value_table(LOG_P, 8)], "program").data


@pytest.mark.parametrize(
    ("after", "at", "states", "positions"),
    [
        ([0.1, 0.2, 0.3], 7, ("2",), (7,)),
        ([0.1, 0.2, 0.3], None, ("2",), ()),
        ([0.1, 0.3, 0.31], None, (), ()),
        ([np.nan, 0.3, 0.3], 7, (), (7,)),
        ([np.nan, np.nan, 0.3], None, (), ()),
    ],
)
def test_where_most_is_left_is_named_only_where_the_interval_is_above_all_others(
    one_program, after, at, states, positions
):
    data = one_program.copy(deep=True)
    data["kl"][:] = 0.2
    data["kl_after"][:], data["kl_after_error"][:] = after, 0.02
    data["kl_at"][:], data["kl_at_error"][:] = 0.2, 0.02
    if at is not None:
        data["kl_at"][:, at] = 0.5
    fails = claims_of(program.probe, data).where("fails_at")
    assert tuple(name for claim in fails for name in claim.where.states) == states
    assert tuple(place for claim in fails for place in claim.where.positions) == positions
    assert (fails[0].status == "open") == (not states and not positions)


def test_the_errors_of_what_is_left_cover_it():
    """Of 300 samples of 40 sequences each, in which one state is seen as often as it happens to be."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(300):
        parents = rng.integers(0, 2, (40, 8))
        nats = rng.gamma(2.0, 0.5, (40, 1)) * (1 + parents)
        mean, error = mean_after(parents, nats, 3)
        inside.append(abs(mean[1] - 2) < 1.96 * error[1])
    assert 0.9 < np.mean(inside) < 0.98
    assert np.isnan([mean[2], error[2]]).all()
    parents[0, 0] = 2
    mean, error = mean_after(parents, nats, 3)
    assert (mean[2], error[2]) == (pytest.approx(nats[0, 0]), np.inf)
