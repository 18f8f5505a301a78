"""Configs and settings of live models: whatever kind of object they are in, or by what the model computes."""

import argparse
from dataclasses import dataclass, make_dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
import transformers
from test_live_gpt2 import LENGTH, SOURCE, Block, Config, K, NanoGPT, drawn, sequences
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


class CfgNode:
    """minGPT's (mingpt/utils.py at 37baab7, lines 38-66): attributes, and a `to_dict`."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def to_dict(self):
        return {k: v.to_dict() if isinstance(v, CfgNode) else v for k, v in self.__dict__.items()}


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


@pytest.mark.parametrize("attribute", ["config", "cfg", "args", "hparams"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_is_read_whatever_it_is(kind, attribute):
    run = Run.from_model(headless(CONFIGS[kind], attribute), source=SOURCE)
    assert run.model.n_heads == 2
    assert run.provenance["logit_difference"] <= 1e-5
    assert "chosen_by_logits" not in run.provenance


def test_what_is_no_config_is_none():
    for thing in (None, 3, "gpt2", [1, 2], (1, 2), nn.Linear(2, 2), object(), True):
        assert settings_of(thing) is None


def test_heads_that_nothing_says_are_told_by_the_logits():
    run = Run.from_model(headless({"lr": 1e-3}), source=SOURCE)
    assert run.model.n_heads == 2
    assert run.provenance["chosen_by_logits"] == {"n_heads": 2}
    assert Run.from_model(headless({}), source=SOURCE, given={"n_heads": 2}).model.n_heads == 2
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


class NewGELU(nn.Module):
    """minGPT's (mingpt/model.py at 37baab7, lines 20-27)."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))


class Called(nn.Module):
    """An activation that is a function: no module shows it."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


ACTIVATIONS = {
    "gelu": [nn.GELU(), Called(F.gelu), Called(lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)))],
    "gelu_new": [nn.GELU("tanh"), NewGELU(), Called(partial(F.gelu, approximate="tanh"))],
    "relu": [
        nn.ReLU(),
        Called(F.relu),
        Called(lambda x: x.clamp(min=0)),
        nn.Sequential(nn.ReLU(), nn.Dropout()),
    ],
    "silu": [
        nn.SiLU(),
        Called(F.silu),
        Called(lambda x: x * torch.sigmoid(x)),
        transformers.activations.SiLUActivation(),
    ],
}
BY_VALUE = [(name, number) for name, several in ACTIVATIONS.items() for number in range(len(several))]


@pytest.mark.parametrize(("name", "number"), BY_VALUE)
def test_an_activation_is_recognised_by_its_values(name, number):
    model = drawn(NanoGPT(Config(), ACTIVATIONS[name][number]))
    run = Run.from_model(model, source=SOURCE)
    assert run.model.act_fn == name
    assert run.provenance["act_fn_by"] == "its values on a grid"
    assert run.provenance["logit_difference"] <= 1e-5
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize(
    ("activation", "words"),
    [
        (
            Called(lambda x: x * torch.sigmoid(1.702 * x)),
            r"from gelu by up to 0\.02, gelu_new by up to 0\.021, relu",
        ),
        (nn.Tanh(), r"differs on \[-6, 6\] from .* by up to 5.*: a HookedDecoder has no other"),
        (nn.LeakyReLU(0.01), r"from relu by up to 0\.06"),
    ],
)
def test_another_activation_is_refused_with_those_that_are_close(activation, words):
    with pytest.raises(RunFileError, match=words):
        Run.from_model(drawn(NanoGPT(Config(), activation)), source=SOURCE)


def test_blocks_of_several_activations_are_refused():
    model = drawn(NanoGPT(Config()))
    model.transformer["h"][1].mlp["gelu"] = nn.ReLU()
    with pytest.raises(RunFileError, match="its blocks have the activations gelu and relu, expected one"):
        Run.from_model(model, source=SOURCE)


class FunctionalMLP(Block):
    """The weights of the MLP are used without calling its layers: nothing in between can be seen."""

    act_fn = staticmethod(F.gelu)

    def forward(self, x):
        d = x.shape[-1]
        q, k, v = (
            y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.attn["c_attn"](self.ln_1(x)).split(d, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn["c_proj"](mixed)
        first, second = self.mlp["c_fc"], self.mlp["c_proj"]
        hidden = self.act_fn(F.linear(self.ln_2(x), first.weight, first.bias))
        return x + F.linear(hidden, second.weight, second.bias)


def functional(act_fn, scale) -> nn.Module:
    model = drawn(NanoGPT(Config()))
    kind = type("Functional", (FunctionalMLP,), {"act_fn": staticmethod(act_fn)})
    with torch.no_grad():
        for block in model.transformer["h"]:
            block.__class__ = kind
            for value in block.mlp.parameters():
                value.mul_(scale)
    return model


TANH_GELU = partial(F.gelu, approximate="tanh")


@pytest.mark.parametrize("scale", [1.0, 0.02], ids=["trained", "at its start"])
@pytest.mark.parametrize(("act_fn", "name"), [(F.gelu, "gelu"), (TANH_GELU, "gelu_new"), (F.silu, "silu")])
def test_an_activation_that_cannot_be_seen_is_told_by_the_logits(act_fn, name, scale):
    run = Run.from_model(functional(act_fn, scale), source=SOURCE)
    assert run.model.act_fn == name
    assert run.provenance["chosen_by_logits"] == {"act_fn": name}


def test_an_activation_that_no_logits_tell_is_asked_for_or_refused():
    with pytest.raises(
        RunFileError, match=r"disagree: .*; of act_fn relu, gelu, gelu_new and silu were tried"
    ):
        Run.from_model(functional(torch.tanh, 1.0), source=SOURCE)
    silent = functional(F.gelu, 0.0)
    with pytest.raises(RunFileError, match=r"neither .* tell act_fn: say it, for example given=\{'act_fn': "):
        Run.from_model(silent, source=SOURCE)
    assert Run.from_model(silent, source=SOURCE, given={"act_fn": "silu"}).model.act_fn == "silu"


class OwnNorm(nn.Module):
    """nanoGPT's LayerNorm without bias (model.py at 3adf61e, lines 18-27), and an RMS norm like Llama's."""

    def __init__(self, width, is_rms):
        super().__init__()
        self.weight, self.bias, self.is_rms = nn.Parameter(torch.ones(width)), None, is_rms

    def forward(self, x):
        if self.is_rms:
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def with_norms(make) -> nn.Module:
    model = NanoGPT(Config(bias=False))
    for block in model.transformer["h"]:
        block.ln_1, block.ln_2 = make(), make()
    model.transformer["ln_f"] = make()
    return drawn(model)


NORMS = {
    "LN": [lambda: OwnNorm(8, False), lambda: nn.LayerNorm(8, eps=1e-3), lambda: nn.LayerNorm(8, bias=False)],
    "RMS": [lambda: OwnNorm(8, True), lambda: nn.RMSNorm(8, eps=1e-3)],
}


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, n) for kind, several in NORMS.items() for n in range(len(several))]
)
def test_a_norm_is_recognised_by_its_values_and_says_its_eps(kind, number):
    run = Run.from_model(with_norms(NORMS[kind][number]), source=SOURCE)
    assert run.model.normalization_type == kind
    assert run.model.eps == (1e-3 if number == 1 else 1e-5)
    assert run.provenance["logit_difference"] <= 1e-5


def test_norms_that_are_none_or_of_two_kinds_are_refused():
    class Halved(nn.LayerNorm):
        def forward(self, x):
            return x / 2 + self.weight

    words = 'neither all LN nor all RMS by their values: give given={"normalization_type": "LN"}'
    with pytest.raises(RunFileError, match=words):
        Run.from_model(with_norms(lambda: Halved(8, bias=False)), source=SOURCE)
    model = with_norms(lambda: nn.RMSNorm(8))
    model.transformer["ln_f"] = nn.LayerNorm(8, bias=False)
    with pytest.raises(RunFileError, match=words):
        Run.from_model(model, source=SOURCE)
    model = with_norms(lambda: nn.LayerNorm(8))
    model.transformer["ln_f"] = nn.LayerNorm(8, eps=1e-3)
    with pytest.raises(RunFileError, match=r"its norms have an eps of 1e-05 and 0\.001, expected one"):
        Run.from_model(model, source=SOURCE)


class Windowed(Block):
    """A fork: a query sees itself and the three tokens before it."""

    def forward(self, x):
        d, n = x.shape[-1], x.shape[1]
        q, k, v = (
            y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.attn["c_attn"](self.ln_1(x)).split(d, 2)
        )
        mask = torch.ones(n, n, dtype=torch.bool).tril().triu(-3)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.attn["c_proj"](mixed)
        return x + self.mlp["c_proj"](self.mlp["gelu"](self.mlp["c_fc"](self.ln_2(x))))


def test_a_setting_that_nothing_shows_is_given():
    model = drawn(NanoGPT(Config()))
    for block in model.transformer["h"]:
        block.__class__ = Windowed
    words = r"weights do not show eps \(1e-05\), use_attn_scale \(True\) and window \(None\): say what"
    with pytest.raises(RunFileError, match=words):
        Run.from_model(model, source=SOURCE)
    assert Run.from_model(model, source=SOURCE, given={"window": 3}).model.window == 3


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
        assert Run.from_model(model, source=SOURCE, given=given).model.n_ctx == 4
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
    assert (run.model.act_fn, run.model.d_mlp) == (act_fn, 12)
    assert run.provenance["chosen_by_logits"] == {"act_fn": act_fn}
    torch.testing.assert_close(run.decoder()(sequences()), model(sequences()), rtol=1e-5, atol=1e-5)


def test_a_field_of_hooked_transformer_that_is_given_otherwise_is_refused():
    with pytest.raises(RunFileError, match="n_heads is 2 in its cfg, but 4 was given"):
        Run.from_model(WithLensNames(), source=SOURCE, given={"n_heads": 4})


def test_norms_without_weights_are_told_by_the_logits():
    for kind in (None, "LNPre", "RMSPre"):
        run = Run.from_model(WithLensNames(normalization_type=kind), source=SOURCE)
        assert run.provenance["chosen_by_logits"] == {"act_fn": "gelu_new", "normalization_type": kind}
