# %% [markdown]
# # Orders, lags and mixtures, read again
#
# Five papers about sequences whose law has to be found in context. This notebook reads the committed
# results of `experiments/order_and_lag`, and works out small things again: what the exact predictors are,
# what there is to tell apart, and a gradient that is said to vanish.

# %%
import numpy as np
import torch

import mechmarkov as mm
from experiments.harness import load, load_figure
from experiments.order_and_lag.__main__ import STUDY
from experiments.order_and_lag.simplified import gradient, limit, predict, sub_n_gram
from mechmarkov.theory.kernel import kl

FOLDER = STUDY.folder

# %% [markdown]
# ## A fresh chain of order 2 for every sequence
#
# Rows of the kernel are from Dirichlet(1), the first two tokens are uniform. The exact posterior mean is
# add-1 counts of what followed the last two tokens. How many nats are the lower k-grams away from it?

# %%
source = mm.DirichletChains(n_states=2, start="uniform", order=2)
tokens = source.sample(500, 32, generator=torch.Generator().manual_seed(0))
laws = {name: rule.probabilities(tokens.numpy()) for name, rule in source.predictors().items()}
{name: round(float(kl(laws["in_context_order_2"], law).mean()), 4) for name, law in laws.items()}

# %% [markdown]
# A model is called a k-gram where that predictor is the nearest of all, at less than half of what the next
# lower one scores. One layer does not get there; two layers of one head do.

# %%
[
    (claim.text, claim.finding.measured, claim.verdict)
    for claim in STUDY.claims("orders", load(FOLDER, "orders")[0])
]

# %%
load_figure(FOLDER, "order_by_depth")

# %% [markdown]
# On the way there the lower k-grams come first, one after the other.

# %%
load_figure(FOLDER, "stages")

# %% [markdown]
# ## Is a sub-n-gram a stationary point?
#
# In the simplified transformer of Varre et al. a k-gram can be written down: head j of the first layer
# looks j back, the second layer compares. Its prediction is a frequency of what followed:

# %%
bigram = sub_n_gram(n_states=2, length=32, heads=2, looks_back=1, sharpness=30.0)
predict(bigram, tokens[:3])

# %% [markdown]
# The gradient by the second layer's logits, as blocks (query block × key block): block 0 is the token
# itself, block j what head j carries. On chains of order 2 the bigram leaves something to learn. The
# gradient is small for keys that hold what heads carry, and is not for keys that hold their own token
# (first block column).

# %%
long = source.sample(6_000, 65, generator=torch.Generator().manual_seed(1))
_, by_token = gradient(sub_n_gram(2, 64, 2, 1, 30.0), long[:, :-1], long[:, -1])
by_token.pow(2).sum((1, 3)).sqrt().numpy().round(4)

# %% [markdown]
# For endless sequences what is left is a covariance of tokens, averaged over kernels: its norm at the
# unigram and at the bigram, with its sampling error.

# %%
limit(source, 50_000)

# %%
load_figure(FOLDER, "gradients")

# %% [markdown]
# ## A lag for every sequence
#
# Which lag it is has an exact posterior. A few tokens are enough:

# %%
selective = mm.load_recipe(FOLDER / "recipes" / "lag.toml").source
drawn, lag = selective.sample_with_hidden(500, 24, generator=torch.Generator().manual_seed(0))
chosen = np.searchsorted(selective.lags, lag.numpy())
posterior = selective.posterior(drawn.numpy())
posterior[np.arange(500), :, chosen].mean(0).round(2)

# %%
[
    (claim.text, claim.finding.measured, claim.verdict)
    for claim in STUDY.claims("lags", load(FOLDER, "lags")[0])
]

# %%
load_figure(FOLDER, "lag_attention")

# %% [markdown]
# ## One of N fixed chains
#
# Retrieve the chain, or count as if it were unheard of; from tokens or from pairs. On unseen chains
# retrieval and inference differ, and the number of chains decides between them.

# %%
load_figure(FOLDER, "algorithms_by_chains")

# %%
[
    (claim.text, claim.finding.measured, claim.verdict)
    for claim in STUDY.claims("mixtures", load(FOLDER, "mixtures")[0])
]

# %% [markdown]
# Over training the unigram algorithms come first:

# %%
load_figure(FOLDER, "algorithms_over_training")
