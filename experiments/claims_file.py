"""All claims as data, for other libraries that report on the same: `docs/claims.json` and its schema."""

import json
from collections.abc import Sequence
from typing import Any, get_args

from experiments.claims import Claim, Evidence, Verdict, wilson
from experiments.statements import Kind, Paper, Read, papers

VERSION = 1
TEXT: dict[str, Any] = {"type": "string"}


def as_data(claims: Sequence[Claim]) -> dict[str, Any]:
    """The claims file: papers with what cites them, and a row for every claim."""
    return {
        "$schema": "claims.schema.json",
        "version": VERSION,
        "papers": {key: _paper(paper) for key, paper in papers().items()},
        "claims": [_claim(claim) for claim in claims],
    }


def _paper(paper: Paper) -> dict[str, Any]:
    return {
        "title": paper.title,
        "authors": list(paper.authors),
        "year": paper.year,
        "venue": paper.venue,
        "doi": paper.doi or None,
        "read": paper.had,
    }


def _claim(claim: Claim) -> dict[str, Any]:
    said, found = claim.statement, claim.finding
    tested = found.direction != "untested"
    return {
        "id": claim.identifier,
        "paper": said.about,
        "kind": said.kind,
        "claim": said.claim,
        "case": found.case or None,
        "where": said.where,
        "words": said.words,
        "read": said.read,
        "stated": said.stated,
        "paper_setting": said.paper_setting or None,
        "setting": found.our_setting,
        "differs": said.differs or None,
        "evidence": found.evidence if tested else None,
        "number": found.gist,
        "measured": found.measured,
        "interval": _interval(claim),
        "verdict": claim.verdict,
        "instead": said.equation or None,
        "fails_at": said.fails_at or None,
        "defence": said.defence or None,
        "proof": found.proof or None,
        "command": claim.command,
    }


def _interval(claim: Claim) -> dict[str, Any] | None:
    """Of a count or a sample, its size and its 95 % interval."""
    found = claim.finding
    if found.count is not None:
        low, value, high = wilson(*found.count)
        return {"n": found.count[1], "low": low, "value": value, "high": high}
    if found.sample is not None:
        n, low, high = found.sample
        return {"n": n, "low": low, "value": None, "high": high}
    return None


def schema() -> dict[str, Any]:
    """The schema of the claims file (JSON Schema 2020-12), from the same lists as the rule."""
    maybe = {"type": ["string", "null"]}
    number = {"type": ["number", "null"]}
    interval = {
        "type": ["object", "null"],
        "required": ["n", "low", "value", "high"],
        "additionalProperties": False,
        "properties": {"n": {"type": "integer"}, "low": number, "value": number, "high": number},
    }
    claim = {
        "id": {"type": "string", "pattern": "^[a-z_]+(\\.[A-Za-z0-9_]+){1,2}$"},
        "paper": {"enum": list(papers())},
        "kind": {"enum": list(get_args(Kind))},
        "read": {"enum": list(get_args(Read))},
        "evidence": {"enum": [*get_args(Evidence), None]},
        "verdict": {"enum": list(get_args(Verdict))},
        "interval": interval,
    }
    texts = ("claim", "where", "words", "stated", "setting", "number", "measured", "command")
    optional = ("case", "paper_setting", "differs", "instead", "fails_at", "defence", "proof")
    claim |= dict.fromkeys(texts, TEXT) | dict.fromkeys(optional, maybe)
    paper = {
        "title": TEXT,
        "authors": {"type": "array", "items": TEXT, "minItems": 1},
        "year": {"type": "integer"},
        "venue": TEXT,
        "doi": maybe,
        "read": TEXT,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Claims of papers on transformers and Markov chains, and what was measured of them",
        "type": "object",
        "required": ["version", "papers", "claims"],
        "properties": {
            "$schema": TEXT,
            "version": {"const": VERSION},
            "papers": {"type": "object", "additionalProperties": _object(paper)},
            "claims": {"type": "array", "items": _object(claim)},
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def as_text(data: dict[str, Any]) -> str:
    """JSON as it is committed."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
