"""Interventions against independently edited weights, by-hand arithmetic, and their own undoing."""

import re

import numpy as np
import pytest
import torch
from intervention_cases import ALL, close, decoder_of, tokens_of
from probing_cases import config_of

import mechmarkov as mm
from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.attention import limit_window, override_attention
from mechmarkov.interventions.belief import fit_reading, force_reading
from mechmarkov.interventions.paths import paths
from mechmarkov.interventions.replace import replace_component
from mechmarkov.interventions.tokens import donors
from mechmarkov.models import HookedDecoder
from mechmarkov.models.components import component_names


def edited(model: HookedDecoder, *names: str, head: int | None = None) -> HookedDecoder:
    """A copy with some parameters zero."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name in names:
        (state[name] if head is None else state[name].select(-3, head)).zero_()
    copy = HookedDecoder(model.config, model.n_models)
    copy.load_state_dict(state)
    return copy


def with_z(model: HookedDecoder, tokens: torch.Tensor, layer: int, z: torch.Tensor) -> torch.Tensor:
    return model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", lambda x, hook: z)])


@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("shape", ALL)
def test_zero_ablation_is_a_model_with_those_weights_zero(shape, n_models):
    model = decoder_of(shape, n_models=n_models)
    tokens = tokens_of(model)
    before = model(tokens)
    for name in component_names(model.config):
        layer = name[1:2]
        if name == "direct" or (name == "embed" and model.config.tied):
            continue  # no weight is the direct path's own
        if name == "embed":
            other = edited(model, "embed.W_E")
        elif name == "pos_embed":
            other = edited(model, "pos_embed.W_pos")
        elif name == "bias":
            stands_last = "ln_final" if model.config.final_norm else f"blocks.{model.config.n_layers - 1}.ln2"
            norm = [f"{stands_last}.b"] * (model.config.normalization_type == "LN")
            norm *= model.config.final_norm or not model.config.norm_first
            output = [f"blocks.{i}.attn.b_O" for i in range(model.config.n_layers)]
            other = edited(model, "unembed.b_U", *output, *norm)
        elif name.endswith("mlp"):
            other = edited(model, f"blocks.{layer}.mlp.W_out", f"blocks.{layer}.mlp.b_out")
        else:
            other = edited(model, f"blocks.{layer}.attn.W_O", head=int(name[3:]))
        with ablate(model, name):
            assert close(model(tokens), other(tokens)), name
        assert not torch.equal(other(tokens), before) or model.config.n_ctx == 1
        assert torch.equal(model(tokens), before), name


@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "shortformer", "relative", "relative bias"])
def test_mean_ablation_puts_every_position_at_its_mean(shape):
    model = decoder_of(shape)
    tokens, reference = tokens_of(model), tokens_of(model, batch=200, seed=2)
    sites = {"embed": "hook_embed", "L0H1": "blocks.0.attn.hook_z", "L1H0": "blocks.1.attn.hook_z"}
    if not model.config.attn_only:
        sites["L1.mlp"] = "blocks.1.hook_mlp_out"
    for over in (tokens, reference):
        _, cache = model.run_with_cache(over)
        for name, site in sites.items():
            mean = sum(cache[site]) / len(over)

            def hook(x, hook, mean=mean, name=name):
                x = x.clone()
                if "H" in name:
                    x[:, :, int(name[3:])] = mean[:, int(name[3:])]
                else:
                    x[:] = mean
                return x

            expected = model.run_with_hooks(tokens, fwd_hooks=[(site, hook)])
            given = None if over is tokens else reference
            with ablate(model, name, kind="mean", reference=given):
                assert close(model(tokens), expected), name


@pytest.mark.parametrize("kind", ["resample", "same_token"])
@pytest.mark.parametrize("n_models", [None, 2])
def test_resampling_takes_each_value_from_its_donor(kind, n_models):
    model = decoder_of("LN and MLP", n_models=n_models)
    tokens = tokens_of(model, batch=8)
    labels = tokens if kind == "same_token" else torch.zeros_like(tokens)
    giver = donors(labels, seed=5)
    members = [model] if n_models is None else [model[i] for i in range(n_models)]
    expected = []
    for member in members:
        _, cache = member.run_with_cache(tokens)
        z = cache["blocks.1.attn.hook_z"].clone()
        for b in range(8):
            for t in range(tokens.shape[1]):
                z[b, t, 1] = cache["blocks.1.attn.hook_z"][giver[b, t], t, 1]
        expected.append(with_z(member, tokens, 1, z))
    with ablate(model, "L1H1", kind=kind, seed=5):
        found = model(tokens)
    assert close(found, expected[0] if n_models is None else torch.stack(expected))


@pytest.mark.parametrize("name", ["ablate", "limit_window"])
def test_an_intervention_without_its_block(name):
    model = mm.example("walk").model()
    begun = getattr(mm, name)(model, {"ablate": "L0H0", "limit_window": 2}[name])
    said = f"{name}(…) is not a model, expected a block: with {name}(…) as changed: changed(tokens)"
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        begun(torch.zeros(1, 3, dtype=torch.long))
    assert repr(begun).startswith(f"{name}(…), which changes nothing yet: with {name}(…)")


def test_a_query_token_is_matched_by_the_token_before_it():
    model = decoder_of("plain", d_vocab=4, d_vocab_out=3)
    tokens = tokens_of(model, batch=12)
    tokens[:, -1] = 3
    labels = tokens.clone()
    labels[:, -1] = tokens[:, -2]
    giver = donors(labels)
    _, cache = model.run_with_cache(tokens)
    z = cache["blocks.0.attn.hook_z"].clone()
    position = torch.arange(tokens.shape[1])
    z[:, :, 0] = cache["blocks.0.attn.hook_z"][giver, position, 0]
    expected = with_z(model, tokens, 0, z)
    with ablate(model, "L0H0", kind="same_token"):
        assert close(model(tokens), expected)


@pytest.mark.parametrize("shape", [shape for shape in ALL if shape not in ("relative bias", "ALiBi")])
def test_uniform_attention_is_that_of_zero_queries(shape):
    model = decoder_of(shape, n_models=2)
    tokens = tokens_of(model)
    heads = [f"L0H{head}" for head in range(model.config.n_heads)]
    other = edited(model, "blocks.0.attn.W_Q", "blocks.0.attn.b_Q")
    with override_attention(model, heads, to="uniform"):
        assert close(model(tokens), other(tokens))


@pytest.mark.parametrize("lag", [0, 1])
def test_parent_attention_reads_the_parent_alone(lag):
    model = decoder_of("plain", n_layers=1)
    tokens = tokens_of(model)
    _, cache = model.run_with_cache(tokens)
    parent = (torch.arange(7) - lag).clamp_min(0)
    z = cache["blocks.0.attn.hook_z"].clone()
    z[:, :, 1] = cache["blocks.0.attn.hook_v"][:, parent, 1]
    expected = with_z(model, tokens, 0, z)
    with override_attention(model, "L0H1", to="parent", parent_lag=lag):
        assert close(model(tokens), expected)


@pytest.mark.parametrize("shape", ["plain", "rotary", "relative", "relative bias", "ALiBi", "window"])
def test_a_limited_window_is_the_configs(shape):
    model = decoder_of(shape)
    tokens = tokens_of(model)
    for back in (0, 1):
        other = HookedDecoder(config_of(shape, window=back))
        other.load_state_dict(model.state_dict())
        with limit_window(model, back):
            assert close(model(tokens), other(tokens))
    before = model(tokens)
    with limit_window(model, 7):
        assert close(model(tokens), before)


def test_a_window_for_one_head_leaves_the_others():
    model = decoder_of("plain", n_layers=1)
    tokens = tokens_of(model)
    _, whole = model.run_with_cache(tokens)
    with limit_window(model, 1, heads="L0H1"):
        _, cache = model.run_with_cache(tokens)
    assert close(cache["blocks.0.attn.hook_pattern"][:, 0], whole["blocks.0.attn.hook_pattern"][:, 0])
    limited = cache["blocks.0.attn.hook_pattern"][:, 1]
    assert limited.tril(-2).abs().max() == 0
    assert torch.allclose(limited.sum(-1), torch.ones(1))


@pytest.mark.parametrize("heads", [["L0H0", "L0H1"], ["L0H1"]])
def test_uniform_attention_keeps_to_a_limited_window(heads):
    """Over the query's own position and the one before it, whichever is entered first."""
    model = decoder_of("plain", n_layers=1)
    tokens = tokens_of(model, batch=1)
    expected = torch.ones(7, 7).tril().triu(-1)
    expected = (expected / expected.sum(-1, keepdim=True)).expand(1, len(heads), 7, 7)
    chosen = [int(name[-1]) for name in heads]
    for enter in (
        lambda: (limit_window(model, 1, heads=heads), override_attention(model, heads, to="uniform")),
        lambda: (override_attention(model, heads, to="uniform"), limit_window(model, 1, heads=heads)),
    ):
        first, second = enter()
        with first, second:
            _, cache = model.run_with_cache(tokens)
        assert close(cache["blocks.0.attn.hook_pattern"][:, chosen], expected)


@pytest.mark.parametrize("shape", [*ALL, "norms without eps"])
def test_uniform_attention_is_one_over_what_a_query_may_attend_to(shape):
    fields = {"use_qk_norm": True, "eps": 0.0} if shape == "norms without eps" else {}
    model = decoder_of("plain" if fields else shape, **fields)
    last = model.config.n_heads - 1
    with override_attention(model, f"L0H{last}", to="uniform"):
        _, cache = model.run_with_cache(tokens_of(model, batch=1))
    found = cache["blocks.0.attn.hook_pattern"][0, last]
    window = len(found) if model.config.window is None else model.config.window
    allowed = torch.ones_like(found).tril().triu(-window)
    assert close(found, allowed / allowed.sum(-1, keepdim=True))


@pytest.mark.parametrize("to", ["uniform", "parent"])
def test_a_replaced_pattern_has_the_axes_of_a_pattern(to):
    model = decoder_of("plain", n_models=2)
    tokens = tokens_of(model, batch=3)
    with override_attention(model, ["L0H0", "L0H1"], to=to):
        _, cache = model.run_with_cache(tokens)
    assert cache["blocks.0.attn.hook_pattern"].shape == (2, 3, 2, 7, 7)


# -- undoing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "enter",
    [
        lambda model: ablate(model, "L0H0"),
        lambda model: ablate(model, "L1.mlp", kind="resample"),
        lambda model: ablate(model, "bias"),
        lambda model: ablate(model, "direct", kind="mean"),
        lambda model: ablate_path(model, "L0H1", "L1H0.K", kind="same_token"),
        lambda model: ablate_path(model, "embed", "L0.mlp"),
        lambda model: override_attention(model, "L0H0", to="uniform"),
        lambda model: limit_window(model, 1),
    ],
)
def test_everything_is_undone_after_an_exception_too(enter):
    model = decoder_of("LN and MLP")
    tokens = tokens_of(model)
    before, points = model(tokens), list(model.hook_dict)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    changed = []

    def fail():
        with enter(model):
            changed.append(model(tokens))
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert not close(changed[0], before)
    assert torch.equal(model(tokens), before)
    assert list(model.hook_dict) == points
    assert not any(point._forward_hooks for point in model.hook_dict.values())
    assert not model.embed._forward_pre_hooks
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_interventions_nest_and_leave_what_was_there_before():
    model = decoder_of("plain")
    tokens = tokens_of(model)
    model.set_use_split_qkv_input(True)
    with ablate(model, "L0H0"):
        one = model(tokens)
        with ablate(model, "L0H1"), ablate_path(model, "embed", "L1H0.Q"):
            assert not close(model(tokens), one)
        assert torch.equal(model(tokens), one)
    both = edited(edited(model, "blocks.0.attn.W_O", head=0), "blocks.0.attn.W_O", head=1)
    with ablate(model, "L0H0"), ablate(model, "L0H1"):
        assert close(model(tokens), both(tokens))
    assert "blocks.0.hook_q_input" in model.hook_dict


@pytest.mark.parametrize(
    ("enter", "says"),
    [
        (lambda m: ablate(m, "L5H0"), r"component is 'L5H0', expected one of embed, pos_embed, L0H0"),
        (lambda m: ablate(m, "L0H0", kind="none"), "kind is 'none', expected one of 'zero', 'mean'"),
        (lambda m: ablate(m, "bias", kind="mean"), "only 'zero' changes it"),
        (lambda m: ablate(m, "pos_embed", kind="mean"), "only 'zero' changes it"),
        (
            lambda m: ablate(m, "embed", kind="resample", reference=torch.zeros(2, 7, dtype=torch.long)),
            "only a mean is taken over a reference",
        ),
        (lambda m: ablate_path(m, "L1H0", "L0H0.Q"), "L1H0 does not come before L0H0.Q"),
        (lambda m: ablate_path(m, "L0H0", "L0H1.Q"), "L0H0 does not come before L0H1.Q"),
        (lambda m: ablate_path(m, "L0H0", "L1H7.Q"), "receiver is 'L1H7.Q', expected one of L0H0.Q"),
        (lambda m: ablate_path(m, "L0H0", "L0.mlp"), "receiver is 'L0.mlp', expected one of L0H0.Q"),
        (lambda m: ablate_path(m, "direct", "logits"), "sender is 'direct', expected one of embed"),
        (lambda m: override_attention(m, "L0.mlp", to="uniform"), "component is 'L0.mlp'"),
        (lambda m: override_attention(m, "embed", to="uniform"), "heads holds 'embed', expected heads"),
        (
            lambda m: override_attention(m, "L0H0", to="nowhere"),
            "to is 'nowhere', expected 'uniform' or 'parent'",
        ),
        (lambda m: limit_window(m, -1), "back is -1, expected at least 0"),
        (lambda m: replace_component(m, "direct", torch.zeros_like), "no hook point"),
    ],
)
def test_what_cannot_be_done_is_refused(enter, says):
    model = decoder_of("plain")
    with pytest.raises(ValueError, match=says), enter(model):
        pass


def test_what_one_sequence_cannot_give_is_refused():
    model = decoder_of("plain")
    one = tokens_of(model, batch=1)
    with ablate(model, "L0H0", kind="mean"), pytest.raises(ValueError, match="give a reference"):
        model(one)
    with ablate(model, "L0H0", kind="resample"), pytest.raises(ValueError, match="no other"):
        model(one)
    short = tokens_of(model)[:, :3]
    with (
        ablate(model, "L0H0", kind="mean", reference=short),
        pytest.raises(ValueError, match="reference has 3 positions, expected at least 7"),
    ):
        model(one)
    with ablate(model, "L0H0", kind="mean", reference=tokens_of(model)):
        assert model(one).isfinite().all()


def test_shortformer_positions_do_not_reach_what_they_are_not_added_to():
    model = decoder_of("shortformer")
    with (
        pytest.raises(ValueError, match="go only to queries and keys"),
        ablate_path(model, "pos_embed", "logits"),
    ):
        pass
    assert ("pos_embed", "L1H0.Q") in paths(model)
    assert ("pos_embed", "L1H0.V") not in paths(model)


@pytest.mark.parametrize(
    "edit",
    [
        lambda run: mm.ablate(run, "L0H0"),
        lambda run: mm.ablate(run, ["L0H0", "L1H0"]),
        lambda run: mm.ablate_path(run, "embed", "logits"),
        lambda run: mm.override_attention(run, "L0H0", to="uniform"),
        lambda run: mm.limit_window(run, 1),
        lambda run: force_reading(run, 0, fit_reading(np.eye(3), np.eye(3)), np.eye(3)[0]),
    ],
)
def test_a_run_is_not_a_model(edit):
    with pytest.raises(TypeError, match="model is a Run, expected a HookedDecoder"):
        edit(mm.example("walk")).__enter__()
