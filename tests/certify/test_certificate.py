"""Certificates: the program that is chosen, what is refused, the search for the worst sequence, the mean."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from certify_cases import ROOM, every_history, one_layer
from probing_cases import CHAIN, P3, RAW_LOG, walk_run

import mechmarkov as mm
from mechmarkov.certify import EXACT, certify, proof_of, verify
from mechmarkov.certify.bounds import envelope
from mechmarkov.certify.bounds import every as every_position
from mechmarkov.certify.contexts import Contexts
from mechmarkov.certify.expectation import empirical_bernstein, mean_kl
from mechmarkov.certify.nats import MOST
from mechmarkov.certify.programs import from_rows, middle
from mechmarkov.certify.search import Judge, largest_of_all, search
from mechmarkov.certify.sentence import number_of, sentences
from mechmarkov.cli import main
from mechmarkov.models.constructions.context_conditioned import context_conditioned_model
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.objectives import Objective
from mechmarkov.population import population_law
from mechmarkov.runs import example
from mechmarkov.sources import Binary, Circle, ContextConditionedChain, OrderK
from mechmarkov.theory.kernel import kl
from mechmarkov.utils.text import at_most

TABLE = np.log(P3)


def table_run(decoder, source=CHAIN):
    return mm.Run.from_model(decoder, source=source)


def test_a_table_in_the_weights_is_found_and_certified():
    """A circuit that must be named: the parent's table, in the direct path or in a head."""
    for decoder in (direct_table(torch.tensor(TABLE), 9), value_table(torch.tensor(TABLE), 9)):
        found = certify(table_run(decoder))
        assert found.tier == "1"
        assert found.program.name == "parent"
        np.testing.assert_allclose(found.program.table, P3, atol=1e-5)
        assert found.worst_kl < 1e-9
        assert certify(table_run(decoder), "bigram").worst_kl < 1e-9


def test_a_table_at_another_lag_is_no_table_of_the_parent():
    """One that must not be named: what stands two back decides, and the worst sequence shows it."""
    found = certify(table_run(value_table(torch.tensor(TABLE), 9, lag=2)), "parent")
    assert found.worst_kl > 0.1
    assert 0.1 < found.seen.nats <= found.worst_kl
    assert "at most" in " ".join(sentences(found))


def test_a_constant_model_needs_one_row_alone():
    found = certify(table_run(direct_table(torch.tensor(np.tile(TABLE[0], (3, 1))), 9)))
    assert (found.program.name, found.program.numbers) == ("constant", 3)
    assert found.worst_kl < 1e-9


def test_the_bound_of_one_head_is_reached_by_the_sequence_that_is_named():
    run = one_layer("plain", n_heads=1, scale=0.4)
    for program in ("parent", "constant", "bigram", "uniform", P3.tolist()):
        found = certify(run, program, unit=EXACT)
        histories = every_history(run)
        judge = Judge(run.model().double(), run.objective, found.contexts, found.program)
        worst = judge.nats(histories).max()
        assert found.seen.nats <= worst * ROOM  # one batch is rounded otherwise than another
        assert worst <= found.worst_kl
        assert found.seen.nats > 0.9 * worst
        known = found.contexts.reads[found.seen.read] + 1
        assert (histories[:, :known] == found.seen.history[:known]).all(1).any()  # the source can give it


def test_counts_times_a_row_are_certified_whatever_the_counts():
    base = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.5, 0.3, 0.2]])
    source, objective = ContextConditionedChain(base), Objective(kind="raw_log", read="last")
    run = mm.Run.from_model(context_conditioned_model(base, 12), source=source, objective=objective)
    found = certify(run, tokens=1 << 12)
    assert (found.tier, found.program.name) == ("1", "row")
    np.testing.assert_allclose(found.program.table, base, atol=1e-6)
    assert found.worst_kl < 1e-9
    assert not found.contexts.is_exact


def test_a_deterministic_walk_has_so_many_sequences_as_starts():
    found = certify(example("trap"))
    assert found.program.name == "constant"
    assert number_of(found.contexts) == "6"
    assert found.worst_kl < 1e-8
    assert found.seen.nats == 0


def test_a_state_that_may_get_no_probability_has_no_finite_ratio():
    """Attention on all tokens alike, copied to the next state: a state that was not there gets nothing."""
    run = walk_run(Circle(n_states=4, p=0.5), np.roll(np.eye(4), 1, axis=0), np.zeros(6))
    found = certify(run, "uniform")
    assert found.worst_log_ratio[0] == -np.inf
    assert found.seen.nats <= found.worst_kl == MOST
    assert "without a bound" in " ".join(sentences(found))
    stored = proof_of(found, 0)
    assert stored["claims"]["log_ratio_below"] is None
    assert verify(stored, run)["worst_kl"] == MOST


def test_what_has_no_bound_is_searched():
    run = example("induction")
    found = certify(run, tokens=1 << 15)
    assert (found.tier, found.bounds, found.worst_log_ratio) == ("norm", None, None)
    assert "2 layers" in found.why
    assert 0.1 < found.seen.nats < found.worst_kl  # far above the mean of 0.008
    assert found.is_vacuous
    assert "vacuous" in " ".join(sentences(found))
    stored = proof_of(found, int(run.steps[-1]))
    assert verify(stored, run)["worst_kl"] == pytest.approx(found.worst_kl)
    stored["claims"]["worst_kl"] *= 0.99
    with pytest.raises(ValueError, match=r"^worst_kl is claimed to be at most"):
        verify(stored, run)


@pytest.mark.parametrize("needle", [(4, 1, 3), (0, 3, 1), (2, 0, 4)])
def test_one_bad_context_of_few_is_shown(needle):
    """One history of 125 has another law, to which no ascent leads."""
    kernel = np.full((5, 5, 5, 5), 0.2)
    kernel[needle] = [0.996, *[0.001] * 4]
    model = n_gram_model(kernel, 3, form="layers")
    run = mm.Run.from_model(model, source=mm.Chain(np.full((5, 5), 0.2).tolist()))
    seen = certify(run, "uniform", tokens=1 << 10).seen
    assert tuple(seen.history.tolist()) == needle
    assert seen.nats == pytest.approx(np.log(0.2) - (np.log(0.996) + 4 * np.log(0.001)) / 5, rel=1e-5)


def test_positions_with_few_contexts_have_every_one_run():
    """The first positions of two layers: there the largest KL is known, which the search finds too."""
    run = example("induction")
    found = certify(run, tokens=1 << 13)
    assert found.exhausted == 6
    first = replace(found.contexts, reads=tuple(range(6)))
    judge = Judge(run.model(), run.objective, first, found.program)
    nats = judge.nats(np.array(list(product(range(3), repeat=6)))).max(0)
    np.testing.assert_allclose(found.kl_at[:6], nats, rtol=1e-4)
    assert (found.kl_at[6:] == found.worst_kl).all()
    assert (found.seen.at[:6] == found.kl_at[:6]).all()
    assert "At the first 6 positions that are read every context was run" in " ".join(sentences(found))


def test_of_few_paths_every_one_is_run_and_of_many_none():
    run = one_layer("plain", RAW_LOG, source=Circle(n_states=4, p=0.3), scale=0.4, n_ctx=7)
    run.states["unembed.b_U"] += 6.0
    found = certify(run, "parent")
    judge, paths = Judge(run.model(), run.objective, found.contexts, found.program), every_history(run)
    every = largest_of_all(judge, tokens=paths.size)
    assert every.nats == pytest.approx(judge.nats(paths).max(), rel=1e-4)
    assert (paths == every.history).all(1).any()
    assert largest_of_all(judge, tokens=paths.size - 1) is None  # only the last position is read
    assert found.exhausted == 0


def test_without_layers_that_are_known_or_a_final_norm_nothing_is_certified():
    found = certify(example("graph"), tokens=1 << 12)
    assert (found.tier, found.worst_kl) == ("0", None)
    assert "No bound is known" in " ".join(sentences(found))
    assert np.isnan(found.kl_at).all()
    with pytest.raises(ValueError, match=r"^nothing is certified: it has 2 layers"):
        proof_of(found, 300)


def test_a_budget_that_is_too_small_says_how_far_it_got():
    found = certify(one_layer("plain"), "parent", seconds=1e-9, tokens=1 << 12)
    assert found.tier == "0"
    assert found.why == "1e-09 s were enough for 0 of 18 positions and parents"
    assert found.program.name == "parent"  # by samples


def test_the_search_respects_forbidden_transitions_and_finds_the_worst_of_few():
    run = one_layer("plain", RAW_LOG, source=Circle(n_states=4, p=0.3), scale=0.4, n_ctx=7)
    run.states["unembed.b_U"] += 6.0
    found = certify(run, "parent", unit=EXACT)
    judge = Judge(run.model().double(), run.objective, found.contexts, found.program)
    every = every_history(run)
    searched = search(judge, every[:1], tokens=1 << 15)
    assert found.contexts.are_allowed(searched.history[None])[0]
    assert searched.nats == pytest.approx(judge.nats(every).max(), rel=1e-9)
    assert search(judge, every[:1], tokens=1 << 15).nats == searched.nats  # the seed decides


def test_programs_that_are_none_are_refused_in_one_line():
    run = one_layer("plain")
    for program, message in (
        ("nonsense", r"^program is 'nonsense', expected one of constant, parent, row, uniform"),
        ([[0.5, 0.5]], r"^program has 1 rows, expected 3, one for each state"),
        ([[1.0, 0.0]] * 3, r"^program\[0\] has 2 entries, expected 3, one for each state"),
        ([[0.5, 0.5, float("nan")]] * 3, r"^program\[0\]\[2\] is nan, expected a probability"),
        ([[0.5, 0.4, 0.0]] * 3, r"^program\[0\] sums to 0.9, expected 1"),
        ([["1", 0, 0]] * 3, r"^program\[0\]\[0\] is '1', expected a probability"),
        (
            "row",
            r"^program is 'row', but no bound is known of counts times a row: a softmax reads the scores",
        ),
    ):
        with pytest.raises(ValueError, match=message) as error:
            certify(run, program)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["walk", "induction"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_weights_that_are_not_finite_are_refused(name, value):
    """No bound, not even that of a norm, is of such a model, and no proof of it is confirmed."""
    run = example(name)
    stored = proof_of(certify(run, tokens=1 << 10), int(run.steps[-1]))
    run.states["blocks.0.attn.W_O"][-1].view(-1)[0] = value
    with pytest.raises(
        ValueError, match=r"^states\['blocks.0.attn.W_O'\] holds NaN or infinite values, expected"
    ):
        certify(run)
    with pytest.raises(ValueError, match=r"^the model has weights that are not finite"):
        verify(stored, run)


def test_a_law_without_a_sequence_is_refused(monkeypatch):
    monkeypatch.setattr(type(CHAIN), "pi", property(lambda self: np.zeros(3)))
    with pytest.raises(ValueError, match=r"has no sequence of 6 states: its support is empty"):
        certify(one_layer("plain"), "parent")


def test_the_middle_of_odds_is_least_wrong():
    odds = np.array([[[0.0, 1.0], [0.5, 0.0]]])  # from -0.5 to 1
    law = middle(odds)
    assert np.log(law[0] / law[1]) == pytest.approx(0.25)
    np.testing.assert_array_equal(middle(np.array([[[0.0, np.inf], [0.5, 0.0]]])), [1.0, 0.0])
    np.testing.assert_array_equal(middle(np.array([[[0.0, np.inf], [-np.inf, 0.0]]])), [1.0, 0.0])
    assert middle(np.array([[[0.0, np.inf], [np.inf, 0.0]]])) is None
    assert from_rows([[1, 0], [0.5, 0.5]], 2).table.dtype == np.float64


def test_contexts_are_the_sequences_of_a_chain_and_else_all():
    walk = Contexts.of(Circle(n_states=6, p=0.5), RAW_LOG, example("walk").config)
    assert number_of(walk) == "6 · 2^95"
    assert walk.is_exact
    shape = one_layer("plain", n_ctx=3, d_vocab=2).config
    order_two = OrderK([[[0.5, 0.5], [1.0, 0.0]], [[0.2, 0.8], [0.5, 0.5]]])
    every = Contexts.of(order_two, Objective(), shape)
    assert number_of(every) == "8"
    assert not every.is_exact
    assert every.plain(3).tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]]
    assert walk.are_allowed(walk.plain(5)).all()
    assert (walk.completed(np.array([[2, 3]]), 5)[0, :2] == [2, 3]).all()


def test_a_mean_is_below_its_bound_and_equals_the_sum_over_all():
    run = table_run(
        value_table(torch.tensor(np.log([[0.5, 0.5], [0.8, 0.2]])), 6, lag=2), Binary(p=0.5, q=0.8)
    )
    found = certify(run, "parent")
    mean = mean_kl(run, found)
    histories = every_history(run)
    judge = Judge(run.model(), run.objective, found.contexts, found.program)
    P = run.source.P
    law = run.source.pi[histories[:, 0]] * P[histories[:, :-1], histories[:, 1:]].prod(1)
    exact = float(law @ judge.nats(histories).mean(1))
    assert mean.exact == pytest.approx(exact, rel=1e-9)
    assert abs(mean.sample - exact) < 0.02
    assert exact < mean.bound < mean.sample + 0.2
    reverse = mean_kl(run, found, reverse=True)
    exact = float(law @ judge.nats(histories, reverse=True).mean(1))
    assert reverse.exact == pytest.approx(exact, rel=1e-9)
    assert exact < reverse.bound < reverse.sample + 0.3
    assert exact != mean.exact
    assert judge.nats(histories, reverse=True).max() <= found.worst_log_ratio[1]
    assert len(population_law(run.source, run.objective, run.config)[0]) < 4096


def test_the_bernstein_bound_fails_as_seldom_as_it_says():
    """At delta = 0.05, over means of 50 draws from a law that is mostly zero."""
    rng, n = np.random.default_rng(0), 50
    draws = (rng.random((4000, n)) < 0.05).astype(float)
    failed = np.mean([empirical_bernstein(row, 1.0, 0.05) < 0.05 for row in draws])
    assert failed <= 0.05
    assert empirical_bernstein(np.full(11, 0.5), 1.0, 0.5) == pytest.approx(0.5 + 7 * np.log(4) / 30)


def test_bounds_in_words_are_rounded_up():
    for value in (0.00012341, 7.4999e-5, 0.99999, 123456.0, 1e-300):
        assert float(at_most(value)) >= value * (1 - 1e-9)
        assert float(at_most(value, 2)) <= 1.11 * value


def test_the_command_line_certifies_and_verifies(tmp_path, capsys):
    run, path, out = example("walk"), tmp_path / "walk.pt", tmp_path / "new" / "proof.json"
    run.save(path)
    main(["certify", str(path), "--program", "parent", "--out", str(out)])
    said = capsys.readouterr().out
    assert "6 · 2^95 sequences that the source can give" in said
    assert str(out) in said
    main(["verify", str(out), str(path)])
    assert "worst_kl" in capsys.readouterr().out
    table = tmp_path / "table.json"
    table.write_text(json.dumps(np.full((6, 6), 1 / 6).tolist()))
    main(["certify", str(path), "--program", str(table), "--arithmetic", "exact", "--out", str(out)])
    assert "only exact arithmetic" in capsys.readouterr().out
    stored = json.loads(out.read_text())
    stored["claims"]["worst_kl"] /= 2
    out.write_text(json.dumps(stored))
    for arguments, message in (
        (["verify", str(out), str(path)], "does not hold: worst_kl is claimed to be at most"),
        (["verify", str(path), str(path)], "is not a proof"),
        (["verify", str(tmp_path / "none.json"), str(path)], "No such file"),
        (["certify", str(path), "--program", "[[1]", "--out", str(out)], "--program is not JSON"),
        (["certify", str(path), "--program", "[1]", "--out", str(out)], "--program is not a table"),
        (["certify", str(path), "--seconds", "0", "--out", str(out)], "seconds"),
        (["certify", str(path), "--step", "7", "--out", str(out)], "step is 7, expected"),
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
        error = capsys.readouterr().err.strip()
        assert message in error
        assert "\n" not in error
    stored["claims"] = "none"
    out.write_text(json.dumps(stored))
    with pytest.raises(SystemExit):
        main(["verify", str(out), str(path)])
    assert "is not a proof: claims is 'none', expected a section" in capsys.readouterr().err


def test_without_a_bound_no_proof_is_written(tmp_path, capsys):
    path, out = tmp_path / "run.pt", tmp_path / "proof.json"
    example("graph").save(path)
    main(["certify", str(path), "--out", str(out)])
    assert "No proof is written" in capsys.readouterr().out
    assert not out.exists()


def test_nothing_seen_is_above_what_a_float32_certificate_says():
    """Twenty random models, on every sequence, in float32."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        run = one_layer("plain", seed=seed, scale=float(rng.uniform(0.1, 0.8)), n_ctx=5)
        found = certify(run, "parent")
        judge = Judge(run.model(), run.objective, found.contexts, found.program)
        nats = judge.nats(every_history(run))
        assert (nats.max(0) <= found.kl_at).all()
        ratios = np.log(judge.predictions(every_history(run)) / found.program.rule(every_history(run)))
        assert found.worst_log_ratio[0] <= ratios.min()
        assert ratios.max() <= found.worst_log_ratio[1]
        assert kl(found.program.table, found.program.table).max() < 1e-12


def test_a_search_ends_with_its_time(monkeypatch):
    """Without bounds a search has what is left of the seconds, and tries its starts in any case."""
    run = example("induction")
    tried = []
    judged = Judge.nats
    monkeypatch.setattr(
        Judge, "nats", lambda self, histories: tried.append(len(histories)) or judged(self, histories)
    )
    certificate = certify(run, seconds=1e-9)
    assert len(tried) == 1
    assert certificate.exhausted == 0
    assert certificate.seen.nats > 0


def test_refinement_ends_with_its_time(monkeypatch):
    """A clock that passes the budget at the first position that is refined: no other is."""
    refined, fine = [], envelope.of_relaxed
    now = [0.0]

    def counted(*args, close, **named):
        refined.append(close)
        now[0] += 10.0 * close
        return fine(*args, close=close, **named)

    monkeypatch.setattr(envelope, "of_relaxed", counted)
    monkeypatch.setattr(every_position.time, "monotonic", lambda: now[0])
    run = one_layer("plain", d_mlp=8, attn_only=False, act_fn="relu", scale=1.0)
    certify(run, "parent", seconds=1.0, tokens=1 << 12)
    assert sum(refined) == 1
