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
# # The first ten minutes
#
# Shi & Cao (NeurIPS 2025) train one attention layer on walks on a circle of six states: with probability p
# the next state is one further clockwise, else one back. We take such a model, ask what it learned, and
# read the answers next to what chance would give. You need to have read no code.

# %%
import tempfile
from pathlib import Path

import mechmarkov as mm

# %% [markdown]
# ## A run
#
# A *run* is a model over its training: weights at several steps, and the source of its data. Five come
# with the library.

# %%
mm.examples()

# %%
run = mm.example("walk")
run

# %% [markdown]
# Where do its data come from? The source knows its own law, `P[i, j]` from state i to state j.

# %%
run.source

# %%
assert run.source.P[0].tolist() == [0, 0.5, 0, 0, 0, 0.5]

# %% [markdown]
# ## Questions
#
# A *probe* is one question about a run. We put four of them to the last step; without a list, all are put.

# %%
result = mm.probe(run, ["behaviour", "attention", "alignment", "ablation"])
print(result)

# %% [markdown]
# Each line is a verdict: where the head looks (at the parent, the state right before the predicted one),
# what its value matrix holds, and what the loss loses without it.
#
# ## A score, and its null
#
# Is 1.0000 of the attention on the parent much? Untrained models of the same shape say what to compare it
# with: the middle of 24 of them, and the range that holds 95 % of them.

# %%
parent = result["attention"].scores["parent_score"]
low, middle, high = parent.null
print(f"{parent.value:.4f} {parent.unit}; {parent.null_kind}: {middle:.1g}, from {low:.1g} to {high:.2f}")
assert parent.value > 0.999 > high

# %% [markdown]
# Not every null is a range. Where chance is known exactly it is one number: a model that ignores the parent
# follows a swapped one half of the time (two states can come next, and the swap tells which two).

# %%
swapped = result["ablation"].scores["parent_swap_followed"]
print(swapped.value, swapped.null, swapped.null_kind)
assert (swapped.value, swapped.null) == (1, 0.5)

# %% [markdown]
# And some scores do not exist. They say why, and are never a number by accident: scores of this loss have
# no scale that a softmax would give a meaning.

# %%
slope = result["alignment"].scores["kernel_slope"]
print(slope.value, "because", slope.reason)
assert slope.value is None

# %% [markdown]
# ## Right as often as can be, and not the bigram
#
# Accuracy is at its optimum, yet the predictions are 0.22 nats from the source's own:

# %%
behaviour = result["behaviour"].scores
for name in ("accuracy", "optimal_accuracy", "kl_bigram"):
    print(name, behaviour[name].value)
assert behaviour["accuracy"].value == behaviour["optimal_accuracy"].value == 0.5
assert 0.22 < behaviour["kl_bigram"].value < 0.23

# %% [markdown]
# The pictures of `mm.show` tell where they go: to states that cannot come next. (The tutorial on writing a
# probe of your own measures how much.)

# %%
mm.show.kernel(run)

# %%
mm.show.attention(run)

# %% [markdown]
# ## The numbers behind a verdict
#
# Everything that was measured is an `xarray.Dataset` with named axes. How does the head's attention fall
# with the lag? Lag 1 is the parent.

# %%
mass = result["attention"].data["lag_mass"].sel(step=50, layer=0, head=0)
print(mass.dims, mass.sel(lag=[1, 2, 3]).values)
assert mass.sel(lag=1) > 0.999

# %% [markdown]
# ## How it got there
#
# Probe several of the kept steps, and the data have them along `step`.

# %%
over = mm.probe(run, ["attention"], steps=[0, 1, 2, 3])["attention"].data["lag_mass"].sel(lag=1).squeeze()
print(dict(zip(over["step"].values.tolist(), over.values.round(3).tolist(), strict=True)))
assert over.sel(step=0) < 0.02 < 0.99 < over.sel(step=2)

# %% [markdown]
# Attention is there after two steps; the predictions come closer to the bigram for as long as we train:

# %%
mm.show.trajectory(run)

# %% [markdown]
# ## A run of your own
#
# Recipes are files; one changes a setting by its name. The walk with p = 0.7 takes a second, and its head
# looks at the parent as well. Predictions now prefer one neighbour, and the value matrix is nearest to the
# *square root* of P, which is [what this loss goes to](../corrections.md).

# %%
recipe = mm.load_recipe("walk-k6-half").with_set(["source.p=0.7"])
biased = mm.train(recipe, seed=0)
alignment = mm.probe(biased, ["alignment"])["alignment"]
print(alignment.verdict)
assert alignment.scores["target"].value == "sqrt P"

# %% [markdown]
# ## Keep it, send it
#
# A run is one file that holds numbers only: opening it runs nothing. A report is one page that needs no
# network.

# %%
folder = Path(tempfile.mkdtemp())
biased.save(folder / "run.pt")
again = mm.load(folder / "run.pt")
page = result.report(folder / "report.html")
print(again.title())
print(f"{page.name}: {page.stat().st_size / 1e6:.0f} MB")
assert again.title() == biased.title()
assert "parent of the predicted token" in page.read_text()

# %% [markdown]
# The same without a notebook: `mechmarkov train walk-k6-half --set source.p=0.7 --out runs`, then
# `mechmarkov probe runs/run.pt`.
#
# Next: [a model you trained yourself](your_own_hooked_transformer.py), or [why the walk with p = 1 is never
# learned](why_the_walk_is_stuck.py).
