"""Scores: perfect claims have the best, random ones chance, under every metric; MIB's areas by hand."""

import numpy as np
import pytest
import torch

from mechmarkov.bench import CASES, METRICS, SCORES, Effects, Method, exact_effects, methods, run
from mechmarkov.bench import case as case_file
from mechmarkov.bench.beliefs import BeliefClaim, noise_beliefs
from mechmarkov.bench.degeneracy import parameters as half_the_parameters
from mechmarkov.bench.faithfulness import SHARES, area, faithfulness, score_circuits
from mechmarkov.bench.features import noise_features, score_features
from mechmarkov.bench.patching import corrupt_edges, edge_effects, layer_effects, node_effects
from mechmarkov.bench.scores import auroc, score_built, score_claims
from mechmarkov.bench.subspaces import noise_subspaces
from mechmarkov.interventions.belief import Reading

EVERY = tuple(METRICS)


def exact(effects):
    return lambda case: effects(case, [case.metric])[case.metric].as_claims()


EXACT = [
    Method("exact-nodes", "nodes", exact(node_effects), metrics=EVERY),
    Method("exact-edges", "edges", exact(edge_effects), metrics=EVERY),
    Method("exact-layers", "layers", exact(layer_effects), metrics=EVERY),
    Method("exact-beliefs", "beliefs", lambda case: exact_belief(case)),
    Method("exact-subspaces", "subspaces", lambda case: exact_subspace(case)),
    Method("exact-features", "features", lambda case: exact_features(case)),
    Method("exact-coefficients", "coefficients", lambda case: exact_coefficient(case)),
]
EFFECTS_NOISE = [methods.noise_nodes, methods.noise_edges, methods.noise_layers]
NOISE = [*EFFECTS_NOISE, noise_beliefs, noise_subspaces, noise_features, half_the_parameters]
LONG = tuple(name for name in CASES if name.startswith(("trained", "random", "shuffled", "bundled-ind")))
SCORED = [name for name in CASES if name not in LONG]
LOOSE = {"belief_error": 1e-6, "angle": 1e-4, "forced": 1e-6, "kl": 1e-6}  # float32 weights


def exact_belief(case):
    """The belief's own block of the stream, by the construction's layout, with nothing fitted."""
    if not case.carries:
        return "the construction carries no belief"
    n, hidden, d_model = 2, 8, case.model.config.d_model
    weights = np.zeros((d_model, hidden))
    weights[2 * n + 1 : 2 * n + 1 + hidden] = np.eye(hidden)
    return BeliefClaim(0, Reading(weights, np.zeros(hidden), weights.T, np.eye(d_model)))


def turn(case):
    """The matrix of a table's stream: the identity, or the rotation that was drawn."""
    d_model = case.model.config.d_model
    if case.name != "rotated":
        return np.eye(d_model)
    return np.linalg.qr(np.random.default_rng(0).normal(size=(d_model, d_model)))[0]


def exact_subspace(case):
    """By the constructions' layouts: tokens, or laws of hidden states, less what is common."""
    d_model = case.model.config.d_model
    if case.empty or case.subspace is None:
        return "there is none"
    if case.name != "belief":
        tokens = np.eye(d_model)[:4] @ turn(case)
        return np.linalg.qr((tokens[1:] - tokens[0]).T)[0]
    law = case.source.T @ case.source.E[:, :1]
    direction = np.zeros((d_model, 1))
    direction[5:13] = law - law.mean()
    return direction / np.linalg.norm(direction)


def exact_features(case):
    """By the constructions' layouts: axes for 4 tokens, and for positions where heads look for them."""
    if case.features is None:
        return "there are none"
    axes = np.eye(case.model.config.d_model)
    positions = [] if case.name in ("direct", "mlp") else range(8, 16)
    return axes[[*range(4), *positions]] @ turn(case)


def exact_coefficient(case):
    """Half the directions that count: 4 rows of 3; 3 of an embedding and the bias; that line and the bias."""
    known = {"direct": 4 * 3 / 2, "tied-plateau": (3 + 1) / 2, "canonical": (1 + 1) / 2}
    return known.get(case.name, "none is derived")


@pytest.fixture(scope="module")
def found():
    """Perfect and random claims about nearly every case, on few sequences: both hold of any number."""
    return on_few_sequences([*EXACT, *NOISE], SCORED)


def on_few_sequences(methods, cases, seeds=1):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_file, "SEQUENCES", 32)
        return run(methods, cases, seeds=seeds)


def test_exact_claims_are_perfect_under_every_metric(found):
    have_a_best = {name for name, (best, _, _) in SCORES.items() if not np.isnan(best)}
    assert is_perfect(found) == have_a_best - {"cmd"}


def is_perfect(found):
    """The scores that there are of perfect methods, each the best there is; of MIB's, no method has more."""
    rows = found.scores[found.scores["method"].str.startswith("exact")]
    scored = set()
    for name, (best, _, _) in SCORES.items():
        values = rows[name].dropna().to_numpy()
        if not np.isnan(best) and name != "cmd":
            np.testing.assert_allclose(values, best, atol=LOOSE.get(name, 1e-9))
            scored |= {name} if len(values) else set()
    for metric in METRICS:
        of = rows[(rows["metric"] == metric) & rows["of"].isin(["nodes", "edges"])]
        assert of["rank"].notna().any()
        assert of["own"].all()
    return scored


def test_random_claims_score_chance_under_every_metric():
    """The mean over components, cases and seeds: within five standard errors."""
    rows = on_few_sequences(EFFECTS_NOISE, ["split", "trigram", "order-2"], 4).scores
    for metric in METRICS:
        for name in ("pearson", "rank", "sign", "auroc", "built"):
            values = rows[rows["metric"] == metric][name].dropna().to_numpy()
            assert len(values) >= 8
            assert abs(values.mean() - SCORES[name][1]) < 5 * values.std() / np.sqrt(len(values)), name
        assert rows[rows["metric"] == metric]["error"].mean() > 1


def test_random_claims_of_other_kinds_score_chance(found):
    random = found.scores[found.scores["method"].isin([method.name for method in NOISE])]
    means = random.groupby("method")[[*SCORES]].mean()
    assert random["alarms"].mean() > 0.9
    assert means["belief_error"]["noise-beliefs"] == pytest.approx(1, abs=0.25)
    assert means["forced"]["noise-beliefs"] > 1
    assert means["forced"]["noise-subspaces"] > 0.3
    assert random["angle"].mean() > 0.25
    assert random["cosine"].mean() < 0.7
    assert random["kl"].mean() > 0.01
    assert random["llc_error"].mean() > 1


@pytest.mark.slow
def test_exact_claims_about_trained_models_are_perfect():
    found = on_few_sequences([*EXACT, *NOISE], LONG)
    assert is_perfect(found) >= {"pearson", "rank", "sign", "auroc", "error"}


def test_a_component_has_an_effect_if_it_is_sure():
    """And if it is not tiny."""
    value = np.array([0.5, -0.5, 0.5, 0.0005, 0.0])
    low, high = np.array([0.4, -0.6, -0.1, 0.0004, 0.0]), np.array([0.6, -0.4, 1.1, 0.0006, 0.0])
    assert Effects(list("abcde"), value, low, high).in_circuit.tolist() == [True, True, False, False, False]


VALUE = np.array([0.3, -0.2, 0.4, 0.0])
FOUR = Effects(list("abcd"), VALUE, VALUE - 0.01, VALUE + 0.01)


def test_claims_of_another_metric_have_order_and_sign():
    claims = dict(zip("abcd", (30.0, -1.0, 40.0, 0.0), strict=True))
    own = score_claims(claims, FOUR, metric="nats", own=True)
    other = score_claims(claims, FOUR, metric="nats", own=False)
    assert other == {"sign": 1, "rank": 1}
    assert own.keys() == {"sign", "rank", "pearson", "auroc", "error"}
    assert own["error"] == pytest.approx((29.7 + 0.8 + 39.6) / 0.9)


def test_claiming_nothing_has_an_error_of_one():
    nothing = score_claims(dict.fromkeys("abcd", 0.0), FOUR, metric="nats", own=True)
    assert nothing["error"] == SCORES["error"][1] == 1


def test_under_kl_claims_of_another_metric_are_sizes():
    """An effect on KL has no sign: what lowers another metric raises it too."""
    kl = Effects(list("abcd"), np.abs(VALUE), np.abs(VALUE) - 0.01, np.abs(VALUE) + 0.01)
    claims = dict(zip("abcd", (3.0, -2.0, 4.0, 0.0), strict=True))
    assert score_claims(claims, kl, metric="kl", own=False) == {"rank": 1}
    assert score_claims(claims, kl, metric="kl", own=True)["sign"] == pytest.approx(2 / 3)


def test_claims_without_a_sign_are_compared_with_sizes():
    sizes = dict(zip("abcd", (3.0, 2.0, 4.0, 0.0), strict=True))
    assert score_claims(sizes, FOUR, metric="nats", own=False, sizes=True) == {"rank": 1}
    assert score_claims(sizes, FOUR, metric="nats", own=False)["rank"] == pytest.approx(0.8)
    small = Method(
        "small", "nodes", lambda case: {name: 1.0 + i for i, name in enumerate(case.nodes)}, "", ()
    )
    row = run([small], ["cancel"], seeds=1).scores.set_index("metric").loc["logit-difference"]
    assert np.isfinite(row["rank"])
    assert np.isnan(row["sign"])


def test_the_size_of_another_unit_changes_no_score():
    claims = dict(zip("abcd", (3.0, 1.0, 4.0, 0.0), strict=True))
    tiny = {name: 1e-9 * value for name, value in claims.items()}
    scores = [score_claims(each, FOUR, metric="nats", own=False) for each in (claims, tiny)]
    assert scores[0] == scores[1]
    assert score_claims(tiny, FOUR, metric="nats", own=True)["rank"] == 0
    assert auroc(claims, "ab") == auroc(tiny, "ab")


def test_the_built_circuit_is_told_by_auroc():
    """Five of nine edges of the pair that cancels are built: all but the heads' queries and keys."""
    case = CASES["cancel"](0)
    claims = {name: float(name in case.circuit) for name in case.edges}
    assert score_built(case, claims, "edges") == {"built": 1}
    assert score_built(case, claims | {"embed→L0H0.Q": 2.0}, "edges")["built"] == pytest.approx(3 / 4)
    decoy = CASES["induction"](0)
    nodes = dict.fromkeys(decoy.nodes, 0.0) | {"embed": 1.0, "L0H0": 1.0, "L1H0": 1.0}
    assert score_built(decoy, nodes, "nodes") == {"built": 1}
    assert score_built(decoy, nodes | {"L1H1": 1.0}, "nodes")["built"] == pytest.approx(3 / 4)
    assert score_built(CASES["plateau"](0), {}, "edges") == {}


@pytest.mark.parametrize("metric", METRICS)
def test_cpr_and_cmd_of_one_edge_by_hand(metric):
    """One edge of five counts. Shares keep 0 edges up to 0.1, then 1, 2 and 5 of them.

    At place 0 faithfulness is 0 up to a share of 0.1, and 1 from 0.2 on; at place 1 it is 1 from 0.5 on; at a
    later one only with all edges.
    """
    case = CASES["direct"](0).under(metric)
    names = [name for name in case.edges if name != "embed→logits"]
    by_hand = {0: 0.1 / 2 + 0.8, 1: 0.3 / 2 + 0.5, 2: 0.5 / 2, 4: 0.5 / 2}
    for place, cpr in by_hand.items():
        order = [*names[:place], "embed→logits", *names[place:]]
        scores = score_circuits(case, {name: 5.0 - i for i, name in enumerate(order)})
        assert scores["cpr"] == pytest.approx(cpr)
        assert scores["cmd"] == pytest.approx(0.999 - cpr)


def test_cpr_goes_by_value_and_cmd_by_size():
    case = CASES["direct"](0)
    claims = {name: float(i) for i, name in enumerate(case.edges)} | {"embed→logits": -9.0}
    scores = score_circuits(case, claims)
    assert scores["cpr"] == pytest.approx(0.25)
    assert scores["cmd"] == pytest.approx(0.999 - 0.85)


def test_edges_of_unread_nodes_change_no_faithfulness():
    """MIB's code removes them first; a node that reads nothing clean writes what it writes when corrupt."""
    case = CASES["split"](0)
    with_tail = ("embed→L0H0.V", "L0H0→logits", "L0.mlp→logits")
    values = []
    for kept in (with_tail, with_tail[:2]):
        with corrupt_edges(case, [name for name in case.edges if name not in kept]), torch.no_grad():
            values.append(float(case.loss(case.model(case.clean)).mean()))
    assert values[0] == pytest.approx(values[1], abs=1e-12)


def test_areas_are_trapezoids_over_shares():
    values = tuple(float(x) for x in np.random.default_rng(0).normal(size=len(SHARES)))
    assert area(values) == pytest.approx(np.trapezoid(values, SHARES))
    assert faithfulness(CASES["plateau"](0), tuple(CASES["plateau"](0).edges)) is None


def test_features_are_scored_up_to_what_is_shared():
    case = CASES["rotated"](0)
    tokens, positions = case.features[1]
    shared = np.concatenate([tokens - 3 * positions.mean(0), positions + tokens.mean(0)])
    assert score_features(case, shared)["cosine"] == pytest.approx(1)
    assert score_features(case, -shared)["cosine"] < 0.5
    # Features that are lacking have a cosine of 0.
    assert score_features(case, tokens)["cosine"] == pytest.approx(4 / 12)


def test_exact_effects_are_kept_by_their_content(tmp_path, monkeypatch):
    monkeypatch.setenv("MECHMARKOV_CACHE", str(tmp_path))
    case = CASES["split"](0)
    first = exact_effects(case)
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns
    again = exact_effects(CASES["split"](0))
    assert kept.stat().st_mtime_ns == written
    for key, effects in first.items():
        assert effects.as_claims() == again[key].as_claims()
    assert first["edges", "kl"].as_claims() == edge_effects(case, ["kl"])["kl"].as_claims()
    with torch.no_grad():
        case.model.embed.W_E[0, 0] += 0.1
    assert exact_effects(case)["nodes", "nats"].as_claims() != first["nodes", "nats"].as_claims()
    assert len(list(tmp_path.iterdir())) == 2
