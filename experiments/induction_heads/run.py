"""What is measured: phases, depths, data without unigrams, the minimal model, the posterior, positions."""

from collections.abc import Callable

from experiments.claims import Measured
from experiments.induction_heads.depths import depths
from experiments.induction_heads.further import positions, posterior
from experiments.induction_heads.minimal_claims import minimal_model
from experiments.induction_heads.phases import phases
from experiments.induction_heads.variants import unigrams

MEASUREMENTS: dict[str, Callable[[bool], Measured]] = {
    "phases": phases,
    "depths": depths,
    "unigrams": unigrams,
    "minimal_model": minimal_model,
    "posterior": posterior,
    "positions": positions,
}
