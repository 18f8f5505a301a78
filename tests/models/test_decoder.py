"""The decoder against its equations in numpy, fused against spelled out, and its hooks."""

import copy
import math

import numpy as np
import pytest
import torch
from decoder_cases import CASES, OWN, config_of, decoder_of, tokens_of
from scipy.special import erf
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechmarkov.models import HookedDecoder

pytestmark = pytest.mark.tl


# -- the equations, from the paper's side --------------------------------------------------------------------


def norm(x, weights, config, name):
    kind = config.normalization_type
    if kind is None:
        return x
    if kind.startswith("LN"):
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.eps)
    return x * weights.get(f"{name}.w", 1.0) + weights.get(f"{name}.b", 0.0)


def turn(x, config):
    """Rotary positions as multiplication of complex pairs; x is [position, d_head]."""
    half = config.rotary_dim // 2
    angle = np.arange(len(x))[:, None] * config.rotary_base ** (-np.arange(half) / half)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if config.rotary_adjacent_pairs
        else (slice(0, half), slice(half, 2 * half))
    )
    z = (x[:, first] + 1j * x[:, second]) * np.exp(1j * angle)
    out = x.copy()
    out[:, first], out[:, second] = z.real, z.imag
    return out


def pattern_of(q, k, rel, config):
    """Attention of one head on one sequence, entry by entry: softmax over the keys in reach."""
    pattern = np.zeros((len(q), len(q)))
    for t in range(len(q)):
        reach = [s for s in range(t + 1) if config.window is None or t - s <= config.window]
        keys = [k[s] + (rel[t - s] if rel is not None else 0.0) for s in reach]
        scores = np.array([q[t] @ key for key in keys])
        if config.use_attn_scale:
            scores = scores / config.attn_scale
        pattern[t, reach] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    return pattern


ACTIVATION = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def reference(config, state, tokens, patterns=None):
    """Logits `[batch, position, d_vocab_out]`; `patterns` overrides the pattern of layers by number."""
    w = {name: tensor.double().numpy() for name, tensor in state.items()}
    logits = []
    for sequence in tokens.numpy():
        positions = w["pos_embed.W_pos"][: len(sequence)] if "pos_embed.W_pos" in w else 0.0
        x = w["embed.W_E"][sequence]
        on_keys = 0.0
        if config.positional_embedding_type == "standard":
            x = x + positions
        elif config.positional_embedding_type == "shortformer":
            on_keys = positions
        for layer in range(config.n_layers):
            a = f"blocks.{layer}.attn."
            normed = norm(x, w, config, f"blocks.{layer}.ln1")
            update = np.zeros_like(x) + w[a + "b_O"]
            for h in range(config.n_heads):
                q = (normed + on_keys) @ w[a + "W_Q"][h] + w[a + "b_Q"][h]
                k = (normed + on_keys) @ w[a + "W_K"][h] + w[a + "b_K"][h]
                v = normed @ w[a + "W_V"][h] + w[a + "b_V"][h]
                if config.positional_embedding_type == "rotary":
                    q, k = turn(q, config), turn(k, config)
                rel = w[a + "W_rel"][h] if config.positional_embedding_type == "relative" else None
                pattern = (patterns or {}).get(layer)
                pattern = pattern_of(q, k, rel, config) if pattern is None else pattern
                update += pattern @ v @ w[a + "W_O"][h]
            x = x + update
            if not config.attn_only:
                m = f"blocks.{layer}.mlp."
                hidden = norm(x, w, config, f"blocks.{layer}.ln2") @ w[m + "W_in"] + w[m + "b_in"]
                x = x + ACTIVATION[config.act_fn](hidden) @ w[m + "W_out"] + w[m + "b_out"]
        x = norm(x, w, config, "ln_final")
        unembed = w["embed.W_E"][: config.d_vocab_out].T if config.tied else w["unembed.W_U"]
        logits.append(x @ unembed + w["unembed.b_U"])
    return np.stack(logits)


def relative_error(ours, expected):
    return np.abs(ours.detach().numpy() - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
def test_the_equations(case):
    decoder = decoder_of(config_of(case)).double()
    tokens = tokens_of(decoder.config)
    expected = reference(decoder.config, decoder.state_dict(), tokens)
    assert relative_error(decoder(tokens), expected) < 1e-10
    assert relative_error(decoder.run_with_cache(tokens)[0], expected) < 1e-10


@pytest.mark.parametrize("case", ["relative, window, MLP, LN", "tied", "rotary, part of the head"])
def test_a_short_sequence_of_one_batch(case):
    decoder = decoder_of(config_of(case)).double()
    for length in (1, 4):
        tokens = tokens_of(decoder.config, 1, length=length)
        expected = reference(decoder.config, decoder.state_dict(), tokens)
        assert relative_error(decoder(tokens), expected) < 1e-10
        assert relative_error(decoder.run_with_cache(tokens)[0], expected) < 1e-10


def test_float32_is_near_float64():
    for case in CASES:
        decoder = decoder_of(config_of(case))
        tokens = tokens_of(decoder.config)
        assert decoder(tokens).dtype == torch.float32
        assert relative_error(decoder(tokens), reference(decoder.config, decoder.state_dict(), tokens)) < 3e-6


# -- fused against spelled out -------------------------------------------------------------------------------


def look(activation, hook):
    """A hook that changes nothing: attention is spelled out for it."""


def losses_and_gradients(decoder, tokens, hooks):
    decoder.zero_grad()
    logits = decoder.run_with_hooks(tokens, fwd_hooks=hooks)
    weight = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)
    (logits.sin() * weight).sum().backward()
    return logits, {name: p.grad.clone() for name, p in decoder.named_parameters()}


@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("case", CASES)
def test_fused_equals_spelled_out(case, n_models):
    decoder = decoder_of(config_of(case), n_models=n_models).double()
    tokens = tokens_of(decoder.config)
    fused, fused_gradients = losses_and_gradients(decoder, tokens, [])
    spelled = [(lambda name: name.endswith("hook_attn_scores"), look)]
    logits, gradients = losses_and_gradients(decoder, tokens, spelled)
    assert torch.allclose(fused, logits, rtol=1e-11, atol=1e-11)
    for name, gradient in gradients.items():
        assert torch.allclose(fused_gradients[name], gradient, rtol=1e-9, atol=1e-10), name


def test_second_derivatives_need_the_mathematical_kernel_or_a_hook():
    """Torch's fused CPU kernel has no second derivative; spelled out, or by the "math" kernel, it has."""
    decoder = decoder_of(config_of("relative", n_layers=1)).double()
    tokens, weight = tokens_of(decoder.config), decoder.blocks[0].attn.W_Q

    def curvature(loss):
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    hook = [("blocks.0.attn.hook_pattern", look)]
    spelled = curvature(decoder.run_with_hooks(tokens, return_type="loss", fwd_hooks=hook))
    with sdpa_kernel(SDPBackend.MATH):
        fused = curvature(decoder(tokens, return_type="loss"))
    assert spelled.abs().max() > 1e-3
    assert torch.allclose(fused, spelled, rtol=1e-8, atol=1e-10)


def test_no_later_token_changes_an_earlier_logit():
    for case in CASES:
        decoder = decoder_of(config_of(case)).double()
        tokens = tokens_of(decoder.config)
        later = tokens.clone()
        later[:, 5:] = (later[:, 5:] + 1) % decoder.config.d_vocab
        before, after = decoder(tokens), decoder(later)
        assert torch.allclose(before[:, :5], after[:, :5], atol=1e-12)
        assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


def test_a_window_forgets_what_lies_behind_it():
    """In one layer a logit sees the last window + 1 tokens: lags 0 to window."""
    decoder = decoder_of(config_of("window", n_layers=1)).double()
    tokens = tokens_of(decoder.config)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % decoder.config.d_vocab
    moved = (decoder(tokens) - decoder(changed)).abs().amax((0, 2))
    assert (moved[:3] > 1e-3).all()
    assert (moved[3:] == 0).all()


# -- hooks act ---------------------------------------------------------------------------------------------


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
    hook = lambda z, hook: 0 * z  # noqa: E731
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
    with pytest.raises(ValueError, match="no MLP"):
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


# -- tied weights, copies, files -----------------------------------------------------------------------------


def test_a_tied_tensor_is_one_parameter_with_the_gradient_of_both_its_uses():
    tied = decoder_of(config_of("tied, fewer outputs, LN")).double()
    free = HookedDecoder(config_of("tied, fewer outputs, LN", tied=False)).double()
    W_E = tied.embed.W_E
    free.load_state_dict({**tied.state_dict(), "unembed.W_U": W_E[:5].T})
    assert sum(parameter is W_E for parameter in tied.parameters()) == 1
    assert "unembed.W_U" not in tied.state_dict()
    assert {name for name, _ in free.named_parameters()} - {name for name, _ in tied.named_parameters()} == {
        "unembed.W_U"
    }
    tokens = tokens_of(tied.config)
    for model in (tied, free):
        model(tokens).sin().sum().backward()
    expected = free.embed.W_E.grad.clone()
    expected[:5] += free.unembed.W_U.grad.T
    assert torch.allclose(W_E.grad, expected, atol=1e-12)
    assert expected[:5].abs().min() > 0


@pytest.mark.parametrize("n_models", [None, 2])
def test_a_copy_of_a_tied_model_is_tied_to_itself(n_models):
    original = decoder_of(config_of("tied"), n_models=n_models)
    tokens = tokens_of(original.config)
    before, twin = original(tokens), copy.deepcopy(original)
    with torch.no_grad():
        twin.embed.W_E.mul_(2)
    assert torch.equal(twin.unembed.W_U, twin.embed.W_E.mT)
    assert torch.equal(original(tokens), before)
    assert not torch.allclose(twin(tokens), before)


@pytest.mark.parametrize("case", ["gelu and LN", *OWN])
@pytest.mark.parametrize("n_models", [None, 2])
def test_a_saved_state_dict_is_the_model(case, n_models, tmp_path):
    original = decoder_of(config_of(case), n_models=n_models)
    torch.save(original.state_dict(), tmp_path / "state.pt")
    again = HookedDecoder(original.config, n_models)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    tokens = tokens_of(original.config)
    assert torch.equal(again(tokens), original(tokens))


def test_another_models_weights_are_refused():
    decoder = decoder_of(config_of("LN"))
    with pytest.raises(RuntimeError, match=r"Missing key.*ln1"):
        decoder.load_state_dict(decoder_of(config_of()).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        decoder.load_state_dict(decoder_of(config_of("LN", d_head=4)).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        decoder.load_state_dict(decoder_of(config_of("LN"), n_models=2).state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*W_U"):
        decoder_of(config_of("tied")).load_state_dict(decoder_of(config_of()).state_dict())


# -- bad input, and more -------------------------------------------------------------------------------------


def test_tokens_that_do_not_fit():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config)
    with pytest.raises(ValueError, match=r"10 positions, expected 1 to n_ctx = 9"):
        decoder(torch.cat([tokens, tokens[:, :1]], dim=1))
    with pytest.raises(ValueError, match="0 positions"):
        decoder(tokens[:, :0])
    for wrong in (tokens[0], tokens[None]):
        with pytest.raises(ValueError, match=r"expected \[batch, position\]$"):
            decoder(wrong)
    for outside in (-1, 7):
        with pytest.raises(IndexError):
            decoder(torch.full((1, 3), outside))


def test_one_token_alone_and_an_empty_batch():
    decoder = decoder_of(config_of())
    assert decoder(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 7)
    assert decoder(torch.zeros(0, 9, dtype=torch.long)).shape == (0, 9, 7)


def test_loss_is_the_mean_next_token_cross_entropy():
    decoder = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(decoder.config)
    logits = decoder(tokens).detach().numpy()[:, :-1]
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probability, tokens.numpy()[:, 1:, None], -1)
    assert abs(decoder(tokens, return_type="loss").item() + picked.mean()) < 1e-12
    assert decoder(tokens, return_type=None) is None


def test_a_model_is_true_and_a_single_one_has_no_length():
    decoder = decoder_of(config_of())
    assert bool(decoder)
    with pytest.raises(TypeError, match="no length"):
        len(decoder)
