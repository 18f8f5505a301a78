"""Runs whose story is known: each step is a circuit set by hand."""

import dataclasses

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.dynamics.gradients import gradient_norms
from mechmarkov.probes.dynamics.trajectory import Event, first_time, score_trajectory
from models_by_hand import LOG_P, PI, holding, relabelled, story
from probing_cases import P3, RAW_LOG, claims_of, probe_quickly, random_run, run_of

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import dynamics
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.sources import DirichletChains
from mechmarkov.theory.bootstrap import ratio

pytestmark = pytest.mark.usefixtures("one_term")

UNIFORM_AWAY = float(PI @ (P3 * np.log(3 * P3)).sum(1))
UNIGRAM_AWAY = float(PI @ (P3 * np.log(P3 / PI)).sum(1))
N_CTX = 8


def find(name):
    return dynamics.probe if name == "dynamics" else load_probe(name)


def probed(run, sequences=64, steps="all"):
    subject = Subject.of(run, steps, sequences=sequences, find=find)
    assert dynamics.applies(subject) is None
    data = subject.result("dynamics")
    return data, dynamics.scores(data, None), claims_of(dynamics.probe, data)


def came(said) -> dict[str, tuple[str, tuple[float, float] | None]]:
    """Each event: whether it surely came, and between which steps."""
    return {one.object[0]: (one.status, one.interval) for one in said.where("came_by")}


def passed(said) -> list[tuple[str, tuple[int, ...]]]:
    """The laws that were nearest, and from which step to which."""
    return [(one.object[0], one.where.steps) for one in said.where("passed")]


def times(scores):
    return {name: scores[f"t_{name}"].value for name in ("unigram", "selection", "bigram")}


IN_ORDER = ((), ("unigram",), ("unigram", "selection"), ("bigram",))


@pytest.fixture(scope="module")
def in_order():
    return probed(story(*IN_ORDER), sequences=512)


def test_the_unigram_then_selection_then_the_bigram(in_order):
    data, scores, said = in_order
    assert times(scores) == {"unigram": 10, "selection": 20, "bigram": 30}
    assert scores["t_unigram"].interval == (0, 10)
    assert scores["t_selection"].interval == (10, 20)
    assert scores["t_bigram"].interval == (20, 30)
    assert scores["first"].value == "unigram"
    assert came(said) == {
        "unigram": ("shown", (0, 10)),
        "selection": ("shown", (10, 20)),
        "bigram": ("shown", (20, 30)),
    }
    first = said.first("came_before")
    assert (first.subject, first.object) == (("unigram",), ("selection", "bigram"))
    assert passed(said) == [("uniform", (0, 0)), ("unigram", (10, 20)), ("bigram", (30, 30))]
    assert data["predictor"].values[data["phase_predictor"].values].tolist() == [
        "uniform",
        "unigram",
        "bigram",
    ]
    assert data["phase_start"].values.tolist() == [0, 10, 30]
    assert data["phase_stop"].values.tolist() == [0, 20, 30]


def test_progress_is_the_share_of_nats_gained(in_order):
    data, _, _ = in_order
    progress = {name: data["progress"].sel(event=name).values for name in ("unigram", "selection", "bigram")}
    # The levels are means over the batch, so that each exact predictor is exactly at 0 or 1.
    np.testing.assert_allclose(progress["unigram"][:3], [0, 1, 1], atol=1e-5)
    np.testing.assert_allclose(progress["bigram"][1:], [0, 0, 1], atol=1e-5)
    assert progress["unigram"][3] == progress["bigram"][3]
    # And this differs from the law's by what 512 sequences tell.
    beyond = UNIGRAM_AWAY / (UNIFORM_AWAY - UNIGRAM_AWAY)
    assert progress["bigram"][0] == pytest.approx(-1 / beyond, rel=0.1)
    np.testing.assert_allclose(progress["selection"], [0, 0, 1, 1], atol=1e-5)  # uniform, then the parent


def test_selection_first():
    _, scores, said = probed(story((), ("selection",), ("unigram", "selection"), ("bigram",)))
    assert times(scores) == {"unigram": 20, "selection": 10, "bigram": 30}
    assert scores["first"].value == "selection"
    assert said.first("came_before").subject == ("selection",)
    assert came(said)["selection"] == ("shown", (0, 10))


def test_what_two_kept_steps_do_not_tell_apart_came_first_together():
    _, scores, said = probed(story((), ("bigram",)))
    assert set(times(scores).values()) == {10}
    assert scores["first"].value == "unigram and selection and bigram"
    assert came(said) == dict.fromkeys(("unigram", "selection", "bigram"), ("shown", (0, 10)))
    assert not said.where("came_before")


def test_what_was_there_from_the_start_and_what_was_lost_is_said():
    _, scores, said = probed(story(("unigram",), ("unigram", "selection"), ("unigram",)))
    assert times(scores) == {"unigram": 0, "selection": 10, "bigram": None}
    assert scores["t_unigram"].interval == (0, 0)
    assert "last of which is 20" in scores["t_bigram"].reason
    assert scores["first"].value == "selection"  # the unigram was not seen to come
    assert said.first("came_by", object="unigram").condition("from the first probed step").holds
    assert said.first("was_lost").object == ("selection",)
    assert came(said) == {
        "unigram": ("shown", (0, 0)),
        "selection": ("shown", (0, 10)),
        "bigram": ("excluded", None),
    }


def test_a_bigram_that_is_there_before_it_is_nearest_is_no_contradiction():
    """At 0.35 of the way between the scores, more than half of the nats are gained."""
    between = value_table(0.35 * LOG_P + 0.65 * torch.tensor(np.log(PI)).float(), N_CTX)
    data, _, said = probed(run_of(between, holding("bigram")))
    assert 0.5 < float(data["progress"].sel(event="bigram")[0]) < 0.7
    assert said.first("came_by", object="bigram").condition("from the first probed step") is not None
    assert [law for law, _ in passed(said)][-1] == "bigram"
    assert passed(said)[0][0] != "bigram"


def test_selection_is_said_to_have_no_sampling_error():
    _, scores, said = probed(story((), ("selection",)))
    assert scores["t_selection"].null_kind.endswith("without a sampling error")
    assert scores["t_bigram"].null_kind.endswith("with the sampling error of its progress")
    told = {one.object[0]: one.condition("without its sampling error") for one in said.where("came_by")}
    assert [name for name, premise in told.items() if premise] == ["selection"]


def test_progress_that_sampling_hides_widens_the_interval():
    steps, progress = np.array([0, 10, 20, 30]), np.array([0.0, 0.45, 0.55, 1.0])
    assert first_time(progress, np.zeros(4), steps) == Event(
        20, 10, 20, kept=True, sure=True, throughout=True
    )
    assert first_time(progress, np.full(4, 0.1), steps) == Event(
        20, 0, 30, kept=True, sure=True, throughout=True
    )
    never_sure = Event(20, 0, 20, kept=True, sure=False, throughout=False)
    assert first_time(progress[:3], np.full(3, 0.1), steps[:3]) == never_sure
    assert first_time(progress[::-1], np.zeros(4), steps).from_start


def test_a_law_better_than_the_bigram_is_an_event_of_its_own():
    """The token before the last is all that counts: there is no bigram to come."""
    lagged = value_table(LOG_P, N_CTX, lag=2)
    nothing = value_table(0 * LOG_P, N_CTX, lag=2)
    source = mm.LaggedChain(P3, lag=2)
    result = probe_quickly(run_of(nothing, nothing, lagged, source=source), ["dynamics"], steps="all")
    found = result["dynamics"]
    assert found.scores["t_best"].interval == (10, 20)
    assert times(found.scores) == {"unigram": 20, "selection": 0, "bigram": None}
    assert came(found.claims)["best"] == ("shown", (10, 20))
    tile = next(tile for tile in headline(result).tiles if tile.question == "How did it get there?")
    assert tile.answer == "Law of lag 2 by step 20"
    on_chain = probe_quickly(story((), ("bigram",)), ["dynamics"], steps="all")["dynamics"]
    assert "t_best" not in on_chain.scores


def test_what_never_surely_holds_is_open():
    """Progress 0, 0.45, 0.55: with an error of 0.1 the bigram may never have come."""
    result = probe_quickly(story((), (), ()), ["dynamics"], steps="all")
    for error, surely in ((0.1, False), (0.001, True)):
        data = result["dynamics"].data.copy(deep=True)
        data["progress"].loc[{"event": "bigram"}] = [0.0, 0.45, 0.55]
        data["progress_error"].loc[{"event": "bigram"}] = error
        after = 10 if surely else 0
        said = claims_of(dynamics.probe, data)
        assert came(said)["bigram"] == ("shown" if surely else "open", (after, 20))
        scores = dynamics.scores(data, None)
        assert scores["t_bigram"].interval == (after, 20)


def test_the_error_of_a_share_covers_it():
    rng = np.random.default_rng(0)
    whole = rng.gamma(2.0, size=(1000, 64))
    gained = 0.5 * whole + 0.3 * rng.normal(size=whole.shape)
    found = [ratio(a[None], b) for a, b in zip(gained, whole, strict=True)]
    inside = [abs(float(share[0]) - 0.5) < 1.96 * float(error[0]) for share, error in found]
    assert 0.92 < np.mean(inside) < 0.97


def test_nothing_happens_in_a_run_that_stays_where_it_is():
    _, scores, said = probed(story((), ()))
    assert set(times(scores).values()) == {None}
    assert scores["first"].value is None
    assert set(came(said).values()) == {("excluded", None)}
    assert passed(said) == [("uniform", (0, 10))]


def test_on_a_fair_circle_the_unigram_cannot_be_seen_to_come():
    _, scores, said = probed(mm.example("walk"), sequences=16, steps=[0, 1, 2, 3, 4, 5, 8, 50])
    assert scores["t_unigram"].value is None
    assert "no better than the uniform law" in scores["t_unigram"].reason
    assert scores["first"].value == "selection"
    low, high = scores["t_selection"].interval
    # Against the curve that training itself kept, on other sequences, at every step.
    curve = mm.example("walk").metrics["parent_attention"]
    crossed = int(curve["step"][curve["value"] > 0.5][0])
    assert low < crossed <= high
    assert came(said)["unigram"] == ("does not apply", None)


def test_the_trap_stays_where_it_is():
    _, scores, said = probed(mm.example("trap"), sequences=16, steps=[0, 10, 50])
    assert scores["first"].value is None
    assert {status for status, _ in came(said).values()} <= {"excluded", "does not apply"}
    assert said.first("came_by", status="excluded").where.steps == (0, 50)


@pytest.mark.parametrize(
    "run",
    [
        random_run("LN and MLP", n_steps=3),
        random_run("RMSPre, tied", n_steps=2),
        random_run("plain", n_steps=3, objective=RAW_LOG),
        random_run("rotary", n_steps=2, objective=Objective(kind="squared", read="last")),
        random_run("Qwen3", n_steps=2),
        random_run("GPT-NeoX", n_steps=2),
        mm.example("walk"),
        dataclasses.replace(
            random_run("plain", n_steps=2),
            trainable={"embed.W_E": [[0, 2], [1, 4]], "blocks.1.attn.W_O": None},
        ),
    ],
    ids=["LN and MLP", "tied", "query", "squared", "Qwen3", "GPT-NeoX", "walk", "trainable parts alone"],
)
def test_gradient_norms_are_those_of_each_model_alone(run):
    subject = Subject.of(run, "all", sequences=20)
    found = gradient_norms(subject, sequences=7)
    batch = subject.batch.head(7)
    for member, step in enumerate(run.steps.tolist()):
        alone = run.model(step=step).double()
        scores = alone(batch.tokens)[:, batch.read]
        run.objective.loss(scores, batch.targets).mean().backward()
        square = 0.0
        for name, parameter in alone.named_parameters():
            if parameter.grad is None or (run.trainable is not None and name not in run.trainable):
                continue
            gradient = parameter.grad
            for axis, (start, stop) in enumerate((run.trainable or {}).get(name) or []):
                gradient = gradient.narrow(axis, start, stop - start)
            square += float((gradient**2).sum())
        assert found[member] == pytest.approx(np.sqrt(square), rel=1e-4)


def test_the_gradient_is_scaled_by_its_largest_and_small_where_the_loss_is():
    data, _, said = probed(story((), ("unigram",), ("bigram",)), sequences=512)
    scaled = data["scaled_gradient"].values
    assert scaled.max() == 1
    assert scaled[2] < 0.3  # the bigram is a minimum: what is left is the sample's
    np.testing.assert_allclose(scaled, data["gradient"].values / data["gradient"].values.max())
    slope = said.first("passed", object="unigram").condition("gradient of its largest")
    assert slope.value == pytest.approx(scaled[1])


def test_the_score_of_a_step_is_that_of_the_step_probed_alone():
    run = story(*IN_ORDER)
    subject = Subject.of(run, "all", sequences=32, find=find)
    data = subject.result("dynamics")
    table = data["score_value"]
    assert {"behaviour.kl_bigram", "attention.parent_score", "alignment.kernel_cosine"} <= set(
        table["score"].values.tolist()
    )
    assert len(data.attrs["score_units"]) == table.sizes["score"]
    for step in run.steps.tolist():
        asked = ["behaviour", "attention", "alignment"]
        alone = probe_quickly(run, asked, nulls=2, steps=[step], sequences=32)
        for name in ("behaviour", "attention", "alignment"):
            for score, found in alone[name].scores.items():
                key = f"{name}.{score}"
                if key not in table["score"].values:
                    assert found.value is None or isinstance(found.value, str)
                    continue
                value = float(table.sel(step=step, score=key))
                if found.value is None:
                    assert np.isnan(value)
                else:
                    assert value == pytest.approx(float(found.value), rel=1e-4, abs=1e-6)


def test_any_probes_scores_can_be_followed():
    result = probe_quickly(random_run(n_steps=3), ["attention"], steps="all", sequences=16)
    table, units = score_trajectory(result["attention"].probe, result["attention"].data)
    assert table.dims == ("step", "score")
    assert table["step"].values.tolist() == result.steps
    parent = result["attention"].data["lag_mass"].sel(lag=1).max(("layer", "head"))
    np.testing.assert_allclose(table.sel(score="parent_score"), parent)
    assert units["parent_score"] == "probability"
    assert "parent_head" not in units  # a word


def test_one_step_has_no_dynamics_and_says_why():
    many, one = story((), ("bigram",)), story(())
    assert "--steps all, or steps='all' in Python" in dynamics.applies(Subject.of(many, "last", sequences=4))
    assert "kept one step" in dynamics.applies(Subject.of(one, "all", sequences=4))


def test_renaming_states_changes_no_score():
    run = random_run("plain", n_steps=2)
    ours = Subject.of(run, "all", sequences=16, find=find)
    changed, batch = relabelled(run, ours.batch, [2, 0, 1])
    steps = ours.coordinates
    theirs = Subject(changed, changed.model(steps=steps), batch, axis="step", coordinates=steps, find=find)
    a, b = (subject.result("dynamics") for subject in (ours, theirs))
    # A program is judged on sequences of its own, which another chain draws differently.
    kept = [name for name in a["score"].values if not name.startswith("program.")]
    for name in ("progress", "kl", "gradient", "phase_start", "phase_predictor", "plateau"):
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        a["score_value"].sel(score=kept), b["score_value"].sel(score=kept), rtol=1e-4, atol=1e-5
    )
    assert {name: s.value for name, s in dynamics.scores(a, None).items()} == {
        name: s.value for name, s in dynamics.scores(b, None).items()
    }


def test_fresh_models_have_none_of_it():
    subject = Subject.of(story(*IN_ORDER), "all", sequences=64, find=find)
    null = subject.null.result("dynamics")
    assert null["progress"].dims == ("seed", "event")
    scores = dynamics.scores(subject.result("dynamics"), null)
    for name in ("unigram", "selection", "bigram"):
        assert scores[f"t_{name}"].null_kind.startswith("0 of 24 fresh models have it")


def test_chains_of_their_own_are_judged_by_in_context_predictors():
    config = random_run(n_steps=2, n_ctx=40).config
    run = run_of(HookedDecoder(config), HookedDecoder(config), source=DirichletChains(n_states=3))
    data, scores, _ = probed(run, sequences=64)
    np.testing.assert_allclose(data["progress"].sel(event="unigram"), 0, atol=1e-6)  # zero weights: uniform
    assert scores["first"].value is None


def test_the_data_survive_a_file_and_figures_are_drawn(tmp_path, in_order):
    data, _, _ = in_order
    data.to_netcdf(tmp_path / "dynamics.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "dynamics.nc", engine="h5netcdf") as again:
        assert claims_of(dynamics.probe, again.load()) == claims_of(dynamics.probe, data)
        again_drawn, drawn = (dynamics.probe.figures(d) for d in (again, data))
        assert [f.title for f in again_drawn] == [f.title for f in drawn]
    titles = [figure.title for figure in drawn]
    assert titles == ["What was learned when", "Gradient norm"]
