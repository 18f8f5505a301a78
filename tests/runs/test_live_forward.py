"""What a model's forward pass returns and asks for: logits are found wherever they are."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from public_codes import LENGTH, SOURCE, Config, K, NanoGPT, drawn
from public_codes import tokens as sequences
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from mechmarkov.runs import Run

Output = namedtuple("Output", ["loss", "logits"])


@dataclass
class Prediction:
    hidden: torch.Tensor
    logits: torch.Tensor | None


class GPT(NanoGPT):
    """nanoGPT with logits at every position, whose forward pass a test replaces."""

    def logits(self, tokens):
        return NanoGPT.forward(self, tokens, tokens)[0]

    def loss(self, tokens, targets):
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


class Bare(GPT):
    def forward(self, tokens):
        return self.logits(tokens)


class Dict(GPT):
    def forward(self, tokens, targets=None):
        return {"loss": None, "logits": self.logits(tokens)}


class HuggingFace(GPT):
    def forward(self, input_ids, labels=None):
        return CausalLMOutput(loss=None, logits=self.logits(input_ids))


class Dataclass(GPT):
    def forward(self, tokens):
        return Prediction(torch.zeros(*tokens.shape, K), self.logits(tokens))


class Fields(GPT):
    def forward(self, tokens):
        return SimpleNamespace(loss=torch.tensor(1.0), logits=self.logits(tokens))


class LossFirst(GPT):
    def forward(self, tokens, targets):
        return self.loss(tokens, targets), self.logits(tokens)


class Named(GPT):
    def forward(self, tokens, labels):
        return Output(self.loss(tokens, labels), self.logits(tokens))


class Nested(GPT):
    def forward(self, tokens):
        return {"loss": torch.tensor(1.0), "output": (self.logits(tokens), torch.zeros(3))}


class NeedsTargets(GPT):
    """Logits where there are targets, else the last position: nanoGPT's way, in a dict."""

    def forward(self, tokens, targets=None):
        logits = self.logits(tokens)
        return {"logits": logits[:, [-1]]} if targets is None else {"logits": logits}


class Switch(GPT):
    """None in place of the logits, unless they are asked for."""

    def forward(self, tokens, targets=None, get_logits=False):
        logits = self.logits(tokens) if targets is not None else self.logits(tokens)[:, [-1]]
        return {"logits": logits if get_logits else None, "loss": None}


class SecondPositional(GPT):
    def forward(self, tokens, what_follows):
        return self.logits(tokens), self.loss(tokens, what_follows)


class Anything(GPT):
    def forward(self, *args, **options):
        return self.logits(args[0]), None


class ByName(GPT):
    def forward(self, *, input_ids, labels=None):
        return self.logits(input_ids)


class NeedsMask(GPT):
    """Padding that must be said, and is left out of what attention sees."""

    def forward(self, tokens, attention_mask, labels=None):
        assert attention_mask.shape == tokens.shape
        return {"logits": self.logits(tokens) * attention_mask.unsqueeze(-1)}


class Flattened(GPT):
    def forward(self, tokens, targets):
        return self.logits(tokens).view(-1, K), self.loss(tokens, targets)


FORWARDS = [
    Bare, Dict, HuggingFace, Dataclass, Fields, LossFirst, Named, Nested, NeedsTargets, Switch,
    SecondPositional, Anything, ByName, NeedsMask, Flattened,
]  # fmt: skip


@pytest.mark.parametrize("kind", FORWARDS)
def test_logits_are_found_in_what_a_forward_pass_returns(kind):
    model = drawn(kind(Config()))
    run = Run.from_model(model, source=SOURCE)
    assert run.provenance["logit_difference"] <= 1e-5
    assert "compared_at" not in run.provenance
    expected = model.eval().logits(sequences())
    torch.testing.assert_close(run.decoder()(sequences()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", FORWARDS)
def test_other_logits_in_the_same_place_are_refused(kind):
    class Louder(kind):
        def logits(self, tokens):
            return 1.01 * super().logits(tokens)

    with pytest.raises(ValueError, match="Louder and its conversion disagree: logits differ by up to"):
        Run.from_model(drawn(Louder(Config())), source=SOURCE)


def test_a_model_that_gives_the_last_position_only_is_compared_there():
    class Last(GPT):
        def forward(self, tokens):
            return self.logits(tokens)[:, -1]

    run = Run.from_model(drawn(Last(Config())), source=SOURCE)
    assert run.provenance["compared_at"] == "the last position"

    class Other(Last):
        def forward(self, tokens):
            return super().forward(tokens.flip(0))

    with pytest.raises(ValueError, match="Other and its conversion disagree"):
        Run.from_model(drawn(Other(Config())), source=SOURCE)


class Hidden(GPT):
    def forward(self, tokens):
        return {"hidden": torch.zeros(*tokens.shape, 8), "loss": None}


class Broken(GPT):
    def forward(self, tokens):
        raise KeyError("batch")


class Batch(GPT):
    def forward(self, batch):
        return self.logits(batch["tokens"])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Hidden, rf"Hidden returns dict\(hidden \[2, {LENGTH}, 8\], loss None\): expected logits \[2, "),
        (Broken, "Broken fails: KeyError: 'batch': expected logits"),
        (Batch, "Batch fails: .*: expected logits"),
    ],
)
def test_a_model_without_logits_says_what_it_returned(kind, words):
    with pytest.raises(ValueError, match=words) as caught:
        Run.from_model(drawn(kind(Config())), source=SOURCE)
    assert "\n" not in str(caught.value)


def test_a_model_is_left_as_it_was_whatever_its_forward_pass_changes():
    class Counting(GPT):
        """Counts its calls in an attribute, a buffer, a list and a dict, and caches a mask."""

        def __init__(self, config):
            super().__init__(config)
            self.calls, self.seen, self.cache = 0, [], {}
            self.register_buffer("count", torch.zeros(()))

        def forward(self, tokens, targets=None):
            self.calls += 1
            self.count += 1
            self.seen.append(tokens)
            self.cache[tokens.shape] = self.mask = torch.ones(len(tokens))
            self.transformer["wte"].weight.data.mul_(1)
            if not hasattr(self, "late"):
                self.register_buffer("late", torch.ones(2, dtype=torch.get_default_dtype()))
            return self.logits(tokens), None

    model = drawn(Counting(Config())).bfloat16()
    model.transformer["h"][0].eval()
    modes = [part.training for part in model.modules()]
    weights, versions = model.state_dict(), [value._version for value in model.parameters()]
    pointers = [value.data_ptr() for value in model.parameters()]
    Run.from_model(model, source=SOURCE)
    assert (model.calls, model.seen, model.cache, float(model.count)) == (0, [], {}, 0.0)
    assert not hasattr(model, "mask")
    assert not hasattr(model, "late")
    assert [part.training for part in model.modules()] == modes
    assert [value.data_ptr() for value in model.parameters()] == pointers
    assert [value._version for value in model.parameters()] == versions
    assert all(isinstance(value, nn.Parameter) and value.requires_grad for value in model.parameters())
    assert list(model.state_dict()) == list(weights)


def test_an_embedding_that_is_renormalised_where_it_is_read_keeps_its_rows():
    class Bounded(GPT):
        def __init__(self, config):
            super().__init__(config)
            self.transformer["wte"].max_norm = 0.1

    model = drawn(Bounded(Config()))
    before = model.transformer["wte"].weight.clone()
    with pytest.raises(ValueError, match="Bounded and its conversion disagree"):
        Run.from_model(model, source=SOURCE)
    assert torch.equal(model.transformer["wte"].weight, before)
