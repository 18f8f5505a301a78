"""64 seeds of the induction heads, trained until they count pairs in context: wall time and losses.

    python -m benchmarks.induction_fleet [--seeds 64] [--steps 720]

After so many steps most seeds are through; the learning rate's one cycle is stretched over them, as over
the 5000 of the recipe.
"""

import argparse
import time

import numpy as np
import torch

import mechmarkov as mm
from benchmarks.timing import write_table
from mechmarkov.training.members import members_of
from mechmarkov.utils.threads import cores

SEQUENCES = 512
SEED = 99  # of the sequences that losses are measured on


def losses(runs: list[mm.Run], source: mm.Source, length: int) -> tuple[np.ndarray, dict[str, float]]:
    """The mean loss of each model's last weights and of each exact predictor, nats, on fresh sequences."""
    tokens = source.sample(SEQUENCES, length + 1, generator=torch.Generator().manual_seed(SEED))
    inputs, targets = tokens[:, :-1], tokens[:, 1:, None]
    rules = source.predictors().items()
    exact = {name: torch.from_numpy(rule.probabilities(inputs.numpy())).log() for name, rule in rules}
    with torch.no_grad():
        models = [run.decoder()(inputs).log_softmax(-1) for run in runs]
    found = [-float(log_p.gather(-1, targets).mean()) for log_p in models]
    return np.array(found), {name: -float(log_p.gather(-1, targets).mean()) for name, log_p in exact.items()}


def main() -> None:
    """Train, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--steps", type=int, default=720)
    options = parser.parse_args()
    recipe = mm.load_recipe("in-context-k3-shortformer").with_set([f"steps={options.steps}"])
    began = time.perf_counter()
    trained = mm.train_members(members_of(recipe, range(options.seeds)), device="cpu", progress=False)
    seconds = time.perf_counter() - began
    runs = [run for run in trained if isinstance(run, mm.Run)]
    found, exact = losses(runs, recipe.source, recipe.decoder_config.n_ctx)
    low, high = exact["in_context_bigram"], exact["in_context_unigram"]
    through = int((found < (low + high) / 2).sum())
    head = f"{options.seeds} seeds, {options.steps} steps, {cores()} cores"
    ends = f"{np.median(found):.3f} ({found.min():.3f} to {found.max():.3f})"
    table = [
        f"| {head} | nearer to the bigram | loss, nats | in-context bigram | in-context unigram |",
        "|" + "---|" * 5,
        f"| {seconds:.0f} s | {through} of {len(runs)} | {ends} | {low:.3f} | {high:.3f} |",
    ]
    print("\n".join(table))
    write_table("benchmarks.induction_fleet", table)


if __name__ == "__main__":
    main()
