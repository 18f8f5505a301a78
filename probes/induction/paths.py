"""Which earlier head feeds an induction head, by cutting the path from one to the other and no other."""

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import xarray as xr
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.intervention import Intervention
from mechmarkov.interventions.paths import replace_path
from mechmarkov.models.components import head_name
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch, batch_of
from mechmarkov.probing.chunking import chunked, substack
from mechmarkov.probing.dataset import NORMAL_95, variables
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import kl

from .circuit import MAX_SHARE_LEFT
from .composition import INPUTS, Input
from .feeding import ESTIMATE, Head, feeding, share_left, takes_half
from .matches import Matches, sequences_for
from .recorded import INDUCTION

CUT_SEQUENCES = 128
MAX_REFERENCE, REFERENCE_TOKENS, REFERENCE_SEED = 2048, 1 << 18, 0x4EF
MIN_MASS = 1e-6  # of a key: attention that is exactly zero has no logarithm


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


def reference_tokens(subject: Subject) -> Int[Tensor, "reference position"]:
    """Other sequences of the subject's source: a head's output is replaced by its mean over these.

    Many, as a sharp reader amplifies the noise of a mean. One over the evaluated sequences would hold a part
    of each.

    Args:
        subject: Its source is drawn from, with a seed of its own.
    """
    length = subject.batch.states.shape[1]
    count = max(CUT_SEQUENCES, min(MAX_REFERENCE, REFERENCE_TOKENS // length))
    generator = torch.Generator().manual_seed(REFERENCE_SEED)
    states = subject.source.sample(count, length, generator=generator)
    return batch_of(states, subject.source.n_states, subject.objective, subject.config).tokens


def _mean_outputs(
    decoder: HookedDecoder, tokens: Int[Tensor, "reference position"], n_layers: int, elements: int
) -> dict[Head, Float[Tensor, "model=1 batch=1 position d_head"]]:
    """Returns the mean `z` of each head of the first layers at each position, whatever the sequence is."""
    totals: dict[int, Tensor] = {}

    def add(layer: int, z: Float[Tensor, "model batch position head d_head"]) -> None:
        totals[layer] = totals.get(layer, 0) + z.sum(1)

    hooks = [(f"blocks.{i}.attn.hook_z", lambda z, hook, i=i: add(i, z)) for i in range(n_layers)]
    with torch.no_grad():
        for chunk in chunked(decoder, tokens, elements):
            chunk.model.run_with_hooks(chunk.tokens, return_type=None, fwd_hooks=hooks)
    return {
        (layer, head): (total[..., head, :] / len(tokens))[:, None]
        for layer, total in totals.items()
        for head in range(decoder.config.n_heads)
    }


def _behind_norms(
    decoder: HookedDecoder, feeder: Head, reader: Head, into: Input, mean: Tensor
) -> Intervention[HookedDecoder]:
    """Give one input of the reader what `_hooks` do, where all norms between the two see the change."""
    path = head_name(*feeder), f"{head_name(*reader)}.{into}"
    return replace_path(decoder, *path, lambda z: mean.expand_as(z))


def _hooks(
    decoder: HookedDecoder, feeder: Head, reader: Head, into: Input, mean: Tensor
) -> list[tuple[str, object]]:
    """Hooks that give one input of the reader the feeder's mean output instead of its output.

    The norm in front of the reader sees the change; heads and layers between the two do not.
    """
    W_O = decoder.get_parameter(f"blocks.{feeder[0]}.attn.W_O")[:, feeder[1]]
    change: list[Tensor] = []

    def write(z: Float[Tensor, "model batch position head d_head"]) -> None:
        how = "m b p d_head, m d_head d -> m b p d"
        change.append(einsum(mean, W_O, how) - einsum(z[..., feeder[1], :], W_O, how))

    def cut(x: Float[Tensor, "model batch position head d_model"]) -> Tensor:
        x[..., reader[1], :] += change.pop()
        return x

    return [
        (f"blocks.{feeder[0]}.attn.hook_z", lambda z, hook: write(z)),
        (f"blocks.{reader[0]}.hook_{into.lower()}_input", lambda x, hook: cut(x)),
    ]


def _run(
    decoder: HookedDecoder, batch: Batch, reader: Head, hooks: list[tuple[str, object]]
) -> tuple[Float[Tensor, "batch read key"], Float[Tensor, "batch read d_vocab_out"]]:
    """The reader's attention at the positions that are read, and the model's output there."""
    rows: list[Tensor] = []
    name = f"blocks.{reader[0]}.attn.hook_pattern"
    look = (name, lambda x, hook: rows.append(x[0, :, reader[1], batch.read, batch.keys]))
    with torch.no_grad():
        out = decoder.run_with_hooks(batch.tokens, fwd_hooks=[*hooks, look])
    return rows[0], out[0, :, batch.read, :]


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


@dataclass(frozen=True, eq=False)
class _Trial:
    """The sequences that paths are cut on, and what does not depend on the model there.

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
    trial = _Trial(subject, batch, matches, exact[:count], simpler_nats, after)
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


def _no_row(trial: _Trial) -> dict[str, np.ndarray]:
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


def _row(
    trial: _Trial, member: int, readers: list[Head], reference: Int[Tensor, "reference position"]
) -> dict[str, np.ndarray]:
    """The values of one model by the names of `MEASURED`: cuts into its first reader and those that tie."""
    subject, batch, reader, row = trial.subject, trial.batch, readers[0], _no_row(trial)
    decoder = substack(subject.decoder, slice(member, member + 1))
    means = _mean_outputs(decoder, reference, max(readers)[0], subject.chunk_elements)
    decoder.set_use_split_qkv_input(True)  # only on the part
    decoder.set_ungroup_grouped_query_attention(True)  # an input for each head

    def cut(pairs: list[tuple[Head, Head]], into: Input, of: Head = reader) -> tuple[Tensor, Tensor]:
        """A head's score by sequence, and the output, with heads cut from an input of later ones."""
        ways = [(*pair, into, means[pair[0]]) for pair in pairs if pair[0][0] < pair[1][0]]
        with ExitStack() as cuts:
            hooks: list[tuple[str, object]] = []
            for way in ways:
                if decoder.config.norm_first:
                    hooks += _hooks(decoder, *way)
                else:
                    cuts.enter_context(_behind_norms(decoder, *way))
            attention, out = _run(decoder, batch, of, hooks)
        return trial.score(attention), out

    attention, out = _run(decoder, batch, reader, [])
    looked = {reader: attention} | {head: _run(decoder, batch, head, [])[0] for head in readers[1:]}
    intact, clean = trial.score(attention), trial.nats(out)
    heads = range(subject.config.n_heads)
    fed: dict[Head, list[Head]] = {}
    for to in readers:
        earlier, whole = list(product(range(to[0]), heads)), trial.score(looked[to])

        def score(some: list[Head], to: Head = to) -> Tensor:
            return cut([(head, to) for head in some], "K", to)[0]

        shared = fed.get(reader)
        if shared and takes_half(score(shared), whole):
            fed[to] = shared
        else:
            fed[to], without_each, all_left = feeding(score, whole, earlier)
            if to == reader:
                by_cut = sorted(without_each, key=lambda head: float(without_each[head].mean()))
                row["earlier_left"] = all_left
                for head in earlier:
                    row["key_cut"][head] = without_each[head].mean()
        row["tied_left"][to] = share_left(score(fed[to]), whole) if fed[to] else np.nan
        for head in fed[to]:
            row["tied_feeds"][(*head, *to)] = 1
    pairs = [(head, to) for to in readers for head in fed[to] or fed[reader] or by_cut[:1]]
    for head, to in pairs:
        row["feeds"][head] = max(row["feeds"][head], to == reader)
    for i, into in enumerate(INPUTS):
        left, out = cut(pairs, into)
        row["cut"][i] = left.mean()
        if into == "K":
            row["key_left"] = share_left(left, intact)
        change = trial.nats(out) - clean
        row["kl_cut"][i], row["kl_error"][i] = clean.mean() + change.mean(), standard_error(change)
    earlier = list(product(range(reader[0]), heads))
    row["query_left"] = share_left(cut(list(product(earlier, readers)), "Q")[0], intact)
    if row["query_left"][-1] < MAX_SHARE_LEFT:  # else no head can take half by itself
        asking = [one for one in earlier if takes_half(cut(list(product([one], readers)), "Q")[0], intact)]
        for head in asking:
            row["feeds_queries"][head] = 1
        if asking:
            row["query_left"] = share_left(cut(list(product(asking, readers)), "Q")[0], intact)
    window, n_states = subject.config.window, subject.source.n_states
    for head, seen in looked.items():
        row["tied_after"][head] = trial.score_after(seen)
        row["tied_odds_after"][head] = _odds_after(seen, batch, trial.matches, window, n_states)
    return row | {
        "intact": np.asarray(intact.mean()),
        "intact_after": row["tied_after"][reader],
        "odds_after": row["tied_odds_after"][reader],
        "feeder_layer": np.array(by_cut[0][0]),
        "feeder_head": np.array(by_cut[0][1]),
        "kl_intact": clean.mean(),
        "simpler_error": standard_error(trial.simpler - clean),
    }
