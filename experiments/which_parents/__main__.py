"""Chen et al. 2024, n-gram parents: which set of lags is selected, and three stages of training."""

from pathlib import Path

from experiments.harness import Study
from experiments.which_parents.criterion import criterion, weak_parent
from experiments.which_parents.stages import stages, together
from experiments.which_parents.weak import weak

STUDY = Study(Path(__file__).parent, __doc__, [criterion, weak_parent, stages, together, weak])

if __name__ == "__main__":
    STUDY.main()
