"""Claims made by hand, as the probes make them, and results that hold nothing else."""

from collections.abc import Iterable
from dataclasses import replace

from report_examples import outcome

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, said_by
from mechmarkov.probing.probe import load_probe
from mechmarkov.result import Result

GAP = 0.5  # nats between the unigram and the best law
REACHED = 0.9


def behaviour(
    progress: float,
    error: float = 0.0,
    *,
    gap: float = GAP,
    closest: tuple[str, ...] = ("bigram",),
    best: str = "bigram",
    kl_unigram: float = 0.0,
    untouched: bool = False,
    on_scores: bool = False,
    right: float = 0.5,
    possible: float = 0.5,
) -> list[Claim]:
    """What `behaviour` says of a model that has gone this share of the way from the unigram to the best."""
    low, high = progress - 1.96 * error, progress + 1.96 * error
    apart = gap >= 0.01
    status = "shown" if low >= REACHED else "excluded" if high < REACHED else "open"
    if status == "shown" and best not in closest:
        status = "open"
    premises = (
        Condition("unigram is told from the best", apart, gap, "nats"),
        Condition("the best is the unigram", best == "unigram"),
        Condition("the nearest law is the best", best in closest),
        Condition("the nearest law is the unigram", "unigram" in closest, kl_unigram, "nats"),
        Condition("loss on scores", on_scores),
        Condition("no step was made", untouched),
    )
    excess = (1 - progress) * gap if apart else 0.0 if progress == 1 else gap
    claims = [
        Claim((MODEL,), "is_closest_to", closest, excess, unit="nats"),
        Claim(
            (MODEL,),
            "is_right",
            (),
            right,
            unit="probability",
            because=(Condition("possible", value=possible, unit="probability"),),
        ),
        Claim((MODEL,), "reaches", (best,), excess, unit="nats", status=status, because=premises),
    ]
    way = Claim((MODEL,), "is_on_the_way_to", (best,), progress, (low, high), unit="share", because=premises)
    return [*claims, way] if apart else claims


def claims_of(**said: Iterable[Claim]) -> Claims:
    """The claims of several probes, by their names."""
    return Claims(tuple(claim for name, claims in said.items() for claim in said_by(name, claims)))


def result_of(steps: tuple[int, ...] = (0,), **said: Iterable[Claim]) -> Result:
    """A result in which the probes of these names said these claims; their tiles are the real ones."""
    outcomes = {}
    for name, claims in said.items():
        made = outcome(name, claims=list(claims))
        outcomes[name] = replace(made, probe=replace(made.probe, headline=load_probe(name).headline))
    return Result(metadata={"title": "t"}, steps=list(steps), outcomes=outcomes)
