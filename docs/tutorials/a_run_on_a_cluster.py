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
# # A run on a cluster
#
# For who has more recipes than one machine can train. We run a small sweep on a Ray cluster that is this
# machine, lose part of it, and go on. On a real cluster only the address changes.

# %%
import json
import tempfile
from pathlib import Path

import mechmarkov as mm

folder = Path(tempfile.mkdtemp()) / "small"

# %% [markdown]
# ## A sweep
#
# A recipe, what varies, and how many seeds. It may be a TOML file or, as here, its data.

# %%
sweep = {
    "name": "small",
    "recipe": "binary-p05-q08-tied",
    "seeds": 2,
    "set": {"steps": 20, "checkpoints": [], "model.n_ctx": 16},
    "grid": {"source.p": [0.2, 0.5]},
}
swept = mm.sweep(sweep, folder, cluster=mm.Cluster("local"), progress=False)
swept

# %%
assert swept.trained == 4
table = swept.table.to_pandas()
table[["source.p", "seed", "status", "final_loss"]]

# %%
assert set(table["status"]) == {"ok"}

# %% [markdown]
# `Cluster("local")` starts Ray on the cores of this machine. A cluster of yours has an address: `auto` on
# one of its nodes, `HOST:6379` from elsewhere, and takes GPUs a task:
#
# `mechmarkov sweep small.toml --ray auto --gpus-per-task 1 --fleet 256`
#
# The page on [clusters](../clusters.md) has the script for SLURM.
#
# ## When something dies
#
# Each member has a row as soon as it is known, named by a hash of its recipe and seed. What is lost is what
# has no row. We remove one, as if a node had died before it was done:

# %%
rows = sorted((folder / "rows").iterdir())
lost = json.loads(rows[0].read_text())
rows[0].unlink()
again = mm.sweep(sweep, folder, progress=False)  # here, without a cluster: rows are the same
print(f"{again.trained} of {again.table.num_rows} was trained again")
assert again.trained == 1

# %% [markdown]
# The new row is the lost one: recipe and seed decide every number.

# %%
back = json.loads(rows[0].read_text())
print(lost["seed"], lost["metrics"]["loss"], back["metrics"]["loss"])
assert back["seed"] == lost["seed"]
assert abs(back["metrics"]["loss"] - lost["metrics"]["loss"]) < 1e-4
assert mm.sweep(sweep, folder, progress=False).trained == 0

# %% [markdown]
# Next: [certify a walk](certify_a_walk.py), or the shipped sweep: `mechmarkov sweep binary-phase`.
