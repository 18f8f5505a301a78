"""Products in their fast order are the same products, once and twice differentiated."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from mechmarkov.models.fast.thin_gemm import NARROW, Affine, narrow, product
from mechmarkov.models.layers import affine

SHAPES = [(5, 2), (2, 5), (NARROW, 3 * NARROW), (3 * NARROW, NARROW), (NARROW + 1, 2 * NARROW)]


def values(d_in, d_out, n_models=3, rows=40):
    generator = torch.Generator().manual_seed(0)
    shapes = [(n_models, rows, d_in), (n_models, d_in, d_out), (n_models, d_out)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_it_is_x_times_weight_plus_bias_and_so_are_its_gradients(d_in, d_out):
    x, weight, bias = values(d_in, d_out)
    out = Affine.apply(x, weight, bias)
    expected = torch.einsum("mni,mio->mno", x, weight) + bias[:, None]
    assert torch.allclose(out, expected, atol=1e-12)
    assert out.is_contiguous()
    assert gradcheck(Affine.apply, (x, weight, bias))


def test_it_can_be_differentiated_twice():
    assert gradgradcheck(Affine.apply, values(3, 2, n_models=2, rows=4))


@pytest.mark.parametrize(("d_in", "d_out"), SHAPES)
def test_a_product_is_the_same_in_either_order(d_in, d_out):
    x, weight, _ = values(d_in, d_out)
    assert torch.allclose(product(x, weight), x @ weight, atol=1e-12)
    assert torch.allclose(product(x.mT, x), x.mT @ x, atol=1e-12)


def test_under_autocast_and_for_wide_weights_the_ordinary_product_is_taken():
    x, weight, _ = (each.float() for each in values(4, 4))
    assert narrow(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not narrow(x, weight)
    with torch.no_grad():
        assert not narrow(x, weight)
    wide = torch.zeros(3, NARROW + 1, NARROW + 1)
    assert not narrow(torch.zeros(3, 2, NARROW + 1), wide)
    assert not narrow(x.double(), weight)


def test_a_stack_of_narrow_layers_is_its_members():
    x, weight, bias = values(4, 2)
    stacked = affine(x[:, None], weight, bias)
    for i in range(3):
        assert torch.allclose(stacked[i], affine(x[i][None], weight[i], bias[i]), atol=1e-12)
