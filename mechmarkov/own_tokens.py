"""`mm.tokens`: everything about one sequence of a reader's own, as data, a page and JSON."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from mechmarkov.probing.own_tokens import own_tokens
from mechmarkov.report.html import fill, write_page
from mechmarkov.report.own_tokens import panel, table
from mechmarkov.runs.run import Run
from mechmarkov.utils.errors import path_of


@dataclass(frozen=True, eq=False, repr=False)
class OwnTokens:
    """One sequence, and what a model makes of it.

    Attributes:
        data: Laws, attention, logit lens and patches (axes: `mechmarkov.probing.own_tokens.own_tokens`).
    """

    data: xr.Dataset

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page of the sequence, one HTML file, and return its path.

        Raises:
            FileNotFoundError: The folder does not exist.
        """
        return write_page(lambda: _page(self.data), path_of("path", path))

    def to_data(self) -> dict[str, Any]:
        """Everything as plain data, by names: the law of each position, the lens, attention and patches."""
        data = self.data
        states = [str(state) for state in data["state"].values]
        positions = [
            {
                "position": int(position),
                "model": dict(zip(states, data["model"].values[i].tolist(), strict=True)),
                "source": dict(zip(states, _best(data, "law")[i].tolist(), strict=True)),
                "kl": float(_best(data, "divergence")[i]),
            }
            for i, position in enumerate(data["read_position"].values)
        ]
        looking = {} if "attention" not in data else {"attention": data["attention"].values.tolist()}
        patch = {
            "state": states[int(data["target"].values[0])],
            "clean": float(data["clean"].values[int(data["target"].values[0])]),
            "changed": data["changed"].values.tolist(),
            "changed_to": [states[int(state)] for state in data["changed_to"].values],
            "corrupted": data["corrupted"].values.tolist(),
            "patched": data["patched"].values.tolist(),
        }
        return {
            "run": data.attrs["title"],
            "step": data.attrs["step"],
            "tokens": [str(token) for token in data["token"].values],
            "law": data.attrs["best"],
            "warnings": [data.attrs["warning"]] if data.attrs["warning"] else [],
            "positions": positions,
            "lens": data["lens"].values.tolist(),
            **looking,
            "patch": patch,
        }

    def __repr__(self) -> str:
        """The sequence, how far the model is from the law, and what to do next."""
        data = self.data
        read = " ".join(str(token) for token in data["token"].values[-12:])
        kl = float(_best(data, "divergence").mean())
        return (
            f"OwnTokens(… {read}: on average {kl:.4g} nats from {data.attrs['best']} to the model)\n"
            "  .report('tokens.html') draws it, .data holds it, .to_data() is plain"
        )

    def _repr_html_(self) -> str:
        rows = pd.DataFrame(table(self.data)).to_html(index=False, border=0)
        return f"<p>{escape(repr(self))}</p>{rows}"


def tokens(run: Run, sequence: Sequence[int | str], *, step: int = -1) -> OwnTokens:
    """Show what the model makes of one sequence: laws, attention, logit lens and patches of one position.

    To ask all probes on sequences of your own, give them to `mm.probe(run, tokens=…)`.

    Args:
        run: A run, from `mm.train`, `mm.load`, `mm.example` or `mm.Run.from_model`.
        sequence: States by number or label, as many as the model reads or fewer; before a query token, or
            where only the last position is read, as many.
        step: A training step the run has kept, -1 for the last.

    Raises:
        ValueError: A sequence that the model cannot read, or a step that was not kept.

    Example:
        >>> import mechmarkov as mm
        >>> shown = mm.tokens(mm.example("induction"), [0, 1, 2, 0, 1])
        >>> shown.data["model"].sizes["state"], shown.data["read_position"].values.tolist()
        (3, [0, 1, 2, 3, 4])
    """
    return OwnTokens(own_tokens(run, sequence, step=step))


def _page(data: xr.Dataset) -> str:
    shown = panel(data)
    return fill(
        "own_tokens.html.j2",
        shown.figures,
        steps=range(len(shown.changes)),
        title="One sequence",
        run=data.attrs["title"],
        named=data.attrs.get("file", ""),
        warning=data.attrs["warning"],
        panel=shown,
    )


def _best(data: xr.Dataset, name: str) -> Any:
    return data[name].sel(predictor=data.attrs["best"]).values
