"""The benchmark: interpretability methods against circuits whose effects are known exactly.

A `Method` claims a number for every node, edge or layer of a `Case`, or a belief, subspace, features or
coefficient. The truth is exact patching under three metrics: logit difference, KL, and loss in nats. `run`
scores claims against it.

import mechmarkov as mm
found = mm.bench.run(["eap", "eap-ig"], cases=["induction"], seeds=4)
found.table("rank", "logit-difference")
"""

from mechmarkov.bench.beliefs import BeliefClaim
from mechmarkov.bench.case import Case, case_of
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.counterfactuals import Change
from mechmarkov.bench.leaderboard import leaderboard, places
from mechmarkov.bench.method import Method, load_method, registered
from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.page import save
from mechmarkov.bench.patching import Effects, edge_effects, exact_effects, layer_effects, node_effects
from mechmarkov.bench.run import Benchmark, check, run
from mechmarkov.bench.scores import SCORES
from mechmarkov.bench.verify import verify

__all__ = [
    "CASES",
    "METRICS",
    "SCORES",
    "BeliefClaim",
    "Benchmark",
    "Case",
    "Change",
    "Effects",
    "Method",
    "case_of",
    "check",
    "edge_effects",
    "exact_effects",
    "layer_effects",
    "leaderboard",
    "load_method",
    "node_effects",
    "places",
    "registered",
    "run",
    "save",
    "verify",
]
