"""Is there an induction circuit: which previous-token head feeds which induction head, carrying what?

For a query t with token x_t, the keys that an ideal head attends to are M(t) = {s <= t: x_(s-1) = x_t}: those
that follow a copy of the current token. A head's induction score is E[sum of A(t, s) over s in M(t)], less
what its attention by lag and by token puts there (`matches`). It is an induction head if
editing nothing but a key's predecessor moves its attention to that key (`checks`); the previous-token head
that feeds it is the one whose cut from its keys takes that away (`paths`).
"""

from typing import Any

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_index
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import best_heads, head_name, last_model, normal_interval, score_with_null
from mechmarkov.probing.preconditions import why_no_value_circuit
from mechmarkov.probing.score import DIVERGENCE, OVER_CHANCE, Score
from mechmarkov.utils.text import format_share

from . import figures, measure
from .circuit import (
    MAX_SHARE_LEFT,
    MIN_MOVED_SHARE,
    asked_heads,
    feeders_of,
    induction_heads,
    is_moved,
    last_induction_head,
    strongest_feeder,
    tied_heads,
)
from .circuit_told import headline
from .claims import MIN_ATTENTION, MIN_IDEAL_SHARE, claims
from .matches import MAX_MATCHED
from .recorded import INDUCTION

RANDOM_KIND = "random matrices of the same shapes"
NO_EDIT = "no query has a key behind it to edit and a match before that"


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: some query must have two keys with a predecessor to choose from."""
    known = subject.batch.history.shape[1]
    if known < 3:
        return f"a context of {known} known token{'s' * (known > 1)} has no two keys with a predecessor"
    return None


def has_null(subject: Subject) -> bool:
    """Returns whether one head could feed another, or a convolution feeds it: not in a single layer."""
    return subject.config.n_layers > 1 or why_no_value_circuit(subject.decoder) is not None


def _best(values: xr.DataArray) -> tuple[str, float]:
    """The head with the largest value, for one model, and that value."""
    head = best_heads(values)
    return head_name(head), float(values.isel(head))


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The induction head of the last model and what feeds it, by name; nulls take the same maxima."""
    head, name = last_induction_head(data)
    last = last_model(data)
    chosen = {id(d): induction_heads(d) for d in (data, null) if d is not None}
    no_match = "no query has a key that matches it"

    def of_head(variable: str, unit: str, reason: str, **options: Any) -> Score:
        """Returns a score of each model's induction head, for matches of one token."""

        def quantity(d: xr.Dataset) -> xr.DataArray:
            values = d[variable].sel(matched=1) if "matched" in d[variable].dims else d[variable]
            return values.isel(chosen[id(d)])

        return score_with_null(quantity, data, null, unit, reason=reason, **options)

    def largest(variable: str, **where: int) -> Score:
        """The largest over the heads of each model, a probability."""

        def quantity(d: xr.Dataset) -> xr.DataArray:
            return d[variable].sel(where).max(("layer", "head"))

        return score_with_null(quantity, data, null, "probability", reason=no_match)

    induction = float(head["induction"].sel(matched=1))
    interval = normal_interval(induction, float(head["induction_error"].sel(matched=1)))
    tied = [head_name({"layer": layer, "head": index}) for layer, index in tied_heads(last)]
    asked = {id(d): asked_heads(d) for d in (data, null) if d is not None}
    one = last.isel({name: int(index[-1]) for name, index in asked[id(data)].items()})
    effect, half = float(one["effect"]), float(one["effect_high"] - one["effect"])
    moved = score_with_null(
        lambda d: d["effect"].isel(asked[id(d)]), data, null, "of the ideal", reason=NO_EDIT,
        interval=(effect - half, effect + half),
    )  # fmt: skip
    no_circuit = "values pass a convolution and a gate: there is no OV circuit"
    if data.attrs["is_linear"]:
        no_circuit = f"the OV circuit of {name} is constant over states"
    copying = of_head("copying", "balance of eigenvalues", no_circuit)
    if data.attrs["n_states"] == 2:
        only_sign = "two states leave one eigenvalue, so that the score is 1 or -1 for any model"
        copying = Score(None, copying.unit, reason=only_sign)
    return {
        "induction_score": of_head("induction", "probability", no_match, interval=interval),
        "induction_head": Score(name, "") if is_moved(head) else Score(None, "", reason=_no_head(last)),
        "induction_heads": Score(" + ".join(tied), "") if tied else Score(None, "", reason=_no_head(last)),
        "feeders": _feeders(head, last),
        "predecessor_effect": moved,
        "fidelity": of_head("fidelity", "nats", no_match),
        "repeated_score": of_head("repeated", "probability", no_match),
        **{f"induction_score_{k}": largest("induction", matched=k) for k in range(2, MAX_MATCHED + 1)},
        "previous_token_score": largest("previous_token"),
        "previous_token_head": _previous_token_head(head, last),
        "duplicate_token_score": largest("duplicate_token"),
        "copying_score": copying,
        "k_composition": _composition(head, name),
        "path_effect": _path_effect(head, last),
    }


def _no_head(last: xr.Dataset) -> str:
    """Returns why there is no induction head, for one model."""
    _, effect = _best(last["effect"])
    if not np.isfinite(effect):
        return NO_EDIT
    edit, high = "editing a key's predecessor", float(last["effect_high"].max())
    if high <= MIN_MOVED_SHARE:
        return f"{edit} moves no head's attention to it (at most {max(high, 0.0):.2f} of the ideal)"
    if high < MIN_IDEAL_SHARE:
        return f"{edit} moves no head's attention to it by more than {high:.2f} of the ideal"
    return f"{edit} may move a head's attention to it: by {effect:.2f} of the ideal, or up to {high:.2f}"


def _feeders(head: xr.Dataset, last: xr.Dataset) -> Score:
    """The earlier heads whose cut from the head's keys takes its score away."""
    if not is_moved(head):
        return Score(None, "", reason=_no_head(last))
    if not (feeders := feeders_of(head)):
        return Score(None, "", reason=_no_feeder(head, "its keys"))
    return Score(" + ".join(head_name(feeder) for feeder in feeders), "")


def _no_feeder(head: xr.Dataset, keys: str) -> str:
    """Returns what is left of a head's score without earlier heads in its keys, or why that is unknown."""
    low, high = (float(head["earlier_left"].sel(estimate=end)) for end in ("low", "high"))
    if strongest_feeder(head) is None:
        return f"no earlier head feeds {keys}"
    if not np.isfinite(low):
        return f"cuts cannot tell which earlier head feeds {keys}"
    ends = dict.fromkeys((format_share(max(0.0, low)), format_share(min(1.0, high))))
    if low <= MAX_SHARE_LEFT:
        open_question = f"too few sequences tell whether an earlier head feeds {keys}"
        return f"{open_question}: cutting all leaves {' to '.join(ends)} of the score"
    return f"cutting all earlier heads from {keys} leaves {' to '.join(ends)} of the score"


def _previous_token_head(head: xr.Dataset, last: xr.Dataset) -> Score:
    """The head that gives the previous token the most, if that is most of its attention or feeds the head."""
    feeders = [head_name(feeder) for feeder in feeders_of(head)]
    previous, value = _best(last["previous_token"])
    if value > MIN_ATTENTION or previous in feeders:
        return Score(previous, "")
    return Score(None, "", reason="no head gives the token before more than half of its attention, over all")


def _composition(head: xr.Dataset, name: str) -> Score:
    """Returns the composition with the head's keys of the feeder, or of the most composed earlier head."""
    unit, index = "composition", head_index(name)
    assert index is not None
    feeder = strongest_feeder(head) if feeders_of(head) else None
    earlier = head["k_composition"].values[: index[0]].ravel()
    if not earlier.size:
        return Score(None, unit, reason=f"{name} is in the first layer: there is no head to compose with")
    if feeder is None:
        value, of = float(np.nan_to_num(earlier, nan=-np.inf).max()), earlier.size
    else:
        pair = {"from_layer": feeder["layer"], "from_head": feeder["head"]}
        value, of = float(head["k_composition"].isel(pair)), 1
    # The q-quantile of the largest of n is the q^(1/n)-quantile of one.
    low, middle, high = np.quantile(head["random_composition"], np.array([0.025, 0.5, 0.975]) ** (1 / of))
    why = "one of the two heads has zero weights"
    return Score(value, unit, (float(low), float(middle), float(high)), null_kind=RANDOM_KIND, reason=why)


def _path_effect(head: xr.Dataset, last: xr.Dataset) -> Score:
    """Returns how far KL from the reference rises when the feeder is cut from the head's keys."""
    change = float(head["kl_cut"].sel(input="K") - head["kl_intact"])
    if not np.isfinite(change):
        why = "no head is before it" if is_moved(head) else _no_head(last)
        return Score(None, "nats", reason=f"no path to cut: {why}")
    interval = normal_interval(change, float(head["kl_error"].sel(input="K")))
    return Score(change, "nats", 0.0, interval, null_kind="a path that carries nothing")


probe = Probe(
    name="induction",
    question="Is there an induction circuit: which previous-token head feeds which induction head, and what "
    "does that path carry?",
    cites="Elhage et al. 2021; Olsson et al. 2022 (arXiv 2209.11895); Edelman et al. 2024 (2402.11004); "
    "Rajaraman et al. 2024 (2407.17686) for matches of k tokens",
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures.draw,
    formula="induction score = E[attention on keys whose predecessor is the current token] − the same "
    "expected only from lag and tokens\n"
    "predecessor effect = how far editing only a key's predecessor moves the attention to it; 1 "
    "for an ideal head\n"
    "composition of W_A into W_B = |W_A W_B| / (|W_A| |W_B|) · copying = Σλ / Σ|λ|, λ the "
    "eigenvalues of OV (Elhage et al. 2021)",
    ranges={"fidelity": DIVERGENCE, "induction_score*": OVER_CHANCE, "repeated_score": OVER_CHANCE},
    formulas={
        "induction_head": "the head with the largest induction score that a predecessor moves",
        "induction_heads": "that head and those within its error",
        "predecessor_effect": "that of the induction head; where there is none, the largest",
        "fidelity": "E[KL(uniform on the matches ‖ attention)]",
        "repeated_score": "attention on TransformerLens' induction pattern, repeated sequences, less chance",
        "induction_score": "E[attention on keys behind a copy of the token] − the same from lag and tokens",
        "induction_score_*": "the same for 2 or 3 tokens, less what one fewer explains; max over heads",
        "previous_token_score": "max over heads of E[A(t, t − 1)], over all tokens t but a query",
        "previous_token_head": "the head with the previous token score",
        "feeders": "earlier heads whose cut from the induction head's keys clearly takes over half of its "
        "score",
        "duplicate_token_score": "max over heads of E[attention on earlier copies of the token]",
        "copying_score": "Σλ / Σ|λ|, λ the eigenvalues of OV",
        "k_composition": "|W_OV W_QK| / (|W_OV| |W_QK|), W_OV the feeder's, into the head's keys",
        "path_effect": "KL(reference ‖ prediction) with the feeder cut from the head's keys − without",
    },
    records=(INDUCTION,),
    has_null=has_null,
    with_bos=True,
)  # fmt: skip
