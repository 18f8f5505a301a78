"""Compiles the attention kernels for GPUs that are not here: `python compile_kernels.py`, a line a kernel.

The interpreter takes more of Python than the compiler does.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mechmarkov.models.fast import gpu_attention, gpu_kernels

WORDS = {"attend": "KV", "attend_backward_queries": "KV", "attend_backward_keys": ["Q", "DZ", "STATS"]}
SHAPES = [(80, 8, True), (90, 8, False), (90, 16, False)]  # compute capability, d_head, whether in a window

for capability, d_head, is_window in SHAPES:
    for name, words in WORDS.items():
        kernel = getattr(gpu_kernels, name)
        known = {"D": d_head, "BLOCK": 64, "GROUP": 4, "UNROLL": gpu_attention.UNROLL, "IS_WINDOW": is_window}
        numbers = {"length": "i32", "scale": "fp32", "window": "i32"}
        types = {
            each: numbers.get(each, "constexpr" if each in known else "*i64" if each in words else "*fp32")
            for each in kernel.arg_names
        }
        source = ASTSource(kernel, types, {each: known[each] for each in kernel.arg_names if each in known})
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
        print(name, capability, d_head, is_window, len(made.asm["cubin"]))
