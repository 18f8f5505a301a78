"""Effects computed again: whether what a file says of the truth is what the models do."""

from pathlib import Path

import numpy as np
import pandas as pd

from mechmarkov.bench.cases import CASES
from mechmarkov.bench.counterfactuals import Pairs, check_pairs
from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.patching import exact_effects
from mechmarkov.safe.file import check_regular, naming, refusing
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import shown

TOLERANCE = 1e-4  # of an effect: a model that is trained again on another machine is not the same to the bit
MAX_BYTES = 1 << 28
COLUMNS = ["method", "metric", "case", "seed", "component", "exact"]


def verify(path: str | Path, *, pairs: Pairs | str = "minimal") -> pd.DataFrame:
    """The rows of an `effects.csv` whose `exact` differs by more than 1e-4 from the effect computed again.

    Only `exact` is checked: not `claimed`, `low`, `high` or `in_circuit`.

    Args:
        path: The file, or the folder that `mm.bench.save` wrote it to.
        pairs: The counterfactuals that it was made with. The file does not say: with others, rows differ.

    Returns:
        The file's rows that differ, with the effect as computed in `again`; empty where all agree.

    Raises:
        RunFileError: It cannot be read.
        ValueError: It is not such a file, has no rows, or a case, metric or component that does not exist.
    """
    path = Path(path) / "effects.csv" if Path(path).is_dir() else Path(path)
    rows = _read(path)
    check_pairs(pairs)
    again = pd.Series(np.nan, index=rows.index)
    for (name, seed), of_case in rows.groupby(["case", "seed"]):
        if name not in CASES:
            raise ValueError(f"{path.name} has case {name!r}, expected one of {', '.join(CASES)}")
        exact = exact_effects(CASES[str(name)](int(seed), pairs=pairs))
        known = {
            (metric, component): value
            for (_, metric), effects in exact.items()
            for component, value in effects.as_claims().items()
        }
        for at, metric, component in of_case[["metric", "component"]].itertuples():
            if (metric, component) not in known:
                expected = f"expected one of case {name!r} under {', '.join(METRICS)}"
                raise ValueError(f"{path.name} has {component!r} under {metric!r}, {expected}")
            again[at] = known[metric, component]
    return rows.assign(again=again)[(rows["exact"] - again).abs() > TOLERANCE]


def _read(path: Path) -> pd.DataFrame:
    """The rows of a file: seeds are integers and effects finite numbers, all else is text."""
    with naming(path):
        if (size := check_regular(path)) > MAX_BYTES:
            raise RunFileError(f"has {size} bytes, expected at most {MAX_BYTES}")
    with naming(path), refusing("cannot be read", OSError):
        try:
            rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        except ValueError:  # pandas' own are of that kind
            raise ValueError(
                f"{path.name} is not a table, expected effects.csv of mechmarkov bench"
            ) from None
    if lacking := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"{path.name} has no column {lacking[0]!r}, expected those of mechmarkov bench")
    if rows.empty:
        raise ValueError(f"{path.name} has no rows, expected an effect to verify")
    wrong = rows.index[~rows["seed"].str.fullmatch("[0-9]{1,9}")]
    if len(wrong):
        raise ValueError(f"{path.name} has seed {shown(rows['seed'][wrong[0]])}, expected an integer")
    numbers = pd.to_numeric(rows["exact"], errors="coerce")
    wrong = rows.index[~np.isfinite(numbers)]
    if len(wrong):
        raise ValueError(f"{path.name} has exact {shown(rows['exact'][wrong[0]])}, expected a finite number")
    return rows.assign(seed=rows["seed"].astype(int), exact=numbers)
