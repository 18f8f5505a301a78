"""Causal attention of small heads on a GPU, as Triton kernels: a query, or a key, in each place of a vector.

torch's fused kernels multiply matrices of at least 32 columns, so that of a head of 8 numbers three quarters
of their work is on zeros. Here the numbers of a head are registers. Each of the other side's vectors is read
once for all queries of a block, and multiplied exactly, in float32.

With `w_ij = 2^(scale q_i . k_j - shift_i)`, where `shift_i` is the logarithm of the sum of query i's weights:

    z_i = sum_j w_ij v_j        g_ij = w_ij (v_j . dz_i - z_i . dz_i)
    dv_j = sum_i w_ij dz_i      dq_i = scale ln 2 sum_j g_ij k_j      dk_j = scale ln 2 sum_i g_ij q_i

Logarithms are to base 2. Vectors lie `[sequence, position, d_head]` in memory. Those that are read one by one
are read two numbers at a time, as an integer of 64 bits.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
# What is masked lies far below where the running maximum starts, so that its weight is zero.
MASKED, LEAST = tl.constexpr(-1e30), tl.constexpr(-1e29)


@triton.jit
def _vectors(X, at, here, D: tl.constexpr):
    """The numbers of a block of vectors, one tensor each."""
    found = ()
    for d in tl.static_range(D):
        found += (tl.load(X + at + d, mask=here, other=0.0),)
    return found


@triton.jit
def _zeros(BLOCK: tl.constexpr, D: tl.constexpr):
    found = ()
    for _ in tl.static_range(D):
        found += (tl.zeros([BLOCK], tl.float32),)
    return found


@triton.jit
def _put(X, at, here, vectors, factor, D: tl.constexpr):
    for d in tl.static_range(D):
        tl.store(X + at + d, vectors[d] * factor, mask=here)


@triton.jit
def _pair(X, at):
    both = tl.load(X + at)
    low = (both & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return low, (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _one(X, position, D: tl.constexpr):
    """The numbers of one vector."""
    found = ()
    for i in tl.static_range(D // 2):
        low, high = _pair(X, position * (D // 2) + i)
        found += (low, high)
    return found


@triton.jit
def _dot(start, vectors, one, D: tl.constexpr):
    for d in tl.static_range(D):
        start += vectors[d] * one[d]
    return start


@triton.jit
def _add(sums, weights, one, D: tl.constexpr):
    found = ()
    for d in tl.static_range(D):
        found += (sums[d] + weights * one[d],)
    return found


@triton.jit
def _times(vectors, factor, D: tl.constexpr):
    found = ()
    for d in tl.static_range(D):
        found += (vectors[d] * factor,)
    return found


@triton.jit
def _sees(queries, keys, window, IS_WINDOW: tl.constexpr):
    sees = queries >= keys
    if IS_WINDOW:
        sees = sees & (queries - keys <= window)
    return sees


@triton.jit
def _gather(
    q, z, top, total, K, V, sequence, rows, first, last, length, window,
    D: tl.constexpr, GROUP: tl.constexpr, IS_MASKED: tl.constexpr, IS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Returns what queries read of the keys from `first` on, some keys at a time."""
    for j in range(first, last, GROUP):
        scores = ()
        best = top
        for g in tl.static_range(GROUP):
            key = _one(K, sequence + tl.minimum(j + g, length - 1), D)
            score = _dot(tl.zeros_like(top), q, key, D)
            if IS_MASKED:
                score = tl.where(_sees(rows, j + g, window, IS_WINDOW), score, MASKED)
            scores += (score,)
            best = tl.maximum(best, score)
        shrink = tl.exp2(top - best)
        top = best
        total = total * shrink
        z = _times(z, shrink, D)
        for g in tl.static_range(GROUP):
            weight = tl.exp2(scores[g] - best)
            total += weight
            z = _add(z, weight, _one(V, sequence + tl.minimum(j + g, length - 1), D), D)
    return z, top, total


@triton.jit
def attend(
    Q, K, V, Z, SHIFT, length, scale, window,
    D: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, IS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Compute what a block of queries reads, `Z`, and the logarithm of the sum of each one's weights."""
    blocks = tl.cdiv(length, BLOCK)
    start = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK  # the longest first
    sequence = (tl.program_id(0) // blocks).to(tl.int64) * length
    rows = start + tl.arange(0, BLOCK)
    here, at = rows < length, (sequence + rows) * D
    q = _times(_vectors(Q, at, here, D), scale, D)
    z = _zeros(BLOCK, D)
    top = tl.full([BLOCK], LEAST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    first = start
    if IS_WINDOW:
        first = tl.maximum(0, start - window)
    else:
        z, top, total = _gather(
            q, z, top, total, K, V, sequence, rows, 0, start, length, window, D, GROUP, False, False
        )
    last = tl.minimum(start + BLOCK, length)
    z, top, total = _gather(
        q, z, top, total, K, V, sequence, rows, first, last, length, window, D, GROUP, True, IS_WINDOW
    )
    total = tl.where(here, total, 1.0)  # of a row behind the last it may be zero
    _put(Z, at, here, z, 1 / total, D)
    tl.store(SHIFT + sequence + rows, top + tl.log2(total), mask=here)


@triton.jit
def _slopes_of_queries(
    q, dz, shift, read, dq, K, V, sequence, rows, first, last, window,
    D: tl.constexpr, UNROLL: tl.constexpr, IS_MASKED: tl.constexpr, IS_WINDOW: tl.constexpr,
):  # fmt: skip
    for j in tl.range(first, last, loop_unroll_factor=UNROLL):
        key = _one(K, sequence + j, D)
        score = _dot(-shift, q, key, D)
        if IS_MASKED:
            score = tl.where(_sees(rows, j, window, IS_WINDOW), score, MASKED)
        slope = tl.exp2(score) * _dot(-read, dz, _one(V, sequence + j, D), D)
        dq = _add(dq, slope, key, D)
    return dq


@triton.jit
def attend_backward_queries(
    Q, K, V, DZ, STATS, DQ, length, scale, window,
    D: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr, IS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Compute `DQ` of a block of queries; `STATS` `[sequence, position, 2]` has shift and `z . dz`."""
    blocks = tl.cdiv(length, BLOCK)
    start = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK
    sequence = (tl.program_id(0) // blocks).to(tl.int64) * length
    rows = start + tl.arange(0, BLOCK)
    here, at = rows < length, (sequence + rows) * D
    q = _times(_vectors(Q, at, here, D), scale, D)
    dz, dq = _vectors(DZ, at, here, D), _zeros(BLOCK, D)
    shift = tl.load(STATS + 2 * (sequence + rows), mask=here, other=0.0)
    read = tl.load(STATS + 2 * (sequence + rows) + 1, mask=here, other=0.0)
    first = start
    if IS_WINDOW:
        first = tl.maximum(0, start - window)
    else:
        dq = _slopes_of_queries(
            q, dz, shift, read, dq, K, V, sequence, rows, 0, start, window, D, UNROLL, False, False
        )
    last = tl.minimum(start + BLOCK, length)
    dq = _slopes_of_queries(
        q, dz, shift, read, dq, K, V, sequence, rows, first, last, window, D, UNROLL, True, IS_WINDOW
    )
    _put(DQ, at, here, dq, scale * LN2, D)


@triton.jit
def _slopes_of_keys(
    k, v, dk, dv, Q, DZ, STATS, sequence, rows, first, last, window,
    D: tl.constexpr, UNROLL: tl.constexpr, IS_MASKED: tl.constexpr, IS_WINDOW: tl.constexpr,
):  # fmt: skip
    for i in tl.range(first, last, loop_unroll_factor=UNROLL):
        shift, read = _pair(STATS, sequence + i)
        query, dz = _one(Q, sequence + i, D), _one(DZ, sequence + i, D)
        score = _dot(tl.zeros_like(k[0]) - shift, k, query, D)
        if IS_MASKED:
            score = tl.where(_sees(i, rows, window, IS_WINDOW), score, MASKED)
        weight = tl.exp2(score)
        slope = weight * _dot(tl.zeros_like(k[0]) - read, v, dz, D)
        dk, dv = _add(dk, slope, query, D), _add(dv, weight, dz, D)
    return dk, dv


@triton.jit
def attend_backward_keys(
    Q, K, V, DZ, STATS, DK, DV, length, scale, window,
    D: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr, IS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Compute `DK` and `DV` of a block of keys; `STATS` as for `attend_backward_queries`."""
    blocks = tl.cdiv(length, BLOCK)
    start = tl.program_id(0) % blocks * BLOCK
    sequence = (tl.program_id(0) // blocks).to(tl.int64) * length
    rows = start + tl.arange(0, BLOCK)
    here, at = rows < length, (sequence + rows) * D
    k = _times(_vectors(K, at, here, D), scale, D)
    v, dk, dv = _vectors(V, at, here, D), _zeros(BLOCK, D), _zeros(BLOCK, D)
    last = tl.minimum(start + BLOCK, length)
    if IS_WINDOW:
        last = tl.minimum(last + window, length)
    dk, dv = _slopes_of_keys(
        k, v, dk, dv, Q, DZ, STATS, sequence, rows, start, last, window, D, UNROLL, True, IS_WINDOW
    )
    if not IS_WINDOW:
        dk, dv = _slopes_of_keys(
            k, v, dk, dv, Q, DZ, STATS, sequence, rows, last, length, window, D, UNROLL, False, False
        )
    _put(DK, at, here, dk, scale * LN2, D)
    _put(DV, at, here, dv, 1.0, D)
