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
    """Holds what is counted of a run: `has` is None where something is undecided, and `badge` empty."""

    setting: str
    badge: str
    has: Mapping[str, bool | None]


def setting_of(run: Mapping[str, Any]) -> str:
    """Returns what runs share that differ in their seed only.

    >>> setting_of({"source": "a chain", "model": "1 layer", "seed": 3})
    'a chain · 1 layer'
    """
    return " · ".join(filter(None, (run.get(name) for name in ("source", "model", "objective"))))


def counted_run(result: Findings, badge: Badge | None) -> CountedRun:
    """Returns what is counted of a result, with the badge of its first screen."""
    return CountedRun(setting_of(result.metadata), badge or "", formed(result.claims, list(result.outcomes)))


def shares_of(runs: Sequence[CountedRun]) -> list[RunShare]:
    """Returns which share of the seeds of a setting has a badge, or formed something, with its interval.

    A setting of one run has none. What is undecided in all its runs is left out, and so is a token that
    no head reads: it need not be one of the source's.
    """
    settings: dict[str, list[CountedRun]] = {}
    for run in runs:
        settings.setdefault(run.setting, []).append(run)
    return [
        share
        for setting, of_setting in settings.items()
        if len(of_setting) > 1
        for what, has in _in_common(of_setting).items()
        if (share := _share(setting, what, has)) is not None
    ]


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
