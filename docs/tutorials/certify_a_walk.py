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
# # Certify a walk
#
# For who wants to say "never". A score is an average over sequences that were drawn. A certificate holds
# for every sequence that the source can give, rounding included, and somebody else can check it.

# %%
import json
import tempfile
from pathlib import Path

import mechmarkov as mm
from mechmarkov.certify import certify, load_proof, proof_of, save_proof, verify

run = mm.example("walk")

# %% [markdown]
# ## A program that does what the model does
#
# The walk model looks up the parent, the state before the predicted one, in a table of 36 numbers. How far
# is the model from that table at most, on all 6 · 2^95 sequences?

# %%
certificate = certify(run)
certificate

# %%
assert certificate.program.name == "parent"
assert certificate.worst_kl < 1e-6
assert certificate.seen.nats <= certificate.worst_kl

# %% [markdown]
# Two numbers: the bound, which no sequence exceeds, and the worst sequence that was seen, which shows how
# much of the bound is real.
#
# ## A proof
#
# `proof_of` writes down what the bound follows from. The checker shares no code with what made it, and
# computes each inequality again from the weights.

# %%
file = Path(tempfile.mkdtemp()) / "proof.json"
save_proof(proof_of(certificate, step=50), file)
follows = verify(load_proof(file), run)
print(f"{file.stat().st_size} bytes; what follows from it: {follows['worst_kl']:.2g} nats")
assert follows["worst_kl"] < 1e-6

# %% [markdown]
# A proof that claims more than follows is refused:

# %%
forged = json.loads(file.read_text())
forged["claims"]["worst_kl"] = 1e-30
file.write_text(json.dumps(forged))
try:
    verify(load_proof(file), run)
    told = ""
except ValueError as error:
    told = str(error)
print(told)
assert told

# %% [markdown]
# ## Early in training
#
# At step 1 the head has begun to look at the parent. The bound says how far it is from any small program.

# %%
for step in (1, 2, 3, 50):
    found = certify(run, step=step)
    print(step, found.program.name, found.worst_kl)
assert certify(run, step=3).worst_kl < certify(run, step=1).worst_kl

# %% [markdown]
# ## Where nothing is known
#
# Bounds are known for one attention layer. For two, and without a final norm, there is a search for the
# worst sequence, and no proof: the certificate says why.

# %%
open_one = certify(mm.example("graph"), seconds=2)
print(open_one)
print(open_one.why)
assert open_one.bounds is None

# %% [markdown]
# On the command line: `mechmarkov certify run.pt`, then `mechmarkov verify proof.json run.pt`.
# [Certificates](../certificates.md) has the inequalities. Next: [write a probe of your
# own](write_your_own_probe.py).
