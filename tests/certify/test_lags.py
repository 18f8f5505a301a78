"""Tables of the states at several lags: every sequence is below the bound, and each proof is confirmed."""

import json
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from certify_cases import (
    contexts_of,
    drawn,
    every_history,
    every_score,
    is_within,
    one_layer,
    small_run,
)

import mechmarkov as mm
from mechmarkov.certify import EXACT, FLOAT32, certify, checker, proof_of, verify
from mechmarkov.certify.sentence import sentences
from mechmarkov.cli import main
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.sources import Chain, LaggedChain, OrderK
from mechmarkov.theory.kernel import kl

P = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])


def looked_up(run, stored, histories):
    """The table's law at each position that is read; its rows count states as digits, the parent's lowest."""
    n, lags, table = run.source.n_states, stored["contexts"]["lags"], np.array(stored["table"])
    base = n + (len(lags) > 1)
    laws = []
    for read in stored["contexts"]["reads"]:
        last = read - run.objective.query
        at = [last + 1 - lag for lag in lags]
        digits = [histories[:, t] if t >= 0 else np.full(len(histories), n) for t in at]
        laws.append(table[sum(states * base**i for i, states in enumerate(digits))])
    return np.array(laws).transpose(1, 0, 2)


def seen_of(run, stored, unit):
    histories, scores = every_score(run, unit)
    q = run.objective.predict(torch.from_numpy(scores)).numpy()
    p = looked_up(run, stored, histories)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(q / np.where(p > 0, p, np.nan))
    return {
        "worst_kl": kl(p, q).max(),
        "log_ratio_below": -np.nanmin(ratios),
        "log_ratio_above": np.nanmax(ratios),
        "logit_error": (np.nanmax(ratios, -1) - np.nanmin(ratios, -1)).max(),
    }


@pytest.mark.parametrize(
    ("make", "count", "seed"),
    [
        (small_run, 12, 0),
        (drawn, 4, 5),
        pytest.param(small_run, 300, 1, marks=pytest.mark.slow),
        pytest.param(drawn, 60, 6, marks=pytest.mark.slow),
    ],
    ids=["one layer", "several layers", "many of one layer", "many of several layers"],
)
def test_no_sequence_is_above_the_bound_of_a_table(make, count, seed):
    rng, judged = np.random.default_rng(seed), 0
    for index in range(count):
        run, lags = make(rng), [(1, 2), (1, 3), (1, 2, 3)][rng.integers(3)]
        if lags[-1] > run.config.n_ctx - run.objective.query:
            continue
        for unit in (EXACT, FLOAT32):
            certificate = certify(run, "parent", lags=lags, unit=unit, tokens=1 << 10)
            if certificate.tier not in ("1", "1b", "2"):
                continue
            stored = proof_of(certificate, 0)
            verify(stored, run)
            assert is_within(stored["claims"], seen_of(run, stored, unit)), (index, lags)
            judged += 1
    assert judged > count / 3  # of contexts that are long enough, and with a bound


def test_a_head_that_reads_two_back_is_a_table_of_two():
    """A table of the parent is far from it; each row of two states is that of the earlier one."""
    run = mm.Run.from_model(value_table(np.log(P), 9, lag=2), source=Chain(P))
    assert certify(run, "parent").worst_kl > 0.1
    certificate = certify(run, "parent", lags=(1, 2))
    assert certificate.worst_kl < 1e-6
    stored = proof_of(certificate, int(run.steps[-1]))
    assert verify(stored, run)["worst_kl"] <= stored["claims"]["worst_kl"]
    table = certificate.program.table.reshape(4, 4, 3)  # the earlier state, the parent
    for earlier, parent in product(range(3), repeat=2):
        np.testing.assert_allclose(table[earlier, parent], P[earlier], atol=1e-3)
    assert "a 36-number table of the last 2 states" in sentences(certificate)[0]


@pytest.mark.parametrize(
    ("source", "lag", "looked_at"),
    [
        (LaggedChain(P, lag=2), 2, (1, 2)),
        (LaggedChain(P, lag=2), 1, (1,)),  # the parent is enough
        (OrderK([P.tolist()] * 3), 2, (1, 2)),
        (Chain(P), 2, (1,)),  # its next state depends on no other
    ],
)
def test_the_lags_of_a_source_are_tried(source, lag, looked_at):
    run = mm.Run.from_model(value_table(np.log(P), 9, lag=lag), source=source)
    certificate = certify(run)
    assert certificate.contexts.lags == looked_at
    assert (certificate.worst_kl < 1e-6) == (lag <= len(looked_at))


def test_a_lag_beyond_the_sequences_that_are_run_is_in_front_of_them():
    """All contexts of the first positions are run where no bound is known, and these are short."""
    certificate = certify(mm.example("induction"), "parent", lags=(1, 8), tokens=1 << 12)
    assert certificate.exhausted == 5


def test_a_vacuous_bound_gives_way_to_a_lower_one():
    """Behind a norm whose input may be near zero, what a normalised stream can score says more."""
    run = one_layer("LN and MLP", seed=3, scale=1.0, n_ctx=4)
    certificate = certify(run, "parent", tokens=1 << 10)
    assert certificate.tier == "norm"
    assert "vacuous" in certificate.why
    stored = proof_of(certificate, 0)
    assert verify(stored, run)["worst_kl"] <= stored["claims"]["worst_kl"]


def test_a_table_of_many_cases_is_not_tried(monkeypatch):
    monkeypatch.setattr("mechmarkov.certify.certificate.MOST_OWN_CASES", 15)
    run = mm.Run.from_model(value_table(np.log(P), 9, lag=2), source=LaggedChain(P, lag=2))
    assert certify(run).contexts.lags == (1,)
    assert certify(run, lags=(1, 2)).worst_kl < 1e-6


def test_positions_that_the_lags_do_not_tell_make_the_bound():
    """The head reads the first token at the first two positions, which have one row for each parent."""
    run = mm.Run.from_model(value_table(np.log(P), 9, lag=3), source=LaggedChain(P, lag=3))
    certificate = certify(run, "parent", lags=(1, 3))
    assert (certificate.kl_at[:2] > 0.1).all()
    assert (certificate.kl_at[2:] < 1e-6).all()
    assert "of the states at lags 1 and 3" in sentences(certificate)[0]


@pytest.mark.parametrize("lags", [(1,), (1, 2), (1, 3)])
def test_cases_are_those_of_the_sequences(lags):
    """With forbidden transitions: a case exists where a sequence is in it, in the search and the checker."""
    source = Chain([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.4, 0.6]])
    run = mm.Run.from_model(value_table(np.log(P), 5), source=source)
    contexts = replace(contexts_of(run), lags=lags)
    stated = {name: getattr(contexts, name) for name in ("n_states", "query", "start", "transitions", "lags")}
    reached = [(every_history(run)[:, at : at + 1] == np.arange(3)).any(0) for at in range(5)]
    for read in range(5):
        at = [read + 1 - lag for lag in lags]
        seen = {tuple(int(h[t]) if t >= 0 else 3 for t in at) for h in every_history(run)}
        ours = [case for case in range(contexts.n_cases) if contexts.exists(read, case)]
        assert {tuple(contexts.states(case).values()) for case in ours} == seen
        theirs = dict(checker.cases(stated, reached, read))
        assert set(theirs) == set(ours)
        assert all(states == tuple(contexts.states(case).values()) for case, states in theirs.items())


@pytest.fixture(scope="module")
def of_two():
    run = mm.Run.from_model(value_table(np.log(P), 5, lag=2), source=Chain(P))
    return run, proof_of(certify(run, "parent", lags=(1, 2)), int(run.steps[-1]))


@pytest.mark.parametrize("lags", [[1], [2], [1, 3], [1, 1], [2, 1], [], [1, 2, 3], [1, 9]])
def test_other_lags_are_refused(lags, of_two):
    run, stored = of_two
    other = deepcopy(stored)
    other["contexts"]["lags"] = lags
    with pytest.raises(ValueError, match=r"expected|claimed|too small"):
        verify(other, run)


def test_another_row_is_refused(of_two):
    run, stored = of_two
    other = deepcopy(stored)
    other["table"][1], other["table"][4] = other["table"][4], other["table"][1]
    with pytest.raises(ValueError, match=r"is claimed to be at most"):
        verify(other, run)


def test_a_command_takes_lags(of_two, tmp_path, capsys):
    run, path, proof = of_two[0], str(tmp_path / "run.pt"), str(tmp_path / "proof.json")
    run.save(path)
    main(["certify", path, "--lags", "1,2", "--json", "--out", proof])
    told = json.loads(capsys.readouterr().out)
    assert (told["program"], told["lags"]) == ("parent", [1, 2])
    assert told["worst_kl"] < 1e-6
    main(["verify", proof, path])
    assert "holds: logits" in capsys.readouterr().out
    for lags, why in [
        ("2", "lags is [2], expected ascending lags"),
        ("1,b", "--lags is '1,b', expected numbers"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["certify", path, "--lags", lags, "--out", proof])
        assert ended.value.code == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lags": (2,)}, r"^lags is \(2,\), expected ascending lags from 1 to 5 that begin with 1"),
        ({"lags": (1, 1)}, "^lags is"),
        ({"lags": (1, 6)}, "^lags is .* from 1 to 5"),
        ({"lags": (1, True)}, "^lags is"),
        ({"lags": (1, 2.0)}, "^lags is"),
        ({"lags": ()}, "^lags is"),
        ({"lags": (1, 2, 3, 4, 5), "big": True}, "^lags has 5 entries, expected fewer"),
        ({"lags": (1, 2), "program": "row"}, "^program is 'row', which looks at the parent only"),
        ({"lags": (1, 2), "program": "bigram"}, "^program is 'bigram'"),
        ({"lags": (1, 2), "program": P.tolist()}, r"^program is \[\["),
    ],
)
def test_wrong_lags_are_one_line(given, why, of_two):
    run = of_two[0]
    if given.pop("big", False):
        run = mm.Run.from_model(value_table(np.eye(4), 5), source=Chain(np.full((4, 4), 0.25)))
    with pytest.raises(ValueError, match=why):
        certify(run, given.pop("program", None), **given)


def test_lags_that_are_no_list_are_named(of_two):
    for lags in (2, "1,2", {1: 2}, 1.5):
        with pytest.raises((TypeError, ValueError), match=r"^lags is"):
            certify(of_two[0], lags=lags)
