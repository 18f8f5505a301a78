"""Alignment's numbers for every path and step, against numpy written out again."""

import numpy as np
import pytest
import torch
from models_by_hand import PI
from probing_cases import P3, RAW_LOG, random_run, run_of, subject_of

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import alignment
from mechmarkov.probing.recording import ATTENTION, SCORES
from mechmarkov.probing.value_circuits import path_tables
from mechmarkov.sources import Circle


def centre(table):
    table = table - table.mean(1, keepdims=True)
    return table - table.mean(0, keepdims=True)


def angle(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


OBJECTIVES = [Objective(), Objective(read="last"), RAW_LOG, Objective(kind="squared")]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.kind}, {o.read}, query {o.query}")
@pytest.mark.parametrize("shape", ["plain", "LN and MLP"])
def test_every_path_is_compared_as_the_loss_asks(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=20)
    data = alignment.probe.measure(subject)
    batch, tables = subject.batch, path_tables(subject)
    softmax = objective.kind == "cross_entropy"
    lag_mass, reach = subject.recorded(ATTENTION).lag_mass, subject.batch.reach.numpy()
    assert data["path"].values.tolist() == list(tables)
    for step in range(2):
        mean = subject.recorded(SCORES)[step].astype(float).mean((0, 1))
        for path, table in tables.items():
            C, here = table[step], data.isel(step=step).sel(path=path)
            m, rho = 1, 1.0
            if path[-2] == "H":
                by_lag = lag_mass[step, int(path[1]), int(path[3])]
                m = int(np.argmax((by_lag * reach)[1:])) + 1
                rho = by_lag[m]
            power = np.linalg.matrix_power(P3, m)
            target = np.log(power) if softmax else {"raw_log": np.sqrt(power)}.get(objective.kind, power)
            a, b = centre(C), centre(target)
            assert int(here["attended_lag"]) == m
            assert float(here["attended_mass"]) == pytest.approx(rho, abs=1e-6)
            assert float(here["kernel_cosine"]) == pytest.approx(angle(a, b), abs=1e-9)
            far = np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b))
            assert float(here["directional_distance"]) == pytest.approx(far, abs=1e-7)
            if softmax:
                fitted = np.polyfit(b.ravel(), rho * a.ravel(), 1)[0]
                assert float(here["kernel_slope"]) == pytest.approx(fitted, rel=1e-4, abs=1e-9)
            else:
                assert np.isnan(float(here["kernel_slope"]))
            # Alone: the path, and the mean of everything else over the sequences.
            states = [
                int(batch.history[i, t - m + 1])
                for i in range(20)
                for t in batch.known.tolist()
                if t >= m - 1
            ]
            scores = rho * C - rho * np.mean([C[s] for s in states], axis=0) + mean
            model = objective.predict(torch.from_numpy(scores)).numpy()
            rows = (power * np.log(power / np.maximum(model, 1e-12))).sum(1)
            assert float(here["kernel_kl"]) == pytest.approx(float(PI @ rows), rel=1e-4)
            unigram = float(PI @ (power * np.log(power / PI)).sum(1))
            assert float(here["gain"]) == pytest.approx(unigram - float(PI @ rows), rel=1e-3, abs=1e-6)
            hits = C.argmax(1) == power.argmax(1)
            assert float(here["recall"]) == pytest.approx(hits.mean())
            assert here["unigram"].values == pytest.approx(PI @ C)
            if softmax:
                lags = sorted({1, 2, 3, 4, m})
                powers = [np.linalg.matrix_power(P3, n) for n in lags]
                nats = [float(PI @ (Q * np.log(Q / np.maximum(model, 1e-12))).sum(1)) for Q in powers]
                assert int(here["best_lag"]) == lags[int(np.argmin(nats))]
                assert float(here["lag_margin"]) == pytest.approx(
                    np.diff(np.sort(nats))[0], rel=1e-2, abs=1e-6
                )


def test_the_best_path_is_the_one_with_the_most_nats_over_the_unigram():
    subject = subject_of(random_run(n_steps=3), sequences=20)
    data = alignment.probe.measure(subject)
    scores = alignment.scores(data, None)
    best = str(data["path"].values[int(np.argmax(data["gain"].values[-1]))])
    assert scores["path"].value == best
    for name in ("kernel_cosine", "kernel_slope", "kernel_kl", "best_lag", "recall"):
        assert scores[name].value == float(data[name].sel(path=best)[-1])


def test_figures_show_the_best_circuit_beside_its_target():
    outcome = mm.probe(random_run(n_steps=2), ["alignment"], steps="all", sequences=20)["alignment"]
    figures = outcome.figures()
    path = outcome.scores["path"].value
    m = int(outcome.data["attended_lag"].sel(path=path)[-1])
    named = "log P" + (f" of P^{m}" if m > 1 else "")
    assert figures[0].title == f"Value circuit of {path} next to {named}"
    circuit = centre(outcome.data["circuit"].sel(path=path)[-1].values)
    drawn = [np.array(trace.z, dtype=float) for trace in figures[0].content.data]
    assert drawn[0] == pytest.approx(circuit)
    target = centre(np.log(np.linalg.matrix_power(P3, m)))
    scale = (circuit * target).sum() / (target**2).sum()
    assert drawn[1] == pytest.approx(scale * target)
    assert drawn[2] == pytest.approx(circuit - scale * target)
    assert f"{scale:.3g} times" in figures[0].caption
    curves = figures[1].content.data
    assert [curve.name for curve in curves] == outcome.data["path"].values.tolist()


def test_of_a_chain_with_zeros_the_cosine_is_that_of_predictions():
    """Its log P is infinite: what is compared with P is what the path predicts alone."""
    source = Circle(n_states=6, p=0.5)
    table = value_table(8 * torch.tensor(source.P).float(), n_ctx=8)
    found = mm.probe(run_of(table, source=source), ["alignment"])
    matches = found.claims.first("matches")
    assert (matches.object, matches.unit, matches.is_shown) == (("P",), "cosine", True)
