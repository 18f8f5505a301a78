"""Runs: what methods promise, what they pay, what they break; places and the leaderboard."""

import json
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from distributions import install

import mechmarkov as mm
from mechmarkov.bench import Method, check, leaderboard, methods, places, run, save
from mechmarkov.bench.leaderboard import leaderboard_schema
from mechmarkov.bench.method import GROUP
from mechmarkov.bench.patching import edge_effects
from mechmarkov.bench.run import HELD_OUT
from mechmarkov.cli import cli

DIFFERENCE = ("logit-difference",)


def zeros(case, passes=0):
    for _ in range(passes):
        with torch.no_grad():
            case.model(case.clean)
    return dict.fromkeys(case.nodes, 0.0)


def hooked(case):
    case.model.add_hook("hook_embed", lambda x, hook: 0 * x)
    return zeros(case)


def rewritten(case):
    with torch.no_grad():
        case.model.embed.W_E.zero_()
    return zeros(case)


def other_sequences(case):
    case.clean.zero_()
    return zeros(case)


def other_tuning(case):
    case.tuning.law.zero_()
    return zeros(case)


def of_all_torch(case):
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    return zeros(case)


def only(method):
    return run([method, "difference-norm"], ["direct", "head"], seeds=1)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Method("bad", "nodes", lambda case: {}), "lacks a claim about 'embed', expected one for each"),
        (Method("bad", "nodes", lambda case: zeros(case) | {"L9H9": 1}), "has a claim about 'L9H9'"),
        (Method("bad", "nodes", lambda case: zeros(case) | {"embed": np.nan}), "claims nan for 'embed'"),
        (Method("bad", "edges", lambda case: dict.fromkeys(["embed→L7H0.Q"], 1)), "lacks a claim about"),
        (
            Method("bad", "nodes", partial(zeros, passes=4), passes=3),
            "takes 4 forward passes, and declares at most 3",
        ),
        (Method("bad", "nodes", lambda case: case.nothing), "(?<!Error: )AttributeError: 'Case' object"),
        (Method("bad", "nodes", lambda case: sys.exit(7)), "SystemExit: 7"),
        (Method("bad", "subspaces", lambda case: np.eye(8)), r"claims a basis \[8, 8\]"),
        (Method("bad", "subspaces", lambda case: 2 * case.subspace[1]), "expected an orthonormal"),
        (Method("bad", "coefficients", lambda case: np.nan), "claims nan, expected a finite number"),
        (Method("bad", "features", lambda case: "a" if case.features is None else 3), "cannot be scored: "),
        (Method("bad", "nodes", lambda case: hooked(case)), "leaves weights or hooks of the model changed"),
        (Method("bad", "nodes", lambda case: rewritten(case)), "leaves weights or hooks"),
        (Method("bad", "nodes", other_sequences), "changed, or sequences or laws"),
        (Method("bad", "nodes", other_tuning), "changed, or sequences or laws"),
        (Method("bad", "nodes", lambda case: ""), "gives an empty text, expected claims or one sentence"),
        (Method("bad", "nodes", zeros, passes="x"), "declares 'x' passes, expected a number or None"),
        (Method("bad", "nodes", zeros, passes=lambda case: case.nothing), "AttributeError: "),
    ],
)  # fmt: skip
def test_a_broken_promise_is_said_and_the_run_goes_on(method, said):
    found = only(method)
    broken = found.reasons.query("method == 'bad'")
    assert broken["broken"].all()
    assert set(broken["case"]) == {"direct", "head"}
    assert broken["reason"].str.contains(said).all()
    scores = found.scores.set_index("method")[["rank", "angle", "llc_error"]]
    assert scores.loc["bad"].isna().all(axis=None)
    assert scores.loc["difference-norm", "rank"].notna().any()
    with pytest.raises(ValueError, match="method 'bad' in case 'direct': .*" + said):
        check(method, ["direct"])


@pytest.mark.parametrize("change", [hooked, rewritten, other_sequences, other_tuning, of_all_torch])
def test_the_next_method_sees_the_model_unchanged(change):
    def first_logit(case):
        assert torch.is_grad_enabled()
        assert torch.zeros(1).dtype is torch.float32
        with torch.no_grad():
            logit = float(case.model(case.clean)[0, -1, 0])
        return dict.fromkeys(case.nodes, logit + float(case.tuning.law.sum()))

    reads = Method("reads", "nodes", first_logit, passes=1)
    before, after = (
        run([*some, reads], ["direct"], seeds=1) for some in ([], [Method("bad", "nodes", change)])
    )
    claimed = [found.effects.query("method == 'reads'")["claimed"].tolist() for found in (before, after)]
    assert claimed[0] == claimed[1] != []
    assert claimed[0][0] != 0


def test_a_reason_that_no_file_could_hold_is_escaped(tmp_path):
    says = Method("says", "nodes", lambda case: "not\n\ud800 here")
    found = run([says, "difference-norm"], ["direct"], seeds=1)
    assert set(found.reasons.query("method == 'says'")["reason"]) == {r"not \ud800 here"}
    save(found, tmp_path / "bench")


@pytest.mark.parametrize("name", ["seed", "case", "metric", "method"])
def test_a_method_may_be_called_as_a_column(name, tmp_path):
    found = run([Method(name, "nodes", zeros), "difference-norm"], ["direct"], seeds=1)
    save(found, tmp_path / "bench")
    assert name in (tmp_path / "bench" / "leaderboard.json").read_text("utf-8")


def test_a_method_that_keeps_its_promises_passes_the_check():
    check(Method("zeros", "nodes", partial(zeros, passes=3), passes=3))


def test_a_metric_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="method 'bad' has metric 'nat', expected some of logit-difference"):
        Method("bad", "nodes", zeros, metrics=("nat",))


def test_passes_of_copies_count_too():
    def copied(case):
        with torch.no_grad():
            deepcopy(case.model)(case.clean)
        return zeros(case, 1)

    assert run([Method("copied", "nodes", copied)], ["direct"], seeds=1).scores["passes"][0] == 2


def test_each_method_pays_for_its_own_passes():
    """A case keeps nothing of earlier methods: the order in which methods are asked does not matter."""

    def asks(case):
        return dict.fromkeys(case.nodes, float(len(case.differences)))

    found = run([Method(name, "nodes", asks) for name in ("first", "second")], ["direct"], seeds=1)
    passes = found.scores.groupby("method")["passes"].max()
    assert passes["first"] == passes["second"] > 0


def test_methods_take_the_passes_of_their_papers():
    """Two forward and one backward pass (Syed et al. 2023), two backward, and 2 + 10 (EAP-IG)."""
    passes = {"attribution-patching": 3, "eap": 3, "eap-clean-corrupt": 4, "eap-ig": 12}
    found = run(list(passes), ["direct"], seeds=1).scores.groupby("method")
    assert found["passes"].max().to_dict() == passes
    assert found["declared"].max().to_dict() == passes


def test_a_method_is_asked_once_for_each_metric_it_claims():
    asked = []

    def claims(case):
        asked.append(case.metric)
        return zeros(case)

    found = run([Method("a", "nodes", claims, metrics=("kl", "nats"))], ["direct"], seeds=1)
    assert asked == ["kl", "nats"]
    assert found.scores.set_index("metric")["own"].to_dict() == {
        "kl": True,
        "nats": True,
        "logit-difference": False,
    }


def test_a_reason_is_not_a_number():
    found = run([Method("silent", "nodes", lambda case: "it has no gradients")], ["direct"], seeds=1)
    assert found.effects.empty
    assert found.scores[["rank", "sign", "alarms"]].isna().all(axis=None)
    assert found.reasons["reason"].tolist() == ["it has no gradients"]
    assert not found.reasons["broken"].any()


def noisy(case, by):
    """Exact effects and noise of some size."""
    exact = edge_effects(case, [case.metric])[case.metric].as_claims()
    draws = methods.noise(case, "edges")
    largest = max(map(abs, exact.values()))
    return {name: value + by * largest * draws[name] for name, value in exact.items()}


RANKED = [
    Method("good", "edges", partial(noisy, by=0.0), metrics=DIFFERENCE),
    Method("as-good", "edges", partial(noisy, by=0.0), metrics=DIFFERENCE),
    Method("bad", "edges", partial(noisy, by=3.0), metrics=DIFFERENCE),
]


@pytest.mark.parametrize(("some", "is_open"), [((0, 2), False), ((0, 1), True), ((2,), True)])
def test_who_is_first_is_open_where_intervals_say_so(some, is_open):
    found = run([RANKED[i] for i in some] + ["path-patching"], ["split", "cancel"], seeds=3)
    placed = {(each.metric, each.of): each for each in places(found)}
    first = placed["logit-difference", "edges"]
    assert first.is_open == is_open
    assert "path-patching" not in first.methods  # a reference
    assert next(iter(first.methods)) == RANKED[some[0]].name
    estimate = first.methods[RANKED[some[0]].name]
    assert estimate.low <= estimate.value <= estimate.high


def test_all_methods_are_ranked_on_the_same_cases():
    """One that answers two of three is ranked on these with the others, one that answers one is not."""

    def answering(name, *cases):
        return Method(name, "edges", lambda case: noisy(case, 0.0) if case.name in cases else "no")

    asked = [methods.noise_edges, answering("most", "backup", "mlp"), answering("few", "direct")]
    each = {p.metric: p for p in places(run(asked, ["direct", "backup", "mlp"], seeds=2))}["nats"]
    assert set(each.methods) == {"noise-edges", "most"}
    assert set(each.cases) == {"backup", "mlp"}
    assert np.isnan(each.lead.low)  # of two seeds
    assert each.is_open


def test_the_leaderboard_follows_its_schema():
    found = run([*RANKED, "acdc", "belief-probe", "difference-norm"], ["split", "belief"], seeds=3)
    data = json.loads(json.dumps(leaderboard(found), allow_nan=False))
    schema = leaderboard_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data, schema)
    shipped = Path(mm.bench.__file__).with_name("leaderboard.schema.json")
    assert json.loads(shipped.read_text("utf-8")) == schema
    rows = {(row["method"], row["metric"]): row for row in data["rows"]}
    assert rows["good", "logit-difference"]["place"] == 1
    assert rows["good", "nats"]["own"] is False
    assert "place" not in rows["acdc", "kl"]
    assert rows["acdc", "kl"]["reference"] is True
    assert rows["belief-probe", ""]["scores"]["belief_error"] < 1e-3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"pairs": "none"}, schema)


def test_a_strangers_method_is_found_by_its_entry_point(tmp_path, monkeypatch):
    text = (
        "from mechmarkov.bench import Method\n"
        "def letters(case):\n"
        "    return {name: len(name) for name in case.edges}\n"
        "method = Method('mine', 'edges', letters, metrics=())\n"
    )
    install(tmp_path, "theirs", GROUP, "mine = theirs_method:method", theirs_method=text)
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in mm.bench.registered()
    scores = run(["mine"], ["direct"], seeds=1).scores
    assert scores["error"].isna().all()
    assert scores["rank"].notna().all()
    assert not scores["own"].any()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no method is named 'eapp'"):
        run(["eapp"], ["direct"], seeds=1)
    with pytest.raises(ValueError, match="no case is named 'sideways'; there are direct, "):
        run(["eap"], ["sideways"], seeds=1)
    with pytest.raises(ValueError, match="seeds is 0, expected at least 1"):
        run(["eap"], ["direct"], seeds=0)
    with pytest.raises(ValueError, match="pairs is 'some', expected one of 'minimal', 'resampled'"):
        run(["eap"], ["direct"], seeds=1, pairs="some")
    with pytest.raises(ValueError, match="metric is 'nat', expected one of"):
        run(["eap"], ["direct"], seeds=1).table("rank", "nat")
    ones = [Method("ones", "nodes", lambda case, s=sign: dict.fromkeys(case.nodes, s)) for sign in (1, -1)]
    with pytest.raises(ValueError, match="two methods are named 'ones', expected different names"):
        run(ones, ["direct"], seeds=1)


def test_effects_are_verified_by_computing_them_again(tmp_path):
    found = run(["eap", "difference-norm"], ["head", "split"], seeds=1, held_out=True)
    assert set(found.scores["seed"]) == {HELD_OUT}
    mm.bench.save(found, tmp_path)
    asked = ["bench", "--verify", str(tmp_path)]
    result = CliRunner().invoke(cli, asked)
    assert (result.exit_code, result.output) == (0, "0 effects differ\n")
    rows = pd.read_csv(tmp_path / "effects.csv")
    rows.loc[3, "exact"] += 0.01
    rows.to_csv(tmp_path / "effects.csv", index=False)
    result = CliRunner().invoke(cli, [*asked, "--json"])
    (wrong,) = json.loads(result.output)["differ"]
    assert result.exit_code == 1
    assert wrong["exact"] - wrong["again"] == pytest.approx(0.01)
    assert len(mm.bench.verify(tmp_path / "effects.csv", pairs="resampled")) > 1


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("case", "none", "has case 'none'"),
        ("component", "L9H9", "has 'L9H9' under 'logit-difference'"),
        ("seed", "1e400", "has seed '1e400', expected an integer"),
        ("exact", "nan", "has exact 'nan', expected a finite number"),
    ],
)
def test_a_file_about_something_else_is_refused(tmp_path, column, value, said):
    found = run(["eap"], ["head"], seeds=1)
    found.effects.assign(**{column: value}).to_csv(tmp_path / "effects.csv", index=False)
    with pytest.raises(ValueError, match=said):
        mm.bench.verify(tmp_path)
    (tmp_path / "broken.csv").write_text("a\nb\nc,d\n")
    with pytest.raises(ValueError, match=r"broken.csv is not a table, expected effects.csv"):
        mm.bench.verify(tmp_path / "broken.csv")
    found.effects.drop(columns=column).to_csv(tmp_path / "effects.csv", index=False)
    with pytest.raises(ValueError, match=f"has no column '{column}'"):
        mm.bench.verify(tmp_path)


WRONG = {
    "of": ("nope", None, ["nodes"]),
    "metrics": ("kl", None, (1,)),
    "name": ("\ud800",),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_a_method_is_named(field):
    for value in WRONG[field]:
        with pytest.raises((TypeError, ValueError), match=rf"\b{field[:6]}.*, expected ") as caught:
            Method(**{"name": "mine", "of": "nodes", "claims": zeros} | {field: value})
        assert len(str(caught.value).splitlines()) == 1


def test_a_list_of_metrics_is_as_good():
    assert Method("mine", "nodes", zeros, metrics=["kl", "nats"]).metrics == ("kl", "nats")
