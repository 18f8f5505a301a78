"""64 seeds of the induction heads: wall time, and which rule their predictions end next to.

    python -m benchmarks.induction_fleet [--seeds 64] [--steps 720]

The learning rate's one cycle is stretched over the steps, as over the 5000 of the recipe.
"""

import argparse
import time

import numpy as np
import torch

import mechmarkov as mm
from benchmarks.timing import write_table
from mechmarkov.training.workload import members_of
from mechmarkov.utils.threads import cores

SEQUENCES = 512
SEED = 99  # of the fresh sequences
RULES = "in_context_bigram", "in_context_unigram"


@torch.no_grad()
def distances(runs: list[mm.Run], source: mm.sources.Source, length: int) -> np.ndarray:
    """KL(rule ‖ model), nats, a mean over fresh sequences and all positions: `[rule, model]`."""
    tokens = source.sample(SEQUENCES, length, generator=torch.Generator().manual_seed(SEED))
    rules = [torch.from_numpy(source.predictors()[name].probabilities(tokens.numpy())) for name in RULES]
    models = [run.model()(tokens).double().log_softmax(-1) for run in runs]
    return np.array([[float((p * (p.log() - log_q)).sum(-1).mean()) for log_q in models] for p in rules])


def main() -> None:
    """Train, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--steps", type=int, default=720)
    options = parser.parse_args()
    recipe = mm.load_recipe("in-context-k3-shortformer").with_set([f"steps={options.steps}"])
    began = time.perf_counter()
    trained = mm.training.train_members(
        members_of(recipe, range(options.seeds)), device="cpu", progress=False
    )
    seconds = time.perf_counter() - began
    runs = [run for run in trained if isinstance(run, mm.Run)]
    bigram, unigram = distances(runs, recipe.source, recipe.decoder_config.n_ctx)
    nearer = int((bigram < unigram).sum())
    head = f"{options.seeds} seeds, {options.steps} steps, {cores()} cores"
    ends = [f"{np.median(kl):.4f} ({kl.min():.4f} to {kl.max():.4f})" for kl in (bigram, unigram)]
    table = [
        f"| {head} | nearer to the in-context bigram | KL from it, nats | KL from the in-context unigram |",
        "|" + "---|" * 4,
        f"| {seconds:.0f} s | {nearer} of {len(runs)} | {' | '.join(ends)} |",
    ]
    print("\n".join(table))
    write_table("benchmarks.induction_fleet", table)


if __name__ == "__main__":
    main()
