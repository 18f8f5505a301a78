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
# # The unigram trap
#
# Makkuva et al. (ICLR 2025) train one-layer transformers on a chain of two states. With tied weights and
# `p + q > 1`, states that tend to change, runs stop at the unigram: they predict the stationary law and never
# the kernel. The page of this folder holds every claim with its measured value. Here we read the committed
# results and compute again what takes seconds.

# %%
import numpy as np
import plotly.graph_objects as go
from IPython.display import Markdown

import mechmarkov as mm
from experiments.claims_table import table
from experiments.harness import load, load_figure
from experiments.unigram_trap.__main__ import STUDY
from mechmarkov.theory.canonical import CANCELS
from mechmarkov.theory.unigram_trap import unigram_point

FOLDER = STUDY.folder

# %% [markdown]
# ## Where runs stop
#
# Bars are shares of runs that have learned less than half of what lies between unigram and bigram after the
# paper's 400 steps, with 95 % intervals.

# %%
load_figure(FOLDER, "phase")

# %% [markdown]
# ## What the landscape is
#
# At the unigram point all embeddings are zero and the bias is `log pi`. Only the path straight from the
# embedding
# to the unembedding has curvature there. Tied, its sign is that of `p + q - 1`; untied, it has both signs.

# %%
for p, q in ((0.2, 0.3), (0.5, 0.8), (0.8, 0.8)):
    chain = mm.Binary(p=p, q=q)
    for tied in (True, False):
        point = unigram_point(np.array(chain.P), np.array(chain.pi), tied=tied)
        word = "minimum" if point.trap else "saddle"
        print(f"p = {p}, q = {q}, {'tied  ' if tied else 'untied'}: {point.embedding.round(3)}, a {word}")

# %% [markdown]
# The same holds of chains of many states, and there the trap is rare: a positive eigenvalue anywhere is a
# way out.

# %%
load_figure(FOLDER, "many-states")

# %% [markdown]
# ## Why AdamW leaves all the same
#
# A local minimum should hold a run for good. It holds plain gradient descent; under AdamW all runs leave in
# the
# end. In the coordinates of Makkuva et al. (NeurIPS 2024) the MLP gives back `2 w |w|` times the embedding,
# and the
# curvature along embeddings is proportional to `1 + 2 w |w|`: below `w = -1/sqrt 2` the minimum is none.

# %%
w = np.linspace(-1.2, 0.6, 200)
curve = go.Figure(go.Scatter(x=w, y=4 * 0.25 * 0.6 * (1 + 2 * w * np.abs(w)), mode="lines"))
curve.add_hline(y=0, line={"color": "grey"})
curve.add_vline(x=float(CANCELS), line={"dash": "dash", "color": "grey"}, annotation_text="-1/√2")
curve.update_layout(
    template="plotly_white",
    title="Curvature along embeddings at the unigram, p = q = 0.8, tied",
    xaxis_title="w",
    yaxis_title="nats / weight²",
)

# %% [markdown]
# Where the gradient is next to nothing AdamW divides noise by the size of noise, and takes steps of the
# learning
# rate: `w` walks at random, until it is beyond the line. Then the embedding grows and the bigram is learned.

# %%
load_figure(FOLDER, "leaving")

# %% [markdown]
# A run of our own, with 32 positions: the loss falls where the walk has crossed.

# %%
recipe = mm.load_recipe("binary-p08-q08-tied").with_set(
    ["model.n_ctx=32", "steps=400", "checkpoints={every=20}"]
)
run = mm.train(recipe, seed=0, progress=False)
loss = run.metrics["loss"]["value"].numpy().reshape(-1, 20).mean(1)
chain = run.source
course = go.Figure(go.Scatter(x=np.arange(10, 400, 20), y=loss, mode="lines+markers", name="loss"))
course.add_hline(y=chain.unigram_entropy, line={"dash": "dash"}, annotation_text="unigram")
course.add_hline(y=chain.entropy_rate, line={"dash": "dot"}, annotation_text="bigram")
course.update_layout(
    template="plotly_white", title="Tied, p = q = 0.8, AdamW", xaxis_title="step", yaxis_title="nats"
)

# %% [markdown]
# ## Where the kernel is, once it is learned

# %%
load_figure(FOLDER, "paths")

# %% [markdown]
# ## All claims on precision

# %%
Markdown(table(STUDY.claims("precision", load(FOLDER, "precision")[0])))
