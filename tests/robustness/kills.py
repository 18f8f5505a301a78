"""Jobs killed at random moments: an existing file is never damaged, and a last call finishes.

    python tests/robustness/kills.py --times 100 [train] [import] [probe] [sweep] [record] …

Stops with an error at the first file that is damaged, at the first process that is left 90 seconds after, and
at the first result that is another than that of a job nobody killed.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "runs"))

