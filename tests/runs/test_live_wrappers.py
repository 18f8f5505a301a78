"""What stands around a model: parallel wrappers, torch.compile, a LightningModule, an average of weights."""

import re

import pytest
import torch
from public_codes import SOURCE, Config, K, NanoGPT, drawn, names_of_gpt2
from public_codes import tokens as sequences
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

import mechmarkov as mm
from mechmarkov.runs import Run

# torch.compile's own imports
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.fixture
def one_process(tmp_path):
    """A distributed training of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Lit(nn.Module):
    """A LightningModule's surface: the model in an attribute, a step that computes the loss."""

    def __init__(self, model=None):
        super().__init__()
        self.model = drawn(NanoGPT(Config())) if model is None else model

    def training_step(self, batch, index):
        return self.model(*batch)[1]


class Forwards(Lit):
    def forward(self, tokens, targets=None):
        return self.model(tokens, targets)


class TakesBatches(Lit):
    def forward(self, batch):
        return self.model(batch["tokens"], batch["targets"])[1]


def gpt() -> NanoGPT:
    return drawn(NanoGPT(Config()))


def compiled_in_place() -> nn.Module:
    model = gpt()
    model.compile()
    return model


def compiled_layers() -> nn.Module:
    model = gpt()
    model.transformer["h"] = nn.ModuleList(torch.compile(block) for block in model.transformer["h"])
    return model


WRAPPED = {
    "torch.compile": (lambda: torch.compile(gpt()), None),
    "model.compile()": (compiled_in_place, None),
    "each layer compiled": (compiled_layers, None),
    "DataParallel": (lambda: nn.DataParallel(gpt()), None),
    "a module without a forward pass": (Lit, "model"),
    "a module with one": (Forwards, "model"),
    "a module that takes batches": (TakesBatches, "model"),
    "a compiled model in a module": (lambda: Forwards(torch.compile(gpt())), "model"),
    "a module in a module": (lambda: Lit(Forwards()), "model.model"),
    "a compiled module": (lambda: torch.compile(Forwards()), "model"),
    "an average of weights": (lambda: AveragedModel(gpt()), "module"),
    "a sequence of one": (lambda: nn.Sequential(gpt()), "0"),
}


def assert_is_the_gpt(run: Run, attribute: str | None) -> None:
    logits = gpt().eval()(sequences(), sequences())[0]
    torch.testing.assert_close(run.model()(sequences()), logits, rtol=1e-5, atol=1e-5)
    assert run.provenance["logit_difference"] <= 1e-5
    assert run.provenance.get("attribute") == attribute
    assert run.provenance["imported_from"] == "public_codes.NanoGPT"


@pytest.mark.parametrize("kind", WRAPPED)
def test_the_model_inside_is_taken(kind):
    make, attribute = WRAPPED[kind]
    assert_is_the_gpt(Run.from_model(make(), source=SOURCE), attribute)


@pytest.mark.parametrize(
    "around", [lambda x: x, torch.compile, lambda x: Forwards(x)], ids=["bare", "compiled", "Lit"]
)
def test_the_model_inside_ddp_is_taken(one_process, around):
    wrapped = around(nn.parallel.DistributedDataParallel(gpt()))
    is_lit = isinstance(wrapped, Lit)
    assert_is_the_gpt(Run.from_model(wrapped, source=SOURCE), "model.module" if is_lit else None)


def test_sharded_weights_are_refused_with_what_to_do(one_process):
    model = gpt()
    for block in model.transformer["h"]:
        fully_shard(block, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    with pytest.raises(
        ValueError, match=r"weights of NanoGPT are sharded \(FSDP\).*get_model_state_dict\(model"
    ):
        Run.from_model(model, source=SOURCE)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_model_is_refused_with_what_to_pass():
    class Plain(NanoGPT):
        def forward(self, tokens):
            return super().forward(tokens, tokens)[0]

    traced = torch.jit.trace(drawn(Plain(Config())).eval(), sequences())
    with pytest.raises(ValueError, match=r"compiled by torch\.jit: pass the module that it was made of$"):
        Run.from_model(traced, source=SOURCE)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.parts = gpt(), nn.ModuleDict({"teachers": nn.ModuleList([gpt()])})


class WithHead(Forwards):
    def __init__(self):
        super().__init__()
        self.value_head = nn.Linear(8, 1)


class Warm(Forwards):
    def forward(self, tokens, targets=None):
        logits, loss = super().forward(tokens, targets)
        return logits / 2, loss


class Body(nn.Module):
    """Attributes with other names: no model that computes logits is inside."""

    def __init__(self):
        super().__init__()
        self.body, self.head = gpt().transformer, nn.Linear(8, K, bias=False)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Two, r"^Two holds 2 models: pass one, model\.student or model\.parts\.teachers\[0\]$"),
        (WithHead, r"weights of its own, value_head\.weight and value_head\.bias: pass model\.model$"),
        (Warm, r"^Warm and the conversion of the NanoGPT that it holds disagree: .* pass model\.model; w"),
        (Body, r"^the weights of Body are called body\.wte\.weight, body\.wpe\.weight"),
    ],
)
def test_a_module_that_is_more_than_its_model_names_what_to_pass(kind, words):
    with pytest.raises(ValueError, match=words) as caught:
        Run.from_model(kind(), source=SOURCE)
    assert "\n" not in str(caught.value)


LEFT_OUT = names_of_gpt2("transformer") | {
    "lm_head.weight": ["embed.W_E", "unembed.W_U"],
    "transformer.wte.weight": "",
    "transformer.h.0.attn.unused": "",
    "missing": "zeros",
}


def test_a_weight_that_is_not_used_is_left_out_by_names():
    model = gpt()
    model.transformer["h"][0].attn.register_parameter("unused", nn.Parameter(torch.ones(3)))
    lacks = '"transformer.h.0.attn.unused" that a HookedDecoder lacks: if the model does not use it, '
    mend = 'a table of names with names={…, "transformer.h.0.attn.unused": ""} leaves it out'
    with pytest.raises(ValueError, match=re.escape(lacks + mend)):
        Run.from_model(model, source=SOURCE)
    run = Run.from_model(model, source=SOURCE, names=LEFT_OUT, given={"n_heads": 2, "act_fn": "gelu"})
    assert run.provenance["logit_difference"] < 1e-5


def test_in_a_distributed_training_the_first_process_alone_records(tmp_path, monkeypatch, one_process):
    path = tmp_path / "run.pt"
    recorder = mm.Recorder(path, source=SOURCE)
    recorder(0, gpt())
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    other = mm.Recorder(path, source=SOURCE)  # which does not mind that the file is there
    before = path.read_bytes()
    other(0, gpt())
    assert path.read_bytes() == before
    assert other.finish(1, gpt()) is None
    monkeypatch.undo()
    assert recorder.finish(1, gpt()).steps.tolist() == [0, 1]
