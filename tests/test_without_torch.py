"""Commands and errors that need no model import no torch, and so answer at once."""

import subprocess
import sys

NEED_NO_MODEL = {
    "probe missing.pt": "missing.pt: cannot be read: No such file or directory",
    "probe walk": "walk: cannot be read: No such file or directory: --example walk is bundled",
    "show missing.pt": "missing.pt: cannot be read: No such file or directory",
    "probe --example nope": "no bundled run is called 'nope'; there are walk, trap",
    "train walk-k6-hal": "no shipped recipe is called 'walk-k6-hal', did you mean",
    "train missing.toml": "missing.toml: No such file or directory",
    "sweep nope": "no shipped sweep is called 'nope'",
    **{f"show --example {name}": "" for name in ("walk", "trap", "induction", "graph", "mamba")},
    "list": "",
    "recipe walk-k6-half": "",
    "recipe walk-k6-hal": "no shipped recipe is called 'walk-k6-hal', did you mean",
    "recipe new --source chian": "no source is called 'chian', did you mean chain?",
    "recipe new --source chain --heads 3": "--heads is 3, expected a divisor of",
}
ONE_BY_ONE = """
import sys
from mechmarkov.cli import main
for words in sys.argv[1:]:
    code = 0
    try:
        main(words.split())
    except SystemExit as end:
        code = end.code
    print(f"{words}: {code}, {'torch' in sys.modules}", file=sys.stderr)
"""


def test_what_needs_no_model_imports_no_torch(tmp_path):
    """In a process of its own: this one has imported all of it."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *NEED_NO_MODEL],
        capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    told = done.stderr
    for words, said in NEED_NO_MODEL.items():
        line, end, told = told.partition(f"{words}: {2 if said else 0}, False\n")
        assert end, told
        assert said in line
        assert bool(line) == bool(said)
    assert told == ""
