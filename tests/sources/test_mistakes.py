"""Data that make no source: one error on one line that names the field, each in `mistakes.toml`."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from enumeration import assert_refused

KINDS = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))
MISTAKES = [(kind, *mistake) for kind, each in KINDS.items() for mistake in each["wrong"]]


@pytest.mark.parametrize(("kind", "changes", "field", "words"), MISTAKES)
def test_a_mistake_is_one_line_that_names_it(kind, changes, field, words):
    data = {"kind": kind, **KINDS[kind]["valid"], **changes}
    data = {key: value for key, value in data.items() if value != "missing"}
    assert_refused(data, field or None, words)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "tripple", "p": 0.5}, "Input tag 'tripple' found"),
        ({"p": 0.5, "q": 0.5}, "Unable to extract tag using discriminator 'kind'"),
        (
            {"kind": "order_k", "kernel": np.full((11,) * 4, 1 / 11)},
            "order 3 on 11 states, expected at least",
        ),
        ({"kind": "order_k", "kernel": np.full((2,) * 12, 0.5)}, "and at most 1024 histories"),
    ],
    ids=["unknown kind", "no kind", "many states", "high order"],
)
def test_kinds_and_kernels_that_are_refused(data, words):
    assert_refused(data, None, words)
