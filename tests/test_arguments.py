"""Arguments of the wrong kind: one error that names the argument, at once, and nothing written.

A generator that never ends must be refused before it is read: the time limit of the tests would end these.
"""

import itertools
import math

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.utils.errors import generator_in, integer_of, list_of, number_of, path_of

RUN = mm.example("walk")
MODEL = RUN.model()
RECIPE = mm.load_recipe("binary-p05-q08-tied").with_set(["steps=2"])
MEMBER = mm.training.Member(RECIPE, 0)
SOURCE, OBJECTIVE = RUN.source, RUN.objective
HALF = [[0.5, 0.5], [0.5, 0.5]]
NAN = math.nan


def endless(item=0):
    return itertools.repeat(item)


class BytesPath:
    def __fspath__(self):
        return b"run.pt"


# By the name that the message begins with; after a "/" what tells two calls apart.
CALLS = {
    "path/bytes": lambda: mm.load(b"run.pt"),
    "path/a path of bytes": lambda: mm.load(BytesPath()),
    "path/a number": lambda: mm.load(3),
    "path/a list": lambda: mm.load(["run.pt"]),
    "path/a null character": lambda: mm.load("a\0b"),
    "path/saved": lambda: RUN.save(b"run.pt"),
    "path/saved nowhere": lambda: RUN.save(None),
    "path/saved with a null character": lambda: RUN.save("a\0b"),
    "folder": lambda: RUN.save_folder(b"run"),
    "paths": lambda: mm.import_run(endless("a.pt"), source=SOURCE),
    "paths/bytes": lambda: mm.import_run([b"a.pt"], source=SOURCE),
    "out": lambda: mm.train(RECIPE, out=b"runs"),
    "out/a number": lambda: mm.train(RECIPE, out=3),
    "out/of a sweep": lambda: mm.sweep("binary-phase", b"out"),
    "recipe/bytes": lambda: mm.train(b"walk-k6-half"),
    "recipe/nothing": lambda: mm.load_recipe(None),
    "sweep": lambda: mm.load_sweep(3),
    "seed": lambda: mm.train(RECIPE, seed="0"),
    "seeds": lambda: mm.train(RECIPE, seeds=itertools.count()),
    "seeds/a generator": lambda: mm.train(RECIPE, seeds=(seed for seed in endless())),
    "seeds/a text": lambda: mm.train(RECIPE, seeds="0123"),
    "seeds/lists": lambda: mm.train(RECIPE, seeds=[[0], [1]]),
    "save_every": lambda: mm.train(RECIPE, save_every="often"),
    "save_every/NaN": lambda: mm.train(RECIPE, save_every=NAN),
    "save_every/before": lambda: mm.train(RECIPE, save_every=-0.5),
    "memory": lambda: mm.train(RECIPE, memory="two"),
    "memory/NaN": lambda: mm.train(RECIPE, memory=NAN),
    "start": lambda: mm.train(RECIPE, start="run.pt"),
    "changes": lambda: RECIPE.with_set(3),
    "changes/numbers": lambda: RECIPE.with_set([3]),
    "changes/endless": lambda: RECIPE.with_set(endless("steps=3")),
    "checkpoints.at": lambda: RECIPE.replace(**{"checkpoints": {"at": endless()}}),
    "checkpoints": lambda: RECIPE.replace(**{"checkpoints": endless()}),
    "members": lambda: mm.training.train_members(endless(MEMBER)),
    "members/numbers": lambda: mm.training.train_members([3]),
    "members/a recipe's name": lambda: mm.training.train_members([mm.training.Member("walk-k6-half", 0)]),
    "paths/too few": lambda: mm.training.train_members([MEMBER], paths=[]),
    "paths/texts": lambda: mm.training.train_members([MEMBER], paths=["run.pt"]),
    "at_once": lambda: mm.training.train_members([MEMBER], at_once="2"),
    "run": lambda: mm.probe("run.pt"),
    "probes": lambda: mm.probe(RUN, endless("attention")),
    "probes/bytes": lambda: mm.probe(RUN, b"attention"),
    "probes/a number": lambda: mm.probe(RUN, 3),
    "probes/lists": lambda: mm.probe(RUN, [["attention"]]),
    "steps": lambda: mm.probe(RUN, ["attention"], steps=itertools.count()),
    "steps/texts": lambda: mm.probe(RUN, ["attention"], steps=["0"]),
    "steps/halves": lambda: mm.probe(RUN, ["attention"], steps=[1.5]),
    "steps/nothing": lambda: mm.probe(RUN, ["attention"], steps=None),
    "steps/of a subject": lambda: mm.Subject.of(RUN, endless()),
    "steps/of a decoder": lambda: RUN.model(steps=endless()),
    "seed/of sequences": lambda: mm.probe(RUN, ["attention"], seed=1.5),
    "time_limit": lambda: mm.probe(RUN, ["attention"], time_limit="1"),
    "time_limit/nearly nothing": lambda: mm.probe(RUN, ["attention"], time_limit=1e-300),
    "time_limit/ages": lambda: mm.probe(RUN, ["attention"], time_limit=1e300),
    "time_limit/infinite": lambda: mm.probe(RUN, ["attention"], time_limit=math.inf),
    "sequences": lambda: mm.probe(RUN, ["attention"], sequences=True),
    "sequences/far too many": lambda: mm.probe(RUN, ["attention"], sequences=10**12),
    "sequences/of a subject": lambda: mm.Subject.of(RUN, sequences="8"),
    "law_draws": lambda: mm.probe(RUN, ["attention"], law_draws=10**9),
    "objective": lambda: mm.Run.from_model(MODEL, source=SOURCE, objective="raw_log"),
    "objective/its data": lambda: mm.Run.from_model(MODEL, source=SOURCE, objective={"kind": "raw_log"}),
    "objective/of a file": lambda: mm.import_run(["a.pt"], source=SOURCE, objective="raw_log"),
    "source": lambda: mm.import_run(["a.pt"], source="circle"),
    "step": lambda: mm.Run.from_model(MODEL, source=SOURCE, objective=OBJECTIVE, step=1 << 63),
    "runs": lambda: mm.Run.joined(endless(RUN)),
    "runs/a run": lambda: mm.Run.joined(RUN),
    "runs[0]": lambda: mm.Run.joined([3]),
    "model": lambda: mm.models.initialise(RUN, [0]),
    "seeds/of a start": lambda: mm.models.initialise(MODEL, 0),
    "seeds/of a start, endless": lambda: mm.models.initialise(MODEL, endless()),
    "std": lambda: mm.models.initialise(MODEL, [0], std="0.1"),
    "scheme": lambda: mm.models.initialise(MODEL, [0], scheme=3),
    "fleet": lambda: mm.sweep("binary-phase", fleet=1.5),
    "jobs/of a sweep": lambda: mm.sweep("binary-phase", jobs="2"),
    "cluster": lambda: mm.sweep("binary-phase", cluster="auto"),
    "address": lambda: mm.Cluster(3),
    "gpus_per_task": lambda: mm.Cluster("auto", gpus_per_task="1"),
    "methods": lambda: mm.bench.run(endless("eap")),
    "cases": lambda: mm.bench.run(["eap"], endless("direct")),
    "seeds/of a benchmark": lambda: mm.bench.run(["eap"], ["direct"], seeds=10**30),
    "heads": lambda: mm.override_attention(MODEL, endless("L0H0"), to="uniform").__enter__(),
    "back": lambda: mm.limit_window(MODEL, "2").__enter__(),
    "back/beyond any": lambda: mm.limit_window(MODEL, 1 << 63).__enter__(),
    "component": lambda: mm.ablate(MODEL, 3).__enter__(),
    "Chain: P": lambda: mm.Chain(endless([0.5, 0.5])),
    "Chain: P[1]": lambda: mm.Chain([[0.5, 0.5], endless(0.5)]),
    "ChainMixture: chains": lambda: mm.sources.ChainMixture(chains=endless(HALF)),
    "ChainMixture: chains[0]": lambda: mm.sources.ChainMixture(chains=[endless([0.5, 0.5])]),
    "HiddenMarkov: transitions": lambda: mm.HiddenMarkov(transitions=endless(), emissions=HALF),
    "SelectiveLag: lags": lambda: mm.sources.SelectiveLag(HALF, lags=itertools.count(1)),
    "CausalGraph: parents": lambda: mm.sources.CausalGraph(n_states=3, parents=endless([])),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_the_wrong_kind_is_one_line_that_names_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError)) as caught:
        CALLS[name]()
    message = str(caught.value)
    assert message.startswith((f"{name.partition('/')[0]} ", f"{name.partition('/')[0]}: "))
    assert len(message.splitlines()) == 1
    assert "expected" in message
    assert not list(tmp_path.iterdir())


def test_arrays_are_lists_of_numbers():
    runs = mm.train(RECIPE, seeds=np.arange(2), device="cpu")
    assert [run.seed for run in runs] == [0, 1]
    steps = torch.tensor([0, 50])
    assert mm.Subject.of(RUN, steps, sequences=4).coordinates == [0, 50]
    assert RUN.model(steps=np.array([0, 50])).n_models == 2


def test_what_has_an_end_is_a_list():
    for given in ([0, 1], (0, 1), range(2), {0, 1}, np.array([0, 1]), torch.tensor([0, 1])):
        assert list_of("x", given, "a list") == [0, 1]
    for given in ("ab", b"ab", {0: 1}, 3, None, iter([0]), np.array(3), torch.tensor(3)):
        with pytest.raises(TypeError, match=r"^x is .*, expected a list$"):
            list_of("x", given, "a list")


def test_a_list_has_an_end_that_is_near():
    assert list_of("x", range(3), "a list", most=3) == [0, 1, 2]
    for given in (range(4), [0] * 4, range(10**12), range(10**30)):
        with pytest.raises(ValueError, match=r"^x are .*, expected at most 3$"):
            list_of("x", given, "a list", most=3)


def test_numbers_have_bounds_that_belong_to_them():
    assert integer_of("x", np.int64(3), least=3, most=3) == 3
    assert integer_of("x", 10**30) == 10**30
    assert number_of("x", 0, "at least 0", least=0, most=1) == 0
    for given, bound in ((2, "at least 3"), (4, "at most 3")):
        with pytest.raises(ValueError, match=f"^x is {given}, expected {bound}$"):
            integer_of("x", given, least=3, most=3)
    for given in (True, 2.0, "2", None):
        with pytest.raises(TypeError, match=r"^x is .*, expected an integer$"):
            integer_of("x", given)
    for given in (-1, 1.5, NAN, math.inf):
        with pytest.raises(ValueError, match=r"^x is .*, expected a share$"):
            number_of("x", given, "a share", least=0, most=1)


def test_a_path_is_a_text_or_a_path(tmp_path):
    assert path_of("x", str(tmp_path)) == path_of("x", tmp_path) == tmp_path


def test_generators_are_found_wherever_plain_data_hold_them():
    endless_one = itertools.count()
    assert generator_in([[], [endless_one]]) == "[1][0]"
    assert generator_in({"a": [{"b": endless_one}]}) == ".a[0].b"
    assert generator_in({"a": [[0.5, 0.5]], "b": "text", "c": range(3), "d": np.zeros(2)}) is None
    cycle: list = []
    cycle.append(cycle)
    assert generator_in(cycle) is None


def test_names_of_a_comparison_are_texts(tmp_path):
    result = mm.probe(RUN, ["attention"], sequences=8)
    with pytest.raises(TypeError, match=r"^results has the name 1, expected a text$"):
        mm.write_comparison({1: result, 2: result}, tmp_path / "two.html")


def test_a_step_of_a_picture_is_a_number():
    with pytest.raises(TypeError, match=r"^step is 'x', expected an integer$"):
        mm.show.kernel(RUN, step="x")
