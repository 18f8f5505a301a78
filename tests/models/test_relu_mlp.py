"""The MLP that keeps hidden units in a core's cache against autograd in float64."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of

from mechmarkov.models.fast import relu_mlp
from mechmarkov.models.fast.relu_mlp import ReluMlp
from mechmarkov.models.fast.use import use_fast_kernels


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tokens_at_once", [1, 4, 10, 100])  # 100: both models with their 10
def test_value_and_gradients(tokens_at_once, transposed, monkeypatch):
    monkeypatch.setattr(relu_mlp, "CACHED_UNITS", 7 * tokens_at_once)
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 10, 5), (2, 5, 7), (2, 7), (2, 7, 5), (2, 5)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if transposed:  # in memory, as a thin GEMM leaves it
        inputs[0] = inputs[0].mT.contiguous().mT
    inputs = [tensor.requires_grad_() for tensor in inputs]
    x, W_in, b_in, W_out, b_out = inputs
    expected = (x @ W_in + b_in[:, None]).relu() @ W_out + b_out[:, None]
    found = ReluMlp.apply(*inputs)
    assert torch.allclose(found, expected, atol=1e-12)
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_training_uses_it_unless_hidden_units_are_hooked():
    config = config_of("relu")
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    assert all(block.mlp.runs_in_cache for block in model.blocks)
    plain = model(tokens)
    assert nodes(plain)["ReluMlpBackward"] == 2
    seen = []
    with model.hooks([("blocks.0.mlp.hook_post", lambda x, hook: seen.append(x))]):
        looked_at = model(tokens)
    assert nodes(looked_at)["ReluMlpBackward"] == 1
    assert torch.allclose(looked_at, plain, atol=1e-5)
    assert seen[0].shape == (2, len(tokens), config.n_ctx, config.d_mlp)
    with model.hooks([("blocks.0.mlp.hook_pre", lambda x, hook: x * 0)]):
        assert not torch.allclose(model(tokens), plain, atol=1e-2)


@pytest.mark.parametrize("case", ["gelu and LN", "SwiGLU and LNPre"])
def test_other_activations_go_the_general_way(case):
    model = decoder_of(config_of(case), n_models=2)
    use_fast_kernels(model)
    assert not any(block.mlp.runs_in_cache for block in model.blocks)
