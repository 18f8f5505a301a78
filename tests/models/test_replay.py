"""Passes that reuse what an intervention does not reach are plain passes, to the last bit."""

from contextlib import nullcontext

import pytest
import torch
from decoder_cases import config_of, decoder_of, tokens_of

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.attention import limit_window, override_attention
from mechmarkov.interventions.paths import paths
from mechmarkov.models.attention import Attention
from mechmarkov.models.layers import MLP
from mechmarkov.models.replay import replayed

SOME = ("plain", "gelu and LN", "shortformer", "Qwen3", "GPT-NeoX", "relative, window, MLP, LN")


def interventions(model):
    """Of every kind: on outputs, on paths, on attention."""
    yield nullcontext()
    for name in ("embed", "L0H0", "L1H1", "direct"):
        for kind in ("zero", "mean", "resample"):
            yield ablate(model, name, kind=kind)
    for sender, receiver in paths(model):
        yield ablate_path(model, sender, receiver, kind="zero")
    yield override_attention(model, "L1H0", to="uniform")
    yield model.hooks([("blocks.0.attn.hook_z", lambda z, hook: z.mul_(2))])  # in place
    for name in ("blocks.1.hook_resid_pre", "blocks.1.hook_resid_post", "blocks.0.hook_resid_post"):
        yield model.hooks([(name, lambda x, hook: x.mul_(2))])
    yield limit_window(model, 1)
    yield nullcontext()


@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize("n_models", [None, 2])
@torch.no_grad()
def test_passes_are_those_without_it(case, n_models):
    config = config_of(case)
    model = decoder_of(config, n_models=n_models)
    tokens = tokens_of(config)
    plain, reused = [], []
    for intervention in interventions(model):
        with intervention:
            plain.append(model(tokens))
    with replayed(model):
        for intervention in interventions(model):
            with intervention:
                reused.append(model(tokens))
    assert all(torch.equal(x, y) for x, y in zip(plain, reused, strict=True))
    assert not torch.equal(plain[0], plain[1])


def watching(monkeypatch, part, name, place):
    """Returns the model, and a function of an intervention: the layers in which a method of a part ran."""
    config = config_of("gelu and LN")
    model, tokens, ran = decoder_of(config), tokens_of(config), []
    plain = getattr(part, name)

    def noted(self, *inputs):
        ran.append([getattr(block, place) for block in model.blocks].index(self))
        return plain(self, *inputs)

    monkeypatch.setattr(part, name, noted)

    def layers_of(intervention):
        ran.clear()
        with intervention:
            model(tokens)
        return list(ran)

    return model, layers_of


@torch.no_grad()
def test_attention_is_computed_where_an_intervention_reaches_it(monkeypatch):
    model, layers_of = watching(monkeypatch, Attention, "_explicit", "attn")
    with replayed(model):
        assert layers_of(nullcontext()) == [0, 1]
        assert layers_of(nullcontext()) == []
        assert layers_of(ablate(model, "L0H0")) == [1]
        assert layers_of(ablate(model, "L1H0")) == layers_of(ablate_path(model, "embed", "logits")) == []
        assert layers_of(ablate_path(model, "embed", "L0H1.K")) == [0, 1]
        assert layers_of(ablate_path(model, "L0.mlp", "L1H1.V")) == [1]
    assert layers_of(nullcontext()) == [0, 1]


@torch.no_grad()
def test_layers_before_an_intervention_are_not_computed(monkeypatch):
    model, layers_of = watching(monkeypatch, MLP, "forward", "mlp")
    with replayed(model):
        assert layers_of(nullcontext()) == [0, 1]
        assert layers_of(nullcontext()) == layers_of(ablate_path(model, "embed", "logits")) == []
        assert layers_of(ablate(model, "L0H0")) == [0, 1]
        assert layers_of(ablate(model, "L1H0")) == [1]
        assert layers_of(ablate(model, "L0.mlp")) == [1]  # what it reads is as it was, and so what it wrote
        assert layers_of(ablate(model, "L1.mlp")) == layers_of(ablate_path(model, "L0H0", "logits")) == []
        assert layers_of(ablate_path(model, "embed", "L1H1.V")) == [1]
        assert layers_of(limit_window(model, 1, heads="L1H0")) == [1]
        assert layers_of(limit_window(model, 1)) == [0, 1]
    assert layers_of(nullcontext()) == [0, 1]


def test_gradients_are_those_of_a_pass_of_their_own():
    config = config_of("plain")
    model, tokens = decoder_of(config), tokens_of(config)
    weight = model.blocks[0].attn.W_V
    with replayed(model):
        with torch.no_grad():
            model(tokens)
        (slope,) = torch.autograd.grad(model(tokens).square().sum(), weight)
    assert torch.equal(slope, torch.autograd.grad(model(tokens).square().sum(), weight)[0])
    assert slope.abs().max() > 0


@torch.no_grad()
def test_an_overwritten_stream_is_computed_again():
    """Whoever holds the stream between passes may write into it: the next pass is as if nobody had."""
    config = config_of("gelu and LN")
    model, tokens, held = decoder_of(config), tokens_of(config), []
    plain = model(tokens)
    with replayed(model):
        held.append(model(tokens, stop_at_layer=1))
        model(tokens)
        held[0].mul_(2)
        assert torch.equal(model(tokens), plain)
        model(tokens, stop_at_layer=config.n_layers).add_(1)
        assert torch.equal(model(tokens), plain)


@torch.no_grad()
def test_blocks_in_another_share_its_first_pass(monkeypatch):
    model, layers_of = watching(monkeypatch, MLP, "forward", "mlp")
    with replayed(model):
        with replayed(model):
            assert layers_of(nullcontext()) == [0, 1]
        with replayed(model):
            assert layers_of(nullcontext()) == []
            assert layers_of(ablate(model, "L0.mlp")) == [1]
        assert layers_of(nullcontext()) == []
    assert layers_of(nullcontext()) == [0, 1]
