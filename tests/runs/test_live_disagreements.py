"""Computations of a live model that no weight shows: noticed at any size of its logits, and named."""

import pytest
import torch
import torch.nn.functional as F
from own_names import Own, Shape, given_of, names_of
from public_codes import LENGTH, SOURCE, Config, MarkovGPT, NanoGPT, drawn, markov_args
from torch import nn

import mechmarkov as mm
from mechmarkov.importing.live.logits import ask
from mechmarkov.models import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.runs import Run, RunFileError

BINARY = mm.Binary(p=0.2, q=0.3)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_a_window_is_noticed_before_training_too(size):
    """Logits of an untrained model are small: all of them lie within 1e-4 of each other's."""
    model = drawn(MarkovGPT(markov_args(memory=2, no_tying=True)))
    with torch.no_grad():
        model.lm_head.weight *= size
        model.lm_head.bias *= size
    with pytest.raises(RunFileError, match=r"with given=\{'window': 2\} they agree$"):
        Run.from_model(model, source=BINARY)
    run = Run.from_model(model, source=BINARY, given={"window": 2})
    assert run.provenance["logit_difference"] <= 1e-5 * size


def test_a_dropout_that_stays_on_is_said():
    model = drawn(MarkovGPT(markov_args(dropout=0.2)))
    words = r"it gives other logits each time, in evaluation mode too: .* if self\.training else 0\.0`\?$"
    with pytest.raises(RunFileError, match=words):
        Run.from_model(model, source=BINARY)


class Parallel(nn.Module):
    """A block in which attention and MLP read the same; written around one that is not."""

    def __init__(self, block):
        super().__init__()
        self.attention, self.before, self.between = block.attention, block.before, block.between
        self.up, self.down = block.up, block.down

    def forward(self, x):
        return x + self.attention(self.before(x)) + self.down(self.activation(self.up(self.between(x))))

    def activation(self, x):
        return F.relu(x)


class Tanh(Parallel):
    """The usual order, with the tanh form of gelu."""

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


@pytest.mark.parametrize(
    ("kind", "given", "agreeing"),
    [
        (Parallel, {}, r"\{'parallel_attn_mlp': True\}"),
        (Tanh, {"act_fn": "gelu"}, r"\{'act_fn': 'gelu_new'\}"),  # 1e-4 of the logits
        (None, {"use_attn_scale": False}, r"\{'use_attn_scale': True\}"),
        (None, {"eps": 1e-4}, r"\{'eps': 1e-05\}"),
    ],
)
def test_a_setting_that_explains_all_is_named(kind, given, agreeing):
    shape = Shape(norm=True, hidden=16)
    model = Own(shape)
    for number, block in enumerate(model.stack):
        if kind is Tanh:
            nn.init.constant_(block.up.bias, 0.0)
            block.up.weight.data *= 0.2
        model.stack[number] = kind(block) if kind else block
    options = {"names": names_of(shape), "given": given_of(shape) | given}
    with pytest.raises(RunFileError, match=rf"; with given={agreeing} they agree$"):
        Run.from_model(model, source=SOURCE, **options)


def test_a_difference_that_no_setting_explains_keeps_its_advice():
    shape = Shape(norm=True, hidden=16)
    model = Own(shape)
    model.readout.register_forward_hook(lambda _, __, logits: 15 * torch.tanh(logits / 15))
    with pytest.raises(RunFileError, match=r"at fields of given that have a default \(http"):
        Run.from_model(model, source=SOURCE, names=names_of(shape), given=given_of(shape))


@pytest.mark.parametrize("end", [torch.log_softmax, torch.softmax])
def test_a_forward_pass_that_ends_in_a_softmax(end):
    shape = Shape()
    model = Own(shape)
    model.readout.register_forward_hook(lambda _, __, logits: end(logits, -1))
    run = Run.from_model(model, source=SOURCE, names=names_of(shape), given=given_of(shape))
    assert run.provenance["compared_as"] == "log probabilities"
    tokens = SOURCE.sample(4, 7, generator=torch.Generator().manual_seed(1))
    laws = end(run.model()(tokens), -1)
    torch.testing.assert_close(laws, model(tokens), rtol=1e-5, atol=1e-5)


def test_probabilities_are_not_scores_of_another_objective():
    """Its scores are read as they are: those of the conversion are not the model's."""
    shape = Shape()
    model = Own(shape)
    model.readout.register_forward_hook(lambda _, __, logits: logits.softmax(-1))
    named = {"names": names_of(shape), "given": given_of(shape)}
    with pytest.raises(RunFileError, match=r"^Own and its conversion disagree"):
        Run.from_model(model, source=SOURCE, objective=Objective(kind="raw_log"), **named)


def test_probabilities_of_another_law_are_refused():
    shape = Shape()
    model = Own(shape)
    model.readout.register_forward_hook(lambda _, __, logits: (1.01 * logits).softmax(-1))
    with pytest.raises(RunFileError, match=r"^Own and its conversion disagree: logits differ by up to"):
        Run.from_model(model, source=SOURCE, names=names_of(shape), given=given_of(shape))


class Rotated(NanoGPT):
    """nanoGPT's names without a table of positions: queries and keys are rotated, halves or neighbours."""

    adjacent = False

    def __init__(self, config):
        super().__init__(config)
        del self.transformer["wpe"]

    def turned(self, x):
        """`x` of axes [batch, head, position, d_head], rotated."""
        d = x.shape[-1]
        angles = torch.arange(x.shape[-2])[:, None] / 10_000 ** (torch.arange(0, d, 2) / d)
        cos, sin = angles.to(x).cos(), angles.to(x).sin()
        one, two = (x[..., ::2], x[..., 1::2]) if self.adjacent else x.chunk(2, -1)
        parts = one * cos - two * sin, two * cos + one * sin
        return torch.stack(parts, -1).flatten(-2) if self.adjacent else torch.cat(parts, -1)

    def forward(self, tokens, targets=None):
        x = self.transformer["wte"](tokens)
        for block in self.transformer["h"]:
            parts = block.attn["c_attn"](block.ln_1(x)).chunk(3, -1)
            q, k, v = (y.unflatten(-1, (block.heads, -1)).transpose(1, 2) for y in parts)
            y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
            x = x + block.attn["c_proj"](y.transpose(1, 2).flatten(2))
            x = x + block.mlp["c_proj"](block.mlp["gelu"](block.mlp["c_fc"](block.ln_2(x))))
        return self.lm_head(self.transformer["ln_f"](x)), None


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("by", ["given", "n_ctx"])
def test_rotary_positions_with_gpt2s_names(adjacent, by):
    model = drawn(Rotated(Config(n_embd=16)))
    model.adjacent = adjacent
    given = {"positional_embedding_type": "rotary", **({"n_ctx": LENGTH} if by == "given" else {})}
    run = Run.from_model(model, source=SOURCE, given=given, **({"n_ctx": LENGTH} if by == "n_ctx" else {}))
    assert run.config.n_ctx == LENGTH
    assert run.provenance["chosen_by_logits"] == {"rotary_adjacent_pairs": adjacent}
    assert run.provenance["logit_difference"] <= 1e-5


class MaskFirst(nn.Embedding):
    """gpt-fast's order of arguments."""

    def forward(self, mask, idx, input_pos=None):
        assert bool(mask.all())
        return super().forward(idx)


def test_tokens_go_where_the_mask_does_not():
    answer = ask(MaskFirst(3, 3), torch.tensor([[0, 2]]), 3, torch.float32)
    assert answer.candidates[0].shape == (1, 2, 3)


def test_logits_that_nearly_add_up_to_one_are_logits():
    """A table of log P is off by rounding from log probabilities: it is compared as it is."""
    config = mm.DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
    model = HookedDecoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.unembed.b_U.copy_(torch.tensor([0.3, 0.7]).log() + 2e-5)
    provenance = mm.Run.from_model(model, source=mm.Binary(p=0.2, q=0.3)).provenance
    assert provenance["logit_difference"] == 0
    assert "compared_as" not in provenance
