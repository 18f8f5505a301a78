"""The claims as data: they keep to their schema, and say what the page says."""

import json

import jsonschema
import pytest

from experiments import verdicts

DATA = json.loads((verdicts.DOCS / "claims.json").read_text())
SCHEMA = json.loads((verdicts.DOCS / "claims.schema.json").read_text())


def test_the_data_keep_to_the_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(DATA, SCHEMA)


@pytest.mark.parametrize(
    ("field", "value"), [("verdict", "true"), ("evidence", "exact"), ("read", "skimmed")]
)
def test_the_schema_refuses_other_words(field, value):
    claim = DATA["claims"][0] | {field: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(DATA | {"claims": [claim]}, SCHEMA)


def test_the_data_are_the_claims():
    assert [row["id"] for row in DATA["claims"]] == [claim.identifier for claim in verdicts.committed()]
    assert {row["paper"] for row in DATA["claims"]} <= set(DATA["papers"])
