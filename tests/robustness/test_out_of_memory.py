"""The tests of `limited_memory`, in a process of their own that says where it crashes."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.system

LIMITED = Path(__file__).parent / "limited_memory.py"
NAMES = re.findall(r"^def (test_\w+)", LIMITED.read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What pytest says of each test, by name: the text of a failure, empty where it passed."""
    out = tmp_path_factory.mktemp("limited") / "outcomes.xml"
    pytest_alone = [sys.executable, "-X", "faulthandler", "-m", "pytest"]
    options = ["-o", "addopts=", "-p", "no:cacheprovider", f"--junitxml={out}"]
    done = subprocess.run(
        [*pytest_alone, *options, str(LIMITED)], capture_output=True, text=True, check=False
    )
    assert out.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    cases = ElementTree.parse(out).iter("testcase")
    return {case.get("name"): "".join(text for part in case for text in part.itertext()) for case in cases}


@pytest.mark.parametrize("name", NAMES)
def test_in_limited_memory(said, name):
    assert name in said
    assert said[name] == "", said[name]
