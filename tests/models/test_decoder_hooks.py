"""The decoder's hooks act, are never ignored, and leave with their context."""

import numpy as np
import pytest
import torch
from decoder_cases import config_of, decoder_of, tokens_of
from decoder_equations import look, losses_and_gradients, reference, relative_error

pytestmark = pytest.mark.tl


def previous(n):
    """Attention to the token before, and of the first to itself: `[query, key]`."""
    return np.eye(n)[np.maximum(np.arange(n) - 1, 0)]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("point", ["hook_pattern", "hook_attn_scores"])
@pytest.mark.parametrize("case", ["plain", "gelu and LN", "relative, window, MLP, LN", "rotary"])
def test_overwriting_a_pattern(case, point, layer):
    decoder = decoder_of(config_of(case)).double()
    tokens = tokens_of(decoder.config)
    pattern = torch.tensor(previous(decoder.config.n_ctx))
    value = pattern if point == "hook_pattern" else pattern.log()
    changed = decoder.run_with_hooks(
        tokens, fwd_hooks=[(f"blocks.{layer}.attn.{point}", lambda x, hook: value.expand_as(x))]
    )
    expected = reference(decoder.config, decoder.state_dict(), tokens, {layer: pattern.numpy()})
    assert relative_error(changed, expected) < 1e-10
    assert relative_error(changed, reference(decoder.config, decoder.state_dict(), tokens)) > 1e-3


def test_a_query_that_a_hook_leaves_without_keys_attends_to_nothing():
    decoder = decoder_of(config_of("rotary"), n_models=2)

    def hook(scores, hook):
        scores[..., 2, :] = -torch.inf
        return scores

    with decoder.hooks(fwd_hooks=[("blocks.0.attn.hook_attn_scores", hook)]):
        _, cache = decoder.run_with_cache(tokens_of(decoder.config))
    assert (cache["blocks.0.attn.hook_pattern"].sum(-1)[..., 2] == 0).all()
    assert (cache["blocks.0.attn.hook_z"][..., 2, :, :] == 0).all()
    assert cache["blocks.1.hook_resid_post"].isfinite().all()


def test_a_hook_on_one_head_of_a_stack_moves_that_head_only():
    decoder = decoder_of(config_of(), n_models=2).double()
    tokens = tokens_of(decoder.config)
    pattern = torch.tensor(previous(decoder.config.n_ctx))

    def hook(x, hook):
        x[1, :, 2] = pattern
        return x

    fwd_hooks = [("blocks.0.attn.hook_pattern", hook)]
    name = "blocks.0.attn.hook_z"
    _, clean = decoder.run_with_cache(tokens)
    with decoder.hooks(fwd_hooks=fwd_hooks):
        _, changed = decoder.run_with_cache(tokens, names_filter=[name, "blocks.0.attn.hook_v"])
    v = changed["blocks.0.attn.hook_v"][1, :, :, 2]
    assert torch.allclose(changed[name][1, :, :, 2], pattern @ v, atol=1e-12)
    changed[name][1, :, :, 2] = clean[name][1, :, :, 2]
    assert torch.allclose(changed[name], clean[name], atol=1e-12)


@pytest.mark.parametrize("point", ["blocks.1.attn.hook_pattern", "blocks.1.attn.hook_attn_scores"])
def test_a_backward_hook_fires_with_the_gradient_and_can_change_it(point):
    decoder = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(decoder.config)
    activations, gradients = [], []

    def keep(x, hook):
        x.retain_grad()
        activations.append(x)

    with decoder.hooks(fwd_hooks=[(point, keep)]):
        decoder(tokens, return_type="loss").backward()
    with decoder.hooks(bwd_hooks=[(point, lambda gradient, hook: gradients.append(gradient.clone()))]):
        decoder(tokens, return_type="loss").backward()
    assert gradients[0].abs().max() > 1e-4
    assert torch.allclose(gradients[0].nan_to_num(), activations[0].grad.nan_to_num(), atol=1e-12)

    decoder.zero_grad()
    with decoder.hooks(bwd_hooks=[(point, lambda gradient, hook: (torch.zeros_like(gradient),))]):
        decoder(tokens, return_type="loss").backward()
    last = decoder.blocks[1].attn
    assert last.W_Q.grad.abs().max() == 0
    assert last.W_V.grad.abs().max() > 1e-4


def test_torchs_own_hooks_on_the_pattern_are_honoured():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config)
    point, clean, fired = decoder.blocks[1].attn.hook_pattern, decoder(tokens), []
    registrations = [
        lambda: point.register_forward_hook(lambda module, args, out: 0 * out),
        lambda: point.register_forward_hook(lambda module, args, kwargs, out: 0 * out, with_kwargs=True),
        lambda: point.register_forward_pre_hook(lambda module, args: (0 * args[0],)),
    ]
    for register in registrations:
        handle = register()
        assert (decoder(tokens) - clean).abs().max() > 0.01
        handle.remove()
        assert torch.equal(decoder(tokens), clean)
    for register in (point.register_full_backward_hook, point.register_full_backward_pre_hook):
        handle = register(lambda *args: fired.append(True))
        decoder(tokens, return_type="loss").backward()
        handle.remove()
    assert len(fired) == 2


@pytest.mark.parametrize("case", ["gelu_new and RMS", "relative, window, MLP, LN", "rotary"])
@pytest.mark.parametrize("n_models", [None, 2])
def test_a_hook_may_write_in_place(case, n_models):
    """The same logits and gradients as a hook that returns a copy, at every point.

    But for the two whose operation keeps its output for the backward pass: torch says so.
    """
    decoder = decoder_of(config_of(case), n_models=n_models).double()
    tokens = tokens_of(decoder.config)

    def in_place(x, hook):
        x[..., 1:] *= 0.5
        return x

    def copied(x, hook):
        x = x.clone()
        x[..., 1:] *= 0.5
        return x

    points = [name for name in decoder.hook_dict if not name.endswith("hook_scale")]
    assert len(points) > 15
    for point in points:
        logits, gradients = losses_and_gradients(decoder, tokens, [(point, in_place)])
        expected, expected_gradients = losses_and_gradients(decoder, tokens, [(point, copied)])
        assert torch.equal(logits, expected), point
        assert all(torch.equal(gradients[name], expected_gradients[name]) for name in gradients), point


def test_every_hook_point_acts():
    """No point is an idle name: another value there is another logit, alone and in a stack."""
    for case in ["gelu_new and RMS", "shortformer", "rotary, adjacent pairs", "relative, window, MLP, LN"]:
        for n_models in (None, 2):
            decoder = decoder_of(config_of(case), n_models=n_models)
            decoder.set_use_attn_result(True)
            decoder.set_use_split_qkv_input(True)
            if not decoder.config.attn_only:
                decoder.set_use_hook_mlp_in(True)
            tokens = tokens_of(decoder.config)
            clean = decoder(tokens)
            for point in decoder.hook_dict:
                hook = [(point, lambda x, hook: x * torch.linspace(0.5, 2, x.shape[-1]) + 0.1)]
                assert (decoder.run_with_hooks(tokens, fwd_hooks=hook) - clean).abs().max() > 1e-3, point


def test_hooks_leave_with_their_context():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config)
    clean = decoder(tokens)
    hooks = [("blocks.0.attn.hook_pattern", lambda x, hook: 0 * x)]

    def inside():
        with decoder.hooks(fwd_hooks=hooks):
            assert not torch.equal(decoder(tokens), clean)
            raise ZeroDivisionError

    def fail(x, hook):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()
    with pytest.raises(ZeroDivisionError):
        decoder.run_with_hooks(tokens, fwd_hooks=[*hooks, ("blocks.1.attn.hook_z", fail)])
    assert not decoder.list_hooks()
    assert torch.equal(decoder(tokens), clean)


def test_hooks_may_come_from_a_generator():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config)
    points = ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]

    def hook(z, hook):
        return 0 * z

    from_list = decoder.run_with_hooks(tokens, fwd_hooks=[(point, hook) for point in points])
    from_generator = decoder.run_with_hooks(tokens, fwd_hooks=((point, hook) for point in points))
    assert torch.equal(from_list, from_generator)
    assert not torch.equal(from_list, decoder(tokens))


def test_a_hook_that_would_be_ignored_is_an_error():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config)
    with pytest.raises(ValueError, match=r"no hook point 'blocks\.7\.attn\.hook_z'"):
        decoder.run_with_hooks(tokens, fwd_hooks=[("blocks.7.attn.hook_z", look)])
    with pytest.raises(ValueError, match="no hook point 'blocks'"):
        decoder.add_hook("blocks", look)
    with pytest.raises(ValueError, match="matches none"):
        decoder.run_with_hooks(tokens, fwd_hooks=[(lambda name: "mlp" in name, look)])


OPTIONAL = {
    "blocks.1.attn.hook_result": "set_use_attn_result",
    "blocks.1.hook_q_input": "set_use_split_qkv_input",
    "blocks.1.hook_k_input": "set_use_split_qkv_input",
    "blocks.1.hook_v_input": "set_use_split_qkv_input",
    "blocks.1.hook_attn_in": "set_use_attn_in",
    "blocks.1.hook_mlp_in": "set_use_hook_mlp_in",
}


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize("point", OPTIONAL)
def test_optional_hook_points(point, n_models):
    decoder = decoder_of(config_of("gelu and LN"), n_models=n_models).double()
    tokens = tokens_of(decoder.config)
    clean, switch = decoder(tokens), getattr(decoder, OPTIONAL[point])
    hooks = [(point, lambda x, hook: x * torch.arange(12.0))]
    with pytest.raises(ValueError, match=rf"call {OPTIONAL[point]}\(True\) first"):
        decoder.run_with_hooks(tokens, fwd_hooks=hooks)
    switch(True)
    assert torch.allclose(decoder(tokens), clean, atol=1e-12)
    assert (decoder.run_with_hooks(tokens, fwd_hooks=hooks) - clean).abs().max() > 1e-3
    switch(False)
    assert point not in decoder.hook_dict
    assert torch.equal(decoder(tokens), clean)
    with pytest.raises(ValueError, match="first"):
        decoder.add_hook(*hooks[0])


def test_optional_hook_points_that_exclude_each_other():
    decoder = decoder_of(config_of())
    decoder.set_use_attn_in(True)
    with pytest.raises(ValueError, match="exclude each other"):
        decoder.set_use_split_qkv_input(True)
    decoder.set_use_attn_in(False)
    decoder.set_use_split_qkv_input(True)
    with pytest.raises(ValueError, match="exclude each other"):
        decoder.set_use_attn_in(True)
    with pytest.raises(ValueError, match="there is no MLP"):
        decoder.set_use_hook_mlp_in(True)


def test_the_result_is_each_heads_own_write():
    decoder = decoder_of(config_of("relative")).double()
    decoder.set_use_attn_result(True)
    _, cache = decoder.run_with_cache(tokens_of(decoder.config))
    z, W_O = cache["z", 1].numpy(), decoder.W_O[1].detach().numpy()
    expected = np.stack([z[:, :, h] @ W_O[h] for h in range(3)], axis=2)
    assert np.allclose(cache["result", 1].numpy(), expected, atol=1e-12)
    total = expected.sum(2) + decoder.b_O[1].detach().numpy()
    assert np.allclose(cache["attn_out", 1].numpy(), total, atol=1e-12)
