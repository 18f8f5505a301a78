"""Sentences that a reader could not follow."""

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.report.words.sentences import phrase


def test_a_bigram_without_home_says_what_is_far():
    ends = (Condition("from", value=0.074, unit="nats"), Condition("to", value=0.234, unit="nats"))
    claim = Claim(
        (), "stores", ("bigram",), status="excluded", because=(Condition("the paths lead away"), *ends)
    )
    told = "No part holds the bigram: the model is 0.234 nats from it with all parts, 0.074 nats with none"
    assert phrase(claim) == told


def test_a_swap_says_where_the_parent_is_put():
    claim = Claim(("model",), "follows", ("parent",), 1.0, (0.985, 1.0), 0.5, "share")
    begins = "Predictions follow another parent put in its place: in 100% of cases"
    assert phrase(claim).startswith(begins)
