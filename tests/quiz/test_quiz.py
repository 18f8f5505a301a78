"""Hidden circuits: a key makes them again, shuffled heads change nothing, and truth is an intervention."""

import json

import numpy as np
import pytest
import torch

from mechmarkov.bench.cases import CASES
from mechmarkov.cli import main
from mechmarkov.quiz import Hidden, Score, hidden_models, read_answers, score, truth
from mechmarkov.quiz.answers import Answer
from mechmarkov.quiz.models import KINDS, _shuffled
from mechmarkov.runs import load

TRUTHS = {"model-1": {"L0H0": 0.5, "L0H1": 0.0, "L0.mlp": 0.2}}


@pytest.fixture(scope="module")
def hidden():
    return hidden_models("a test", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quiz") / "quiz"
    main(["quiz", str(folder), "--models", "4", "--key", "a test"])
    return folder


def told(words, capsys):
    capsys.readouterr()
    main(["quiz", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_key_makes_the_same_models_again(hidden):
    again, other = hidden_models("a test", 4), hidden_models("another", 4)
    for one, same in zip(hidden, again, strict=True):
        assert one.kind == same.kind
        for name, value in one.case.model.state_dict().items():
            torch.testing.assert_close(value, same.case.model.state_dict()[name], rtol=0, atol=0)
    assert [one.kind for one in hidden] != [one.kind for one in other] or truth(hidden[0]) != truth(other[0])


def test_each_kind_comes_before_one_comes_twice(hidden):
    assert {one.kind for one in hidden} == {*KINDS}


def test_shuffled_heads_predict_the_same():
    case = CASES["induction"](0)
    all_turned = [_shuffled(case, np.random.default_rng(seed)) for seed in range(6)]
    for turned in all_turned:
        torch.testing.assert_close(turned.predicted(case.clean), case.predicted(case.clean))
        assert sorted(truth_of(case).values()) == pytest.approx(sorted(truth_of(turned).values()))
    orders = {tuple(truth_of(turned)) for turned in all_turned}
    assert len(orders) == 1  # names stay, and what they are of does not
    assert len({tuple(round(rise, 6) for rise in truth_of(turned).values()) for turned in all_turned}) > 1


def truth_of(case):
    return truth(Hidden("model-1", "set by hand", case))


def test_the_truth_is_the_loss_without_the_part():
    case = CASES["head"](0)
    z = {}
    with torch.no_grad():
        case.model.run_with_hooks(
            case.corrupt, fwd_hooks=[("blocks.0.attn.hook_z", lambda x, hook: z.update(mean=x.mean(0)))]
        )
        cut = case.model.run_with_hooks(
            case.clean, fwd_hooks=[("blocks.0.attn.hook_z", lambda x, hook: z["mean"].expand_as(x))]
        )
        by_hand = [
            float(-(case.law * scores[:, case.read].log_softmax(-1)).sum(-1).mean())
            for scores in (cut, case.model(case.clean))
        ]
    assert truth_of(case)["L0H0"] == pytest.approx(by_hand[0] - by_hand[1], abs=1e-9)


def test_decoys_and_empty_models_need_nothing(hidden):
    for one in hidden:
        needed = [rise > 0.01 for rise in truth(one).values()]
        assert any(needed) == (one.kind in ("set by hand", "trained")), one.kind


def test_answers_are_right_wrong_overclaimed_or_open():
    said = {"L0H0": Answer("excluded", 0.1), "L0H1": Answer("shown"), "L0.mlp": Answer("shown", 0.3)}
    given = {"model-1": said}
    assert score(given, TRUTHS)["all"] == Score(1, 1, 1, 0, pytest.approx(0.25))
    assert score({}, TRUTHS)["all"] == Score(0, 0, 0, 3, None)
    assert score(given, TRUTHS)["model-1"].points == -1


def one(**changes):
    """Answers with one claim, changed."""
    claim = {"subject": ["L0H0"], "relation": "is_needed", "status": "shown"} | changes
    return json.dumps({"model-1": [claim]})


FAULTS = {
    "[]": "it is a list, expected an object of models",
    '{"model-9": []}': "'model-9' is not a model, expected model-1",
    '{"model-1": {}}': "model-1 is a dict, expected a list of claims",
    one(subject=["L9H9"]): "'L9H9' is not a part",
    one(subject=[]): "expected a list with one part",
    one(relation="reaches"): "expected 'is_needed'",
    one(status="yes"): "status is 'yes'",
    one(value=float("nan")): "holds 'NaN', expected finite numbers",
    "{": "Expecting",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_bad_answer_is_one_line(text, tmp_path):
    file = tmp_path / "answers.json"
    file.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"answers\.json") as error:
        read_answers(file, {"model-1": ["L0H0", "L0H1"]})
    assert FAULTS[text] in str(error.value)


def test_the_sheet_tells_no_answer(folder):
    sheet = (folder / "quiz.json").read_text("utf-8")
    assert "a test" not in sheet
    assert not [kind for kind in KINDS if kind in sheet]
    run = load(folder / "model-1.pt")
    assert "imported" not in run.title()


def test_baselines_answer_and_are_scored(folder, capsys):
    for by in ("random", "probe"):
        told([folder, "--by", by], capsys)
    scores = {
        by: told([folder, "--answers", folder / f"answers-{by}.json", "--key", "a test"], capsys)["scores"]
        for by in ("random", "probe")
    }
    assert scores["probe"]["all"]["points"] > scores["random"]["all"]["points"]
    assert scores["probe"]["all"]["overclaimed"] == 0
    assert scores["probe"]["all"]["nats"] < 0.1
    assert scores["random"]["all"]["nats"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--key", "wrong", "--answers", "answers.json"], "expected the key that the quiz in"),
        (["--by", "probe", "--answers", "answers.json"], "exclude each other"),
        (["--answers", "nothing.json"], "is not a file"),
        (["--by", "probe", "--models", "3"], "--models is for a new quiz"),
        (["--key", "another"], "holds the quiz of another key"),
    ],
)
def test_bad_calls_are_one_line(words, expected, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "answers.json").write_text("{}", "utf-8")
    with pytest.raises(SystemExit) as left:
        main(["quiz", str(folder), *words])
    said = capsys.readouterr()
    assert (left.value.code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert expected in said.err
