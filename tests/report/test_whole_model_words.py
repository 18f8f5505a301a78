"""First screens in view of the whole model: whether its loss fell, what does harm, what is worth more."""

from dataclasses import replace
from typing import get_args

import pytest
from claim_cases import behaviour, result_of
from markupsafe import escape

from mechmarkov.claims.claim import MODEL, Claim, Condition
from mechmarkov.report.first_screen.curve import _joined
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.first_screen.verdict import MEANS, Badge
from mechmarkov.report.html import render
from mechmarkov.report.words.bars import bars_from_zero

FELL = Condition("the loss fell", True, 0.05, "nats", ("40",))


def fallen(progress, closest="unigram"):
    return [
        replace(claim, because=(*claim.because, FELL)) if claim.relation == "reaches" else claim
        for claim in behaviour(progress, closest=(closest,))
    ]


def tile(question, **said):
    return next(one for one in headline(result_of((50,), **said)).tiles if one.question == question)


@pytest.mark.parametrize(
    ("claims", "answer"),
    [
        (fallen(0.5), "Open: the loss fell since step 40"),
        (behaviour(0.5), "Not at the best possible: 0.25 nats away"),
        (fallen(0.95, "bigram"), "No: 0.025 nats from the best possible"),
    ],
)
def test_a_loss_that_fell_leaves_open_whether_it_is_stuck(claims, answer):
    assert tile("Is it stuck?", behaviour=claims).answer == answer


def test_how_much_it_fell_is_told_with_its_step():
    assert "0.05 nats less than at step 40" in tile("Is it stuck?", behaviour=fallen(0.5)).sentence


def needed(name, value, *because):
    return Claim(
        (name,), "is_needed", (), value, (value - 0.01, value + 0.01), None, "nats",
        "shown" if value > 0 else "excluded", "intervention", because=because,
    )  # fmt: skip


def circuit(*effects, most):
    return {
        "induction": [Claim(("L1H1",), "is_induction_head", (), 0.5, (0.4, 0.6), None, "of the ideal")],
        "ablation": [
            Claim(
                (most.subject), "is_needed_most", (), most.value, most.interval, None, "nats", "shown",
                "intervention",
            ),
            *effects,
        ],
    }  # fmt: skip


def test_a_named_part_that_does_harm_is_said_to():
    harm = needed("L1H1", -0.2, Condition("does harm"))
    said = circuit(harm, needed("L0H0", 0.1), most=needed("L0H0", 0.1))
    said["induction"].append(
        Claim((), "carries", ("in_context_bigram",), 0.5, unit="nats", because=(Condition("from"),))
    )
    assert (
        "L1H1 does harm: without it the loss falls by 0.2 nats"
        in tile("Where does it live?", **said).sentence
    )


def test_what_is_worth_more_than_the_circuit_is_named_with_it():
    effects = [needed("L0H0", 0.4), needed("L0H1", 0.3), needed("L1H1", 0.1), needed("L1H0", 0.05)]
    shown = tile("Where does it live?", **circuit(*effects, most=effects[0]))
    assert shown.answer == "L1H1, L0H0 and L0H1"
    assert "L0H0 is needed most" in shown.sentence
    effects.append(needed("L0.mlp", 0.2))
    assert tile("Where does it live?", **circuit(*effects, most=effects[0])).answer == "L1H1 and 3 more parts"


@pytest.mark.parametrize(
    ("null", "start"), [((0.0, 0.1, 0.2), "Uniform, as untrained"), ((0.3, 0.4, 0.5), "Closest to")]
)
def test_a_uniform_model_is_told_with_the_untrained_ones(null, start):
    claims = behaviour(-0.3, closest=("uniform",))
    like = Claim((MODEL,), "imitates", ("uniform",), 0.0, (0.0, 0.0), null, "nats")
    null_first = replace(like, value=0.25) if start == "Closest to" else like
    assert headline(result_of((50,), behaviour=[*claims, null_first])).title.startswith(start)


def test_a_bar_below_what_is_told_says_so():
    assert [bar.text for bar in bars_from_zero({"a": 0.0, "b": 3e-8, "c": 2e-5})] == [
        "0",
        "<10⁻⁶",
        "2 × 10⁻⁵",
    ]


def test_each_badge_tells_what_it_means():
    assert set(MEANS) == set(get_args(Badge))
    page = render(result_of((50,), behaviour=behaviour(0.5)))
    assert f'title="{escape(MEANS["partly"])}">partly<' in page


def test_the_best_law_is_named_at_its_line():
    levels = {"unigram": 1.0, "context tree weighting (best)": 0.5}
    assert _joined(levels, 0.01) == [("context tree<br>weighting (best)", 0.5), ("unigram", 1.0)]
    near = {"bigram": 0.51, "forward filter (best)": 0.5}
    assert [text for text, _ in _joined(near, 0.1)] == ["bigram<br>forward filter<br>(best)"]
