"""Names and paths are completed in real shells, without loading what they name."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
eval "$(_MECHMARKOV_COMPLETE=bash_source mechmarkov)"
for typed in "$@"; do
    COMP_WORDS=(mechmarkov $typed); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _mechmarkov_completion mechmarkov
    echo "$typed: ${COMPREPLY[*]}"
done
"""
TYPED = {
    "train walk-k6-b": "walk-k6-biased",
    "sweep bin": "binary-phase",
    "probe --example tr": "trap",
    "probe --probes attention,sy": "attention,symmetry",
    "bench --cases hea": "head",
    "verif": "verify",
    "train nothing-begins-so": "",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="the completion that is tried is bash's")
def test_a_name_is_completed_in_bash():
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *TYPED],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    expected = [f"{typed}: {completed}" for typed, completed in TYPED.items()]
    assert (shell.stderr, shell.stdout.splitlines()) == ("", expected)


# How a shell begins without its reader's settings, and the line by which it completes our words.
SHELLS = {
    "bash": ("bash --norc --noprofile -i", 'eval "$(_MECHMARKOV_COMPLETE=bash_source mechmarkov)"'),
    "zsh": (
        "zsh -f -i",
        'autoload -Uz compinit && compinit -u -D; eval "$(_MECHMARKOV_COMPLETE=zsh_source mechmarkov)"',
    ),
    "fish": ("fish --no-config -i", "_MECHMARKOV_COMPLETE=fish_source mechmarkov | source"),
}
PRESSED = {  # what is typed before the tabulator, and what its last word becomes
    "train walk-k6-b": "walk-k6-biased ",
    "train min": "mine.toml ",
    "train folder/r": "folder/run.pt ",
    "recipe walk-k6-b": "walk-k6-biased ",
    "recipe new --source dirichlet": "dirichlet_chains ",
    "probe fol": "folder/",
    "certify folder/": "folder/run.pt ",
    "tokens --example tr": "trap ",
    "probe --probes attention,sy": "attention,symmetry",
    "verif": "verify ",
}


class Prompt:
    """A shell in a terminal of its own, which is typed into and read."""

    def __init__(self, shell: str, folder: Path) -> None:
        pty = pytest.importorskip("pty", reason="this system has no terminals to open")
        begins, line = SHELLS[shell]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"PATH": path, "TERM": "dumb", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe(begins.split()[0], begins.split(), os.environ | own)
        os.set_blocking(self.terminal, False)
        self.type(f'{line}; echo beg""ins\n', "begins\\r")

    def type(self, text: str, until: str) -> None:
        """Type a text, and wait until the terminal shows a pattern."""
        os.write(self.terminal, text.encode())
        shown, end = "", time.monotonic() + 60
        while not re.search(until, shown):
            assert time.monotonic() < end, f"{text!r} shows {shown!r}, expected {until!r}"
            try:
                shown += os.read(self.terminal, 4096).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.terminal)


@pytest.fixture(scope="module", params=SHELLS)
def prompt(request, tmp_path_factory):
    """A shell in a folder with a recipe of one's own and a run, as far as their names go."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    here = tmp_path_factory.mktemp(request.param)
    (here / "folder").mkdir()
    (here / "folder" / "run.pt").touch()
    (here / "mine.toml").touch()
    opened = Prompt(request.param, here)
    yield opened
    opened.close()


@pytest.mark.system
@pytest.mark.parametrize("typed", PRESSED)
def test_a_word_is_completed_at_the_prompt(prompt, typed):
    prompt.type(f"mechmarkov {typed}\t", re.escape(PRESSED[typed]))
    prompt.type('\x15echo don""e\n', "done\r")  # the line is taken back
