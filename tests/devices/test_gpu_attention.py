"""Attention in Triton, against explicit scores in float64; interpreted where there is no GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast.choose import attention_for
from mechmarkov.models.fast.gpu_attention import attend_on_gpu, block_of

HAS_TRITON = find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not here; runs in make test-triton")


def inputs(length, d_head, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 1, 2, length, d_head)
    return [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for _ in range(3)]


def explicit(q, k, v, scale, window=None):
    allowed = torch.ones(q.shape[-2], q.shape[-2], device=q.device).tril().bool()
    if window is not None:
        allowed = allowed.triu(-window)
    return (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def with_gradients(attend, leaves, *arguments):
    z = attend(*leaves, *arguments)
    slopes = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(z)
    return [z, *torch.autograd.grad(z, leaves, slopes)]


@needs_triton
@pytest.mark.parametrize(
    ("length", "d_head", "window", "scale"),
    [
        (1, 2, None, 0.7),
        (37, 8, None, 0.7),
        (130, 8, None, 0.7),  # more than one block
        (70, 10, None, 0.7),  # whose width is no power of two
        (70, 12, None, 0.7),
        (70, 16, 7, 0.7),
        (50, 4, 0, 0.7),
        (40, 4, 200, 0.7),
        (40, 4, None, 60.0),  # sharp: weights far below one another
    ],
)
def test_value_and_gradients(length, d_head, window, scale):
    leaves = inputs(length, d_head)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    found = with_gradients(attend_on_gpu, leaves, scale, window)
    for ours, theirs in zip(found, with_gradients(explicit, exact, scale, window), strict=True):
        # An error relative to the largest number, or to 1; scores of some hundreds are rounded to 1e-5.
        size = max(1, theirs.detach().abs().max().item())
        error = 4e-6 * max(1, scale)
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=error * size)


@needs_triton
def test_a_sequences_result_does_not_depend_on_the_others():
    q, k, v = (x.detach() for x in inputs(20, 4))
    assert torch.equal(attend_on_gpu(q, k, v, 0.5)[1:], attend_on_gpu(q[1:], k[1:], v[1:], 0.5))


@needs_triton
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    script = Path(__file__).with_name("compile_kernels.py")
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | own,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    assert len(process.stdout.splitlines()) == 18  # kernels × shapes × GPUs


@pytest.mark.parametrize("d_head", range(2, 17, 2))
@pytest.mark.parametrize("length", [1, 31, 64, 100, 1024])
def test_the_keys_before_a_block_are_whole_groups(length, d_head):
    """Else a query would see keys ahead of it, and some keys twice."""
    block, keys = block_of(length, d_head)
    assert block % keys == 0
    assert block & (block - 1) == keys & (keys - 1) == 0  # as Triton wants its vectors
    assert block * d_head <= 1024


def test_it_is_for_small_heads_of_an_even_width_on_cuda(monkeypatch):
    monkeypatch.setattr("mechmarkov.models.fast.choose.can_compile_kernels", lambda: True)

    def is_chosen(d_head, device="cuda", positions="standard"):
        config = DecoderConfig(
            n_layers=1, n_heads=1, d_model=8, d_head=d_head, n_ctx=64, d_vocab=3,
            positional_embedding_type=positions,
        )  # fmt: skip
        return attention_for(config, device) is attend_on_gpu

    assert [d for d in range(1, 20) if is_chosen(d)] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert not is_chosen(8, device="cpu")
    assert not is_chosen(8, positions="relative")
