"""Which earlier head feeds an induction head, by cutting the path from one to the other and no other."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from scipy.special import stdtrit
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch, batch_of
from mechmarkov.probing.chunking import chunked, substack
from mechmarkov.probing.dataset import NORMAL_95
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import kl

from .circuit import MAX_SHARE_LEFT
from .composition import INPUTS, Input
from .matches import Matches, sequences_for
from .recorded import INDUCTION

Head = tuple[int, int]

CUT_SEQUENCES = 128
MAX_REFERENCE, REFERENCE_TOKENS, REFERENCE_SEED = 2048, 1 << 18, 0x4EF
ESTIMATE = ("value", "low", "high")
MIN_MASS = 1e-6  # of a key: attention that is exactly zero has no logarithm


@dataclass(frozen=True, eq=False)
class Paths:
    """The effects of cutting paths into one head of each model; NaN for models without such a head.

    Attributes:
        sequences: How many all of this is a mean over.
        intact: The induction score of the head, with nothing cut.
        key_cut: That with an earlier head's output cut from its keys.
        feeder: The earlier head whose cut takes the most, as (layer, head); (-1, -1) where there is none.
        feeds: 1 for the heads that feed it: each whose own cut clearly takes half of the score; otherwise the
            fewest that take half together, of which none can be left out (heads that stand in for each
            other); else `feeder`.
        intact_after: `intact` of the queries whose token is each state; `ideal_after`: of an ideal head.
        odds_after: The log odds (nats) that the head gives a match over another key, mean over the same
            queries, with the ends of its 95 % interval over sequences.
        cut: The induction score with all that feed it cut from the head's queries, keys or values; the same
            cut is made in the heads that tie with it.
        key_left: `cut` of the keys as a share of `intact`, with the ends of its 95 % interval over sequences.
        earlier_left: That with all earlier heads cut from the keys, where no head is seen to feed it.
        kl_intact: KL from the reference predictor to the model, in nats.
        kl_cut: That with what feeds it cut from queries, keys or values.
        kl_error: Standard error over sequences of the difference.
        kl_simpler: KL from the reference predictor to a simpler one, on the same sequences.
        simpler_error: Standard error over sequences of `kl_simpler` less `kl_intact`.
    """

    sequences: int
    intact: Float[np.ndarray, " member"]
    key_cut: Float[np.ndarray, "member from_layer from_head"]
    feeder: np.ndarray
    feeds: np.ndarray
    intact_after: Float[np.ndarray, "member state"]
    ideal_after: Float[np.ndarray, " state"]
    odds_after: Float[np.ndarray, "member state estimate"]
    cut: Float[np.ndarray, "member input"]
    key_left: Float[np.ndarray, "member estimate"]
    earlier_left: Float[np.ndarray, "member estimate"]
    kl_intact: Float[np.ndarray, " member"]
    kl_cut: Float[np.ndarray, "member input"]
    kl_error: Float[np.ndarray, "member input"]
    kl_simpler: float
    simpler_error: Float[np.ndarray, " member"]


def reference_tokens(subject: Subject) -> Int[Tensor, "reference position"]:
    """Other sequences, whose mean a head's output is replaced by.

    Many, as a sharp reader amplifies the noise of a mean. One over the evaluated sequences would hold a part
    of each.
    """
    length = subject.batch.states.shape[1]
    count = max(CUT_SEQUENCES, min(MAX_REFERENCE, REFERENCE_TOKENS // length))
    generator = torch.Generator().manual_seed(REFERENCE_SEED)
    states = subject.source.sample(count, length, generator=generator)
    return batch_of(states, subject.source.n_states, subject.objective, subject.config).tokens


def _mean_outputs(
    decoder: HookedDecoder, tokens: Int[Tensor, "reference position"], n_layers: int, elements: int
) -> dict[Head, Float[Tensor, "model=1 batch=1 position d_model"]]:
    """Returns what each head of the first layers writes at each position, whatever the sequence is."""
    totals: dict[int, Tensor] = {}

    def add(z: Float[Tensor, "model batch position head d_head"], hook: object, layer: int) -> None:
        del hook
        totals[layer] = totals.get(layer, 0) + z.sum(1)

    hooks = [(f"blocks.{i}.attn.hook_z", partial(add, layer=i)) for i in range(n_layers)]
    with torch.no_grad():
        for chunk in chunked(decoder, tokens, elements):
            chunk.model.run_with_hooks(chunk.tokens, return_type=None, fwd_hooks=hooks)
    return {
        (layer, head): einsum(
            total[..., head, :] / len(tokens),
            decoder.get_parameter(f"blocks.{layer}.attn.W_O")[:, head],
            "m p d_head, m d_head d -> m p d",
        )[:, None]
        for layer, total in totals.items()
        for head in range(decoder.config.n_heads)
    }


def _hooks(
    decoder: HookedDecoder, feeder: Head, reader: Head, into: Input, mean: Tensor
) -> list[tuple[str, object]]:
    """Hooks that give one input of the reader the feeder's mean output instead of its output.

    The norm in front of the reader sees the change; heads and layers between the two do not.
    """
    W_O = decoder.get_parameter(f"blocks.{feeder[0]}.attn.W_O")[:, feeder[1]]
    change: list[Tensor] = []

    def write(z: Float[Tensor, "model batch position head d_head"], hook: object) -> None:
        del hook
        change.append(mean - einsum(z[..., feeder[1], :], W_O, "m b p d_head, m d_head d -> m b p d"))

    def cut(x: Float[Tensor, "model batch position head d_model"], hook: object) -> Tensor:
        del hook
        x[..., reader[1], :] += change.pop()
        return x

    return [
        (f"blocks.{feeder[0]}.attn.hook_z", write),
        (f"blocks.{reader[0]}.hook_{into.lower()}_input", cut),
    ]


def _run(
    decoder: HookedDecoder, batch: Batch, matches: Matches, reader: Head, hooks: list[tuple[str, object]]
) -> tuple[Float[Tensor, "batch read"], Float[Tensor, "model batch read d_vocab_out"]]:
    """The reader's surprise at each query, and the model's output at the positions that are read."""
    kept: list[Tensor] = []

    def look(pattern: Float[Tensor, "model batch head query key"], hook: object) -> None:
        del hook
        rows = pattern[..., reader[1], batch.read, batch.keys]
        kept.append((rows * matches.surprise[0]).sum(-1)[0].double())

    name = f"blocks.{reader[0]}.attn.hook_pattern"
    with torch.no_grad():
        out = decoder.run_with_hooks(batch.tokens, fwd_hooks=[*hooks, (name, look)])
    return kept[0], out[..., batch.read, :]


def _odds_after(
    decoder: HookedDecoder, batch: Batch, matches: Matches, reader: Head, n_states: int
) -> Float[np.ndarray, "state estimate"]:
    """Log odds of a match over another key in the reader's attention, after each state, with their interval.

    Over queries that see both. In a head that favours every match by a factor these are its logarithm,
    however few match.
    """
    can_match = batch.visible(decoder.config.window)
    can_match[:, 0] = False  # nothing is before the first
    others = can_match & ~matches.match[0]
    kept: list[Tensor] = []

    def look(pattern: Float[Tensor, "model batch head query key"], hook: object) -> None:
        del hook
        rows = pattern[0, :, reader[1], batch.read, batch.keys].double()
        on_match, elsewhere = ((rows * keys).sum(-1) / keys.sum(-1) for keys in (matches.match[0], others))
        kept.append(on_match.clamp_min(MIN_MASS).log() - elsewhere.clamp_min(MIN_MASS).log())

    with torch.no_grad():
        hook = (f"blocks.{reader[0]}.attn.hook_pattern", look)
        decoder.run_with_hooks(batch.tokens, return_type=None, fwd_hooks=[hook])
    both = (matches.count[0] > 0) & others.any(-1)
    odds, after = kept[0].where(both, 0.0).numpy(), batch.parents.numpy()
    found = np.full((n_states, len(ESTIMATE)), np.nan)
    for state in np.unique(after[both.numpy()]):
        here = (after == state) & both.numpy()
        value, error = ratio((odds * here).sum(-1), here.sum(-1).astype(float))
        found[state] = value, value - NORMAL_95 * error, value + NORMAL_95 * error
    return found


def share_left(
    cut: Float[Tensor, " batch"], intact: Float[Tensor, " batch"]
) -> Float[np.ndarray, " estimate"]:
    """A ratio of means and the ends of its 95 % interval, by the delta method; NaN if nothing can be cut."""
    if len(intact) < 2 or intact.mean() <= 0:
        return np.full(len(ESTIMATE), np.nan)
    share, error = ratio(cut.numpy(), intact.numpy())
    half = stdtrit(len(intact) - 1, 0.975) * error
    return np.array([share, share - half, share + half])


def trace(
    subject: Subject,
    readers: list[list[Head]],
    exact: Float[np.ndarray, "batch read state"],
    simpler: Float[np.ndarray, "batch read state"],
) -> Paths:
    """Cut every earlier head from the keys of each model's induction head, and what feeds it from all inputs.

    Args:
        subject: The models.
        readers: For each model the head that is fed and those that tie with it; none for an empty list.
        exact: The predictor that the model's predictions are compared with, on the subject's batch.
        simpler: One for scale.
    """
    count = min(CUT_SEQUENCES, sequences_for(subject.batch))
    batch, n_states = subject.batch.head(count), subject.source.n_states
    matches = subject.recorded(INDUCTION).reference.matches.part(slice(count), most=1)
    members, config, reference = len(readers), subject.config, reference_tokens(subject)
    queries = float(matches.queries[0].sum())
    after = torch.nn.functional.one_hot(batch.parents, n_states).double()
    queries_after = ((matches.count[0] > 0).double()[..., None] * after).sum((0, 1))
    by_state = "b read, b read state -> state"
    ideal = einsum((matches.uniform * matches.surprise)[0].sum(-1).double(), after, by_state)
    simpler_nats = np.asarray(kl(exact[:count], simpler[:count]).mean(-1))
    paths = Paths(
        sequences=count,
        intact=np.full(members, np.nan),
        key_cut=np.full((members, config.n_layers, config.n_heads), np.nan),
        feeder=np.full((members, 2), -1),
        feeds=np.zeros((members, config.n_layers, config.n_heads), dtype=int),
        intact_after=np.full((members, n_states), np.nan),
        ideal_after=(ideal / queries_after).numpy(),
        odds_after=np.full((members, n_states, len(ESTIMATE)), np.nan),
        cut=np.full((members, len(INPUTS)), np.nan),
        key_left=np.full((members, len(ESTIMATE)), np.nan),
        earlier_left=np.full((members, len(ESTIMATE)), np.nan),
        kl_intact=np.full(members, np.nan),
        kl_cut=np.full((members, len(INPUTS)), np.nan),
        kl_error=np.full((members, len(INPUTS)), np.nan),
        kl_simpler=float(simpler_nats.mean()),
        simpler_error=np.full(members, np.nan),
    )

    def nats(scores: Tensor) -> Float[np.ndarray, " batch"]:
        predicted = subject.objective.predict(scores[0].double()).numpy()
        return np.asarray(kl(exact[:count], predicted).mean(-1))

    def cut_of(
        decoder: HookedDecoder,
        means: dict[Head, Tensor],
        reader: Head,
        feeders: list[Head],
        into: Input,
        fed: list[Head],
    ) -> tuple[Tensor, Tensor]:
        """Each sequence's part in the reader's score, and the output, heads cut from an input of some."""
        pairs = [(feeder, to) for feeder in feeders for to in fed if feeder[0] < to[0]]
        hooks = [hook for pair in pairs for hook in _hooks(decoder, *pair, into, means[pair[0]])]
        surprise, out = _run(decoder, batch, matches, reader, hooks)
        return surprise.sum(-1) * (count / queries), out

    for member, (reader, *tied) in ((i, heads) for i, heads in enumerate(readers) if heads):
        if reader[0] == 0:
            continue
        decoder = substack(subject.decoder, slice(member, member + 1))
        means = _mean_outputs(decoder, reference, reader[0], subject.chunk_elements)
        decoder.set_use_split_qkv_input(True)  # only on the part
        decoder.set_ungroup_grouped_query_attention(True)  # an input for each head
        cut = partial(cut_of, decoder, means, reader)
        surprise, out = _run(decoder, batch, matches, reader, [])
        intact, clean = surprise.sum(-1) * (count / queries), nats(out)
        paths.intact[member], paths.kl_intact[member] = intact.mean(), clean.mean()
        paths.simpler_error[member] = standard_error(simpler_nats - clean)
        paths.odds_after[member] = _odds_after(decoder, batch, matches, reader, n_states)
        paths.intact_after[member] = (einsum(surprise, after, by_state) / queries_after).numpy()
        earlier = [(layer, head) for layer in range(reader[0]) for head in range(config.n_heads)]
        alone = {head: cut([head], "K", [reader])[0] for head in earlier}
        for head, scores in alone.items():
            paths.key_cut[member, *head] = scores.mean()
        by_cut = sorted(earlier, key=lambda head: float(alone[head].mean()))
        paths.feeder[member] = by_cut[0]
        feeders = [head for head in earlier if share_left(alone[head], intact)[-1] < MAX_SHARE_LEFT]
        if not feeders:
            paths.earlier_left[member] = share_left(cut(earlier, "K", [reader])[0], intact)
            if paths.earlier_left[member, -1] < MAX_SHARE_LEFT:
                feeders = by_cut
                for head in reversed(by_cut):
                    others = [one for one in feeders if one != head]
                    if share_left(cut(others, "K", [reader])[0], intact)[-1] < MAX_SHARE_LEFT:
                        feeders = others
        feeders = feeders or by_cut[:1]
        for head in feeders:
            paths.feeds[member, *head] = 1
        for i, into in enumerate(INPUTS):
            scores, out = cut(feeders, into, [reader, *tied])
            paths.cut[member, i] = scores.mean()
            if into == "K":
                paths.key_left[member] = share_left(scores, intact)
            change = nats(out) - clean
            paths.kl_cut[member, i] = clean.mean() + change.mean()
            paths.kl_error[member, i] = standard_error(change)
    return paths
