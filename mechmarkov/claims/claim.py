"""One finding of a probe as data: every sentence, badge, tile and file about a result is made of claims.

A claim says that a subject stands in a relation to an object, how sure that is, by which kind of evidence,
and for which states, positions and steps. Probes return claims and write no English
(`mechmarkov.report.words` does); `mechmarkov.claims.arbiter` makes the claims of a result consistent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from mechmarkov.utils.errors import choice_of
from mechmarkov.utils.text import first_of, format_number, shown

MOST_ENDS = 3  # of an interval, or a null
MAX_PLACES = 3  # that one line names

Status = Literal["shown", "excluded", "open", "does not apply"]
# From the weakest: weights say what a part could do, recordings what it does on sequences, interventions what
# depends on it; `law` is an expectation under the exact law, or theory.
Evidence = Literal["weights", "recording", "intervention", "law"]

ARROW = "→"  # between the two states of a pair, the earlier one first
MODEL = "model"  # the subject of what is said of the whole
# Names of subjects and objects that claims and sentences share.
TABLES = "tables read from the weights"
RISE = "rise of the learning coefficient"
COPIES = "copies of the current token"
ALIKE = "tokens with the same parent"
VALUES = ("value", "interval", "null")  # of a claim

# Every relation and its definition: `S` is the subject, `O` the object, `v` the value with its interval.
RELATIONS = {
    "imitates": "S predicts like the law O: KL(O ‖ S) is v nats, under 0.01 or a tenth of the next law's",
    "is_closest_to": "of all exact laws, O (several where they coincide or tie) is the nearest to S, v nats",
    "tempers": "predictions of S are the law O at temperature v, or one a state: a tenth of KL is left",
    "opposes": "predictions of S are the law O at temperature v below 0: its likely states are unlikely",
    "reaches": "S is v nats above the loss of O, the best exact law, at most a tenth of what the unigram is",
    "is_on_the_way_to": "S has taken the share v of the way from the unigram's expected loss to O's",
    "is_right": "S predicts the next state right with probability v; O: what is the best possible",
    "fails_at": "S is clearly v nats away from the law O in these states or positions, though near elsewhere",
    "attends_to": "head S gives the token O the share v of its attention, most of it",
    "attends_evenly": "no head of S tells one token from another: attentions differ by v at most",
    "attends_by": "head S chooses its keys by O (lag classes, tokens), which explain the share v",
    "matches": "the value circuit of S has the target O of the loss in its weights: v is its cosine or slope",
    "is_induction_head": "editing a key's predecessor moves the attention of S to it, by v of an ideal head",
    "feeds": "cutting S from the keys (queries, values) of O leaves the share v of O's induction score",
    "carries": "without the path S, KL from the law O rises by v nats",
    "is_needed": "with the output of S at its mean the loss rises by v nats",
    "is_needed_most": "no other part or group is worth more than S, v nats, but for parts that cancel",
    "is_relied_on": "with the output of S from another sequence the loss on scores rises by v nats",
    "repairs": "later parts make up v nats of what S writes, once S is cut from the logits only",
    "stands_in_for": "S and O together are worth v nats more than one by one",
    "follows": "predictions of S follow another parent, put in its place, in the share v of cases",
    "uses_order": "shuffling all but the last token costs S v nats at the last prediction",
    "stores": "the parts S, and no smaller set, hold the law O: their share of it is v",
    "holds_share": "part S holds the share v of what all parts together bring the model nearer to the law O",
    "works_against": "S takes the share v away from what the other parts hold of the law O",
    "cancels": "parts S cancel: together they hold the share v of the law O, or are worth v nats",
    "is_trapped_by": "O lets no gradient tell one state from another, now or at any later step",
    "is_at": "S is at a point of the kind O: its smallest Hessian eigenvalue is v",
    "moves": "S is at no stationary point: a step lowers the loss by v",
    "leaves_by": "S leaves the saddle by step v",
    "is_left_with": "given O, the share v of measured cases like S went on to learn",
    "lies_in": "the canonical coordinates of S lie in the basin of O",
    "came_by": "S passed halfway to O between the interval's steps; v is the first kept step past it",
    "came_before": "S clearly passed halfway to what it came to before O did",
    "was_lost": "S is clearly no longer there at the last probed step",
    "passed": "S was nearest to the law O from one step to another, by KL; v is the first",
    "explains": "the program S leaves all but the share v of the model's predictions unexplained",
    "carries_belief": "the belief over O is read linearly from the stream S with R² v, beyond what tokens",
    "reads_part": "the belief over the part O of what is hidden is read from the stream S on, with R² v",
    "follows_belief": "predictions of S follow a belief that is forced: KL to its law is v nats",
    "recovers": "of the edges of the graph O, head S has v",
    "has_learning_coefficient": "the local learning coefficient of S is v",
    "is_bounded": "on every sequence KL from the program O to S is at most v nats; the interval begins at "
    "the largest that was seen",
    "measures": "S has the quantity O with the value v (for probes whose finding is one number)",
}  # fmt: skip


@dataclass(frozen=True)
class Where:
    """For which states, positions, steps and pairs a claim holds; empty means for all.

    Attributes:
        states: Names of the states that the prediction follows.
        positions: Positions whose output is the prediction, from 0.
        steps: Training steps.
        pairs: Names of the last two states, the earlier first.

    Example:
        >>> Where(states=("0", "2")).positions  # at all positions
        ()
    """

    states: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Condition:
    """A premise that was checked, or a number that a claim stands next to.

    Attributes:
        name: What was checked, one of `mechmarkov.report.words.conditions.CONDITIONS`.
        holds: The outcome; None where it is open.
        value: The number, where there is one.
        unit: The unit of the number.
        words: Names that the condition is about, such as a predictor.
    """

    name: str
    holds: bool | None = True
    value: float | None = None
    unit: str = ""
    words: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Returns the premise as plain JSON data."""
        value = _finite("value", self.value)
        data: dict[str, Any] = {"name": self.name, "holds": None if self.holds is None else bool(self.holds)}
        data |= {} if value is None else {"value": value}
        data |= {"unit": self.unit} if self.unit else {}
        return data | ({"words": list(self.words)} if self.words else {})


@dataclass(frozen=True, repr=False)
class Claim:
    """One finding.

    Attributes:
        subject: Names of components, predictors or events, or `MODEL`; several if said of them together.
        relation: One of `RELATIONS`.
        object: Names, likewise.
        value: The number that decides, None where there is none.
        interval: Its 95 % interval.
        null: Its value by chance, or (low, middle, high) over fresh models.
        unit: The unit of the value.
        status: Whether the relation is shown to hold, shown not to hold, left open, or has no meaning here.
        evidence: By what kind of measurement.
        where: For which states, positions and steps.
        because: Premises that were checked, and numbers next to it.
        against: The claim that made this one open.
        probe: Who says it.

    Raises:
        ValueError: An unknown relation, status or kind of evidence.
        TypeError: A subject or object that is not a tuple of texts.

    Example:
        >>> Claim(("L0H0",), "attends_to", ("parent",), value=0.99, unit="probability").is_shown
        True
    """

    subject: tuple[str, ...]
    relation: str
    object: tuple[str, ...] = ()
    value: float | None = None
    interval: tuple[float, float] | None = None
    null: float | tuple[float, float, float] | None = None
    unit: str = ""
    status: Status = "shown"
    evidence: Evidence = "recording"
    where: Where = Where()
    because: tuple[Condition, ...] = ()
    against: "Claim | None" = None
    probe: str = ""

    def __post_init__(self) -> None:
        """Plain, finite values only; a number that is not finite is not a value."""
        for name, known in (
            ("relation", tuple(RELATIONS)),
            ("status", get_args(Status)),
            ("evidence", get_args(Evidence)),
        ):
            if not isinstance(given := getattr(self, name), str) or given not in known:
                raise ValueError(f"{name} is {shown(given)}, expected one of {', '.join(known)}")
        for name in ("subject", "object"):
            names = getattr(self, name)
            if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
                raise TypeError(f"{name} is {shown(names)}, expected a tuple of texts")
        object.__setattr__(self, "value", _finite("value", self.value))
        if self.interval is not None:
            object.__setattr__(self, "interval", _ends("interval", self.interval))
        null = _ends("null", self.null) if isinstance(self.null, tuple) else _finite("null", self.null)
        object.__setattr__(self, "null", null)

    @property
    def is_shown(self) -> bool:
        """Returns whether the relation is shown to hold."""
        return self.status == "shown"

    @property
    def is_everywhere(self) -> bool:
        """Returns whether it is said of all states, positions and pairs."""
        return not (self.where.states or self.where.positions or self.where.pairs)

    def condition(self, name: str) -> Condition | None:
        """The premise of that name, or None."""
        return next((premise for premise in self.because if premise.name == name), None)

    def holds(self, name: str) -> bool:
        """Returns whether the premise of that name is there and holds."""
        premise = self.condition(name)
        return premise is not None and bool(premise.holds)

    def number(self, name: str) -> float:
        """The number of the premise of that name; 0 where there is none."""
        premise = self.condition(name)
        return 0.0 if premise is None or premise.value is None else premise.value

    def in_short(self) -> str:
        """Status, relation and number in one line, in the names of the vocabulary.

        Example:
            >>> Claim(("L0H0",), "attends_to", ("parent",), 0.98, unit="probability").in_short()
            'shown: L0H0 attends_to parent (0.98 probability)'
        """
        number = "" if self.value is None else f" ({format_number(self.value)} {self.unit}".rstrip() + ")"
        places = {"states": self.where.states, "positions": [str(at) for at in self.where.positions]}
        places |= {"pairs": [" ".join(pair) for pair in self.where.pairs]}
        where = "".join(f" at {name} {first_of(some, MAX_PLACES)}" for name, some in places.items() if some)
        return " ".join([f"{self.status}:", *self.subject, self.relation, *self.object]) + number + where

    def __repr__(self) -> str:
        """The claim in one line; `to_data()` has its premises."""
        return f"Claim({self.in_short()}, said by {self.probe or 'nobody'})"

    def to_data(self) -> dict[str, Any]:
        """Returns the claim as plain JSON data (the schema of `summary.json`), without what is empty."""
        data: dict[str, Any] = {"subject": list(self.subject), "relation": self.relation}
        data |= {"object": list(self.object)} if self.object else {}
        data |= {name: _plain(value) for name in VALUES if (value := getattr(self, name)) is not None}
        data |= {"unit": self.unit} if self.unit else {}
        data |= {"status": self.status, "evidence": self.evidence, "probe": self.probe}
        where = {name: [*map(_plain, places)] for name, places in asdict(self.where).items() if places}
        data |= {"where": where} if where else {}
        if self.because:
            data["because"] = [condition.to_data() for condition in self.because]
        if self.against is not None:
            names = ("probe", "relation", "subject", "object")
            data["against"] = {name: _plain(getattr(self.against, name)) for name in names}
        return data


@dataclass(frozen=True)
class Claims(Sequence[Claim]):
    """Claims that can be filtered; a sequence."""

    claims: tuple[Claim, ...] = field(default=())

    def __getitem__(self, index: Any) -> Any:
        """One claim, or the claims of a slice."""
        return Claims(self.claims[index]) if isinstance(index, slice) else self.claims[index]

    def __len__(self) -> int:
        """Returns how many there are."""
        return len(self.claims)

    def everywhere(self) -> "Claims":
        """Returns the claims that are said of all states and positions."""
        return Claims(tuple(claim for claim in self.claims if claim.is_everywhere))

    def where(
        self,
        relation: str | None = None,
        *,
        subject: str | None = None,
        object: str | None = None,  # noqa: A002 - the claim's own word
        status: Status | None = None,
        probe: str | None = None,
    ) -> "Claims":
        """Returns the claims that have this relation, name this subject and object, this status and probe.

        Raises:
            ValueError: No relation or status has that name, or what is given is not a name.
        """
        if relation is not None and (not isinstance(relation, str) or relation not in RELATIONS):
            raise ValueError(f"relation is {shown(relation)}, expected one of {', '.join(RELATIONS)}")
        if status is not None:
            choice_of("status", status, get_args(Status))
        for called, name in (("subject", subject), ("object", object), ("probe", probe)):
            if name is not None and not isinstance(name, str):
                raise ValueError(f"{called} is {shown(name)}, expected a name")
        return Claims(
            tuple(
                claim
                for claim in self.claims
                if (relation is None or claim.relation == relation)
                and (subject is None or subject in claim.subject)
                and (object is None or object in claim.object)
                and (status is None or claim.status == status)
                and (probe is None or claim.probe == probe)
            )
        )

    def to_dataframe(self) -> pd.DataFrame:
        """Returns the claims as a table, a row each; names are tuples."""
        columns = ("probe", "subject", "relation", "object", "status", *VALUES, "unit", "evidence")
        rows = [{name: getattr(claim, name) for name in columns} for claim in self.claims]
        return pd.DataFrame(rows, columns=[*columns])

    def __repr__(self) -> str:
        """One line per claim, and how they are chosen."""
        then = "claims.where(status='shown'), claims.first('attends_to'), claims.to_dataframe()"
        return "\n  ".join([f"Claims({len(self)})", *(one.in_short() for one in self.claims), then])

    def first(self, relation: str, **given: Any) -> Claim | None:
        """Returns the first claim that `where` would return, or None."""
        chosen = self.where(relation, **given)
        return chosen[0] if chosen else None


def said_by(probe: str, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Returns the claims with the name of the probe that makes them."""
    return tuple(replace(claim, probe=probe) for claim in claims)


def decided(
    interval: tuple[float, float] | None, limit: float, value: float, *, above: bool = True
) -> Status:
    """Returns the status of "the value is above the limit" (below, if not `above`) by its interval.

    Example:
        >>> decided((0.2, 0.4), 0.1, 0.3), decided((0.0, 0.4), 0.1, 0.3), decided(None, 0.1, 0.05)
        ('shown', 'open', 'excluded')
    """
    low, high = interval if interval is not None else (value, value)
    if not (np.isfinite(low) and np.isfinite(high)):
        return "open"
    if above:
        return "shown" if low > limit else "excluded" if high <= limit else "open"
    return "shown" if high < limit else "excluded" if low >= limit else "open"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _finite(name: str, value: Any) -> float | None:
    """A number as a float; None where it is not finite."""
    try:
        number = np.nan if value is None else float(value)
    except OverflowError:  # an integer beyond floats
        return None
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        raise TypeError(f"{name} is {shown(value)}, expected a number or None") from None
    return number if np.isfinite(number) else None


def _ends(name: str, values: Any) -> tuple[float, ...] | None:
    """Numbers as floats; None where one is not finite."""
    try:
        few = tuple(islice(values, MOST_ENDS))  # of what may have no end
    except (TypeError, RuntimeError, NotImplementedError):
        raise TypeError(f"{name} is {shown(values)}, expected a tuple of numbers") from None
    ends = [_finite(name, value) for value in few]
    return tuple(end for end in ends if end is not None) if None not in ends else None
