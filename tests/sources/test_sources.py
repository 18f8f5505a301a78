"""Sources as plain data, their arguments and what they say of themselves."""

import json
import re

import numpy as np
import pytest
import torch
from enumeration import assert_deterministic, assert_plain_data
from pydantic import TypeAdapter, ValidationError

from mechmarkov import sources
from mechmarkov.sources import Binary, Chain, Circle, DirichletChains, source_from_data
from mechmarkov.sources.base.registry import AnySource
from mechmarkov.utils.config import FieldError

P = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]
EVEN = [[0.2, 0.4, 0.4], [0.4, 0.2, 0.4], [0.4, 0.4, 0.2]]
EDGES = {"edges": [[0, 1, 1.0], [1, 2, 0.5], [2, 2, 1.0]], "n_states": 3, "labels": ["a", "b", "c"]}
PARENTS = [[], *([i // 2] for i in range(49))]
LEAVES = [{"context": [1], "law": [0.3, 0.7]}, {"context": [0, 0], "law": [0.9, 0.1]}]
LEAVES += [{"context": [1, 0], "law": [0.5, 0.5]}]
WALK = {"kind": "graph", **EDGES, "directed": False}
HIDDEN = {"transitions": [[0.9, 0.1], [0.2, 0.8]], "emissions": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]}
PARTS = [{"kind": "hidden_markov", **HIDDEN}] * 2
ROTATIONS = [[[0.5, 0.4, 0.0], [0.0, 0.0, -0.3], [0.4, 0.5, 0.0]]]
ROTATIONS += [[[0.5, -0.4, 0.0], [0.0, 0.0, -0.3], [-0.4, 0.5, 0.0]]]
BINARY = {"kind": "binary", "p": 0.2, "q": 0.3}
GREEDY = {"kind": "greedy", "words": ["a", "b", "ab", "aba"]}
DRAWN = {"concentration": 1.0, "start": "stationary", "rows": "independent", "order": 1}
# Arguments, and the defaults of the others.
GIVEN = [
    (Binary, {"p": 0.5, "q": 0.8}, {}),
    (Circle, {"n_states": 6, "p": 0.5}, {}),
    (Chain, {"P": P}, {}),
    (sources.LaggedChain, {"lag": 2, "P": P}, {}),
    (sources.Switch, {"lag": 2, "p": 0.5, "q": 0.8}, {}),
    (sources.OrderK, {"kernel": [P, P[::-1], P]}, {}),
    (sources.Graph, {"weights": EVEN}, {"directed": False}),
    (sources.Graph, EDGES, {"directed": False}),
    (sources.RelabelledGraph, {"graph": WALK, "endpoint": 1, "at": 3}, {}),
    (sources.CausalGraph, {"n_states": 3, "parents": PARENTS}, {"concentration": 1.0, "start": "uniform"}),
    (DirichletChains, {"n_states": 3}, DRAWN),
    (DirichletChains, {**DRAWN, "n_states": 3, "rows": "alike"}, {}),
    (DirichletChains, {**DRAWN, "n_states": 2, "start": "uniform", "concentration": 0.3}, {}),
    (DirichletChains, {**DRAWN, "n_states": 2, "start": "uniform", "order": 3}, {}),
    (sources.DoublyStochastic, {"n_states": 2}, {"law": "sinkhorn"}),
    (sources.DoublyStochastic, {"n_states": 4, "law": "uniform"}, {}),
    (sources.ContextTree, {"leaves": LEAVES}, {}),
    (sources.ContextTrees, {"n_states": 2, "depth": 2}, {"branch": 0.5, "concentration": 0.5}),
    (sources.ChainMixture, {"chains": [P, EVEN]}, {"weights": None}),
    (sources.ChainMixture, {"chains": [P, EVEN], "weights": [0.25, 0.75]}, {}),
    (sources.SelectiveLag, {"P": P, "lags": [1, 60]}, {"weights": None}),
    (sources.SelectiveLag, {"P": P, "lags": [1, 2], "weights": [0.25, 0.75]}, {}),
    (sources.TriggerBigram, {"P": EVEN, "triggers": [1]}, {"outputs": "uniform", "start": "stationary"}),
    (sources.TriggerBigram, {"P": EVEN, "triggers": [1], "outputs": [0.5, 0.0, 0.5], "start": "global"}, {}),
    (sources.HiddenMarkov, HIDDEN, {}),
    (sources.HiddenMixture, {"tasks": PARTS}, {"weights": None}),
    (sources.FactoredHiddenMarkov, {"factors": PARTS}, {}),
    (sources.GeneralisedHiddenMarkov, {"matrices": ROTATIONS}, {}),
    (sources.Tokenised, {"source": BINARY, "tokeniser": GREEDY}, {}),
    (sources.FruitQuestions, {"task": 1}, {}),
]


def kind_of(family):
    return re.sub(r"(?<=.)(?=[A-Z])", "_", family.__name__).lower()


DATA = {family(**given): {"kind": kind_of(family), **given, **rest} for family, given, rest in GIVEN}


@pytest.mark.parametrize("source", DATA, ids=repr)
def test_a_source_is_its_kind_and_arguments(source):
    assert_plain_data(source, DATA[source])
    assert next(iter(source.model_dump(mode="json"))) == "kind"
    assert source_from_data(source.model_dump()) == source
    assert TypeAdapter(AnySource).validate_json(json.dumps(DATA[source])) == source


@pytest.mark.parametrize("source", DATA, ids=repr)
def test_tokens_come_from_the_generator_and_nothing_else(source):
    assert_deterministic(source, source.length or 50)


def test_sources_are_equal_by_their_arguments_whatever_was_worked_out():
    for source in DATA:
        other = source_from_data(DATA[source])
        if hasattr(source, "P"):
            assert source.P is source.P  # worked out here, and not yet there
        assert source == other
        assert len({source, other}) == 1
    assert Binary(p=0.5, q=0.8) != Binary(p=0.8, q=0.5)
    assert Binary(p=1, q=1) != Chain([[0, 1], [1, 0]])  # the same law, but not the same arguments
    assert Chain(P) != Chain(P[::-1])
    assert Circle(n_states=6, p=1) == Circle(n_states=6, p=1.0)
    assert Circle(n_states=6, p=1) != {"kind": "circle", "n_states": 6, "p": 1.0}


def test_a_changed_copy_has_the_law_of_its_own_arguments():
    source = Binary(p=0.5, q=0.8)
    assert source.P[0, 1] == 0.5
    changed = source.model_copy(update={"p": 0.25})
    assert changed == Binary(p=0.25, q=0.8)
    assert changed.P.tolist() == Binary(p=0.25, q=0.8).P.tolist()
    assert Chain(P).model_copy() == Chain(P)
    with pytest.raises(ValidationError, match="p is 2"):
        source.model_copy(update={"p": 2})


def test_a_chain_from_lists_arrays_and_tensors():
    tensor, rows = torch.tensor(P, dtype=torch.float64), list(map(np.array, P))
    forms = [P, np.array(P), tensor, tuple(map(tuple, P)), rows]
    assert {Chain(form) for form in forms} == {Chain(P=P)}
    assert Chain(np.array([[0, 1], [1, 0]])).model_dump(mode="json")["P"] == [[0.0, 1.0], [1.0, 0.0]]
    assert eval(repr(Chain(P))) == Chain(P)
    assert eval(repr(Circle(n_states=6, p=0.5))) == Circle(n_states=6, p=0.5)


def test_numpy_scalars_become_plain_numbers():
    source = Circle(n_states=np.int64(6), p=np.float64(0.5))
    assert source == Circle(n_states=6, p=0.5)
    assert type(source.n_states) is int
    assert type(source.p) is float
    assert type(DirichletChains(n_states=3, concentration=np.float32(0.5)).concentration) is float


def test_a_mistake_in_python_is_the_same_error():
    with pytest.raises(FieldError, match=r"^Binary: p is 1\.2, expected a probability in \[0, 1\]$"):
        Binary(p=1.2, q=0)
    with pytest.raises(FieldError, match=r"^Chain: P is missing, expected a list$"):
        Chain()
    with pytest.raises(TypeError, match=r"^Binary takes its fields by name: Binary\(p=…, q=…\)$"):
        Binary(0.2, 0.3)
    with pytest.raises(FieldError, match=r"^Chain: unknown key labels, expected one of: kind, P$"):
        Chain(P, labels=["a", "b", "c"])


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (np.ones((2, 2)), "row 0 of transition_matrix sums to 2, expected 1"),
        ([[0.5, 0.5], [1.5, -0.5]], r"transition_matrix\[1\]\[0\] is 1.5, expected a probability in"),
        ([[0.5, 0.5], [float("nan"), 1]], r"transition_matrix\[1\]\[0\] is nan, expected a probability"),
        (np.eye(3), r"transition_matrix has shape \[3, 3\], expected \[2, 2\]"),
    ],
)
def test_a_matrix_of_a_source_of_ones_own_that_is_no_law_is_refused(matrix, said):
    class Own(Binary):
        def transition_matrix(self):
            return matrix

    with pytest.raises(ValueError, match=f"^{said}"):
        Own(p=0.5, q=0.5).sample(1, 4, generator=torch.Generator())


@pytest.mark.parametrize(
    ("source", "title"),
    [
        (Binary(p=0.5, q=0.8), "Binary chain, p = 0.5, q = 0.8"),
        (Circle(n_states=6, p=1), "Circle walk on 6 states, p = 1"),
        (Chain(P), "Chain on 3 states"),
        (DirichletChains(n_states=3), "A fresh chain on 3 states per sequence, rows from Dirichlet(1)"),
        (
            DirichletChains(n_states=2, concentration=0.5, start="uniform"),
            "A fresh chain on 2 states per sequence, rows from Dirichlet(0.5), uniform start",
        ),
    ],
)
def test_titles_and_labels(source, title):
    assert source.title() == title
    assert source.labels == tuple("012345"[: source.n_states])
    assert source.redraws == isinstance(source, DirichletChains)
