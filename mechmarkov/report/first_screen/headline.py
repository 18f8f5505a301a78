"""The first screen's words at each step: badge, title and four tiles, made of scores alone."""

from dataclasses import dataclass, replace

from mechmarkov.probing.outcome import Findings
from mechmarkov.probing.preconditions import in_words
from mechmarkov.report.first_screen.readings import (
    effects,
    evidence_of,
    homes_of,
    induction_circuit,
    is_on_scores,
    named_heads,
    needed_most,
    value_of,
)
from mechmarkov.report.first_screen.tiles import MAX_NAMED, Tile, came, feed, learned, lives, named, stuck
from mechmarkov.report.first_screen.verdict import Badge, Evidence, badge, title
from mechmarkov.utils.text import listed

# Probes with scores at each step; the others tell of the last step, `dynamics` of the whole run.
AT_EVERY_STEP = ("behaviour", "attention", "alignment", "induction", "ablation", "storage", "symmetry")
CIRCUIT_PROBES = ("alignment", "attention")  # that judge whether a circuit is exact


@dataclass(frozen=True)
class Headline:
    """What the first screen says at one step.

    Attributes:
        step: Which.
        badge: One word; None where it is undecided or nothing was measured that decides it.
        title: The verdict, or the run's title where there is none.
        tiles: The answers to the four questions.
        note: What the badge was decided without.
        is_judged: Whether the title is a verdict.
    """

    step: int
    badge: Badge | None
    title: str
    tiles: list[Tile]
    note: str = ""
    is_judged: bool = True


def at_step(result: Findings, i: int) -> Findings:
    """The findings of one step, by its index; of probes that tell of other steps, only `dynamics`."""
    if i == len(result.steps) - 1:
        return replace(result, steps=result.steps[-1:])
    outcomes = {}
    for name, outcome in result.outcomes.items():
        if name == "dynamics":
            outcomes[name] = outcome
        elif name in AT_EVERY_STEP and outcome.data.sizes.get("step") == len(result.steps):
            data = outcome.data.isel(step=[i])
            outcomes[name] = replace(outcome, data=data, scores=outcome.probe.scores(data, outcome.null))
    return replace(result, steps=[result.steps[i]], outcomes=outcomes)


def headline(result: Findings) -> Headline:
    """Badge, title and tiles of the findings at one step; no tile for what no probe tells.

    >>> import mechmarkov as mm
    >>> headline(mm.Result({"title": "A run"}, [0], {})).title
    'A run'
    """
    evidence = evidence_of(result)
    word, said, note = None, str(result.run.get("title", "A run")), ""
    if evidence is not None:
        attrs, word = result.outcomes["behaviour"].data.attrs, badge(evidence)
        law = str(attrs.get("best", attrs["bigram"]))
        if word == "solved":  # of laws that are nearly the same, the one that the tiles name
            law = str(value_of(result, "behaviour", "nearest_predictor") or law)
        said = title(word, evidence, in_words(law), _how(result, is_bigram=law == attrs["bigram"]))
        note = _not_judged(result, word, evidence)
    tiles = [learned(result), lives(result), came(result), stuck(result, word, evidence)]
    step = result.steps[-1] if result.steps else 0
    return Headline(step, word, said, [tile for tile in tiles if tile], note, evidence is not None)


def _not_judged(result: Findings, word: Badge | None, evidence: Evidence) -> str:
    """That a circuit was not judged which, if exact, would change the badge; empty where it was or would not.

    Where a probe does not apply, there is no such circuit.
    """
    missing = [name for name in CIRCUIT_PROBES if name not in {*result.outcomes, *result.skipped}]
    exact = replace(evidence, kernel_cosine=1.0, parent_score=1.0)
    if not missing or not is_on_scores(result.outcomes["behaviour"]) or badge(exact) == word:
        return ""
    failed = [name for name in missing if name in result.failed]
    why = [f"{name} failed" for name in failed]
    if unasked := [name for name in missing if name not in failed]:
        why.append(f"add {listed(unasked)} to the probes")
    said = "The loss is on scores, where an exact circuit counts as solved. The circuit was not judged: "
    return f"{said}{', '.join(why)}."


def _how(result: Findings, is_bigram: bool) -> str:
    if (circuit := induction_circuit(result)) is not None:
        feeding, heads = circuit.feeders, circuit.heads
        readers = f"induction head{'s' * (len(heads) > 1)} {listed(heads)}"
        if len(heads) > 1 and len(feeding) + len(heads) > MAX_NAMED:
            readers = f"{len(heads)} induction heads"
        return f"{feed(feeding, MAX_NAMED - 1)} {readers}" if feeding else readers
    names = named_heads(result)
    if not names:
        return ""
    homes = homes_of(result)
    # What has a home is the bigram. Where the title is about another law, the rest of that is elsewhere.
    it = "it is" if is_bigram else "bigram"
    if len(homes) > 1 or (homes and not is_bigram):
        return f"{it} in {listed(homes) if len(homes) <= MAX_NAMED else f'{len(homes)} parts'}"
    most = needed_most(result)
    if not homes and len(most) > 1:
        return f"{named(sorted(most))} are needed most"
    if value_of(result, "attention", "parent_head") != names[0]:
        return f"it is in {names[0]}" if homes else f"{names[0]} is needed most"
    return f"{names[0]} {'reads' if homes or effects(result) else 'attends to'} the parent"
