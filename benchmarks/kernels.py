"""Compiled kernels of small models beside torch's: milliseconds of a pass and its gradients.

    python -m benchmarks.kernels [--repeats 7]

In turn, one thread. Each has its inputs as it likes them in memory. Torch has its fused kernel for attention,
with a mask for a window, `baddbmm` for products of stacks and `layer_norm`. The deviation of scores is a nat,
or 20 as in heads of sharp attention. The table is written into `benchmarks/README.md`.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from benchmarks.timing import write_table
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.fused_layer import attention_layer_fused
from mechmarkov.models.fast.fused_norm import norm_fused
from mechmarkov.models.fast.relu_mlp import relu_mlp_fused
from mechmarkov.models.layers import causal_mask
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.threads import threads

CPU = torch.device("cpu")
EPS = 1e-5
# Numbers of a head, sequences, positions, window, deviation of scores.
HEADS = [
    (4, 128, 256, None, 1),
    (8, 1024, 64, None, 1),
    (8, 128, 256, None, 1),
    (8, 128, 256, None, 20),
    (8, 32, 1024, None, 1),
    (8, 32, 1024, 64, 1),
    (16, 512, 100, None, 1),
    (16, 128, 256, None, 1),
]
# Models, sequences of each, positions, width, heads.
LAYERS = [
    (32, 16, 64, 8, 1),
    (16, 16, 256, 8, 1),
    (4, 16, 1024, 8, 1),
    (8, 64, 100, 16, 1),
    (8, 64, 64, 16, 2),
]
# Models, tokens of each, width, hidden units.
MLPS = [(32, 1024, 8, 32), (8, 6400, 16, 64), (4, 3200, 64, 256)]
NORMS = [(32, 1024, 8), (8, 6400, 16)]

Pass = Callable[[], object]


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Normal numbers."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def both(function: Callable[..., Tensor], inputs: list[Tensor], slope: Tensor) -> Pass:
    """A pass and its gradients."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(function(*leaves), leaves, slope)


def heads(d: int, sequences: int, length: int, window: int | None, spread: int) -> tuple[Pass, Pass]:
    """Attention from queries, keys and values."""
    given = drawn(*[(1, d, sequences, length)] * 4)
    ours = [rearrange(x, "h d b p -> 1 b h p d") for x in given]
    torchs = [rearrange(x, "h d b p -> b h p d").contiguous() for x in given]
    scale = spread * d**-0.5
    mask = None if window is None else causal_mask(length, length, window, CPU)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)

    def here(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_fused(q, k, v, scale, window)

    return both(here, ours[:3], ours[3]), both(fused, torchs[:3], torchs[3])


def layer(models: int, batch: int, length: int, width: int, n_heads: int) -> tuple[Pass, Pass]:
    """Attention from the residual stream to what the heads add to it."""
    d_head, stream = width // n_heads, (models, width, batch, length)
    weights = [(models, n_heads, width, d_head)] * 3 + [(models, n_heads, d_head, width)]
    biases = [(models, n_heads, d_head)] * 3 + [(models, width)]
    slope, x, *parameters = drawn(stream, stream, *weights, *biases)
    parameters = [p * width**-0.5 for p in parameters]

    def here(x: Tensor, *p: Tensor) -> Tensor:
        return attention_layer_fused(x, x, (p[0], p[1], p[2], p[3]), (p[4], p[5], p[6], p[7]), d_head**-0.5)

    def torchs(x: Tensor, *p: Tensor) -> Tensor:
        flat = x.flatten(1, 2)
        q, k, v = (
            torch.baddbmm(b.flatten(1)[:, None], flat, rearrange(w, "m h i o -> m i (h o)"))
            .view(models * batch, length, n_heads, d_head)
            .transpose(1, 2)
            for w, b in zip(p[:3], p[4:7], strict=True)
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        out = torch.baddbmm(p[7][:, None], z.reshape(models, batch * length, width), p[3].flatten(1, 2))
        return out.view_as(x)

    last = [t.movedim(1, -1) for t in (x, slope)]
    plain = [t.contiguous() for t in last]
    return both(here, [last[0], *parameters], last[1]), both(torchs, [plain[0], *parameters], plain[1])


def mlp(models: int, tokens: int, width: int, hidden: int) -> tuple[Pass, Pass]:
    """A ReLU MLP."""
    shapes = [(models, width, hidden), (models, hidden), (models, hidden, width), (models, width)]
    slope, x, *parameters = drawn(*[(models, width, tokens)] * 2, *shapes)

    def torchs(x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor) -> Tensor:
        units = torch.baddbmm(b_in[:, None], x, W_in).relu()
        return torch.baddbmm(b_out[:, None], units, W_out)

    plain = [t.mT.contiguous() for t in (x, slope)]
    return both(relu_mlp_fused, [x.mT, *parameters], slope.mT), both(
        torchs, [plain[0], *parameters], plain[1]
    )


def norm(models: int, tokens: int, width: int) -> tuple[Pass, Pass]:
    """LayerNorm."""
    slope, x, w, b = drawn(*[(models, width, tokens)] * 2, *[(models, width)] * 2)

    def here(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return norm_fused(x, w, b, EPS, True)

    def torchs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=EPS) * w[:, None] + b[:, None]

    plain = [t.mT.contiguous() for t in (x, slope)]
    return both(here, [x.mT, w, b], slope.mT), both(torchs, [plain[0], w, b], plain[1])


def row(name: str, size: str, alternatives: tuple[Pass, Pass], repeats: int) -> str:
    """A row of the table."""
    taken: tuple[list[float], list[float]] = [], []
    for repeat in range(repeats + 1):  # the first is a warm-up
        for times, run in zip(taken, alternatives, strict=True):
            began = time.perf_counter()
            run()
            if repeat:
                times.append(1e3 * (time.perf_counter() - began))
    ratio = statistics.median(theirs / ours for ours, theirs in zip(*taken, strict=True))
    shown = [f"{statistics.median(x):.1f} ms ({min(x):.1f} to {max(x):.1f})" for x in taken]
    return f"| {name} | {size} | {shown[0]} | {shown[1]} | {ratio:.1f}x |"


def rows(repeats: int) -> list[str]:
    """All rows of the table."""
    found = []
    for d, sequences, length, window, spread in HEADS:
        name = f"heads of {d}" + (f", a window of {window}" if window else "") + ", sharp" * (spread > 1)
        size = f"{sequences} sequences of {length}"
        found.append(row(name, size, heads(d, sequences, length, window, spread), repeats))
    for models, batch, length, width, n in LAYERS:
        name = f"a layer of width {width}, {n} head" + "s" * (n > 1)
        size = f"{models} models, {batch} sequences of {length}"
        found.append(row(name, size, layer(models, batch, length, width, n), repeats))
    for models, tokens, width, hidden in MLPS:
        name = f"an MLP of {hidden} units, width {width}"
        size = f"{models} models, {tokens} tokens"
        found.append(row(name, size, mlp(models, tokens, width, hidden), repeats))
    for models, tokens, width in NORMS:
        size = f"{models} models, {tokens} tokens"
        found.append(row(f"LayerNorm, width {width}", size, norm(models, tokens, width), repeats))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with threads(1), freed_memory_kept():
        table = ["| what | size | here | torch | |", "|---|---|---|---|---|", *rows(options.repeats)]
    write_table("benchmarks.kernels", table)
    print("\n".join(table))
