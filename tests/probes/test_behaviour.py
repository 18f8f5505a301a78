"""Behaviour against loops over sequences and positions, with the softmax written out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from probing_cases import (
    CHAIN,
    P3,
    RAW_LOG,
    claims_of,
    parent_logits,
    random_run,
    run_of,
    subject_of,
    walk_run,
)

import mechmarkov as mm
from mechmarkov.claims.claim import MODEL, Claim, Where
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import behaviour
from mechmarkov.probing.batch import Batch
from mechmarkov.sources import Binary, Chain, Circle

pytestmark = pytest.mark.usefixtures("few_nulls")


def predict(scores: np.ndarray, kind: str) -> list[float]:
    if kind == "cross_entropy":
        weights = [math.exp(s - max(scores)) for s in scores]
    else:
        weights = [max(s, 0.0) for s in scores]
    total = sum(weights)
    return [w / total for w in weights] if total else [1 / len(weights)] * len(weights)


def exact_law(name: str, past: list[int], pi: np.ndarray) -> np.ndarray:
    if name == "uniform":
        return np.full(3, 1 / 3)
    if name == "unigram":
        return pi
    lag = {"bigram": 1, "step_2": 2, "step_3": 3, "step_4": 4}[name]
    return pi if len(past) < lag else np.linalg.matrix_power(P3, lag)[past[-lag]]


OBJECTIVES = [
    Objective(),
    Objective(read="last"),
    Objective(kind="squared"),
    RAW_LOG,
    Objective(kind="normalised_log", read="last"),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.kind}, {o.read}, query {o.query}")
def test_kls_losses_and_accuracies_are_those_of_a_loop(objective):
    subject = subject_of(random_run("plain", n_steps=2, objective=objective), sequences=5)
    data = behaviour.measure.measure(subject)
    batch = subject.batch
    pi = np.linalg.matrix_power(P3, 100)[0]
    for member in range(2):
        logits = subject.decoder[member](batch.tokens).detach().double().numpy()
        kls: dict[str, list[list[float]]] = {str(name): [] for name in data["predictor"].values}
        losses, best_losses, hits, best_hits, floored = [], [], [], [], 0
        implied, count = np.zeros((3, 3)), np.zeros(3)
        after: dict[int, list[tuple[float, ...]]] = {0: [], 1: [], 2: []}
        for b in range(5):
            for values in kls.values():
                values.append([])
            for q, parent in zip(batch.read.tolist(), batch.known.tolist(), strict=True):
                model = predict(logits[b, q], objective.kind)
                past = batch.history[b, : parent + 1].tolist()
                following = int(batch.following[b, parent])
                for name, values in kls.items():
                    law = exact_law(name, past, pi)
                    values[-1].append(
                        sum(p * math.log(p / max(m, 1e-12)) for p, m in zip(law, model, strict=True))
                    )
                truth = P3[past[-1]]
                losses.append(-math.log(max(model[following], 1e-12)))
                best_losses.append(-math.log(truth[following]))
                best = [j for j in range(3) if model[j] == max(model)]
                hits.append(sum(truth[j] for j in best) / len(best))
                best_hits.append(max(truth))
                floored += sum(m < 1e-12 for m in model)
                after[past[-1]].append((kls["bigram"][-1][-1], losses[-1], hits[-1]))
                implied[past[-1]] += model
                count[past[-1]] += 1
        now = data.isel(step=member)
        for name, values in kls.items():
            found = now.sel(predictor=name)
            assert float(found["kl"]) == pytest.approx(np.mean(values), rel=1e-5), name
            assert found["kl_at"].values == pytest.approx(np.mean(values, 0), rel=1e-5)
            error = np.std(np.mean(values, 1), ddof=1) / math.sqrt(5)
            assert float(found["kl_error"]) == pytest.approx(error, rel=1e-4)
            assert int(found["floored"]) == floored
        assert float(now["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
        assert float(now["best_loss"]) == pytest.approx(np.mean(best_losses), rel=1e-9)
        assert float(now["accuracy"]) == pytest.approx(np.mean(hits), rel=1e-6)
        assert float(now["optimal_accuracy"]) == pytest.approx(np.mean(best_hits), rel=1e-9)
        seen = count > 0
        assert now["implied"].values[seen] == pytest.approx(
            (implied.T / np.maximum(count, 1)).T[seen], abs=1e-5
        )
        assert np.isnan(now["implied"].values[~seen]).all()
        for state, rows in after.items():
            one = now.isel(state_from=state)
            found = [one["kl_after"].sel(predictor="bigram"), one["loss_after"], one["accuracy_after"]]
            expected = np.mean(rows, 0) if rows else [np.nan] * 3
            assert [float(value) for value in found] == pytest.approx(expected, rel=1e-5, nan_ok=True)


def test_headlines_are_the_last_steps_numbers_with_an_interval_around():
    subject = subject_of(random_run(n_steps=3), sequences=12)
    data = behaviour.measure.measure(subject)
    scores = behaviour.scores(data, None)
    for headline, name in [("kl_uniform", "uniform"), ("kl_unigram", "unigram"), ("kl_best", "bigram")]:
        value = float(data["kl"].sel(predictor=name, step=20))
        assert scores[headline].value == value
        low, high = scores[headline].interval
        assert low <= value <= high
        assert high - value == pytest.approx(1.96 * float(data["kl_error"].sel(predictor=name, step=20)))
    assert scores["excess_loss"].value == pytest.approx(float(data["loss"][-1] - data["best_loss"]))
    assert scores["kl_best"].value == scores["kl_bigram"].value


def closest(result):
    return result.claims.first("is_closest_to")


def test_a_nearest_predictor_that_sampling_cannot_tell_from_the_next_is_said_so():
    run = mm.example("graph")  # 0.50 nats from the in-context unigram, 0.60 from the in-context graph
    few = [closest(mm.probe(run, ["behaviour"], sequences=16, seed=seed)) for seed in range(6)]
    assert all(claim.status == "open" and "in_context_graph" in claim.object for claim in few)
    many = closest(mm.probe(run, ["behaviour"], sequences=4096))
    assert (many.object, many.status) == (("in_context_unigram",), "shown")
    assert many.condition("next law").words == ("in_context_graph",)


def test_scores_are_told_apart_from_what_is_right():
    """The graph's loss is on scores: as probabilities they are nearer to a law that is less often right."""
    graph = mm.probe(mm.example("graph"), ["behaviour"], sequences=2048)["behaviour"]
    assert graph.verdict.startswith("Its scores, as probabilities, are closest to the in-context unigram (KL")
    walk = mm.probe(mm.example("walk"), ["behaviour"], sequences=64)["behaviour"]
    assert "It is closest to the bigram (KL" in walk.verdict  # which is the best law


def test_one_sequence_has_no_error_and_breaks_nothing():
    scores = behaviour.scores(behaviour.measure.measure(subject_of(random_run(), sequences=1)), None)
    assert np.isfinite(scores["kl_bigram"].value)
    assert scores["kl_bigram"].interval is None


def named(table: np.ndarray, source, n_ctx: int = 6, sequences: int = 64):
    run = run_of(direct_table(torch.tensor(table).float(), n_ctx), source=source)
    return mm.probe(run, ["behaviour"], sequences=sequences)["behaviour"]


def test_each_predictor_is_named_at_zero_nats():
    pi = np.linalg.matrix_power(P3, 100)[0]
    for name, law in [("uniform", np.full((3, 3), 1 / 3)), ("unigram", np.tile(pi, (3, 1))), ("bigram", P3)]:
        found = named(np.log(law), CHAIN)
        assert found.scores["nearest_predictor"].value == name
        assert found.scores[f"kl_{name}"].value == pytest.approx(0, abs=1e-12)
        assert found.claims.first("imitates", object=name).is_shown
    between = named(np.log(0.7 * P3 + 0.3 / 3), CHAIN)
    assert not between.claims.where("imitates", status="shown")
    assert closest(between).object == ("bigram",)


@pytest.mark.parametrize(("share", "status"), [(0.15, "shown"), (0.19, "open"), (0.23, "excluded")])
def test_a_distance_at_the_limit_may_be_imitation(share, status):
    """A mixture with the uniform; at the limit 64 sequences leave it open."""
    found = named(np.log((1 - share) * P3 + share / 3), CHAIN)
    assert claims_of(behaviour.probe, found.data).first("imitates", object="bigram").status == status


def test_the_wrong_bigram_is_not_called_one():
    wrong = named(np.log(P3[[1, 2, 0]]), CHAIN)
    assert wrong.scores["kl_bigram"].value > 0.3
    assert not wrong.claims.where("imitates", status="shown")


def test_only_uniform_predictions_at_chance_accuracy_are_called_chance():
    blank = named(np.zeros((3, 3)), CHAIN).claims
    assert blank.first("is_right").condition("at chance")
    assert blank.first("imitates", object="uniform").is_shown
    # The right argmax with hardly any conviction: near the uniform in nats, but not at chance.
    slow = Binary(p=0.35, q=0.35)
    for P, source, sequences, n_ctx in ((P3, CHAIN, 512, 6), (np.array(slow.P), slow, 16, 128)):
        faint = named(0.01 * np.log(P), source, n_ctx, sequences)
        assert faint.scores["nearest_predictor"].value == "uniform"
        assert faint.claims.first("is_right").condition("at chance") is None
        assert faint.scores["accuracy"].value == pytest.approx(faint.scores["optimal_accuracy"].value)


def test_predictors_that_are_one_are_said_to_be_one():
    even = named(np.zeros((4, 4)), Chain(0.5 * (np.roll(np.eye(4), 1, 1) + np.roll(np.eye(4), 2, 1))))
    assert closest(even).condition("coincide").words == ("uniform", "unigram")
    coin = named(np.log(np.full((2, 2), 0.5)), Binary(p=0.5, q=0.5))
    every = ("uniform", "unigram", "bigram", "step_2", "step_3", "step_4")
    assert closest(coin).condition("coincide").words == every
    assert closest(coin).condition("next law") is None


def test_certainty_where_there_is_none_is_floored_and_said():
    # All on the likelier of two successors: half the truth is called impossible.
    source = Circle(n_states=6, p=0.5)
    found = mm.probe(
        walk_run(source, np.roll(np.eye(6), 1, 0), parent_logits(9)), ["behaviour"], sequences=32
    )
    behaved = found["behaviour"]
    expected = 0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1e-12)
    assert behaved.scores["kl_bigram"].value == pytest.approx(expected, rel=1e-6)
    assert int(behaved.data["floored"].sel(predictor="bigram")[-1]) == 32
    assert any(premise.name == "floored" and premise.value == 32 for premise in closest(behaved).because)
    # What the chain itself calls impossible is no error and no floor.
    exact = mm.probe(walk_run(source, source.P.T, parent_logits(9)), ["behaviour"], sequences=32)["behaviour"]
    assert int(exact.data["floored"].sel(predictor="bigram")[-1]) == 0
    assert exact.scores["kl_bigram"].value == pytest.approx(0, abs=1e-9)
    assert closest(exact).condition("floored") is None


def test_the_batch_is_the_same_object_for_all():
    subject = subject_of(random_run(), sequences=3)
    assert isinstance(subject.batch, Batch)
    assert subject.exact["bigram"] == pytest.approx(P3[subject.batch.parents.numpy()])


@pytest.mark.repeated
def test_intervals_of_excess_loss_and_accuracy_hold_the_truth_in_ninety_five_percent():
    """60 evaluations with 64 sequences each; the truth is exact, sums over states."""
    q = np.array([[0.5, 0.3, 0.2], [0.3, 0.1, 0.6], [0.3, 0.5, 0.2]])
    run = run_of(direct_table(torch.tensor(np.log(q)).float(), n_ctx=8))
    pi = np.linalg.matrix_power(P3, 100)[0]
    excess = float(pi @ (P3 * np.log(P3 / q)).sum(1))
    accuracy = float(pi @ P3[np.arange(3), q.argmax(1)])
    held = dict.fromkeys(("excess_loss", "accuracy", "kl_bigram"), 0)
    for seed in range(60):
        data = behaviour.measure.measure(mm.Subject.of(run, seed=seed, sequences=64))
        scores = behaviour.scores(data, None)
        for name, truth in (("excess_loss", excess), ("accuracy", accuracy), ("kl_bigram", excess)):
            low, high = scores[name].interval
            held[name] += low <= truth <= high
    assert min(held.values()) >= 52


def test_errors_of_a_mixture_are_those_of_new_sequences():
    """Its chains are fixed: what differs from batch to batch is which sequence has which."""
    rng = np.random.default_rng(0)
    source = mm.sources.ChainMixture(chains=rng.dirichlet(np.ones(3), size=(4, 3)).tolist())
    run = run_of(direct_table(torch.tensor(np.log(P3)).float(), n_ctx=32), source=source)
    drawn = [behaviour.measure.measure(mm.Subject.of(run, seed=seed, sequences=64)) for seed in range(40)]
    for value, error in (("left", "left_error"), ("excess", "kl_error")):
        values = np.array([float(data[value][0]) for data in drawn])
        told = np.mean([float(data.sel(predictor="bigram_retrieval")[error][0]) for data in drawn])
        assert 0.7 < told / values.std() < 1.4  # of 40 values it is known to about an eighth


def test_the_nearest_law_stands_next_to_its_null():
    run = run_of(direct_table(torch.tensor(np.log(P3)).float(), n_ctx=8))
    data = behaviour.measure.measure(mm.Subject.of(run, sequences=64))
    scores = behaviour.scores(data, None)
    null = (0.1, 0.2, 0.3)
    scores |= {name: replace(scores[name], null=null) for name in ("kl_best", "kl_bigram")}
    (closest,) = (one for one in behaviour.claims(data, scores) if one.relation == "is_closest_to")
    assert (closest.object[0], closest.null) == ("bigram", null)


def test_a_bar_is_the_distance_over_all_predictions():
    """The loss above a law that is not exact is another number."""
    law = ("in_context_bigram",)
    laws = (
        Claim((MODEL,), "is_closest_to", law, 0.0123),
        Claim((MODEL,), "imitates", law, 0.003, where=Where(positions=(1, 2))),
        Claim((MODEL,), "reaches", law, 0.0043),
    )
    tile = behaviour.probe.headline([replace(claim, probe="behaviour") for claim in laws])[0]
    assert tile.bars == {"in_context_bigram": 0.0123}


@pytest.mark.parametrize(
    ("excess", "error", "falls"),
    [((0.5, 0.3), 1e-6, True), ((0.5, 0.3), 10.0, False), ((0.3, 0.5), 1e-6, False)],
)
def test_a_loss_fell_where_it_clearly_did(excess, error, falls):
    data = behaviour.measure.measure(mm.Subject.of(random_run("plain", n_steps=2), steps="all", sequences=16))
    known = {"excess": ("step", np.array(excess)), "left_error": ("step", np.full(2, error))}
    data = data.assign(known | {"gap": 1.0})
    (reaches,) = (
        one for one in behaviour.claims(data, behaviour.scores(data, None)) if one.relation == "reaches"
    )
    fell = reaches.condition("the loss fell")
    assert (fell is not None) == falls
    assert fell is None or (fell.value == pytest.approx(0.2) and fell.words == (str(int(data["step"][0])),))
