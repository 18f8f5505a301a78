"""Paths of Markov chains: one uniform number a step, `x_t = min {j : F[x_{t-1}, j] > u_t}`.

`F` are the rows of cumulative probabilities. On a processor a compiled loop goes step by step
(`compiled_walk`). On a GPU each step would be launches. There a number is a map of all states, and maps are
composed: that is associative, so that all prefixes come in log(length) rounds. So it is on a processor until
many numbers are drawn: loading numba takes longer than that. Both give the same paths.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from einops import rearrange
from jaxtyping import Bool, Float64, Int64

from mechmarkov.sources.sampling.streams import Numbers, Sequences, uniform
from mechmarkov.utils.extras import CAN_COMPILE
from mechmarkov.utils.lazy_torch import Tensor, torch

MAX_ENTRIES_GPU = 1 << 27  # of the maps that are composed at once: 1 GB
FEW_ENTRIES = 1 << 22  # of all maps of this process: they take 0.1 s, and loading numba 0.6 s
_entries_so_far = 0


def cumulative(law: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch state"]:
    """Cumulative probabilities, ending in exactly 1, so that a state of probability zero is never drawn.

    Example:
        >>> cumulative(torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)).tolist()
        [0.25, 1.0, 1.0]
    """
    total = law.cumsum(-1)
    return total / total[..., -1:]


def draw(cdf: Float64[Tensor, "batch state"], u: Float64[Tensor, "batch n"]) -> Int64[Tensor, "batch n"]:
    """The states at which the cumulative probabilities first exceed uniform numbers in [0, 1).

    Example:
        >>> draw(torch.tensor([[0.25, 1.0]]), torch.tensor([[0.1, 0.3]])).tolist()
        [[0, 1]]
    """
    return torch.searchsorted(cdf, u.contiguous(), right=True)


def sample_paths(
    P: Float64[Tensor, "chain state_from state_to"],
    start: Float64[Tensor, "starts state"],
    batch: int,
    length: int,
    generator: Numbers,
    always: Int64[Tensor, "batch state_from"] | None = None,
    anew: Bool[Tensor, "batch position"] | None = None,
) -> Sequences:
    """Draw one path per sequence: from one chain for all, or from each chain as many as from the others.

    Sequences of a chain follow each other. So with the laws of the first state, `start`. Where `always` is
    not negative, it is what follows that state in that sequence, always; where `anew` is true, a path starts
    again from the law of the first state. The same generator state gives the same paths, on one kind of
    device.

    Example:
        >>> turn = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
        >>> first = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> sample_paths(turn, first, 1, 4, torch.Generator().manual_seed(0)).tolist()
        [[0, 1, 0, 1]]
    """
    u = uniform(generator, P.device, batch, length)
    starts = cumulative(start).repeat_interleave(batch // len(start), 0)
    if anew is None:
        return walk(cumulative(P), u[:, 1:], draw(starts, u[:, :1])[:, 0], always)
    afresh = draw(starts, u)
    placed = torch.where(anew[:, 1:], afresh[:, 1:], -1)
    return walk(cumulative(P), u[:, 1:], afresh[:, 0], always, placed)


def walk(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
    always: Int64[Tensor, "batch history"] | None = None,
    placed: Int64[Tensor, "batch step"] | None = None,
) -> Int64[Tensor, "batch step+1"]:
    """The histories from `start` on, of one chain or of several; of order 1 a history is a state.

    Sequences of a chain follow each other. Where `placed` is not negative a path is there whatever came
    before, and otherwise behind a history for which `always` is not negative it is there.

    Args:
        cdf: The cumulative law of the next state behind each history (`cumulative`).
        u: Uniform numbers in [0, 1), one a step.
        start: The first history of each path.
        always: For each sequence and history the history that always follows; -1 where none does.
        placed: For each sequence and step the history that a path is at; -1 where the chain says.

    Example:
        >>> turn = torch.tensor([[[0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)  # 0 to 1, and 1 to 0
        >>> walk(turn, torch.rand(1, 3, dtype=torch.float64), torch.tensor([0])).tolist()
        [[0, 1, 0, 1]]
    """
    loops = loops_for(u.device, u.numel() * cdf.shape[1])
    go = scan if loops is None else loops.walk_compiled
    return go(cdf, u, start, always, placed)


def loops_for(device: "torch.device", entries: int) -> Any:
    """Returns the module `compiled_walk`, which loads numba, on a processor once maps have had many entries.

    Otherwise None.
    """
    global _entries_so_far
    _entries_so_far += entries
    if device.type != "cpu" or not CAN_COMPILE or _entries_so_far <= FEW_ENTRIES:
        return None
    return import_module("mechmarkov.sources.sampling.compiled_walk")


def emit(laws: Float64[Tensor, "source state"], path: Sequences, generator: Numbers) -> Sequences:
    """Draw a state at every position of a path, from the law that belongs to where the path is.

    Args:
        laws: The law of the state that is shown at each place of the path.
        path: The places.
        generator: The only source of randomness.

    Example:
        >>> laws = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> emit(laws, torch.tensor([[0, 0, 1]]), torch.Generator().manual_seed(0)).tolist()
        [[1, 1, 0]]
    """
    u, cdf = uniform(generator, path.device, *path.shape), cumulative(laws)
    if (loops := loops_for(path.device, path.numel() * len(laws))) is not None:
        emitted: Sequences = loops.emit_compiled(cdf, u, path)
        return emitted
    chunk = max(1, MAX_ENTRIES_GPU // (path.shape[1] * len(laws)))
    drawn = [
        _maps(cdf[None], numbers).gather(2, some[..., None])[..., 0]
        for some, numbers in zip(path.split(chunk), u.split(chunk), strict=True)
    ]
    return torch.cat(drawn)


def scan(
    cdf: Float64[Tensor, "chain history state_to"],
    u: Float64[Tensor, "batch step"],
    start: Int64[Tensor, " batch"],
    always: Int64[Tensor, "batch history"] | None = None,
    placed: Int64[Tensor, "batch step"] | None = None,
) -> Int64[Tensor, "batch step+1"]:
    """Returns what `walk` returns, in log(step) rounds of compositions of maps, on any device."""
    n_chains, n_histories, n_states = cdf.shape
    later, size = [start.new_empty(0, u.shape[1])], MAX_ENTRIES_GPU // max(1, u.shape[1] * n_histories)
    without_oldest = torch.arange(n_histories, device=u.device) * n_states % n_histories
    for part, chains in _parts(len(u), n_chains, max(1, size)):
        maps = without_oldest + _maps(cdf[chains], u[part])
        if always is not None:
            maps = torch.where(always[part, None] < 0, maps, always[part, None])
        if placed is not None:
            maps = torch.where(placed[part, :, None] < 0, maps, placed[part, :, None])
        later.append(_composed(maps, start[part]))
    return torch.cat([start[:, None], torch.cat(later)], 1)


def _parts(batch: int, n_chains: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Parts of about that many sequences, and their chains: one for all, or whole chains."""
    each = batch // n_chains
    if n_chains > 1:
        size = max(each, size - size % each)
    for i in range(0, batch, size):
        yield slice(i, i + size), slice(i // each, -(-(i + size) // each))


def _maps(
    cdf: Float64[Tensor, "chain state_from state_to"], u: Float64[Tensor, "batch step"]
) -> Int64[Tensor, "batch step state_from"]:
    """Returns where each step's uniform number takes each state."""
    numbers = u.reshape(len(cdf), 1, -1).expand(-1, cdf.shape[1], -1).contiguous()
    images = torch.searchsorted(cdf, numbers, right=True)
    return rearrange(images, "chain state (own step) -> (chain own) step state", own=len(u) // len(cdf))


def _composed(
    maps: Int64[Tensor, "batch step state_from"], start: Int64[Tensor, " batch"]
) -> Int64[Tensor, "batch step"]:
    """The states after each map, from `start`, in log(step) rounds."""
    n_steps = maps.shape[1]
    if n_steps == 0:
        return maps.new_empty(len(start), 0)
    # Two steps are one map; following those gives the state after every second step.
    even, odd = maps[:, 0::2], maps[:, 1::2]
    after_odd = _composed(odd.gather(2, even[:, : n_steps // 2]), start)
    before_even = torch.cat([start[:, None], after_odd], dim=1)[:, : even.shape[1]]
    path = maps.new_empty(len(start), n_steps)
    path[:, 0::2] = even.gather(2, before_even[:, :, None])[:, :, 0]
    path[:, 1::2] = after_odd
    return path


def walk_by_counts(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    first: Int64[Tensor, "batch state"],
) -> Int64[Tensor, "batch state+step"]:
    """Go on from `first`, in which each state comes once, by a step for each uniform number in [0, 1).

    Example:
        >>> base, u = torch.full((2, 2), 0.5, dtype=torch.float64), torch.tensor([[0.6, 0.4]]).double()
        >>> walk_by_counts(base, u, torch.tensor([[1, 0]])).tolist()  # laws (1/2, 1/2), then (1/3, 2/3)
        [[1, 0, 1, 1]]
    """
    path = torch.cat([first, torch.empty_like(u, dtype=torch.int64)], 1)
    loops = loops_for(u.device, u.numel() * len(base))
    fill = fill_by_counts if loops is None else loops.fill_by_counts_compiled
    fill(base, u, path)
    return path


def fill_by_counts(
    base: Float64[Tensor, "state_from state_to"],
    u: Float64[Tensor, "batch step"],
    path: Int64[Tensor, "batch position"],
) -> None:
    """Fill a path behind its first states, in place, on any device; see `fill_by_counts_compiled`."""
    n = len(base)
    counts, one = torch.ones_like(path[:, :n], dtype=torch.float64), torch.ones_like(u[:, :1])
    for t in range(n, path.shape[1]):
        law = counts * base[path[:, t - 1]]
        path[:, t] = draw(cumulative(law), u[:, t - n, None])[:, 0]
        counts.scatter_add_(1, path[:, t, None], one)
