"""Files and folders of other programs: each says what it is, and the call in the message works."""

import json
import pathlib
import pickle
import re
import struct
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path

import h5py
import msgpack
import numpy
import pytest
import torch
from public_codes import SOURCE, Config, NanoGPT, drawn
from run_files import saved, touch
from torch import nn
from torch.distributed.checkpoint import format_utils  # noqa: F401 - a message calls it by its whole name
from torch.distributed.checkpoint import save as save_distributed

from mechmarkov.cli import main
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError

GIVEN = {"act_fn": "gelu", "n_heads": 2}
STATE = drawn(NanoGPT(Config())).state_dict()


def refusal(path: Path) -> str:
    with pytest.raises(RunFileError) as error:
        import_run([path], source=SOURCE, given=GIVEN)
    (line,) = str(error.value).splitlines()
    assert len(line) < 1000
    return line


def followed(line: str, path: Path) -> Path:
    """Makes the call that a message shows, and returns the file that it writes."""
    call = line.split("in Python, ", 1)[1]
    modules = {"torch": torch, "numpy": numpy, "pickle": pickle, "pathlib": pathlib}
    assert "torch.distributed.checkpoint.format_utils" in sys.modules  # as a script would import it
    exec(call, modules)
    return path.with_name(f"{path.stem}-new.pt")


def older(path: Path) -> None:
    torch.save(STATE, path, _use_new_zipfile_serialization=False)


def npz(path: Path) -> None:
    numpy.savez(path, **{name: value.numpy() for name, value in STATE.items()})


def npz_compressed(path: Path) -> None:
    numpy.savez_compressed(path, **{name: value.numpy() for name, value in STATE.items()})


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"model": STATE, "step": 3}))


def scripted(path: Path) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in STATE.items():
                self.register_buffer(name.replace(".", "__"), value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecation of TorchScript
        torch.jit.save(torch.jit.script(Plain()), path)


def distributed(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process is meant
        save_distributed({"model": STATE}, checkpoint_id=path, no_dist=True)


READABLE = {
    "older.pt": (older, "is of torch.save's older format"),
    "w.npz": (npz, "is numpy's .npz"),
    "c.npz": (npz_compressed, "is numpy's .npz"),
    "w.pkl": (pickled, "is a pickle that torch.save did not write, and reading one runs what is in it"),
    "pickled.pt": (pickled, "is a pickle that torch.save did not write"),
    "dcp": (distributed, "is of torch.distributed.checkpoint"),
}


@pytest.mark.parametrize("name", READABLE)
def test_the_call_in_the_message_makes_a_file_that_is_read(tmp_path, name):
    write, words = READABLE[name]
    path = tmp_path / name
    write(path)
    line = refusal(path)
    assert f"{path}: {words}" in line
    new = followed(line, path)
    run = import_run([new], source=SOURCE, given=GIVEN).run
    assert torch.equal(run.states["pos_embed.W_pos"][0], STATE["transformer.wpe.weight"])


def test_a_scripted_module_says_how_to_get_its_weights(tmp_path):
    path = tmp_path / "scripted.pt"
    scripted(path)
    line = refusal(path)
    assert "is TorchScript" in line
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = followed(line, path)
    assert len(torch.load(new, weights_only=True)) == len(STATE)


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["layers/dense/vars/0"] = numpy.ones(3)


def flax(path: Path) -> None:
    """flax 0.12, flax/serialization.py, lines 249-291: an array is extension type 1, packed."""
    array = msgpack.ExtType(1, msgpack.packb(((3,), "float32", numpy.ones(3, "float32").tobytes())))
    path.write_bytes(msgpack.packb({"params": {"wte": {"embedding": array}}}))


def keras(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.writestr(name, "{}")


def exported(path: Path) -> None:
    """torch 2.13, torch/export/pt2_archive/constants.py: the names in a `.pt2`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("archive_format", "models/model.json", "data/weights/weight_0"):
            archive.writestr(f"model/{name}", "pt2")


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add(saved(path.with_name("inner.pt"), STATE), "inner.pt")


def orbax(path: Path) -> None:
    """orbax-checkpoint 0.11, as `PyTreeCheckpointer().save` leaves it."""
    path.mkdir()
    for name in ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "_sharding"):
        (path / name).write_text("{}")


def orbax_manager(path: Path) -> None:
    """The same under `CheckpointManager`: a folder per step, what is saved in `default`."""
    orbax_step = path / "100"
    orbax_step.mkdir(parents=True)
    (orbax_step / "_CHECKPOINT_METADATA").write_text("{}")
    orbax(orbax_step / "default")


def bytes_of(value: bytes):
    return lambda path: path.write_bytes(value)


def folder_of(name: str):
    def write(path: Path) -> None:
        path.mkdir()
        (path / name).write_text("{}")

    return write


OTHERS = {
    "w.h5": (hdf5, "is HDF5 (Keras, h5py): write its arrays as torch.save({name: tensor, …}, "),
    "m.weights.pt": (hdf5, "is HDF5"),
    "flax_model.msgpack": (
        flax,
        "is msgpack (flax): in Python, torch.save({k: torch.tensor(numpy.asarray(x))",
    ),
    "checkpoint_7": (flax, "is msgpack (flax)"),
    "m.keras": (keras, "is of Keras: write its arrays as torch.save("),
    "m.pt2": (exported, "is of torch.export: in Python, torch.save(torch.export.load("),
    "ck.tar": (tarred, "is a tar archive: unpack it first"),
    "ck.pt.gz": (bytes_of(b"\x1f\x8b\x08" + bytes(30)), "is compressed by gzip: unpack it first"),
    "ck.pt.zst": (bytes_of(b"\x28\xb5\x2f\xfd" + bytes(30)), "is compressed by zstd"),
    "array.npy": (lambda path: numpy.save(path, numpy.ones(3)), "is one numpy array, expected all weights"),
    "m.gguf": (bytes_of(b"GGUF" + bytes(30)), "is GGUF (llama.cpp)"),
    "m.onnx": (bytes_of(b"\x08\x07\x12\x07pytorch"), "is ONNX, a graph"),
    "model.ckpt-1.index": (bytes_of(bytes(8)), "is of TensorFlow"),
    "lfs.pt": (
        bytes_of(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"),
        "is a pointer of Git LFS and not the file itself: git lfs pull",
    ),
    "lfs.safetensors": (
        bytes_of(b"version https://git-lfs.github.com/spec/v1\noid"),
        "is a pointer of Git LFS",
    ),
    "page.pt": (
        bytes_of(b"\n<!DOCTYPE html><html></html>"),
        "is a web page, expected the file that it leads to",
    ),
    "settings.json": (bytes_of(b"{}"), "is JSON, expected the weights: give the folder of both"),
    "empty.pt": (bytes_of(b""), "is empty"),
    "text.pt": (bytes_of(b"0123456789" * 9), "is not a file written by torch.save"),
    "orbax": (orbax, "is of orbax (JAX): in Python, "),
    "manager": (orbax_manager, "/100/default"),
    "saved_model": (folder_of("saved_model.pb"), "is a SavedModel of TensorFlow"),
    "zero": (folder_of("zero_to_fp32.py"), "is of DeepSpeed: its zero_to_fp32.py writes one file"),
    "lora": (folder_of("adapter_config.json"), "is an adapter (PEFT) and not the whole model"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_says_what_it_is(tmp_path, capsys, name):
    write, words = OTHERS[name]
    write(tmp_path / name)
    assert words in refusal(tmp_path / name)
    with pytest.raises(SystemExit) as end:
        main(["import", str(tmp_path / name), "--source", SOURCE.model_dump_json()])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_folder_with_only_such_a_file_says_so(tmp_path):
    npz(tmp_path / "w.npz")
    assert re.search(r"w\.npz: is numpy's \.npz: in Python", refusal(tmp_path))


def test_a_pickle_is_told_by_its_beginning_and_never_run(tmp_path):
    marker = tmp_path / "ran"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path = tmp_path / f"p{protocol}.pt"
        path.write_bytes(pickle.dumps({"a": touch(marker)}, protocol=protocol))
        assert "pickle" in refusal(path) or "not a file written by torch.save" in refusal(path)
    torch.save({"a": touch(marker)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "is of torch.save's older format" in refusal(tmp_path / "old.pt")
    assert not marker.exists()


def test_a_safetensors_header_that_lies_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}).encode()
    for name in ("a.safetensors", "a.pt"):
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        assert "is not a safetensors file" in refusal(tmp_path / name)
