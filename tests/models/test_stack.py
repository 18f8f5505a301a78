"""A stack of m models is its m members, in all that it computes."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from decoder_cases import CASES, MIXERS, config_of, decoder_of, tokens_of

from mechmarkov.models import DecoderConfig, HookedDecoder

pytestmark = pytest.mark.tl


def members_of(config, n_models=3):
    return [decoder_of(config, seed=seed).double() for seed in range(n_models)]


def objective(logits):
    """Something uneven, so that no gradient is zero by symmetry."""
    shape = logits.shape[-3:]
    return (logits.sin() * torch.linspace(-1, 2, shape.numel(), dtype=logits.dtype).view(shape)).sum()


def size_of(gradient):
    """Its largest number, or 1: where Mamba norms nothing its gradients are of the order of 10^4."""
    return max(1.0, float(gradient.nan_to_num().abs().max()))


def assert_same_run(stack, members, tokens, member_tokens):
    """Logits, every activation, every gradient of the weights and of every activation."""
    names = [name for name in stack.hook_dict if not name.endswith("hook_scale")]

    def run(model, x):
        kept = {}
        model.zero_grad()

        def keep(activation, hook):
            activation.retain_grad()
            kept[hook.name] = activation

        with model.hooks(fwd_hooks=[(name, keep) for name in names]):
            objective(model(x)).backward()
        return kept

    logits, cache = stack.run_with_cache(tokens)
    with torch.no_grad():  # queries, keys and values of one product
        untrained, joined = stack.run_with_cache(tokens)
    assert torch.allclose(untrained, logits, atol=1e-11)
    for name, activation in cache.items():
        assert torch.allclose(joined[name], activation, atol=1e-11), name
    ours = run(stack, tokens)
    for i, (member, x) in enumerate(zip(members, member_tokens, strict=True)):
        expected, expected_cache = member.run_with_cache(x, return_cache_object=False)
        assert torch.allclose(logits[i], expected, atol=1e-11)
        assert torch.allclose(stack(tokens)[i], member(x), atol=1e-11)  # fused
        assert set(cache) == set(expected_cache)
        for name, activation in expected_cache.items():
            assert cache[name].shape == (len(members), *activation.shape), name
            assert torch.allclose(cache[name][i], activation, atol=1e-11), name
        theirs = run(member, x)
        for name in names:
            difference = (ours[name].grad[i] - theirs[name].grad).nan_to_num()
            assert difference.abs().max() < 1e-9 * size_of(theirs[name].grad), name
        gradients = {name: parameter.grad for name, parameter in member.named_parameters()}
        for name, parameter in stack.named_parameters():
            room = 1e-10 * size_of(gradients[name])
            assert torch.allclose(parameter.grad[i], gradients[name], rtol=1e-9, atol=room), name


@pytest.mark.parametrize("case", CASES | MIXERS)
def test_a_stack_is_its_members(case):
    config = config_of(case)
    members = members_of(config)
    stack = HookedDecoder.stack(members)
    assert len(stack) == stack.n_models == 3
    tokens = tokens_of(config)
    assert_same_run(stack, members, tokens, [tokens] * 3)
    own = tokens_of(config, 3, 2, length=5)
    assert_same_run(stack, members, own, list(own))


def test_with_every_optional_hook_point():
    for split in ("set_use_split_qkv_input", "set_use_attn_in"):
        for case in ("gelu and LN", "shortformer", "relative, window, MLP, LN"):
            config = config_of(case)
            members = members_of(config, 2)
            stack = HookedDecoder.stack(members)
            for model in (stack, *members):
                model.set_use_attn_result(True)
                getattr(model, split)(True)
                if not config.attn_only:
                    model.set_use_hook_mlp_in(True)
            tokens = tokens_of(config)
            assert_same_run(stack, members, tokens, [tokens] * 2)


@st.composite
def configs(draw):
    """Small models of every kind: widths of one, lengths of one, one head, one token."""
    small = st.integers(1, 4)
    kinds = ["standard", "shortformer", "rotary", "alibi", "relative", "relative_bias", "none"]
    positions = draw(st.sampled_from(kinds))
    d_vocab, attn_only = draw(st.integers(1, 5)), draw(st.booleans())
    tied = draw(st.booleans())
    return DecoderConfig(
        n_layers=draw(st.integers(1, 2)),
        d_model=draw(st.integers(2, 6)),
        n_ctx=draw(st.integers(1, 6)),
        d_head=2 * draw(small) if positions == "rotary" else draw(small),
        n_heads=draw(small),
        d_vocab=d_vocab,
        d_vocab_out=draw(st.integers(1, d_vocab if tied else 5)),
        attn_only=attn_only,
        act_fn=None if attn_only else draw(st.sampled_from(["relu", "gelu", "gelu_new"])),
        d_mlp=None if attn_only else draw(small),
        normalization_type=draw(st.sampled_from([None, "LN", "LNPre", "RMS", "RMSPre"])),
        eps=1e-2,
        positional_embedding_type=positions,
        rotary_adjacent_pairs=draw(st.booleans()),
        use_attn_scale=draw(st.booleans()),
        tied=tied,
        window=draw(st.none() | st.integers(0, 7)),
    )


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(configs(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
def test_any_stack_is_its_members(config, n_models, batch, seed):
    members = [decoder_of(config, seed=seed + i).double() for i in range(n_models)]
    stack = HookedDecoder.stack(members)
    tokens = tokens_of(config, n_models, batch, seed=seed)
    assert_same_run(stack, members, tokens, list(tokens))
    assert_same_run(stack, members, tokens[0], [tokens[0]] * n_models)


@pytest.mark.parametrize("case", ["gelu and LN", "tied", "relative", "rotary"])
def test_stacking_and_taking_a_member_are_inverse(case):
    members = members_of(config_of(case))
    stack = HookedDecoder.stack(members)
    for i, member in enumerate(members):
        for index in (i, i - 3):
            state = stack[index].state_dict()
            assert set(state) == set(member.state_dict())
            assert all(torch.equal(state[name], value) for name, value in member.state_dict().items())
    assert [m.embed.W_E.dtype for m in stack] == [torch.float64] * 3


def test_a_member_is_a_copy():
    stack = HookedDecoder.stack(members_of(config_of("tied")))
    tokens = tokens_of(stack.config)
    before, member = stack(tokens), stack[1]
    with torch.no_grad():
        member.embed.W_E.zero_()
    assert torch.equal(stack(tokens), before)
    assert member.unembed.W_U.abs().max() == 0


def test_there_is_no_such_member():
    stack = HookedDecoder.stack(members_of(config_of()))
    for index in (3, -4):
        with pytest.raises(IndexError, match=rf"member {index} of a stack of 3"):
            stack[index]
    with pytest.raises(TypeError, match="no length"):
        stack[0][0]


def test_what_cannot_be_stacked():
    with pytest.raises(ValueError, match="cannot stack no models"):
        HookedDecoder.stack([])
    with pytest.raises(ValueError, match="share one config"):
        HookedDecoder.stack([decoder_of(config_of()), decoder_of(config_of("LN"))])
    stack = HookedDecoder.stack(members_of(config_of()))
    with pytest.raises(ValueError, match="single models"):
        HookedDecoder.stack([stack, stack])
    with pytest.raises(ValueError, match="n_models is 0, expected at least 1"):
        HookedDecoder(config_of(), n_models=0)


def test_tokens_of_another_stack():
    stack = HookedDecoder.stack(members_of(config_of()))
    tokens = tokens_of(stack.config, 2, 4)
    with pytest.raises(ValueError, match=r"shape \[2, 4, 9\], expected .* \[3, batch, position\]"):
        stack(tokens)


def test_a_token_that_is_none_never_reads_a_neighbours_embedding():
    stack = HookedDecoder.stack(members_of(config_of()))
    for member in range(3):
        for outside in (-1, 7):
            tokens = tokens_of(stack.config, 3, 2)
            tokens[member, 1, 4] = outside
            with pytest.raises(IndexError):
                stack(tokens)


def test_members_do_not_touch_each_other():
    """A loss of one member alone moves no other member's weights."""
    stack = HookedDecoder.stack(members_of(config_of("gelu and LN")))
    stack(tokens_of(stack.config))[1].sin().sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad[0].abs().max() == parameter.grad[2].abs().max() == 0, name
        # A shift of all keys' scores alike changes no pattern: b_K has no gradient.
        assert name.endswith("b_K") or parameter.grad[1].abs().max() > 1e-6, name


@torch.no_grad()
def test_a_hook_that_writes_in_place_into_queries_leaves_keys_and_values():
    config = DecoderConfig(n_layers=1, n_heads=2, d_model=8, d_head=4, n_ctx=6, d_vocab=3)
    stack, tokens = HookedDecoder.stack(members_of(config)), tokens_of(config)
    names = [f"blocks.0.attn.hook_{side}" for side in "qkv"]
    _, before = stack.run_with_cache(tokens, names_filter=names)
    with stack.hooks(fwd_hooks=[(names[0], lambda q, hook: q.zero_())]):
        _, after = stack.run_with_cache(tokens, names_filter=names)
    assert not after[names[0]].any()
    for name in names[1:]:
        assert torch.equal(after[name], before[name]), name
