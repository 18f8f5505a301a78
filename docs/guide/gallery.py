"""Twenty-eight reports, their certificates and the glossary: `python docs/guide/gallery.py build/gallery`."""

import html
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechmarkov as mm
from mechmarkov.bench.circuits import induction_with_decoy
from mechmarkov.catalogue.probes import registered
from mechmarkov.certify import certify, proof_of, save_proof
from mechmarkov.certify.sentence import sentences
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.probing.probe import Probe, load_probe
from mechmarkov.probing.score import Score
from mechmarkov.report.glossary import explanation
from mechmarkov.training.new_recipe import new_recipe
from mechmarkov.utils.text import words

# Intervals are wider than in a report of yours, and the pages are made sooner.
SEQUENCES = 256
STEPS = 6
SECONDS = 20.0  # of a certificate
PROCESSES = 2
SMALL = {"width": 32, "context": 24, "steps": 600, "layers": 1}
Scores = Mapping[str, Mapping[str, Score]]
TURNS = np.array([[0.05, 0.85, 0.1], [0.1, 0.05, 0.85], [0.85, 0.1, 0.05]])


def imported() -> mm.Run:
    """The last weights of a trained model, without a trace of its training."""
    run = mm.train(mm.load_recipe("binary-p02-q03-untied").with_set(["steps=600"]), seed=0)
    return mm.Run.from_model(run.model(), source=run.source)


def table() -> mm.Run:
    """A bigram table set by hand, for the probes that answer only if they are named."""
    P = ((0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.25, 0.25, 0.5))
    return mm.Run.from_model(direct_table(torch.tensor(P).log(), n_ctx=16), source=mm.Chain(P=P))


def by_hand() -> mm.Run:
    """An induction circuit set by hand, next to a head that attends as sharply and is not read."""
    return mm.Run.from_model(induction_with_decoy(3, n_ctx=24), source=mm.DirichletChains(n_states=3))


def trigram() -> mm.Run:
    """A table of pairs, with a head for each of the two tokens that it reads."""
    kernel = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 3))
    return mm.Run.from_model(n_gram_model(kernel, 8), source=mm.OrderK(kernel.tolist()))


def untrained() -> mm.Run:
    """The start of a training, and nothing of it."""
    model = mm.train(mm.load_recipe("binary-p02-q03-untied").with_set(["steps=1"]), seed=0).model(step=0)
    return mm.Run.from_model(model, source=mm.Binary(p=0.2, q=0.3))


def trained(recipe: str, *changes: str) -> Callable[[], mm.Run]:
    """A shipped recipe, trained from seed 0."""
    return lambda: mm.train(mm.load_recipe(recipe).with_set(list(changes)), seed=0)


def of_source(kind: str, *changes: str, source: dict[str, Any] | None = None, **size: int) -> mm.Run:
    """A recipe as `mechmarkov recipe new` writes it, with another law of that kind, trained from seed 0."""
    recipe = mm.Recipe.from_data(tomllib.loads(new_recipe(kind, **SMALL | size))).with_set(list(changes))
    return mm.train(recipe if source is None else recipe.replace(source={"kind": kind, **source}), seed=0)


def lags() -> mm.Run:
    """A chain whose next state follows the token two back, or more rarely the one three back."""
    kernel = np.zeros((3, 3, 3, 3))
    for history in np.ndindex(3, 3, 3):
        kernel[history] = 0.65 * TURNS[history[1]] + 0.35 * TURNS[history[0]]
    with_positions = "model.positional_embedding_type='relative'"
    return of_source("order_k", with_positions, source={"kernel": kernel.tolist()}, heads=2)


def selective_lag() -> mm.Run:
    """One of three lags a sequence, by three layers."""
    return of_source("selective_lag", source={"P": TURNS.tolist(), "lags": [1, 2, 3]}, layers=3, context=16)


def context_tree() -> mm.Run:
    """One tree of depth 3, by one layer with an MLP."""
    laws = {(1,): (0.7, 0.3), (1, 0): (0.2, 0.8), (1, 0, 0): (0.6, 0.4), (0, 0, 0): (0.9, 0.1)}
    leaves = [{"context": [*context], "law": [*law]} for context, law in laws.items()]
    return of_source("context_tree", "model.attn_only=false", source={"leaves": leaves}, context=16)


# Each run: two sentences, and how it is had.
RUNS: dict[str, tuple[str, Callable[[], mm.Run]]] = {
    "walk": (
        "A walk on a circle that was learned. One head reads the parent, and its values hold a table.",
        lambda: mm.example("walk"),
    ),
    "trap": (
        "The walk that always turns the same way. Symmetry holds it where no gradient tells states apart.",
        lambda: mm.example("trap"),
    ),
    "biased": (
        "A walk that prefers one way. The value matrix is nearest to the square root of P.",
        trained("walk-k6-biased"),
    ),
    "plateau": (
        "A binary chain with p + q > 1 and tied weights. It stays at the unigram.",
        trained("binary-p08-q08-tied-gd"),
    ),
    "induction": (
        "A fresh chain a sequence. Two layers form an induction circuit that counts pairs in context.",
        lambda: mm.example("induction"),
    ),
    "mamba": (
        "The same task, without attention. One layer of Mamba-2 counts pairs in its state.",
        lambda: mm.example("mamba"),
    ),
    "graph": (
        "Chains along a graph of positions. The first layer attends to parents.",
        lambda: mm.example("graph"),
    ),
    "belief": (
        "A hidden Markov source. The residual stream carries the belief over what is hidden.",
        trained("mess3", "steps=600"),
    ),
    "lstm": (
        "The same source, without attention. An LSTM carries what is known from token to token.",
        trained("mess3-lstm", "steps=300"),
    ),
    "qubit": (
        "Tokens of a qubit that is measured weakly and turned. What is known has three dimensions.",
        trained("measured-qubit", "steps=600", "data.batch=64"),
    ),
    "bloch-walk": (
        "A qubit that is measured along one of two axes, by a coin. Four tokens, and three dimensions.",
        trained("bloch-walk"),
    ),
    "frdn": (
        "Stretches between resets whose memory is an angle. No finite hidden chain makes them.",
        trained("frdn"),
    ),
    "moon": (
        "Stretches between resets whose memory is a logarithm. What is known has three dimensions.",
        trained("moon"),
    ),
    "hidden-mixture": (
        "One of three hidden chains a sequence. Which chain it is, and its state, are both hidden.",
        trained("hidden-mixture", "steps=400", "data.batch=32"),
    ),
    "factors": (
        "Two hidden chains side by side, read as one token. The stream holds a sum of both beliefs.",
        trained("factored-chains", "steps=300"),
    ),
    "tokens": (
        "A chain of order 2 in 16 tokens. A token is several symbols, and the next one is predicted.",
        trained("tokens-lzw", "steps=300"),
    ),
    "tasks": (
        "One of a few chains a sequence. A model can recognise the chain, or count pairs.",
        trained("task-mixture", "steps=600"),
    ),
    "context-trees": (
        "A context tree a sequence. How far back the next state depends on varies with the past.",
        trained("context-trees", "steps=600", "data.batch=32"),
    ),
    "context-tree": (
        "One context tree for all sequences. How many tokens tell the next one depends on the last ones.",
        context_tree,
    ),
    "lags": (
        "The next state follows the token two back, or at times the one three back. One layer learns both.",
        lags,
    ),
    "selective-lag": (
        "The lag is drawn once a sequence. A model has to find it before it can use it.",
        selective_lag,
    ),
    "triggers": (
        "A bigram, and a trigger after which each sequence repeats a token of its own. Two layers learn it.",
        lambda: of_source("trigger_bigram", layers=2),
    ),
    "context-conditioned": (
        "A chain whose steps are conditioned on what the context holds. One layer of attention learns it.",
        trained("context-conditioned-k3"),
    ),
    "graph-in-context": (
        "A walk on a graph whose nodes are named anew each sequence. The context tells the graph.",
        trained("graph-tracing", "steps=300"),
    ),
    "by-hand": (
        "An induction circuit set by hand. A decoy attends as sharply as its heads, and is not read.",
        by_hand,
    ),
    "trigram": (
        "A chain of order 2, set by hand. A head for each of two tokens, and a table of pairs in the MLP.",
        trigram,
    ),
    "imported": (
        "A model from elsewhere. One step is all there is, and no training curve.",
        imported,
    ),
    "untrained": (
        "A model at its start. No step was taken.",
        untrained,
    ),
}


def main(folder: Path) -> None:
    """Write the reports, the page and the file that list them, and the glossary."""
    folder.mkdir(parents=True, exist_ok=True)
    scores: dict[str, dict[str, Score]] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        made = list(pool.map(report, [folder] * len(RUNS), RUNS))
    rows = [row for row, _ in made]
    named = [name for name in registered() if load_probe(name).on_request]
    for of_probes in [own for _, own in made] + [scores_of(mm.probe(table(), named, sequences=SEQUENCES))]:
        add(scores, of_probes)
    missing = set(registered()) - set(scores)
    if missing:
        raise ValueError(f"no report has scores of {', '.join(sorted(missing))}, expected one of every probe")
    (folder / "gallery.md").write_text(listed(rows))
    (folder / "index.html").write_text(index(rows))
    (folder / "gallery.json").write_text(json.dumps({"runs": rows}, indent=1, ensure_ascii=False) + "\n")
    (folder / "glossary.md").write_text(glossary(scores))


def report(folder: Path, name: str) -> tuple[dict[str, Any], Scores]:
    """One run's report and certificate in the folder: its row of the list, and its scores by probe."""
    said, made = RUNS[name]
    run = made()
    kept = np.linspace(0, run.n_steps - 1, min(STEPS, run.n_steps)).round().astype(int)
    result = mm.probe(run, steps=run.steps[kept].tolist(), sequences=SEQUENCES)
    result.metadata["name"] = name
    result.report(folder / f"{name}.html")
    summary = result.summary()
    told = {key: summary[key] for key in ("badge", "headline")}
    row = {"name": name, "said": said, "report": f"{name}.html", "source": run.source.title(), **told}
    return row | {"certificate": certificate(run, folder, name)}, scores_of(result)


def scores_of(result: mm.Result) -> Scores:
    """The scores of all probes that answered."""
    return {probe: outcome.scores for probe, outcome in result.outcomes.items()}


def certificate(run: mm.Run, folder: Path, name: str) -> dict[str, Any]:
    """The certificate of a run's last step as data, with the file of its proof where there is a bound."""
    found = certify(run, seconds=SECONDS)
    data: dict[str, Any] = {"program": found.program.name, "tier": found.tier, "why": found.why}
    data |= {"worst_kl": found.worst_kl, "worst_seen": found.seen.nats, "proof": None}
    if found.worst_kl is not None:
        data["proof"] = f"{name}.proof.json"
        save_proof(proof_of(found, int(run.steps[-1])), folder / data["proof"])
    data["sentences"] = sentences(found)
    return data


HEAD = "Twenty-eight runs, each with a report and a certificate. A report is one file that opens anywhere."


def listed(rows: list[dict[str, Any]]) -> str:
    """The page of the guide that lists the runs."""
    blocks = [f"# Gallery\n\n{HEAD} [gallery.json](gallery.json) has the list as data.\n"]
    for row in rows:
        proof = row["certificate"]["proof"]
        more = f" ([its proof]({proof}))" if proof else ""
        badge = f"*{row['badge']}*: " if row["badge"] else ""
        blocks.append(
            f"## {row['name']}\n\n{row['said']}\n\n"
            f"- [Report]({row['report']}): {badge}{_text(row['headline'])}\n"
            f"- Certificate: {_text(' '.join(row['certificate']['sentences']))}{more}\n"
        )
    return "\n".join(blocks)


def index(rows: list[dict[str, Any]]) -> str:
    """The same as one HTML page, for a folder without the guide."""
    parts = []
    for row in rows:
        bound = " ".join(row["certificate"]["sentences"])
        proof = row["certificate"]["proof"]
        more = f' <a href="{proof}">Its proof</a>' if proof else ""
        words = [row["badge"] or "undecided", row["headline"], row["said"], bound]
        badge, headline, said, bound = map(html.escape, words)
        parts.append(
            f"<h2>{row['name']}</h2><p>{said}</p>"
            f'<p><a href="{row["report"]}">Report</a>: <b>{badge}</b>: {headline}</p><p>{bound}{more}</p>'
        )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Gallery · mechmarkov</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body { max-width: 46rem; margin: 2rem auto; font: 1rem/1.5 sans-serif }</style>"
        f'<h1>Gallery</h1><p>{HEAD} <a href="gallery.json">The list as data</a>.</p>{"".join(parts)}</html>\n'
    )


def add(scores: dict[str, dict[str, Score]], of_probes: Scores) -> None:
    """Note the scores of a run, those with a null before those without."""
    for probe, own in of_probes.items():
        for key, score in own.items():
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
