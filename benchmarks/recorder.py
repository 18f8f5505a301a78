"""What `mm.Recorder` adds to a training loop, at a checkpoint every 50 steps and without probes.

    python -m benchmarks.recorder [--steps 1000] [--repeats 5]

A nanoGPT-shaped character model (4 layers of 4 heads, width 128, context 64, batch 12: 0.8 million
parameters) is trained with and without the recorder, in turn. Prints processor milliseconds of a step, the
median of the ratios, and what a checkpoint costs.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm

K, CONTEXT, BATCH, EVERY = 65, 64, 12, 50


def train(steps: int, path: Path | None) -> float:
    """Processor seconds of a training, recorded at `path` or not at all."""
    torch.manual_seed(0)
    shape = {"vocab_size": K, "n_positions": CONTEXT, "n_embd": 128, "n_layer": 4, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = mm.Circle(n_states=K, p=0.7)
    generator = torch.Generator().manual_seed(0)
    start = time.process_time()
    recorder = None if path is None else mm.Recorder(path, source=source, every=EVERY)
    for step in range(steps):
        if recorder is not None:
            recorder(step, model)
        tokens = source.sample(BATCH, CONTEXT, generator=generator)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    if recorder is not None:
        recorder.finish(steps, model)
    return time.process_time() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(EVERY, None)
    pairs = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append((train(options.steps, None), train(options.steps, Path(folder) / "run.pt")))
            size = (Path(folder) / "run.pt").stat().st_size
    plain = statistics.median(one for one, _ in pairs)
    ratio = statistics.median(recorded / one for one, recorded in pairs)
    checkpoints = options.steps // EVERY + 1
    print(f"{plain / options.steps * 1e3:.1f} ms a step, recorded {100 * (ratio - 1):+.1f} %")
    each = (ratio - 1) * plain / checkpoints * 1e3
    print(f"{each:.0f} ms a checkpoint, {checkpoints} of them, {size / 1e6:.0f} MB")
