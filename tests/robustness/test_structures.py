"""Structures no library wrote: values of any kind anywhere in a file, read right or refused in one line."""

import copy
import json
import math
import tomllib

import pytest
import torch
from golden_files import golden
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from loaders import ROOT, SOURCE, check_run
from run_files import handmade, saved

from mechmarkov.report.payload import script_json
from mechmarkov.runs import RunFileError, load
from mechmarkov.runs.import_run import import_run
from mechmarkov.sweeps import load_sweep
from mechmarkov.sweeps.spec import SweepError, points
from mechmarkov.training.recipe import Recipe, RecipeError

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # files are too slow to be shrunk
pytestmark = pytest.mark.system

few = settings(max_examples=40, deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.too_slow])
words = st.text(max_size=6) | st.sampled_from(
    ["kind", "n_layers", "p", "\x1b[2J", "../x", "a.b", "__class__", "\ud800"]
)
numbers = st.integers(-(2**70), 2**70) | st.integers(-2, 8) | st.floats() | st.booleans()
tensors = st.builds(
    lambda dtype, shape, view: VIEWS[view](torch.ones(shape).to(dtype)),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]),
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(0, 3),
)
VIEWS = (
    lambda x: x,
    lambda x: x.mT if x.ndim > 1 else x,
    lambda x: x[..., ::2] if x.ndim else x,
    lambda x: x[:1].expand(4, *x.shape[1:]) if x.ndim and len(x) else x,
)
anything = st.recursive(
    st.none() | numbers | words | tensors,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=6,
)
plain = st.recursive(
    st.none() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Every place in nested dicts and lists."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if type(value) is list else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def spoiled(draw: st.DataObject, good: dict, values: st.SearchStrategy) -> dict:
    """A copy in which one to three places hold something else, are gone, or have a new neighbour."""
    data = copy.deepcopy(good)
    for _ in range(draw.draw(st.integers(1, 3))):
        path = draw.draw(st.sampled_from(places(data) or [("x",)]))
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        kind = draw.draw(st.sampled_from(["replace", "remove", "add"]))
        if kind == "remove" and path[-1] in (inner if isinstance(inner, dict) else range(len(inner))):
            del inner[path[-1]]
        elif kind == "add" and isinstance(inner, dict):
            inner[draw.draw(words)] = draw.draw(values)
        else:
            inner[path[-1]] = draw.draw(values)
    return data


def one_line(error: Exception) -> None:
    line = str(error)
    assert len(line.splitlines()) == 1, line
    assert len(line) < 2000  # a recipe has some 140 keys, and all are named


@few
@given(st.data())
def test_a_run_of_anything(tmp_path_factory, draw):
    folder = tmp_path_factory.mktemp("run")
    path = saved(folder / "run.pt", spoiled(draw, handmade(), anything))
    try:
        run = load(path)
    except RunFileError as error:
        one_line(error)
    else:
        check_run(run, folder)


RECIPE = ROOT / "training" / "recipes" / "in-context-k3-shortformer.toml"
GIVEN = {"tl2_mlp_ln.pt": {}, "bridge_native_mlp.pt": {}, "nanogpt_bias.pt": {"act_fn": "gelu"}}


@pytest.mark.parametrize("name", GIVEN)
@few
@given(st.data())
def test_a_model_of_anything(tmp_path_factory, name, draw):
    folder = tmp_path_factory.mktemp("model")
    good = golden(name)
    good.pop("optimizer", None)
    path = saved(folder / "model.pt", spoiled(draw, good, anything))
    try:
        run = import_run([path], source=SOURCE, given=GIVEN[name]).run
    except RunFileError as error:
        one_line(error)
    else:
        check_run(run, folder)


@few
@given(st.data())
def test_a_recipe_of_anything(draw):
    good = tomllib.loads(RECIPE.read_text("utf-8"))
    try:
        recipe = Recipe.from_data(spoiled(draw, good, plain))
    except RecipeError as error:
        one_line(error)
    else:
        assert Recipe.from_data(recipe.to_data()).to_data() == recipe.to_data()


@few
@given(st.data())
def test_a_sweep_of_anything(draw):
    good = {
        "name": "tiny",
        "recipe": "binary-p05-q08-tied",
        "seeds": 2,
        "probes": ["attention"],
        "set": {"steps": 4, "data": {"batch": 4}},
        "grid": {"source.p": [0.2, 0.5], "source.q": [0.2, 0.8]},
        "list": [{"source.p": 0.3, "source.q": 0.3}],
        "phase": {"x": "source.p", "y": "source.q"},
    }
    try:
        sweep = load_sweep(spoiled(draw, good, plain))
        found = points(sweep)
    except SweepError as error:
        one_line(error)
    else:
        assert all(point.recipe.steps > 0 for point in found)


@few
@given(plain)
def test_json_in_a_script_stays_json(data):
    def finite(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(finite, value.values()))
        if isinstance(value, list):
            return all(map(finite, value))
        return not (isinstance(value, float) and not math.isfinite(value))

    if not finite(data):
        with pytest.raises(ValueError, match="JSON"):
            script_json(data)
        return
    written = script_json(data)
    assert not {"<", ">", "&", "\u2028", "\u2029"} & set(written)
    assert json.loads(written) == data
