"""The JSON schema of `summary.json` and of `mechmarkov probe --json`, as `summary.schema.json` has it.

`python -m mechmarkov.report.schema > mechmarkov/report/summary.schema.json` writes it again.
"""

import json
from collections.abc import Mapping
from typing import Any, get_args

from mechmarkov.claims.claim import RELATIONS, Evidence, Status
from mechmarkov.probing.outcome import SCHEMA_VERSION
from mechmarkov.report.first_screen.verdict import Badge

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
TEXTS = {"type": "array", "items": TEXT}
PAIR = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
NULL = {"anyOf": [NUMBER, {"type": "array", "items": NUMBER, "minItems": 3, "maxItems": 3}]}


def object_of(required: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Returns the schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "required": [*required],
        "properties": {**required, **optional},
        "additionalProperties": False,
    }


def summary_schema() -> dict[str, Any]:
    """Returns the schema (JSON Schema 2020-12) of one result's summary."""
    score = object_of(
        {"value": {"type": ["number", "boolean", "string", "null"]}, "unit": TEXT},
        {"null": NULL, "interval": PAIR} | dict.fromkeys(("null_kind", "reason", "law", "of"), TEXT),
    )
    condition = object_of(
        {"name": TEXT, "holds": {"type": ["boolean", "null"]}},
        {"value": NUMBER, "unit": TEXT, "words": TEXTS},
    )
    steps = {"type": "array", "items": {"type": "integer"}}
    pairs = {"type": "array", "items": TEXTS}
    claim = object_of(
        {
            "subject": TEXTS,
            "relation": {"enum": [*RELATIONS]},
            "status": {"enum": [*get_args(Status)]},
            "evidence": {"enum": [*get_args(Evidence)]},
            "probe": TEXT,
        },
        {
            "object": TEXTS,
            "value": NUMBER,
            "interval": PAIR,
            "null": NULL,
            "unit": TEXT,
            "where": object_of({}, {"states": TEXTS, "positions": steps, "steps": steps, "pairs": pairs}),
            "because": {"type": "array", "items": condition},
            "against": object_of(
                dict.fromkeys(("probe", "relation"), TEXT) | {"subject": TEXTS, "object": TEXTS}, {}
            ),
        },
    )
    probe = object_of(
        {"question": TEXT, "verdict": TEXT, "scores": {"type": "object", "additionalProperties": score}}
    )
    by_name = {"type": "object", "additionalProperties": TEXT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://mechmarkov.github.io/schema/summary-{SCHEMA_VERSION}.json",
        "title": "What mechmarkov found about a run",
        "description": "Claims are consistent. Relations: "
        + " ".join(f"{name}: {text}." for name, text in RELATIONS.items()),
        **object_of(
            {
                "schema": {"const": SCHEMA_VERSION},
                "run": {"type": "object"},
                "steps": steps,
                "probes": {"type": "object", "additionalProperties": probe},
                "claims": {"type": "array", "items": claim},
                "skipped": by_name,
                "failed": by_name,
                "warnings": TEXTS,
            },
            {
                "badge": {"enum": [*get_args(Badge), None]},
                "headline": TEXT,
                "curve": object_of({"step": steps, "loss": {"type": "array", "items": NUMBER}}, {}),
            },
        ),
    }


if __name__ == "__main__":
    print(json.dumps(summary_schema(), indent=1, ensure_ascii=False))
