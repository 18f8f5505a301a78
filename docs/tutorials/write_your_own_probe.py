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
# # Write your own probe
#
# The first tutorial met a model that is right as often as can be and yet 0.22 nats from the source. Our
# question: *how much probability does it give to states that cannot come next?* We make a probe of it, test
# it on circuits with known answers, give it a null, and put it next to the others in a report. What each
# part of a probe is for is on [the page about probes](../write-a-probe.md).

# %%
import importlib
import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.report.figures import lines

# %% [markdown]
# ## Five functions
#
# Does the question make sense? Only if some next states are impossible and the same ones always.


# %%
def applies(subject):
    """Only where one chain is behind all sequences, and some of its transitions have probability 0."""
    P = getattr(subject.source, "P", None)
    if P is None:
        return f"the source is {subject.source.kind}, which has no one transition matrix"
    return None if (np.asarray(P) == 0).any() else "every state can follow every other"


# %% [markdown]
# What is measured? `subject.probabilities` `[member, batch, read, state]` are the predictions of a stack of
# models: the steps of the run, or 24 untrained models for the null. So is the first axis of what comes out.


# %%
def measure(subject):
    """The mean probability of impossible states, and what a uniform prediction gives them."""
    parents = subject.batch.parents.numpy()
    impossible = np.asarray(subject.source.P)[parents] == 0  # [batch, read, state]
    leak = (subject.probabilities * impossible).sum(-1).mean(1)  # [member, read]
    position = subject.batch.read.numpy()
    return xr.Dataset(
        {
            "leak": ((subject.axis, "position"), leak, {"unit": "probability"}),
            "uniform": ((), impossible.mean(), {"unit": "probability"}),
        },
        coords={subject.axis: subject.coordinates, "position": position},
    )


# %% [markdown]
# What goes next to what? The score next to untrained models, and a claim, and a picture.


# %%
def scores(data, null):
    """The leak at the last step, next to untrained models and to the uniform prediction."""
    band = None if null is None else null_band(null["leak"].mean("position"))
    value = float(data["leak"][-1].mean())
    uniform = float(data["uniform"])
    return {
        "leak": mm.Score(value, "probability", null=band, null_kind=NULL_KIND),
        "leak_of_uniform": mm.Score(value / uniform, "share", null=1.0, null_kind="the uniform prediction"),
    }


def claims(data, scores):
    """What was found, as data: the report writes the sentence, and `summary.json` has the numbers."""
    leak, uniform = (
        scores["leak"],
        mm.probing.Condition("chance", value=float(data["uniform"]), unit="probability"),
    )
    found = ("probability of impossible states",)
    return [mm.Claim(("model",), "measures", found, leak.value, null=leak.null, because=(uniform,))]


def figures(data):
    """The leak over the steps that were probed."""
    axis = data["leak"].dims[0]
    plot = lines(
        data[axis].values.astype(float),
        {"leak": data["leak"].mean("position").values},
        x_title=axis,
        y_title="probability",
        references={"uniform": float(data["uniform"])},
    )
    return [mm.probing.Figure("Probability of impossible states", "Zero is right.", "plotly", plot)]


QUESTION = "How much probability does it give to states that cannot come next?"
probe = mm.Probe("leak", QUESTION, "this page", applies, measure, scores, claims, figures)

# %% [markdown]
# ## Test it where the answer is known
#
# `mechmarkov.models.constructions.lookup_tables` sets circuits by hand. A model with logits 0 for the two
# neighbours and -20 for the other four leaks `4 / (2 e^20 + 4)`; one with equal logits leaks 4 in 6.
# A probe that cannot tell the two is worth nothing.

# %%
source = mm.Circle(n_states=6, p=0.5)
P = torch.tensor(np.array(source.P), dtype=torch.float32)


def leak_of(table):
    """The probe's score for a model that has a table of logits in its direct path."""
    run = mm.Run.from_model(direct_table(table, n_ctx=8), source=source)
    subject = mm.Subject.of(run, sequences=64)
    assert probe.applies(subject) is None
    return probe.scores(probe.measure(subject), None)["leak"].value


tight, flat = leak_of(torch.where(P > 0, 0.0, -20.0)), leak_of(torch.zeros(6, 6))
print(tight, flat)
assert abs(tight - 4 / (2 * np.exp(20) + 4)) < 1e-12
assert abs(flat - 4 / 6) < 1e-12

# %% [markdown]
# And where it makes no sense, it says so:

# %%
why = probe.applies(mm.Subject.of(mm.example("induction"), sequences=2))
print(why)
assert "no one transition matrix" in why

# %% [markdown]
# ## Ask it
#
# Next to a registered one, by its name:

# %%
result = mm.probe(mm.example("walk"), [probe, "behaviour"], sequences=64)
print(result["leak"].verdict)
print(result["leak"].scores["leak"])

# %% [markdown]
# ## Register it
#
# So far only this notebook knows it. `mechmarkov probe`, reports and other people find probes by an entry
# point, so yours needs a package: two files, and `pip install`. We write the functions above to a file; you
# would have them there from the start.

# %%
folder = Path(tempfile.mkdtemp())
package = folder / "leak-probe"
package.mkdir()
head = """import mechmarkov as mm
import numpy as np
import xarray as xr
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.report.figures import lines
"""
parts = [inspect.getsource(part) for part in (applies, measure, scores, claims, figures)]
last = f'probe = mm.Probe("leak", {QUESTION!r}, "this page", applies, measure, scores, claims, figures)\n'
(package / "leak_probe.py").write_text("\n\n".join([head, *parts, last]))
(package / "pyproject.toml").write_text("""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "leak-probe"
version = "0.1.0"

[project.entry-points."mechmarkov.probes"]
leak = "leak_probe:probe"
""")
print(*sorted(path.name for path in package.iterdir()))

# %% [markdown]
# `pip install ./leak-probe` is all you need. This page installs it into a folder of its own, and without a
# network, so that your environment stays as it is.

# %%
pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
pip += ["--no-deps", "--no-build-isolation", "--target", str(folder / "site"), str(package)]
subprocess.run(pip, check=True)
sys.path.insert(0, str(folder / "site"))
importlib.invalidate_caches()

# %% [markdown]
# ## Ask
#
# From here on it is a probe like all others, in Python, for `mechmarkov probe --probes leak`, and in
# reports.

# %%
run = mm.example("walk")
result = mm.probe(run, ["leak", "behaviour"], steps=[0, 2, 5, 20, 50])
print(result)
result["leak"].figures()[0].content

# %% [markdown]
# So that is where the nats are. The two states that can come next get equal shares of what is left, so KL
# from the bigram should be `-log(1 - leak)`:

# %%
leak = result["leak"].scores["leak"]
kl = result["behaviour"].scores["kl_bigram"].value
low, middle, high = leak.null
print(f"leak {leak.value:.4f}, untrained {middle:.2f} ({low:.2f} to {high:.2f})")
print(f"-log(1 - leak) {-np.log1p(-leak.value):.3f}, KL {kl:.3f}")
assert leak.value < low
assert abs(kl + np.log1p(-leak.value)) < 0.01

# %%
page = result.report(folder / "report.html")
assert QUESTION in page.read_text()
assert "Probability of impossible states" in page.read_text()

# %% [markdown]
# Why does it keep them? The loss, `-log(score + 0.1)`, only ever raises the score of the state that came.
# What the first steps, with attention still flat, gave to all states stays; its share falls as the right
# scores grow.

# %%
over = result["leak"].data["leak"].mean("position").to_series()
print(over.round(3).to_dict())
assert over.is_monotonic_decreasing

# %% [markdown]
# A probe for mechmarkov itself would come with these two circuits as its tests; see
# [CONTRIBUTING](../../CONTRIBUTING.md).
