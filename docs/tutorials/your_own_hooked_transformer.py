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
# # Your own hooked transformer
#
# You have a model that you trained yourself, with your own loop. If its data are Markov and their law is
# known, all probes can be put to it. Here: TransformerLens' native model, a plain torch loop, a few
# seconds.

# %%
import torch
from transformer_lens import FactoredMatrix, TransformerBridge, TransformerBridgeConfig, patching

import mechmarkov as mm

# %% [markdown]
# ## The model and its data
#
# TransformerLens 4 builds small models natively as a `TransformerBridge`. (In TransformerLens 3.9 take
# `HookedTransformer(HookedTransformerConfig(...))` with the same fields; all else on this page is the
# same.) The data are a walk on a circle of five states, one step on with probability 0.8. The source says
# what loss is possible: its entropy rate.

# %%
source = mm.Circle(n_states=5, p=0.8)
config = TransformerBridgeConfig(
    n_layers=1, n_heads=2, d_model=16, d_head=8, n_ctx=24, d_vocab=5, attn_only=True, normalization_type=None,
    seed=0, device="cpu",
)  # fmt: skip
model = TransformerBridge.boot_native(config)
source

# %%
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
generator = torch.Generator().manual_seed(0)
for step in range(101):
    tokens = source.sample(32, 25, generator=generator)
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f} nats; entropy rate {source.entropy_rate:.3f}")
assert abs(loss.item() - source.entropy_rate) < 0.1

# %% [markdown]
# ## One line
#
# `Run.from_model` converts the model and sends the same tokens through both; how far their logits are apart
# is kept. If they differed, or if the config had something that cannot be expressed, this line would be an
# error that says what.

# %%
model.eval()
run = mm.Run.from_model(model, source=source)
print(f"largest logit difference: {run.provenance['logit_difference']:.0e}")
assert run.provenance["logit_difference"] < 1e-5
run

# %% [markdown]
# ## What did it learn, and where is it?

# %%
result = mm.probe(run, ["behaviour", "attention", "storage"], sequences=64)
print(result)
assert result["behaviour"].scores["nearest_predictor"].value == "bigram"

# %% [markdown]
# The parent of the predicted token is the query's own token here, and its embedding is on the residual
# stream already: no attention is needed for a bigram. Which path does hold it? Shares add up to one.

# %%
for name, score in result["storage"].scores.items():
    if name.startswith("share_"):
        print(name, round(score.value, 2), "if even:", round(score.null, 2))
shares = [score.value for name, score in result["storage"].scores.items() if name.startswith("share_")]
assert abs(sum(shares) - 1) < 1e-6

# %%
mm.show.kernel(run)

# %% [markdown]
# ## Go on with TransformerLens
#
# `run.model()` is a `HookedDecoder`: HookedTransformer's names, hooks, weights and shapes, in every
# version. TransformerLens' caches, hooks, patching and factored matrices take it as it is.

# %%
decoder = run.model()
tokens = mm.Subject.of(run, sequences=64).batch.tokens
logits, cache = decoder.run_with_cache(tokens)
parts, labels = cache.decompose_resid(layer=-1, return_labels=True)
attribution = cache.logit_attrs(parts[:, :, :-1], tokens=tokens[:, 1:])  # of the token that did come next
for label, values in zip(labels, attribution, strict=True):
    print(f"{label}: {values.mean().item():+.2f} on the next token's logit")

# %% [markdown]
# A hook that silences a head, and what that does to the loss:

# %%
for head in range(2):

    def silence(z: torch.Tensor, hook: object, head: int = head) -> torch.Tensor:
        del hook
        z[:, :, head] = 0
        return z

    silenced = decoder.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", silence)])
    lost = [torch.nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()
            for out in (logits, silenced)]  # fmt: skip
    print(f"without L0H{head}: {lost[0]:.3f} -> {lost[1]:.3f} nats")

# %% [markdown]
# `mm.ablate` does the same by the part's name, and always undoes itself; also for means and resampling.

# %%
before = decoder(tokens)
with mm.ablate(decoder, "L0H1"):
    inside = decoder(tokens)
assert torch.allclose(inside, silenced, atol=1e-5)
assert torch.equal(decoder(tokens), before)

# %% [markdown]
# The whole circuit from token to logit along the direct path, as a factored matrix; and activation
# patching, from sequences that start elsewhere, layer by position:

# %%
direct = FactoredMatrix(decoder.W_E, decoder.W_U)
assert torch.allclose(direct.AB, decoder.W_E @ decoder.W_U, atol=1e-6)
direct.AB.detach().round(decimals=1)

# %%
other = tokens.roll(1, dims=0)
_, clean = decoder.run_with_cache(other)


def change(patched: torch.Tensor) -> torch.Tensor:
    """How far the last prediction moves."""
    return (patched - logits)[:, -1].abs().mean()


last = patching.get_act_patch_resid_pre(decoder, tokens, clean, change)
print("largest effect on the last prediction is at position", int(last[0].argmax()), "of", tokens.shape[1])
assert int(last[0].argmax()) == tokens.shape[1] - 1

# %% [markdown]
# Models that are files and not live, other libraries' layouts, other vocabularies, several checkpoints of
# one training: [models from elsewhere](../models-from-elsewhere.md).
