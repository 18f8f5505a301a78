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
# # Train and probe a recipe of your own
#
# For who has a chain in mind and wants a model of it. We write a recipe, break it on purpose, train it, and
# ask what was learned. You need a terminal or a notebook, and a minute.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import mechmarkov as mm

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A recipe to begin with
#
# `mechmarkov recipe new --source chain --layers 1` writes one that trains as it is, with a comment at every
# field. `mechmarkov list` has the kinds of source.

# %%
command = [sys.executable, "-m", "mechmarkov", "recipe", "new", "--source", "chain", "--layers", "1"]
text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print("\n".join(text.splitlines()[:24]))
assert 'kind = "chain"' in text

# %% [markdown]
# ## Make it yours
#
# Any text editor will do. We want four states in a ring with a shortcut, and a smaller model. All fields
# are on [a page](../recipes.md).

# %%
mine = """
name = "shortcut"
title = "A ring of four states with a shortcut"
steps = 400

[source]
kind = "chain"
P = [[0.1, 0.8, 0.1, 0.0], [0.0, 0.1, 0.9, 0.0], [0.0, 0.0, 0.1, 0.9], [0.9, 0.0, 0.0, 0.1]]

[model]
kind = "decoder"
n_layers = 1
d_model = 16
d_head = 16
n_heads = 1
n_ctx = 24
attn_only = true

[optimiser]
kind = "adamw"
lr = 0.01

[data]
batch = 32
"""
path = folder / "mine.toml"
path.write_text(mine)
recipe = mm.load_recipe(path)
recipe

# %% [markdown]
# ## When it is wrong
#
# All faults come at once, each with the field, the value and what was expected. No training begins.

# %%
path.write_text(mine.replace("lr = 0.01", "lr = -1").replace("d_head", "d_heads"))
try:
    mm.load_recipe(path)
except ValueError as error:
    told = str(error)
    print(told)
assert "lr" in told
assert "did you mean" in told

# %% [markdown]
# ## Train
#
# The seed decides weights and data. On the command line: `mechmarkov train mine.toml --out runs/mine`.

# %%
run = mm.train(recipe, seed=0)
run

# %%
assert run.steps.tolist()[0] == 0
assert run.steps.tolist()[-1] == 400

# %% [markdown]
# ## Ask
#
# How far is it from the best that is possible, and where does it keep the transition matrix?

# %%
result = mm.probe(run, ["behaviour", "storage"], sequences=128)
print(result)
excess = result["behaviour"].scores["excess_loss"]
print(excess)
assert excess.value < 0.05

# %% [markdown]
# A sequence of your own shows it position by position: what the model says after 0, 1, 2, and what its
# source says.

# %%
shown = mm.tokens(run, [0, 1, 2])
print(shown.data["model"].values.round(2))
print(shown.data["law"].sel(predictor="bigram").values)
shown.report(folder / "tokens.html")
assert abs(shown.data["model"] - shown.data["law"].sel(predictor="bigram")).max() < 0.15

# %% [markdown]
# Next: [read a report](read_a_report.py), or [compare seeds](compare_seeds.py): one seed is an anecdote.
