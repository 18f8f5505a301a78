"""Pretraining on the next words of a question, before its answers."""

import numpy as np
import plotly.graph_objects as go
import torch
import torch.nn.functional as F

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import style, titled
from experiments.harness import Measured
from experiments.random_walks.common import RECIPES
from mechmarkov.models.init import initialise

SEEDS = 32
KNOWN = 0.1  # nats at the second fruit, of which log 2 are a guess
LEARNED = "seeds that learned the second fruit from the words"
NOT_LEARNED = "seeds that did not"


def pretraining(quick: bool) -> Measured:
    """Task 2 of the fruit questions, from scratch and after the next words of the questions alone."""
    recipe = mm.load_recipe(RECIPES / "fruit-decoder.toml")
    seeds = (0, 4) if quick else range(SEEDS)  # quick: two of which the full run has solved one at least
    runs = {"only answers": mm.train(recipe, seeds=seeds)}
    starts = [_pretrained(recipe, seed, 300) for seed in seeds]
    runs["after next tokens"] = [
        mm.train(recipe, seed=seed, start=start) for seed, (start, _) in zip(seeds, starts, strict=True)
    ]
    solved = {name: np.array([_solved(run) for run in found]) for name, found in runs.items()}
    before, after = solved.values()
    knew = np.array([loss < KNOWN for _, loss in starts])
    how = (
        "one-layer decoder, width 32, N(0, 0.01²); 300 steps of AdamW 1e-2 on the next words of the "
        "question without its answer, then 300 of gradient descent, 0.02, on only answers; solved: "
        f"both sentences right, below 0.35 nats; learned: below {KNOWN} nats at the second fruit"
    )
    overall = (
        f"solved with only answers {share(int(before.sum()), len(before))}, after next tokens "
        f"{share(int(after.sum()), len(after))}"
    )
    findings = []
    for case, of_case in ((LEARNED, knew), (NOT_LEARNED, ~knew)):
        n, count = int(of_case.sum()), int((after & of_case).sum())
        if n:
            findings.append(
                Finding(
                    "pretraining",
                    f"{share(count, n)} of such seeds solved; of all seeds: {overall}",
                    holds(2 * count > n),
                    how,
                    "trained at another",
                    (count, n),
                    case=case,
                )
            )
    return Measured(findings, {"pretraining": _figure(runs)})


def _solved(run: mm.Run) -> bool:
    """Returns whether both sentences are right, by more than a draw."""
    accuracy, loss = _task(run)
    return accuracy == 1 and loss < 0.35


def _figure(runs: dict[str, list[mm.Run]]) -> go.Figure:
    figure = go.Figure()
    for i, (name, found) in enumerate(runs.items()):
        for run in found:
            figure.add_scatter(
                x=run.steps.tolist(),
                y=[_task(run, step)[1] for step in run.steps.tolist()],
                name=name,
                legendgroup=name,
                showlegend=run is found[0],
                line=style(i, width=1.5),
            )
    figure.add_hline(y=np.log(2), line_dash="dot", annotation_text="a draw between the fruits: log 2")
    x, y = "step of gradient descent on the answers", "cross-entropy of the answer (nats)"
    return titled(figure, "Task 2 of the fruit questions, a line a seed", x, y, yaxis_range=[0, 3])


def _pretrained(recipe: mm.Recipe, seed: int, steps: int) -> tuple[mm.Run, float]:
    """A decoder trained on the questions' next words, the answer left out, and its loss at the second fruit.

    `objective.read` knows all positions or the last alone, so that this one loop is written out.
    """
    decoder = mm.HookedDecoder(recipe.decoder_config)
    initialise(decoder, [seed], scheme=recipe.init.scheme, std=recipe.init.std)
    words = torch.tensor(np.array(recipe.source.sentences))[:, :-1]
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(decoder(words[:, :-1]).mT, words[:, 1:]).backward()
        optimiser.step()
    fruit = int((words[0] != words[1]).nonzero()[1])
    with torch.no_grad():
        loss = float(F.cross_entropy(decoder(words[:, :-1])[:, fruit - 1], words[:, fruit]))
    return mm.Run.from_model(decoder, source=recipe.source, objective=recipe.objective), loss


def _task(run: mm.Run, step: int = -1) -> tuple[float, float]:
    """Accuracy and cross-entropy of the answer on every sentence."""
    sentences = torch.tensor(np.array(run.source.sentences))
    with torch.no_grad():
        scores = run.model(step)(sentences[:, :-1])[:, -1]
    loss = F.cross_entropy(scores, sentences[:, -1])
    return float((scores.argmax(-1) == sentences[:, -1]).double().mean()), float(loss)
