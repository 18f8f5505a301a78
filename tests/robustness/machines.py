"""Tests on another machine than the one they were written on, as far as this one can be made to look like it.

    python tests/robustness/machines.py [PYTEST ARGUMENTS]

The locale is C and its encoding ASCII, for files, names and what is printed. The time zone is 12:45 ahead,
hashes have another seed, there is no HOME, and the current folder cannot be written. By default the tests of
runs, of robustness and of training are run, without those that start systems.
"""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("runs", "robustness", "training")
MACHINE = {
    "LC_ALL": "C",
    "LANG": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
    "PYTHONHASHSEED": "7",
    "TZ": "Pacific/Chatham",
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
}
GONE = ("HOME", "LANGUAGE", "LC_CTYPE", "XDG_CACHE_HOME", "USER", "LOGNAME", "MECHMARKOV_CACHE")
QUICK = "not slow and not system and not browser and not repeated and not experiments"


def main(arguments: list[str]) -> int:
    """Run pytest there and return how it ended."""
    chosen = arguments or [*(str(ROOT / "tests" / folder) for folder in FOLDERS), "-m", QUICK]
    environment = {name: value for name, value in os.environ.items() if name not in GONE} | MACHINE
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, stat.S_IRUSR | stat.S_IXUSR)
        # Permissions do not bind root; nobody can write into this one.
        where = "/proc" if os.access(folder, os.W_OK) and Path("/proc/self").exists() else folder
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
        command += ["-c", str(ROOT / "pyproject.toml"), *chosen]
        try:
            return subprocess.run(command, cwd=where, env=environment).returncode
        finally:
            os.chmod(folder, stat.S_IRWXU)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
