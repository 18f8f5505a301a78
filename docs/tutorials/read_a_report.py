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
# # Read a report
#
# For who was sent a `report.html`, or has made one. We make the report of a model that learned nothing, and
# go through it from top to bottom: what is claimed, on what ground, and what does not follow.

# %%
import json
import tempfile
from pathlib import Path

import mechmarkov as mm

folder = Path(tempfile.mkdtemp()) / "trap"

# %% [markdown]
# ## The first screen
#
# The walk that always turns the same way (p = 1) is the simplest there is, and this model does not learn
# it.

# %%
run = mm.example("trap")
asked = ["behaviour", "attention", "alignment", "ablation", "symmetry"]
result = mm.probe(run, asked, steps=[0, 1, 10, 50], sequences=64)
result.save(folder)
summary = json.loads((folder / "summary.json").read_text())
print(summary["badge"], "|", summary["headline"])
assert summary["badge"] == "trapped"

# %% [markdown]
# The badge is one of six words: solved, partly, at the unigram, another law, trapped, untrained. None at
# all means that the numbers do not decide. Below it are the learning curve, the circuit, and up to four
# answers. In the page a slider moves all of them through the steps.
#
# ## A claim
#
# The sentences of a report are made of claims. A claim has a *status*: `shown`, `excluded`, `open`, or
# `does not apply`. Open is not excluded: it says that these sequences do not tell.

# %%
result.claims

# %%
statuses = {claim.status for claim in result.claims}
assert statuses <= {"shown", "excluded", "open", "does not apply"}
trapped = result.claims.first("is_trapped_by")
print(trapped, trapped.evidence)
assert trapped.status == "shown"

# %% [markdown]
# Claims of one result never contradict each other: an intervention outweighs what is read off weights, an
# interval outweighs a point. What had to give way is open, and says against which claim.
#
# ## A score and its null
#
# Every score stands next to what chance gives. Is 1/97 of the attention on the parent much? Not with 97
# tokens to look at.

# %%
parent = result["attention"].scores["parent_score"]
print(parent)
low, middle, high = parent.null
assert low < parent.value < high

# %% [markdown]
# It lies within its null: no evidence, and the report says so in these words. A table has all scores.

# %%
table = result.to_dataframe()
table[["probe", "score", "value", "null", "unit"]].head(12)

# %%
assert {"value", "low", "high", "null_low", "null_high"} <= set(table.columns)

# %% [markdown]
# ## What was not measured
#
# Probes that do not apply say why, and so do those that failed. Neither is a zero.

# %%
more = mm.probe(run, ["induction", "belief"], sequences=64)
print(more)
assert not more.failed
assert set(more.skipped) | set(more.outcomes) == {"induction", "belief"}

# %% [markdown]
# ## What does not follow
#
# - A verdict is about this run, at this step, on these sequences. For every sequence:
#   [certify](certify_a_walk.py).
# - Weights that match do not show that they are used; `ablation` does.
# - One seed is an anecdote: [compare seeds](compare_seeds.py).
#
# [How to read a report](../how-to-read-a-report.md) has every part of the page. Next: [compare
# seeds](compare_seeds.py).
