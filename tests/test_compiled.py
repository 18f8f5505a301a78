"""What numba keeps on disk: nothing that is wrong with it stops who computes, or makes a wrong number."""

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.codegen import CPUCodegen

CODE = """
from mechmarkov.utils.compiled import compiled

@compiled
def double(x, out):
    for i in range(len(x)):
        out[i] = 2 * x[i]
"""
numbers = itertools.count()


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder that numba keeps its files in, empty."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "doubling.py").write_text(CODE, "utf-8")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


def process(folder):
    """The function as a new process has it: nothing of it is compiled yet."""
    code = folder.parent / "code" / "doubling.py"
    spec = importlib.util.spec_from_file_location(f"doubling_{next(numbers)}", code)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


def hits(double, dtype=np.float64):
    """Whether it was read from disk; what it computes is right."""
    out = np.zeros(3, dtype)
    double(np.arange(3, dtype=dtype), out)
    assert out.tolist() == [0, 2, 4]
    return sum(double.stats.cache_hits.values()) == 1


def files(folder, ending):
    found = sorted(Path(folder).rglob(f"*.{ending}"))
    assert found
    return found


def test_it_is_compiled_once_and_read_the_next_time(kept):
    assert not hits(process(kept))
    assert hits(process(kept))


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "folder"])
def test_a_damaged_file_is_compiled_and_kept_again(kept, ending, damage):
    assert not hits(process(kept))
    (path,) = files(kept, ending)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        broken = {"empty": b"", "text": b"text", "cut": content[:-9], "flipped": bytes(flipped)}
        path.write_bytes(broken[damage])
    assert not hits(process(kept))
    if damage != "folder":
        assert hits(process(kept))


def test_code_for_other_arguments_is_not_taken_whatever_its_file_is_called(kept):
    """Two processes that compile at once may give their files one name."""
    assert not hits(process(kept))
    assert not hits(process(kept), np.int64)
    one, other = files(kept, "nbc")
    between = one.read_bytes()
    shutil.copy(other, one)
    other.write_bytes(between)
    assert not hits(process(kept))
    assert not hits(process(kept), np.int64)


COMPUTE = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from doubling import double
out = np.zeros(3)
sys.stdin.readline()
double(np.arange(3.0), out)
print(out.tolist(), sum(double.stats.cache_hits.values()))
"""


@pytest.mark.system
def test_two_processes_compile_at_once(kept):
    """Both begin with an empty folder and are right; a third reads what they left."""

    def begun():
        return subprocess.Popen(
            [sys.executable, "-c", COMPUTE, str(kept.parent / "code")],
            env=os.environ | {"NUMBA_CACHE_DIR": str(kept)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    both = [begun(), begun()]
    for each in both:
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate()[0] for each in both]
    assert all(one.startswith("[0.0, 2.0, 4.0]") for one in said)
    assert [each.returncode for each in both] == [0, 0]
    assert begun().communicate("go\n")[0] == "[0.0, 2.0, 4.0] 1\n"


def test_another_processor_compiles_again_and_both_are_kept(kept, monkeypatch):
    assert not hits(process(kept))
    with monkeypatch.context() as patch:
        patch.setattr(CPUCodegen, "magic_tuple", lambda self: ("another", "processor", "+nothing"))
        assert not hits(process(kept))
        assert hits(process(kept))
    assert hits(process(kept))


def test_a_disk_that_takes_nothing_stops_nobody(kept, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not hits(process(kept))


def test_a_user_without_a_home_keeps_nothing_beside_the_current_folder(kept, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is where nobody knows the home
    assert not hits(process(kept))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code"]
