"""Sources as plain data, their arguments and what they say of themselves."""

import json

import numpy as np
import pytest
import torch
from enumeration import assert_plain_data
from pydantic import TypeAdapter, ValidationError

from mechmarkov.sources import Binary, Chain, Circle, DirichletChains, source_from_data
from mechmarkov.sources.base.registry import AnySource
from mechmarkov.utils.config import FieldError

P = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]
DATA = {
    Binary(p=0.5, q=0.8): {"kind": "binary", "p": 0.5, "q": 0.8},
    Circle(n_states=6, p=0.5): {"kind": "circle", "n_states": 6, "p": 0.5},
    Chain(P): {"kind": "chain", "P": P},
    DirichletChains(n_states=3): {
        "kind": "dirichlet_chains",
        "n_states": 3,
        "concentration": 1.0,
        "start": "stationary",
        "rows": "independent",
        "order": 1,
    },
    DirichletChains(n_states=2, concentration=0.3, start="uniform"): {
        "kind": "dirichlet_chains",
        "n_states": 2,
        "concentration": 0.3,
        "start": "uniform",
        "rows": "independent",
        "order": 1,
    },
}


@pytest.mark.parametrize("source", DATA, ids=repr)
def test_a_source_is_its_kind_and_arguments(source):
    assert_plain_data(source, DATA[source])
    assert next(iter(source.model_dump(mode="json"))) == "kind"
    assert source_from_data(source.model_dump()) == source
    assert TypeAdapter(AnySource).validate_json(json.dumps(DATA[source])) == source


def test_sources_are_equal_by_their_arguments_whatever_was_worked_out():
    for source in DATA:
        other = source_from_data(DATA[source])
        if not source.redraws:
            assert source.P is source.P  # worked out here, and not yet there
        assert source == other
        assert len({source, other}) == 1
    assert Binary(p=0.5, q=0.8) != Binary(p=0.8, q=0.5)
    assert Binary(p=1, q=1) != Chain([[0, 1], [1, 0]])  # the same law, but not the same arguments
    assert Chain(P) != Chain(P[::-1])
    assert Circle(n_states=6, p=1) == Circle(n_states=6, p=1.0)
    assert Circle(n_states=6, p=1) != {"kind": "circle", "n_states": 6, "p": 1.0}


@pytest.mark.parametrize("source", DATA, ids=repr)
def test_sources_are_frozen(source):
    with pytest.raises(ValidationError, match="frozen"):
        source.kind = "circle"
    with pytest.raises(ValidationError, match="frozen"):
        source.p = 0.1


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
    forms = [
        P,
        np.array(P),
        torch.tensor(P, dtype=torch.float64),
        tuple(map(tuple, P)),
        list(map(np.array, P)),
    ]
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
