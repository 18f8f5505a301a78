"""The compiled MLP against autograd in float64, and where it is used."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of

from mechmarkov.models.fast.registers import WIDTH
from mechmarkov.models.fast.relu_mlp import LENGTH, relu_mlp_fused
from mechmarkov.models.fast.use import use_fast_kernels

NODE = "_ReluMlpBackward"


def inputs(tokens, d_model=5, d_mlp=7, models=2, seed=0):
    """Of pre-activations none is so close to zero that float32 and float64 disagree on its sign."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(models, d_model, tokens), (models, d_model, d_mlp), (models, d_mlp)]
    x, W_in, b_in, W_out, b_out = (
        torch.randn(shape, generator=generator)
        for shape in [*shapes, (models, d_mlp, d_model), (models, d_model)]
    )
    x = x.mT  # tokens last in memory
    unclear = ((x.double() @ W_in.double() + b_in.double()[:, None]).abs() < 1e-5).any(-1)
    x[unclear] = 0
    return [tensor.requires_grad_() for tensor in (x, W_in, b_in, W_out, b_out)]


def explicit(x, W_in, b_in, W_out, b_out):
    return (x @ W_in + b_in[:, None]).relu() @ W_out + b_out[:, None]


def with_gradients(mlp, leaves):
    out = mlp(*leaves)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, slopes)]


def assert_close(leaves):
    """Relative to the largest number: sums of 600 tokens round by a few of 1.2e-7."""
    exact = [x.detach().double().requires_grad_() for x in leaves]
    for ours, theirs in zip(
        with_gradients(relu_mlp_fused, leaves), with_gradients(explicit, exact), strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-6 * theirs.detach().abs().max())


@pytest.mark.parametrize(
    "tokens", [1, WIDTH, 2 * WIDTH + 1, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH + 3 * WIDTH]
)
def test_value_and_gradients(tokens):
    assert_close(inputs(tokens))


@pytest.mark.parametrize(("d_model", "d_mlp"), [(1, 1), (4, 4), (8, 32), (3, 6), (16, 64), (9, 2)])
def test_any_width(d_model, d_mlp):
    """Products are of four rows and columns at a time, and of what is left over."""
    assert_close(inputs(100, d_model, d_mlp))


def test_any_order_of_memory():
    leaves = inputs(50)
    plain = with_gradients(relu_mlp_fused, leaves)
    other = [x.detach().contiguous().requires_grad_() for x in leaves]
    other[1] = leaves[1].detach().mT.contiguous().mT.requires_grad_()
    for one, expected in zip(with_gradients(relu_mlp_fused, other), plain, strict=True):
        assert torch.equal(one, expected)
    assert plain[0].mT.is_contiguous()
    assert plain[1].mT.is_contiguous()


def test_a_unit_at_zero_passes_no_gradient_and_nan_shows():
    x, W_in, b_in, W_out, b_out = (
        torch.zeros(shape) for shape in ((1, 3, 2), (1, 2, 4), (1, 4), (1, 4, 2), (1, 2))
    )
    W_out += 1
    b_in[0, 0] = 1
    leaves = [tensor.requires_grad_() for tensor in (x, W_in, b_in, W_out, b_out)]
    *_, d_b_in, _, _ = with_gradients(relu_mlp_fused, leaves)
    assert d_b_in[0, 0] != 0
    assert not d_b_in[0, 1:].any()
    with torch.no_grad():
        x[0, 1, 0] = torch.nan
    assert relu_mlp_fused(*leaves)[0].isnan().all(-1).tolist() == [False, True, False]


def test_a_token_does_not_depend_on_where_it_stands():
    """To the last bit: symmetric inputs have symmetric results."""
    x, *weights = inputs(1, 16, 64)
    out = relu_mlp_fused(x.expand(-1, LENGTH + 20, -1), *weights)
    assert torch.equal(out, out[:, :1].expand_as(out))


def test_training_uses_it_unless_hidden_units_are_hooked():
    config = config_of("relu")
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    assert all(block.mlp.fused is relu_mlp_fused for block in model.blocks)
    plain = model(tokens)
    assert nodes(plain)[NODE] == 2
    seen = []
    with model.hooks([("blocks.0.mlp.hook_post", lambda x, hook: seen.append(x))]):
        looked_at = model(tokens)
    assert nodes(looked_at)[NODE] == 1
    assert torch.allclose(looked_at, plain, atol=1e-5)
    assert seen[0].shape == (2, len(tokens), config.n_ctx, config.d_mlp)
    with model.hooks([("blocks.0.mlp.hook_pre", lambda x, hook: x * 0)]):
        assert not torch.allclose(model(tokens), plain, atol=1e-2)
    assert nodes(model.double()(tokens))[NODE] == 0


@pytest.mark.parametrize("case", ["gelu and LN", "SwiGLU and LNPre"])
def test_other_activations_go_the_general_way(case):
    model = decoder_of(config_of(case), n_models=2)
    use_fast_kernels(model)
    assert all(block.mlp.fused is None for block in model.blocks)
