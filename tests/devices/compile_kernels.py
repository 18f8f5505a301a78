"""Compiles the kernels for GPUs that are not here: `python compile_kernels.py`, a line a kernel.

The interpreter takes more of Python than the compiler does.
"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mechmarkov.models.fast import gpu_attention, gpu_kernels

ATTENTION = {"attend": "KV", "attend_backward_queries": "KV", "attend_backward_keys": ["Q", "DZ", "STATS"]}
SHAPES = [(8, True), (8, False), (16, False)]  # d_head, whether in a window
CAPABILITIES = [80, 90]


def compiled(kernel: Any, types: dict[str, str], known: dict[str, Any]) -> None:
    """Compile a kernel for each GPU; arguments of no named type are pointers to float32."""
    types = {each: "constexpr" if each in known else types.get(each, "*fp32") for each in kernel.arg_names}
    constants = {each: known[each] for each in kernel.arg_names if each in known}
    for capability in CAPABILITIES:
        made = triton.compile(
            ASTSource(kernel, types, constants),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": 1},
        )
        print(kernel.__name__, capability, constants, len(made.asm["cubin"]))


for name, words in ATTENTION.items():
    for d_head, is_window in SHAPES:
        numbers = {"length": "i32", "scale": "fp32", "window": "i32"} | dict.fromkeys(words, "*i64")
        known = {"D": d_head, "BLOCK": 64, "GROUP": 4, "UNROLL": gpu_attention.UNROLL, "IS_WINDOW": is_window}
        compiled(getattr(gpu_kernels, name), numbers, known)
