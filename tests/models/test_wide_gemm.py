"""Products by oneDNN are those of float64 numbers up to rounding; an MLP in parts is the MLP."""

import pytest
import torch

from mechmarkov.models import layers
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.gemm import HAS_ONEDNN, WideAffine, is_wide
from mechmarkov.models.layers import MLP, affine

ROWS = 4096
SHAPES = [(64, 48), (128, 17), (32, 64)]


def values(d_in, d_out, n_models, rows=ROWS):
    generator = torch.Generator().manual_seed(0)
    shapes = [(n_models, rows, d_in), (n_models, d_in, d_out), (n_models, d_out)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def plain(x, weight, bias):
    return torch.einsum("mni,mio->mno", x.double(), weight.double()) + bias[:, None]


def test_torch_has_onednn_here():
    assert HAS_ONEDNN


@pytest.mark.parametrize("n_models", [1, 3])
@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_wide_product_and_its_slope(d_in, d_out, n_models):
    x, weight, bias = values(d_in, d_out, n_models)
    assert is_wide(x, weight)
    x.requires_grad_()
    slope = torch.randn(n_models, ROWS, d_out, generator=torch.Generator().manual_seed(1))
    out = affine(x[:, None], weight, bias)[:, 0]
    assert "WideAffine" in str(out.grad_fn.next_functions[0][0].next_functions[0][0].name())
    torch.testing.assert_close(out.double(), plain(x, weight, bias), atol=2e-4, rtol=0)
    (found,) = torch.autograd.grad(out, x, slope)
    expected = torch.einsum("mno,mio->mni", slope.double(), weight.double())
    torch.testing.assert_close(found.double(), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("n_models", [1, 3])
def test_turned_wide_products_have_rows_last(n_models):
    x, weight, bias = values(64, 48, n_models)
    with torch.no_grad():
        out = affine(x[:, None], weight, bias, transposed=True)[:, 0]
    assert out.mT.is_contiguous()
    torch.testing.assert_close(out.double(), plain(x, weight, bias), atol=2e-4, rtol=0)


def test_part_of_a_matrix_is_multiplied_in_one_go():
    x, weight, bias = values(64, 96, 1)
    part = weight[..., 32:64]  # oneDNN itself would take a hundred times as long
    with torch.no_grad():
        out = affine(x[:, None], part, bias[:, 32:64])[:, 0]
    torch.testing.assert_close(out.double(), plain(x, part, bias[:, 32:64]), atol=2e-4, rtol=0)


def test_wide_slopes_have_slopes():
    x, weight, bias = values(64, 64, 1, rows=1024)
    slope = torch.randn(1, 1024, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (found,) = torch.autograd.grad(
        WideAffine.apply(x.requires_grad_(), weight, bias, False), x, slope, create_graph=True
    )
    (again,) = torch.autograd.grad(found.sum(), slope)
    expected = weight.double().sum(1)[:, None].expand(1, 1024, 64)
    torch.testing.assert_close(again.double(), expected, atol=2e-4, rtol=0)


def test_equal_rows_of_wide_products_stay_equal():
    x, weight, bias = values(64, 50, 1)
    x[0, ::3] = x[0, 0]
    with torch.no_grad():
        out = affine(x[:, None], weight, bias)[0, 0, ::3]
    assert (out == out[0]).all()


def test_trained_small_and_double_products_are_not_wide():
    x, weight, _ = values(64, 64, 1)
    assert is_wide(x, weight)
    assert not is_wide(x, weight.clone().requires_grad_())
    assert not is_wide(x[:, :512], weight)
    assert not is_wide(x[..., :8], weight[:, :8])
    assert not is_wide(x.double(), weight.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_wide(x, weight)


@pytest.mark.parametrize("act_fn", ["relu", "gelu", "gelu_new", "silu"])
@pytest.mark.parametrize("n_models", [1, 3])
def test_wide_mlps_are_those_with_gradients(act_fn, n_models):
    shape = {"n_layers": 1, "d_model": 64, "d_head": 64, "n_ctx": 40, "d_vocab": 3, "d_mlp": 128}
    mlp = MLP(DecoderConfig(**shape, act_fn=act_fn), (n_models,))
    generator = torch.Generator().manual_seed(0)
    for weight in mlp.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    x = torch.randn(n_models, 20, 40, 64, generator=generator)
    plain = mlp(x).detach()
    with torch.no_grad():
        assert is_wide(x.flatten(1, -2), mlp.W_in) == HAS_ONEDNN
        torch.testing.assert_close(mlp(x), plain, rtol=1e-5, atol=1e-5)
        mlp.hook_pre.add_hook(lambda pre, hook: 2 * pre)  # who looks before the activation is asked
        assert (mlp(x) - plain).abs().max() > 0.1


@pytest.mark.parametrize("gated_mlp", [False, True])
def test_mlp_in_parts_is_the_whole(monkeypatch, gated_mlp):
    config = DecoderConfig(
        n_layers=1, d_model=8, d_head=8, n_ctx=7, d_vocab=3, d_mlp=16, act_fn="gelu", gated_mlp=gated_mlp
    )
    mlp, generator = MLP(config, (2,)), torch.Generator().manual_seed(0)
    for weight in mlp.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    x = torch.randn(2, 5, 7, 8, generator=generator)
    whole = mlp(x).detach()  # with gradients it is never in parts
    parts = []
    monkeypatch.setattr(layers, "MIN_ROWS", 1)
    monkeypatch.setattr(layers, "HIDDEN_ELEMENTS", 2 * 16 * 4)
    monkeypatch.setattr(mlp, "_write", lambda part: parts.append(part.shape) or MLP._write(mlp, part))
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), whole)
        assert len(parts) == 9
        seen = []
        mlp.hook_post.add_hook(lambda hidden, hook: seen.append(hidden.shape))
        torch.testing.assert_close(mlp(x), whole)
    assert seen == [(2, 5, 7, 16)]
