"""Run files made by hand: plain torch, pickle and zipfile, nothing of the library."""

import io
import os
import pickle
import resource
import zipfile
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

K, WIDTH, LENGTH, HEADS, D_HEAD = 3, 4, 5, 2, 3


def parameter_shapes(tied: bool = False) -> dict[str, tuple[int, ...]]:
    """One attention-only layer without norm, as HookedTransformer names and shapes it."""
    attention = {
        **{f"blocks.0.attn.W_{x}": (HEADS, WIDTH, D_HEAD) for x in "QKV"},
        **{f"blocks.0.attn.b_{x}": (HEADS, D_HEAD) for x in "QKV"},
        "blocks.0.attn.W_O": (HEADS, D_HEAD, WIDTH),
        "blocks.0.attn.b_O": (WIDTH,),
    }
    shapes = {"embed.W_E": (K, WIDTH), "pos_embed.W_pos": (LENGTH, WIDTH), **attention}
    return {**shapes, **({} if tied else {"unembed.W_U": (WIDTH, K)}), "unembed.b_U": (K,)}


def handmade(steps: tuple[int, ...] = (0, 10, 50), tied: bool = False) -> dict:
    """The content of a run file, written to the contract."""
    generator = torch.Generator().manual_seed(7)
    shapes = parameter_shapes(tied).items()
    states = {name: 0.5 * torch.randn(len(steps), *shape, generator=generator) for name, shape in shapes}
    states["blocks.0.attn.b_Q"] = torch.zeros(1, HEADS, D_HEAD)
    sizes = {"n_layers": 1, "d_model": WIDTH, "n_ctx": LENGTH, "d_head": D_HEAD, "n_heads": HEADS}
    model = {**sizes, "d_vocab": K, "attn_only": True, "normalization_type": None, "tied": tied}
    return {
        "format": "mechmarkov.run",
        "version": 1,
        "model": model,
        "source": {"kind": "chain", "P": [[0.2, 0.3, 0.5], [0.5, 0.2, 0.3], [0.3, 0.5, 0.2]]},
        "objective": {"kind": "cross_entropy", "read": "all", "query": False},
        "trainable": {"embed.W_E": None, "blocks.0.attn.W_V": [[0, 1], [0, WIDTH], [1, D_HEAD]]},
        "recipe": {"optimiser": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.999]}},
        "seed": 3,
        "steps": torch.tensor(steps),
        "states": states,
        "metrics": {"loss": {"step": torch.arange(4) * 10, "value": torch.tensor([1.1, 0.9, 0.8, 0.7])}},
        "provenance": {"torch": "2.13.0", "device": "cpu", "wall_seconds": 1.5},
    }


def saved(path: Path, data: object) -> Path:
    torch.save(data, path)
    return path


def repack(path: Path, edits: dict[str, object], compression: int = zipfile.ZIP_STORED) -> Path:
    """Rewrite the archive: an edit is new bytes, a function of the old, or None to leave an entry out."""
    with zipfile.ZipFile(path) as archive:
        folder = archive.namelist()[0].split("/")[0]
        content = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    for name, edit in edits.items():
        content[name] = edit(content[name]) if callable(edit) else edit
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in content.items():
            if value is not None:
                archive.writestr(f"{folder}/{name}", value)
    return path


def text(value: str) -> bytes:
    """A string as pickle writes it."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


class Call:
    """Pickles as a call: unpickling it the ordinary way makes the call."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def touch(marker: Path) -> Call:
    """A payload that shows whether it ran."""
    return Call(os.system, f"touch {marker}")


def legacy_pickle(path: Path, data: object) -> Path:
    """Not a zip archive: a bare pickle, as torch wrote until 1.5."""
    buffer = io.BytesIO()
    pickle.dump(data, buffer, protocol=2)
    path.write_bytes(buffer.getvalue())
    return path


@contextmanager
def memory_limit(extra: int):
    """Let the process grow by so many bytes of address space at most."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def storage_of(tensor: torch.Tensor) -> torch.storage.TypedStorage:
    """The storage under a tensor, as torch pickles it."""
    return torch.storage.TypedStorage(
        wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True
    )


def rebuilt(storage: object, offset: object, shape: object, stride: object, hooks: object = None) -> Call:
    """The call by which a pickle has a tensor of a storage."""
    hooks = OrderedDict() if hooks is None else hooks
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, hooks)


def assert_same(one: Any, other: Any) -> None:
    """Two runs are equal, to the last bit."""
    for name in ("config", "source", "objective", "trainable", "recipe", "seed", "provenance"):
        assert getattr(one, name) == getattr(other, name), name
    assert torch.equal(one.steps, other.steps)
    assert (list(one.states), list(one.metrics)) == (list(other.states), list(other.metrics))
    assert all(torch.equal(value, other.states[name]) for name, value in one.states.items())
    assert all(torch.equal(x[key], other.metrics[name][key]) for name, x in one.metrics.items() for key in x)
