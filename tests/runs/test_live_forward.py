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


FORWARDS = {
    "bare": lambda self, tokens: self.logits(tokens),
    "dict": lambda self, tokens, targets=None: {"loss": None, "logits": self.logits(tokens)},
    "transformers": lambda self, input_ids, labels=None: CausalLMOutput(logits=self.logits(input_ids)),
    "dataclass": lambda self, tokens: Prediction(torch.zeros(*tokens.shape, K), self.logits(tokens)),
    "fields": lambda self, tokens: SimpleNamespace(loss=torch.tensor(1.0), logits=self.logits(tokens)),
    "loss first": lambda self, tokens, targets: (self.loss(tokens, targets), self.logits(tokens)),
    "named": lambda self, tokens, labels: Output(self.loss(tokens, labels), self.logits(tokens)),
    "nested": lambda self, tokens: {"loss": torch.ones(()), "output": (self.logits(tokens), torch.zeros(3))},
    # Logits where there are targets, else the last position: nanoGPT's way, in a dict.
    "needs targets": lambda self, tokens, targets=None: {
        "logits": self.logits(tokens)[:, [-1] if targets is None else slice(None)]
    },
    # None in place of the logits, unless they are asked for.
    "switch": lambda self, tokens, targets=None, get_logits=False: {
        "logits": self.logits(tokens)[:, [-1] if targets is None else slice(None)] if get_logits else None,
        "loss": None,
    },
    "second positional": lambda self, tokens, next_: (self.logits(tokens), self.loss(tokens, next_)),
    "anything": lambda self, *args, **options: (self.logits(args[0]), None),
    "by name": lambda self, *, input_ids, labels=None: self.logits(input_ids),
    # Padding that must be said, and is left out of what attention sees.
    "needs a mask": lambda self, tokens, attention_mask, labels=None: {
        "logits": self.logits(tokens) * attention_mask.expand(tokens.shape).unsqueeze(-1)
    },
    # As `F.cross_entropy` has them.
    "classes second": lambda self, tokens: self.logits(tokens).transpose(1, 2),
    "position first": lambda self, tokens: self.logits(tokens).transpose(0, 1),
    "flattened": lambda self, tokens, targets: (self.logits(tokens).view(-1, K), self.loss(tokens, targets)),
}


@pytest.mark.parametrize("kind", FORWARDS)
def test_logits_are_found_in_what_a_forward_pass_returns(kind):
    model = drawn(type("Own", (GPT,), {"forward": FORWARDS[kind]})(Config()))
    run = Run.from_model(model, source=SOURCE)
    assert run.provenance["logit_difference"] <= 1e-5
    assert "compared_at" not in run.provenance
    expected = model.eval().logits(sequences())
    torch.testing.assert_close(run.model()(sequences()), expected, rtol=1e-5, atol=1e-5)


# Where nothing, a loss or other positions could be taken for the logits.
@pytest.mark.parametrize("kind", ["loss first", "nested", "switch", "classes second", "flattened"])
def test_other_logits_in_the_same_place_are_refused(kind):
    class Louder(GPT):
        forward = FORWARDS[kind]

        def logits(self, tokens):
            return 1.01 * super().logits(tokens)

    with pytest.raises(ValueError, match="Louder and its conversion disagree: logits differ by up to"):
        Run.from_model(drawn(Louder(Config())), source=SOURCE)


def test_as_many_positions_as_classes_are_told_apart():
    model = drawn(type("Own", (GPT,), {"forward": FORWARDS["classes second"]})(Config(block_size=K)))
    assert Run.from_model(model, source=SOURCE).provenance["logit_difference"] <= 1e-5


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


class Loss(GPT):
    def forward(self, tokens):
        return self.loss(tokens, tokens)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Hidden, rf"Hidden returns dict\(hidden \[2, {LENGTH}, 8\], loss None\): expected logits \[2, "),
        (Broken, "Broken fails: KeyError: 'batch': expected logits"),
        (Batch, "Batch fails: .*: expected logits"),
        (Loss, r"Loss returns one number: expected logits .*; where another call gives them, pass a module"),
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
