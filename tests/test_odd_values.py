"""Values of another kind in places where the first look at one raised, or the message had no end."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.certify import certify

RUN = mm.example("walk")
MODEL, SOURCE = RUN.model(), RUN.source
LONG = "x" * 6000


@pytest.fixture(scope="module")
def result():
    return mm.probe(RUN, ["behaviour"], sequences=4, progress=False)


@pytest.mark.parametrize("value", [np.eye(2), torch.eye(2), torch.eye(2).to_sparse(), None, True, 1, 1.5])
def test_law_draws_that_are_no_count_are_named(value):
    with pytest.raises(ValueError, match=r"^law_draws is .*, expected 0 or at least 2$"):
        mm.probe(RUN, ["behaviour"], law_draws=value)


@pytest.mark.parametrize("field", ["subject", "object", "probe"])
def test_a_filter_of_claims_is_a_name(result, field):
    assert len(result.claims.where(**{field: "no such name"})) == 0
    for value in (np.array(["L0H0", "L0H1"]), ("L0H0",), 3, torch.eye(2).to_sparse()):
        with pytest.raises(ValueError, match=f"^{field} is .*, expected a name$"):
            result.claims.where(**{field: value})


def test_an_unknown_status_chooses_nothing_silently(result):
    assert len(result.claims.where(status="shown")) + len(result.claims.where(status="open"))
    for value in ("shwon", np.array(["shown", "open"])):
        with pytest.raises(ValueError, match=r"^status is .*, expected one of 'shown', "):
            result.claims.where(status=value)


@pytest.mark.parametrize("value", [["behaviour"], 0, np.eye(2), torch.eye(2), slice(None), LONG, None])
def test_an_outcome_is_asked_for_by_name(result, value):
    with pytest.raises(KeyError, match="no such probe here; there are") as caught:
        result[value]
    assert len(str(caught.value)) < 800


def test_a_table_of_numpy_is_certified():
    table = np.full((6, 6), 1 / 6)
    ours = certify(RUN, table, seconds=5)
    assert ours.worst_kl == certify(RUN, table.tolist(), seconds=5).worst_kl


@pytest.mark.parametrize("value", [None, 3, [["name", "a"]], torch.eye(2), "name"])
def test_a_recipe_from_no_fields_is_named(value):
    with pytest.raises(ValueError, match=r"^data is .*, expected a dict of fields$"):
        mm.Recipe.from_data(value)
    with pytest.raises(ValueError, match=r"^data is .*, expected a dict of fields$"):
        mm.Sweep.from_data(value)


@pytest.mark.parametrize("value", [None, b"mine.toml", 3])
def test_a_recipe_from_no_path_is_named(value):
    with pytest.raises(TypeError, match=r"^path is .*, expected a text or a pathlib.Path$"):
        mm.Recipe.from_toml(value)


@pytest.mark.parametrize("value", [None, 3, b"a/b", ["a/b"], "a", "a/b/c"])
def test_a_repository_is_owner_and_name(value):
    with pytest.raises(ValueError, match=r"^name is .*, expected owner/name$"):
        RUN.push_to_hub(value)


CALLS = {
    "steps": lambda x: RUN.model(steps=x),
    "probes": lambda x: mm.probe(RUN, x),
    "n_ctx": lambda x: mm.Run.from_model(MODEL, source=SOURCE, n_ctx=x),
    "methods": lambda x: mm.bench.run(x, ["direct"]),
    "program": lambda x: certify(RUN, x),
    "return_type": lambda x: MODEL(torch.zeros(1, 3, dtype=torch.long), return_type=x),
    "log": lambda x: mm.Recorder("run.pt", source=SOURCE, probes=["behaviour"], log=x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_long_text_is_cut(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=f"^{name} is 'xxx.*…") as caught:
        CALLS[name](LONG)
    assert len(str(caught.value)) < 600


def test_a_context_that_is_an_array_is_one_line():
    for value in (np.eye(2), torch.eye(2), MODEL):
        with pytest.raises(ValueError, match=r"^n_ctx is .*, expected at most the model's \d+$"):
            mm.Run.from_model(MODEL, source=SOURCE, n_ctx=value)
