"""Ablation at chosen positions of chosen components, and in passes that begin at a layer."""

import numpy as np
import pytest
import torch
from intervention_cases import LONG, decoder_of, tokens_of

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.models.components import component_names, output_of

N = 6  # sequences


def by_hand(model, tokens, name, chosen, value):
    """Logits with a component's output replaced at chosen places, by a hook of the test's own."""
    output = output_of(model.config, name)

    def hook(x, hook):
        x = x.clone()
        part = x[..., output.head[1], :] if output.head else x
        part[...] = torch.where(chosen[..., None], value(part), part)
        return x

    return model.run_with_hooks(tokens, fwd_hooks=[(output.hook, hook)])


@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("shape", LONG)
def test_chosen_positions_of_chosen_components(shape, n_models):
    model = decoder_of(shape, n_models=n_models).double()
    tokens, length = tokens_of(model), model.config.n_ctx
    chosen = torch.zeros(length, dtype=torch.bool)
    chosen[[1, length - 2]] = True
    each = torch.rand(N, length, generator=torch.Generator().manual_seed(3)) < 0.4
    names = [name for name in component_names(model.config) if name not in ("direct", "bias")]
    for name in names:
        for positions, marks in [
            ([1, -2], chosen),
            (chosen, chosen),
            (chosen.tolist(), chosen),
            (each, each),
        ]:
            with ablate(model, name, positions=positions):
                found = model(tokens)
            assert torch.allclose(found, by_hand(model, tokens, name, marks, torch.zeros_like), atol=1e-10)
        if name != "pos_embed":
            with ablate(model, name, kind="mean", positions=each):
                found = model(tokens)
            mean = by_hand(model, tokens, name, each, lambda x: x.mean(-3, keepdim=True).expand_as(x))
            assert torch.allclose(found, mean, atol=1e-10)


@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("kind", ["zero", "mean", "resample", "same_token"])
def test_every_position_is_no_choice(kind, n_models):
    model = decoder_of("LN and MLP", n_models=n_models).double()
    tokens = tokens_of(model)
    name = component_names(model.config)[2]
    with ablate(model, name, kind=kind):
        everywhere = model(tokens)
    for positions in (range(model.config.n_ctx), torch.ones(model.config.n_ctx, dtype=torch.bool)):
        with ablate(model, name, kind=kind, positions=positions):
            assert torch.equal(model(tokens), everywhere)


def test_positions_count_from_the_start_of_sequences_of_which_some_are_read():
    model = decoder_of("LN and MLP").double()
    tokens, last = tokens_of(model), model.config.n_ctx - 1
    heads = [name for name in component_names(model.config) if "H" in name]
    read = torch.tensor([last - 2, last])
    for name in heads:
        for positions in ([last - 2], [-1], [0, 1, -1], np.array([0, last])):
            with ablate(model, name, kind="mean", positions=positions):
                assert torch.allclose(model(tokens, read=read), model(tokens)[:, read], atol=1e-10)


def test_a_path_is_cut_at_positions_of_its_sender():
    model = decoder_of("LN and MLP").double()
    tokens, names = tokens_of(model), component_names(model.config)
    head = next(name for name in names if "H" in name)
    one, others = [2], [i for i in range(model.config.n_ctx) if i != 2]
    with (
        ablate_path(model, head, "logits", positions=one),
        ablate_path(model, head, "logits", positions=others),
    ):
        both = model(tokens)
    with ablate_path(model, head, "logits"):
        assert torch.allclose(both, model(tokens), atol=1e-10)
    with ablate_path(model, head, "logits", positions=one):
        alone = model(tokens)
    changed = (alone - model(tokens)).abs().amax((0, 2)) > 1e-12
    assert changed.nonzero().flatten().tolist() == one
    with ablate(model, "direct", positions=one), ablate_path(model, "embed", "logits", positions=others):
        parts = model(tokens)
    with ablate(model, "direct"):
        assert torch.allclose(parts, model(tokens), atol=1e-10)


def test_several_components_have_the_same_positions_and_nest_with_others():
    model = decoder_of("LN and MLP").double()
    tokens = tokens_of(model)
    heads = [name for name in component_names(model.config) if "H" in name][:2]
    with ablate(model, heads, positions=[1, 3]):
        together = model(tokens)
    with ablate(model, heads[0], positions=[1, 3]), ablate(model, heads[1], positions=[1, 3]):
        assert torch.equal(model(tokens), together)
    before = model(tokens)
    with ablate(model, heads[0], positions=1), ablate(model, heads[1], positions=-1):
        assert (model(tokens) - together).abs().max() > 1e-6
    assert torch.equal(model(tokens), before)
    assert model.embed.listeners == []


WRONG = {
    r"positions holds 99, expected -\d+ to \d+": [99],
    r"positions is \[\], expected numbers": [],
    r"positions is .*, expected numbers": [0.5],
    r"positions have shape \[1, 2\], expected \[position\]": torch.tensor([[1, 2]]),
    r"positions have shape \[2\], expected the last axes of": torch.tensor([True, False]),
}


@pytest.mark.parametrize("message", WRONG)
def test_positions_that_are_not_there(message):
    model = decoder_of("LN and MLP").double()
    name = next(name for name in component_names(model.config) if "H" in name)
    with ablate(model, name, positions=WRONG[message]), pytest.raises(ValueError, match=message):
        model(tokens_of(model))
    with (
        pytest.raises(ValueError, match="bias is what all positions share"),
        ablate(model, "bias", positions=0),
    ):
        pass


# -- passes that begin at a layer ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "shortformer", "rotary"])
def test_ablations_of_later_layers_begin_where_activations_are_stored(shape, n_models):
    model = decoder_of(shape, n_models=n_models).double()
    tokens = tokens_of(model)
    residual = model(tokens, stop_at_layer=1)
    for name in component_names(model.config):
        if not name.startswith("L1"):
            continue
        for kind in ("zero", "mean", "resample", "same_token"):
            with ablate(model, name, kind=kind, positions=[0, -1]):
                whole = model(tokens)
                begun = model(residual, start_at_layer=1, tokens=tokens)
            assert torch.allclose(begun, whole, atol=1e-10)
        with ablate(model, name, kind="mean", reference=tokens.flip(0)):
            assert torch.allclose(model(residual, start_at_layer=1), model(tokens), atol=1e-10)
        with ablate(model, name, kind="resample"):
            assert torch.allclose(model(residual, start_at_layer=1), model(tokens), atol=1e-10)
        with ablate(model, name, kind="same_token"), pytest.raises(ValueError, match="give its tokens too"):
            model(residual, start_at_layer=1)


def test_an_ablation_before_the_pass_begins_is_refused():
    model = decoder_of("LN and MLP").double()
    tokens = tokens_of(model)
    residual = model(tokens, stop_at_layer=1)
    names = [name for name in component_names(model.config) if name.startswith("L0") or name == "embed"]
    for name in names:
        with ablate(model, name):
            model(tokens)
            with pytest.raises(
                ValueError, match=f"the pass begins at layer 1, after {name}: begin before it"
            ):
                model(residual, start_at_layer=1)
        with (
            ablate_path(model, name, "logits"),
            pytest.raises(ValueError, match=f"the pass begins at layer 1, after {name}"),
        ):
            model(residual, start_at_layer=1)
    assert model.embed.listeners == []
