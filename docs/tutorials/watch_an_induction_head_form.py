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
# # Watch an induction head form
#
# Edelman et al. (NeurIPS 2024) draw a new Markov chain for every sequence. What comes next can then be
# known only by counting in the context: tokens (the unigram), or pairs (the bigram), for which two layers
# form a *statistical induction head*. The bundled run has 20 steps of such a training. We watch it, and
# then cut the circuit to see that it is one.

# %%
import torch

import mechmarkov as mm
from mechmarkov.report.figures import lines

run = mm.example("induction")
run

# %%
steps = run.steps.tolist()
print(steps)
assert (len(steps), steps[0], steps[-1]) == (20, 0, 5000)

# %% [markdown]
# ## Three phases
#
# We put three questions to four of the steps, on 32 fresh sequences, each from a chain of its own. First:
# how far are the predictions from each exact predictor, in nats? The lowest says what the model does like:
# nothing, then counting tokens, then counting pairs. (`mm.show.trajectory(run)` draws this for every step.)

# %%
watched = [57, 217, 532, 5000]
result = mm.probe(run, ["behaviour", "dynamics", "induction"], steps=watched, sequences=32)
kl = result["behaviour"].data["kl"].to_pandas()
kl.round(3)

# %%
nearest = kl.idxmin(axis=1).to_dict()
print(nearest)
assert list(nearest.values()) == ["uniform", "in_context_unigram", "in_context_bigram", "in_context_bigram"]

# %% [markdown]
# The `dynamics` probe says when. Each time lies between two of the steps we chose: that is its interval.
# What did not happen has a reason in place of a step.

# %%
for name, score in result["dynamics"].scores.items():
    print(name, score.value, score.interval or "", score.reason or "")
assert result["dynamics"].scores["t_bigram"].interval == (217, 532)

# %% [markdown]
# ## Two heads
#
# An induction head looks at keys that follow a copy of the current token. To find them by the token
# *before* the key, it needs an earlier head that wrote that token there. The `induction` probe names both.

# %%
found = result["induction"]
print(found.verdict)

# %% [markdown]
# A head that looks everywhere finds some copies too, and more of them the fewer states there are: the score
# has that subtracted, so its null is about zero. Scores stand for the last step; nulls are the range of 24
# untrained models.

# %%
for name in ("induction_score", "previous_token_score"):
    score = found.scores[name]
    low, middle, high = score.null
    print(f"{name} {score.value:.3f}; untrained {middle:.3f} ({low:.3f} to {high:.3f})")
    assert score.value > high + 0.3
induction, previous = found.scores["induction_head"].value, found.scores["previous_token_head"].value
assert (previous, induction) == ("L0H1", "L1H0")

# %% [markdown]
# When did they come? Both are there when pairs are counted, and neither while tokens are:

# %%
heads = {
    f"{induction}, behind a copy": found.data["induction"].sel(matched=1, layer=1, head=0).values,
    f"{previous}, previous token": found.data["previous_token"].sel(layer=0, head=1).values,
}
table = found.data["induction"].sel(matched=1, layer=1, head=0).to_series()
print(table.round(3).to_dict())
assert table[217] < 0.05 < 0.3 < table[5000]
lines(torch.tensor(watched).double().numpy(), heads, x_title="training step", y_title="share of attention")

# %% [markdown]
# ## Is it a circuit?
#
# Both scores could be high without one head feeding the other. So cut: first each head, then only what the
# first tells the second's keys. `with mm.ablate(...)` changes the model inside the block and nowhere else.

# %%
model = run.model()
tokens = mm.Subject.of(run, sequences=256).batch.tokens


@torch.no_grad()
def loss() -> float:
    """Mean cross-entropy in the last quarter of the context, where counting pays, in nats."""
    logits = model(tokens)[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    return each[:, -16:].mean().item()


whole = loss()
lost = {}
for head in ("L0H0", "L0H1", "L1H0", "L1H1"):
    with mm.ablate(model, head, kind="mean"):
        lost[head] = loss() - whole
path = f"what {previous} tells the keys of {induction}"
with mm.ablate_path(model, previous, f"{induction}.K", kind="mean"):
    lost[path] = loss() - whole
for name, value in lost.items():
    print(f"without {name}: {value:+.3f} nats")
assert loss() == whole

# %% [markdown]
# Without that one path most of what the induction head is worth is gone: they are a circuit.
# (`mm.show.circuit(run)` draws all paths, each as wide as what its cut costs.)

# %%
assert lost[path] > 0.5 * lost[induction] > 0

# %% [markdown]
# How this compares with the paper, for other numbers of symbols, depths and data: [statistical induction
# heads](../../experiments/induction_heads/README.md).
