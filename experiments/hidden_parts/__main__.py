"""What is hidden: factors (Shai et al. 2026), a task (Hao et al. 2025), a qubit (Riechers et al. 2025)."""

from pathlib import Path

from experiments.harness import Study
from experiments.hidden_parts.factors import factors
from experiments.hidden_parts.quantum import quantum
from experiments.hidden_parts.tasks import tasks

STUDY = Study(Path(__file__).parent, __doc__, [factors, tasks, quantum])

if __name__ == "__main__":
    STUDY.main()
