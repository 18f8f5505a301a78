"""Answers of baselines: coins, our own probes, and two published recipes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from mechmarkov.bench.case import case_of
from mechmarkov.bench.method import load_method
from mechmarkov.claims.claim import Claim, Claims, Where
from mechmarkov.probe_run import probe
from mechmarkov.quiz.answers import Answer
from mechmarkov.quiz.questions import MOST, NATS, Question
from mechmarkov.runs.run import Run

Baseline = Literal["probe", "random", "acdc", "eap-ig"]
BASELINES: tuple[str, ...] = get_args(Baseline)
PROBES = ("ablation", "attention", "behaviour", "induction")
OPEN = Answer("open")


def answers_by(
    baseline: Baseline, run: Run, asked: Sequence[Question], seed: int = 0
) -> dict[Question, Answer]:
    """The answers of a baseline about one run.

    Args:
        baseline: `random`, whose statuses are coins; `probe`, the claims of `ablation`, `attention`,
            `behaviour` and `induction`; `acdc` (Conmy et al. 2023, arXiv 2304.14997), whose threshold is
            0.01 nats of KL; or `eap-ig` (Hanna et al. 2024, arXiv 2403.17806), of which edges above 0.01
            nats of KL are taken. The last two say which parts are needed and which paths carry.
        run: The hidden model.
        asked: The questions about it.
        seed: The seed of the coins, or of the sequences of a published recipe.
    """
    by: dict[str, Callable[[], dict[Question, Answer]]] = {
        "random": lambda: _coins(asked, seed),
        "probe": lambda: _by_claims(probe(run, [*PROBES], progress=False).claims, asked),
        "acdc": lambda: _by_edges(_edges("acdc", run, seed), asked),
        "eap-ig": lambda: _by_edges(_edges("eap-ig", run, seed), asked),
    }
    return by[baseline]()


def _coins(asked: Sequence[Question], seed: int) -> dict[Question, Answer]:
    heads = np.random.default_rng(seed).random(len(asked)) < 0.5
    pairs = zip(asked, heads, strict=True)
    return {question: Answer("shown" if is_head else "excluded") for question, is_head in pairs}


def _by_claims(claims: Claims, asked: Sequence[Question]) -> dict[Question, Answer]:
    """The claim about each question that is made of all states and positions.

    A head that gives one token more than half of its attention gives no other as much.
    """
    answers = {}
    for question in asked:
        about = [
            claim
            for claim in claims
            if claim.relation == question.relation
            and set(claim.subject) == set(question.subject)
            and claim.where == Where()
        ]
        exact = [claim for claim in about if not question.object or {*question.object} & {*claim.object}]
        answers[question] = _answer(exact[0]) if exact else OPEN
        settled = [claim for claim in about if claim.is_shown and (claim.value or 0.0) > MOST]
        if question.relation == "attends_to" and not exact and settled:
            answers[question] = Answer("excluded")
    return answers


def _answer(claim: Claim) -> Answer:
    return Answer(claim.status, claim.value)


def _edges(method: str, run: Run, seed: int) -> Mapping[tuple[str, str], float]:
    """Claims of a method about every path of a run, under KL, with other sequences for the corrupt ones."""
    case = case_of("", "", run.model(), run.source, seed=seed, pairs="resampled", objective=run.objective)
    claims = load_method(method).claims(case.under("kl"))
    return {case.edges[name]: value for name, value in claims.items()}


def _by_edges(edges: Mapping[tuple[str, str], float], asked: Sequence[Question]) -> dict[Question, Answer]:
    """A part is needed, and a path carries, where an edge of it is in the circuit."""
    circuit = [
        (sender, receiver.rpartition(".")[0]) for (sender, receiver), nats in edges.items() if nats > NATS
    ]
    senders = {sender for sender, _ in circuit}
    answers = dict.fromkeys(asked, OPEN)
    for question in asked:
        match question.relation:
            case "is_needed":
                answers[question] = Answer("shown" if question.subject[0] in senders else "excluded")
            case "carries":
                answers[question] = Answer("shown" if question.subject in circuit else "excluded")
    return answers
