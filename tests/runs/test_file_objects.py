"""Checkpoints that hold objects: settings of a class of one's own, and tables of complex numbers."""

import dataclasses
import os
from types import SimpleNamespace

import pytest
import torch
from public_codes import SOURCE, Config, NanoGPT, drawn, tokens
from run_files import saved
from safe_file_cases import message_of
from torch import nn

import mechmarkov as mm
from mechmarkov.safe.foreign_file import read as read_foreign


class Node:
    """minGPT's CfgNode: attributes, some of them nodes."""

    def __init__(self, **items):
        self.__dict__.update(items)


class WithFunction(Node):
    """Settings among which is a function."""


@dataclasses.dataclass(frozen=True)
class Frozen:
    n_head: int = 2
    betas: tuple[float, float] = (0.9, 0.95)
    inner: Config = dataclasses.field(default_factory=Config)


def content(path, **items):
    return read_foreign(saved(path, items)).content


def test_a_config_that_is_a_dataclass_says_the_heads(tmp_path):
    """build-nanogpt saves `'config': raw_model.config` next to its weights."""
    model = drawn(NanoGPT(Config()))
    data = {"model": model.state_dict(), "config": model.config, "step": 7, "val_loss": 0.5}
    run = mm.import_run([saved(tmp_path / "model.pt", data)], source=SOURCE, given={"act_fn": "gelu"}).run
    assert run.config.n_heads == model.config.n_head
    assert run.steps.tolist() == [7]
    logits, _ = model.eval()(tokens(), tokens())
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)


def test_a_setting_of_an_object_that_no_weight_shows_is_refused(tmp_path):
    model = drawn(NanoGPT(Config()))
    data = {"model": model.state_dict(), "config": Node(n_head=2, window_size=2)}
    path = saved(tmp_path / "model.pt", data)
    with pytest.raises(ValueError, match="config: window_size is 2, which no weight shows"):
        mm.import_run([path], source=SOURCE, given={"act_fn": "gelu"})


def test_objects_of_plain_values_are_dicts(tmp_path):
    read = content(tmp_path / "a.pt", node=Node(a=1, b=Node(c=[1.5])), frozen=Frozen(), again=Node(d=None))
    assert read["node"] == {"a": 1, "b": {"c": [1.5]}}
    assert read["frozen"]["inner"] == dataclasses.asdict(Config())
    assert read["again"] == {"d": None}


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (WithFunction(f=os.getcwd), "WithFunction"),
        (WithFunction(inner=WithFunction(f=os.getcwd)), "WithFunction"),
        (Node(), "Node"),  # nothing says what it holds
        (Node(weight=torch.zeros(2)), "Node"),
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (SimpleNamespace(f=os.getcwd), "posix.getcwd"),
        ({"a": Node(a=1), "b": os.getcwd}, "posix.getcwd"),
        ([os.getcwd, Node(a=1)], "posix.getcwd"),
    ],
)
def test_any_other_object_is_refused_by_its_name(tmp_path, value, word):
    path = saved(tmp_path / "a.pt", {"a": value})
    assert message_of(read_foreign, path).startswith("something in it refers to ")
    assert word in message_of(read_foreign, path)


def test_a_table_of_rotations_is_passed_over(tmp_path):
    """Llama's first code and those that began from it keep `freqs_cis`, complex, among their buffers."""
    weights = drawn(NanoGPT(Config())).state_dict()
    table = torch.polar(torch.ones(4, 2), torch.ones(4, 2))
    given = {"act_fn": "gelu", "n_heads": 2}
    plain = mm.import_run([saved(tmp_path / "a.pt", weights)], source=SOURCE, given=given).run
    with_table = saved(tmp_path / "b.pt", {**weights, "freqs_cis": table})
    run = mm.import_run([with_table], source=SOURCE, given=given).run
    assert all(torch.equal(run.states[name], value) for name, value in plain.states.items())


def test_a_weight_of_complex_numbers_is_one_that_is_not_there(tmp_path):
    weights = drawn(NanoGPT(Config())).state_dict()
    name = "transformer.h.1.mlp.c_fc.weight"
    path = saved(tmp_path / "a.pt", {**weights, name: weights[name].to(torch.complex64)})
    with pytest.raises(ValueError, match="c_fc"):
        mm.import_run([path], source=SOURCE, given={"act_fn": "gelu", "n_heads": 2})


def test_settings_that_share_their_parts_are_walked_once(tmp_path):
    """Eighty lists, each of which holds what is before it twice: 2^80 paths."""
    parts: list = [1]
    for _ in range(40):
        parts = [parts, parts]
    node = Node(a=parts)
    for _ in range(40):
        node = Node(a=[node, node])
    read = content(tmp_path / "a.pt", node=node)
    assert type(read["node"]["a"]) is list
