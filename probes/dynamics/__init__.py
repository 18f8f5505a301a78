"""When did selection, the unigram and the bigram appear, and which came first?

Measures of progress run from 0 to 1, and an event is the first kept step at which one of them is above one
half. *Unigram*: how much nearer to the exact unigram the model is than the uniform law (KL in nats, as a
share). *Bigram*: the same from the unigram to the bigram. *Best*: the same to the best law, if one is known
that is better than both. *Selection*: the most attention any head gives to the parent, as a share of the
way from uniform attention to all of it. Where every sequence has a chain of its own also the halves of an
induction circuit: the best head's attention on the previous token, and its induction score as a share of an
ideal head's. Whoever has the bigram has the unigram, and whoever has the best law has both: a run that goes
straight to the bigram, and never predicts like the unigram, passes both at once.

An event lies between two kept steps. Its interval goes from the last kept step at which it clearly has not
happened to the first at which it clearly has, by the sampling error of its progress. What was not seen may
have happened all the same: it is open where the interval of its progress reaches above one half at any step.
An event is lost again where that interval is below one half at any later step. The error of selection is not
known, as attention is not measured by sequence. What is there at the first probed step was not seen to
come, and is never called first. Event times have no distribution over fresh models, which have not been
trained: what is said of these is how many of them have it already.
"""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.score import Score

from . import figures, measure
from .claims import claims, events_of, first_of, headline, may_have_come
from .measure import BEST, NO_ERROR
from .trajectory import EVENT_PROGRESS


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: an event needs a step before it and one after, so more than one."""
    if subject.axis == "step" and len(subject.coordinates) < 2:
        if subject.run.n_steps < 2:
            return "the run has kept one step: when things happened cannot be seen"
        return (
            "one step is probed, and when things happened needs more: --steps all, or steps='all' in Python"
        )
    return None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The event times by name, each with the two kept steps around it, and which event came first."""
    events, undecided = events_of(data), may_have_come(data)
    result: dict[str, Score] = {}
    for name in data["event"].values.tolist():
        error = "without a sampling error" if name in NO_ERROR else "with the sampling error of its progress"
        kind = f"the interval is the kept steps it lies between, {error}"
        if null is not None and f"no_{name}" not in data.attrs:
            have = null["progress"].sel(event=name).values > EVENT_PROGRESS
            kind = f"{have.sum()} of {have.size} fresh models have it; {kind}"
        if event := events.get(name):
            score = Score(event.step, "step", interval=(event.after, event.by), null_kind=kind)
        else:
            last = int(data["step"][-1])
            why = data.attrs.get(f"no_{name}", f"not in the probed steps, the last of which is {last}")
            if name in undecided:
                why = f"whether {CALLED.get(name, f'the {name}')} is halfway by step {last} is open"
            score = Score(None, "step", null_kind=kind, reason=why)
        result[f"t_{name}"] = score
    why = "none of the events is in the probed steps"
    if undecided:
        why = "nothing is clearly more than halfway in the probed steps"
    if events:
        why = f"what there is was there from step {int(data['step'][0])}, the first probed"
    first = first_of(events)
    result["first"] = Score(" and ".join(first), "") if first else Score(None, "", reason=why)
    return result


CALLED = {
    "selection": "selection",
    BEST: "the best law",
    "previous_token_head": "a previous-token head",
    "induction_head": "an induction head",
    "graph_head": "a head along the graph",
}


probe = Probe(
    name="dynamics",
    question="When did selection, the unigram and the bigram appear, and which came first?",
    cites="Phases: Edelman et al. 2024 (arXiv 2402.11004); gradients on plateaus: Varre et al. 2025 "
    "(arXiv 2508.12837)",
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures.draw,
    formula="progress to the bigram = 1 − KL(bigram ‖ model) / KL(bigram ‖ unigram)\n"
    "progress to the best law = 1 − KL(best ‖ model) / KL(best ‖ unigram)\n"
    "progress to the unigram = 1 − KL(unigram ‖ model) / KL(unigram ‖ uniform); of each the largest progress "
    "to a better law, where that is larger\n"
    "progress to selection = (parent score − uniform attention's) / (1 − uniform attention's)\n"
    "t = the first kept step at which that progress is above ½",
    formulas={
        "t_unigram": "first kept step with progress to the unigram above ½",
        "t_selection": "first kept step with a parent score more than halfway from uniform attention's to 1",
        "t_bigram": "first kept step with progress to the bigram above ½",
        "t_best": "the same of the best exact predictor, where that is neither unigram nor bigram",
        "t_previous_token_head": "where every sequence has a chain of its own, the first kept step with a "
        "head's "
        "previous-token score more than halfway from uniform attention's to 1",
        "t_induction_head": "likewise with a head's induction score above half of an ideal head's",
        "t_graph_head": "likewise with a head's attention on the parents of a graph of positions more than "
        "halfway from uniform attention's to 1",
        "first": "the earliest of these events",
    },
    after_others=True,
    with_bos=True,
)  # fmt: skip
