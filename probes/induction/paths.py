"""Which earlier head feeds an induction head, by cutting the path from one to the other and no other."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import xarray as xr
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import NORMAL_95, variables
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import kl

from .circuit import MAX_SHARE_LEFT
from .composition import INPUTS
from .cuts import CUT_SEQUENCES, Cuts, Pair, reference_tokens
from .feeding import ESTIMATE, Head, feeding, share_left, takes_half
from .matches import Matches, sequences_for
from .recorded import INDUCTION

MIN_MASS = 1e-6  # of a key: attention that is exactly zero has no logarithm

Row = dict[str, np.ndarray]  # of one model, by the names of `MEASURED`

# What is measured of each model: its unit, and its axes behind that of the models.
MEASURED: dict[str, tuple[str, tuple[str, ...]]] = {
    "key_cut": ("probability", ("from_layer", "from_head")),
    "feeder_layer": ("layer", ()),
    "feeder_head": ("head", ()),
    "feeds": ("yes or no", ("from_layer", "from_head")),
    "intact": ("probability", ()),
    "intact_after": ("probability", ("state_from",)),
    "odds_after": ("nats", ("state_from", "estimate")),
    "tied_after": ("probability", ("layer", "head", "state_from")),
    "tied_odds_after": ("nats", ("layer", "head", "state_from", "estimate")),
    "tied_feeds": ("yes or no", ("from_layer", "from_head", "layer", "head")),
    "tied_left": ("of the score", ("layer", "head", "estimate")),
    "cut": ("probability", ("input",)),
    "key_left": ("of the score", ("estimate",)),
    "earlier_left": ("of the score", ("estimate",)),
    "feeds_queries": ("yes or no", ("from_layer", "from_head")),
    "query_left": ("of the score", ("estimate",)),
    "kl_intact": ("nats", ()),
    "simpler_error": ("nats", ()),
    "kl_cut": ("nats", ("input",)),
    "kl_error": ("nats", ("input",)),
}


@dataclass(frozen=True, eq=False)
class Trial:
    """The sequences that paths are cut on, and all that does not depend on the model there.

    Attributes:
        subject: The models.
        batch: Its first sequences.
        matches: The matches of one token, on these.
        exact: The predictor that predictions are compared with.
        simpler: KL from it to a simpler one, of each sequence (nats).
        after: The state at each query, one-hot.
    """

    subject: Subject
    batch: Batch
    matches: Matches
    exact: Float[np.ndarray, "batch read state"]
    simpler: Float[np.ndarray, " batch"]
    after: Float[Tensor, "batch read state"]

    def score(self, attention: Float[Tensor, "batch read key"]) -> Float[Tensor, " batch"]:
        """Each sequence's part in a head's induction score."""
        return self._surprise(attention).sum(-1) * (
            len(self.batch.tokens) / float(self.matches.queries[0].sum())
        )

    def _surprise(self, attention: Float[Tensor, "batch read key"]) -> Float[Tensor, "batch read"]:
        return (attention * self.matches.surprise[0]).sum(-1).double()

    def score_after(self, attention: Float[Tensor, "batch read key"]) -> Float[np.ndarray, " state"]:
        """A head's induction score over the queries whose token is each state."""
        has_match = (self.matches.count[0] > 0).double()
        by_state = einsum(self._surprise(attention), self.after, "b read, b read state -> state")
        return (by_state / einsum(has_match, self.after, "b read, b read state -> state")).numpy()

    def nats(self, scores: Float[Tensor, "batch read d_vocab_out"]) -> Float[np.ndarray, " batch"]:
        """KL from the exact predictor to a model's predictions, of each sequence."""
        predicted = self.subject.objective.predict(scores.double()).numpy()
        return np.asarray(kl(self.exact, predicted).mean(-1))


def trace(
    subject: Subject,
    readers: list[list[Head]],
    exact: Float[np.ndarray, "batch read state"],
    simpler: Float[np.ndarray, "batch read state"],
) -> xr.Dataset:
    """Cut earlier heads from the keys and queries of each model's induction head, and what feeds it from all.

    Args:
        subject: The models.
        readers: For each model the head that is fed and those that tie with it, as (layer, head); none for an
            empty list. The cuts of what feeds it are made in all of them.
        exact: The predictor that the model's predictions are compared with, on the subject's batch.
        simpler: One for scale.

    Returns:
        Over [axis]; NaN for models without such a head:
        `intact` (probability): the induction score of the head, with nothing cut; `intact_after`
        [.., state_from]: that of the queries whose token is each state, and `ideal_after` [state_from]: of an
        ideal head; `key_cut` [.., from_layer, from_head]: with an earlier head's output cut from its keys;
        `cut` [.., input]: with all that feed it cut from the head's queries, keys or values;
        `odds_after` [.., state_from, estimate] (nats): the log odds that the head gives a match over another
        key, with the ends of its 95 % interval over sequences;
        `tied_after`, `tied_odds_after` [.., layer, head, ..]: both for each head that ties; NaN for others;
        `feeder_layer`, `feeder_head`: the earlier head whose cut takes the most; -1 where there is none;
        `feeds` [.., from_layer, from_head]: 1 for the heads that feed it: each whose own cut clearly takes
        half of the score; otherwise the fewest that take half together, of which none can be left out (heads
        that stand in for each other); else the feeder;
        `key_left` [.., estimate] (share): `cut` of the keys over `intact`, with its 95 % interval;
        `tied_feeds` [.., from_layer, from_head, layer, head], `tied_left` [.., layer, head, estimate]:
        both of each head that ties: the same heads if cutting them from it clearly takes half of its score,
        its own otherwise;
        `earlier_left`: that with all earlier heads cut from the keys, where no head is seen to feed it;
        `feeds_queries` [.., from_layer, from_head]: 1 for each head whose own cut from the queries clearly
        takes half of the score; `query_left` [.., estimate]: what is left with all of these cut there, or
        with all earlier heads where none does;
        `kl_intact`, `kl_cut` [.., input] (nats): KL from `exact` to the model, intact and with what feeds it
        cut from each; `kl_error`: the standard error over sequences of the difference; `kl_simpler`: KL from
        `exact` to `simpler`, and `simpler_error`: the standard error of that less `kl_intact`;
        and the attribute `cut_sequences`, how many all of this is a mean over.
    """
    count = min(CUT_SEQUENCES, sequences_for(subject.batch))
    batch, n_states = subject.batch.head(count), subject.source.n_states
    matches = subject.recorded(INDUCTION).reference.matches.part(slice(count), most=1)
    simpler_nats = np.asarray(kl(exact[:count], simpler[:count]).mean(-1))
    after = torch.nn.functional.one_hot(batch.parents, n_states).double()
    trial = Trial(subject, batch, matches, exact[:count], simpler_nats, after)
    reference = reference_tokens(subject)
    rows = [
        _row(trial, member, heads, reference) if heads and heads[0][0] > 0 else _no_row(trial)
        for member, heads in enumerate(readers)
    ]
    axis = subject.axis
    return xr.Dataset(
        {
            name: ((axis, *dims), np.stack([row[name] for row in rows]), {"unit": unit})
            for name, (unit, dims) in MEASURED.items()
        }
        | variables("probability", "state_from", ideal_after=trial.score_after(matches.uniform[0]))
        | variables("nats", (), kl_simpler=simpler_nats.mean()),
        coords={axis: subject.coordinates, "input": list(INPUTS), "estimate": list(ESTIMATE)},
        attrs={"cut_sequences": count},
    )


def _no_row(trial: Trial) -> Row:
    """The values of a model without a head to feed."""
    config = trial.subject.config
    sizes = {"from_layer": config.n_layers, "from_head": config.n_heads, "input": len(INPUTS)}
    sizes |= {"layer": config.n_layers, "head": config.n_heads}
    sizes |= {"state_from": trial.subject.source.n_states, "estimate": len(ESTIMATE)}
    shapes = {name: [sizes[dim] for dim in dims] for name, (_, dims) in MEASURED.items()}
    none = {
        "feeder_layer": np.array(-1),
        "feeder_head": np.array(-1),
        "feeds": np.zeros(shapes["feeds"], int),
        "feeds_queries": np.zeros(shapes["feeds"], int),
        "tied_feeds": np.zeros(shapes["tied_feeds"], int),
    }
    return {name: np.full(shape, np.nan) for name, shape in shapes.items()} | none


def _row(trial: Trial, member: int, readers: list[Head], reference: Int[Tensor, "reference position"]) -> Row:
    """The values of one model: cuts into its first reader, and into those that tie."""
    cuts = Cuts.of(trial.subject, trial.batch, member, max(readers)[0], reference)
    seen = {head: cuts.run(head) for head in readers}
    attention, out = seen[readers[0]]
    intact, clean = trial.score(attention), trial.nats(out)
    keys, pairs = _fed_through_keys(trial, cuts, {head: trial.score(seen[head][0]) for head in readers})
    return (
        _no_row(trial)
        | {"intact": np.asarray(intact.mean()), "kl_intact": clean.mean()}
        | {"simpler_error": standard_error(trial.simpler - clean)}
        | keys
        | _with_inputs_cut(trial, cuts, readers[0], pairs, intact, clean)
        | _fed_through_queries(trial, cuts, readers, intact)
        | _after_each_state(trial, {head: attention for head, (attention, _) in seen.items()})
    )


def _fed_through_keys(
    trial: Trial, cuts: Cuts, intact: dict[Head, Float[Tensor, " batch"]]
) -> tuple[Row, list[Pair]]:
    """The heads that feed the keys of each reader; the first reader is the one that is told of.

    Returns:
        The values, and the pairs of heads that are cut together.
    """
    row, heads = _no_row(trial), range(trial.subject.config.n_heads)
    reader = next(iter(intact))
    fed: dict[Head, list[Head]] = {}
    for to, whole in intact.items():

        def score(some: list[Head], to: Head = to) -> Tensor:
            return trial.score(cuts.run(to, [(head, to) for head in some])[0])

        shared = fed.get(reader)
        if shared and takes_half(score(shared), whole):
            fed[to] = shared
        else:
            earlier = list(product(range(to[0]), heads))
            fed[to], without_each, all_left = feeding(score, whole, earlier)
            if to == reader:
                feeder = min(earlier, key=lambda head: float(without_each[head].mean()))
                row["feeder_layer"], row["feeder_head"] = map(np.array, feeder)
                row["earlier_left"] = all_left
                for head in earlier:
                    row["key_cut"][head] = without_each[head].mean()
        row["tied_left"][to] = share_left(score(fed[to]), whole) if fed[to] else np.nan
        for head in fed[to]:
            row["tied_feeds"][(*head, *to)] = 1
    pairs = [(head, to) for to in intact for head in fed[to] or fed[reader] or [feeder]]
    for head, to in pairs:
        row["feeds"][head] = max(row["feeds"][head], to == reader)
    names = ("feeder_layer", "feeder_head", "earlier_left", "key_cut", "tied_left", "tied_feeds", "feeds")
    return {name: row[name] for name in names}, pairs


def _with_inputs_cut(
    trial: Trial,
    cuts: Cuts,
    reader: Head,
    pairs: list[Pair],
    intact: Float[Tensor, " batch"],
    clean: Float[np.ndarray, " batch"],
) -> Row:
    """The score and the KL (nats) with all that feed the readers cut from their queries, keys or values."""
    runs = [cuts.run(reader, pairs, into) for into in INPUTS]
    left = {into: trial.score(attention) for into, (attention, _) in zip(INPUTS, runs, strict=True)}
    change = [trial.nats(out) - clean for _, out in runs]
    return {
        "cut": np.array([float(one.mean()) for one in left.values()]),
        "key_left": share_left(left["K"], intact),
        "kl_cut": np.array([clean.mean() + one.mean() for one in change]),
        "kl_error": np.array([standard_error(one) for one in change]),
    }


def _fed_through_queries(
    trial: Trial, cuts: Cuts, readers: list[Head], intact: Float[Tensor, " batch"]
) -> Row:
    """The earlier heads whose own cut from the readers' queries takes half, and what is left without them."""

    def left(heads: list[Head]) -> Tensor:
        return trial.score(cuts.run(readers[0], list(product(heads, readers)), "Q")[0])

    config = trial.subject.config
    feeds = np.zeros((config.n_layers, config.n_heads), int)
    earlier = list(product(range(readers[0][0]), range(config.n_heads)))
    query_left = share_left(left(earlier), intact)
    if query_left[-1] < MAX_SHARE_LEFT:  # else no head can take half by itself
        asking = [head for head in earlier if takes_half(left([head]), intact)]
        for head in asking:
            feeds[head] = 1
        if asking:
            query_left = share_left(left(asking), intact)
    return {"feeds_queries": feeds, "query_left": query_left}


def _after_each_state(trial: Trial, seen: dict[Head, Float[Tensor, "batch read key"]]) -> Row:
    """The score and the log odds of a match after each state, of each reader and of the first of them."""
    row, reader = _no_row(trial), next(iter(seen))
    config, n_states = trial.subject.config, trial.subject.source.n_states
    score, odds = row["tied_after"], row["tied_odds_after"]
    for head, attention in seen.items():
        score[head] = trial.score_after(attention)
        odds[head] = _odds_after(attention, trial.batch, trial.matches, config.window, n_states)
    return {
        "tied_after": score,
        "tied_odds_after": odds,
        "intact_after": score[reader],
        "odds_after": odds[reader],
    }


def _odds_after(
    attention: Float[Tensor, "batch read key"],
    batch: Batch,
    matches: Matches,
    window: int | None,
    n_states: int,
) -> Float[np.ndarray, "state estimate"]:
    """Log odds of a match over another key in a head's attention, after each state, with their interval.

    Over queries that see both. In a head that favours every match by a factor these are its logarithm,
    however few match.
    """
    can_match = batch.visible(window)
    can_match[:, 0] = False  # nothing is before the first
    others = can_match & ~matches.match[0]
    rows = attention.double()
    on_match, elsewhere = ((rows * keys).sum(-1) / keys.sum(-1) for keys in (matches.match[0], others))
    log_odds = on_match.clamp_min(MIN_MASS).log() - elsewhere.clamp_min(MIN_MASS).log()
    both = (matches.count[0] > 0) & others.any(-1)
    odds, after = log_odds.where(both, 0.0).numpy(), batch.parents.numpy()
    estimates = np.full((n_states, len(ESTIMATE)), np.nan)
    for state in np.unique(after[both.numpy()]):
        here = (after == state) & both.numpy()
        value, error = ratio((odds * here).sum(-1), here.sum(-1).astype(float))
        estimates[state] = value, value - NORMAL_95 * error, value + NORMAL_95 * error
    return estimates
