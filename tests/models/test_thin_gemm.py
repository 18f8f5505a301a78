"""Products in their fast order are the same products, once and twice differentiated."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from mechmarkov.models.gemm import THIN_COLUMNS, ThinAffine, is_thin, thin_matmul
from mechmarkov.models.layers import affine

SHAPES = [
    (5, 2),
    (2, 5),
    (THIN_COLUMNS, 3 * THIN_COLUMNS),
    (3 * THIN_COLUMNS, THIN_COLUMNS),
    (THIN_COLUMNS + 1, 2 * THIN_COLUMNS),
]


def values(d_in, d_out, n_models=3, rows=40):
    generator = torch.Generator().manual_seed(0)
    shapes = [(n_models, rows, d_in), (n_models, d_in, d_out), (n_models, d_out)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_it_is_x_times_weight_plus_bias_and_so_are_its_gradients(d_in, d_out, transposed):
    x, weight, bias = values(d_in, d_out)
    out = ThinAffine.apply(x, weight, bias, transposed)
    expected = torch.einsum("mni,mio->mno", x, weight) + bias[:, None]
    assert torch.allclose(out, expected, atol=1e-12)
    assert (out.mT if d_out <= THIN_COLUMNS or transposed else out).is_contiguous()
    assert gradcheck(ThinAffine.apply, (*values(d_in, d_out, n_models=2, rows=3), transposed))


@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_a_gradient_lies_in_memory_as_its_input(d_in, d_out):
    x, weight, bias = values(d_in, d_out)
    turned = x.detach().mT.contiguous().mT.requires_grad_()
    slope = torch.randn(3, 40, d_out, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, plain = (
        torch.autograd.grad(ThinAffine.apply(each, weight, bias, False), each, slope)[0]
        for each in (turned, x)
    )
    assert found.mT.is_contiguous()
    assert torch.allclose(found, plain, atol=1e-12)


def test_it_can_be_differentiated_twice():
    assert gradgradcheck(ThinAffine.apply, (*values(3, 2, n_models=2, rows=4), False))


@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_a_product_is_the_same_in_either_order(d_in, d_out):
    x, weight, _ = values(d_in, d_out)
    assert torch.allclose(thin_matmul(x, weight), x @ weight, atol=1e-12)
    assert torch.allclose(thin_matmul(x.mT, x), x.mT @ x, atol=1e-12)


def test_under_autocast_and_for_wide_weights_the_ordinary_product_is_taken():
    x, weight, _ = (each.float() for each in values(4, 4))
    assert is_thin(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_thin(x, weight)
    with torch.no_grad():
        assert not is_thin(x, weight)
    wide = torch.zeros(3, THIN_COLUMNS + 1, THIN_COLUMNS + 1)
    tokens = torch.zeros(3, 2, THIN_COLUMNS + 1)
    assert not is_thin(tokens, wide)
    assert is_thin(tokens, wide, transposed=True)
    assert is_thin(torch.zeros(3, THIN_COLUMNS + 1, 2).mT, wide)
    assert not is_thin(x.double(), weight)


def test_a_stack_of_thin_layers_is_its_members():
    x, weight, bias = values(4, 2)
    stacked = affine(x[:, None], weight, bias)
    for i in range(3):
        assert torch.allclose(stacked[i], affine(x[i][None], weight[i], bias[i]), atol=1e-12)
