"""The benchmark: interpretability methods against circuits whose effects are known in nats.

A `Method` claims a number for every node or edge of a `Case`, or a belief, subspace, features or
coefficient. The truth is exact patching: effect(c) = E[loss with c's corrupt output] − E[loss]. `run`
scores claims against it.

import mechmarkov as mm
found = mm.bench.run(["eap", "eap-ig"], cases=["induction"], seeds=8)
found.table("pearson")
"""

from mechmarkov.bench.beliefs import Claim
from mechmarkov.bench.case import Case, case_of
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.method import Method, load_method, registered
from mechmarkov.bench.page import save
from mechmarkov.bench.patching import Effects, edge_effects, node_effects
from mechmarkov.bench.run import Benchmark, run
from mechmarkov.bench.scores import SCORES

__all__ = [
    "CASES",
    "SCORES",
    "Benchmark",
    "Case",
    "Claim",
    "Effects",
    "Method",
    "case_of",
    "edge_effects",
    "load_method",
    "node_effects",
    "registered",
    "run",
    "save",
]
