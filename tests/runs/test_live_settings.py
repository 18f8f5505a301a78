"""Configs and settings of live models: whatever kind of object they are in, or by what the model computes."""

import argparse
from dataclasses import dataclass, make_dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import transformers
from public_codes import LENGTH, SOURCE, Block, CfgNode, Config, K, NanoGPT, drawn
from public_codes import tokens as sequences
from torch import nn

from mechmarkov.importing.live.settings import settings_of
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.runs import Run, RunFileError

FIELDS = vars(Config())


class Named(NamedTuple):
    block_size: int = LENGTH
    vocab_size: int = K
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 8
    dropout: float = 0.1
    bias: bool = True


class Slots:
    __slots__ = tuple(FIELDS)

    def __init__(self):
        for name, value in FIELDS.items():
            setattr(self, name, value)


class AttributeDict(dict):
    """Lightning's `hparams`."""

    __getattr__ = dict.__getitem__


class OnTheClass:
    block_size, vocab_size, n_layer, n_head, n_embd = LENGTH, K, 2, 2, 8

    def method(self):
        return 3


@dataclass
class Defaults:
    """A dataclass with defaults that the model does not have."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768


CONFIGS = {
    "dict": dict(FIELDS),
    "NamedTuple": Named(),
    "slots": Slots(),
    "slots of a dataclass": make_dataclass("Own", FIELDS, slots=True)(**FIELDS),
    "dataclass": Defaults(LENGTH, K, 2, 2, 8),
    "Namespace": argparse.Namespace(**FIELDS),
    "SimpleNamespace": SimpleNamespace(**FIELDS),
    "to_dict": CfgNode(**FIELDS, model_type=None),
    "to_dict of a GPT-2 by name": CfgNode(**FIELDS, model_type="gpt2"),
    "AttributeDict": AttributeDict(FIELDS),
    "class": OnTheClass,
    "attributes of a class": OnTheClass(),
    "a section of one": {"model": dict(FIELDS), "training": {"lr": 1e-3}},
    "to_dict with an argument": type("Odd", (CfgNode,), {"to_dict": lambda self, deep: None})(**FIELDS),
}


class TwoHeads(Block):
    """A block that does not say how many heads it has."""

    heads = 2


def headless(config, attribute="config") -> nn.Module:
    """A GPT of which its config alone says how many heads there are."""
    model = drawn(NanoGPT(Config()))
    for block in model.transformer["h"]:
        del block.heads
        block.__class__ = TwoHeads
    del model.config
    setattr(model, attribute, config)
    return model


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [*((kind, "config") for kind in CONFIGS), *(("dict", name) for name in ("cfg", "args", "hparams"))],
)
def test_a_config_is_read_whatever_it_is(kind, attribute):
    run = Run.from_model(headless(CONFIGS[kind], attribute), source=SOURCE)
    assert run.config.n_heads == 2
    assert run.provenance["logit_difference"] <= 1e-5
    assert "chosen_by_logits" not in run.provenance


def test_what_is_no_config_is_none():
    for thing in (None, 3, "gpt2", [1, 2], (1, 2), nn.Linear(2, 2), object(), True):
        assert settings_of(thing) is None


def test_heads_that_nothing_says_are_told_by_the_logits():
    run = Run.from_model(headless({"lr": 1e-3}), source=SOURCE)
    assert run.config.n_heads == 2
    assert run.provenance["chosen_by_logits"] == {"n_heads": 2}
    assert Run.from_model(headless({}), source=SOURCE, given={"n_heads": 2}).config.n_heads == 2
    with pytest.raises(RunFileError, match="n_heads is 3, expected a divisor of d_model 8"):
        Run.from_model(headless({}), source=SOURCE, given={"n_heads": 3})


def test_heads_that_make_no_difference_are_asked_for():
    model = headless({})
    with torch.no_grad():
        for block in model.transformer["h"]:
            block.attn["c_attn"].weight[:16] = 0  # all attention is uniform, however many heads there are
            block.attn["c_attn"].bias[:16] = 0
    words = r"neither the model nor its logits tell n_heads: say it, for example given=\{'n_heads': \d\}"
    with pytest.raises(RunFileError, match=words):
        Run.from_model(model, source=SOURCE)


def test_layers_of_several_numbers_of_heads_are_refused():
    model = drawn(NanoGPT(Config()))
    model.transformer["h"][1].heads = 4
    with pytest.raises(RunFileError, match="its layers have 2 and 4 heads, expected one number"):
        Run.from_model(model, source=SOURCE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n_head": 2}, r"^given has 'n_head', did you mean n_heads or "),
        ({"n_heads": [2]}, r"^given\['n_heads'\] is \[2\], expected a plain value$"),
        ("window=3", "^given is 'window=3', expected fields of a config such as"),
        ({"n_ctx": 4}, None),
        (
            {"n_layers": 5},
            "n_layers is 2 by the shapes, but 5 was given|n_layers is 2 in the file, but 5 was given",
        ),
    ],
)
def test_what_is_given_is_checked_as_by_the_command_line(given, words):
    model = drawn(NanoGPT(Config()))
    if words is None:
        assert Run.from_model(model, source=SOURCE, given=given).config.n_ctx == 4
        with pytest.raises(ValueError, match="n_ctx is 5, but given has 4: expected one of the two"):
            Run.from_model(model, source=SOURCE, given=given, n_ctx=5)
        return
    with pytest.raises(RunFileError, match=words):
        Run.from_model.__func__(Run, model, source=SOURCE, given=given)


@pytest.mark.filterwarnings("default")
def test_a_config_of_transformers_is_called_a_config_and_not_a_file():
    small = {"vocab_size": K, "bos_token_id": None, "eos_token_id": None}
    gpt_neo = transformers.GPTNeoConfig(
        **small, num_layers=2, num_heads=2, hidden_size=8, attention_types=[[["global", "local"], 1]]
    )
    gptj = transformers.GPTJConfig(**small, n_layer=1, n_head=2, n_embd=8, n_positions=LENGTH, rotary_dim=4)
    for config, words in (
        (
            gpt_neo,
            r"^config\.model_type is 'gpt_neo', expected gpt2, .*; gpt_neo is not read: attention_types are",
        ),
        (
            gptj,
            r"^config\.model_type is 'gptj', expected gpt2, .*; gptj is not read: its attention and its MLP",
        ),
    ):
        with pytest.raises(RunFileError, match=words) as caught:
            Run.from_model(transformers.AutoModelForCausalLM.from_config(config), source=SOURCE)
        assert "config.json" not in str(caught.value)


@dataclass
class Clean:
    """The config of Neel Nanda's clean transformer, as tutorials copy it: not all of its names are ours."""

    d_model: int = 8
    debug: bool = False
    layer_norm_eps: float = 1e-3
    d_vocab: int = K
    init_range: float = 0.05
    n_ctx: int = LENGTH
    d_head: int = 4
    d_mlp: int = 12
    n_heads: int = 2
    n_layers: int = 2
    learning_rate: float = 1e-3


class WithLensNames(nn.Module):
    """HookedTransformer's names around a decoder of ours, with a config of its own."""

    def __init__(self, attribute="cfg", **changes):
        super().__init__()
        shape = {"n_layers": 2, "d_model": 8, "n_ctx": LENGTH, "d_head": 4, "d_vocab": K, "d_mlp": 12}
        inner = drawn(HookedDecoder(DecoderConfig(**(shape | {"act_fn": "gelu_new", "eps": 1e-3} | changes))))
        for name, child in inner.named_children():
            self.add_module(name, child)
        self.inner = (inner,)
        setattr(self, attribute, Clean())

    def forward(self, tokens):
        return self.inner[0](tokens)


@pytest.mark.parametrize("attribute", ["cfg", "config", "hparams", "nowhere"])
@pytest.mark.parametrize("act_fn", ["gelu_new", "silu"])
def test_hooked_transformers_names_with_a_config_of_ones_own(attribute, act_fn):
    model = WithLensNames(attribute, act_fn=act_fn, eps=1e-5 if attribute == "nowhere" else 1e-3)
    run = Run.from_model(model, source=SOURCE)
    assert (run.config.act_fn, run.config.d_mlp) == (act_fn, 12)
    assert run.provenance["chosen_by_logits"] == {"act_fn": act_fn}
    torch.testing.assert_close(run.model()(sequences()), model(sequences()), rtol=1e-5, atol=1e-5)


def test_biases_that_a_model_does_not_have_are_zero():
    model = WithLensNames(normalization_type=None)
    for part in model.modules():
        for name in [name for name in part._parameters if name.startswith("b_")]:
            zero = torch.zeros_like(part._parameters.pop(name))
            part.register_buffer(name, zero, persistent=False)
    assert not [name for name, _ in model.named_parameters() if ".b_" in name]
    run = Run.from_model(model, source=SOURCE)
    torch.testing.assert_close(run.model()(sequences()), model(sequences()), rtol=1e-5, atol=1e-5)
    assert not run.states["blocks.0.mlp.b_in"].any()


def test_another_order_of_axes_names_the_table():
    model = WithLensNames()
    model.embed.W_E.data = model.embed.W_E.data.T.contiguous()
    with pytest.raises(
        ValueError, match=r"^embed\.W_E has shape .*; other orders of axes are said by names= "
    ):
        Run.from_model(model, source=SOURCE)


def test_a_field_of_hooked_transformer_that_is_given_otherwise_is_refused():
    with pytest.raises(RunFileError, match="n_heads is 2 in its cfg, but 4 was given"):
        Run.from_model(WithLensNames(), source=SOURCE, given={"n_heads": 4})


def test_norms_without_weights_are_told_by_the_logits():
    for kind in (None, "LNPre", "RMSPre"):
        run = Run.from_model(WithLensNames(normalization_type=kind), source=SOURCE)
        assert run.provenance["chosen_by_logits"] == {"act_fn": "gelu_new", "normalization_type": kind}
