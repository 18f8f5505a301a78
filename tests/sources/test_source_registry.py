"""Where sources come from: distributions on disk, ours and others'."""

import tomllib
from pathlib import Path

import distributions
import pytest

import mechmarkov as mm
from mechmarkov.sources.base.registry import GROUP, load_source, source_from_data
from mechmarkov.training.recipe import RecipeError, load_recipe
from mechmarkov.utils.plugins import registered

ROOT = Path(__file__).parents[2]
SOURCE = """
from typing import Literal
from mechmarkov import Circle

class Tide(Circle):
    kind: Literal["{kind}"] = "{kind}"
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Adds a distribution with one source."""

    def add(name: str, kind: str, text: str) -> None:
        entry = f"{kind} = {name}_source:Tide"
        distributions.install(tmp_path, name, GROUP, entry, **{f"{name}_source": text})
        monkeypatch.syspath_prepend(tmp_path)

    return add


def ours() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["entry-points"][GROUP]


def test_every_family_of_ours_is_registered_and_has_its_public_name():
    room = ROOT / "mechmarkov"
    files = [path for folder in ("", "fresh") for path in (room / "sources" / folder).glob("*.py")]
    assert {place.split(":")[0] for place in ours().values()} == {
        f"mechmarkov.{'.'.join(path.relative_to(room).with_suffix('').parts)}"
        for path in files
        if path.stem != "__init__"
    }
    for kind, place in ours().items():
        name = place.partition(":")[2]
        found = load_source(kind)
        assert place == f"{found.__module__}:{found.__name__}"
        assert found is getattr(mm.sources, name)
        assert getattr(mm, name, found) is found


def test_data_without_a_kind_are_told_which_there_are():
    with pytest.raises(ValueError, match=r"^source.kind is missing, expected one of 'binary', 'causal"):
        source_from_data({"p": 0.2, "q": 0.3})


def test_anybodys_source_is_found_and_nobody_elses_is_imported(install):
    install("calm", "calm_tide", SOURCE.format(kind="calm_tide"))
    install("storm", "storm_tide", "raise ZeroDivisionError")
    source = source_from_data({"kind": "calm_tide", "n_states": 4, "p": 0.25})
    assert type(source).__name__ == "Tide"
    assert source_from_data(source.model_dump(mode="json")) == source
    assert source.P.tolist() == mm.Circle(n_states=4, p=0.25).P.tolist()
    with pytest.raises(ValueError, match=r"Tide of storm cannot be imported: ZeroDivisionError$"):
        source_from_data({"kind": "storm_tide"})


def test_an_unknown_kind_is_refused_with_those_that_are(install):
    install("low", "low_tide", SOURCE.format(kind="low_tide"))
    with pytest.raises(RecipeError) as caught:
        load_recipe("walk-k6-half").with_set(["source={kind='high_tide'}"])
    said = str(caught.value)
    assert said.startswith("source.kind is 'high_tide', expected one of ")
    assert all(f"'{kind}'" in said for kind in ("low_tide", *ours()))


def test_two_of_one_kind_are_an_error_that_names_both(install):
    install("flood", "circle", SOURCE.format(kind="circle"))
    with pytest.raises(ValueError, match="two sources are named 'circle'") as caught:
        registered(GROUP)
    assert "mechmarkov.sources.circle:Circle of mechmarkov" in str(caught.value)
    assert "flood_source:Tide of flood" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("odd", "Tide = 3", "odd_source:Tide of odd is 3, expected a subclass of mechmarkov's Source"),
        (
            "shy",
            SOURCE.format(kind="another"),
            "shy_source:Tide of shy is registered as 'shy_tide' but its kind is 'another'",
        ),
        ("ebb", "import moon", "ebb_source:Tide of ebb cannot be imported: ModuleNotFoundError: No module"),
        ("slip", "Tide = (", "slip_source:Tide of slip cannot be imported: SyntaxError: '('"),
    ],
)
def test_what_is_not_a_source_of_its_kind_is_refused(install, name, text, said):
    install(name, f"{name}_tide", text)
    with pytest.raises(RecipeError) as caught:
        load_recipe("walk-k6-half").with_set([f"source={{kind='{name}_tide'}}"])
    assert said in str(caught.value)


def test_an_object_that_is_not_a_table_is_refused():
    with pytest.raises(RecipeError, match=r"^source is 3, expected a section$"):
        load_recipe("walk-k6-half").with_set(["source=3"])
