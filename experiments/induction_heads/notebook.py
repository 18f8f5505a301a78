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
# # Statistical induction heads
#
# Edelman et al. (NeurIPS 2024) give every training sequence a Markov chain of its own. A model can then
# do well only by counting in context: tokens (the unigram), or pairs (the bigram). They find that two
# attention layers first predict uniformly, then count tokens, then, at once, count pairs: a *statistical
# induction head* has formed. The page of this folder holds every claim with its measured value. Here we
# read the committed results and compute again what takes seconds.

# %%
import numpy as np
import torch
from IPython.display import Markdown

import mechmarkov as mm
from experiments.claims_table import table
from experiments.harness import load_figure
from experiments.induction_heads import minimal
from experiments.induction_heads.__main__ import STUDY
from mechmarkov.theory.kernel import kl

FOLDER = STUDY.folder

# %% [markdown]
# ## The phases
#
# KL from each exact predictor to the model, late in the context: the line that is lowest says what the
# model does like. Bands are ranges over seeds.

# %%
load_figure(FOLDER, "phases")

# %% [markdown]
# With eight symbols rows are drawn from Dirichlet(0.1). From Dirichlet(1), 64 tokens show each pair once, and
# counting tokens is worse than not counting (nats lost to the exact posterior mean):

# %%
for concentration in (0.1, 1.0):
    chains = mm.DirichletChains(n_states=8, concentration=concentration, start="uniform")
    tokens = chains.sample(200, 64, generator=torch.Generator().manual_seed(0)).numpy()
    rules = {name: rule.probabilities(tokens) for name, rule in chains.predictors().items()}
    best = rules["in_context_bigram"]
    print(concentration, {name: round(float(kl(best, law).mean()), 3) for name, law in rules.items()})

# %% [markdown]
# ## The heads
#
# The first layer comes to look at the token before, the second at keys that follow a copy of the current
# token.

# %%
load_figure(FOLDER, "heads")

# %% [markdown]
# A score could be had without a circuit, so the probe edits and cuts: it changes nothing but a key's
# predecessor, and it hides the first head from the second one's keys alone. On the bundled run:

# %%
run = mm.example("induction")
result = mm.probe(run, ["induction"], sequences=64)
print(result["induction"].verdict)

# %% [markdown]
# ## What attention cannot count
#
# After `n` equal tokens the exact prediction of one more is `n / (n - 1 + K)`: it grows with the
# evidence. Attention averages; where all tokens are alike an average over one is an average over sixty.
# So the model says the same after each.

# %%
alike = torch.zeros(1, run.config.n_ctx, dtype=torch.long)
with torch.no_grad():
    model = run.model()(alike)[0].softmax(-1)[:, 0].numpy()
exact = run.source.predictors()["in_context_bigram"].probabilities(alike.numpy())[0, :, 0]
{n: {"model": round(float(model[n - 1]), 4), "exact": round(float(exact[n - 1]), 4)} for n in (1, 2, 8, 64)}

# %% [markdown]
# ## The minimal model
#
# Two arrays: `v`, a softmax over lags, and `W`, current token against mixed token. Where `W` is constant
# no score depends on the mix, so at the start `v` has no gradient at all: the second layer has to move
# first.

# %%
chains = mm.DirichletChains(n_states=3, start="uniform")
trajectory = minimal.train(chains, [0, 1], n_ctx=32, batch=32, steps=400, every=50, lr_W=1e-2, lr_v=1.0)
for step, weight, diagonal in zip(trajectory.steps, trajectory.previous, trajectory.diagonal, strict=True):
    print(f"step {step:3d}: previous token {weight.mean():.3f}, diagonal of W {diagonal.mean():.3f}")

# %%
np.array([trajectory.v_gradient[0].max(), trajectory.W_gradient[0].min()])

# %% [markdown]
# The public code computes layer 1's mask and drops the result. This is what its model does in the same
# steps, and what becomes of either layer when the other is held at its ideal:

# %%
load_figure(FOLDER, "minimal")

# %% [markdown]
# ## Every claim

# %%
Markdown(table(STUDY.committed()))
