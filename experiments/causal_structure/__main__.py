"""Nichani, Damian & Lee, how transformers learn causal structure: the first gradient, recovered graphs."""

from pathlib import Path

from experiments.causal_structure.confused import confused, exclusive_or
from experiments.causal_structure.gradient import gradient, itself
from experiments.causal_structure.ordinary import ordinary
from experiments.causal_structure.several import several
from experiments.causal_structure.stages import stages
from experiments.harness import Study

STUDY = Study(
    Path(__file__).parent, __doc__, [gradient, itself, exclusive_or, confused, stages, ordinary, several]
)

if __name__ == "__main__":
    STUDY.main()
