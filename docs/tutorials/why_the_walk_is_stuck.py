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
# # Why the walk is stuck
#
# Shi & Cao's theorem 4.1: at p = 1, where the next state is certain, the same model in the same training
# learns nothing at all. We look at why with five tools: a count, the exact first gradient, the symmetry of
# the data, the Hessian, and an edit of the input.

# %%
import numpy as np
import torch

import mechmarkov as mm
from mechmarkov.theory.walk.first_step import circle_first_step_information, first_step_profile

walk, trap = mm.example("walk"), mm.example("trap")

# %% [markdown]
# ## The easier task is not learned
#
# Half of the fair walk can be predicted, and is. All of the certain walk can, and 1 in 6 is, which is
# chance.

# %%
for name, run in (("p = 1/2", walk), ("p = 1", trap)):
    accuracy = run.metrics["accuracy"]["value"]
    print(name, {step: round(float(accuracy[step]), 3) for step in (0, 1, 2, 3, 50)})
assert abs(float(walk.metrics["accuracy"]["value"][-1]) - 1 / 2) < 0.03  # 1000 training sequences
assert abs(float(trap.metrics["accuracy"]["value"][-1]) - 1 / 6) < 1e-6

# %% [markdown]
# ## What flat attention can see
#
# All weights start at zero, so attention is flat and the model reads one thing only: how often each state
# occurs among its N - 1 = 96 tokens. At p = 1 six divides 96. Every state occurs 16 times, whatever the
# label.

# %%
sequences = trap.source.sample(4, 97, generator=torch.Generator().manual_seed(0)).numpy()
for *tokens, label in sequences.tolist():
    print("label", label, "counts", np.bincount(tokens, minlength=6))
    assert np.bincount(tokens, minlength=6).tolist() == [16] * 6

# %% [markdown]
# ## The first gradient, exactly
#
# On a circle the first step of the value matrix V depends only on the displacement from token to label,
# and is one FFT. Below it is for p = 1/2, for p = 1, and for p = 1 with one token less or more. A flat
# profile says nothing of the label; "information" is the share of it that is not flat.

# %%
information = {}
for p, length in ((0.5, 97), (1.0, 97), (1.0, 96), (1.0, 98)):
    _, profile = first_step_profile(6, p, length)
    information[p, length] = circle_first_step_information(6, p, length)
    print(f"p = {p:g}, N = {length}: {profile.round(2)}, information {information[p, length]:.1e}")
assert information[1.0, 97] < 1e-20 < 1e-4 < min(information[1.0, 96], information[1.0, 98])

# %% [markdown]
# So a certain walk is stuck only if six divides N - 1. With one token more, a single step must predict
# without a mistake:

# %%
exact = ["data={population=true}", "model.dtype='float64'"]  # all six walks, each once
longer = mm.load_recipe("walk-k6-one").with_set([*exact, "model.n_ctx=98", "steps=1", "checkpoints=[1]"])
accuracy = mm.train(longer, seed=0).metrics["accuracy"]["value"]
print("accuracy before and after one step:", accuracy.tolist())
assert accuracy[-1] == 1

# %% [markdown]
# ## Why it stays so
#
# A flat first step might be made up for by the second. It is not: relabel the states by one step of the
# circle and move the positions along, and the set of all sequences is the same as before. Gradient descent
# cannot break a symmetry that data and start have. The `symmetry` probe looks for such symmetries and says
# how far a run is from them.

# %%
stuck, free = (mm.probe(run, ["symmetry"], sequences=64)["symmetry"] for run in (trap, walk))
print(stuck.verdict)
assert (stuck.scores["trapped"].value, free.scores["trapped"].value) == (True, False)

# %%
stuck.figures()[0].content

# %% [markdown]
# ## A saddle, not a minimum
#
# Is there a way out? The `landscape` probe finds the eigenvalues of the Hessian outside the symmetric
# directions, and holds them against their closed form. After three steps:

# %%
landscape = mm.probe(trap, ["landscape"], steps=[3])["landscape"]
print(landscape.verdict)
print(landscape.scores["kind"].value, landscape.scores["escape_rate"])
assert landscape.scores["kind"].value == "saddle"
assert landscape.scores["escape_rate"].value > 0

# %% [markdown]
# So a start that is not exactly symmetric leaves. We start six runs a millionth away from zero. In exact
# arithmetic the trap holds for ever; in floating point rounding is such a push too, which is why the
# bundled run keeps the symmetry by construction.

# %%
near = [*exact, "init.scheme=normal", "init.std=1e-6", "steps=100", "checkpoints=[100]"]
left = mm.train(mm.load_recipe("walk-k6-one").with_set(near), seeds=range(6))
for run in left:
    last = {name: float(curve["value"][-1]) for name, curve in run.metrics.items()}
    print(f"accuracy {last['accuracy']:.2f}, attention on the parent {last['parent_attention']:.3f}")
assert all(float(run.metrics["accuracy"]["value"][-1]) > 0.99 for run in left)

# %% [markdown]
# ## Right for the wrong reason
#
# They predict without a mistake, and none of the six looks at the parent: on a certain walk *any* earlier
# token tells the next. Accuracy cannot tell these models from one that reads the parent. An edit can: we
# swap the parent for that of another sequence, leave the rest, and see whether the prediction follows.


# %%
def follows_the_parent(run: mm.Run) -> float:
    """Share of sequences whose prediction is a successor of the parent that was put in."""
    history = mm.Subject.of(run, sequences=60).batch.history
    edited = mm.swap_parent(history)
    query = torch.full((len(edited), 1), run.source.n_states)
    predicted = run.model()(torch.cat([edited, query], dim=1))[:, -1].argmax(-1)
    return float((run.source.P[edited[:, -1], predicted] > 0).mean())


for run in left:
    print(f"follows the parent: {follows_the_parent(run):.2f}")
print(f"the fair walk's model: {follows_the_parent(walk):.2f}")
assert follows_the_parent(walk) == 1
assert max(follows_the_parent(run) for run in left) < 0.1

# %% [markdown]
# What is known of the trap beyond this page, and what of the paper did not come out as printed, is in
# [random walks](../../experiments/random_walks/README.md).
