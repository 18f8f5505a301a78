"""A blank table of names has a line for each weight, which takes every layer."""

import re
import tomllib

import pytest
import torch

from mechmarkov.importing.names.table import table_of
from mechmarkov.importing.names.weights import blank_table

NAMES = ["tok.weight", "h.0.q", "h.11.q", "h.0.heads.1.v", "h.1.heads.0.v", "out.0"]


@pytest.fixture
def blank():
    return blank_table({name: torch.zeros(3, 2) for name in NAMES})


def test_each_weight_has_one_line(blank):
    keys = ["tok.weight", r"h\.(\d+)\.q", r"h\.(\d+)\.heads\.(\d+)\.v", r"out\.(\d+)"]
    assert list(tomllib.loads(blank)) == keys
    assert [sum(bool(re.fullmatch(key, name)) for key in keys) for name in NAMES] == [1] * len(NAMES)
    assert blank.splitlines()[0] == "'tok.weight' = ''  # [3, 2]"


def test_a_filled_line_is_a_table(blank):
    filled = {"tok.weight": "embed.W_E", r"h\.(\d+)\.q": r"blocks.\1.attn.W_Q"}
    (chosen,) = table_of(tomllib.loads(blank) | filled).of("h.11.q")
    assert chosen[1].expand(chosen[0].to[0]) == "blocks.11.attn.W_Q"
