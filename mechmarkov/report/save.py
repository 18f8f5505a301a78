"""The three files of a probed run: report.html, results.nc and summary.json."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mechmarkov.probing.outcome import Findings
from mechmarkov.report.html import render
from mechmarkov.utils.files import made_folder, replacing


def save_all(results: Mapping[Path, Findings]) -> None:
    """Write the files of several runs, each into its folder: all files of all runs, or none.

    Raises:
        OSError: If a folder cannot be made or written.
    """
    with ExitStack() as files:
        for folder, result in results.items():
            files.enter_context(made_folder(folder, OSError))
            page, arrays, summary = (
                files.enter_context(replacing(folder / name))
                for name in ("report.html", "results.nc", "summary.json")
            )
            page.write_text(render(result), encoding="utf-8")
            outcomes = result.outcomes.items()
            tree = {f"/{name}": _plain(one.data) for name, one in outcomes}
            tree |= {f"/null/{name}": _plain(one.null) for name, one in outcomes if one.null is not None}
            xr.DataTree.from_dict(tree or {"/": xr.Dataset()}).to_netcdf(str(arrays), engine="h5netcdf")
            text = json.dumps(result.summary(), indent=2, ensure_ascii=False, allow_nan=False)
            summary.write_text(text + "\n", encoding="utf-8")


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
