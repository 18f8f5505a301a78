"""The three files of a probed run: report.html, results.nc and summary.json."""

import json
from pathlib import Path

import xarray as xr

from mechmarkov.probing.outcome import Findings
from mechmarkov.report.html import write
from mechmarkov.utils.files import replacing


def save(result: Findings, folder: Path) -> Path:
    """Write all three files, each whole or not at all.

    Raises:
        OSError: If the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(result, folder / "report.html")
    tree = {f"/{name}": _plain(outcome.data) for name, outcome in result.outcomes.items()}
    tree |= {f"/null/{name}": _plain(o.null) for name, o in result.outcomes.items() if o.null is not None}
    with replacing(folder / "results.nc") as temporary:
        xr.DataTree.from_dict(tree or {"/": xr.Dataset()}).to_netcdf(str(temporary), engine="h5netcdf")
    with replacing(folder / "summary.json") as temporary:
        text = json.dumps(result.summary(), indent=2, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return folder


def _plain(data: xr.Dataset) -> xr.Dataset:
    """NetCDF has neither booleans nor None in attributes."""
    data = data.copy()
    holders: list[xr.Dataset | xr.Variable] = [data, *data.variables.values()]
    for holder in holders:
        attrs = {key: value for key, value in holder.attrs.items() if value is not None}
        holder.attrs = {key: int(value) if isinstance(value, bool) else value for key, value in attrs.items()}
    return data
