"""A quantity of one's own: recorded in the same pass as the others, or in one more."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.behaviour import probe as behaviour
from mechmarkov.probes.induction.recorded import INDUCTION
from probing_cases import random_run, subject_of

import mechmarkov as mm
from mechmarkov.models.attention import Attention
from mechmarkov.probing.recording import ATTENTION, SCORES, HookSums, PerLayer, Quantity, Recording
from mechmarkov.probing.recording import record as recording


def largest(pattern, part, sequences):
    """The largest attention of each query, added up."""
    assert len(part.tokens) == sequences.stop - sequences.start
    return pattern.amax(-1).sum((1, 3))


def of_layer(at):
    return HookSums({"largest": (f"{at}.hook_pattern", largest)}, dict)


def start(scope):
    queries = scope.batch.tokens.numel()
    return PerLayer(scope.model, of_layer, lambda largest: largest / queries)


LARGEST = Quantity("largest attention", start, reads_attention=True)


def measure(subject):
    return xr.Dataset({"largest": ((subject.axis, "layer", "head"), subject.recorded(LARGEST))})


@pytest.fixture
def passes(monkeypatch):
    """What each pass records."""
    found, record = [], recording.record

    def counted(stack, batch, n_states, quantities, *how):
        found.append([quantity.name for quantity in quantities])
        return record(stack, batch, n_states, quantities, *how)

    monkeypatch.setattr("mechmarkov.probing.subject.record", counted)
    return found


def expected(subject):
    found = np.zeros((len(subject.decoder), subject.config.n_layers, subject.config.n_heads))
    for member, layer in np.ndindex(found.shape[:2]):
        _, cache = subject.decoder[member].run_with_cache(subject.batch.tokens)
        found[member, layer] = cache[f"blocks.{layer}.attn.hook_pattern"].amax(-1).mean((0, 2)).detach()
    return found


def test_a_probes_own_quantity_is_recorded_in_the_same_pass(passes):
    probe = replace(
        behaviour,
        name="largest",
        measure=measure,
        records=(LARGEST,),
        scores=lambda data, null: {},
        claims=lambda data, scores: [],
        figures=lambda data: [],
    )
    run = random_run(n_steps=2)
    result = mm.probe(run, ["behaviour", probe, "attention"], steps="all", sequences=6)
    assert result.failed == {}
    standard = [quantity.name for quantity in recording.STANDARD]
    assert passes == [[*standard, LARGEST.name]] * 2  # of the run and of its null
    np.testing.assert_allclose(
        result["largest"].data["largest"], expected(subject_of(run, sequences=6)), rtol=1e-5
    )


def test_a_quantity_that_is_asked_for_later_takes_one_more_pass(passes):
    subject = subject_of(random_run(n_steps=2), sequences=6, chunk_elements=500)
    subject.recorded(SCORES)
    for _ in range(2):
        np.testing.assert_allclose(subject.recorded(LARGEST), expected(subject), rtol=1e-5)
    assert passes[1:] == [[LARGEST.name]]


def test_a_layer_without_attention_weights_is_nan_and_none_at_all_is_an_error(monkeypatch):
    subject = subject_of(random_run(n_steps=2), sequences=6)
    subject.decoder.blocks[1].attn.has_attention_weights = False
    sums = PerLayer(subject.decoder, of_layer, dict)
    with torch.no_grad():
        hooks = sums.hooks(subject.batch, slice(0, 6))
        subject.decoder.run_with_hooks(subject.batch.tokens, fwd_hooks=hooks)
    assert [name for name, _ in hooks] == ["blocks.0.attn.hook_pattern"]
    found = sums.compute()["largest"]
    assert found.shape == (2, 2, 2)
    assert np.isfinite(found[:, 0]).all()
    assert np.isnan(found[:, 1]).all()

    monkeypatch.setattr(Attention, "has_attention_weights", False)
    without = subject_of(random_run(), sequences=6)
    assert without.recorded(SCORES).shape[1] == 6
    with pytest.raises(ValueError, match="no layer has attention weights, expected some for 'attention'"):
        without.recorded(ATTENTION)


def alive() -> int:
    """Tensors made since `gc.freeze`: a whole suite's objects take a second to go through."""
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


class Alive(Recording):
    """How many tensors are alive after each chunk."""

    def __init__(self, scope) -> None:
        self.counts = []

    def update(self, part, scores, /):
        self.counts.append(alive())

    def compute(self):
        return np.array(self.counts)


def test_nothing_small_is_kept_between_chunks():
    """1000 checkpoints took 14 GB when each chunk kept a few small tensors: they fragment the heap."""
    subject = subject_of(random_run(n_steps=1), sequences=12)
    counting = Quantity("alive", Alive)
    gc.freeze()
    try:
        found = recording.record(
            subject.decoder,
            subject.batch,
            subject.source.n_states,
            (*recording.STANDARD, INDUCTION, counting),
            elements=1,
        )
    finally:
        gc.unfreeze()
    later = found[counting][1:].tolist()
    assert len(later) == 11
    assert set(later) == {later[0]}
