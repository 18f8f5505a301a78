# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Where a start leads
#
# A one-layer transformer on a binary chain can end at the bigram or be stuck at the unigram. Makkuva et al.
# (NeurIPS 2024) reduce it to two numbers, `e` (the size of the embedding) and `w` (what the MLP makes of it),
# and draw a map: from each start, where does training end? This notebook reads the map and asks real
# weights.

# %%
import numpy as np

from experiments.harness import load_figure
from experiments.initialisation.__main__ import STUDY
from experiments.initialisation.flow import flow
from experiments.initialisation.networks import WEIGHTS, descend
from mechmarkov.theory import canonical

FOLDER = STUDY.folder

# %% [markdown]
# ## The map
# The slope of the log-odds is `s = e² (1 + 2 w |w|)`; the bigram has `s*`, and `s = 0` is the unigram. An
# energy is constant along every line of gradient flow, so the line through the saddle at `(0, -1/√2)`
# separates the basins.

# %%
load_figure(FOLDER, "basins")

# %%
for e, w in [(0.8, -1.5), (1.2, -1.5)]:
    line = flow(e, w, 0.1, 0.1)
    kept = np.ptp(canonical.energy(line.e, line.w))
    print(f"from e = {e}, w = {w}: {line.end}; energy changes by {kept:.0e}")

# %% [markdown]
# ## Real weights
# The same start, as weights of a decoder, under gradient descent. By the map in `(e, w)` it should reach the
# bigram. It does not: weights have a metric of their own, in which a step of `e` is cheaper, and the border
# is four times as high.

# %%
start = (0.6, -1.1, 0.2, 0.3)  # e, w, p, q
print("by the map of (e, w):", canonical.basin(*start))
print("by the map of the weights:", canonical.basin(0.6 / 4, -1.1, 0.2, 0.3))
lost = descend([start], trained=WEIGHTS, lr=0.2, steps=800)
print(f"lost after 800 steps (bigram 0, unigram 1): {lost[0]:.3f}")

# %%
load_figure(FOLDER, "networks")

# %% [markdown]
# ## Standard starts, the guideline, and AdamW
# Above `p + q = 1` a standard start ends at the unigram, and the guideline (MLP weights of 1 and -1) at the
# bigram.

# %%
load_figure(FOLDER, "guideline")

# %% [markdown]
# Trained longer, AdamW leaves the unigram all the same. Under gradient flow `w > 0` stays above 0; AdamW
# divides a gradient by its size, and walks `w` to where the bigram's basin begins.

# %%
load_figure(FOLDER, "adamw")

# %% [markdown]
# ## Rank
# At (0.5, 0.8), the chain of the paper's figure 4, the MLP's weights and the value matrix become nearly rank
# one from a random start, and stay so. At (0.2, 0.3) the value matrix does too, by step 50, and then falls
# back.

# %%
load_figure(FOLDER, "rank_one")

# %%
{claim.text: claim.verdict for claim in STUDY.committed()}
