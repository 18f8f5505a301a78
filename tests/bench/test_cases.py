"""The parts of each case, the pictures of the page and the limits of a run.

A case is a standard: with other sizes its scores are not those that were published.
"""

import json
import runpy
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from mechmarkov.bench import CASES, SCORES, Method, run
from mechmarkov.bench.case import case_of, seed_of
from mechmarkov.bench.counterfactuals import Change, draw_pairs, places
from mechmarkov.bench.leaderboard import Estimate
from mechmarkov.bench.page import COLUMNS, WIDEST, _heat_map, _number, _scatter, as_text, sections
from mechmarkov.bench.run import Benchmark
from mechmarkov.bench.trained import FLEETS
from mechmarkov.bench.verify import verify
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.objectives import Objective
from mechmarkov.sources import Chain
from mechmarkov.training import load_recipe

# Tokens, layers, heads, width, width of a head, hidden units, states; and where the prediction is made from.
SHAPES = {
    "direct": (8, 1, 1, 4, 4, None, 4, (-1, (4, 3))),
    "head": (8, 1, 1, 16, 8, None, 4, (-1, (16, 3))),
    "mlp": (8, 1, 1, 8, 4, 4, 4, (-1, (8, 3))),
    "split": (8, 1, 1, 17, 8, 4, 4, (-1, (17, 3))),
    "rotated": (8, 1, 1, 16, 8, None, 4, (-1, (16, 3))),
    "cancel": (8, 1, 2, 16, 8, None, 4, (-1, (16, 3))),
    "backup": (8, 1, 1, 17, 8, 4, 4, (-1, (17, 3))),
    "induction": (24, 2, 2, 36, 24, None, 3, None),
    "contrary": (24, 2, 2, 30, 24, None, 2, None),
    "order-2": (24, 2, 2, 32, 24, None, 2, None),
    "trigram": (8, 1, 2, 20, 8, 9, 3, None),
    "plateau": (8, 1, 1, 16, 8, None, 4, (-1, (16, 3))),
    "trap": (8, 1, 1, 16, 8, None, 4, (-1, (16, 3))),
    "tied-plateau": (8, 1, 1, 3, 1, None, 2, None),
    "canonical": (8, 1, 1, 1, 1, 2, 2, None),
    "belief": (6, 2, 1, 19, 1, 126, 2, (0, (19, 1))),
    "no-belief": (6, 2, 1, 19, 1, 126, 2, None),
    "bundled-walk": (97, 1, 1, 103, 6, None, 6, None),
    "bundled-induction": (64, 2, 2, 16, 8, None, 3, None),
}
# Steps, sequences a step, layers, tokens, and what they are drawn from.
TRAINED = {
    "table": (400, 16, 1, 64, "binary"),
    "walk": (50, 1000, 1, 97, "circle"),
    "induction-1": (800, 32, 1, 32, "dirichlet_chains"),
    "induction": (800, 32, 2, 32, "dirichlet_chains"),
    "induction-3": (800, 32, 3, 32, "dirichlet_chains"),
    "trigram": (600, 64, 1, 16, "order_k"),
    "lagged": (600, 64, 2, 16, "lagged_chain"),
    "selective": (800, 32, 2, 32, "selective_lag"),
    "belief": (800, 128, 1, 10, "hidden_markov"),
    "mamba": (800, 32, 1, 32, "dirichlet_chains"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_case_has_its_sizes(name):
    case = CASES[name](0)
    c, known = case.model.config, case.subspace
    widths = (c.n_layers, c.n_heads, c.d_model, c.d_head, c.d_mlp, case.source.n_states)
    length = case.clean.shape[1]
    assert (length, *widths, known and (known[0], known[1].shape)) == SHAPES[name]
    assert case.clean.shape == case.corrupt.shape == (64, length)
    assert case.tuning.clean.shape == case.tuning.corrupt.shape == (128, length)
    assert case.read.tolist() == [length - 1]
    assert case.tuning.tuning is None
    assert not torch.equal(case.clean, case.tuning.clean[:64])
    assert {weight.dtype for weight in case.model.parameters()} == {torch.float64}
    assert not any(weight.requires_grad for weight in case.model.parameters())


def test_cases_and_fleets_are_all_told():
    made = ("random-weights", "shuffled-circuit")
    assert {name for name in CASES if not name.startswith("trained-") and name not in made} == {*SHAPES}
    assert {*FLEETS} == {*TRAINED}


@pytest.mark.parametrize("fleet", TRAINED)
def test_a_fleet_has_its_recipe(fleet):
    name, changes = FLEETS[fleet]
    recipe = load_recipe(name).replace(**changes)
    config, data = recipe.decoder_config, recipe.data
    sizes = recipe.steps, data.batch or data.n_train, config.n_layers, config.n_ctx, recipe.source.kind
    assert sizes == TRAINED[fleet]


def test_exact_coefficients_are_those_of_theory():
    """K (K - 1) / 2 of a table of K rows with a free scale; of the tied plateaus half the width, and one."""
    found = {name: CASES[name](0).coefficient for name in SHAPES}
    numbers = {name: value and value[1] for name, value in found.items() if value}
    assert numbers == {"direct": 4 * 3 / 2, "tied-plateau": 2.0, "canonical": 1.0}
    assert found["canonical"][0][2:] == ("blocks.0.mlp.W_in", "blocks.0.mlp.W_out")


def test_chains_of_a_case_differ_by_seed():
    for name in ("head", "trigram", "belief", "tied-plateau"):
        laws = [CASES[name](seed).law for seed in (0, 1, 0)]
        assert torch.equal(laws[0], laws[2])
        assert not torch.equal(laws[0], laws[1])
    flips = [CASES["tied-plateau"](seed).source.P for seed in range(8)]
    assert all(0.6 <= P[0, 1] <= 0.9 and 0.6 <= P[1, 0] <= 0.9 for P in np.array(flips))


def test_a_case_needs_a_law_and_changes():
    chain = Chain([[0.5, 0.5], [0.5, 0.5]])
    model = value_table(torch.zeros(2, 2), 3)
    case = case_of("mine", "?", model, chain, seed=3)
    assert (case.metric, case.objective, case.circuit, case.empty) == ("nats", Objective(), None, False)
    batch, _ = draw_pairs(
        chain, Objective(), model.config, pairs="minimal", change=Change(), seed=3, sequences=5
    )
    assert batch.tokens.shape == (5, 3)
    one, same, other = (seed_of(torch.tensor([row])) for row in ([1, 2], [1, 2], [2, 1]))
    assert one == same != other
    with pytest.raises(ValueError, match=r"^case 'mine' has no sequences to tune on"):
        _ = case.tuning.others
    words = "0 of 40 sequences can be changed at a match, expected 5: pairs='resampled' needs none"
    with pytest.raises(ValueError, match=words):
        draw_pairs(
            chain,
            Objective(),
            value_table(torch.zeros(2, 2), 1).config,
            pairs="minimal",
            change=Change("match"),
            seed=0,
            sequences=5,
        )


@pytest.mark.parametrize(
    ("change", "at_most", "words"),
    [
        (Change(lags=(5,)), 5, "lags reach 6 states back, expected at most 5"),
        (Change("match", order=5), 5, "order reach 6 states back, expected at most 5"),
    ],
)
def test_a_change_reaches_no_further_than_a_history(change, at_most, words):
    history = torch.zeros(2, at_most, dtype=torch.long)
    assert places(history, change, seed=0).shape == (2,)
    further = Change(change.which, lags=(6,), order=6)
    with pytest.raises(ValueError, match=words):
        places(history, further, seed=0)
    with pytest.raises(ValueError, match=r"lags\[0\] is 0"):
        Change(lags=(0,))
    with pytest.raises(ValueError, match="order is 0"):
        Change("match", order=0)


# -- the page ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return run(["eap", "eap-ig", "noise-edges"], ["head", "cancel", "plateau"], seeds=1)


def test_a_heat_map_names_every_row(found):
    picture = _heat_map(found, "logit-difference").content
    layout = picture.layout
    assert (picture.data[0].zmin, picture.data[0].zmax) == (-1, 1)
    assert layout.yaxis.ticktext == ("eap", "eap-ig", "noise-edges")
    assert layout.xaxis.ticktext == ("head", "cancel")  # in a plateau there is nothing to rank
    assert (layout.xaxis.tickvals, layout.yaxis.tickvals) == ((0, 1), (0, 1, 2))
    assert (layout.height, layout.meta["least"]) == (160 + 3 * 20, 200 + 2 * 28)


def test_a_scatter_has_a_line_and_known_methods(found):
    figure = _scatter(found, "cancel", "logit-difference")
    traces = {trace.name: trace for trace in figure.content.data}
    assert {name: trace.visible for name, trace in traces.items()} == {
        "eap": True,
        "eap-ig": True,
        "noise-edges": "legendonly",
        "claimed = exact": None,
    }
    rows = found.effects.query("case == 'cancel' and metric == 'logit-difference'")
    line = traces["claimed = exact"]
    assert list(line.x) == list(line.y) == [rows["exact"].min(), rows["exact"].max()]
    of_eap = rows[rows["method"] == "eap"]
    assert list(traces["eap"].x) == [round(value, 4) for value in of_eap["exact"]]
    assert list(traces["eap"].y) == [round(value, 4) for value in of_eap["claimed"]]
    assert traces["eap"].text[0] == f"{of_eap['component'].iloc[0]}, seed 0"
    layout = figure.content.layout
    assert (layout.height, layout.margin.t, layout.margin.b) == (420, 20, 60)
    assert figure.caption.startswith("Are two heads that cancel")


def test_numbers_of_a_table_are_short():
    assert [_number(x) for x in (np.nan, 0.125, -9.994, 9.999, 10.0, -10.4, 1234.5)] == [
        "–",
        "0.12",
        "-9.99",
        "10.00",
        "10",
        "-10",
        "1234",
    ]


def test_a_cell_of_a_terminal_has_sixty_characters():
    long = Method("a" * 61, "nodes", lambda case: dict.fromkeys(case.nodes, 1.0))
    fits = Method("b" * 60, "nodes", lambda case: dict.fromkeys(case.nodes, 1.0))
    lines = as_text(run([long, fits], ["head"], seeds=1)).splitlines()
    assert WIDEST == 60
    assert {line[:62] for line in lines if line[:2] == "aa"} == {f"{'a' * 60}… "}
    assert {line[:62] for line in lines if line[:2] == "bb"} == {f"{'b' * 60}  "}


# -- limits --------------------------------------------------------------------------------------------------


def test_ten_thousand_seeds_are_drawn_at_most():
    with pytest.raises(ValueError, match="no such pairs"):
        _ = run([], ["head"], seeds=10_000, pairs="no such pairs")
    for seeds in (0, 10_001):
        with pytest.raises(ValueError, match=f"^seeds is {seeds}, expected"):
            run([], ["head"], seeds=seeds, pairs="no such pairs")


def test_held_out_seeds_begin_at_a_million():
    scores = run(["noise-nodes"], ["direct"], seeds=2, held_out=True).scores
    assert set(scores["seed"]) == {1_000_000, 1_000_001}


def test_three_seeds_have_an_interval():
    two, three = (Estimate.of(np.arange(float(n))) for n in (2, 3))
    assert np.isnan(two.low)
    assert (two.value, three.value) == (0.5, 1.0)
    assert three.low < 1 < three.high


def test_an_effect_is_verified_to_a_ten_thousandth(found, tmp_path):
    rows = found.effects.query("method == 'eap' and case == 'head'").reset_index(drop=True)
    changed = rows.assign(exact=rows["exact"] + [2e-4, 1e-5, -2e-4, *[0.0] * (len(rows) - 3)])
    changed.to_csv(tmp_path / "effects.csv", index=False)
    assert verify(tmp_path).index.tolist() == [0, 2]
    again = verify(tmp_path / "effects.csv")["again"]
    assert again.tolist() == pytest.approx(rows["exact"].iloc[[0, 2]].tolist())
    changed.assign(seed=10**9).to_csv(tmp_path / "effects.csv", index=False)
    with pytest.raises(ValueError, match=r"has seed '1000000000', expected an integer"):
        verify(tmp_path)
    pd.DataFrame(rows).iloc[:0].to_csv(tmp_path / "effects.csv", index=False)
    with pytest.raises(ValueError, match="has no rows"):
        verify(tmp_path)


def test_a_schema_is_printed_only_where_asked(capsys):
    file = sys.modules[Estimate.__module__].__file__
    runpy.run_path(file, run_name="imported")
    assert capsys.readouterr().out == ""
    runpy.run_path(file, run_name="__main__")
    assert json.loads(capsys.readouterr().out)["type"] == "object"


@pytest.mark.parametrize(("metrics", "sign"), [(("kl", "nats"), 1.0), (("nats", "kl"), 0.0)])
def test_another_metric_is_scored_by_the_first(metrics, sign):
    """Under a logit difference every node of a table is for the clean answer; only claims in KL say so."""

    def claims(case):
        return dict.fromkeys(case.nodes, 1.0 if case.metric == "kl" else -1.0)

    method = Method("two", "nodes", claims, metrics=metrics)
    rows = run([method], ["direct"], seeds=1).scores.set_index("metric")
    assert rows.loc["logit-difference", "sign"] == sign
    assert rows["own"].to_dict() == {"kl": True, "nats": True, "logit-difference": False}
    assert len(rows) == 3


LESS_IS_BETTER = ("error", "belief_error", "angle", "llc_error")


@pytest.mark.parametrize("of", COLUMNS)
def test_the_best_of_each_kind_stands_first(of):
    """By the first of its columns: errors and angles from the least, all else from the largest."""
    score, metric = COLUMNS[of][0], "nats" if of in ("edges", "nodes", "layers") else ""
    methods = {name: Method(name, of, dict, reference=name == "r") for name in ("low", "high", "r")}
    row = {"of": of, "metric": metric, "own": True, "case": "head", "seed": 0, "seconds": 1.0, "passes": 1}
    values = {"low": 0.25, "high": 0.75, "r": 0.5}
    rows = [{**row, "method": name, "declared": 1, score: value} for name, value in values.items()]
    scores = pd.DataFrame(rows, columns=[*row, "method", "declared", *SCORES]).astype(
        dict.fromkeys(SCORES, float)
    )
    reasons = pd.DataFrame(columns=["method", "metric", "case", "seed", "broken", "reason"])
    section = sections(Benchmark(methods, "minimal", scores, pd.DataFrame(), reasons))[-1]
    first = ["low", "high"] if score in LESS_IS_BETTER else ["high", "low"]
    assert [line[0] for line in section.tables[0].rows] == [*first, "r"]
