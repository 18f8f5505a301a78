"""What pictures of the first screen read from a result: losses, events, and what is known of a component."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechmarkov.claims.claim import ALIKE, COPIES, Claim, Claims
from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing.outcome import Findings, Outcome
from mechmarkov.report.words.came import in_order
from mechmarkov.report.words.names import bare_law, nats, share

MIN_EFFECT_NATS = 0.01  # below, a path is not part of a circuit
IN_A_BOX = {ALIKE: "same parent"}
MIN_ATTENTION = 0.25  # on one token; a head that gives none as much is spread
MOST_OF_IT = 0.9  # of a head's attention; with less, the box says how much is elsewhere
MIN_SHARE = 0.02  # of the bigram; below, it is not told of a part


def losses_of(result: Findings) -> Outcome | None:
    """The outcome of `behaviour`; None where it has no losses, of the model or of the exact predictors."""
    outcome = result.outcomes.get("behaviour")
    known = outcome is not None and {"loss", "predictor_loss"} <= set(outcome.data)
    return outcome if known else None


def best_loss(behaviour: Outcome) -> float:
    """The lowest loss (nats) that any exact predictor reaches on the sequences."""
    data = behaviour.data
    return float(data["best_loss"] if "best_loss" in data else data["predictor_loss"].min())


def drawn_losses(behaviour: Outcome) -> tuple[Float[np.ndarray, " step"], dict[str, float]]:
    """Returns the loss at each step and of each exact predictor (nats), the best among them as `best`.

    Where there is a Bayes-optimal predictor they are expected under the exact law, as in the tiles: the
    uniform law's is ln K, which says where the best is.
    """
    data, best = behaviour.data, best_loss(behaviour)
    loss, levels = data["loss"], data["predictor_loss"]
    if "predictor_excess" in data and "uniform" in data["predictor"]:
        best = float(np.log(data.attrs["n_states"]) - data["predictor_excess"].sel(predictor="uniform"))
        loss, levels = best + data["excess"], best + data["predictor_excess"]
    known = {str(name): float(value) for name, value in levels.to_series().items() if np.isfinite(value)}
    return loss.values.astype(float), known | {"best": best}


@dataclass(frozen=True, eq=False)
class Course:
    """Values that the first picture draws over training, and the lines of exact predictors.

    Attributes:
        values: Loss (nats) or share of right predictions at each step.
        levels: The level of each exact predictor, by name, and the best among them as `best`.
        of_loss: False where shares are drawn.
    """

    values: Float[np.ndarray, " step"]
    levels: dict[str, float]
    of_loss: bool = True


def course(behaviour: Outcome) -> Course:
    """Returns the loss over training; of a model trained on scores how often it is right.

    Cross-entropy has another optimum than a loss on scores: its curve would draw a model that is right as
    often as possible as one that fails.
    """
    data = behaviour.data
    if data.attrs.get("objective", "cross_entropy") == "cross_entropy" or "predictor_accuracy" not in data:
        return Course(*drawn_losses(behaviour))
    known = {str(name): float(value) for name, value in data["predictor_accuracy"].to_series().items()}
    best = float(data["optimal_accuracy"]) if "optimal_accuracy" in data else max(known.values())
    return Course(data["accuracy"].values.astype(float), known | {"best": best}, of_loss=False)


def accuracies(result: Findings) -> dict[str, float]:
    """Returns how often the model and each exact predictor are right; nothing of a model that has losses."""
    behaviour = losses_of(result)
    if behaviour is None or (drawn := course(behaviour)).of_loss:
        return {}
    attrs = behaviour.data.attrs
    laws = [attrs[key] for key in ("best", "bigram", "unigram") if key in attrs]
    named = {bare_law(name): drawn.levels[name] for name in (*laws, "uniform") if name in drawn.levels}
    return {"this model": float(drawn.values[-1])} | named


def came(result: Findings) -> list[Claim]:
    """Returns what the tile "How did it get there?" answers with: laws and heads, with their steps."""
    outcome = result.outcomes.get("dynamics")
    tiles = [] if outcome is None else outcome.probe.headline(result.claims)
    return in_order([claim for tile in tiles for claim in tile.answer])


def closest_laws(result: Findings) -> list[tuple[Claim, float]]:
    """Returns the laws that were clearly the closest, each with the step from which another one is."""
    passed = list(result.claims.where("passed", probe="dynamics"))
    stops = [float(claim.where.steps[0]) for claim in passed[1:]] + [np.inf] * bool(passed)
    return [(claim, stop) for claim, stop in zip(passed, stops, strict=True) if claim.is_shown]


def notes(claims: Claims, name: str, named: Sequence[str] = ()) -> list[str]:
    """Returns what is known of a component, for its box and its panel.

    Args:
        claims: The claims of all probes.
        name: The name of the component.
        named: The components that the first screen names: what these do is not called without effect.
    """
    told = []
    held = claims.first("holds_share", subject=name, object="bigram")
    needed = claims.first("is_needed", subject=name)
    if held is not None and held.is_shown and (held.value or 0.0) >= MIN_SHARE and _is_bigram_learned(claims):
        told.append(f"{share(held.value)} of the bigram")
    head = claims.first("is_induction_head", subject=name, status="shown")
    if head is not None and not head.object:
        worth = None if needed is None else needed.value or 0.0
        harm = worth is not None and worth <= -MIN_EFFECT_NATS
        idle = worth is not None and abs(worth) < MIN_EFFECT_NATS
        aside = ", does harm" if harm else ", without effect" if idle else ""
        told.append(f"induction head{'' if name in named else aside}")
        return told
    reads = claims.everywhere().where("attends_to", subject=name, status="shown")
    looks = {claim.object[-1]: claim.value for claim in reads if not {*claim.object} & {"matches", COPIES}}
    if (graph := claims.first("recovers", subject=name, status="shown")) is not None:
        told.append(
            f"{graph.number('edges of the head'):.0f} of {graph.number('edges of the graph'):.0f} edges"
        )
    feeds = claims.first("feeds", subject=name, status="shown")
    if "previous token" not in looks and feeds is not None:
        seen = [one for one in feeds.because if one.name == "previous token" and name in one.words]
        looks |= {"previous token": seen[0].value} if seen else {}
    told += [f"{IN_A_BOX.get(token, token)}: {share(mass)}" for token, mass in looks.items()]
    if not told and mlp_index(name) is not None and needed is not None and needed.is_shown:
        told.append(f"worth {nats(needed.value)}")
    if told or name not in named or head_index(name) is None:
        return told
    spread = claims.first("attends_to", subject=name, status="excluded")
    if spread is None or (spread.value or 0.0) < MIN_ATTENTION:
        return ["attention spread"]
    mass = spread.value or 0.0
    return [f"{spread.object[-1]}: {share(mass)}", *[f"elsewhere: {share(1 - mass)}"] * (mass < MOST_OF_IT)]


def _is_bigram_learned(claims: Claims) -> bool:
    """Returns whether the closest law is not known to be another than those that storage tells of."""
    closest = claims.first("is_closest_to", probe="behaviour", status="shown")
    return closest is None or bool({*closest.object} & {"uniform", "unigram", "bigram"})
