"""The tables of parameter decomposition in `docs/bench.md`: parts of induction pairs, next to the truth.

python -m benchmarks.decomposition        # six minutes of processor time
"""

import time
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.timing import between
from mechmarkov.bench import CASES, METRICS, exact_effects, run
from mechmarkov.bench.decomposition import decompose, decomposition, needs
from mechmarkov.bench.scores import score_built, score_claims
from mechmarkov.theory.bootstrap import interval
from mechmarkov.utils.threads import threads

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"
BEGIN, END = "<!-- measured by benchmarks/decomposition.py -->", "<!-- end of the decompositions -->"
SEEDS, RANDOM = 16, 1000
PAIRS = ("induction", "bundled-induction", "trained-induction", "random-weights")
OTHERS = ("resample-ablation", "attribution-patching", "difference-norm", "noise-nodes")
FOUND = "| model | a part is a token | parts of `embed` | of the first layer | of the second | `built` |"
WORDS = (
    "What is found, mean over {} seeds with 95 % intervals. `a part is a token` is the cosine of what\n"
    "parts of the embedding read with tokens, in pairs: 1 is perfect, random directions have {:.2f}.\n"
    "Of parts, it is said how many are needed at a position.",
    "`rank` of five nodes under each metric, over the same seeds. Draws in which effects differ by less\n"
    "than 0.001 are left out.",
)
RANKS = "| model | method | logit difference | KL | nats |"


def paired(directions: np.ndarray) -> float:
    """The mean cosine of directions `[token, part]` with tokens, each with one, as well as can be."""
    cosines = np.abs(directions / np.linalg.norm(directions, axis=0))
    return float(cosines[linear_sum_assignment(-cosines)].mean())


def measured(name: str, seed: int) -> tuple[list[float], list[float]]:
    """Returns what a draw of a case gave, and ranks under each metric; NaN where a number does not apply."""
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
    return [paired(parts["embed"].reads.numpy()), claims["embed"], *layers, built], ranks


def row(values: np.ndarray, *names: str) -> str:
    """A row of Markdown of numbers `[column, seed]`: means over the seeds that have one, with intervals."""
    cells = [f"`{name}`" for name in names]
    for column in values:
        told = column[~np.isnan(column)]
        low, high = interval(told) if len(told) else (np.nan, np.nan)
        cells.append(f"{told.mean():.2f} ({low:.2f} to {high:.2f})" if len(told) else "–")
    return f"| {' | '.join(cells)} |"


def table(head: str, rows: list[str]) -> str:
    """A table of Markdown."""
    return "\n".join([head, "|" + " --- |" * (head.count("|") - 1), *rows])


def tables() -> str:
    """Both tables, and what random parts give."""
    found, ranks = [], []
    others = run(OTHERS, PAIRS, seeds=SEEDS).scores.set_index(["case", "method", "metric"])["rank"]
    for name in PAIRS:
        draws = [measured(name, seed) for seed in range(SEEDS)]
        found.append(row(np.array([first for first, _ in draws]).T, name))
        ranks.append(row(np.array([second for _, second in draws]).T, name, decomposition.name))
        for other in OTHERS:
            values = np.array([others[name, other, metric].to_numpy() for metric in METRICS])
            ranks.append(row(values, name, other))
        print(found[-1], ranks[-1 - len(OTHERS)], sep="\n", flush=True)
    random = np.random.default_rng(0)
    chance = np.mean([paired(np.linalg.qr(random.normal(size=(3, 3)))[0]) for _ in range(RANDOM)])
    return f"{WORDS[0].format(SEEDS, chance)}\n\n{table(FOUND, found)}\n\n{WORDS[1]}\n\n{table(RANKS, ranks)}"


if __name__ == "__main__":
    with threads(1):
        made = tables()
    PAGE.write_text(between(PAGE.read_text(), BEGIN, END, made))
    print(f"{time.process_time():.0f} seconds of processor time")
