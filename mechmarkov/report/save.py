"""The three files of a probed run: report.html, results.nc and summary.json."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import xarray as xr
from xarray.backends import H5NetCDFStore

from mechmarkov.probing.outcome import Findings
from mechmarkov.report.html import page, parts
from mechmarkov.utils.files import made_folder, replacing
from mechmarkov.utils.forked import can_fork, forked

FILES = ("report.html", "results.nc", "summary.json")


def save_all(results: Mapping[Path, Findings], *, jobs: int = 1) -> None:
    """Write the files of several runs, each into its folder: all files of all runs, or none.

    Args:
        results: What was measured, by folder.
        jobs: How many processes write arrays and draw pages, where processes can be copied.

    Raises:
        OSError: If a folder cannot be made or written.
    """
    with ExitStack() as files:
        pages: dict[Path, Path] = {}
        tasks: dict[tuple[Path, str | Path | None], Callable[[], Any]] = {}
        for folder, result in results.items():
            files.enter_context(made_folder(folder, OSError))
            pages[folder], arrays, summary = (files.enter_context(replacing(folder / name)) for name in FILES)
            text = json.dumps(result.summary(), indent=2, ensure_ascii=False, allow_nan=False)
            summary.write_text(text + "\n", encoding="utf-8")
            tasks |= {(folder, name): make for name, make in parts(result).items()}
            tasks[folder, arrays] = partial(_write_arrays, result, arrays)
        several = jobs if can_fork() else 1
        made = dict(forked(lambda task: tasks[task](), [*tasks], several, copied=True, advice="use one job"))
        for folder, path in pages.items():
            own = {name: made[folder, name] for name in parts(results[folder])}
            path.write_text(page(results[folder], own), encoding="utf-8")


def _write_arrays(result: Findings, path: Path) -> None:
    """Write the arrays: made in memory, since HDF5 ends the process on a disk that is full."""
    outcomes = result.outcomes.items()
    tree = {f"/{name}": _plain(one.data) for name, one in outcomes}
    tree |= {f"/null/{name}": _plain(one.null) for name, one in outcomes if one.null is not None}
    memory = BytesIO()
    with h5netcdf.File(memory, "w") as file:
        for group, data in (tree or {"/": xr.Dataset()}).items():
            data.dump_to_store(H5NetCDFStore(file, group=group))
    path.write_bytes(memory.getbuffer())


def _plain(data: xr.Dataset) -> xr.Dataset:
    """NetCDF has neither booleans nor None in attributes, and texts in lists only."""
    data = data.copy()
    holders: list[xr.Dataset | xr.Variable] = [data, *data.variables.values()]
    for holder in holders:
        holder.attrs = {k: _plain_attribute(value) for k, value in holder.attrs.items() if value is not None}
    return data


def _plain_attribute(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype == bool:
        return array.astype(np.int64)[()]
    return array.tolist() if array.dtype.kind == "U" else value
