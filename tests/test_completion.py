"""Names are completed in a real bash, without loading what they name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
eval "$(_MECHMARKOV_COMPLETE=bash_source mechmarkov)"
COMP_WORDS=({words}); COMP_CWORD={last}
_mechmarkov_completion mechmarkov
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
TYPED = {
    "train walk-k6-b": ["walk-k6-biased"],
    "sweep bin": ["binary-phase"],
    "probe --example tr": ["trap"],
    "probe --probes attention,sy": ["attention,symmetry"],
    "bench --cases hea": ["head"],
    "verif": ["verify"],
    "train nothing-begins-so": [""],
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="the completion that is tried is bash's")
@pytest.mark.parametrize("typed", TYPED)
def test_a_name_is_completed_in_bash(typed):
    words = f"mechmarkov {typed}"
    script = SCRIPT.format(words=words, last=len(words.split()) - 1)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=60
    )
    assert (shell.stderr, shell.stdout.splitlines()) == ("", TYPED[typed])
