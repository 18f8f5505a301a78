"""Outcomes of all probes, made consistent, each with its verdict."""

from collections.abc import Mapping
from dataclasses import replace

from mechmarkov.claims.arbiter import arbitrate
from mechmarkov.claims.claim import Claims
from mechmarkov.probing.outcome import Outcome
from mechmarkov.report.words.sentences import verdict


def consistent(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Returns the outcomes with claims that do not contradict each other, and verdicts made of these."""
    decided = Claims(arbitrate([claim for outcome in outcomes.values() for claim in outcome.claims]))
    told = {name: decided.where(probe=outcome.probe.name) for name, outcome in outcomes.items()}
    return {
        name: replace(outcome, claims=told[name], verdict=verdict(told[name]))
        for name, outcome in outcomes.items()
    }
