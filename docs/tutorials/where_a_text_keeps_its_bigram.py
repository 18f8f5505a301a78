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
# # Where a text keeps its bigram
#
# You have a text and a training loop, and no law. We estimate the law, record the loop, and ask where the
# model keeps what follows each character. The text is the documentation that Python itself carries.

# %%
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mechmarkov as mm

text = "\n".join(topics.values()).encode("ascii", "ignore").decode()[:60_000]
print(text[:300])

# %% [markdown]
# ## A law from sequences
#
# `mm.Observed` cuts the text into blocks and holds out every fifth. From the others it counts, and chooses
# the smoothing by what it predicts of blocks that it has not counted. The same loss chooses the order, 0 to
# 5, unless you say one. We say 1, because the bigram is what we look for, and see what the data would say.

# %%
source = mm.Observed(text, order=1, block=130)
for order, (loss, error) in enumerate(zip(source.choice.losses, source.choice.errors, strict=True)):
    print(f"order {order}: {loss:.3f} nats a character, ± {error:.3f} against the chosen order")
print("the data choose order", source.choice.order)
assert source.choice.order >= 2
assert source.choice.losses[1] < source.choice.losses[0]

# %% [markdown]
# Every entry of the bigram table has a posterior interval. What follows a "q" is known less well than what
# follows an "e".

# %%
low, high = source.kernel_interval()
q, e, u = (source.names.index(name) for name in "qeu")
print(f"Pr(u after q) = {source.P[q, u]:.2f}, between {low[q, u]:.2f} and {high[q, u]:.2f}")
assert low[q, u] < source.P[q, u] < high[q, u]
assert (high - low)[q].max() > (high - low)[e].max()

# %% [markdown]
# ## A loop of one's own, recorded
#
# Three lines of the loop are ours: the recorder, its call in front of every step, and `finish`. The weights
# are those that the loop would have without them, to the last bit.

# %%
torch.manual_seed(0)
shape = {"vocab_size": source.n_states, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(0)
path = Path(tempfile.mkdtemp()) / "run.pt"

recorder = mm.Recorder(path, source=source, at="log2")
for step in range(400):
    recorder(step, model)
    tokens = source.sample(32, 32, generator=generator)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
run = recorder.finish(400, model)
print(f"last loss {loss.item():.2f} nats, kept steps {run.steps.tolist()}")
assert run.steps.tolist() == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 400]
assert mm.load(path).provenance["logit_difference"] < 1e-4

# %% [markdown]
# ## Where is the bigram?
#
# The probes read blocks that are held out. The law is an estimate, and the result says so. A score that
# compares with it has the law's error in its interval: the blocks are drawn anew, and the law with them.

# %%
result = mm.probe(run, ["behaviour", "storage"], sequences=64, law_draws=6)
for name in ("behaviour", "storage"):
    print(result[name].verdict)
for name, score in result["storage"].scores.items():
    print(f"{name}: {score}")
assert any("the law is an estimate" in warning for warning in result.warnings)
assert result["behaviour"].scores["kl_bigram"].law.startswith("estimated")
shares = [score.value for name, score in result["storage"].scores.items() if name.startswith("share_")]
assert abs(sum(shares) - 1) < 1e-6
assert str(result["storage"].scores["bigram_home"].value).startswith("L0.mlp")

# %% [markdown]
# The MLP holds nearly nine tenths of it, the direct path the rest. GPT-2 ties its unembedding to its
# embedding, so without a norm the direct path would be a symmetric matrix; but what follows a character
# is not what precedes it. When did the bigram come?

# %%
kl = mm.probe(run, ["behaviour"], steps="all", sequences=64, law_draws=0)["behaviour"].data["kl"]
kl.sel(predictor=["uniform", "unigram", "bigram"]).to_pandas().round(2)

# %% [markdown]
# A checkpoint of nanoGPT's character model is asked in the same way. Its training text is the source, and
# nanoGPT holds out the last tenth:
#
#     source = mm.Observed.read("input.txt", order=1, held_out="last_tenth")
#     run = mm.import_run(["out/ckpt.pt"], source=source, given={"act_fn": "gelu"}).run
#
# More of both: [sequences instead of a law](../sequences-instead-of-a-law.md), and
# [record your own training](../record-your-own-training.md).
