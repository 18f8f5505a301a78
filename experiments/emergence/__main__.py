"""When parts of a circuit emerge: by the weight of a lag, by context and by batch."""

from pathlib import Path

from experiments.emergence.lags import lags
from experiments.emergence.sizes import sizes
from experiments.harness import Study

STUDY = Study(Path(__file__).parent, __doc__, [lags, sizes])

if __name__ == "__main__":
    STUDY.main()
