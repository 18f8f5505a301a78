"""What differs between results, in one sentence: which runs learned, which are trapped, how many form a circuit."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from mechmarkov.claims.claim import Claims
from mechmarkov.models.components import head_index
from mechmarkov.report.first_screen.verdict import Badge
from mechmarkov.report.words.names import law, parts
from mechmarkov.report.words.phrases.laws import but_not, sureness
from mechmarkov.report.words.title import MAX_TITLE_WORDS, NO_PARTS, way_come
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
        told = [f"{_runs(names, total)} {did}" for did, names in groups.items()]
        return f"{'; '.join(told)}."
    (did,) = groups
    if all(word == "another law" and not _has(claims[name]) for name, word in badges.items()):
        none = "Neither run" if total == 2 else f"None of {total} runs"
        return f"{none} learned {_best(next(iter(claims.values())))}."
    return f"{'Both' if total == 2 else f'All {total}'} runs {did}{_through([*named.values()])}."


def _through(named: Sequence[tuple[str, ...]]) -> str:
    """Returns whether runs have it in the same parts, or in different ones; "" where some are of one kind.

    Heads of a layer may be exchanged, which changes no model: their names do not tell them apart. Of a run
    whose first screen names no part nothing can be said.
    """
    if () in named:
        return ""
    if len(set(named)) == 1:
        return f", through the same parts ({parts(named[0])})"
    kinds = [{head[0] if (head := head_index(name)) else name for name in names} for names in named]
    apart = all(not one & other for one, other in combinations(kinds, 2))
    return ", through different parts" if apart else ""


def settings(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a sentence on what the runs were given that differs; "" where that is the same.

    Args:
        runs: What each run is: `source`, `model`, `objective` and `seed` for people, by its name, and
            `fingerprints` of them, which differ where titles are the same.
    """
    told = []
    for field in ("source", "model", "objective", "training", "seed"):
        values = list(dict.fromkeys(str(run[field]) for run in runs.values() if run.get(field) is not None))
        hashes = {run.get("fingerprints", {}).get(field) for run in runs.values()} - {None}
        if len(values) > 1:
            shown = [clean(value) for value in values[:MAX_RUNS]]
            more = [f"{len(values) - MAX_RUNS} more"] * (len(values) > MAX_RUNS)
            told.append(f"{field} ({'; '.join(shown + more)})")
        elif len(hashes) > 1:
            told.append(f"{field} (each is “{clean(values[0])}”)" if values else field)
    return f" They differ in {listed(told)}." if told else ""


def _runs(names: list[str], total: int) -> str:
    return listed(names) if len(names) <= MAX_RUNS else f"{len(names)} of {total} runs"


def _best(claims: Claims) -> str:
    reaches = claims.first("reaches", probe="behaviour")
    return "the best law" if reaches is None else law(reaches.object[0])


def _learned(claims: Claims) -> str:
    """Returns what a run learned that is as good as the best, as its title says."""
    reaches, closest, fails = (
        claims.first(name, probe="behaviour") for name in ("reaches", "is_closest_to", "fails_at")
    )
    if reaches is not None and not reaches.is_shown:
        return f"learned {_best(claims)}'s circuit"
    learned = f"learned {_best(claims) if closest is None else law(closest.object[0])}"
    few = None if fails is None else fails.condition("share of places")
    if fails is None or (few is not None and not few.holds):
        return learned
    return but_not(learned, fails, MAX_TITLE_WORDS)


def _did(word: Badge | None, claims: Claims) -> str:
    """Returns what a run did, in a few words that fit one run and several."""
    best = _best(claims)
    if word == "solved":
        return _learned(claims)
    if word in ("partly", "another law") and (law_of := _has(claims)):
        return law_of
    if word == "partly":
        return f"came {way_come(claims)} to {best}"
    if word is None:
        return _undecided(claims)
    known: dict[Badge, str] = {
        "trapped": "stayed trapped by symmetry",
        "at the unigram": "ended at the unigram",
        "another law": f"did not learn {best}",
        "untrained": "made no step",
    }
    return known[word]


def _undecided(claims: Claims) -> str:
    """Returns what a run without a badge did: its loss is the unigram's too, or may be."""
    reaches, closest = (claims.first(name, probe="behaviour") for name in ("reaches", "is_closest_to"))
    if reaches is None:
        return "cannot be judged"
    if reaches.is_shown:
        return f"ended at {_best(claims)}, which hardly differs from the unigram"
    if closest is not None and closest.is_shown and closest.object[0] not in NO_PARTS:
        return f"ended closest to {law(closest.object[0])}, perhaps with the unigram's loss"
    return "cannot be told from the unigram"


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
    did = "ended at" if closest.object[0] in NO_PARTS else "ended with"  # as the best law is "learned"
    return f"{did} {law(closest.object[0])}" if like is not None and not is_best else ""
