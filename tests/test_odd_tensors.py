"""Tensors and arrays that are no plain numbers, given for every kind of argument: one line that names it."""

import re

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.certify import certify
from mechmarkov.claims.claim import Claims
from mechmarkov.runs.given import checked_step

RUN = mm.example("walk")
MODEL, SOURCE = RUN.model(), RUN.source
TOKENS = torch.zeros(2, 5, dtype=torch.long)
ODD = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(2, 3, device="meta"),
    "empty": lambda: torch.zeros(0, 3, dtype=torch.long),
    "NaN": lambda: torch.full((2, 3), torch.nan),
    "complex": lambda: torch.zeros(2, 3, dtype=torch.complex64),
    "objects": lambda: np.array([[None, "a"], [1, 2]], object),
    "records": lambda: np.zeros(2, [("a", int)]),
    "masked": lambda: np.ma.masked_array([1, 2], [False, True]),
    "a model": lambda: MODEL,
    "a range without end": lambda: range(10**18),
}


def generator():
    return torch.Generator().manual_seed(0)


CALLS = {
    "step": lambda x: RUN.model(x),
    "step/of a recording": checked_step,
    "steps": lambda x: mm.probe(RUN, ["attention"], steps=x),
    "probes": lambda x: mm.probe(RUN, x),
    "seed": lambda x: mm.Subject.of(RUN, [50], seed=x),
    "sequences": lambda x: mm.Subject.of(RUN, [50], sequences=x),
    "device": lambda x: mm.probe(RUN, ["attention"], device=x),
    "jobs": lambda x: mm.probe(RUN, ["attention"], jobs=x),
    "component": lambda x: mm.ablate(MODEL, x).__enter__(),
    "kind": lambda x: mm.ablate(MODEL, "L0H0", kind=x).__enter__(),
    "sender": lambda x: mm.ablate_path(MODEL, x, "logits").__enter__(),
    "heads": lambda x: mm.override_attention(MODEL, x, to="uniform").__enter__(),
    "to": lambda x: mm.override_attention(MODEL, "L0H0", to=x).__enter__(),
    "back": lambda x: mm.limit_window(MODEL, x).__enter__(),
    "which": lambda x: mm.shuffle_context(TOKENS, x),
    "of": lambda x: mm.attribution_patching(MODEL, TOKENS, TOKENS, torch.sum, of=x),
    "metric": lambda x: mm.attribution_patching(MODEL, TOKENS, TOKENS, None),
    "clean": lambda x: mm.attribution_patching(MODEL, "0 1", TOKENS, torch.sum),
    "batch": lambda x: SOURCE.sample(x, 5, generator=generator()),
    "length": lambda x: SOURCE.sample(2, x, generator=generator()),
    "generator": lambda x: SOURCE.sample(2, 5, generator=x),
    "Chain: P": lambda x: mm.Chain(P=x),
    "DecoderConfig: n_heads": lambda x: mm.DecoderConfig(
        n_layers=1, d_model=8, n_ctx=6, d_head=4, n_heads=x, d_vocab=3
    ),
    "relation": lambda x: Claims(()).where(x),
    "status": lambda x: mm.Claim(("L0H0",), "is_needed", status=x),
    "at": lambda x: mm.Recorder("run.pt", source=SOURCE, at=x),
    "objective": lambda x: mm.Recorder("run.pt", source=SOURCE, objective=x),
    "resume": lambda x: mm.Recorder("run.pt", source=SOURCE, resume=x),
    "methods": lambda x: mm.bench.run(x, ["direct"]),
    "cases": lambda x: mm.bench.run(["eap"], x),
    "program": lambda x: certify(RUN, x),
    "seconds": lambda x: certify(RUN, "parent", seconds=x),
    "run": lambda x: certify(x),
    "source": lambda x: mm.Run.from_model(MODEL, source=x),
    "given": lambda x: mm.import_run([], source=SOURCE, given=x),
    "config": lambda x: mm.HookedDecoder(x),
    "n_models": lambda x: mm.HookedDecoder(MODEL.config, n_models=x),
    "seed/of a shuffle": lambda x: mm.shuffle_context(TOKENS, "all", seed=x),
    "at/of a swap": lambda x: mm.swap_parent(TOKENS, x),
    "alphabet": lambda x: mm.Observed([0, 1] * 100, alphabet=x),
    "held_out": lambda x: mm.Observed([0, 1] * 100, held_out=x),
    "pairs": lambda x: mm.bench.run(["eap"], ["direct"], pairs=x),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_plain_number_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argument = name.partition("/")[0].rpartition(" ")[2]
    for kind, made in ODD.items():
        if kind == "empty" and argument in ("component", "heads", "methods", "cases"):
            continue  # an empty list of them
        with pytest.raises((TypeError, ValueError)) as caught:
            CALLS[name](made())
        message = str(caught.value)
        assert len(message.splitlines()) == 1, (kind, message)
        assert "expected" in message or "there are" in message, (kind, message)
        assert re.search(rf"\b{argument}|no case is named", message), (kind, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.complex64, torch.float32])
def test_tokens_of_another_type_are_named(dtype):
    with pytest.raises(ValueError, match=f"tokens are {dtype}, expected integers"):
        MODEL(torch.zeros(2, 5, dtype=dtype))


def test_a_token_that_is_not_there_is_named():
    with pytest.raises(IndexError, match="tokens go from 0 to 1000000000000, expected 0 to 6"):
        MODEL(TOKENS + torch.tensor([0, 0, 0, 0, 10**12]))


@pytest.mark.parametrize(
    "value", [None, "0 1", [[0, 1]], torch.eye(3).to_sparse(), torch.empty(2, 3, device="meta")]
)
def test_a_history_that_is_no_tensor_is_named(value):
    for call in (lambda: mm.shuffle_context(value, "all"), lambda: mm.swap_parent(value)):
        with pytest.raises(TypeError, match=r"^history is .*, expected a tensor of integers"):
            call()


@pytest.mark.parametrize("value", [None, 3, lambda: 1, (), [["attention"]]])
def test_probes_of_a_recorder_are_a_list(value):
    with pytest.raises((TypeError, ValueError), match=r"^(probes|log) "):
        mm.Recorder("run.pt", source=SOURCE, probes=value, log=print)


@pytest.mark.parametrize("name", ["value", "null", "interval"])
def test_a_number_of_a_claim_is_one(name):
    endless = iter(int, 1)
    for value in ("x", object(), torch.eye(3).to_sparse(), endless, (endless,)):
        given = (value, value) if name == "interval" else value
        with pytest.raises(TypeError, match=f"^{name} is .*, expected a number or None$"):
            mm.Claim(("L0H0",), "is_needed", **{name: given})
    with pytest.raises(TypeError, match=r"^interval is 3, expected a tuple of numbers$"):
        mm.Claim(("L0H0",), "is_needed", interval=3)
    assert mm.Claim(("L0H0",), "is_needed", value=10**400).value is None


def test_a_float32_null_gives_no_warning():
    score = mm.Score(1.0, "nats", null=np.float32(0.5), interval=(np.float32(0), np.float32(1)))
    assert (score.null, score.interval) == (0.5, (0.0, 1.0))


def test_positions_without_end_are_named():
    for value, words in [(range(10**15), "positions"), ([1j], "positions is"), ([10**40], "positions is")]:
        with pytest.raises((TypeError, ValueError), match=words), mm.ablate(MODEL, "L0H0", positions=value):
            MODEL(torch.zeros(1, 97, dtype=torch.long))
