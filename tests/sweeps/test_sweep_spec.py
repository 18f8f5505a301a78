"""Which recipes a sweep file means, and what it is told when it means none."""

import re
import tomllib
from pathlib import Path

import pytest

import mechmarkov as mm
from mechmarkov.sweeps import Sweep, SweepError, load_sweep
from mechmarkov.sweeps.spec import points, seeds_of, varied
from mechmarkov.training import RecipeError, load_recipe

BASE = {"name": "a", "recipe": "walk-k6-half"}


def chosen(**keys):
    return points(load_sweep(BASE | keys))


def refused(**keys):
    with pytest.raises(SweepError) as error:
        chosen(**keys)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_grid_is_every_combination_in_order():
    found = chosen(grid={"source.p": [0.25, 0.5], "init.std": [0.01, 0.02]})
    values = [tuple(point.values.values()) for point in found]
    assert values == [(0.25, 0.01), (0.25, 0.02), (0.5, 0.01), (0.5, 0.02)]
    assert [point.recipe.source.p for point in found] == [0.25, 0.25, 0.5, 0.5]
    assert [point.recipe.init.std for point in found] == [0.01, 0.02, 0.01, 0.02]


def test_a_list_is_its_points():
    found = chosen(list=[{"source.p": 0.25}, {"init.std": 0.01}])
    base = load_recipe("walk-k6-half")
    assert [point.values for point in found] == [
        {"source.p": 0.25, "init.std": base.init.std},
        {"source.p": base.source.p, "init.std": 0.01},
    ]


def test_a_grid_and_a_list_are_both_done():
    assert len(chosen(grid={"source.p": [0.25, 0.75]}, list=[{"source.p": 0.1}])) == 3


def test_neither_is_the_recipe_itself():
    (point,) = chosen()
    assert point.recipe == load_recipe("walk-k6-half")
    assert point.values == {}


def test_set_holds_for_every_point():
    found = chosen(set={"steps": 3}, grid={"source.p": [0.25, 0.75]})
    assert [point.recipe.steps for point in found] == [3, 3]
    assert varied(load_sweep(BASE | {"set": {"steps": 3}, "grid": {"source.p": [0.25]}})) == ("source.p",)


def test_toml_may_write_dotted_keys_bare():
    bare = tomllib.loads("grid.source.p = [0.25, 0.75]\nset.optimiser.lr = 0.1\nlist = [{ source.p = 0.1 }]")
    found = chosen(**bare)
    assert [point.recipe.source.p for point in found] == [0.25, 0.75, 0.1]
    assert {point.recipe.optimiser.lr for point in found} == {0.1}


def test_whole_tables_replace_data_and_checkpoints():
    (point,) = chosen(
        list=[{"source": {"kind": "circle", "n_states": 5, "p": 0.5}, "data": {"n_train": 3}}],
        set={"checkpoints": {"every": 10}},
    )
    assert point.recipe.source.n_states == 5
    assert (point.recipe.data.n_train, point.recipe.data.batch) == (3, None)
    assert point.recipe.checkpoints.every == 10


def test_a_table_does_not_silently_replace_set():
    table = {"kind": "circle", "n_states": 6, "p": 0.5}
    with pytest.raises(SweepError, match=r"point 1 .*source replaces the source\.p of set"):
        chosen(set={"source.p": 0.3}, list=[{"source": table}])


def test_seeds_are_a_number_or_a_list():
    assert seeds_of(load_sweep(BASE | {"seeds": 3})) == (0, 1, 2)
    assert seeds_of(load_sweep(BASE | {"seeds": [7, 5]})) == (7, 5)


@pytest.mark.parametrize("seeds", [0, True, [], [1, 1], [-1], [1.5], "8", 1 << 40])
def test_other_seeds_are_refused(seeds):
    assert "expected how many, or a list of different integers" in refused(seeds=seeds)


def test_a_wrong_point_is_named_first():
    message = refused(grid={"source.p": [0.5, 1.4]})
    assert message == ("point 2 (source.p = 1.4): source.p is 1.4, expected a probability in [0, 1]")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"grd": {}}, "unknown key grd, did you mean grid?"),
        (
            {"phase": {"x": "a", "y": "b", "fasset": "c"}},
            "unknown key phase.fasset, did you mean phase.facet?",
        ),
        ({"grid": {"sorce.p": [0.5]}}, "point 1 (sorce.p = 0.5): unknown key sorce, did you mean source?"),
        (
            {
                "grid": {"model.nlayers": [1], "source.p": [0.5]},
                "phase": {"x": "source.p", "y": "model.n_layers"},
            },
            "point 1 (model.nlayers = 1, source.p = 0.5): unknown key model.nlayers",
        ),
        (
            {"grid": {"source.p": [0.5]}, "set": {"checkpionts": []}},
            "set: unknown key checkpionts, did you mean",
        ),
        ({"grid": {"source.p": [2]}, "set": {"steps": 1}}, "point 1 (source.p = 2): source.p is 2"),
        ({"grid": {"source.p": 0.5}}, "grid: source.p is 0.5, expected a list of values"),
        ({"grid": {"source.p": []}}, "grid: source.p is [], expected a list of values"),
        ({"list": [3]}, "list.0 is 3"),
        ({"recipe": "walk-k6-hal"}, "did you mean walk-k6-half"),
        ({"recipe": "none/such.toml"}, "recipe: none/such.toml: No such file"),
        ({"name": "../up"}, "name is '../up', expected letters, digits"),
        ({"name": "my sweep"}, "name is 'my sweep', expected letters, digits, '_', '.' and '-'"),
        ({"probes": "attention"}, "probes is 'attention', expected a list"),
        ({"grid": {"source.p": [1, 1.0]}}, "point 2 (source.p = 1.0) is the same recipe as point 1"),
        (
            {"grid": {"source.p": [0.5]}, "set": {"source.p": 0.1}},
            "set.source.p is given, but that field is varied",
        ),
        (
            {"grid": {"source.p": [0.5]}, "phase": {"x": "source.q", "y": "source.p"}},
            "phase.x is 'source.q', which is not varied, expected one of: source.p",
        ),
        (
            {"grid": {"source.p": [0.5]}, "phase": {"x": "source.p", "y": "optimiser.lr"}},
            "phase.y is 'optimiser.lr', which is not varied, expected one of: source.p",
        ),
        (
            {"grid": {"source.p": [0.5]}, "phase": {"x": "source.p", "y": "source.p"}},
            "expected different fields",
        ),
    ],
)
def test_nonsense_is_refused_in_one_line(keys, said):
    assert said in refused(**keys)


def test_an_event_is_one_that_can_be_counted():
    grid = {"source.p": [0.25, 0.5], "init.std": [0.01, 0.02]}
    phase = {"x": "source.p", "y": "init.std", "event": "symmetry.trapped"}
    assert "phase.event is 'symmetry.trapped'" in refused(grid=grid, phase=phase)
    assert len(chosen(grid=grid, phase=phase, probes=["symmetry"])) == 4


def test_a_recipes_path_starts_from_its_file(tmp_path):
    text = load_recipe("walk-k6-half").to_data()
    (tmp_path / "recipe.toml").write_text(
        'name = "mine"\nsteps = 7\n'
        "source = { kind = 'circle', n_states = 6, p = 0.5 }\n"
        "objective.query = true\nobjective.read = 'last'\n"
        f"model = {{ kind = 'walk', n_ctx = {text['model']['n_ctx']} }}\ninit.scheme = 'zero'\n",
        "utf-8",
    )
    (tmp_path / "sweep.toml").write_text(
        'name = "s"\nrecipe = "./recipe.toml"\ngrid.source.p = [0.1, 0.2]\n', "utf-8"
    )
    found = points(load_sweep(tmp_path / "sweep.toml"))
    assert [point.recipe.steps for point in found] == [7, 7]
    (tmp_path / "broken.toml").write_text("name = ", "utf-8")
    with pytest.raises(SweepError, match=r"broken\.toml: "):
        load_sweep(tmp_path / "broken.toml")


def test_the_shipped_phase_diagram_has_400_runs():
    assert "binary-phase" in mm.sweeps()
    sweep = load_sweep("binary-phase")
    found = points(sweep)
    assert isinstance(sweep, Sweep)
    assert len(found) * len(seeds_of(sweep)) == 400
    assert {(point.recipe.model.n_ctx, point.recipe.steps) for point in found} == {(256, 400)}
    assert {point.recipe.source.p for point in found} == {0.2, 0.4, 0.5, 0.6, 0.8}
    assert {point.recipe.model.tied for point in found} == {True, False}
    assert sweep.phase is not None


def test_the_example_of_the_guide_is_a_sweep():
    guide = Path(__file__).parents[2] / "docs" / "clusters.md"
    (example,) = re.findall(r"```toml\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    found = points(load_sweep(tomllib.loads(example)))
    assert len(found) == 10
    assert found[9].values == {"source.p": 0.9, "model.n_layers": 1, "source.q": 0.1}
    assert found[5].recipe.model.n_layers == 4


def test_a_recipe_is_not_a_sweep(tmp_path):
    recipe, sweep = tmp_path / "mine.toml", tmp_path / "many.toml"
    recipe.write_text('name = "a"\nsteps = 3\n[model]\nn_layers = 1\n')
    sweep.write_text('name = "a"\nrecipe = "binary-p05-q08-tied"\nseeds = 2\n')
    with pytest.raises(
        SweepError, match=r"mine.toml: is a recipe, as it has 'model': mechmarkov train FILE$"
    ):
        mm.load_sweep(recipe)
    with pytest.raises(
        RecipeError, match=r"many.toml: is a sweep, as it has 'recipe': mechmarkov sweep FILE$"
    ):
        mm.load_recipe(sweep)
