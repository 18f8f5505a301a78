"""What the first screen reads from the findings: scores by name, the named circuit, the evidence, events."""

from dataclasses import dataclass

import numpy as np

from mechmarkov.probing.dataset import NORMAL_95, is_nearest, last_model
from mechmarkov.probing.outcome import Findings, Outcome
from mechmarkov.probing.score import Score, standing
from mechmarkov.report.first_screen.verdict import Evidence
from mechmarkov.utils.text import format_share

MIN_EFFECT_NATS = 0.01  # below, a path or a head is not part of a circuit

# A model this near to the best law, as a share of the way from the unigram, has learned it. Another law that
# is nearly the same may be nearer still.
MAX_ALIKE = 1e-3

EVENT_PROGRESS = 0.5
# What has happened when a measure of progress passes one half (the probe `dynamics`).
EVENTS = {
    "t_selection": "parent attended",
    "t_unigram": "halfway to the unigram",
    "t_bigram": "halfway to the bigram",
    "t_best": "halfway to the best law",
}


def losses_of(result: Findings) -> Outcome | None:
    """The outcome of `behaviour`; None where it has no losses, of the model or of the exact predictors."""
    outcome = result.outcomes.get("behaviour")
    known = outcome is not None and {"loss", "predictor_loss"} <= set(outcome.data)
    return outcome if known else None


def evidence_of(result: Findings) -> Evidence | None:
    """The scores that decide the badge; None where `behaviour` has no losses."""
    outcome = losses_of(result)
    if outcome is None:
        return None
    data, nearest, last = outcome.data, set[str](), last_model(outcome.data)
    best = data.attrs.get("best", data["predictor_loss"].idxmin("predictor").item())
    if "kl" in data:
        near = is_nearest(last["kl"])
        if float(last["kl"].sel(predictor=best)) <= MAX_ALIKE * float(data["gap"]):
            near = near | (near["predictor"] == best)
        nearest = set(near["predictor"].values[near].tolist())
    accuracy, possible = (number_of(result, "behaviour", name) for name in ("accuracy", "optimal_accuracy"))
    at_start = bool(data.attrs.get("starts_untrained")) and int(data["step"][-1]) == 0
    cosine, reader = None, value_of(result, "attention", "parent_head")
    if is_on_scores(outcome) and reader in (None, value_of(result, "alignment", "path")):
        cosine = number_of(result, "alignment", "kernel_cosine")
    return Evidence(
        excess=float(last["excess"]),
        gap=float(data["gap"]),
        error=float(last["left_error"]),
        kl_unigram=number_of(result, "behaviour", "kl_unigram") or 0.0,
        untouched=at_start,
        trapped=value_of(result, "symmetry", "trapped") is True,
        kernel_cosine=cosine,
        parent_score=number_of(result, "attention", "parent_score"),
        accuracy_share=accuracy / possible if accuracy is not None and possible else None,
        nearest_is_best=best in nearest,
        nearest_is_unigram=data.attrs["unigram"] in nearest,
        best_is_unigram=best == data.attrs["unigram"],
    )


def is_on_scores(behaviour: Outcome) -> bool:
    """Whether the run was trained on a loss on scores, which has another optimum than cross-entropy."""
    return bool(behaviour.data.attrs.get("objective", "cross_entropy") != "cross_entropy")


def best_loss(behaviour: Outcome) -> float:
    """The lowest loss (nats) that any exact predictor reaches on the sequences."""
    data = behaviour.data
    return float(data["best_loss"] if "best_loss" in data else data["predictor_loss"].min())


def value_of(result: Findings, probe: str, score: str) -> object:
    """The value of a score; None where there is none."""
    found = score_of(result, probe, score)
    return None if found is None else found.value


def number_of(result: Findings, probe: str, score: str) -> float | None:
    """The value of a score that is a number; None for any other."""
    value = value_of(result, probe, score)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def score_of(result: Findings, probe: str, score: str) -> Score | None:
    """A score by its probe and name; None where there is none."""
    outcome = result.outcomes.get(probe)
    return None if outcome is None else outcome.scores.get(score)


def named_heads(result: Findings) -> list[str]:
    """The components that the verdict names, in the order in which they are computed."""
    if circuit := induction_circuit(result):
        return [*circuit.feeders, *circuit.heads]
    homes = homes_of(result)
    reader = value_of(result, "attention", "parent_head")
    if effects(result).get(str(reader), np.inf) < MIN_EFFECT_NATS:
        reader = None  # it looks there, and nothing comes of it
    names = [*(homes or needed_most(result)), reader]
    return list(dict.fromkeys(str(name) for name in names if name is not None))


def needed_most(result: Findings) -> list[str]:
    """The components that the loss needs most, which tie; none where it needs untrained models' as much."""
    effect = score_of(result, "ablation", "largest_effect")
    if effect is None or standing(effect) == "within":
        return []
    first = value_of(result, "ablation", "largest_effect_component")
    return _names(value_of(result, "ablation", "largest_effect_components") or first)


@dataclass(frozen=True)
class InductionCircuit:
    """The induction heads, which attend alike, and the earlier heads that feed their keys."""

    feeders: list[str]
    heads: list[str]


def induction_circuit(result: Findings) -> InductionCircuit | None:
    """The induction heads behind what feeds them; None where there is none, or nothing comes of it.

    Something does where predictions get worse without the path or without a head itself. Of heads that tie
    in what they look at, it is those that something comes of; all of them where that is not known of any.
    """
    heads, path = _tied_heads(result), score_of(result, "induction", "path_effect")
    feeders = _names(value_of(result, "induction", "feeders"))
    worth = [nats for head, nats in effects(result).items() if head in heads]
    acting = [head for head in heads if effects(result).get(head, 0.0) >= MIN_EFFECT_NATS]
    if path is not None and isinstance(path.value, float):
        low, high = path.interval or (path.value, path.value)
        worth.append(path.value if low > 0 else 0.0)
        if feeders and high <= MIN_EFFECT_NATS:
            return None  # what the heads find does not reach the prediction
    if not heads or (worth and max(worth) < MIN_EFFECT_NATS):
        return None
    return InductionCircuit(feeders, acting or heads)


def _tied_heads(result: Findings) -> list[str]:
    """The induction heads by what they look at, whatever comes of it; the one with the best score first."""
    head = value_of(result, "induction", "induction_head")
    return _names(value_of(result, "induction", "induction_heads") or head)


def _names(value: object) -> list[str]:
    return [] if value is None else str(value).split(" + ")


def bigram_of(result: Findings) -> str:
    """What shares are of: the bigram, or what there is of it where the model is not even halfway to it."""
    outcome = result.outcomes.get("storage")
    data = {} if outcome is None else outcome.data
    is_less = {"kl_empty", "kl_full"} <= set(data) and float(data["kl_full"][-1]) > float(
        data["kl_empty"][-1]
    ) / 2
    return "what there is of the bigram" if is_less else "the bigram"


def homes_of(result: Findings) -> list[str]:
    """The paths that hold the bigram, as `storage` found them."""
    home = value_of(result, "storage", "bigram_home")
    return [] if home == "none" else _names(home)


def effects(result: Findings) -> dict[str, float]:
    """What each component is worth (nats), the largest first; empty without `ablation`."""
    outcome = result.outcomes.get("ablation")
    if outcome is None or "effect" not in outcome.data:
        return {}
    now = outcome.data["effect"][-1].sel(measure="loss", kind="mean").to_series()
    values = {str(name): float(value) for name, value in now.items()}
    return dict(sorted(values.items(), key=lambda item: -abs(np.nan_to_num(item[1]))))


def effect_intervals(result: Findings, parts: list[str]) -> list[tuple[float, float]]:
    """The intervals of what components are worth (nats); of none where they were not measured."""
    outcome = result.outcomes.get("ablation")
    if outcome is None or "effect_low" not in outcome.data:
        return []
    ends = [
        outcome.data[name][-1].sel(measure="loss", kind="mean", component=parts).values.tolist()
        for name in ("effect_low", "effect_high")
    ]
    return list(zip(*ends, strict=True))


def name_of(event: str) -> str:
    """What comes, in a word or two."""
    return "best law" if event == "t_best" else event.removeprefix("t_")


@dataclass(frozen=True)
class Event:
    """Something that `dynamics` saw happen between two kept steps, or that held at the first of them.

    Attributes:
        name: Of its score.
        step: The first kept step at which it holds.
        after: The last before it might; `step` itself where it surely held from the first on.
        by: The first at which it surely holds; the last kept step where it never does.
        kept: Whether it still holds at the last.
        sure: Whether it surely holds at any.
    """

    name: str
    step: float
    after: float
    by: float
    kept: bool
    sure: bool = True

    @property
    def words(self) -> str:
        """What it is, on the first screen."""
        return EVENTS[self.name] + " (not surely)" * (not self.sure)

    @property
    def short(self) -> str:
        """What comes, in a word or two."""
        return name_of(self.name)

    @property
    def lost(self) -> str:
        """What is added where it was lost."""
        return "" if self.kept else " (lost again)"


def happened(dynamics: Outcome) -> list[Event]:
    """The events of a run, in the order in which they came."""
    found = []
    for name in EVENTS:
        score = dynamics.scores.get(name)
        if score is not None and isinstance(score.value, (int, float)):
            step = float(score.value)
            after, by = score.interval or (step, step)
            kept = sure = True
            if "progress" in dynamics.data:
                progress = dynamics.data["progress"].sel(event=name[2:])
                progress = progress[progress["step"] >= step]
                half = 0.0 * progress
                if "progress_error" in dynamics.data:
                    half = NORMAL_95 * dynamics.data["progress_error"].sel(
                        event=name[2:], step=progress["step"]
                    )
                surely = (progress - half > EVENT_PROGRESS).values
                sure = bool(surely.any())
                # A doubtful crossing that falls back before the event surely comes is not a loss.
                later = slice(int(surely.argmax()) if sure else 0, None)
                kept = not bool((progress + half <= EVENT_PROGRESS)[later].any())
            found.append(Event(name, step, after, by, kept, sure))
    return sorted(found, key=lambda event: event.step)


def is_open(dynamics: Outcome, name: str) -> bool:
    """Whether an event that was not seen may have happened: its progress may be more than one half."""
    if not {"progress", "progress_error"} <= set(dynamics.data):
        return False
    progress, error = (dynamics.data[each].sel(event=name[2:]) for each in ("progress", "progress_error"))
    return bool((progress + NORMAL_95 * error > EVENT_PROGRESS).any())


def notes(result: Findings, name: str) -> list[str]:
    """What is known of a component at the last of the findings' steps, for its box and its panel."""
    found = []
    share = number_of(result, "storage", f"share_{name}")
    if share is not None and share >= 0.02:
        found.append(f"{format_share(share)} of {bigram_of(result)}")
    circuit = induction_circuit(result)
    if circuit is not None and name in circuit.heads:
        found.append("induction head")
    elif name in _tied_heads(result):
        found.append(_without_circuit(effects(result).get(name)))
    elif value_of(result, "induction", "previous_token_head") == name:
        seen = number_of(result, "induction", "previous_token_score") or 0
        found.append(f"previous token: {format_share(seen)}")
    elif value_of(result, "attention", "parent_head") == name in named_heads(result):
        seen = number_of(result, "attention", "parent_score") or 0
        found.append(f"reads the parent: {format_share(seen)}")
    return found


def _without_circuit(nats: float | None) -> str:
    """What a head is that attends as an induction head and is in no circuit, by its effect."""
    if nats is None or nats >= MIN_EFFECT_NATS:
        return "attends as an induction head"
    return f"induction head, {'does harm' if nats <= -MIN_EFFECT_NATS else 'without effect'}"
