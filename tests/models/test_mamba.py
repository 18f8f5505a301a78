"""Mamba's mixers against their recurrences in numpy: parallel, as attention, stacked, and their gradients."""

import numpy as np
import pytest
import torch
from decoder_cases import MAMBA2, MAMBAS, config_of, decoder_of, tokens_of
from mamba_oracle import logits as oracle

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.attention import limit_window, override_attention
from mechmarkov.interventions.paths import paths
from mechmarkov.models import DecoderConfig, HookedDecoder, initialise
from mechmarkov.models.mamba import scan

LENGTH = MAMBA2["n_ctx"]


def model_of(case):
    return decoder_of(config_of(case)).double()


@pytest.fixture(params=MAMBAS)
def case(request):
    return request.param


def test_it_equals_the_recurrence(case):
    model = model_of(case)
    tokens = tokens_of(model.config, length=LENGTH)
    expected = [oracle(row, model.state_dict(), model.config) for row in tokens.numpy()]
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(model(tokens).detach(), expected, rtol=1e-10, atol=1e-10)
    for point in ("effective", "pattern", "attn_scores", "state", "v"):  # spelled out for a hook, equal
        hooks = [(f"blocks.0.attn.hook_{point}", lambda x, hook: None)]
        hooked = model.run_with_hooks(tokens, fwd_hooks=hooks)
        np.testing.assert_allclose(hooked.detach(), expected, rtol=1e-9, atol=1e-9, err_msg=point)


@pytest.mark.parametrize("case", ["Mamba-2, groups of heads", "Mamba"])
def test_its_gradient_is_that_of_the_recurrence(case):
    """Along a random direction, by central differences of the oracle."""
    model = model_of(case)
    tokens = tokens_of(model.config, 1, length=LENGTH)
    weight = torch.randn(LENGTH, model.config.d_vocab, generator=torch.Generator().manual_seed(1)).double()
    (model(tokens)[0] * weight).sum().backward()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    rng = np.random.default_rng(0)
    way = {name: rng.standard_normal(value.shape) for name, value in state.items()}
    gradient = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}

    def value(step, names):
        moved = {n: v + step * way[n] if n in names else v for n, v in state.items()}
        return float((oracle(tokens[0].numpy(), moved, model.config) * weight.numpy()).sum())

    for names in ([name for name in state if "attn" in name], ["embed.W_E"]):
        slope = (value(1e-6, names) - value(-1e-6, names)) / 2e-6
        assert slope == pytest.approx(sum((gradient[n] * way[n]).sum() for n in names), rel=1e-5)
    assert all(np.abs(one).max() > 0 for one in gradient.values())


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_the_scan_does_not_depend_on_its_chunks(chunk):
    generator = torch.Generator().manual_seed(0)
    C, B, x = (torch.randn(2, 3, 29, 2, d, generator=generator).double() for d in (4, 4, 5))
    log = -torch.rand(2, 3, 29, 2, generator=generator).double()
    torch.testing.assert_close(scan(log, C, B, x, chunk), scan(log, C, B, x, 7), rtol=1e-10, atol=1e-12)
    forgetful = scan(log - 1e4, C, B, x, chunk)  # a state that keeps nothing is its last input
    torch.testing.assert_close(forgetful, (C * B).sum(-1, keepdim=True) * x, rtol=1e-10, atol=1e-12)


def test_its_pattern_is_the_share_of_effective_weight(case):
    model = model_of(case)
    _, cache = model.run_with_cache(tokens_of(model.config))
    M, pattern = cache["blocks.0.attn.hook_effective"], cache["blocks.0.attn.hook_pattern"]
    assert (M < 0).any()
    assert (M.triu(1) == 0).all()
    torch.testing.assert_close(pattern, M.abs() / M.abs().sum(-1, keepdim=True))
    state, C = cache["blocks.0.attn.hook_state"], cache.cache_dict.get("blocks.0.attn.hook_conv_q")
    x = cache["blocks.0.attn.hook_conv_v"]
    read = torch.einsum("bhqk,bkhd->bqhd", M, x)
    if C is not None and model.config.n_groups == 1:
        from_state = torch.einsum("bqn,bqhnd->bqhd", C[..., 0, :], state)
        D = model.blocks[0].attn.D
        torch.testing.assert_close(from_state + D[:, None] * x, read)


def test_hooks_on_pattern_state_and_gates_take_effect():
    model = model_of("Mamba-2")
    tokens = tokens_of(model.config)
    before, logits = model.run_with_cache(tokens)[1], model(tokens)
    for point, edit in {
        "state": lambda x, hook: 0 * x,
        "delta": lambda x, hook: 2 * x,
        "log_decay": lambda x, hook: x - 1,
        "conv_v": lambda x, hook: -x,
        "conv_k": lambda x, hook: 2 * x,
        "g": lambda x, hook: x + 1,
        "attn_scores": lambda x, hook: 2 * x,
        "effective": lambda x, hook: x.abs(),
    }.items():
        changed = model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.0.attn.hook_{point}", edit)])
        assert (changed - logits).abs().max() > 1e-3, point
    # Without its state a head is left with D x.
    y = {}
    hooks = [
        ("blocks.0.attn.hook_state", lambda x, hook: 0 * x),
        ("blocks.0.attn.hook_scale", lambda x, hook: y.update(scale=x)),
        ("blocks.0.attn.hook_z", lambda x, hook: y.update(z=x)),
    ]
    model.run_with_hooks(tokens, fwd_hooks=hooks)
    mixer = model.blocks[0].attn
    gate = torch.nn.functional.silu(before["blocks.0.attn.hook_g"])
    left = mixer.D[:, None] * before["blocks.0.attn.hook_conv_v"] * gate
    torch.testing.assert_close(y["z"], left / y["scale"] * mixer.w)


def test_a_window_leaves_a_head_its_own_position():
    model = model_of("Mamba-2")
    tokens, seen = tokens_of(model.config), {}
    _, cache = model.run_with_cache(tokens)
    with limit_window(model, 0, heads="L0H1"):
        keep = ("blocks.0.attn.hook_pattern", lambda x, hook: seen.update(pattern=x))
        model.run_with_hooks(tokens, fwd_hooks=[keep])
    eye = torch.eye(tokens.shape[1], dtype=torch.float64)
    torch.testing.assert_close(seen["pattern"][:, 1], eye.expand_as(seen["pattern"][:, 1]))
    torch.testing.assert_close(seen["pattern"][:, 0], cache["blocks.0.attn.hook_pattern"][:, 0])


def test_uniform_attention_spreads_the_same_weight():
    model = model_of("Mamba-2, bare, with positions")  # whose z is the weighted sum itself
    tokens, seen = tokens_of(model.config), {}
    _, cache = model.run_with_cache(tokens)
    M, x = cache["blocks.0.attn.hook_effective"], cache["blocks.0.attn.hook_conv_v"]
    even = M.abs().sum(-1, keepdim=True) / torch.arange(1, M.shape[-1] + 1)[:, None]
    expected = torch.einsum("bhqk,bkhd->bqhd", even * M.sign(), x)
    with override_attention(model, ["L0H0", "L0H1", "L0H2"], to="uniform"):
        keep = ("blocks.0.attn.hook_z", lambda z, hook: seen.update(z=z))
        model.run_with_hooks(tokens, fwd_hooks=[keep])
    torch.testing.assert_close(seen["z"], expected)


@pytest.mark.parametrize("case", ["Mamba-2 with norms, one layer", "Mamba-2, groups of heads"])
def test_paths_end_in_its_values_keys_and_queries(case):
    model = model_of(case)
    tokens = tokens_of(model.config)
    assert {("embed", f"L0H0.{side}") for side in "QKV"} <= set(paths(model))
    before = model(tokens)
    for side in "QKV":
        with ablate_path(model, "embed", f"L0H0.{side}"):
            assert (model(tokens) - before).abs().max() > 1e-6
    with ablate(model, "L0H0", kind="zero"):
        assert (model(tokens) - before).abs().max() > 1e-6
    torch.testing.assert_close(model(tokens), before)


def test_a_path_into_values_is_the_same_computed_by_hand():
    """All of the stream goes into the values of one head at zero: its values are those of zero."""
    model = model_of("Mamba-2, groups of heads")
    tokens = tokens_of(model.config)
    mixer, seen = model.blocks[0].attn, {}
    with ablate_path(model, "embed", "L0H1.V", kind="zero"):
        keep = ("blocks.0.attn.hook_v", lambda x, hook: seen.update(v=x))
        model.run_with_hooks(tokens, fwd_hooks=[keep])
    torch.testing.assert_close(seen["v"][..., 1, :], mixer.b_V[1].expand_as(seen["v"][..., 1, :]))


def test_a_start_decays_slowly():
    config = config_of("Mamba-2")
    stack = HookedDecoder(config, n_models=2)
    initialise(stack, [3, 5])
    mixer = stack.blocks[0].attn
    step = torch.nn.functional.softplus(mixer.b_dt)
    assert ((step > 0.9e-3) & (step < 0.11)).all()
    assert ((mixer.A_log.exp() >= 1) & (mixer.A_log.exp() <= 16)).all()
    assert (mixer.conv_V.abs() <= 0.5).all()
    assert mixer.conv_V.std() > 0.2
    zero = HookedDecoder(config)
    initialise(zero, [0], scheme="zero")
    assert (zero.blocks[0].attn.conv_V == 0).all()


def test_a_config_fills_in_what_is_not_given():
    shape = {"n_layers": 1, "d_model": 40, "n_ctx": 9, "d_vocab": 3, "attn_only": True, "d_state": 4}
    config = DecoderConfig(**shape, d_head=8, mixer="mamba")
    assert (config.d_conv, config.n_groups, config.conv_act_fn) == (4, 1, "silu")
    assert (config.use_gate, config.use_gate_norm, config.positional_embedding_type) == (True, True, "none")
    channels = DecoderConfig(**shape, d_head=1, n_heads=80, mixer="mamba1")
    assert (channels.dt_rank, channels.use_gate_norm, channels.n_groups) == (3, False, 80)
    assert DecoderConfig(**channels.model_dump()) == channels


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_state": None}, "d_state is None, expected the size of a state where mixer is 'mamba'"),
        ({"n_groups": 2}, "n_groups is 2, expected a divisor of n_heads 3"),
        ({"window": 3}, "window is 3, expected None where mixer is 'mamba'"),
        (
            {"positional_embedding_type": "relative"},
            "positional_embedding_type is 'relative', expected 'none'",
        ),
        ({"positional_embedding_type": "alibi"}, "positional_embedding_type is 'alibi', expected 'none'"),
        ({"n_key_value_heads": 1}, "n_key_value_heads is 1, expected None where mixer is 'mamba'"),
        ({"dt_rank": 1}, "dt_rank is 1, expected None where mixer is 'mamba'"),
        ({"mixer": "mamba1"}, "d_head is 5, expected 1 where mixer is 'mamba1'"),
        ({"mixer": "attention"}, "d_state is 3, expected it left out where mixer is 'attention'"),
    ],
)
def test_what_cannot_be_is_one_line_with_field_value_and_expectation(changes, words):
    with pytest.raises(ValueError, match=words):
        config_of("Mamba-2", **changes)
