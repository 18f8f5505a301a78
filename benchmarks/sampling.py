"""Sampling a binary chain: random maps composed at log depth, beside a draw a step and a training step.

    python -m benchmarks.sampling [--length 1024] [--batch 16]

The training step is a one-layer decoder of width 8 with fused attention, AdamW, at the same length and batch.
"""

import argparse

import torch

import mechmarkov as mm
from benchmarks.timing import report


def one_draw_a_step(source: mm.Binary, batch: int, length: int) -> torch.Tensor:
    """What one writes first: `multinomial` on the current rows, in a loop over time."""
    generator = torch.Generator().manual_seed(0)
    P = torch.tensor(source.P)
    states = [torch.multinomial(torch.tensor(source.pi).expand(batch, -1), 1, generator=generator)[:, 0]]
    for _ in range(length - 1):
        states.append(torch.multinomial(P[states[-1]], 1, generator=generator)[:, 0])
    return torch.stack(states, dim=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = mm.Binary(p=0.5, q=0.8)
    config = mm.DecoderConfig(
        n_layers=1, d_model=8, d_head=8, n_ctx=options.length, d_vocab=2, normalization_type=None
    )
    model = mm.HookedDecoder(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = source.sample(options.batch, options.length, generator=torch.Generator().manual_seed(0))

    def training_step() -> None:
        optimiser.zero_grad()
        loss = model(tokens, return_type="loss")
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimiser.step()

    def sample() -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return source.sample(options.batch, options.length, generator=generator)

    report(
        f"Binary, length {options.length}, batch {options.batch}, one thread",
        {
            "Binary.sample": sample,
            "one multinomial call a step": lambda: one_draw_a_step(source, options.batch, options.length),
            "one training step": training_step,
        },
        options.repeats,
    )
