"""Sampling chains at length 1024 beside a multinomial call a step, and beside a training step.

    python -m benchmarks.sampling [--repeats 5]

Once for one batch by itself, and once as a training draws: several steps at once where batches are small,
and freed memory kept. The training step is a one-layer decoder of width 8 with fused attention, AdamW, at the
same length and batch. The table is written into `benchmarks/README.md`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product

import numpy as np
import torch

import mechmarkov as mm
from benchmarks.timing import write_table
from mechmarkov.sources.sampling.stacks import draws_of
from mechmarkov.utils.memory import freed_memory_kept

LENGTH = 1024
STATES, BATCHES = (2, 10, 20, 50), (16, 64)


def one_draw_a_step(P: torch.Tensor | None, n_states: int, batch: int) -> torch.Tensor:
    """What one writes first: `multinomial` on the current rows, step by step; without `P`, of new chains."""
    generator = torch.Generator().manual_seed(0)
    if P is None:
        P = torch.distributions.Dirichlet(torch.ones(n_states)).sample((batch, n_states))
    own, pi = torch.arange(batch) % len(P), torch.ones(n_states)
    states = [torch.multinomial(pi.expand(batch, -1), 1, generator=generator)[:, 0]]
    for _ in range(LENGTH - 1):
        states.append(torch.multinomial(P[own, states[-1]], 1, generator=generator)[:, 0])
    return torch.stack(states, dim=1)


def training_step(n_states: int, batch: int) -> Callable[[], None]:
    """A step of a small decoder."""
    config = mm.DecoderConfig(
        n_layers=1, d_model=8, d_head=8, n_ctx=LENGTH, d_vocab=n_states, normalization_type=None
    )
    model = mm.HookedDecoder(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(n_states, (batch, LENGTH), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimiser.zero_grad()
        loss = model(tokens, return_type="loss")
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimiser.step()

    return step


def milliseconds(alternatives: list[Callable[[], object]], repeats: int) -> np.ndarray:
    """Of each alternative, in turn, behind a warm-up: `[repeat, alternative]`."""
    taken = []
    for _ in range(repeats + 1):
        row = []
        for run in alternatives:
            began = time.perf_counter()
            run()
            row.append(1e3 * (time.perf_counter() - began))
        taken.append(row)
    return np.array(taken[1:])


def row(n_states: int, batch: int, fresh: bool, repeats: int) -> str:
    """A row of the table: ours, and how many times as long the peer and a training step take."""
    P = np.random.default_rng(0).dirichlet(np.ones(n_states), n_states)
    source: mm.sources.Source = mm.DirichletChains(n_states=n_states) if fresh else mm.Chain(P=P.tolist())

    def sample() -> torch.Tensor:
        return source.sample(batch, LENGTH, generator=torch.Generator().manual_seed(0))

    def peer() -> torch.Tensor:
        return one_draw_a_step(None if fresh else torch.tensor(P)[None], n_states, batch)

    draws = draws_of([source], [0], LENGTH, torch.device("cpu"))
    steps = draws.steps_at_once(batch)

    def in_training() -> torch.Tensor:
        return draws.draw(0, steps * batch)

    alone = milliseconds([sample, peer], repeats)
    with freed_memory_kept():  # as every training does
        training = milliseconds([in_training, peer, training_step(n_states, batch)], repeats)
    training[:, 0] /= steps
    ways = (
        f"| {statistics.median(ours):.2g} ms ({min(ours):.2g} to {max(ours):.2g}) "
        f"| {statistics.median(ratios):.0f}x ({min(ratios):.0f} to {max(ratios):.0f}) "
        for ours, ratios in ((taken[:, 0], taken[:, 1] / taken[:, 0]) for taken in (alone, training))
    )
    return (
        f"| {'a chain for each sequence' if fresh else 'one chain'} | {n_states} | {batch} {''.join(ways)}"
        f"| {statistics.median(training[:, 0] / training[:, 2]):.1%} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = [
        "| source | states | sequences | a batch alone | of multinomial | in a training, a step "
        "| of multinomial | of a training step |"
    ]
    table.append("|" + "---|" * 8)
    for fresh, n_states, batch in product((False, True), STATES, BATCHES):
        table.append(row(n_states, batch, fresh, options.repeats))
        print(table[-1], flush=True)
    write_table("benchmarks.sampling", table)
