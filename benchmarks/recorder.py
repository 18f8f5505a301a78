"""What `mm.Recorder` adds to a training loop, at a checkpoint every 50 steps and without probes.

    python -m benchmarks.recorder [--blocks 14] [--repeats 3]

Character models of GPT-2's shape (65 characters, context 64, batch 12) are trained with and without the
recorder, 50 steps in turn: a drifting machine drifts for both. The table is written into
`benchmarks/README.md`.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm
from benchmarks.timing import write_table

K, CONTEXT, BATCH, EVERY = 65, 64, 12, 50
SIZES = {"1 layer, width 32": (1, 32), "2 layers, width 64": (2, 64)}


class Loop:
    """A training that is done in blocks, and the processor and wall seconds that it took."""

    def __init__(self, layers: int, width: int, path: Path | None) -> None:
        torch.manual_seed(0)
        shape: dict[str, Any] = {"n_positions": CONTEXT, "n_embd": width, "n_layer": layers, "n_head": 4}
        config = GPT2Config(vocab_size=K, bos_token_id=0, eos_token_id=0, **shape)
        self.model = GPT2LMHeadModel(config).train()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.source, self.generator = mm.Circle(n_states=K, p=0.7), torch.Generator().manual_seed(0)
        self.recorder = None if path is None else mm.Recorder(path, source=self.source, every=EVERY)
        self.steps, self.processor, self.wall = 0, 0.0, 0.0

    def block(self) -> None:
        """Train for as many steps as lie between checkpoints."""
        processor, wall = time.process_time(), time.perf_counter()
        for _ in range(EVERY):
            if self.recorder is not None:
                self.recorder(self.steps, self.model)
            tokens = self.source.sample(BATCH, CONTEXT, generator=self.generator)
            self.model(input_ids=tokens, labels=tokens).loss.backward()
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            self.steps += 1
        self.processor += time.process_time() - processor
        self.wall += time.perf_counter() - wall


def row(name: str, layers: int, width: int, blocks: int, repeats: int) -> str:
    """A line of the table: medians over repeats, with the lowest and highest."""
    steps, added, walls = [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            loops = [Loop(layers, width, path) for path in (None, Path(folder) / "run.pt")]
            for loop in loops:
                loop.block()  # warming up
                loop.processor = loop.wall = 0.0
            for block in range(blocks):
                for loop in loops if block % 2 else loops[::-1]:
                    loop.block()
            plain, recorded = loops
            steps.append(plain.processor / blocks / EVERY * 1e3)
            added.append(100 * (recorded.processor / plain.processor - 1))
            walls.append(100 * (recorded.wall / plain.wall - 1))
    step, share = statistics.median(steps), statistics.median(added)
    spread = f"{share:.1f} % ({min(added):.1f} to {max(added):.1f})"
    wall = f"{statistics.median(walls):.1f} % ({min(walls):.1f} to {max(walls):.1f})"
    return f"| {name} | {step:.0f} ms | {spread} | {wall} | {share / 100 * step * EVERY:.0f} ms |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=14, help="of 50 steps; larger models take fewer")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = [
        "| GPT-2's shape | a step | the recorder adds, processor | wall | a checkpoint |",
        "|---|---|---|---|---|",
    ]
    for name, (layers, width) in SIZES.items():
        table.append(row(name, layers, width, max(1, options.blocks // layers), options.repeats))
        print(table[-1], flush=True)
    write_table("benchmarks.recorder", table)
