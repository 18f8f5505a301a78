"""Attribution patching against gradients, against real patching, and on a stack."""

import pytest
import torch
from intervention_cases import LONG
from probing_cases import config_of, randomise
from transformer_lens import patching

from mechmarkov.interventions.attribution import attribution_patching
from mechmarkov.models import HookedDecoder

pytestmark = pytest.mark.tl

POINTS = {"residual": "hook_resid_pre", "heads": "attn.hook_z", "mlps": "hook_mlp_out"}


def decoder_of(shape, n_models=None, seed=0):
    return randomise(HookedDecoder(config_of(shape), n_models), seed).double()


def pair(model, batch=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, (2, batch, model.config.n_ctx), generator=generator)


def metric(logits):
    """One number, of a stack one for each member; not linear in the logits."""
    p = logits.softmax(-1)
    return (p[..., -1, 1] - p[..., -2, 2] ** 2).mean(-1)


def kinds(model):
    return [of for of in POINTS if of != "mlps" or not model.config.attn_only]


def places(of, model):
    """Every entry of a table: its index, the hook point and where in the activation it is."""
    config = model.config
    for layer in range(config.n_layers):
        name = f"blocks.{layer}.{POINTS[of]}"
        for position in range(config.n_ctx):
            for head in range(config.n_heads) if of == "heads" else [None]:
                index = (layer, position) if head is None else (layer, head, position)
                yield index, name, (slice(None), position) if head is None else (slice(None), position, head)


def moved(model, corrupted, clean_cache, name, where, share):
    """The metric with one place moved from corrupted to clean by a share: real patching where it is 1."""

    def hook(x, hook):
        x = x.clone()
        x[where] = x[where] + share * (clean_cache[name][where] - x[where])
        return x

    return metric(model.run_with_hooks(corrupted, fwd_hooks=[(name, hook)]))


@torch.no_grad()
@pytest.mark.parametrize("shape", LONG)
def test_it_is_the_slope_of_real_patching(shape):
    model = decoder_of(shape)
    clean, corrupted = pair(model)
    _, cache = model.run_with_cache(clean)
    for of in kinds(model):
        table = attribution_patching(model, clean, corrupted, metric, of=of)
        for index, name, where in places(of, model):
            ends = [moved(model, corrupted, cache, name, where, share) for share in (-1e-5, 1e-5)]
            assert table[index].item() == pytest.approx(float(ends[1] - ends[0]) / 2e-5, rel=1e-5, abs=1e-8)
        assert table.abs().max() > 1e-6


def test_it_is_real_patching_where_the_metric_is_linear():
    """The last layer's heads write to the logits alone, where there is no norm."""
    model = decoder_of("plain")
    clean, corrupted = pair(model)
    _, cache = model.run_with_cache(clean)

    def linear(logits):
        return (logits[:, -1, 1] - logits[:, -1, 0]).sum()

    table = attribution_patching(model, clean, corrupted, linear, of="heads")
    base = linear(model(corrupted))
    for index, name, where in places("heads", model):
        if index[0] == model.config.n_layers - 1:

            def hook(x, hook, name=name, where=where):
                x = x.clone()
                x[where] = cache[name][where]
                return x

            real = linear(model.run_with_hooks(corrupted, fwd_hooks=[(name, hook)])) - base
            assert torch.allclose(table[index], real, atol=1e-10)


@pytest.mark.filterwarnings("default")  # tqdm's, for want of a notebook's widgets
@torch.no_grad()
def test_a_small_difference_is_what_transformer_lens_patches():
    """Its own patching, with clean activations that differ from the corrupted ones by one part in 10000."""
    model = decoder_of("LN and MLP")
    clean, corrupted = pair(model)
    (_, before), (_, after) = (model.run_with_cache(tokens) for tokens in (clean, corrupted))
    for name in list(before):
        before.cache_dict[name] = after[name] + 1e-4 * (before[name] - after[name])
    base = metric(model(corrupted))
    real = patching.get_act_patch_resid_pre(model, corrupted, before, metric).double() - base
    table = attribution_patching(model, clean, corrupted, metric)
    # TransformerLens keeps its table in single precision: 6e-8 of the metric, over a difference of 1e-4.
    assert torch.allclose(table, real / 1e-4, atol=2e-3)
    assert table.abs().max() > 2e-2


@pytest.mark.parametrize("of", POINTS)
def test_a_stack_is_its_members(of):
    members = [decoder_of("LN and MLP", seed=seed) for seed in range(3)]
    stack = HookedDecoder.stack(members)
    clean, corrupted = pair(stack)
    table = attribution_patching(stack, clean, corrupted, metric, of=of)
    for i, member in enumerate(members):
        assert torch.allclose(
            table[i], attribution_patching(member, clean, corrupted, metric, of=of), atol=1e-11
        )


def test_it_leaves_the_model_as_it_was():
    model = decoder_of("LN and MLP")
    clean, corrupted = pair(model)
    expected = attribution_patching(model, clean, corrupted, metric)
    with torch.no_grad():
        assert torch.equal(attribution_patching(model, clean, corrupted, metric), expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    model.requires_grad_(False)
    assert torch.allclose(attribution_patching(model, clean, corrupted, metric), expected, atol=1e-12)
    assert not any(point.fwd_hooks for point in model.hook_points())
    assert not attribution_patching(model, clean, clean, metric).any()


def test_what_cannot_be_attributed():
    model = decoder_of("plain")
    clean, corrupted = pair(model)
    with pytest.raises(TypeError, match="expected a HookedDecoder"):
        attribution_patching(None, clean, corrupted, metric)
    wrong = {
        "of is 'neurons', expected one of 'residual', 'heads', 'mlps'": {"of": "neurons"},
        "there is no MLP": {"of": "mlps"},
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            attribution_patching(model, clean, corrupted, metric, **arguments)
    with pytest.raises(ValueError, match=r"clean has shape \[4, 6\], expected that of corrupted, \[4, 7\]"):
        attribution_patching(model, clean[:, :6], corrupted, metric)
    with pytest.raises(ValueError, match=r"metric returned shape \[4\], expected one number"):
        attribution_patching(model, clean, corrupted, lambda logits: logits[:, -1, 0])
    with pytest.raises(ValueError, match="a number without a gradient"):
        attribution_patching(model, clean, corrupted, lambda logits: logits.detach().sum())
    stack = decoder_of("plain", 2)
    with pytest.raises(ValueError, match=r"metric returned shape \[\], expected one for each member, \[2\]"):
        attribution_patching(stack, clean, corrupted, lambda logits: logits[:, -1].sum())
