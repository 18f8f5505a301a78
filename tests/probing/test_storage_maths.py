"""The storage game and the split of the loss, against loops."""

import itertools

import numpy as np
import pytest
import torch
from mechmarkov.probes.storage import game as storage_game
from mechmarkov.probes.storage.game import share_out
from mechmarkov.probes.storage.measure import by_parent, shares
from mechmarkov.probes.storage.truncation import PARTS, loss_parts, truncations
from models_by_hand import PI
from probing_cases import P3, RAW_LOG, random_run, run_of, subject_of

from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.objectives import Objective
from mechmarkov.probing import Subject
from mechmarkov.probing.effects import positions_in_turn
from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.sources import LaggedChain
from mechmarkov.theory import shapley
from mechmarkov.theory.kernel import FLOOR


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / np.maximum(q, 1e-12))).sum())


def predict(scores: np.ndarray, kind: str) -> np.ndarray:
    values = np.exp(scores - scores.max()) if kind == "cross_entropy" else np.maximum(scores, 0)
    return values / values.sum() if values.sum() else np.full(len(values), 1 / len(values))


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG], ids=["softmax", "raw scores"])
@pytest.mark.parametrize("shape", ["plain", "LN and MLP"])
def test_shares_are_those_of_all_orders_of_restoring_paths(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective, n_layers=1), sequences=4)
    paths, batch = subject.recorded(PATHS), subject.batch
    n = len(paths.names)
    for member in range(2):
        found = share_out(subject, member)
        for b in range(4):

            def nats(present: frozenset[int], b=b, member=member) -> float:
                values = []
                for r in range(len(batch.read)):
                    scores = subject.recorded(SCORES)[member, b, r].astype(float)
                    for i in set(range(n)) - present:
                        scores = scores - paths.logits[member, i, b, r] + paths.mean[member, i]
                    values.append(kl(P3[batch.parents[b, r]], predict(scores, objective.kind)))
                return float(np.mean(values))

            everybody = frozenset(range(n))
            assert found.empty[b] == pytest.approx(nats(frozenset()), rel=1e-6)
            assert found.full[b] == pytest.approx(nats(everybody), rel=1e-6)
            worth = np.zeros(n)
            for order in itertools.permutations(range(n)):
                present: frozenset[int] = frozenset()
                for i in order:
                    worth[i] += nats(present) - nats(present | {i})
                    present = present | {i}
            worth /= len(list(itertools.permutations(range(n))))
            assert np.allclose(found.worth[:, b], worth, rtol=1e-5, atol=1e-9)
            for i in range(n):
                assert found.only[i, b] == pytest.approx(nats(frozenset({i})), rel=1e-6)
                assert found.without[i, b] == pytest.approx(nats(everybody - {i}), rel=1e-6)


def test_many_paths_are_sampled_and_come_near_the_exact_shares(monkeypatch):
    subject = subject_of(random_run("LN and MLP", n_steps=1), sequences=8)
    exact = share_out(subject, 0)
    assert not exact.error.any()
    monkeypatch.setattr(shapley, "EXACT_PLAYERS", 2)
    sampled = share_out(subject, 0)
    assert (sampled.error > 0).any()
    assert np.allclose(sampled.worth.sum(0), sampled.empty - sampled.full)
    assert np.all(np.abs(sampled.worth.mean(-1) - exact.worth.mean(-1)) <= 4.5 * sampled.error + 1e-9)


def test_fewer_predictions_are_looked_at_where_there_are_many(monkeypatch):
    subject = subject_of(random_run("plain", n_layers=1), sequences=40)
    whole = share_out(subject, 0)
    monkeypatch.setattr(storage_game, "MAX_SCORES", 8 * 3 * 40 * 3)
    part = share_out(subject, 0)  # three positions of each sequence
    assert part.worth.shape == whole.worth.shape
    assert np.allclose(part.worth.mean(-1), whole.worth.mean(-1), atol=0.5)
    monkeypatch.setattr(storage_game, "MAX_SCORES", 1)
    assert share_out(subject, 0).worth.shape == (3, 32)


def test_the_split_of_the_loss_is_that_of_nested_means():
    rng = np.random.default_rng(0)
    subject = subject_of(random_run("plain"), sequences=5)
    batch = subject.batch
    q = rng.dirichlet(np.ones(3), size=(2, 5, 7))
    law = P3[batch.parents.numpy()]
    found = loss_parts(torch.tensor(q), torch.tensor(law), batch)
    for member in range(2):
        mean = q[member].mean((0, 1))
        losses = [np.log(3), 0.0, 0.0, 0.0]
        for b in range(5):
            for t in range(7):
                parent = int(batch.parents[b, t])
                given = q[member][batch.parents.numpy() == parent].mean(0)
                for i, predicted in enumerate((mean, given, q[member, b, t])):
                    losses[i + 1] += -float((law[b, t] * np.log(predicted)).sum()) / 35
        assert np.allclose(found[member], -np.diff(losses))
        assert found[member, PARTS.index("context")] <= 0
        assert found[member].sum() == pytest.approx(losses[0] - losses[-1])


def test_curves_end_at_the_model_and_begin_without_the_weight():
    decoder = value_table(torch.tensor(np.log(P3)).float(), n_ctx=6)
    subject = subject_of(run_of(decoder), sequences=32)
    cuts = truncations(subject, subject.batch).isel(step=0)
    of_value = cuts.sel(weight="L0H0.OV")
    curve = of_value["rank_parts"].sel(part="bigram")
    assert float(curve.sel(rank=0)) == pytest.approx(0, abs=1e-6)
    assert float(curve.sel(rank=3)) == pytest.approx(float(cuts["loss_parts"].sel(part="bigram")), abs=1e-6)
    assert of_value["rank_kept"].sel(rank=3) == 3
    # By hand: the table cut to rank one.
    left, values, right = np.linalg.svd(np.log(P3))
    table = values[0] * np.outer(left[:, 0], right[0])
    parents = subject.batch.parents.numpy().ravel()
    rows = np.stack([predict(row, "cross_entropy") for row in table])
    mean = rows[parents].mean(0)
    expected = np.mean([float(P3[x] @ (np.log(rows[x]) - np.log(mean))) for x in parents])
    assert float(curve.sel(rank=1)) == pytest.approx(expected, abs=1e-6)


def test_the_context_part_is_what_lies_behind_the_parent():
    """Of a chain whose parent is two back, neighbours are independent: all there is to learn is context."""
    decoder = value_table(torch.tensor(np.log(P3)).float(), n_ctx=12, lag=2)
    subject = subject_of(run_of(decoder, source=LaggedChain(P3, lag=2)), sequences=512)
    parts = truncations(subject, subject.batch)["loss_parts"][0].to_series()
    history, q = subject.batch.history.numpy(), subject.probabilities[0]
    law = np.concatenate([np.broadcast_to(PI, (512, 1, 3)), P3[history[:, :-1]]], axis=1)
    assert parts.sum() == pytest.approx(np.log(3) + (law * np.log(q)).sum(-1).mean())
    # The first of 12 predictions has no token two back, and follows the parent in vain.
    gained, lost = (PI @ (p * np.log(P3 / PI)).sum(1) for p in (P3, PI))
    assert parts["context"] == pytest.approx((11 * gained + lost) / 12, rel=0.05)


def test_frozen_weights_are_not_cut():
    run = random_run("plain", n_layers=1)
    frozen = run_of(run.model(), trainable={"blocks.0.attn.W_O": None, "unembed.b_U": None})
    subject = subject_of(frozen, sequences=4)
    assert truncations(subject, subject.batch)["weight"].values.tolist() == ["L0H0.OV", "L0H1.OV"]


@pytest.mark.parametrize("parameter", ["W_Q", "W_K", "W_V", "W_O"])
def test_a_circuit_is_cut_whichever_of_its_parameters_was_trained(parameter):
    run = run_of(random_run("plain", n_layers=1).model(), trainable={f"blocks.0.attn.{parameter}": None})
    subject = subject_of(run, sequences=4)
    circuit = "QK" if parameter in ("W_Q", "W_K") else "OV"
    assert truncations(subject, subject.batch)["weight"].values.tolist() == [
        f"L0H0.{circuit}",
        f"L0H1.{circuit}",
    ]


def test_weights_that_are_zero_or_alike_have_no_rank_of_their_own():
    """All singular values are one: any rank keeps all, so that no direction is singled out."""
    decoder = random_run("plain", n_layers=1).model()
    state = decoder.state_dict()
    state["blocks.0.attn.W_V"] = torch.zeros_like(state["blocks.0.attn.W_V"])
    state["embed.W_E"] = 0.3 * torch.eye(3, 8)
    decoder.load_state_dict(state)
    subject = subject_of(run_of(decoder), sequences=4)
    kept = truncations(subject, subject.batch)["rank_kept"][0]
    for weight in ("L0H0.OV", "W_E"):
        assert kept.sel(weight=weight).dropna("rank").values.tolist() == [0, 3, 3, 3]


@pytest.mark.parametrize("sequences", [5, 9])
def test_setting_the_parent_is_a_loop_over_states_and_positions(sequences):
    subject = subject_of(random_run("plain", n_steps=2), sequences=sequences)
    heats = np.array([1.0, 2.5])  # of each model
    data = by_parent(subject, heats)
    logs = np.log(P3) - np.log(P3).mean(-1, keepdims=True)
    logs = logs - PI @ logs
    turns = positions_in_turn(sequences, 7).tolist()
    assert len(set(turns)) == min(sequences, 7)
    for member in range(2):
        total: dict[int, list[float]] = {}
        slopes = []
        for sequence, at in zip(subject.batch.history, turns, strict=True):
            rows = []
            for state in range(3):
                edited = sequence.clone()
                edited[at] = state
                logits = subject.decoder[member](edited[None])[0, at].detach().double().numpy()
                heated = predict(logits, "cross_entropy") ** (1 / heats[member])
                rows.append(heated / heated.sum())
            mean = sum(p * row for p, row in zip(PI, rows, strict=True))
            along = sum(PI[x] * logs[x] @ np.log(np.maximum(rows[x], FLOOR)) for x in range(3))
            slopes.append(along / sum(PI[x] * logs[x] @ logs[x] for x in range(3)))
            nearer = sum(PI[x] * (kl(P3[x], mean) - kl(P3[x], rows[x])) for x in range(3))
            total.setdefault(at, []).append(nearer)
        means = {at: np.mean(values) for at, values in total.items()}
        for at in range(7):
            expected = (
                pytest.approx(means[at], rel=1e-5) if at in means else pytest.approx(np.nan, nan_ok=True)
            )
            assert float(data["parent_gain_at"][member, at]) == expected
        mean = np.mean(list(means.values()))
        assert float(data["parent_gain"][member]) == pytest.approx(mean, rel=1e-5)
        assert float(data["parent_slope"][member]) == pytest.approx(np.mean(slopes), rel=1e-4, abs=1e-6)


def test_every_position_takes_its_turn_before_any_takes_two():
    assert sorted(positions_in_turn(7, 7).tolist()) == list(range(7))
    assert sorted(positions_in_turn(14, 7).tolist()) == sorted([*range(7)] * 2)
    few = positions_in_turn(16, 64)
    assert 6 <= int((few % 2).sum()) <= 10  # odd ones as often as even ones


def coverage(found: list[tuple[float, float]], truth: float) -> int:
    return sum(low <= truth <= high for low, high in found)


@pytest.mark.repeated
def test_ninety_five_percent_intervals_of_shares_hold_the_share_in_ninety_five_percent():
    """100 evaluations of one model with 64 sequences each, against one with 100 times as many."""
    decoder = value_table(0.6 * torch.tensor(np.log(P3)).float(), n_ctx=8)
    with torch.no_grad():
        decoder.get_parameter("unembed.W_U")[:3] = torch.tensor(np.log(P3[[1, 2, 0]])) * 0.3
    run = run_of(decoder)
    truth = shares(Subject.of(run, seed=10_000, sequences=6400)).isel(step=-1)
    found = [shares(Subject.of(run, seed=seed, sequences=64)).isel(step=-1) for seed in range(100)]
    # Of 100 draws at 95 % fewer than 89 come out once in a hundred.
    for name in ("share", "gain"):
        at = {"path": "L0H0"} if name == "share" else {}
        ends = [(float(d[f"{name}_low"].sel(at)), float(d[f"{name}_high"].sel(at))) for d in found]
        assert coverage(ends, float(truth[name].sel(at))) >= 89
