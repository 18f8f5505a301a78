"""Sentences of claims that read as something else: weak heads, small shares, negative eigenvalues, names."""

import pytest
from reading_aloud import long_sentences

from mechmarkov.claims.claim import MODEL, Claim, Condition
from mechmarkov.report.words import conditions
from mechmarkov.report.words.names import law
from mechmarkov.report.words.sentences import sentence


@pytest.mark.parametrize(("effect", "head"), [(0.07, "a weak induction head"), (0.6, "an induction head")])
def test_a_head_that_moves_little_is_weak(effect, head):
    around = (effect - 0.01, effect + 0.01)
    moved = Claim(("L1H0",), "is_induction_head", (), effect, around, unit="of the ideal")
    assert sentence(moved).startswith(f"L1H0 is {head}: ")


def test_several_weak_heads_are_weak():
    moved = Claim(("L1H0", "L1H1"), "is_induction_head", (), 0.07, (0.06, 0.08), unit="of the ideal")
    assert sentence(moved).startswith("L1H0 and L1H1 are weak induction heads: ")


@pytest.mark.parametrize(
    ("part", "r2", "start"),
    [
        ("task", 0.06, "Some of the belief over the task is read"),
        ("task", 0.9, "The belief over the task is read"),
        ("factor 1", 0.9, "The belief over factor 1 is read"),
    ],
)
def test_a_belief_is_read_by_how_much(part, r2, start):
    assert sentence(Claim(("L0",), "reads_part", (part,), r2, unit="R²")).startswith(start)


def test_a_minimum_has_no_negative_eigenvalue():
    point = Claim((MODEL,), "is_at", ("minimum",), -0.035, (-0.065, 0.009))
    assert sentence(point).endswith("eigenvalue −0.035 (−0.065 to 0.009), counted as zero.")
    assert "counted" not in sentence(Claim((MODEL,), "is_at", ("minimum",), 0.035, (0.01, 0.06)))


def test_a_flat_point_outside_is_told_in_short():
    beside = (Condition("to second order only"), Condition("drift", value=0.2))
    point = Claim((MODEL,), "is_at", ("minimum",), -3.9e-9, (-3.94e-6, 3.94e-6), because=beside)
    told = sentence(point)
    assert told.startswith("Outside the symmetric subspace it is at a local minimum, or flat: smallest")
    assert not long_sentences([told])


def test_a_fourth_state_has_as_much_room_as_its_count():
    read = conditions.sentence(Condition("most attended after", words=("a", "b", "c", "d", "e")))
    assert read == "After token a it attends to tokens b, c, d and e"


def test_a_predictor_is_no_belief_of_the_stream():
    """The stream may carry no belief in a model that predicts as its average says."""
    assert law("belief over graphs") == "the law averaged over graphs"
    assert law("neighbours") == "the law of neighbours seen"


def test_the_loss_falls_not_the_law():
    fell = Condition("the loss fell", value=0.01, unit="nats", words=("20",))
    assert conditions.sentence(fell) == "Its loss fell by 0.01 nats since step 20"


def test_an_eigenvalue_that_a_gradient_may_make_says_so():
    """Its interval is below zero, so that "open" needs the reason."""
    limit = Condition("flat within", value=0.23, unit="nats / weight²")
    kinds = ("minimum", "saddle")
    told = sentence(Claim((MODEL,), "is_at", kinds, -0.04, (-0.044, -0.034), status="open", because=(limit,)))
    assert "within the ±0.23 that the gradient left may make" in told
    told = sentence(Claim((MODEL,), "is_at", kinds, -0.04, (-0.044, 0.034), status="open", because=(limit,)))
    assert told.startswith("Whether it is at a minimum or at a saddle is open")
