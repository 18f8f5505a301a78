"""Passes that stop before a layer or begin at one are parts of the whole pass."""

import pytest
import torch
from decoder_cases import CASES, SHARED, config_of, decoder_of, tokens_of
from lens_pairs import assert_close, needs_live, pair

from mechmarkov.models.lens.errors import LensError

pytestmark = pytest.mark.tl

PARTS = ["plain", "gelu and LN", "shortformer", "rotary", "Llama", "relative, window, MLP, LN", "tied"]


def whole(case, n_models=None):
    """A model of two layers, tokens (of a stack for each member), logits and every activation."""
    model = decoder_of(config_of(case), n_models=n_models).double()
    tokens = tokens_of(model.config, *([] if n_models is None else [n_models, 4]))
    logits, cache = model.run_with_cache(tokens, return_cache_object=False)
    return model, tokens, logits, cache


@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("case", PARTS)
def test_a_pass_stops_before_a_layer(case, n_models):
    model, tokens, _, cache = whole(case, n_models)
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(2)] + ["blocks.1.hook_resid_post"]
    for layer, name in [(0, names[0]), (1, names[1]), (2, names[2]), (-1, names[1]), (-2, names[0])]:
        stopped, part = model.run_with_cache(tokens, stop_at_layer=layer, return_cache_object=False)
        assert torch.allclose(stopped, cache[name], atol=1e-12)
        run = {name for name in cache if not name.startswith(("blocks", "ln_final", "unembed"))}
        run |= {name for name in cache if name.startswith("blocks.0") and layer in (1, 2, -1)}
        run |= {name for name in cache if name.startswith("blocks.1") and layer == 2}
        assert set(part) == run
    assert torch.equal(model(tokens, stop_at_layer=None), model(tokens))
    assert model(tokens, return_type=None, stop_at_layer=1).shape == stopped.shape


@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("case", PARTS)
def test_a_pass_begins_at_a_layer(case, n_models):
    model, _, logits, cache = whole(case, n_models)
    for layer, begins in [(0, 0), (1, 1), (-1, 1), (-2, 0)]:
        residual = cache[f"blocks.{begins}.hook_resid_pre"]
        before = residual.clone()
        with torch.no_grad():
            found, part = model.run_with_cache(residual, start_at_layer=layer, return_cache_object=False)
        assert torch.allclose(found, logits, atol=1e-11)
        assert torch.equal(residual, before)  # nothing is written into what is given
        embedded = () if model.config.positional_embedding_type != "shortformer" else ("hook_pos_embed",)
        names = [name for name in cache if name.startswith(("blocks", "ln_final", "unembed", *embedded))]
        assert set(part) == {n for n in names if begins == 0 or not n.startswith("blocks.0")}
    last = cache["blocks.1.hook_resid_post"]
    assert torch.allclose(model(last, start_at_layer=2), logits, atol=1e-12)
    middle = model(cache["blocks.0.hook_resid_pre"], start_at_layer=0, stop_at_layer=1)
    assert torch.allclose(middle, cache["blocks.1.hook_resid_pre"], atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_embedded_input_is_where_a_pass_begins(case):
    model, tokens, logits, cache = whole(case)
    residual, seen, shortformer, mask = model.input_to_embed(tokens)
    assert torch.equal(residual, cache["blocks.0.hook_resid_pre"])
    assert seen is tokens
    assert mask is None
    assert (shortformer is not None) == case.startswith("shortformer")
    begun = model(residual, start_at_layer=0, tokens=tokens, shortformer_pos_embed=shortformer)
    assert torch.allclose(begun, logits, atol=1e-11)
    again, positions = model.get_residual(cache["hook_embed"])
    assert torch.equal(again, residual)
    assert (positions is None) == (shortformer is None)
    assert torch.equal(model.get_residual(cache["hook_embed"], return_shortformer_pos_embed=False), residual)


def test_a_loss_from_a_layer_has_its_tokens():
    model, tokens, _, cache = whole("gelu and LN")
    residual = cache["blocks.1.hook_resid_pre"]
    loss = model(residual, start_at_layer=1, tokens=tokens, return_type="loss")
    assert torch.allclose(loss, model(tokens, return_type="loss"), atol=1e-12)
    with pytest.raises(AssertionError, match="tokens is None"):
        model(residual, start_at_layer=1, return_type="loss")
    with pytest.raises(ValueError, match=r"tokens have shape \[3, 8\], expected the input's \[3, 9\]"):
        model(residual, start_at_layer=1, tokens=tokens[:, :8], return_type="loss")


def test_the_positions_that_are_read():
    model, tokens, logits, cache = whole("gelu and LN")
    read = torch.tensor([6, 8])
    for layer in (0, 1, 2):
        residual = cache[f"blocks.{layer}.hook_resid_pre"] if layer < 2 else cache["blocks.1.hook_resid_post"]
        found = model(residual, start_at_layer=layer, read=read)
        assert torch.allclose(found, logits[:, read], atol=1e-11)
    for layer, name in [(1, "blocks.1.hook_resid_pre"), (2, "blocks.1.hook_resid_post")]:
        assert torch.allclose(model(tokens, stop_at_layer=layer, read=read), cache[name][:, read], atol=1e-11)


def test_gradients_go_back_to_where_a_pass_begins():
    model, tokens, _, cache = whole("gelu and LN")
    residual = cache["blocks.1.hook_resid_pre"].clone().requires_grad_()
    model(residual, start_at_layer=1)[:, -1].sum().backward()
    kept = {}

    def keep(x, hook):
        x.retain_grad()
        kept["x"] = x

    model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_resid_pre", keep)])[:, -1].sum().backward()
    assert torch.allclose(residual.grad, kept["x"].grad, atol=1e-12)


def test_what_is_no_place_to_stop_or_begin():
    model, tokens, _, cache = whole("plain")
    residual = cache["blocks.1.hook_resid_pre"]
    for argument in ("start_at_layer", "stop_at_layer"):
        for layer in (3, -3):
            given = residual if argument == "start_at_layer" else tokens
            with pytest.raises(ValueError, match=f"{argument} is {layer}, expected -2 to 2"):
                model(given, **{argument: layer})
    with pytest.raises(AssertionError, match=r"input is torch\.int64, expected the residual stream"):
        model(tokens, start_at_layer=1)
    with pytest.raises(ValueError, match=r"expected \[batch, position, 12\]"):
        model(residual[..., :5], start_at_layer=1)
    with pytest.raises(ValueError, match="expected integers"):
        model(tokens.double())
    with pytest.raises(ValueError, match="go with start_at_layer"):
        model(tokens, tokens=tokens)
    with pytest.raises(ValueError, match="shortformer_pos_embed is given, but this model has standard"):
        model(residual, start_at_layer=1, shortformer_pos_embed=residual)


def test_a_stack_takes_a_stream_for_each_member_or_one_for_all():
    stack, _, logits, cache = whole("gelu and LN", 3)
    residual = cache["blocks.1.hook_resid_pre"]
    assert torch.allclose(stack(residual, start_at_layer=1), logits, atol=1e-11)
    shared = stack(residual[0], start_at_layer=1)
    for i in range(3):
        assert torch.allclose(shared[i], stack[i](residual[0], start_at_layer=1), atol=1e-11)
    with pytest.raises(ValueError, match=r"or \[3, batch, position, 12\] for this stack"):
        stack(residual[:2], start_at_layer=1)


# -- beside HookedTransformer --------------------------------------------------------------------------------


@needs_live
@pytest.mark.parametrize("case", SHARED)
def test_parts_of_a_pass_are_theirs(case):
    ours, theirs, tokens = pair(case)
    tokens = tokens % ours.config.d_vocab_out  # which have a loss
    for layer in (0, 1, 2, -1):
        (x, cache), (y, expected) = (
            m.run_with_cache(tokens, stop_at_layer=layer if layer < 2 else None) for m in (ours, theirs)
        )
        assert_close(x, y)
        assert set(cache) == set(expected)
    for ours_embedded, theirs_embedded in zip(
        ours.input_to_embed(tokens), theirs.input_to_embed(tokens), strict=True
    ):
        assert (ours_embedded is None) == (theirs_embedded is None)
        if theirs_embedded is not None:
            assert_close(ours_embedded, theirs_embedded)
    residual, _, positions, _ = theirs.input_to_embed(tokens)
    for layer in (0, 1, -1, -2):
        arguments = {"start_at_layer": layer, "shortformer_pos_embed": positions}
        (x, cache), (y, expected) = (m.run_with_cache(residual, **arguments) for m in (ours, theirs))
        assert_close(x, y)
        assert set(cache) == set(expected)
        for kind in (None, "loss", "both"):
            x, y = (m(residual, return_type=kind, tokens=tokens, **arguments) for m in (ours, theirs))
            assert (x is None) == (y is None)
            for a, b in zip(x, y, strict=True) if kind == "both" else [(x, y)] if kind else []:
                assert_close(a, b)


@needs_live
def test_hooks_of_layers_that_are_not_run_are_left_out_as_theirs_are():
    names = ["hook_embed", "blocks.0.attn.hook_k", "blocks.1.mlp.hook_pre", "ln_final.hook_normalized"]
    seen = []
    hooks = [(name, lambda x, hook: seen.append(hook.name)) for name in names]
    for model in pair("gelu and LN")[:2]:
        seen.clear()
        residual = torch.zeros(2, 5, 12)
        model.run_with_hooks(residual, start_at_layer=1, fwd_hooks=hooks)
        model.run_with_hooks(torch.zeros(2, 5, dtype=torch.long), stop_at_layer=1, fwd_hooks=hooks)
        model.run_with_hooks(torch.zeros(2, 5, dtype=torch.long), return_type=None, fwd_hooks=hooks)
        assert seen == [*names[2:], *names[:2], *names]


@needs_live
def test_errors_are_assertions_as_theirs():
    ours, theirs, _ = pair("plain")
    for model in (ours, theirs):
        with pytest.raises(AssertionError):
            model(torch.zeros(2, 5, 12), start_at_layer=1, return_type="loss")
    assert issubclass(LensError, ValueError)
