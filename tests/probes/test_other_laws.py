"""Probes on sources whose next state depends on more, or on another, than the state before."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.landscape.canonical_fit import canonical_fit
from probing_cases import names_in, probe_quickly, random_run, run_of, subject_of

from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.probing.preconditions import (
    has_one_parent,
    parent_lag,
    why_no_bigram,
    why_no_chain,
    why_no_table,
)
from mechmarkov.sources import (
    Binary,
    Chain,
    DirichletChains,
    FruitQuestions,
    Graph,
    LaggedChain,
    OrderK,
    SelectiveLag,
    Switch,
)

P = [[0.2, 0.7, 0.1], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]]
LAGGED = LaggedChain(P, lag=5)
SECOND = OrderK(np.random.default_rng(0).dirichlet(np.ones(3), (3, 3)))
COPIES = OrderK([[[0.9, 0.1], [0.9, 0.1]], [[0.1, 0.9], [0.1, 0.9]]])


def asked(decoder, source, *probes):
    return probe_quickly(run_of(decoder, source=source), list(probes))


def log(table):
    return torch.tensor(np.log(table)).float()


def test_alignment_finds_the_table_at_the_lag_of_the_source():
    found = asked(value_table(log(P), n_ctx=12, lag=5), LAGGED, "alignment")["alignment"]
    scores = {name: score.value for name, score in found.scores.items()}
    assert scores["path"] == "L0H0"
    assert scores["best_lag"] == 5  # beyond the four lags that a chain of three states is compared at
    assert scores["kernel_slope"] == pytest.approx(1, abs=1e-5)  # float32 weights
    assert scores["kernel_cosine"] == pytest.approx(1, abs=1e-5)
    assert scores["recall"] == 1
    # The other paths are at their mean over 64 sequences of 12, so the unigram part is a sample's.
    assert scores["kernel_kl"] < 1e-3
    assert int(found.data["attended_lag"].sel(path="L0H0")[-1]) == 5
    np.testing.assert_allclose(found.data["law"].sel(path="L0H0"), P, rtol=0, atol=1e-12)
    (claim,) = found.claims.where("matches", status="shown")
    assert (claim.subject, claim.object, claim.value) == (("L0H0",), ("log P",), pytest.approx(1, abs=1e-5))
    assert claim.condition("law").value == 5


def test_alignment_names_nothing_where_the_head_looks_at_another_chain():
    found = asked(value_table(log(P), n_ctx=12, lag=3), LAGGED, "alignment")["alignment"]
    assert found.claims.first("matches").status == "excluded"
    # Tokens three apart are independent: there the unigram is exact, and the table is wrong.
    assert found.scores["kernel_kl"].value > 0.1
    np.testing.assert_allclose(found.data["law"].sel(path="L0H0"), np.tile(LAGGED.pi, (3, 1)), atol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_alignment_compares_a_head_with_the_law_of_its_own_lag(m):
    law = SECOND.step_law(m)
    assert np.abs(law - np.linalg.matrix_power(SECOND.P, m)).max() > 0.01 or m == 1
    found = asked(value_table(log(law), n_ctx=10, lag=m), SECOND, "alignment")["alignment"]
    assert found.scores["path"].value == "L0H0"
    assert found.scores["best_lag"].value == m
    assert found.scores["kernel_slope"].value == pytest.approx(1, abs=1e-4)
    assert found.scores["kernel_kl"].value < 1e-3
    claim = found.claims.first("matches", status="shown")
    assert (claim.object, claim.condition("law").value) == (("log P",), m)


def test_a_bigram_in_the_direct_path_of_an_order_two_source():
    result = asked(direct_table(log(SECOND.P), n_ctx=10), SECOND, "alignment", "storage", "behaviour")
    assert result["alignment"].scores["path"].value == "direct"
    assert result["storage"].scores["bigram_home"].value == "direct"
    behaviour = result["behaviour"].scores
    assert behaviour["nearest_predictor"].value == "bigram"
    assert behaviour["kl_bigram"].value == pytest.approx(0, abs=1e-6)
    # To the best predictor it lacks what two tokens tell and one does not, exactly the gap in entropy.
    gap = (SECOND.pi[:, None] * -SECOND.P * np.log(SECOND.P)).sum() - SECOND.entropy_rate
    assert behaviour["kl_best"].value == pytest.approx(gap, rel=0.2)  # 640 predictions


def test_attention_and_selection_are_at_the_lag_of_the_source():
    source = LaggedChain(P, lag=3)
    runs = [value_table(log(P), n_ctx=12, lag=lag) for lag in (1, 3)]
    result = probe_quickly(run_of(*runs, source=source), ["attention", "dynamics"], steps="all", sequences=32)
    assert names_in(result["attention"], "attends_to") == [(("L0H0",), ("parent", "2 tokens back"))]
    progress = result["dynamics"].data["progress"].sel(event="selection").values
    assert progress[0] < 0.5 < progress[1]
    reason = result["dynamics"].scores["t_bigram"].reason
    assert "the bigram is no better than the unigram here" in reason
    far = probe_quickly(run_of(*runs, source=LaggedChain(P, lag=20)), ["dynamics"], steps="all", sequences=8)
    reason = far["dynamics"].scores["t_selection"].reason
    assert reason == "no prediction has a token at lag 20, where the source has the parent"


@pytest.mark.parametrize(("lag", "score"), [(3, 1.0), (1, 0.0)])
def test_the_parent_is_one_token_in_claim_score_and_curve(lag, score):
    source = LaggedChain(P, lag=3)
    found = asked(value_table(log(P), n_ctx=12, lag=lag), source, "attention")["attention"]
    assert found.scores["parent_score"].value == pytest.approx(score, abs=0.01)
    (claim,) = found.claims.where("attends_to", status="shown")
    assert ("parent" in claim.object) == (lag == 3)
    assert (claim.condition("not the parent") is not None) == (lag == 1)
    # Uniform attention gives the token two back 1/3, 1/4, … 1/12 where there is one.
    uniform = found.data["uniform_mass"].sel(lag=3)
    assert float(uniform) == pytest.approx(np.mean(1 / np.arange(3, 13)))


def test_there_is_no_parent_where_the_next_state_depends_on_no_single_token():
    run = run_of(value_table(log(COPIES.step_law(2)), n_ctx=10, lag=2), source=COPIES)
    result = probe_quickly(run, ["attention", "ablation"], sequences=32)
    assert names_in(result["attention"], "attends_to") == [(("L0H0",), ("previous token",))]
    for name in ("attention", "ablation"):
        assert not result[name].claims.where(object="parent")
    for probe, score in (("attention", "parent_head"), ("ablation", "parent_swap_followed")):
        assert "no single token" in result[probe].scores[score].reason
    steps = run_of(run.model(), run.model(), source=COPIES)
    dynamics = probe_quickly(steps, ["dynamics"], steps="all", sequences=8)["dynamics"]
    assert "no single token" in dynamics.scores["t_selection"].reason


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            Graph(weights=[[0, 1, 1], [1, 1, 0], [0, 1, 0]], directed=True), marks=pytest.mark.system
        ),
        LaggedChain(P, lag=2),
        pytest.param(SECOND, marks=pytest.mark.system),
        DirichletChains(n_states=3, rows="alike"),
    ],
    ids=lambda source: source.kind,
)
@pytest.mark.usefixtures("one_term")
def test_every_probe_answers_or_says_why_not(source):
    """Of a model of two layers; `test_sources_meet_probes` asks one layer about every source."""
    result = probe_quickly(
        run_of(random_run("plain").model(), source=source), nulls=2, sequences=8, drawn=True
    )
    assert not result.failed
    skipped = set(result.skipped) - {"belief", "graph", "degeneracy", "certificate"}
    if isinstance(source, Graph):
        assert skipped == {"dynamics"}  # one step alone
    elif source.redraws:
        assert skipped == {"dynamics", "alignment", "storage", "symmetry", "landscape"}
        for name in skipped - {"dynamics"}:
            assert result.skipped[name].startswith("the source redraws its chain for every sequence")
    else:
        independent = {"storage"} if source == LaggedChain(P, lag=2) else set()
        assert skipped == {"dynamics", "symmetry", "landscape"} | independent
        for name in ("symmetry", "landscape"):
            assert result.skipped[name].startswith("the source is not a first-order chain")


def test_what_a_source_must_be():
    assert [why_no_table(source) for source in (Chain(P), LAGGED, SECOND)] == [None] * 3
    assert why_no_table(FruitQuestions(task=1)).startswith("the source is not stationary")
    assert why_no_table(DirichletChains(n_states=3)).startswith("the source redraws its chain")
    assert [why_no_bigram(source) for source in (Chain([[0.5, 0.5]] * 2), SECOND)] == [None] * 2
    for source in (LAGGED, COPIES):
        assert (
            why_no_bigram(source)
            == "neighbours are independent in this source, so there is no bigram to store"
        )
    assert why_no_chain(Chain(P), "") is None
    assert why_no_chain(DirichletChains(n_states=3), "all is lost").endswith("so all is lost")
    one_parent = (Chain(P), LAGGED, DirichletChains(n_states=3))
    assert all(has_one_parent(source) for source in one_parent)
    for source in (
        SECOND,
        DirichletChains(n_states=2, order=2, start="uniform"),
        DirichletChains(n_states=3, rows="alike"),
        SelectiveLag(P, lags=[2, 3]),
        FruitQuestions(task=1),
    ):
        assert not has_one_parent(source)
    assert [parent_lag(source) for source in (Chain(P), SECOND, LAGGED, Switch(p=0.5, q=0.5, lag=2))] == [
        1,
        1,
        5,
        2,
    ]


def test_canonical_coordinates_are_not_those_of_a_switch_chain():
    shape = {"tied": True, "attn_only": False, "d_mlp": 8, "act_fn": "relu", "d_vocab": 2}
    run = random_run("plain", **shape)
    for source, has in ((Binary(p=0.5, q=0.8), True), (Switch(p=0.5, q=0.8, lag=2), False)):
        found = canonical_fit(subject_of(run_of(run.model(), source=source)))
        assert (found == "canonical coordinates are those of a binary chain") != has
