"""Other people's forms of a hidden Markov model: the law of every short word is what their form says."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from enumeration import EXACT, generator, solve
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.importing.options import source_of
from mechmarkov.sources import HiddenMarkov
from mechmarkov.sources.base.registry import source_from_data
from mechmarkov.theory.hidden import from_states

EVEN = np.array([[[0.5, 0], [0, 0]], [[0, 0.5], [1, 0]]])  # runs of 1 have an even length
GOLDEN = np.array([[[0.5, 0], [1, 0]], [[0, 0.5], [0, 0]]])  # no two 1s in a row
MESS3 = np.einsum("ij,jt->tij", HiddenMarkov.mess3().T, HiddenMarkov.mess3().E)
A3 = np.array([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]])
E2 = np.array([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]])


def on_edges(T, word):
    """The probability of a word, from the stationary law: to emit, and to go on."""
    law = solve(T.sum(0))
    for symbol in word:
        law = law @ T[symbol]
    return law.sum()


def of_source(source, word):
    """The same by the source's arguments: to be in a state, to emit, and to go on."""
    A, E = np.array(source.transitions), np.array(source.emissions)
    law = solve(A) * E[:, word[0]]
    for symbol in word[1:]:
        law = (law @ A) * E[:, symbol]
    return law.sum()


def assert_same_words(source, T, longest=5):
    for length in range(1, longest + 1):
        for word in product(range(len(T)), repeat=length):
            assert of_source(source, word) == pytest.approx(on_edges(T, word), abs=1e-12)


def random_matrices(n_states, n_hidden, seed, zeros=0.0):
    rng = np.random.default_rng(seed)
    T = rng.dirichlet(np.ones(n_states * n_hidden), n_hidden).reshape(n_hidden, n_states, n_hidden)
    T = T * (rng.random(T.shape) >= zeros)
    T[:, 0, 0] += 1e-3  # every state leads to the first, so that there is one closed class
    return (T / T.sum((1, 2), keepdims=True)).transpose(1, 0, 2)


KINDS = {
    "even": (EVEN, 3),
    "golden mean": (GOLDEN, 2),
    "mess3": (MESS3, 3),
    "emits from the state it leaves": (np.einsum("ij,it->tij", A3, E2), 3),
    "emits from the state it enters": (np.einsum("ij,jt->tij", A3, E2), 3),
    "one hidden state": (np.array([[[0.3]], [[0.7]]]), 2),
    "a symbol that is never emitted": (np.stack([*EVEN, np.zeros((2, 2))]), 3),
    "a state that is left for good": (np.array([[[0, 0.5], [0, 1.0]], [[0, 0.5], [0, 0]]]), 2),
}


@pytest.mark.parametrize("name", KINDS)
def test_labelled_matrices_have_their_words(name):
    T, n_hidden = KINDS[name]
    source = HiddenMarkov.from_matrices(T)
    assert source.n_hidden == n_hidden
    assert_same_words(source, T)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 3), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 0.8]))
def test_any_labelled_matrices_have_their_words(n_states, n_hidden, seed, zeros):
    T = random_matrices(n_states, n_hidden, seed, zeros)
    A, E = from_states(T)
    np.testing.assert_allclose(A.sum(1), 1, **EXACT)
    np.testing.assert_allclose(E.sum(1), 1, **EXACT)
    assert_same_words(HiddenMarkov(transitions=A, emissions=E), T, 4)


def test_sequences_are_those_of_the_machine():
    """No odd run of 1s that both ends of are seen; and the next token is known in one."""
    source = HiddenMarkov.from_matrices(EVEN)
    drawn = source.sample(50, 60, generator=generator()).numpy()
    for row in drawn:
        runs = "".join(map(str, row)).strip("1").split("0")
        assert all(len(run) % 2 == 0 for run in runs)
    laws = source.best().probabilities(np.array([[0, 1]]))
    np.testing.assert_allclose(laws[0, 1], [0, 1], **EXACT)


def test_matrices_as_they_come():
    expected = HiddenMarkov.from_matrices(EVEN)
    forms = [EVEN.tolist(), torch.tensor(EVEN), list(EVEN)]
    forms += [{1: EVEN[1], 0: EVEN[0]}, {"b": EVEN[1], "a": EVEN[0]}]
    assert [HiddenMarkov.from_matrices(form) for form in forms] == [expected] * 5
    assert source_from_data({"kind": "hidden_markov", "matrices": EVEN.tolist()}) == expected
    assert set(expected.model_dump()) == {"kind", "transitions", "emissions"}
    in_float32 = HiddenMarkov.from_matrices(MESS3.astype(np.float32))
    assert in_float32.n_hidden == 3
    np.testing.assert_allclose(in_float32.P, HiddenMarkov.mess3().P, atol=1e-6)


def test_on_the_command_line():
    assert source_of(
        f'{{"kind": "hidden_markov", "matrices": {EVEN.tolist()}}}'
    ) == HiddenMarkov.from_matrices(EVEN)
    with pytest.raises(
        ValueError, match=r"^--source.*matrices have shape \[2, 2\], expected \[state, hidden"
    ):
        source_of('{"kind": "hidden_markov", "matrices": [[0.5, 0.5], [1, 0]]}')


AXES = r"expected \[state, hidden_from, hidden_to\]"
ABOVE_1 = np.array([[[1.5, 0], [0, 1]], [[-0.5, 0], [0, 0]]])
REFUSED = {
    "one matrix": ([[0.5, 0.5], [1, 0]], rf"matrices have shape \[2, 2\], {AXES}"),
    "not square": (np.ones((2, 2, 3)) / 6, rf"matrices have shape \[2, 2, 3\], {AXES}"),
    "one symbol": (
        np.ones((1, 2, 2)) / 2,
        rf"matrices have shape \[1, 2, 2\], {AXES} with two states or more",
    ),
    "no law": (EVEN * 0.9, r"matrices sum to 0.9 over states and hidden_to for hidden state 0, expected 1"),
    "another order of axes": (EVEN.transpose(1, 2, 0), r"matrices sum to 1.5 over states and hidden_to"),
    "above 1": (ABOVE_1, r"matrices\[0\]\[0\]\[0\] is 1.5, expected a probability"),
    "nan": (np.where(EVEN == 1, np.nan, EVEN), r"matrices\[1\]\[1\]\[0\] is nan, expected a probability"),
    "words": ([["a"]], r"matrices are \[\['a'\]\], expected numbers \[state, hidden_from, hidden_to\]"),
    "of several sizes": ([np.eye(2), np.eye(3)], "matrices are .*, expected numbers"),
    "a number": (3, "matrices are 3, expected numbers"),
    "two closed classes": (np.stack([np.eye(2), np.eye(2)]) / 2, "closed classes of states"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_labelled_matrices(name):
    T, said = REFUSED[name]
    with pytest.raises(ValueError, match=said) as error:
        HiddenMarkov.from_matrices(T)
    assert "\n" not in str(error.value)


def test_parameters_of_a_model_that_emits_from_states():
    """hmmlearn: a state emits, then goes on; so does a source."""
    start = solve(A3)
    expected = HiddenMarkov(transitions=A3, emissions=E2)
    assert HiddenMarkov.from_parameters(start, A3, E2) == expected
    assert HiddenMarkov.from_parameters(None, A3.tolist(), torch.tensor(E2)) == expected
    assert (
        HiddenMarkov.from_parameters(start, A3, E2[:, None, :]) == expected
    )  # dynamax: [hidden, emission, state]


def test_a_start_that_is_not_stationary_is_left_out_with_a_warning():
    with pytest.warns(
        UserWarning, match=r"^initial is left out: a source begins in its stationary law, \[0\.4"
    ) as said:
        source = HiddenMarkov.from_parameters([0, 0, 1], A3, E2)
    assert "\n" not in str(said[0].message)
    np.testing.assert_allclose(source.hidden_law, solve(A3), **EXACT)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (([0.5, 0.5], A3, E2), r"^initial has shape \[2\], expected \[3\]$"),
        (([0.5, 0.4, 0.2], A3, E2), r"^initial sums to 1.1, expected 1$"),
        ((None, A3, E2[:2]), "emissions has 2 rows, expected 3"),
        (
            (None, A3, np.stack([E2, E2], 1)),
            r"^emission has shape \[3, 2, 2\], expected \[hidden, 1, state\]$",
        ),
        ((None, A3 * 2, E2), r"transitions\[0\]\[1\] is 1.6, expected a probability"),
        ((None, A3[0], E2), "transitions"),
    ],
)
def test_parameters_that_are_none(parameters, said):
    with pytest.raises(ValueError, match=said) as error:
        HiddenMarkov.from_parameters(*parameters)
    assert "\n" not in str(error.value)


def test_a_machine_of_states_with_labelled_transitions():
    """The surface of emic's EpsilonMachine; the package itself is in `make test-outside`."""

    def edge(symbol, probability, target):
        return SimpleNamespace(symbol=symbol, probability=probability, target=target)

    machine = SimpleNamespace(
        states=[
            SimpleNamespace(id="B", transitions=[edge("y", 1.0, "A")]),
            SimpleNamespace(id="A", transitions=[edge("y", 0.5, "B"), edge("x", 0.5, "A")]),
        ]
    )
    assert HiddenMarkov.from_machine(machine) == HiddenMarkov.from_matrices(EVEN)
