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
# # Where is the bigram?
#
# A transformer can keep a table of successors in several places: on the direct path from embedding to
# unembedding, in what a head makes of the token it looks at, in an MLP. Bietti et al. (NeurIPS 2023) watch it
# beside a second task: what follows a *trigger* is another token in every sequence, and can only be found in
# the context. Their weights are associative memories, and each has a recall. This notebook reads the
# committed results, and trains small models again.

# %%
import torch
from IPython.display import Markdown

import mechmarkov as mm
from experiments.claims_table import table
from experiments.harness import load_figure
from experiments.where_is_the_bigram.__main__ import STUDY
from experiments.where_is_the_bigram.homes import chain, floor
from experiments.where_is_the_bigram.shared import recipe

FOLDER = STUDY.folder

# %% [markdown]
# ## The task
#
# States 0, 1 and 2 are triggers. The exact predictor knows their output once it has seen it, and the bigram
# everywhere else.

# %%
source = recipe("triggers").source
tokens = source.sample(100, 32, generator=torch.Generator().manual_seed(0)).numpy()
known, triggers = source.in_context_mask(tokens), source.trigger_mask(tokens)
{"share of triggers": float(triggers.mean()), "of these known": float(known.sum() / triggers.sum())}

# %% [markdown]
# ## First the bigram, then the memories from the top down

# %%
load_figure(FOLDER, "bigram")

# %%
load_figure(FOLDER, "recalls")

# %% [markdown]
# ## What each part is for
#
# A part is replaced by its mean. What the bigram loses goes to the right, what the context loses goes up.

# %%
load_figure(FOLDER, "layers")

# %% [markdown]
# ## A chain alone: who holds it?
#
# Without triggers there is nothing but the bigram, and the storage probe shares it out among the paths.

# %%
load_figure(FOLDER, "homes")

# %% [markdown]
# The same for one chain, here and now: weights that are tied against weights that are not.

# %%
law = chain(8, seed=0)
results = {}
for tied in (False, True):
    small = recipe("chains", source=law.model_dump(mode="json"), model__tied=tied)
    results[tied] = mm.probe(mm.train(small, seed=0), ["storage"], sequences=64)
{f"tied: {tied}": result["storage"].verdict for tied, result in results.items()}

# %% [markdown]
# Tied, the direct path is a table `W_E W_E^T`: symmetric, and positive semidefinite. However it is trained,
# it stays this many nats away from the chain:

# %%
floor(law, tied=True)

# %% [markdown]
# ## All claims

# %%
Markdown(table(STUDY.committed()))
