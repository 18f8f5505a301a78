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
# # Compare seeds
#
# For who is about to write "the model learns". We train sixteen seeds of one recipe, count how many leave
# the unigram, and put two that differ side by side.

# %%
import tempfile
from collections import Counter
from pathlib import Path

import mechmarkov as mm
from mechmarkov.report.dashboard import read_dashboard, write_dashboard

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A fleet
#
# Seeds train together, many models in one forward pass; each has the bits that it has by itself. This is a
# binary chain with p + q > 1 and tied weights, on which Makkuva et al. (2025) find models that stay at the
# unigram. Short sequences and few steps, so that it takes seconds.

# %%
recipe = mm.load_recipe("binary-p08-q08-tied").with_set(
    ["model.n_ctx=32", "data.batch=8", "steps=400", "checkpoints.log=4"]
)
runs = mm.train(recipe, seeds=range(16))
print(runs[0])
assert [run.seed for run in runs] == list(range(16))

# %% [markdown]
# ## One word each

# %%
results = {f"seed-{run.seed}": mm.probe(run, ["behaviour"], sequences=64) for run in runs}
words = {name: result.summary()["badge"] for name, result in results.items()}
print(Counter(words.values()))
left = [name for name, word in words.items() if word in ("solved", "partly")]
assert 0 < len(left) < 16  # some learn the bigram, others do not

# %% [markdown]
# ## A share has an interval
#
# Three of sixteen is not 19 %. Wilson's interval says what the seeds tell of the share.

# %%
n, share, z = len(runs), len(left) / len(runs), 1.96
middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
half = z * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5 / (1 + z**2 / n)
print(f"{len(left)} of {n} leave the unigram: {middle - half:.2f} to {middle + half:.2f} (95 %)")
assert 0 < middle - half < share < middle + half < 1

# %% [markdown]
# A sentence about training needs many seeds: `mechmarkov sweep` counts them over a grid, with the same
# interval.
#
# ## All of them on one page
#
# `mechmarkov index` lists what was probed: badges, curves, filters, and how many seeds formed what.

# %%
for name, result in results.items():
    result.save(folder / name)
board = read_dashboard(folder)
write_dashboard(board)
board

# %%
assert (folder / "index.html").is_file()
assert (folder / "index.json").is_file()

# %% [markdown]
# ## Two that differ, side by side
#
# Their learning curves are overlaid, and figures of one kind share a scale.

# %%
stayed = next(name for name in results if name not in left)
pair = {left[0]: results[left[0]], stayed: results[stayed]}
page = mm.write_comparison(pair, folder / "pair.html")
losses = {name: float(result["behaviour"].scores["excess_loss"].value) for name, result in pair.items()}
print(page.name, losses)
assert losses[left[0]] < losses[stayed]

# %% [markdown]
# Next: [a grid of recipes on a cluster](a_run_on_a_cluster.py), or [why the walk is
# stuck](why_the_walk_is_stuck.py).
