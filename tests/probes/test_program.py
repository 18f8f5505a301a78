"""Fitted programs: circuits that are one, circuits that are none, and what the report says of them."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.program import fit as program_fit
from mechmarkov.probes.program import grammar
from mechmarkov.probes.program.context import MAX_HEAD_LAGS, POSITION_PARTS, Context
from mechmarkov.probes.program.measure import FRESH_SEED, fit_programs, program_predictions
from models_by_hand import LOG_P
from probing_cases import P3, RAW_LOG, SHAPES, claims_of, few, probe_quickly, random_run, run_of, subject_of
from scipy.special import softmax

import mechmarkov as mm
from mechmarkov.models.constructions.context_conditioned import context_conditioned_model
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import content_table, direct_table, mlp_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import program
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import draw
from mechmarkov.sources import ContextConditionedChain, DirichletChains, LaggedChain


def measured(run, sequences=64, steps="last"):
    subject = Subject.of(run, steps, sequences=sequences)
    data = program.probe.measure(subject)
    return data, {name: score.value for name, score in program.scores(data, None).items()}


@pytest.mark.parametrize(
    ("build", "looks_up"),
    [
        (direct_table, ("direct", "parent", "current token")),
        (value_table, ("L0H0", "parent", "current token")),
        (mlp_table, ("L0.mlp", "parent", "current token")),
        (lambda table, n_ctx: value_table(table, n_ctx, lag=2), ("L0H0", "previous token")),
    ],
    ids=["direct", "OV", "MLP", "OV at lag 2"],
)
def test_a_circuit_set_by_hand_is_its_program(build, looks_up):
    data, values = measured(run_of(build(LOG_P, n_ctx=8)))
    assert values["kl_by_weights"] < 1e-6
    assert values["explained_by_weights"] == pytest.approx(1, abs=1e-6)
    assert values["kl_model_program"] < 1e-4
    assert values["explained"] == pytest.approx(1, abs=1e-3)
    assert by_weights(data).condition("looks up").words == looks_up


def by_weights(data):
    """What the weights' own tables explain."""
    return claims_of(program.probe, data).first("explains", subject="tables read from the weights")


def terms(data) -> list[tuple[str, ...]]:
    """The terms of the best program found: their kind, and the tokens that they read."""
    best = claims_of(program.probe, data).first("explains", subject="best program found")
    return [premise.words for premise in best.because if premise.name == "term"]


def test_an_induction_pair_is_a_program_of_matches_and_a_wrong_pair_is_none():
    source = DirichletChains(n_states=3)
    data, values = measured(run_of(induction_pair(3, n_ctx=24), source=source))
    assert values["explained_by_weights"] > 0.95
    assert values["explained"] > 0.97
    assert values["program"].startswith("bias + head on matches of 1")
    assert float(data["match_bonus"][0, 1, 0]) > 20
    assert terms(data)[0] == ("MatchHead",)
    assert by_weights(data).condition("looks up matches").words == ("L1H0",)
    # What is left is where nothing matches yet, and the pair leaves out the first token.
    assert float(data["kl_by_weights_at"][0, 8:].mean()) < 0.005
    # Compares the current token with the token two before the key.
    data, values = measured(run_of(induction_pair(3, n_ctx=24, lags=(2,)), source=source))
    assert values["explained_by_weights"] < 0.7
    assert by_weights(data).condition("looks up matches") is None
    assert "head on matches of 1" not in values["program"].split(" + ")[:2]


def test_the_learned_walk_is_a_program():
    data, values = measured(mm.example("walk"), sequences=256)
    assert values["kl_model_program"] < 1e-6
    assert (values["program"], values["program_numbers"]) == ("bias + lag 1", 6 + 7 * 6)
    assert values["explained_by_weights"] > 0.99
    (best,) = claims_of(program.probe, data).where("explains", subject="best program found")
    assert terms(data) == [("Table", "previous token")]
    assert best.condition("numbers").value == 48
    assert by_weights(data).condition("looks up").words[:2] == ("L0H0", "parent")


def test_the_bundled_induction_run_is_a_program_to_a_hundredth_of_a_nat():
    data, values = measured(mm.example("induction"), sequences=512)
    assert values["kl_model_program"] < 0.01
    assert values["kl_model_program"] < values["kl_model_predictor"]
    assert values["program_predictor"] == "in_context_bigram"
    assert values["explained"] > 0.94 > 0.8 > values["explained_by_weights"]
    best = claims_of(program.probe, data).first("explains", subject="best program found")
    counts = [premise for premise in best.because if premise.words[:1] == ("Counts",)]
    assert counts[0].value == 2
    assert best.condition("predictor leaves").words == ("in_context_bigram",)
    assert data["kl_terms"].values[0] > data["kl_terms"].values[-1]
    assert int(data["numbers_of_term"].sum()) == values["program_numbers"]


@pytest.mark.usefixtures("one_term")
def test_what_fresh_models_explain_too_is_said_to_be_no_evidence():
    found = mm.probe(mm.example("induction"), ["program"])["program"]
    low, _, high = found.scores["explained_by_weights"].null
    assert low < found.scores["explained_by_weights"].value < high
    weights = found.claims.first("explains", subject="tables read from the weights")
    assert (weights.status, weights.null[0], weights.null[2]) == ("open", low, high)
    learned = mm.probe(mm.example("walk"), ["program"])["program"]
    assert learned.claims.first("explains", subject="tables read from the weights").is_shown


def test_the_trap_leaves_nothing_to_explain():
    run = mm.example("trap")
    data = program.probe.measure(Subject.of(run, sequences=64))
    found = program.scores(data, None)
    assert found["kl_model_program"].value == pytest.approx(0, abs=1e-9)
    assert found["explained"].value is None
    assert "nothing to explain" in found["explained"].reason
    assert is_constant(data)


def is_constant(data) -> bool:
    first = claims_of(program.probe, data).first("explains")
    return first.condition("constant predictions") is not None


def test_a_fitted_program_is_measured_as_a_loop_does_and_fails_where_it_is_said_to(monkeypatch):
    monkeypatch.setattr(program_fit, "MAX_TERMS", 2)
    run = random_run("plain", n_steps=2)
    subject = subject_of(run, sequences=32)
    data = program.probe.measure(subject)
    fresh = draw(subject.source, subject.objective, subject.config, seed=FRESH_SEED, sequences=32)
    found = fit_programs(subject)
    for member in range(2):
        logits = subject.decoder[member](fresh.tokens).detach().double().numpy()
        model, guess = softmax(logits, axis=-1), program_predictions(found[member], fresh, 3)
        kl = (model * np.log(model / guess)).sum(-1)
        assert float(data["kl"][member]) == pytest.approx(kl.mean(), rel=1e-4)
        np.testing.assert_allclose(data["kl_at"][member], kl.mean(0), rtol=1e-4)
        after = [kl[fresh.history.numpy() == state].mean() for state in range(3)]
        np.testing.assert_allclose(data["kl_after"][member], after, rtol=1e-4)
    worst = data["worst_kl"].values
    assert worst[0] == pytest.approx(kl.max(), rel=1e-4)
    b, t = np.unravel_index(kl.argmax(), kl.shape)
    assert int(data["worst_position"][0]) == t
    shown = [int(token) for token in data["worst_tokens"][0] if token >= 0]
    assert shown == fresh.history[b, max(0, t - 5) : t + 1].tolist()
    np.testing.assert_allclose(data["worst_model"][0], model[b, t], rtol=1e-4)
    np.testing.assert_allclose(data["worst_program"][0], guess[b, t], rtol=1e-4)


def term_by_hand(term, own, x: list[int], n: int) -> np.ndarray:
    """A term's scores behind the tokens x."""
    t = len(x)

    def followers(order: int) -> np.ndarray:
        return np.array(
            [
                sum(
                    x[s] == j and s >= order - 1 and x[s - order + 1 : s] == x[t - order + 1 :]
                    for s in range(t)
                )
                for j in range(n)
            ],
            dtype=float,
        )

    single = np.array([x.count(j) for j in range(n)], dtype=float)
    if isinstance(term, grammar.Table):
        row = 0
        for lag in term.lags:
            row = row * (n + 1) + (x[-lag] if lag <= t else n)
        return own[0][row]
    if isinstance(term, grammar.Position):
        return own[0][min(int(2 * np.log2(t)), POSITION_PARTS - 1)]
    if isinstance(term, grammar.Counts):
        counted = single if term.order == 1 else followers(term.order)
        mixed = 0.0 if term.order == 1 else 1 / (1 + np.exp(-own[1]))
        smooth = counted + np.exp(own[0]) * ((1 - mixed) / n + mixed * (single + 1) / (t + n))
        return (own[2][0] + own[2][1] * np.log(t / 8)) * np.log(smooth / smooth.sum())
    if isinstance(term, grammar.WeightedRow):
        return np.log(single + np.exp(own[0])) + own[1][x[-1]]
    if isinstance(term, grammar.MatchHead):
        read = followers(term.order) + np.exp(own[0]) * single / t
    elif isinstance(term, grammar.LagHead):
        read = np.zeros(n)
        for s in range(t):
            lag = t - s
            read[x[s]] += np.exp(own[0][lag - 1 if lag <= MAX_HEAD_LAGS else -1])
    else:
        read = single * np.exp(own[0][x[-1]])
    return read @ own[1] / read.sum()


def test_a_short_context_has_a_bias_for_each_position():
    context = Context.of(subject_of(random_run("plain", n_ctx=9), sequences=4).batch, 3)
    assert context.part_of_context.tolist() == list(range(context.parts_of_context))
    scores = grammar.Position().scores(context, [torch.arange(27.0).reshape(9, 3)])
    assert scores[0, :, 0].tolist() == [3.0 * at for at in range(9)]


@pytest.mark.parametrize("term", grammar.terms(3, 20), ids=lambda term: term.name)
def test_every_term_of_the_grammar_is_a_loop_over_tokens(term):
    subject = subject_of(random_run("plain", n_ctx=20), sequences=6)
    context = Context.of(subject.batch, 3)
    law = torch.from_numpy(subject.probabilities[0])
    start = term.start(context, law, torch.full_like(law, 1 / 3))
    assert len(start) == term.tensors
    generator = torch.Generator().manual_seed(0)
    own = [p + 0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in start]
    found = term.scores(context, own).numpy()
    arrays = [p.numpy() for p in own]
    for b in range(6):
        x = subject.batch.history[b].tolist()
        for t in range(20):
            np.testing.assert_allclose(found[b, t], term_by_hand(term, arrays, x[: t + 1], 3), atol=1e-9)


def test_a_model_that_attends_by_token_is_a_program_of_tokens_and_none_of_lags():
    data, values = measured(run_of(content_table(3 * LOG_P, n_ctx=16)))
    assert values["explained_by_weights"] < 0.5
    assert values["explained"] > 0.99
    assert "head by tokens" in values["program"]
    assert "TokenHead" in [term[0] for term in terms(data)]


def test_an_attention_layer_that_samples_is_counts_times_a_row_and_its_parts_are_not():
    base = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4], [0.5, 0.3, 0.2]])
    law = Objective(kind="raw_log", eps=1e-9, read="last")
    model = context_conditioned_model(base, n_ctx=12)
    run = run_of(model, source=ContextConditionedChain(base), objective=law)
    data, values = measured(run)
    assert values["program"] == "bias + counts times a row"
    assert values["kl_model_program"] < 1e-4
    assert terms(data) == [("WeightedRow",)]
    # The row alone, and the counts alone.
    for other in (run_of(direct_table(LOG_P, n_ctx=12)), counting_alone(run)):
        _, values = measured(other)
        assert "counts times a row" not in values["program"]


def counting_alone(run):
    flat = context_conditioned_model(np.ones((3, 3)), n_ctx=12)
    return run_of(flat, source=run.source, objective=run.objective)


@pytest.mark.parametrize("lag", [1, 3])
def test_a_lagged_source_is_a_table_of_its_parent(lag):
    _, values = measured(run_of(value_table(LOG_P, n_ctx=12, lag=lag), source=LaggedChain(P3, lag=lag)))
    assert values["explained"] > 0.999


def test_what_no_program_of_the_grammar_is_says_where_it_fails():
    data, values = measured(random_run("LN and MLP", n_ctx=12), sequences=128)
    assert values["kl_model_program"] > 0.01
    errors = ["kl_after_error", "kl_at_error"]
    surely, open_ = (data.assign(share * data[errors]) for share in (0, 10))
    state, position = claims_of(program.probe, surely).where("fails_at", status="shown")
    assert len(state.where.states) == len(position.where.positions) == 1
    (unsure,) = claims_of(program.probe, open_).where("fails_at")
    assert unsure.status == "open"
    assert "Where the program fails most" in [figure.title for figure in program.probe.figures(data)]


QUERIED = ("plain", "two tokens of context", "LN and MLP", "window of itself alone")


@pytest.mark.parametrize(
    ("shape", "objective"),
    few([(shape, Objective()) for shape in SHAPES]) + few([(shape, RAW_LOG) for shape in QUERIED]),
    ids=[*SHAPES, *(f"{shape}, query" for shape in QUERIED)],
)
def test_every_shape_has_a_program_a_sentence_and_figures(shape, objective, recorded, eight_nulls, one_term):
    subject = recorded(shape, objective)
    data = program.probe.measure(subject)
    found = program.scores(data, program.probe.measure(subject.null) if shape in QUERIED else None)
    assert found["kl_model_program"].value >= 0
    assert found["explained"].value is None or found["explained"].value <= 1
    assert claims_of(program.probe, data).first("explains") is not None
    drawn = program.probe.figures(data)
    assert drawn == [] if is_constant(data) else len(drawn) >= 3
    alone = program.probe.measure(recorded(shape, objective, steps=(0,)))
    np.testing.assert_allclose(alone["kl_by_weights"][0], data["kl_by_weights"][0], rtol=1e-3, atol=1e-7)


def test_fresh_sequences_are_not_those_the_program_was_read_from():
    run = random_run("plain", n_ctx=20)
    subject = subject_of(run, sequences=64)
    fresh = draw(run.source, run.objective, run.config, seed=FRESH_SEED, sequences=64)
    assert not (fresh.tokens[:, None] == subject.batch.tokens[None]).all(-1).any()


@pytest.mark.usefixtures("one_term")
def test_a_head_whose_matches_are_all_that_some_predictions_see_has_a_selector():
    """It avoids matches wholly, so that of a softmax over matches alone nothing is left to divide by."""
    P = [[0.09, 0.32, 0.58, 0.01], [0.14, 0.01, 0.54, 0.31], [0.02, 0.1, 0.08, 0.8], [0.01, 0.18, 0.24, 0.57]]
    shape = {"n_layers": 2, "d_model": 4, "d_head": 1, "n_heads": 2, "n_ctx": 33, "d_state": 2, "d_mlp": 3}
    recipe = mm.Recipe.from_data(
        {
            "name": "avoids matches",
            "steps": 40,
            "checkpoints": [],
            "data": {"batch": 8},
            "source": {"kind": "trigger_bigram", "P": P, "triggers": [0, 2], "start": "global"},
            "model": shape
            | {"kind": "decoder", "mixer": "mamba1", "normalization_type": "RMS", "tied": True},
            "objective": {"kind": "squared", "read": "last"},
            "init": {"scheme": "normal", "std": 0.1},
            "optimiser": {"kind": "adamw", "lr": 0.01},
        }
    )
    data, _ = measured(mm.train(recipe, seed=1, progress=False), sequences=40)
    assert np.isfinite(data["kl_by_weights"]).all()


def test_a_program_is_what_can_be_explained_and_the_tables_of_the_weights_are_told_apart():
    lagged = LaggedChain(P3, lag=3)
    parent = probe_quickly(run_of(value_table(LOG_P, n_ctx=12, lag=3), source=lagged), ["program"])["program"]
    assert parent.scores["explained"].value > 0.999
    assert parent.scores["explained_by_weights"].value > 0.999
    by_token = probe_quickly(run_of(content_table(3 * LOG_P, n_ctx=16)), ["program"])["program"]
    assert by_token.scores["explained"].value > 0.99
    assert by_token.scores["explained_by_weights"].value < 0.5
    fitted, weights = by_token.claims.where("explains")
    assert (fitted.subject[0], fitted.status) == ("best program found", "shown")
    assert "TokenHead" in [premise.words[0] for premise in fitted.because if premise.name == "term"]
    assert weights.subject[0] == "tables read from the weights"
