"""Kernels that compute the layers of a stack in less time than torch's, equal up to rounding.

Why: torch's kernels are made for large matrices. A toy model's layers fit in a core's cache, and what takes
their time is the way between memory and core, and the preparations of each operation. On a CPU a whole layer
is one function that numba compiles: a sequence's panels (`panels`: rows of 64 tokens) go through all of it.
Attention is softmax(q k^T / scale) v, a tile of sixteen queries and a tile of keys at a time
(`attention_tiles`). On CUDA attention is a Triton kernel (`gpu_kernels`).

`choose` says which is used where. Only `mechmarkov.models.kernels` knows this folder.
"""
