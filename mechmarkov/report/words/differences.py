"""What differs between results, in one sentence: which runs learned, which are trapped, how many form a circuit."""

from collections.abc import Mapping
from typing import Any

from mechmarkov.claims.claim import Claims
from mechmarkov.report.first_screen.verdict import Badge, progress
from mechmarkov.report.words.names import bare_law, law, share
from mechmarkov.report.words.phrases.laws import but_not, sureness
from mechmarkov.report.words.title import MAX_TITLE_WORDS, NO_PARTS
from mechmarkov.utils.text import clean, listed

MAX_RUNS = 4  # named; of more it is said how many


def differences(
    badges: Mapping[str, Badge | None], claims: Mapping[str, Claims], named: Mapping[str, tuple[str, ...]]
) -> str:
    """Returns one sentence on how the runs differ, or that they do not.

    Args:
        badges: The badge of each run, by its name.
        claims: Likewise.
        named: The components that each run's first screen names.
    """
    groups: dict[str, list[str]] = {}
    for name, word in badges.items():
        groups.setdefault(_did(word, claims[name]), []).append(name)
    total = len(badges)
    if len(groups) > 1:
        parts = [f"{_runs(names, total)} {did}" for did, names in groups.items()]
        return f"{'; '.join(parts)}."
    (did,) = groups
    circuits = {parts for parts in named.values() if parts}
    same = f", through the same parts ({listed(list(next(iter(circuits))))})" if len(circuits) == 1 else ""
    same = ", through different parts" if len(circuits) > 1 else same
    return f"{'Both' if total == 2 else f'All {total}'} runs {did}{same}."


def settings(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a sentence on what the runs were given that differs; "" where that is the same.

    Args:
        runs: What each run is: `source`, `model`, `objective` and `seed` for people, by its name.
    """
    told = []
    for field in ("source", "model", "objective", "seed"):
        values = list(dict.fromkeys(str(run[field]) for run in runs.values() if run.get(field) is not None))
        if len(values) > 1:
            shown = [clean(value) for value in values[:MAX_RUNS]]
            more = [f"{len(values) - MAX_RUNS} more"] * (len(values) > MAX_RUNS)
            told.append(f"{field} ({'; '.join(shown + more)})")
    return f" They differ in {listed(told)}." if told else ""


def _runs(names: list[str], total: int) -> str:
    return listed(names) if len(names) <= MAX_RUNS else f"{len(names)} of {total} runs"


def _did(word: Badge | None, claims: Claims) -> str:
    """Returns what a run did, in a few words that fit one run and several."""
    reaches = claims.first("reaches", probe="behaviour")
    best = "the best law" if reaches is None else f"the {bare_law(reaches.object[0])}"
    if word == "solved":
        whole = reaches is None or reaches.is_shown
        return f"learned {best}" if whole else f"learned {best}'s circuit"
    if word in ("partly", "another law") and (law_of := _has(claims)):
        return law_of
    if word == "partly":
        return f"came {share(progress(claims)[0])} of the way to {best}"
    known = {
        "trapped": "stayed trapped by symmetry",
        "at the unigram": "ended at the unigram",
        "another law": f"did not learn {best}",
        "untrained": "made no step",
    }
    return known.get(str(word), "cannot be judged")


def _has(claims: Claims) -> str:
    """Returns which law a run has, as its title says: at another temperature, at some places, or another one."""
    tempers, opposes, fails, closest = (
        claims.first(name, status="shown", probe="behaviour")
        for name in ("tempers", "opposes", "fails_at", "is_closest_to")
    )
    if tempers is not None:
        return f"ended with {law(tempers.object[0])}, but {sureness(tempers)}"
    if opposes is not None:
        return f"ended with the opposite of {law(opposes.object[0])}"
    if fails is not None and fails.object[0] not in NO_PARTS:
        return but_not(f"ended with {law(fails.object[0])}", fails, MAX_TITLE_WORDS)
    if closest is None:
        return ""
    like = claims.first("imitates", object=closest.object[0], status="shown", probe="behaviour")
    reaches = claims.first("reaches", probe="behaviour")
    is_best = reaches is not None and reaches.object[0] in closest.object
    did = "ended at" if closest.object[0] in NO_PARTS else "learned"
    return f"{did} {law(closest.object[0])}" if like is not None and not is_best else ""
