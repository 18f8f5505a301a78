"""Ildiz et al., self-attention as a Markov chain: the exact map, what prompts tell, who takes all."""

from pathlib import Path

from experiments.context_conditioned.learning import learning
from experiments.context_conditioned.mapping import identified, mapping
from experiments.context_conditioned.winners import trajectories, winners
from experiments.harness import Study

STUDY = Study(Path(__file__).parent, __doc__, [mapping, identified, learning, winners, trajectories])

if __name__ == "__main__":
    STUDY.main()
