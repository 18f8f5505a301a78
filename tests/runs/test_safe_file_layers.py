"""Each layer that reads a file refuses by itself, without those before it."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from run_files import saved
from safe_file_cases import payloads

from mechmarkov.runs import RunFileError
from mechmarkov.safe import file as safe_file


@pytest.mark.parametrize("case", payloads(Path("x")))
def test_the_scan_alone_refuses_code(tmp_path, case):
    path = saved(tmp_path / "run.pt", payloads(tmp_path / "marker")[case])
    with pytest.raises(RunFileError, match=r"refers to|carries hooks"):
        safe_file.check_pickle(*safe_file.read_archive(path, path.stat().st_size))
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("case", [*payloads(Path("x")), "a class"])
def test_torch_alone_refuses_code_and_classes(tmp_path, case):
    """`weights_only` is more than "no function is called": no class outside torch's list is made."""
    cases = payloads(tmp_path / "marker") | {"a class": {"a": Path("x")}}
    path = saved(tmp_path / "run.pt", cases[case])
    with pytest.raises(RunFileError, match=r"cannot be read by torch\.load"):
        safe_file.load_weights_only(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "is a set"),
        (OrderedDict(a=1), "is an OrderedDict"),
        (torch.nn.Parameter(torch.zeros(2)), "is a Parameter"),
        (torch.zeros(1).expand(4), "overlap in memory"),
        (torch.zeros(2).to_sparse(), "is a sparse tensor"),
        (1 << 70, "is an integer of 71 bits"),
    ],
)
def test_the_walk_alone_refuses_what_is_not_plain(value, words):
    with pytest.raises(RunFileError, match=words):
        safe_file.check_loaded({"a": value}, file_bytes=1 << 20)


def test_the_walk_alone_refuses_tensors_that_outgrow_their_file():
    data = {"a": torch.zeros(256)}  # 1024 bytes
    assert safe_file.check_loaded(data, file_bytes=256) is data
    with pytest.raises(RunFileError, match="would take over 4 times the file"):
        safe_file.check_loaded(data, file_bytes=255)
