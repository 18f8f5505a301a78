"""The table of parameter decomposition in `docs/bench.md`: parts of induction pairs, next to the truth.

python -m benchmarks.decomposition        # ten minutes of processor time
"""

import time
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from mechmarkov.bench import CASES, METRICS, exact_effects
from mechmarkov.bench.decomposition import decompose, needs
from mechmarkov.bench.scores import score_built, score_claims
from mechmarkov.theory.bootstrap import interval
from mechmarkov.utils.threads import threads

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- measured by benchmarks/decomposition.py -->", "<!-- end of the decompositions -->"
SEEDS, RANDOM = 16, 1000
PAIRS = ("induction", "bundled-induction", "trained-induction", "random-weights")
HEAD = (
    "| model | a part is a token | parts needed: `embed` | first layer | second layer | `rank`: logit "
    "difference | KL | nats | `built` |"
)


def paired(directions: np.ndarray) -> float:
    """The mean cosine of directions `[token, part]` with tokens, each with one, as well as can be."""
    cosines = np.abs(directions / np.linalg.norm(directions, axis=0))
    return float(cosines[linear_sum_assignment(-cosines)].mean())


def measured(name: str, seed: int) -> list[float]:
    """The numbers of a row for a draw of a case; NaN where one does not apply."""
    case = CASES[name](seed)
    parts = decompose(case)
    claims, exact = needs(case, parts), exact_effects(case)
    layers = [
        sum(value for node, value in claims.items() if node.startswith(layer)) for layer in ("L0", "L1")
    ]
    ranks = [
        score_claims(claims, exact["nodes", metric], metric=metric, own=False, sizes=True).get("rank", np.nan)
        for metric in METRICS
    ]
    built = score_built(case, claims, "nodes").get("built", np.nan)
    return [paired(parts["embed"].reads.numpy()), claims["embed"], *layers, *ranks, built]


def table() -> str:
    """All rows, as a table of Markdown, and what random parts give."""
    rows = [HEAD, "| --- " * HEAD.count(" | ") + "| --- |"]
    for name in PAIRS:
        values = np.array([measured(name, seed) for seed in range(SEEDS)]).T
        cells = []
        for row in values:
            told = row[~np.isnan(row)]
            low, high = interval(told) if len(told) else (np.nan, np.nan)
            cells.append(f"{told.mean():.2f} ({low:.2f} to {high:.2f})" if len(told) else "–")
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    random = np.random.default_rng(0)
    chance = np.mean([paired(np.linalg.qr(random.normal(size=(3, 3)))[0]) for _ in range(RANDOM)])
    said = f"Means over {SEEDS} seeds with 95 % intervals. Random directions have a cosine of {chance:.2f}."
    return f"{said}\n\n" + "\n".join(rows)


if __name__ == "__main__":
    with threads(1):
        made = table()
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")
    print(f"{time.process_time():.0f} seconds of processor time")
