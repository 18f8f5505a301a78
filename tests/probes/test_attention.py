"""The attention probe on models with several heads and layers."""

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.attention.by_token import _most_attended, by_token
from probing_cases import RAW_LOG, parent_logits, random_run, run_of, subject_of, walk_run

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.models.init import initialise
from mechmarkov.objectives import Objective
from mechmarkov.probes import attention
from mechmarkov.probing.recording import ATTENTION
from mechmarkov.sources import Circle


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG], ids=["next token", "query"])
def test_scores_are_those_of_the_best_head_at_the_last_step(objective):
    subject = subject_of(random_run("three layers", n_steps=3, n_heads=2, objective=objective), sequences=12)
    data = attention.probe.measure(subject)
    scores = attention.scores(data, None)
    stats = subject.recorded(ATTENTION)
    parent = {(la, h): stats.lag_mass[-1, la, h, 1] for la in range(3) for h in range(2)}
    layer, head = max(parent, key=lambda where: parent[where])
    assert scores["parent_score"].value == pytest.approx(parent[layer, head])
    assert scores["parent_head"].value == f"L{layer}H{head}"
    for name in ("effective_tokens", "position_share"):
        assert scores[name].value == pytest.approx(getattr(stats, name)[-1, layer, head])
        assert scores[name].of == f"L{layer}H{head}"
    assert scores["spread"].value == pytest.approx(stats.spread[-1].max())
    reach = subject.batch.reach.numpy()
    shares = (stats.lag_mass[-1] * reach)[..., 1:].reshape(6, -1)
    assert scores["best_lag"].value == shares.max(0).argmax() + 1
    assert shares.sum(1) == pytest.approx(1 - (stats.lag_mass[-1] * reach)[..., 0].ravel(), abs=1e-6)


@pytest.mark.parametrize("n_states", [3, 5])
def test_lag_classes_add_up_the_last_predictions_attention(n_states):
    source = Circle(n_states=n_states, p=1.0)
    logits = np.random.default_rng(0).normal(size=12)
    run = walk_run(source, source.P.T, logits)
    data = attention.probe.measure(subject_of(run, sequences=4))
    pattern = np.exp(logits) / np.exp(logits).sum()
    expected = np.zeros(n_states)
    for key in range(11):
        expected[(11 - key - 1) % n_states] += pattern[key]
    assert data["modulo"].values.tolist() == list(range(1, n_states + 1))
    assert data["lag_class"].values.squeeze() == pytest.approx(expected, abs=1e-6)


def test_the_examples_are_the_ends_of_the_first_sequences():
    run = walk_run(Circle(n_states=4, p=0.5), np.eye(4), parent_logits(40, sharp=5.0))
    subject = subject_of(run, sequences=3)
    data = attention.probe.measure(subject)
    pattern = np.exp(parent_logits(40, sharp=5.0))
    sizes = {"step": 1, "sequence": 3, "layer": 1, "head": 1, "query": 24, "key_shown": 24}
    assert data["example"].sizes == sizes
    for i in range(3):
        last = data["example"].values[0, i, 0, 0, -1]
        assert last == pytest.approx(pattern[16:] / pattern.sum(), abs=1e-6)
        states = [str(state) for state in subject.batch.history[i, 16:].tolist()]
        assert data["example_token"].values[i].tolist() == [*states, "query"]
    view = attention.figures(data)[0].content
    assert view.tokens == data["example_token"].values[0].tolist()
    assert [other.tokens for other in view.others] == data["example_token"].values[1:].tolist()


def test_between_flat_and_selected_the_verdict_says_so():
    run = walk_run(Circle(n_states=4, p=0.5), np.eye(4), parent_logits(13, sharp=2.0))
    outcome = mm.probe(run, ["attention"], sequences=8)["attention"]
    assert outcome.scores["parent_score"].value == pytest.approx(np.exp(2) / (np.exp(2) + 12), abs=1e-6)
    looks = outcome.claims.first("attends_to", object="parent")
    assert (looks.subject, looks.status) == (("L0H0",), "excluded")
    assert (looks.value, looks.null) == pytest.approx((0.381, 1 / 13), abs=1e-3)


def test_a_window_is_no_selection():
    # Uniform within its window: the mask makes no head a selector and no spread.
    run = random_run("window", n_layers=1, use_attn_scale=True)
    for name in ("W_Q", "b_Q"):
        run.states[f"blocks.0.attn.{name}"].zero_()
    outcome = mm.probe(run, ["attention"], sequences=8)["attention"]
    assert outcome.scores["spread"].value == pytest.approx(0, abs=1e-6)
    evenly = outcome.claims.first("attends_evenly")
    assert (evenly.status, evenly.null) == ("shown", pytest.approx(1 / 3))


@pytest.mark.parametrize("shape", ["one token of context", "window of itself alone"])
def test_where_there_is_one_token_attention_says_nothing(shape):
    outcome = mm.probe(random_run(shape), ["attention"], sequences=8)["attention"]
    assert outcome.claims.first("attends_evenly").status == "does not apply"
    assert outcome.scores["parent_score"].value == pytest.approx(1)
    assert outcome.scores["parent_score"].null == pytest.approx((1, 1, 1))
    assert outcome.scores["parent_head"].value is outcome.scores["best_lag"].value is None


def test_figures_show_every_head_and_the_lags():
    outcome = mm.probe(random_run(n_steps=3), ["attention"], steps="all", sequences=8)["attention"]
    shown = {figure.title: figure for figure in outcome.figures()}
    assert list(shown) == [
        "Attention on the end of a sequence",
        "Attention by lag",
        "Selection over training",
    ]
    view = shown["Attention on the end of a sequence"].content
    assert view.patterns.shape == (4, 7, 7)
    assert view.head_labels == ["L0H0", "L0H1", "L1H0", "L1H1"]
    assert len(view.tokens) == 7
    z = np.array(shown["Attention by lag"].content.data[0].z, dtype=float)
    assert z == pytest.approx(outcome.data["lag_mass"].isel(step=-1, lag=slice(1, None)).values.reshape(4, 7))
    curves = shown["Selection over training"].content.data
    assert [curve.name for curve in curves] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    assert np.array(curves[3].y, dtype=float) == pytest.approx(outcome.data["lag_mass"].values[:, 1, 1, 1])


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG], ids=["next token", "query"])
@pytest.mark.parametrize("shape", ["plain", "window", "window of itself alone", "one token of context"])
def test_the_parents_share_of_uniform_attention_is_that_of_a_head_without_queries(shape, objective):
    if shape == "one token of context" and objective.query:
        shape = "two tokens of context"
    run = random_run(shape, objective=objective)
    for name in run.states:
        if name.endswith(("W_Q", "b_Q")):
            run.states[name].zero_()
    data = attention.probe.measure(subject_of(run, sequences=4))
    assert data["lag_mass"].sel(lag=1).values == pytest.approx(
        float(data["uniform_mass"].sel(lag=1)), abs=1e-6
    )


def test_an_untrained_model_has_no_parent_head():
    decoder = HookedDecoder(random_run("plain").config, n_models=1)
    initialise(decoder, [1234], scheme="normal", std=0.3)
    outcome = mm.probe(run_of(decoder[0], recipe={"init": {"scheme": "normal", "std": 0.3}}), ["attention"])
    scores = outcome["attention"].scores
    assert scores["parent_score"].value <= scores["parent_score"].null[2]
    assert scores["parent_head"].value is None
    assert "than fresh models give it" in scores["parent_head"].reason
    # One that looks at the parent is named beside the same null.
    looks = mm.probe(run_of(value_table(torch.eye(3), n_ctx=7)), ["attention"])["attention"].scores
    assert looks["parent_head"].value == "L0H0"


@pytest.mark.parametrize(
    ("attention", "named"),
    [((0.6, 0.29, 0.11), ("x",)), ((0.6, 0.31, 0.09), ("x", "y")), ((0.4, 0.32, 0.28), ())],
)
def test_a_key_token_is_named_too_if_it_gets_more_than_half_of_what_the_most_attended_gets(attention, named):
    assert _most_attended(np.log(attention), ["x", "y", "z"]) == named


@pytest.mark.parametrize(("share", "spread", "told"), [(0.51, 0.51, 1), (0.49, 0.51, 0), (0.51, 0.49, 0)])
def test_half_the_variance_and_half_a_nat_are_tokens(share, spread, told):
    """Both in logits as a softmax takes them, in nats: the table's entries are `spread` from their mean."""
    table = spread * np.array([[1.0, -1.0], [-1.0, 1.0]])
    data = xr.Dataset(
        {"token_pair_share": (("layer", "head"), [[share]]),
         "token_scores": (("layer", "head", "state_from", "state_to"), table[None, None])},
        attrs={"labels": ["x", "y"]},
    )  # fmt: skip
    assert len(list(by_token(data, [{"layer": 0, "head": 0}]))) == told
