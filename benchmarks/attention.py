"""Compiled attention of small heads beside torch's fused kernel: milliseconds of a pass and its gradients.

    python -m benchmarks.attention [--repeats 7]

In turn, one thread. Each has its inputs as its kernel likes them in memory. A window is a mask in torch. The
deviation of scores is one nat, or 20 as in heads of sharp attention. The table is written into
`benchmarks/README.md`.
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
from mechmarkov.models.causal_mask import causal_mask
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.threads import threads

CPU = torch.device("cpu")
# Numbers of a head, sequences, positions, window, deviation of scores.
SIZES = [
    (4, 128, 256, None, 1),
    (8, 1024, 64, None, 1),
    (8, 128, 256, None, 1),
    (8, 128, 256, None, 20),
    (8, 32, 1024, None, 1),
    (8, 32, 1024, 64, 1),
    (16, 512, 100, None, 1),
    (16, 128, 256, None, 1),
]


def passes(
    d: int, sequences: int, length: int, window: int | None, spread: int
) -> dict[str, Callable[[], object]]:
    """A forward and a backward pass of each kernel over the same numbers."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, d, sequences, length, generator=generator) for _ in range(4)]
    ours = [rearrange(x, "h d b p -> 1 b h p d") for x in drawn]
    torchs = [rearrange(x, "h d b p -> b h p d").contiguous() for x in drawn]
    scale = spread * d**-0.5
    mask = None if window is None else causal_mask(length, length, window, CPU)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)

    def both(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
        leaves, slope = [x.requires_grad_() for x in inputs[:3]], inputs[3]
        return lambda: torch.autograd.grad(attend(*leaves), leaves, slope)

    return {
        "here": both(lambda q, k, v: attend_fused(q, k, v, scale, window), ours),
        "torch": both(fused, torchs),
    }


def row(d: int, sequences: int, length: int, window: int | None, spread: int, repeats: int) -> str:
    """A row of the table."""
    alternatives = passes(d, sequences, length, window, spread)
    taken: dict[str, list[float]] = {name: [] for name in alternatives}
    for repeat in range(repeats + 1):  # the first is a warm-up
        for name, run in alternatives.items():
            began = time.perf_counter()
            run()
            if repeat:
                taken[name].append(1e3 * (time.perf_counter() - began))
    ratios = [theirs / ours for ours, theirs in zip(*taken.values(), strict=True)]
    shown = [f"{statistics.median(x):.1f} ms ({min(x):.1f} to {max(x):.1f})" for x in taken.values()]
    head = f"{d}" + (f", a window of {window}" if window else "") + (", sharp" if spread > 1 else "")
    return (
        f"| {head} | {sequences} of {length} | {shown[0]} | {shown[1]} | {statistics.median(ratios):.1f}x |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    table = ["| heads of | sequences and positions | here | torch | |", "|---|---|---|---|---|"]
    with threads(1), freed_memory_kept():
        table += [row(*size, options.repeats) for size in SIZES]
    write_table("benchmarks.attention", table)
    print("\n".join(table))
