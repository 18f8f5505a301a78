"""Filling paths by counts, as a Triton kernel: a state in each place of a vector, the counts in registers."""

import triton
import triton.language as tl


@triton.jit
def fill_by_counts(BASE, U, PATH, n_steps, n_states, BLOCK: tl.constexpr):
    """A sequence's path behind its first states, of which each has come once."""
    sequence = tl.program_id(0).to(tl.int64)
    U += sequence * n_steps
    PATH += sequence * (n_states + n_steps) + n_states
    states = tl.arange(0, BLOCK)
    here = states < n_states
    counts = tl.where(here, 1.0, 0.0).to(tl.float64)
    now = tl.load(PATH - 1)
    for step in range(n_steps):
        law = counts * tl.load(BASE + now * n_states + states, mask=here, other=0.0)
        reached = tl.cumsum(law, 0) / tl.sum(law, 0) <= tl.load(U + step)
        # The last state takes what rounding leaves, as a cumulative law ends in exactly 1.
        now = tl.minimum(tl.sum((reached & here).to(tl.int64), 0), n_states - 1)
        tl.store(PATH + step, now)
        counts += tl.where(states == now, 1.0, 0.0)
