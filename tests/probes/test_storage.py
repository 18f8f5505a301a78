"""Storage: circuits set by hand are named with their shares, wrong ones are not, and nothing else matters."""

from functools import partial

import numpy as np
import pytest
import torch
from models_by_hand import LOG_P, PI, relabelled
from probing_cases import (
    CHAIN,
    P3,
    RAW_LOG,
    ask,
    names_in,
    parent_logits,
    probe_quickly,
    random_run,
    run_of,
    subject_of,
    walk_run,
)

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.lookup_tables import (
    cancelling_tables,
    direct_table,
    mlp_table,
    value_table,
)
from mechmarkov.objectives import Objective
from mechmarkov.probes import behaviour, storage
from mechmarkov.probing import Subject
from mechmarkov.sources import Chain, Circle, DirichletChains

UNIGRAM_KL = float(PI @ (P3 * np.log(P3 / PI)).sum(1))
TODAY = ["grouped queries", "Qwen3", "GPT-NeoX"]
WRONG = [1, 2, 0]  # another state's successors

answers = partial(ask, storage.probe)


def split(of_head: float) -> HookedDecoder:
    """The table shared out between a head on the parent and the direct path."""
    decoder = value_table(of_head * LOG_P, n_ctx=8)
    with torch.no_grad():
        decoder.get_parameter("unembed.W_U")[:3] = (1 - of_head) * LOG_P
    return decoder


@torch.no_grad()
def gated_table(table: torch.Tensor, n_ctx: int) -> HookedDecoder:
    """The table in a gated MLP: one hidden unit a state, let through by a gate of its own."""
    plain = mlp_table(table, n_ctx)
    decoder = HookedDecoder(DecoderConfig(**plain.config.model_dump() | {"gated_mlp": True}))
    decoder.load_state_dict(plain.state_dict() | {"blocks.0.mlp.W_gate": plain.blocks[0].mlp.W_in})
    return decoder


def shares_of(scores) -> dict[str, float]:
    return {name[6:]: score.value for name, score in scores.items() if name.startswith("share_")}


def held(said):
    """The paths that hold the bigram, and their share."""
    stores = said.first("stores", status="shown")
    return stores.subject, stores.value


def reason_of(said) -> str:
    """Why no path holds it."""
    assert not said.where("stores", status="shown", object="bigram")
    return said.first("stores").because[0].name


@pytest.mark.parametrize(
    ("build", "path"),
    [(direct_table, "direct"), (value_table, "L0H0"), (mlp_table, "L0.mlp"), (gated_table, "L0.mlp")],
)
def test_the_bigram_is_at_home_in_the_path_that_holds_it(build, path):
    data, scores, verdict = answers(run_of(build(LOG_P, n_ctx=8)), null=True)
    assert scores["bigram_home"].value == path
    shares = shares_of(scores)
    assert shares.pop(path) == pytest.approx(1, abs=1e-9)
    assert all(share == pytest.approx(0, abs=1e-9) for share in shares.values())
    last = data.isel(step=-1)
    assert float(last["kl_full"]) == pytest.approx(0, abs=1e-9)
    assert float(last["kl_only"].sel(path=path)) == pytest.approx(0, abs=1e-9)
    assert float(last["kl_without"].sel(path=path)) == pytest.approx(float(last["kl_empty"]))
    assert float(last["table_kl"].sel(path=path)) == pytest.approx(0, abs=1e-9)
    # The table, up to the mean that a softmax does not see.
    assert np.allclose(last["table"].sel(path=path), np.log(P3), atol=1e-5)
    assert scores["rank_90"].value == 3
    assert scores["gain"].null[2] < scores["gain"].value
    assert held(verdict) == ((path,), pytest.approx(1, abs=1e-6))
    assert verdict.first("stores").condition("worth of all paths").value == pytest.approx(0.3, abs=0.1)


def test_without_any_path_the_model_is_the_mean_of_its_logits():
    data, _, _ = answers(run_of(direct_table(LOG_P, n_ctx=8)), sequences=256)
    mean = np.exp(PI @ np.log(P3))
    mean /= mean.sum()
    expected = float(PI @ (P3 * np.log(P3 / mean)).sum(1))
    assert float(data["kl_empty"][-1]) == pytest.approx(expected, abs=0.02)


def test_half_and_half_is_half_and_half():
    _, scores, verdict = answers(run_of(split(0.5)))
    assert scores["bigram_home"].value == "direct + L0H0"
    assert shares_of(scores) == {"direct": pytest.approx(0.5, abs=1e-6), "L0H0": pytest.approx(0.5, abs=1e-6)}
    assert held(verdict) == (("direct", "L0H0"), pytest.approx(1, abs=1e-6))


def test_parts_are_the_home_until_they_hold_nine_tenths_and_shares_are_by_hand():
    data, scores, _ = answers(run_of(split(0.75)))
    assert scores["bigram_home"].value == "L0H0 + direct"  # three quarters are not all that there is
    assert answers(run_of(split(0.95)))[1]["bigram_home"].value == "L0H0"
    parents = Subject.of(run_of(split(0.75)), sequences=64).batch.parents.numpy().ravel()
    rows = np.log(P3)[parents]

    def nats(of_head: float, direct: float) -> float:
        scores = 0.75 * (of_head * rows + (1 - of_head) * rows.mean(0))
        scores += 0.25 * (direct * rows + (1 - direct) * rows.mean(0))
        q = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        return float((P3[parents] * np.log(P3[parents] / q)).sum(-1).mean())

    both, none, head, direct = nats(1, 1), nats(0, 0), nats(1, 0), nats(0, 1)
    expected = 0.5 * ((none - head) + (direct - both)) / (none - both)
    assert shares_of(scores)["L0H0"] == pytest.approx(expected, abs=1e-6)
    assert sum(shares_of(scores).values()) == pytest.approx(1)
    assert float(data["kl_only"].sel(path="direct").squeeze()) == pytest.approx(direct, abs=1e-6)
    assert float(data["kl_without"].sel(path="direct").squeeze()) == pytest.approx(head, abs=1e-6)


def test_an_mlp_that_reads_what_a_head_copied_holds_the_bigram():
    """The head brings the parent, the MLP turns it into its successors: the table is in the MLP."""
    n, n_ctx = 3, 8
    head = value_table(torch.eye(n), n_ctx)
    config = head.config.model_copy(update={"attn_only": False, "act_fn": "relu", "d_mlp": n})
    decoder = HookedDecoder(config)
    state = head.state_dict() | {
        name: value for name, value in decoder.state_dict().items() if name not in head.state_dict()
    }
    decoder.load_state_dict(state)
    with torch.no_grad():
        decoder.get_parameter("blocks.0.mlp.W_in")[n : 2 * n] = torch.eye(n)
        decoder.get_parameter("blocks.0.mlp.W_out")[:, n : 2 * n] = LOG_P - torch.eye(n)
    data, scores, _ = answers(run_of(decoder))
    # W_out takes the head's copy back, so that head and MLP together are log P.
    assert float(data["kl_full"][-1]) == pytest.approx(0, abs=1e-9)
    assert scores["bigram_home"].value == "L0.mlp"
    assert shares_of(scores)["L0.mlp"] > 0.9


@pytest.mark.parametrize("build", [direct_table, value_table, mlp_table, gated_table])
def test_another_states_successors_are_at_home_nowhere(build):
    data, scores, verdict = answers(run_of(build(LOG_P[WRONG], n_ctx=8)))
    assert scores["bigram_home"].value == "none"
    assert shares_of(scores) == {}
    assert scores["gain"].value < -0.3
    assert scores["rank_90"].value is None
    assert "nothing to share" in scores["rank_90"].reason
    assert reason_of(verdict) == "the paths lead away"
    assert np.isnan(data["share"]).all()


def test_a_unigram_model_stores_no_bigram():
    decoder = direct_table(torch.zeros(3, 3), n_ctx=8)
    with torch.no_grad():
        decoder.unembed.b_U.copy_(torch.tensor(np.log(PI)))
    data, scores, verdict = answers(run_of(decoder), sequences=256)
    assert scores["bigram_home"].value == "none"
    assert scores["gain"].value == 0
    assert shares_of(scores) == {}
    assert float(data["kl_full"][-1]) == pytest.approx(UNIGRAM_KL, abs=0.02)
    assert reason_of(verdict) == "nothing to share"


def test_two_steps_from_lag_two_are_nearer_to_the_bigram_but_are_not_it():
    P2 = P3 @ P3
    decoder = value_table(torch.tensor(np.log(P2)).float(), n_ctx=8, lag=2)
    data, scores, verdict = answers(run_of(decoder), sequences=256)
    assert scores["gain"].value > 0.01
    # The first prediction has no lag 2, and its head looks at the parent; no other does.
    at = data["parent_gain_at"].values[-1]
    assert np.abs(at[1:]).max() < 1e-9
    assert at[0] == pytest.approx(8 * float(data["parent_gain"][-1]))
    assert scores["bigram_home"].value == "none"
    assert "does not come from the parent" in scores["rank_90"].reason
    assert reason_of(verdict) == "not by the parent"


@pytest.mark.parametrize("m", [1, 2, 5])
def test_an_escaped_walk_holds_the_bigram_only_where_it_reads_the_parent(m):
    # Every lag class predicts a deterministic walk perfectly: P^m, read m steps back. Only at m = 1 the
    # parent is among the tokens read (one of four), and the table is that of one step.
    source = Circle(n_states=6, p=1.0)
    lag = 24 - np.arange(25)
    logits = np.where((lag % 6 == m % 6) & (lag > 0), 60.0, 0.0)
    run = walk_run(source, np.linalg.matrix_power(source.P, m).T, logits)
    data, scores, verdict = answers(run)
    assert float(data["kl_full"][-1]) == pytest.approx(0, abs=1e-9)
    assert scores["gain"].value > 1.7
    if m > 1:
        assert scores["bigram_home"].value == "none"
        assert float(data["parent_gain"][-1]) == pytest.approx(0, abs=1e-9)
        assert reason_of(verdict) == "not by the parent"
        return
    # One of four tokens says "1", the other three the true next state; a parent set to another
    # state gives that state's successor 1/4, and the mean over parents gives it 1/24 (the true one 19/24).
    assert scores["bigram_home"].value == "L0H0"
    set_to, mean = np.array([1.0] + [0.25] * 5), np.array([0.75 + 0.25 / 6] + [0.25 / 6] * 5)
    assert float(data["parent_gain"][-1]) == pytest.approx(np.log(set_to / mean).mean(), rel=1e-5)


def test_the_exact_trap_stores_nothing():
    run = walk_run(Circle(n_states=6, p=1.0), np.full((6, 6), 0.37), np.zeros(13))
    data, scores, verdict = answers(run)
    assert scores["bigram_home"].value == "none"
    assert scores["gain"].value == pytest.approx(0, abs=1e-9)
    assert reason_of(verdict) == "nothing to share"
    assert verdict.first("stores").condition("to").value == pytest.approx(np.log(6))
    assert "L0H0" in data["path"].values
    assert "direct" not in data["path"].values  # behind a query token there is no state


def test_a_walk_stores_its_chain_in_the_head():
    source = Circle(n_states=6, p=0.3)
    _, scores, verdict = answers(walk_run(source, source.P.T, parent_logits(13)))
    assert scores["bigram_home"].value == "L0H0"
    assert shares_of(scores) == {"L0H0": 1.0}
    assert scores["rank_90"].value <= 6
    assert scores["rank_90"].null == 6
    # Fresh raw scores are no predictions to compare with: half of them are below zero.
    assert (scores["gain"].null, scores["gain"].null_kind) == (0.0, "paths that say nothing of the state")
    assert held(verdict) == (("L0H0",), pytest.approx(1))


def test_a_table_of_rank_two_needs_rank_two():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(6, 2)) @ rng.normal(size=(2, 6))
    P = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    run = run_of(direct_table(torch.tensor(table).float(), n_ctx=8), source=Chain(P))
    data, scores, verdict = answers(run)
    assert 1 <= scores["rank_90"].value <= 2
    kept = verdict.first("stores").condition("rank that keeps 90 %")
    assert (kept.words, kept.value) == (("direct",), scores["rank_90"].value)
    parts = data.isel(step=-1).sel(weight="direct", rank=2)["rank_parts"]
    assert np.allclose(parts, data["loss_parts"][-1], atol=1e-6)
    assert np.allclose(
        data["loss_parts"].sum("part"), np.log(6) - (data["kl_full"] + source_entropy(run)), atol=0.01
    )


def source_entropy(run) -> float:
    subject = Subject.of(run, sequences=64)
    law = run.source.P[subject.batch.parents.numpy()]
    return float(-(law * np.log(law)).sum(-1).mean())


@pytest.mark.parametrize(
    ("shape", "objective"),
    [("LN and MLP", RAW_LOG), ("LN and MLP", Objective(kind="squared", read="last"))]
    + [(shape, Objective()) for shape in ("LN and MLP", *TODAY)],
)
def test_with_all_paths_it_is_the_kl_that_behaviour_measures(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=8)
    data = storage.probe.measure(subject)
    expected = behaviour.measure.measure(subject)["kl"].sel(predictor="bigram")
    assert np.allclose(data["kl_full"], expected, rtol=1e-5)
    assert np.allclose(data["worth"].sum("path"), data["kl_empty"] - data["kl_full"])
    held = data["share"].sum("path", skipna=False)
    assert np.allclose(held[np.isfinite(held)], 1)


def test_intervals_hold_their_values():
    data, scores, _ = answers(run_of(split(0.75)))
    low, high = scores["gain"].interval
    assert low < scores["gain"].value < high
    for name, score in scores.items():
        if name.startswith("share_"):
            assert score.interval[0] <= score.value <= score.interval[1]
    assert not data["worth_error"].any()


def test_where_the_chain_is_redrawn_no_table_could_hold_it():
    run = run_of(random_run("plain").model(), source=DirichletChains(n_states=3))
    why = storage.applies(Subject.of(run, sequences=8))
    assert "redraws its chain" in why
    result = mm.probe(run_of(direct_table(LOG_P, n_ctx=8)), ["behaviour"], sequences=16)
    assert result.failed == {}
    assert storage.applies(Subject.of(run_of(direct_table(LOG_P, n_ctx=8)), sequences=8)) is None


@pytest.mark.parametrize(
    "shape",
    ["plain", "LN and MLP", "grouped queries"]
    + [
        pytest.param(shape, marks=pytest.mark.system)
        for shape in ("RMSPre, tied", "window of itself alone", "Qwen3", "GPT-NeoX")
    ],
)
def test_steps_probed_together_are_each_probed_alone(shape, recorded):
    together = storage.probe.measure(recorded(shape))
    for step in range(2):
        alone = storage.probe.measure(recorded(shape, steps=(10 * step,)))
        for name, values in alone.data_vars.items():
            if "step" in values.dims:
                of_stack = together[name].isel(step=[step])
                assert np.allclose(of_stack, values, rtol=1e-4, atol=1e-5, equal_nan=True), name


@pytest.mark.parametrize("build", [value_table, mlp_table, direct_table])
def test_renaming_states_changes_no_score(build):
    noise = 0.3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    run = run_of(build(LOG_P + noise, n_ctx=6))
    subject = subject_of(run, sequences=16)
    changed, batch = relabelled(run, subject.batch, [2, 0, 1])
    moved = Subject(changed, changed.model(steps=[0]), batch, axis="step", coordinates=[0])
    ours, theirs = (storage.scores(storage.probe.measure(s), None) for s in (subject, moved))
    assert set(ours) == set(theirs)
    for name, score in ours.items():
        if isinstance(score.value, str) or score.value is None:
            assert score.value == theirs[name].value
        else:
            assert score.value == pytest.approx(theirs[name].value, abs=1e-5), name


def test_figures_show_shares_tables_ranks_and_training():
    data, _, _ = answers(run_of(split(0.2), split(0.75)), steps="all")
    titles = [figure.title for figure in storage.probe.figures(data)]
    assert titles[:3] == ["What each path gives", "Sufficient, necessary", "What L0H0 says of the next state"]
    assert "What is left of the loss when L0H0.OV is cut to a rank" in titles
    assert "What each path gives over training" in titles
    assert float(data["share"].sel(step=0, path="direct")) > 0.6
    assert CHAIN.n_states == len(data["state_from"])


@pytest.mark.parametrize("gain", [0.5, 2.0, 5.0])
def test_heads_that_cancel_hold_nothing_and_are_named(gain):
    result = probe_quickly(run_of(cancelling_tables(LOG_P, n_ctx=8, gain=gain)), ["alignment", "storage"])
    scores, said = result["storage"].scores, result["storage"].claims
    assert scores["bigram_home"].value == "direct" == result["alignment"].scores["path"].value
    assert scores["share_direct"].value == pytest.approx(1, abs=1e-6)
    for head in ("L0H0", "L0H1"):
        assert scores[f"share_{head}"].value is None
        reason = scores[f"share_{head}"].reason
        assert all(part in reason for part in ("L0H0 (+", "L0H1 (-", "cancel"))
    assert names_in(result["storage"], "stores", object="bigram") == [(("direct",), ("bigram",))]
    assert said.first("stores").value == pytest.approx(1, abs=1e-6)
    assert said.first("cancels").subject == ("L0H0", "L0H1")
    assert said.first("cancels").value == pytest.approx(0, abs=1e-6)


def test_what_could_cancel_either_of_two_is_said_to_work_against_both():
    result = probe_quickly(run_of(cancelling_tables(LOG_P, n_ctx=8, gain=1.0)), ["storage"])
    assert result["storage"].scores["bigram_home"].value == "direct + L0H0"
    said = result["storage"].claims
    assert said.first("stores").subject == ("direct", "L0H0")
    against = said.first("works_against")
    assert (against.subject, against.value) == (("L0H1",), pytest.approx(1, abs=0.1))


@pytest.mark.parametrize("n_ctx", [8, 9])
def test_a_bigram_at_every_other_position_is_one_whatever_the_length(n_ctx):
    models = (value_table(LOG_P, n_ctx, every=every) for every in (2, 1))
    found, whole = (probe_quickly(run_of(model), ["storage"])["storage"] for model in models)
    at = found.data["parent_gain_at"].isel(step=-1).values
    assert np.allclose(at[::2], at[0], atol=1e-5)
    assert (np.diff(at[1::2]) < 0).all()  # uniform attention tells less and less of the parent
    assert at[7] < 0.3 * at[0]
    assert found.scores["bigram_home"].value == "L0H0"
    assert 0.4 < found.scores["parent_gain"].value / whole.scores["parent_gain"].value < 0.8
