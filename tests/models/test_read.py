"""Passes that compute the positions that are read alone give what whole passes give there."""

from contextlib import nullcontext

import pytest
import torch
from decoder_cases import CASES, config_of, decoder_of, stacked_and_alone, tokens_of

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.attention import limit_window, override_attention
from mechmarkov.interventions.paths import paths
from mechmarkov.interventions.replace import KINDS
from mechmarkov.models.components import component_names
from mechmarkov.models.replay import replayed

ROUNDING = 1e-5  # products of fewer rows may be summed in another order


def assert_equal(read, whole):
    assert read.shape == whole.shape
    assert torch.allclose(read, whole, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(("case", "n_models"), stacked_and_alone(CASES, 2))
@torch.no_grad()
def test_the_positions_that_are_read(case, n_models):
    config = config_of(case)
    model, tokens = decoder_of(config, n_models=n_models), tokens_of(config)
    whole = model(tokens)
    for positions in ([config.n_ctx - 1], [3, 5, 8], [0, 2], range(config.n_ctx)):
        read = torch.tensor([*positions])
        assert_equal(model(tokens, read=read), whole[..., read, :])
        assert_equal(model.run_with_cache(tokens, read=read)[0], whole[..., read, :])  # every point is hooked


def test_gradients():
    config = config_of("gelu and LN")
    model, tokens, read = decoder_of(config).double(), tokens_of(config), torch.tensor([7, 8])
    whole = torch.autograd.grad(model(tokens)[:, read].square().sum(), list(model.parameters()))
    part = torch.autograd.grad(model(tokens, read=read).square().sum(), list(model.parameters()))
    for ours, theirs in zip(part, whole, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_hooks_of_the_last_layer_see_these_positions():
    config = config_of("gelu and LN")
    model, tokens = decoder_of(config), tokens_of(config)
    _, cache = model.run_with_cache(tokens, read=torch.tensor([6, 8]))
    batch, heads, width = len(tokens), config.n_heads, config.d_model
    assert cache["pattern", 0].shape == (batch, heads, 9, 9)
    assert cache["pattern", 1].shape == (batch, heads, 3, 9)
    assert cache["k", 1].shape[1] == 9
    assert cache["resid_post", 1].shape == (batch, 3, width)


def test_a_loss_is_over_all_positions():
    config = config_of("plain")
    with pytest.raises(ValueError, match="read is given, but a loss is over all positions"):
        decoder_of(config)(tokens_of(config), return_type="loss", read=torch.tensor([8]))


def interventions(model, tokens):
    """Of every kind, by a name."""
    yield "nothing", nullcontext()
    for name in component_names(model.config):
        for kind in KINDS:
            if kind == "zero" or name not in ("pos_embed", "bias"):
                yield f"{name} {kind}", ablate(model, name, kind=kind)
    longer = tokens.flip(0)
    yield "mean over others", ablate(model, "L1H0", kind="mean", reference=longer)
    for sender, receiver in paths(model):
        yield f"{sender} to {receiver}", ablate_path(model, sender, receiver, kind="zero")
    for to in ("uniform", "parent"):
        yield to, override_attention(model, ["L1H0", "L0H1"], to=to, parent_lag=1)
    yield "window", limit_window(model, 2)
    yield "window of a head", limit_window(model, 2, heads="L1H1")


@pytest.mark.parametrize("case", ["plain", "gelu and LN", "shortformer", "rotary", "Qwen3", "GPT-NeoX"])
@torch.no_grad()
def test_under_every_intervention(case):
    config = config_of(case)
    model, tokens, read = decoder_of(config, n_models=2), tokens_of(config), torch.tensor([7, 8])
    clean = model(tokens)[..., read, :]
    changed = 0
    for name, intervention in interventions(model, tokens):
        with intervention:
            whole, part = model(tokens)[..., read, :], model(tokens, read=read)
        assert torch.allclose(part, whole, rtol=1e-4, atol=1e-4), name
        changed += not torch.allclose(whole, clean, rtol=1e-3, atol=1e-3)
    assert changed > 10


@torch.no_grad()
def test_a_reference_is_read_at_the_same_positions():
    """Its last positions are not those of a shorter batch."""
    config = config_of("plain")
    model, tokens, reference = decoder_of(config), tokens_of(config)[:, :6], tokens_of(config).flip(0)
    with ablate(model, "L1H0", kind="mean", reference=reference):
        assert_equal(model(tokens, read=torch.tensor([5])), model(tokens)[:, 5:])


@pytest.mark.parametrize("n_models", [None, 2])
def test_behind_the_last_hook_nothing_is_computed(n_models, monkeypatch):
    config = config_of("gelu and LN")
    model, tokens, seen = decoder_of(config, n_models=n_models), tokens_of(config), []
    last = config.n_layers - 1
    mlp = model.blocks[last].mlp
    monkeypatch.setattr(mlp, "forward", lambda x: seen.append("mlp") or type(mlp).forward(mlp, x))

    def patterns(return_type, *more):
        kept = []
        hooks = [(f"blocks.{i}.attn.hook_pattern", lambda x, hook: kept.append(x)) for i in (0, last)]
        hooks += [(point, lambda x, hook: kept.append(x)) for point in more]
        model.run_with_hooks(tokens, return_type=return_type, fwd_hooks=hooks)
        return kept

    whole, calls = patterns("logits"), len(seen)
    part = patterns(None)
    assert len(seen) == calls == 1
    for ours, theirs in zip(part, whole, strict=True):
        assert torch.equal(ours, theirs)
    behind = [f"blocks.{last}.hook_mlp_out", f"blocks.{last}.hook_resid_post", "ln_final.hook_normalized"]
    for point in behind:
        assert torch.equal(patterns(None, point)[-1], patterns("logits", point)[-1])


@torch.no_grad()
def test_passes_without_logits_leave_replays_whole():
    config = config_of("gelu and LN")
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    whole = model(tokens)
    with replayed(model):
        model(tokens, return_type=None)
        assert torch.equal(model(tokens), whole)
