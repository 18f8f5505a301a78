"""The four answers, and the drawing of the circuit: from scores and data made by hand."""

import numpy as np
import pytest
from report_examples import outcome, with_paths

from mechmarkov.probing.score import Score
from mechmarkov.report.circuit import circuit, part_notes, path_effects
from mechmarkov.report.circuit_layout import text_box
from mechmarkov.report.headline import headline
from mechmarkov.result import Result


def scores(**values):
    return {
        name: Score(value, "") if value is not None else Score(None, "", reason="none")
        for name, value in values.items()
    }


def result(steps=(0,), skipped=None, **probes):
    outcomes = {name: outcome(name, scores=scores(**found)) for name, found in probes.items()}
    return Result(run={"title": "t"}, steps=list(steps), outcomes=outcomes, skipped=skipped or {})


LEARNED = {
    "behaviour": {
        "nearest_predictor": "bigram",
        "kl_bigram": 0.125,
        "excess_loss": 0.25,
        "accuracy": 0.5,
        "optimal_accuracy": 0.5,
    },
    "storage": {"bigram_home": "L0H0", "share_L0H0": 0.9, "gain": 0.8},
    "attention": {"parent_head": "L0H0", "parent_score": 0.97},
    "ablation": {"largest_effect_component": "L0H0", "largest_effect": 0.75},
    "symmetry": {"trapped": False, "first_step_information": 0.5},
    "landscape": {"kind": "minimum", "hessian_min": 0.125, "escape_rate": 0.0},
}


def test_a_model_that_learned_the_bigram_in_four_sentences():
    skipped = {"dynamics": "one step is probed"}
    answers = {
        answer.question: answer.sentence
        for answer in headline(result(steps=[50], skipped=skipped, **LEARNED))
    }
    assert answers == {
        "What has it learned?": "Of the exact predictors it is nearest to the bigram, 0.125 nats away; its "
        "loss is 0.25 nats above the best possible, and it is right 50.0% of the time, where 50.0% is "
        "possible.",
        "Where does it live?": "The bigram is in L0H0 (90%), which puts 97.0% of its attention on the "
        "parent; without L0H0 the loss rises by 0.75 nats.",
        "How did it get there?": "One step was probed; with all its steps (--steps all) the run tells.",
        "Why is it stuck?": "Not by symmetry: the first gradient tells states apart (information 0.5); it is "
        "at a minimum (smallest Hessian eigenvalue 0.125).",
    }


def test_a_predictor_in_context_has_its_distance_under_the_short_name():
    behaviour = LEARNED["behaviour"] | {"nearest_predictor": "in_context_bigram"}
    sentence = headline(result(behaviour=behaviour))[0].sentence
    assert sentence.startswith("Of the exact predictors it is nearest to the in-context bigram, 0.125 nats")


def test_a_trapped_model_is_told_from_a_learned_one():
    trapped = LEARNED | {
        "storage": {"bigram_home": "none", "gain": 0.001},
        "symmetry": {"trapped": True, "first_step_information": 0.0},
        "landscape": {"kind": "saddle", "hessian_min": -4.0, "escape_rate": 4.0},
    }
    answers = [answer.sentence for answer in headline(result(**trapped))]
    assert answers[1] == (
        "No path holds the bigram: its paths together bring it 0.001 nats nearer; without L0H0 the loss "
        "rises by 0.75 nats."
    )
    assert answers[2] == (
        "By symmetry: the first gradient tells no state from another (information 0), attention stays flat "
        "and every later gradient keeps it so; it is at a saddle (smallest Hessian eigenvalue "
        "\N{MINUS SIGN}4), which plain gradient descent, once it is off the symmetry, leaves at rate 4 per "
        "unit of step size times steps."
    )


def test_a_solved_model_is_not_asked_why_it_is_stuck():
    behaviour = LEARNED["behaviour"] | {"kl_best": 0.001}
    landscape = {"kind": "minimum", "hessian_min": 0.0, "escape_rate": 0.0}
    answer = headline(result(**(LEARNED | {"behaviour": behaviour, "landscape": landscape})))[-1]
    assert answer.question == "Is it stuck?"
    assert answer.sentence.startswith("No")
    assert "0.001 nats" in answer.sentence
    assert "zero within tolerance" in answer.sentence


def test_what_came_is_told_in_order_and_the_verdict_where_nothing_came():
    came = {
        "t_bigram": Score(8, "step", interval=(6.0, 8.0)),
        "t_selection": Score(2, "step", interval=(1.0, 2.0)),
        "t_unigram": Score(None, "step", reason="no better than the uniform law"),
    }
    probed = Result({"title": "t"}, [0, 8], {"dynamics": outcome("dynamics", scores=came)})
    assert [answer.sentence for answer in headline(probed)] == [
        "Half of the attention was on the parent between steps 1 and 2, then half of the way from the "
        "unigram to the bigram was done between steps 6 and 8."
    ]
    nothing = outcome("dynamics", verdict="Nothing happened.", scores=scores(t_bigram=None))
    (answer,) = headline(Result({"title": "t"}, [0, 8], {"dynamics": nothing}))
    assert answer.sentence == "Nothing happened."


def test_the_home_is_not_said_to_look_at_the_parent_where_another_head_does():
    other = LEARNED | {"attention": {"parent_head": "L0H1", "parent_score": 0.97}}
    assert "parent" not in headline(result(**other))[1].sentence


def test_an_induction_circuit_is_quoted_and_probes_that_were_not_asked_leave_their_question_out():
    probed = Result(
        run={"title": "t"},
        steps=[0],
        outcomes={
            "induction": outcome(
                "induction", verdict="L0H0 feeds L1H0.", scores=scores(induction_head="L1H0")
            )
        },
    )
    (answer,) = headline(probed)
    assert (answer.question, answer.sentence) == ("Where does it live?", "L0H0 feeds L1H0.")


PATHS = {
    ("embed", "L0H0.V"): (0.5, 0.75),
    ("pos_embed", "L0H0.K"): (np.nan, 0.25),
    ("L0H0", "logits"): (1.0, 1.0),
    ("embed", "logits"): (0.001, 0.001),
}


def test_a_path_is_worth_its_mean_and_its_zero_where_it_has_no_mean():
    effects = path_effects(with_paths(PATHS)["ablation"].data)
    assert effects == {
        ("embed", "L0H0.V"): 0.5,
        ("pos_embed", "L0H0.K"): 0.25,
        ("L0H0", "logits"): 1.0,
        ("embed", "logits"): 0.001,
    }


def test_the_circuit_draws_the_paths_that_matter_as_wide_as_they_are_worth():
    probed = with_paths(PATHS, storage={"share_L0H0": 1.0, "bigram_home": "L0H0"})
    figure = circuit(probed)
    drawn = {trace.text: trace.line.width for trace in figure.data}
    assert drawn == {
        "L0H0 → logits: 1 nats": pytest.approx(7.0),
        "embed → L0H0.V: 0.5 nats": pytest.approx(4.0),
        "pos_embed → L0H0.K: 0.25 nats": pytest.approx(2.5),
    }  # what is worth a thousandth is not drawn
    place = {note.text: note.y for note in figure.layout.annotations}
    assert {"1", "0.5", "0.25"} <= set(place)
    assert part_notes(probed, "embed") == []
    # From the bottom up: tokens and positions, head, logits.
    tokens, positions = place["<b>embed</b><br>the tokens"], place["<b>pos_embed</b><br>the positions"]
    head, logits = place["<b>L0H0</b><br>100% of the bigram"], place["<b>logits</b><br>the prediction"]
    assert tokens == positions < head < logits


def test_where_no_path_matters_all_are_faint_and_none_is_named():
    figure = circuit(with_paths(dict.fromkeys(PATHS, (0.001, 0.001))))
    assert len(figure.data) == len(PATHS)
    assert {(trace.line.width, trace.name) for trace in figure.data} == {(1, "worth nothing")}
    assert sum(trace.showlegend for trace in figure.data) == 1
    assert all("<b>" in note.text for note in figure.layout.annotations)


def test_no_text_of_a_crowded_circuit_lies_on_another():
    heads = [f"L{layer}H{head}" for layer in (0, 1) for head in (0, 1)]
    pairs = [(sender, head) for sender in ("embed", "pos_embed") for head in heads]
    pairs += [(sender, head) for sender in heads[:2] for head in heads[2:]]
    effects = {(sender, f"{head}.{side}"): (1.0, 1.0) for sender, head in pairs for side in "QKV"}
    effects |= {(sender, "logits"): (0.25, 1.0) for sender in ("embed", *heads, "L1.mlp")}
    figure = circuit(with_paths(effects))
    boxes = [text_box(note.x, note.y, note.text, note.font.size) for note in figure.layout.annotations]
    parts = [box for box, note in zip(boxes, figure.layout.annotations, strict=True) if "<b>" in note.text]
    low, high = figure.layout.xaxis.range
    assert not [one for i, one in enumerate(parts) for other in parts[:i] if one.meets(other)]
    assert all(low <= box.x - box.width / 2 and box.x + box.width / 2 <= high for box in parts)
    met = [one for i, one in enumerate(boxes) for other in boxes[:i] if one.meets(other)]
    assert not met
    assert len(boxes) > len(parts) + 20  # most paths have room for their number


def test_without_ablation_there_is_no_circuit():
    with pytest.raises(KeyError, match="ablation"):
        circuit(result(**{"attention": LEARNED["attention"]}))
