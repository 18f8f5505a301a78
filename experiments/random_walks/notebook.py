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
# # Random walks on a circle
#
# Shi & Cao (NeurIPS 2025) train one attention layer on walks on a circle: one step clockwise with
# probability p, else one step back. For 0 < p < 1 a few gradient steps suffice; the deterministic walk, p =
# 1, is never learned. The page of this folder holds every claim with its measured value. Here we read the
# committed results, and compute again what takes seconds.

# %%
import numpy as np
from IPython.display import Markdown

import mechmarkov as mm
from experiments.claims_table import table
from experiments.harness import load_figure
from experiments.random_walks.__main__ import STUDY
from experiments.random_walks.common import value_matrix
from mechmarkov.theory import kernel
from mechmarkov.theory.walk.first_step import circle_first_step_information, first_step_profile

FOLDER = STUDY.folder

# %% [markdown]
# ## Learned, and trapped
#
# Fifty steps at p = 1/2 and at p = 1, all else the same.

# %%
load_figure(FOLDER, "learned-k6")

# %%
load_figure(FOLDER, "trapped-k6")

# %% [markdown]
# Why? At zero weights attention is flat, so the first step of V counts how often each state comes before
# each label. On the circle that is one FFT. If 6 divides N - 1, a deterministic walk visits all states
# equally often, and the counts say nothing:

# %%
for p, length in ((0.5, 97), (1.0, 97), (1.0, 98)):
    _, profile = first_step_profile(6, p, length)
    print(p, length, profile.round(2), f"information {circle_first_step_information(6, p, length):.1e}")

# %% [markdown]
# One more token, and one step is enough:

# %%
load_figure(FOLDER, "one-step")

# %% [markdown]
# ## Where V goes
#
# Not to P^T: to its elementwise square root. At p = 1/2 they have one direction, so we look at p = 0.8.

# %%
recipe = mm.load_recipe("walk-k6-biased").with_set(["source.p=0.8", "steps=100", "checkpoints=[100]"])
run = mm.train(recipe, seed=0)
V, P = value_matrix(run, 100), np.array(run.source.P)
ahead, back = V[1, 0], V[5, 0]
print(
    f"entries ahead {ahead:.2f} and back {back:.2f}: ratio {ahead / back:.2f}, sqrt(p/(1-p)) = 2, p/(1-p) = 4"
)
for name, target in (("P", P), ("sqrt P", np.sqrt(P))):
    cosine = kernel.cosine(kernel.double_centred(V.T), kernel.double_centred(target))
    print(f"cosine with {name}: {float(cosine):.4f}")

# %% [markdown]
# ## The trap is a saddle
#
# The landscape probe writes out the Hessian at the trap and holds it against its closed form.

# %%
trapped = mm.train("walk-k6-trap", seed=0)
print(mm.probe(trapped, ["landscape"], steps=[10])["landscape"].verdict)

# %% [markdown]
# Runs that start close by leave at the rate of the lowest eigenvalue, which falls as V grows:

# %%
load_figure(FOLDER, "escape-rates")

# %% [markdown]
# And they leave by any lag class. Here are twelve: accuracy, and attention on the parent.

# %%
close = mm.load_recipe("walk-k6-one").with_set(
    ["data={population=true}", "model.dtype='float64'", "init.scheme=normal", "init.std=1e-6"]
)
for escaped in mm.train(close.with_set(["steps=100", "checkpoints=[100]"]), seeds=range(12)):
    last = {name: float(curve["value"][-1]) for name, curve in escaped.metrics.items()}
    print(f"accuracy {last['accuracy']:.2f}, on the parent {last['parent_attention']:.1e}")

# %%
load_figure(FOLDER, "lag-classes")

# %% [markdown]
# ## Beyond random walks
#
# The paper's rule: from a small start attention first trains V on the token mean, so what that mean says of
# the label decides what is learned. It can be computed exactly.

# %%
load_figure(FOLDER, "token-mean-rule")

# %% [markdown]
# ## The claims that do not hold as printed

# %%
claims = [claim for claim in STUDY.committed() if claim.verdict != "holds"]
Markdown(table(claims))
