"""Recipes of one's own: written for every source, printed, and described."""

import json
import tomllib
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import mechmarkov as mm
from mechmarkov.catalogue import sources
from mechmarkov.cli import main
from mechmarkov.sources import Observed
from mechmarkov.sources.base.registry import GROUP, load_source
from mechmarkov.training.new_recipe import new_recipe
from mechmarkov.training.recipe import Recipe, RecipeError, load_recipe
from mechmarkov.training.recipe_fields import fields_of, models, recipe_schema
from mechmarkov.training.recipe_page import page
from mechmarkov.training.train import train
from mechmarkov.utils.plugins import registered

ROOT = Path(__file__).parents[2]
WITH_DATA = "observed"  # has no example
KINDS = [kind for kind in registered(GROUP) if kind != WITH_DATA]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_command_writes_trains_as_it_is(kind, tmp_path, capsys):
    main(["recipe", "new", "--source", kind, "--width", "8", "--heads", "2", "--steps", "2"])
    path = tmp_path / "mine.toml"
    path.write_text(capsys.readouterr().out, "utf-8")
    recipe = load_recipe(path)
    assert (recipe.steps, recipe.source.kind) == (2, kind)
    config = recipe.decoder_config
    assert (config.n_layers, config.n_heads, config.d_head) == (2 if recipe.source.redraws else 1, 2, 4)
    run = train(recipe.with_set(["data.batch=2"]), device="cpu")
    assert int(run.steps[-1]) == 2
    assert all(name in tomllib.loads(path.read_text("utf-8"))["source"] for name in load_source(kind).example)


def test_what_is_commented_out_is_the_default():
    """A line with a value says what the recipe does without it, so that nothing changes when it is let in."""
    for kind in KINDS:
        text = new_recipe(kind)
        hidden = [line for line in text.splitlines() if line.startswith("# ") and " = " in line]
        lines = [line for line in hidden if line.split()[1].isidentifier() and not line.endswith("…")]
        lines = [line for line in lines if line.split()[2] == "="]
        assert len(lines) > 10
        given = text
        for line in lines:
            given = given.replace(f"\n{line}\n", f"\n{line.removeprefix('# ')}\n", 1)
        assert given != text
        changed, recipe = (Recipe.from_data(tomllib.loads(written)).to_data() for written in (given, text))
        assert changed == recipe


def test_states_and_order_of_a_new_recipe(capsys):
    words = ["recipe", "new", "--source", "chain", "--layers", "2", "--states", "4", "--order", "2"]
    main(words)
    text = capsys.readouterr().out
    recipe = Recipe.from_data(tomllib.loads(text))
    assert (recipe.source.kind, recipe.source.n_states, recipe.source.order) == ("order_k", 4, 2)
    kernel = np.asarray(recipe.source.kernel)
    assert kernel.shape == (4, 4, 4)
    assert (kernel > 0).all()
    np.testing.assert_allclose(kernel.sum(-1), 1)
    main(words)
    assert capsys.readouterr().out == text
    shapes = {
        "chain": (5, None, "chain", 1),
        "order_k": (3, 1, "chain", 1),
        "circle": (7, None, "circle", 1),
        "graph": (9, None, "graph", 1),
        "dirichlet_chains": (2, 3, "dirichlet_chains", 3),
    }
    for kind, (states, order, made, back) in shapes.items():
        source = Recipe.from_data(tomllib.loads(new_recipe(kind, states=states, order=order))).source
        assert (source.kind, source.n_states, getattr(source, "order", 1)) == (made, states, back)


@pytest.mark.parametrize(
    ("kind", "size", "said"),
    [
        ("circle", {"order": 2}, "order is 2, but source 'circle' has no field order, expected"),
        ("fruit_questions", {"states": 3}, "states is 3, but source 'fruit_questions' has no field n_states"),
        ("cirle", {}, "no source is called 'cirle', did you mean circle"),
        ("circle", {"heads": 3, "width": 16}, "heads is 3, expected a divisor of the width, 16$"),
        ("circle", {"states": 2}, "source.n_states is 2, expected at least 3"),
        ("chain", {"states": 40, "order": 5}, "order is 5 on 40 states, expected a law of at most 10,000"),
    ],
)
def test_sizes_that_a_source_has_not(kind, size, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        new_recipe(kind, **size)


def test_a_source_with_data_follows_its_refusals_advice():
    with pytest.raises(RecipeError, match=r"replace\(source=source.model_dump\(\)\)$"):
        new_recipe(WITH_DATA)
    source = Observed("the cat sat on the mat. " * 40, order=1)
    recipe = Recipe.from_data(tomllib.loads(new_recipe("chain", width=8, context=8, steps=2)))
    run = train(recipe.replace(source=source.model_dump()), device="cpu")
    assert run.source == source


@pytest.mark.parametrize("name", mm.recipes())
def test_a_shipped_recipe_is_printed_as_it_is(name, capsys):
    main(["recipe", name])
    assert capsys.readouterr().out == (Recipe.shipped / f"{name}.toml").read_text("utf-8")


def test_every_field_says_what_it_means():
    fields = [(section, kind, field) for section, kind, model in models() for field in fields_of(model)]
    silent = [f"{section} {kind} {field.name}" for section, kind, field in fields if not field.meaning]
    assert silent == []


def test_fields_listed_without_import_are_the_examples():
    assert sources() == {kind: ", ".join(load_source(kind).example) for kind in registered(GROUP)}


def test_the_page_of_all_fields_is_current():
    """`mechmarkov recipe fields > docs/recipes.md` makes it."""
    assert (ROOT / "docs" / "recipes.md").read_text("utf-8") == page()


def test_the_schema_takes_recipes_and_refuses_wrong_ones(capsys):
    main(["recipe", "schema"])
    schema = json.loads(capsys.readouterr().out)
    assert schema == recipe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    texts = [(Recipe.shipped / f"{name}.toml").read_text("utf-8") for name in mm.recipes()]
    for text in [*texts, *map(new_recipe, KINDS)]:
        assert list(validator.iter_errors(tomllib.loads(text))) == []
    wrong = tomllib.loads(new_recipe("circle"))
    wrong["source"]["p_clockwise"] = wrong["source"].pop("p")
    assert not validator.is_valid(wrong)
    wrong = tomllib.loads(new_recipe("circle"))
    wrong["model"]["n_layer"] = 2
    assert not validator.is_valid(wrong)


def test_a_first_recipe_takes_two_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["recipe", "new", "--source", "chain", "--width", "8", "--context", "8", "--steps", "2"])
    Path("mine.toml").write_text(capsys.readouterr().out, "utf-8")
    main(["train", "mine.toml", "--device", "cpu"])
    assert Path("runs", "mine", "run.pt").is_file()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("order", [2**63, 10**400])
def test_an_order_without_end_is_refused_at_once(order):
    with pytest.raises(ValueError, match=r"^order is .* on 3 states, expected a law of at most 10,000"):
        new_recipe("chain", order=order)
