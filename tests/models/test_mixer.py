"""A mixer that is not attention runs in a decoder; what needs attention weights refuses it by name."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, randomise, tokens_of
from uniform_mixer import Uniform

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.attention import limit_window, override_attention
from mechmarkov.interventions.paths import paths
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.kernels import use_fast_kernels
from mechmarkov.models.mixer import MIXERS, Mixer


def pair_of(case="gelu and LN", n_models=None):
    """A decoder with a stub in its first layer, and one whose attention there is uniform: zero queries."""
    config = config_of(case)
    stub, attention = (decoder_of(config, n_models=n_models).double() for _ in range(2))
    stub.blocks[0].attn = Uniform(config, () if n_models is None else (n_models,)).double()
    stub.setup()
    randomise(stub, seed=1)
    with torch.no_grad():
        for name in ("W_Q", "b_Q"):
            attention.get_parameter(f"blocks.0.attn.{name}").zero_()
    attention.load_state_dict(stub.state_dict(), strict=False)
    return stub, attention, tokens_of(config)


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize("case", ["plain", "gelu and LN", "shortformer"])
def test_a_decoder_runs_with_another_mixer(case, n_models):
    stub, attention, tokens = pair_of(case, n_models)
    assert torch.allclose(stub(tokens), attention(tokens), atol=1e-12)
    use_fast_kernels(stub)
    hooks = [("blocks.0.attn.hook_z", lambda z, hook: 2 * z)]
    doubled = [model.run_with_hooks(tokens, fwd_hooks=hooks) for model in (stub, attention)]
    assert torch.allclose(*doubled, atol=1e-12)
    assert not torch.allclose(doubled[0], stub(tokens))


@pytest.mark.parametrize(
    "enter", [lambda m, h: override_attention(m, h, to="uniform"), lambda m, h: limit_window(m, 1, heads=h)]
)
def test_what_needs_attention_weights_refuses_it_by_name(enter):
    stub, attention, tokens = pair_of()
    with (
        pytest.raises(ValueError, match="'L0H1', but a Uniform"),
        enter(stub, ["L1H0", "L0H1"]),
    ):
        pass
    with enter(stub, "L1H0"), enter(attention, "L1H0"):
        assert torch.allclose(stub(tokens), attention(tokens), atol=1e-12)


def test_a_window_for_all_heads_names_the_first_without_attention_weights():
    with (
        pytest.raises(ValueError, match="'L0H0', but a Uniform"),
        limit_window(pair_of()[0], 1),
    ):
        pass


@pytest.mark.parametrize(
    ("sender", "receiver"), [("embed", "L0H1.V"), ("L0H2", "L1H0.K"), ("L0H0", "logits")]
)
def test_its_paths_are_those_of_its_inputs(sender, receiver):
    stub, attention, tokens = pair_of()
    assert set(paths(attention)) - set(paths(stub)) == {
        (sender, f"L0H{head}.{side}")
        for sender in ("embed", "pos_embed")
        for head in range(3)
        for side in "QK"
    }
    with ablate_path(stub, sender, receiver), ablate_path(attention, sender, receiver):
        assert torch.allclose(stub(tokens), attention(tokens), atol=1e-12)
    with pytest.raises(ValueError, match=r"receiver is 'L0H1\.Q'"), ablate_path(stub, "embed", "L0H1.Q"):
        pass


def test_its_heads_are_ablated_and_its_value_circuit_is_read():
    stub, attention, tokens = pair_of(n_models=2)
    with ablate(stub, "L0H1", kind="mean"), ablate(attention, "L0H1", kind="mean"):
        assert torch.allclose(stub(tokens), attention(tokens), atol=1e-12)
    x = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.einsum("mrd,mhde,mhef->mhrf", x, stub.blocks[0].attn.W_V, stub.blocks[0].attn.W_O)
    assert torch.allclose(stub.blocks[0].attn.value_circuit(x), expected, atol=1e-12)


@pytest.mark.parametrize("n_models", [None, 2])
def test_a_config_chooses_the_mixer_by_its_name(n_models):
    config = config_of("gelu and LN", mixer="uniform")
    model = decoder_of(config, n_models=n_models)
    assert [type(block.attn) for block in model.blocks] == [Uniform, Uniform]
    assert MIXERS["uniform"] is Uniform
    assert DecoderConfig(**config.model_dump()) == config
    with pytest.raises(ValueError, match="mixer is 'hyena', expected one of "):
        HookedDecoder(config_of(mixer="hyena"))


def test_heads_that_share_values_need_no_line_of_the_mixer():
    shared = decoder_of(config_of("Llama", mixer="uniform"))
    alone = HookedDecoder(config_of("Llama", mixer="uniform", n_key_value_heads=None))
    states = shared.state_dict()
    for layer, block in enumerate(shared.blocks):
        for name in ("W_V", "b_V"):
            del states[f"blocks.{layer}.attn._{name}"]
            states[f"blocks.{layer}.attn.{name}"] = getattr(block.attn, name)
    alone.load_state_dict(states)
    tokens = tokens_of(shared.config)
    torch.testing.assert_close(shared(tokens), alone(tokens))


def test_two_mixers_of_one_name_are_an_error():
    with pytest.raises(
        ValueError, match=r"mixer 'attention' is mechmarkov\.models\.attention\.Attention already"
    ):

        class Other(Mixer, name="attention"):
            pass
