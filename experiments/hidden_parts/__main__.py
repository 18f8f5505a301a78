"""Parts of what is hidden: factors (Shai et al. 2026), and a task with its state (Hao et al. 2025)."""

from pathlib import Path

from experiments.harness import Study
from experiments.hidden_parts.factors import factors
from experiments.hidden_parts.tasks import tasks

STUDY = Study(Path(__file__).parent, __doc__, [factors, tasks])

if __name__ == "__main__":
    STUDY.main()
