"""Seven reports and the glossary of their scores: `python docs/guide/gallery.py build/gallery`."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import mechmarkov as mm
from mechmarkov.catalogue.probes import registered
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probing.probe import Probe, load_probe
from mechmarkov.probing.score import Score
from mechmarkov.report.glossary import explanation
from mechmarkov.utils.text import words

# Intervals are wider than in a report of yours, and the pages are made sooner.
SEQUENCES = 64
STEPS = 6


def imported() -> mm.Run:
    """The last weights of a trained model, without a trace of its training."""
    run = mm.train(mm.load_recipe("binary-p02-q03-untied").with_set(["steps=600"]), seed=0)
    return mm.Run.from_model(run.model(), source=run.source)


def table() -> mm.Run:
    """A bigram table set by hand, for the probes that answer only if they are named."""
    P = ((0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.25, 0.25, 0.5))
    return mm.Run.from_model(direct_table(torch.tensor(P).log(), n_ctx=16), source=mm.Chain(P=P))


RUNS: dict[str, tuple[str, Callable[[], mm.Run]]] = {
    "walk": ("A walk that was learned: one head reads the parent.", lambda: mm.example("walk")),
    "trap": ("The deterministic walk, which symmetry holds.", lambda: mm.example("trap")),
    "plateau": (
        "A binary chain with p + q > 1 and tied weights, at the unigram.",
        lambda: mm.train(mm.load_recipe("binary-p08-q08-tied-gd"), seed=0),
    ),
    "induction": ("Two layers that form an induction circuit.", lambda: mm.example("induction")),
    "graph": (
        "Chains along a graph of positions: the first layer attends to parents.",
        lambda: mm.example("graph"),
    ),
    "belief": (
        "A hidden Markov source: the residual stream carries the belief over what is hidden.",
        lambda: mm.train(mm.load_recipe("mess3").with_set(["steps=600"]), seed=0),
    ),
    "imported": ("A model from elsewhere: one step, no training curve.", imported),
}


def main(folder: Path) -> None:
    """Write the reports, the page that lists them, and the glossary."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = ["# Gallery\n\nSeven reports of `mechmarkov probe`. Each is one file that opens anywhere.\n"]
    scores: dict[str, dict[str, Score]] = {}
    for name, (said, run) in RUNS.items():
        found = run()
        kept = np.linspace(0, found.n_steps - 1, min(STEPS, found.n_steps)).round().astype(int)
        result = mm.probe(found, steps=found.steps[kept].tolist(), sequences=SEQUENCES)
        result.report(folder / f"{name}.html")
        listed.append(f"- [{said}]({name}.html)")
        add(scores, result)
    named = [name for name in registered() if load_probe(name).on_request]
    add(scores, mm.probe(table(), named, sequences=SEQUENCES))
    missing = set(registered()) - set(scores)
    if missing:
        raise ValueError(f"no report has scores of {', '.join(sorted(missing))}, expected one of every probe")
    (folder / "gallery.md").write_text("\n".join(listed) + "\n")
    (folder / "glossary.md").write_text(glossary(scores))


def add(scores: dict[str, dict[str, Score]], result: mm.Result) -> None:
    """Note the scores of a result, those with a null before those without."""
    for probe, outcome in result.outcomes.items():
        for key, score in outcome.scores.items():
            known = scores.setdefault(probe, {}).get(key)
            if known is None or not known.null_kind:
                scores[probe][key] = score


def glossary(scores: dict[str, dict[str, Score]]) -> str:
    """Every score of every probe: formula and source as the probe states them, range and null as measured."""
    blocks = ["# Glossary\n\nEvery score of a report, by its probe. Made from the probes themselves.\n"]
    for name, found in scores.items():
        blocks.append(_entry(load_probe(name), found))
    return "\n".join(blocks)


def _entry(probe: Probe, scores: dict[str, Score]) -> str:
    lines = [line for line in probe.formula.splitlines() if line.strip()]
    rows = []
    for key, score in scores.items():
        why = explanation(probe, key, score)
        name = f'<span id="{probe.name}-{key}"></span>{words(key)}'
        if len(why.formula) > 1:
            raise ValueError(f"{probe.name}: no formula for the score {key!r}, expected one in `formulas`")
        cells = (*why.formula, why.unit or "–", why.range, why.null or "none")
        rows.append(" | ".join(["", name, *map(_text, cells), ""]).strip())
    table = "\n".join(["| score | formula | unit | range | null |", "| --- | --- | --- | --- | --- |", *rows])
    formula = "\n".join(f"- {_text(line)}" for line in lines)
    return f"## {words(probe.name)}\n\n{probe.question}\n\n{formula}\n\n{table}\n\nSource: {probe.cites}.\n"


def _text(line: str) -> str:
    """Markdown that shows underscores, stars and bars as they are, in a table too."""
    return re.sub(r"([*_|])", r"\\\1", line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
