"""Ablation: effects against models edited by hand, known answers, and what must not matter."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from mechmarkov.probes.ablation import components, cut_paths
from mechmarkov.probes.ablation.joint import resampled_interval
from models_by_hand import LOG_P, PI, relabelled
from probing_cases import P3, RAW_LOG, ask, parent_logits, random_run, run_of, subject_of, walk_run
from scipy.special import stdtrit

from mechmarkov.interventions.tokens import SHUFFLES, shuffle_context
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import ablation
from mechmarkov.probing import Subject
from mechmarkov.probing.effects import positions_in_turn, sequences_for
from mechmarkov.sources import Chain, Circle, DirichletChains, LaggedChain

WRONG = [1, 2, 0]

answers = partial(ask, ablation.probe)


def measures(decoder: HookedDecoder, subject: Subject, tokens=None, read=None) -> np.ndarray:
    """Loss, KL from the bigram and KL from the unigram of each sequence, by loops: `[measure, batch]`."""
    batch = subject.batch
    logits = decoder(batch.tokens if tokens is None else tokens).detach().double().numpy()
    found = np.zeros((3, len(logits)))
    positions = range(len(batch.read)) if read is None else [read]
    for b in range(len(logits)):
        for r in positions:
            scores = logits[b, batch.read[r]]
            is_softmax = subject.objective.kind == "cross_entropy"
            q = np.exp(scores - scores.max()) if is_softmax else np.maximum(scores, 0)
            q = q / q.sum() if q.sum() else np.full(3, 1 / 3)
            q = np.maximum(q, 1e-12)
            row = P3[batch.parents[b, r]]
            found[0, b] -= np.log(q[batch.targets[b, r]])
            found[1, b] += (row * np.log(row / q)).sum()
            found[2, b] += (PI * np.log(PI / q)).sum()
    return found / len(positions)


def edited(model: HookedDecoder, **zero: object) -> HookedDecoder:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, head in zero.items():
        tensor = state[name.replace("__", ".")]
        (tensor if head is None else tensor[head]).zero_()
    copy = HookedDecoder(model.config)
    copy.load_state_dict(state)
    return copy


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG, Objective(kind="squared", read="last")])
def test_effects_are_those_of_models_edited_by_hand(objective):
    subject = subject_of(random_run("LN and MLP", n_steps=2, objective=objective), sequences=10)
    data = components.of_components(subject, subject.batch)
    models = {
        "embed": {"embed__W_E": None},
        "pos_embed": {"pos_embed__W_pos": None},
        "L0H1": {"blocks__0__attn__W_O": 1},
        "L1.mlp": {"blocks__1__mlp__W_out": None, "blocks__1__mlp__b_out": None},
    }
    for member in range(2):
        decoder = subject.decoder[member]
        clean = measures(decoder, subject)
        assert np.allclose(data["clean"][member], clean.mean(1), rtol=1e-5)
        for name, zero in models.items():
            changed = measures(edited(decoder, **zero), subject) - clean
            at = {"component": name, "kind": "zero"}
            assert np.allclose(data["effect"][member].sel(at), changed.mean(1), rtol=1e-4, atol=1e-5), name
            error = changed.std(1) / np.sqrt(10)
            width = (data["effect_high"] - data["effect_low"])[member].sel(at)
            assert np.allclose(width, 2 * 1.96 * error, rtol=0.25, atol=1e-5), name


def test_kinds_that_cannot_be_are_missing_and_all_others_are_there():
    subject = subject_of(random_run("LN and MLP"), sequences=8)
    effect = ablation.probe.measure(subject)["effect"].isel(step=0).sel(measure="loss")
    there = {
        str(name): [str(kind) for kind in effect["kind"].values[np.isfinite(effect.sel(component=name))]]
        for name in effect["component"].values
    }
    assert there["pos_embed"] == there["bias"] == ["zero"]
    assert there["embed"] == there["direct"] == ["zero", "mean", "resample"]
    assert there["L0.mlp"] == ["zero", "mean", "resample", "same_token"]
    assert there["L1H1"] == ["zero", "mean", "resample", "same_token", "uniform", "parent"]


@pytest.mark.parametrize(
    ("build", "part"), [(direct_table, "direct"), (value_table, "L0H0"), (mlp_table, "L0.mlp")]
)
def test_the_part_that_holds_the_bigram_is_the_one_that_is_needed(build, part):
    run = run_of(build(LOG_P, n_ctx=8))
    data, scores, claims = answers(run, null=True)
    assert scores["largest_effect_component"].value == part
    # At its mean over sequences, position by position, the model predicts the mean of the logits there.
    batch = Subject.of(run, sequences=64).batch
    rows = np.log(P3)[batch.parents.numpy()]
    mean = rows.mean(0) - np.log(np.exp(rows.mean(0)).sum(-1, keepdims=True))
    targets = batch.targets.numpy()
    taken = np.take_along_axis(np.broadcast_to(mean, rows.shape), targets[..., None], -1)[..., 0]
    clean = np.take_along_axis(rows, targets[..., None], -1)[..., 0]
    assert scores["largest_effect"].value == pytest.approx(float((clean - taken).mean()), abs=1e-5)
    assert scores["largest_effect"].interval[0] < scores["largest_effect"].value
    assert scores["largest_effect"].null[2] < scores["largest_effect"].value
    for other in set(data["component"].values) - {part, "embed", "pos_embed", "bias"}:
        assert float(data["effect"].sel(component=other, kind="mean", measure="loss").squeeze()) == 0
    most = claims.first("is_needed_most")
    assert (most.subject, most.is_shown) == ((part,), True)
    assert most.value == pytest.approx(0.27, abs=0.01)
    assert (scores["parent_swap_followed"].value, scores["parent_swap_followed"].reason) == (1, None)
    assert scores["history_effect"].value == pytest.approx(0, abs=1e-6)


def test_another_history_with_the_same_token_is_no_matter_to_a_bigram():
    data, _, _ = answers(run_of(value_table(LOG_P, n_ctx=8)))
    head = data["effect"].isel(step=-1).sel(component="L0H0")
    assert np.allclose(head.sel(kind="same_token"), 0, atol=1e-6)
    assert float(head.sel(kind="resample", measure="kl_bigram")) > 0.3
    assert np.allclose(head.sel(kind="parent"), 0, atol=1e-6)
    assert float(head.sel(kind="uniform", measure="kl_bigram")) > 0.05


def test_paths_say_what_goes_where():
    data, _, _ = answers(run_of(value_table(LOG_P, n_ctx=8)))
    loss = data["path_effect"].isel(step=-1).sel(measure="loss", path_kind="mean")
    whole = float(data["effect"].isel(step=-1).sel(component="L0H0", kind="mean", measure="loss"))
    assert float(loss.sel(path="L0H0 → logits")) == pytest.approx(whole, abs=1e-6)
    assert float(loss.sel(path="embed → L0H0.V")) == pytest.approx(whole, abs=1e-6)
    for path in ("embed → L0H0.Q", "embed → L0H0.K", "embed → logits"):
        assert float(loss.sel(path=path)) == pytest.approx(0, abs=1e-6)
    positions = data["path_effect"].isel(step=-1).sel(measure="kl_bigram", path_kind="zero")
    assert float(positions.sel(path="pos_embed → L0H0.K")) > 0.05
    assert str(data["sender"].sel(path="embed → L0H0.V").values) == "embed"
    assert str(data["receiver"].sel(path="embed → L0H0.V").values) == "L0H0.V"


def test_a_head_at_lag_three_needs_a_window_of_three():
    P3_3 = np.linalg.matrix_power(P3, 3)
    data, scores, _ = answers(run_of(value_table(torch.tensor(np.log(P3_3)).float(), n_ctx=12, lag=3)))
    kl = data["window_effect"].isel(step=-1).sel(measure="kl_bigram")
    assert [int(w) for w in data["window"].values] == [1, 2, 4, 8]
    assert np.allclose(kl.sel(window=[4, 8]), 0, atol=1e-6)
    assert np.abs(kl.sel(window=[1, 2])).min() > 1e-3
    assert scores["parent_swap_followed"].value < 0.6


def test_a_query_model_sees_its_parent_in_a_window_of_one():
    source = Circle(n_states=6, p=0.3)
    data, scores, _ = answers(walk_run(source, source.P.T, parent_logits(13)))
    assert np.allclose(data["window_effect"].sel(measure="loss"), 0, atol=1e-5)
    assert scores["largest_effect_component"].value == "L0H0"
    assert (scores["largest_effect"].null, scores["largest_effect"].null_kind) == (
        0.0,
        "a part without information",
    )
    assert "direct" not in data["component"].values
    assert np.allclose(data["effect"].sel(component="L0H0", kind=["parent", "same_token"]), 0, atol=1e-5)
    assert scores["parent_swap_followed"].value == 1
    assert np.allclose(data["swap_kl"].sel(row="swapped"), 0, atol=1e-6)


def test_shuffles_are_judged_by_hand():
    subject = subject_of(random_run("plain", n_steps=1), sequences=20)
    data, model = ablation.probe.measure(subject), subject.decoder[0]
    clean = measures(model, subject, read=-1)
    for which in SHUFFLES:
        tokens = shuffle_context(subject.batch.history, which)
        changed = measures(model, subject, tokens, read=-1) - clean
        assert np.allclose(data["shuffle_effect"][0].sel(shuffle=which), changed.mean(1), atol=1e-5)


def test_parents_are_swapped_at_every_position_in_turn():
    subject = subject_of(random_run("plain", n_steps=1), sequences=20)
    data, model, history = ablation.probe.measure(subject), subject.decoder[0], subject.batch.history
    turns = positions_in_turn(20, 7).tolist()
    kls, followed = np.full((20, 2), np.nan), np.full(20, np.nan)
    for b, at in enumerate(turns):
        others = [history[(b + i) % 20, at] for i in range(20)]
        other = next((state for state in others if state != history[b, at]), None)
        if other is None:
            continue
        edited = history[b].clone()
        edited[at] = other
        q, before = (
            model(one[None])[0, at].softmax(-1).detach().double().numpy() for one in (edited, history[b])
        )
        for i, parent in enumerate((int(other), int(history[b, at]))):
            kls[b, i] = (P3[parent] * np.log(P3[parent] / q)).sum()
        towards = ((P3[int(other)] - P3[int(history[b, at])]) * np.log(q / before)).sum() > 0
        followed[b] = towards and kls[b, 0] < kls[b, 1]
    assert np.allclose(data["swap_kl"][0], np.nanmean(kls, axis=0), atol=1e-6)
    assert float(data["swap_followed"][0]) == pytest.approx(np.nanmean(followed))
    for at in range(7):
        expected = np.nanmean(followed[np.array(turns) == at])
        assert float(data["swap_followed_at"][0].sel(position=at)) == pytest.approx(expected)


def test_the_parent_of_a_lagged_source_is_the_token_that_the_next_depends_on():
    source = LaggedChain(P3, lag=3)
    data, scores, _ = answers(run_of(value_table(LOG_P, n_ctx=12, lag=3), source=source))
    assert scores["parent_swap_followed"].value == 1
    assert np.allclose(data["swap_kl"].sel(row="swapped"), 0, atol=1e-6)
    _, scores, _ = answers(run_of(value_table(LOG_P, n_ctx=12, lag=1), source=source))
    assert scores["parent_swap_followed"].value < 0.6


def test_a_prediction_that_is_nearer_to_the_rarer_row_anyway_follows_no_parent():
    """It reads the token before the parent alone, and leans to what follows state 1 whatever came."""
    source = Chain([[0.95, 0.05], [0.45, 0.55]])
    model = value_table(torch.tensor(np.log(source.P @ source.P)).float(), 16, lag=2)
    with torch.no_grad():
        model.get_parameter("unembed.b_U").copy_(torch.tensor([0.0, 3.0]))
    data, scores, _ = answers(run_of(model, source=source))
    swapped = data["swap_kl"].isel(step=-1)
    assert float(swapped.sel(row="swapped")) < float(swapped.sel(row="original"))
    assert scores["parent_swap_followed"].value == pytest.approx(0.5, abs=0.05)  # the first reads itself


def test_a_prediction_that_moves_away_from_the_new_row_does_not_follow():
    """It is surer of state 1 than either row, whatever came, and a little less where state 1 came."""
    source = Chain([[0.95, 0.05], [0.45, 0.55]])
    model = direct_table(torch.tensor(-0.1 * np.log(source.P)).float(), 16)
    with torch.no_grad():
        model.get_parameter("unembed.b_U").copy_(torch.tensor([0.0, 3.0]))
    _, scores, _ = answers(run_of(model, source=source))
    assert scores["parent_swap_followed"].value == 0


def test_wrong_circuits_and_none_at_all_are_not_needed():
    _, scores, claims = answers(run_of(value_table(LOG_P[WRONG], n_ctx=8)))
    assert scores["largest_effect_component"].value is None
    assert claims.first("is_needed_most").status != "shown"
    assert claims.first("is_needed", subject="L0H0").condition("does harm")
    unigram = direct_table(torch.zeros(3, 3), n_ctx=8)
    with torch.no_grad():
        unigram.unembed.b_U.copy_(torch.tensor(np.log(PI)))
    data, scores, claims = answers(run_of(unigram))
    assert scores["largest_effect"].value == 0
    assert scores["largest_effect_component"].value is None
    assert "worth 0.001 nats" in scores["largest_effect_component"].reason
    assert claims.first("is_needed_most").status == "excluded"
    bias = data["effect"].isel(step=-1).sel(component="bias", kind="zero", measure="kl_unigram")
    assert float(bias) == pytest.approx(float((PI * np.log(3 * PI)).sum()), abs=1e-6)


def test_the_exact_trap_needs_nothing():
    run = walk_run(Circle(n_states=6, p=1.0), np.full((6, 6), 0.37), np.zeros(13))
    data, scores, _ = answers(run)
    assert scores["largest_effect_component"].value is None
    assert np.allclose(data["effect"].sel(component="L0H0", kind="mean"), 0, atol=1e-9)
    assert scores["parent_swap_followed"].value == 0.5


def test_sequences_that_all_end_alike_have_no_parent_to_swap():
    absorbing = Chain([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    data, scores, claims = answers(run_of(direct_table(LOG_P, n_ctx=8), source=absorbing), sequences=8)
    assert np.isnan(data["swap_followed"]).all()
    assert scores["parent_swap_followed"].value is None
    assert "a swap tells nothing" in scores["parent_swap_followed"].reason
    assert claims.first("follows").status == "does not apply"


def test_redrawn_chains_are_judged_by_in_context_predictors():
    run = run_of(random_run("plain").model(), source=DirichletChains(n_states=3))
    subject = Subject.of(run, sequences=12)
    data = ablation.probe.measure(subject)
    law = subject.exact["in_context_bigram"]
    q = subject.probabilities[0]
    expected = (law * np.log(law / np.maximum(q, 1e-12))).sum(-1).mean()
    assert float(data["clean"][0].sel(measure="kl_bigram")) == pytest.approx(expected, rel=1e-5)
    assert data.attrs["bigram"] == "in-context bigram"


def test_very_many_paths_are_those_between_the_parts_that_matter(monkeypatch):
    subject = subject_of(random_run("LN and MLP"), sequences=8)
    whole = ablation.probe.measure(subject)
    assert whole.attrs["paths_left_out"] == 0
    monkeypatch.setattr(cut_paths, "MAX_PATHS", 20)
    monkeypatch.setattr(cut_paths, "MAX_PATHS_ALL_KINDS", 5)
    part = ablation.probe.measure(subject)
    assert part.sizes["path"] <= 20
    assert part.attrs["paths_left_out"] == whole.sizes["path"] - part.sizes["path"]
    assert {str(kind) for kind in part["path_kind"].values} == {"zero", "mean"}
    common = part["path"].values
    ours = part["path_effect"].sel(path_kind="mean")
    assert np.allclose(ours, whole["path_effect"].sel(path=common, path_kind="mean"), equal_nan=True)


@pytest.mark.parametrize(
    "shape", ["LN and MLP", "shortformer", pytest.param("RMSPre, tied", marks=pytest.mark.system)]
)
def test_steps_probed_together_are_each_probed_alone(shape):
    run = random_run(shape, n_steps=2, n_layers=1 + (shape == "RMSPre, tied"))
    together = ablation.probe.measure(subject_of(run, sequences=8))
    for step in range(2):
        alone = ablation.probe.measure(subject_of(run, steps=[10 * step], sequences=8))
        for name, values in alone.drop_vars("in_group").data_vars.items():
            of_stack = together[name].isel(step=[step])
            if name.startswith("largest_") and step == 0:  # an earlier step has the bootstrap's
                ends = together[f"effect_{name[8:]}"].sel(kind="mean", measure="loss")[0]
                assert float(of_stack[0]) in ends.values
                continue
            if name == "effect_low" and step == 0:  # of a last step means are taken anew
                is_redrawn = (values["kind"] == "mean") & (values["measure"] == "loss")
                values = values.where(~is_redrawn, of_stack)
            if (
                name.startswith("path_effect") and step == 0
            ):  # an earlier step has means, and zeroed positions
                assert np.isfinite(of_stack.sel(path_kind="mean")).any()
                values = values.where(np.isfinite(of_stack))
            assert np.allclose(of_stack, values, rtol=1e-4, atol=1e-5, equal_nan=True), name


def test_models_in_several_chunks_are_models_in_one():
    subject = subject_of(random_run("LN and MLP", n_steps=3, n_layers=1), sequences=8)  # the earlier two
    whole = ablation.probe.measure(subject)
    part = ablation.probe.measure(replace(subject, chunk_elements=1))
    for name, values in whole.data_vars.items():
        assert np.allclose(part[name], values, rtol=1e-4, atol=1e-5, equal_nan=True), name


def test_renaming_states_changes_no_effect():
    run = random_run("LN and MLP", n_steps=2, n_layers=1)
    subject = subject_of(run, sequences=16)
    changed, batch = relabelled(run, subject.batch, [2, 0, 1])
    moved = Subject(changed, changed.model(steps=[0, 10]), batch, axis="step", coordinates=[0, 10])
    ours, theirs = ablation.probe.measure(subject), ablation.probe.measure(moved)
    for name, values in ours.data_vars.items():
        assert np.allclose(theirs[name], values, rtol=1e-4, atol=1e-5, equal_nan=True), name


def test_figures_show_parts_paths_windows_orders_and_training():
    data, _, _ = answers(run_of(value_table(LOG_P, n_ctx=8), value_table(0.5 * LOG_P, n_ctx=8)), steps="all")
    assert [figure.title for figure in ablation.probe.figures(data)] == [
        "What each part is worth",
        "What each path is worth",
        "How far back the model needs to see",
        "What the order of the context is worth",
        "Worth of each part over training",
    ]
    # Read as text by the report and the file: no objects.
    assert all(values.dtype.kind in "fi" for values in data.data_vars.values())


def test_the_interval_of_the_largest_effect_holds_whichever_part_is_the_largest():
    """Bonferroni over all that are ranked: two heads and the direct path."""
    subject = subject_of(random_run(n_layers=1), sequences=64)
    data = ablation.probe.measure(subject)
    ranked = components.ranked(data)
    name = max(ranked, key=ranked.__getitem__)
    _, high = resampled_interval(subject, sequences_for(subject), name)
    told = float(data["largest_high"][-1]) - ranked[name]  # the side without a bias
    assert len(ranked) == 3
    assert told / (high - ranked[name]) == pytest.approx(stdtrit(9, 1 - 0.025 / 3) / stdtrit(9, 0.975))


@pytest.mark.repeated
def test_the_interval_of_the_largest_effect_holds_it_in_ninety_five_percent():
    """60 evaluations with 64 sequences each, against one with 100 times as many; and it is not too wide."""
    run = run_of(value_table(0.7 * LOG_P, n_ctx=8))

    def one(seed: int, sequences: int) -> tuple[float, float, float]:
        subject = Subject.of(run, seed=seed, sequences=sequences)
        batch = subject.batch
        effect = components.effects_of_means(subject, batch)["effect"].sel(component="L0H0", measure="loss")
        return float(effect.squeeze()), *resampled_interval(subject, batch, "L0H0")

    truth = one(10_000, 6400)[0]
    found = np.array([one(seed, 64) for seed in range(60)])
    assert ((found[:, 1] <= truth) & (truth <= found[:, 2])).sum() >= 52
    width = (found[:, 2] - found[:, 1]).mean() / (2 * 1.96)
    assert 0.75 < width / found[:, 0].std() < 1.4
