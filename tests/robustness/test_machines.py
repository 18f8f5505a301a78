"""Names and files on a machine of ASCII without a HOME; `make test-machines` runs three folders there."""

from pathlib import Path

import pytest
from machines import main

RUNS = Path(__file__).parents[1] / "runs"


@pytest.mark.system
@pytest.mark.parametrize("file", ["test_file_names.py", "test_shared_folder.py"])
def test_another_machine_reads_and_writes_as_this_one(file):
    assert main([str(RUNS / file)]) == 0
