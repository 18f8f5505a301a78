"""Hidden circuits: a key makes them again, shuffled heads change nothing, and truth is a measurement."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import rel_entr

from mechmarkov.bench.cases import CASES
from mechmarkov.cli import main
from mechmarkov.interventions.replace import replace_component
from mechmarkov.probing.batch import draw
from mechmarkov.quiz import (
    Answer,
    Hidden,
    Question,
    QuizScore,
    answers_by,
    hidden_models,
    questions,
    read_answers,
    score,
)
from mechmarkov.quiz.baselines import BASELINES
from mechmarkov.quiz.models import KINDS, _shuffled
from mechmarkov.quiz.questions import MEAN_SEQUENCES, holds
from mechmarkov.runs import load

NEEDED = [Question("is_needed", (part,)) for part in ("L0H0", "L0H1", "L0.mlp")]
READS = Question("attends_to", ("L0H0",), ("previous token",))
TRUTHS = {"model-1": dict(zip(NEEDED, (0.5, 0.0, 0.2), strict=True))}


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


def truth_of(case):
    return Hidden("model-1", "set by hand", case).truth()


@pytest.mark.system
def test_a_key_makes_the_same_models_again(hidden):
    again, other = hidden_models("a test", 4), hidden_models("another", 4)
    for one, same in zip(hidden, again, strict=True):
        assert one.kind == same.kind
        for name, value in one.case.model.state_dict().items():
            torch.testing.assert_close(value, same.case.model.state_dict()[name], rtol=0, atol=0)
    assert [one.kind for one in hidden] != [one.kind for one in other] or (
        hidden[0].truth() != other[0].truth()
    )


def test_each_model_is_told_as_it_is_made():
    told = []
    hidden_models("an example", 2, told.append)
    assert told == ["model-1", "model-2"]


def test_each_kind_comes_before_one_comes_twice(hidden):
    assert {one.kind for one in hidden} == {*KINDS}


@pytest.mark.system
def test_shuffled_heads_predict_the_same():
    case = CASES["induction"](0)
    all_turned = [_shuffled(case, np.random.default_rng(seed)) for seed in range(6)]
    needed = []
    for turned in all_turned:
        torch.testing.assert_close(turned.predicted(case.clean), case.predicted(case.clean))
        truth = truth_of(turned)
        needed.append(tuple(round(truth[each], 6) for each in truth if each.relation == "is_needed"))
    assert len({tuple(sorted(each)) for each in needed}) == 1
    assert len(set(needed)) > 1  # names stay, and what they are of does not


@pytest.mark.parametrize("name", ["head", "split"])
def test_a_needed_part_is_one_whose_loss_rises(name):
    """In a cut by hand, on sequences of their own, with as good a mean."""
    case = CASES[name](0)
    batch = draw(case.source, case.objective, case.model.config, seed=5, sequences=512 + MEAN_SEQUENCES)
    here, others = batch.tokens[:512], batch.tokens[512:]
    law = torch.tensor(case.source.P, dtype=torch.float64)[here]
    z = {}
    with torch.no_grad():
        case.model.run_with_hooks(
            others, fwd_hooks=[("blocks.0.attn.hook_z", lambda x, hook: z.update(mean=x.mean(0)))]
        )

        def first_cut(x, hook):
            return torch.cat([z["mean"].expand_as(x)[:, :, :1], x[:, :, 1:]], dim=2)

        cut = case.model.run_with_hooks(here, fwd_hooks=[("blocks.0.attn.hook_z", first_cut)])
        by_hand = [-float((law * s.log_softmax(-1)).sum(-1).mean()) for s in (cut, case.model(here))]
    assert truth_of(case)[Question("is_needed", ("L0H0",))] == pytest.approx(
        by_hand[0] - by_hand[1], abs=0.02
    )


@pytest.mark.parametrize("seed", [0, 7])
def test_a_mean_has_no_sampling_error_to_amplify(seed):
    """A sharp reader of the mean of 512 sequences looks at single tokens, which cost 0.2 nats more.

    No state differs from another, so that the mean of a head that copies the previous token is exactly even.
    """
    case = CASES["induction"](seed)
    best, n = case.source.best(), case.source.n_states
    batch = draw(case.source, case.objective, case.model.config, seed=9, sequences=512)
    law = batch.in_context(best.probabilities(batch.history.numpy()))
    truth = truth_of(case)
    needed = next(q.subject[0] for q in truth if q.relation == "carries" and abs(truth[q]) > 1e-6)

    def even(z):
        mean = z.mean((0, 1), keepdim=True).clone()
        mean[..., :n] = mean[..., :n].sum(-1, keepdim=True) / n
        return mean.expand_as(z)

    def distance():
        predicted = case.objective.predict(case.model(batch.tokens)[:, batch.read]).numpy()
        return float(rel_entr(law, predicted).sum(-1).mean())

    with torch.no_grad():
        whole = distance()
        with replace_component(case.model, needed, even):
            exact = distance() - whole
    assert truth[Question("is_needed", (needed,))] == pytest.approx(exact, abs=0.04)
    assert exact < 0


def test_a_question_of_two_answers_is_not_scored(monkeypatch):
    draws = iter([{NEEDED[0]: 0.009, NEEDED[1]: 0.3}, {NEEDED[0]: 0.011, NEEDED[1]: 0.2}])
    monkeypatch.setattr(questions, "_measured", lambda *_: next(draws))
    assert questions.truth_of(None, None, None) == {NEEDED[1]: 0.25}


def test_heads_set_by_hand_attend_where_they_were_set():
    truth = truth_of(CASES["trigram"](0))
    at = {
        each.object[0]
        for each, value in truth.items()
        if each.relation == "attends_to" and each.object != ("first token",) and holds(each, value)
    }
    assert at == {"current token", "previous token"}


def test_a_walk_is_read_behind_its_query_token():
    truth = truth_of(CASES["trained-walk"](0))
    shares = {each.object[0]: value for each, value in truth.items() if each.relation == "attends_to"}
    assert shares["previous token"] > 0.99
    assert sum(value for token, value in shares.items() if token != "first token") == pytest.approx(
        1, abs=0.01
    )


def less_sure_circuit():
    """The induction case with a circuit that is as sure as its counts allow, so that it helps."""
    case = CASES["induction"](0)
    model = copy.deepcopy(case.model)
    model.blocks[1].attn.W_O.mul_(0.4)
    return replace(case, model=model)


def test_a_circuit_is_carried_by_its_path():
    case = less_sure_circuit()
    truth = truth_of(case)
    built = {(one, to.rpartition(".")[0]) for one, to in (case.edges[name] for name in case.circuit)}
    carried = {
        each.subject for each, value in truth.items() if each.relation == "carries" and holds(each, value)
    }
    assert carried == {pair for pair in built if pair[0].startswith("L0H") and pair[1].startswith("L1H")}


def test_a_table_imitates_its_chain_exactly():
    truth = truth_of(CASES["direct"](0))
    nats = {each.object[0]: value for each, value in truth.items() if each.relation == "imitates"}
    assert nats["bigram"] < 1e-9
    assert [law for law, value in nats.items() if value < 0.01] == ["bigram"]


def test_decoys_and_empty_models_need_nothing(hidden):
    for one in hidden:
        needed = [holds(each, value) for each, value in one.truth().items() if each.relation == "is_needed"]
        assert any(needed) == (one.kind in ("set by hand", "trained")), one.kind


def test_answers_are_right_wrong_overclaimed_or_open():
    answers = dict(zip(NEEDED, (Answer("excluded", 0.1), Answer("shown"), Answer("shown", 0.3)), strict=True))
    scores = score({"model-1": answers}, TRUTHS)
    assert scores["is_needed"] == QuizScore(1, 1, 1, 0, 2, 1, pytest.approx(0.25))
    assert scores["all"] == scores["model-1"] == QuizScore(1, 1, 1, 0, 2, 1)
    assert scores["all"].balanced == -0.5  # (1 - 1) / 2 of what holds, (0 - 1) / 1 of what does not
    assert score({}, TRUTHS)["all"] == QuizScore(0, 0, 0, 3, 2, 0)


@pytest.mark.parametrize("status", ["shown", "excluded", "open"])
def test_one_answer_to_everything_scores_nothing(status):
    everything = {"model-1": dict.fromkeys(NEEDED, Answer(status))}
    assert score(everything, TRUTHS)["all"].balanced == 0


def test_the_truth_scores_one():
    truths = TRUTHS["model-1"].items()
    told = {each: Answer("shown" if holds(each, x) else "excluded", x) for each, x in truths}
    best = score({"model-1": told}, TRUTHS)["is_needed"]
    assert (best.balanced, best.off) == (1, 0)


def one(**changes):
    """Answers with one claim, changed."""
    claim = {"subject": ["L0H0"], "relation": "is_needed", "status": "shown"} | changes
    return json.dumps({"model-1": [claim]})


FAULTS = {
    "[]": "it is a list, expected an object of models",
    '{"model-9": []}': "'model-9' is not a model, expected model-1",
    '{"model-1": {}}': "model-1 is a dict, expected a list of claims",
    '{"model-1": [3]}': "model-1[0] is a int, expected a claim",
    one(subject=["L9H9"]): "model-1[0].subject is ['L9H9'], expected ['L0H0'], ['L0H1'], ['L0.mlp']",
    one(subject="L0H0"): "model-1[0].subject is 'L0H0'",
    one(relation="reaches"): "model-1[0].relation is 'reaches', expected is_needed, attends_to",
    one(
        relation="attends_to", object=["parent"]
    ): "model-1[0].object is ['parent'], expected ['previous token']",
    one(relation="attends_to"): "model-1[0].object is []",
    one(status="yes"): "status is 'yes'",
    one(status=["shown"]): "status is ['shown']",
    one(value=True): "value is True, expected a finite number",
    one(value=10**400): "expected a finite number",
    one(value=float("nan")): "holds 'NaN', expected finite numbers",
    json.dumps({"model-1": json.loads(one())["model-1"] * 2}): "model-1[1] answers what was answered already",
    "{": "Expecting",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_bad_answer_is_one_line(text, tmp_path):
    file = tmp_path / "answers.json"
    file.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"answers\.json") as error:
        read_answers(file, {"model-1": [*NEEDED, READS]})
    assert FAULTS[text] in str(error.value)


def test_the_sheet_tells_no_answer(folder):
    sheet = (folder / "quiz.json").read_text("utf-8")
    assert "a test" not in sheet
    assert not [kind for kind in KINDS if kind in sheet]
    run = load(folder / "model-1.pt")
    assert "imported" not in run.title()


@pytest.mark.system
def test_baselines_answer_and_are_scored(folder, capsys):
    scores = {}
    for by in BASELINES:
        told([folder, "--by", by], capsys)
        words = [folder, "--answers", folder / f"answers-{by}.json", "--key", "a test"]
        scores[by] = told(words, capsys)["scores"]
    assert scores["probe"]["all"]["score"] > scores["random"]["all"]["score"]
    assert scores["probe"]["all"]["overclaimed"] == scores["probe"]["all"]["wrong"] == 0
    assert scores["probe"]["is_needed"]["off"] < 0.1
    assert scores["probe"]["attends_to"]["off"] < 0.01
    assert scores["random"]["is_needed"]["off"] is None
    for published in ("acdc", "eap-ig"):
        assert scores[published]["is_needed"]["score"] > 0.5
        assert scores[published]["imitates"]["right"] == scores[published]["attends_to"]["right"] == 0


@pytest.mark.system
def test_published_recipes_see_the_path_of_a_circuit():
    one = Hidden("model-1", "set by hand", less_sure_circuit())
    for recipe in ("acdc", "eap-ig"):
        scores = score(
            {"model-1": answers_by(recipe, one.case.as_run(), one.questions)}, {"model-1": one.truth()}
        )
        assert scores["carries"].wrong == 0, recipe
        assert scores["carries"].holding == 1


def test_a_claim_about_some_positions_answers_nothing():
    one = Hidden("model-1", "set by hand", CASES["trigram"](0))
    answers = answers_by("probe", one.case.as_run(), one.questions)
    assert (
        answers[Question("imitates", ("model",), ("order_2",))].status == "open"
    )  # all but the first position


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--key", "wrong", "--answers", "answers.json"], "expected the key that the quiz in"),
        (["--by", "probe", "--answers", "answers.json"], "exclude each other"),
        (["--answers", "nothing.json"], "is not a file"),
        (["--by", "probe", "--models", "3"], "--models is for a new quiz"),
        pytest.param(["--key", "another"], "holds the quiz of another key", marks=pytest.mark.system),
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
