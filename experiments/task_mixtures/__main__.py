"""Tasks that are chains: phases in the number of chains and in steps, and what recognises a task."""

from pathlib import Path

from experiments.harness import Study
from experiments.task_mixtures.phases import phases

STUDY = Study(Path(__file__).parent, __doc__, [phases])

if __name__ == "__main__":
    STUDY.main()
