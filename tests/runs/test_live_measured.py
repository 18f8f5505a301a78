"""What live models compute is recognised by its values, or by their logits: activations, norms, windows."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers
from public_codes import SOURCE, Block, Config, NanoGPT, NewGELU, by_head, drawn
from torch import nn

from mechmarkov.runs import Run, RunFileError


class Called(nn.Module):
    """An activation or a norm that is a function: no module shows it."""

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
    assert run.config.act_fn == name
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
        (Called(lambda x: 1.0001 * F.gelu(x)), r"from gelu_?n?e?w? by up to 0\.0006"),
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
        q, k, v = by_head(self.attn["c_attn"](self.ln_1(x)), 2)
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
    assert run.config.act_fn == name
    assert run.provenance["chosen_by_logits"] == {"act_fn": name}


def test_an_activation_that_no_logits_tell_is_asked_for_or_refused():
    with pytest.raises(
        RunFileError, match=r"disagree: .*; of act_fn relu, gelu, gelu_new and silu were tried"
    ):
        Run.from_model(functional(torch.tanh, 1.0), source=SOURCE)
    silent = functional(F.gelu, 0.0)
    with pytest.raises(RunFileError, match=r"neither .* tell act_fn: say it, for example given=\{'act_fn': "):
        Run.from_model(silent, source=SOURCE)
    assert Run.from_model(silent, source=SOURCE, given={"act_fn": "silu"}).config.act_fn == "silu"


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


EACH_NORM = [(kind, number) for kind, several in NORMS.items() for number in range(len(several))]


@pytest.mark.parametrize(("kind", "number"), EACH_NORM)
def test_a_norm_is_recognised_by_its_values_and_says_its_eps(kind, number):
    run = Run.from_model(with_norms(NORMS[kind][number]), source=SOURCE)
    assert run.config.normalization_type == kind
    assert run.config.eps == (1e-3 if number == 1 else 1e-5)
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


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x, None),
        (lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-5), "LNPre"),
        (lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5), "RMSPre"),
    ],
)
def test_norms_without_weights_are_told_by_the_logits(function, kind):
    run = Run.from_model(with_norms(lambda: Called(function)), source=SOURCE)
    assert run.config.normalization_type == kind
    assert run.provenance["chosen_by_logits"] == {"normalization_type": kind}
    assert run.provenance["logit_difference"] <= 1e-5


class Windowed(Block):
    """A fork: a query sees itself and the three tokens before it."""

    def forward(self, x):
        n = x.shape[1]
        q, k, v = by_head(self.attn["c_attn"](self.ln_1(x)), 2)
        mask = torch.ones(n, n, dtype=torch.bool).tril().triu(-3)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + self.attn["c_proj"](mixed)
        return x + self.mlp["c_proj"](self.mlp["gelu"](self.mlp["c_fc"](self.ln_2(x))))


def test_a_setting_that_nothing_shows_is_given():
    model = drawn(NanoGPT(Config()))
    for block in model.transformer["h"]:
        block.__class__ = Windowed
    with pytest.raises(RunFileError, match=r"; with given=\{'window': 3\} they agree$"):
        Run.from_model(model, source=SOURCE)
    assert Run.from_model(model, source=SOURCE, given={"window": 3}).config.window == 3
