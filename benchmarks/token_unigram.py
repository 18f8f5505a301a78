"""Where models of tokens keep the token unigram: the sentence of `docs/systems.md` on tokens.

python -m benchmarks.token_unigram      # minutes of processor time
"""

from collections import Counter

import numpy as np
from mechmarkov.probes.storage.unigram import holders, unigram

import mechmarkov as mm

SEEDS = range(16)
STEPS = [60, 400, 1500]
SEQUENCES = 256

if __name__ == "__main__":
    recipe = mm.load_recipe("tokens-lzw").with_set([f"checkpoints={STEPS}"])
    runs = mm.train(recipe, seeds=SEEDS, progress=False)
    found = [unigram(mm.Subject.of(run, steps=STEPS, sequences=SEQUENCES)) for run in runs]
    print(f"unigram to the uniform law: {float(found[0].unigram_uniform):.3g} nats")
    for i, step in enumerate(STEPS):
        homes = Counter(" + ".join(sorted(holders(data.isel(step=i))[0])) for data in found)
        left = np.array([float(data.unigram_left[i]) for data in found])
        shares = {
            str(part): np.round(
                np.nanmedian([data.unigram_share.sel(component=part)[i] for data in found]), 2
            )
            for part in found[0].component.values
        }
        print(f"step {step}: left {np.median(left):.2g} [{left.min():.2g}, {left.max():.2g}] nats")
        print(f"  homes {dict(homes)}; median shares {shares}")
