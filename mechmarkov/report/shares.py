"""Count runs that differ in their seed only: how many have a badge, or formed something."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from mechmarkov.probing.outcome import Findings
from mechmarkov.report.first_screen.verdict import Badge
from mechmarkov.report.words.forms import FORMS, formed, of_share
from mechmarkov.theory.bootstrap import wilson


@dataclass(frozen=True)
class RunShare:
    """Counts runs that differ in their seed only and have something in common.

    Attributes:
        setting: The source, model and objective of these runs.
        what: The badge, or what they have formed.
        hits: The number of runs that have it.
        of: The number of runs of which it is decided.
        undecided: The number of the others.
        interval: Wilson's 95 % interval of the share.
    """

    setting: str
    what: str
    hits: int
    of: int
    undecided: int
    interval: tuple[float, float]

    def __str__(self) -> str:
        """Returns it in words."""
        return of_share(self.what, self.hits, self.of, self.undecided, *self.interval)


@dataclass(frozen=True)
class CountedRun:
    """Holds what is counted of a run.

    Attributes:
        setting: The source, model and objective in words.
        badge: Its badge; empty where it is undecided.
        has: What it has formed; None where that is undecided.
        name: Its name on the page.
        key: The fingerprints of its settings and the step: settings in words may be equal where they differ.
        seed: Its seed, if it is known. One seed of one setting is one run, however often it is there.
    """

    setting: str
    badge: str
    has: Mapping[str, bool | None]
    name: str = ""
    key: tuple[str, ...] = ()
    seed: int | None = None


def setting_of(run: Mapping[str, Any]) -> str:
    """Returns what runs share that differ in their seed only.

    >>> setting_of({"source": "a chain", "model": "1 layer", "seed": 3})
    'a chain · 1 layer'
    """
    return " · ".join(filter(None, (run.get(name) for name in ("source", "model", "objective"))))


def key_of(fingerprints: Mapping[str, str], step: int | None) -> tuple[str, ...]:
    """Returns what tells runs of one setting in words apart.

    >>> key_of({"source": "4f", "model": "a0"}, 50)
    ('a0', '4f', '50')
    """
    return (*(fingerprints[name] for name in sorted(fingerprints)), *[str(step)] * (step is not None))


def counted_run(result: Findings, badge: Badge | None, name: str = "") -> CountedRun:
    """Returns what is counted of a result, with the badge of its first screen and its name on the page."""
    run, has = result.metadata, formed(result.claims, list(result.outcomes))
    key = key_of(run.get("fingerprints", {}), result.steps[-1] if result.steps else None)
    return CountedRun(setting_of(run), badge or "", has, name, key, run.get("seed"))


def shares_of(runs: Sequence[CountedRun]) -> list[RunShare]:
    """Returns which share of the seeds of a setting has a badge, or formed something, with its interval.

    A setting of one run has none. What is undecided in all its runs is left out, and so is a token that
    no head reads: it need not be one of the source's. A setting whose words another one has too is told with
    the name of its first run.
    """
    settings: dict[str, dict[tuple[str, ...], dict[str, CountedRun]]] = {}
    for i, run in enumerate(runs):
        which = f"run {i}" if run.seed is None else f"seed {run.seed}"
        settings.setdefault(run.setting, {}).setdefault(run.key, {}).setdefault(which, run)
    return [
        share
        for setting, by_key in settings.items()
        for of_setting in map(list, map(dict.values, by_key.values()))
        if len(of_setting) > 1
        for what, has in _in_common(of_setting).items()
        if (share := _share(_called(setting, of_setting[0], len(by_key)), what, has)) is not None
    ]


def _called(setting: str, first: CountedRun, settings: int) -> str:
    return f"{setting}, as {first.name}" if settings > 1 and first.name else setting


def told_shares(shares: Sequence[RunShare]) -> list[str]:
    """Returns a line a share, with its setting in front where there are several."""
    several = len({share.setting for share in shares}) > 1
    return [f"{share.setting}: {share}" if several else str(share) for share in shares]


def _in_common(runs: Sequence[CountedRun]) -> dict[str, list[bool | None]]:
    badges = [run.badge for run in runs]
    named = [badge for badge in get_args(Badge) if badge == "solved" or badge in badges]
    of_badges = {badge: [own == badge if own else None for own in badges] for badge in named}
    of_forms = {what: [run.has.get(what) for run in runs] for what in FORMS}
    return of_badges | {what: has for what, has in of_forms.items() if any(has) or not FORMS[what].object}


def _share(setting: str, what: str, has: Sequence[bool | None]) -> RunShare | None:
    known = [value for value in has if value is not None]
    if not known:
        return None
    hits, n = sum(known), len(known)
    return RunShare(setting, what, hits, n, len(has) - n, wilson(hits / n, n))
