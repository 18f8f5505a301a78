"""Which earlier head feeds an induction head, by cutting the path from one to the other and no other."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import substack
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import kl

from .composition import INPUTS, Input
from .matches import Matches, find_matches, sequences_for

Head = tuple[int, int]

CUT_SEQUENCES = 128


@dataclass(frozen=True, eq=False)
class Paths:
    """What cutting paths into one head of each model does; NaN for models without such a head.

    Attributes:
        intact: The induction score of the head, with nothing cut.
        key_cut: The same with an earlier head's output cut from its keys.
        feeder: The earlier head whose cut takes the most, as (layer, head); (-1, -1) where there is none.
        cut: The induction score with the feeder cut from the head's queries, keys or values.
        kl_intact: KL from the reference predictor to the model, in nats.
        kl_cut: The same with the feeder cut from queries, keys or values.
        kl_error: Standard error over sequences of the difference.
        kl_simpler: KL from the reference predictor to a simpler one, on the same sequences.
    """

    intact: Float[np.ndarray, " member"]
    key_cut: Float[np.ndarray, "member from_layer from_head"]
    feeder: np.ndarray
    cut: Float[np.ndarray, "member input"]
    kl_intact: Float[np.ndarray, " member"]
    kl_cut: Float[np.ndarray, "member input"]
    kl_error: Float[np.ndarray, "member input"]
    kl_simpler: float


def _hooks(decoder: HookedDecoder, feeder: Head, reader: Head, into: Input) -> list[tuple[str, object]]:
    """Hooks that give one input of the reader the feeder's mean output instead of its output.

    The mean is over the sequences, at each position: what the feeder writes whatever the sequence stays.
    The norm in front of the reader sees the change; heads and layers between the two do not.
    """
    W_O = decoder.get_parameter(f"blocks.{feeder[0]}.attn.W_O")[:, feeder[1]]
    change: list[Tensor] = []

    def write(z: Float[Tensor, "model batch position head d_head"], hook: object) -> None:
        del hook
        out = einsum(z[..., feeder[1], :], W_O, "m b p d_head, m d_head d -> m b p d")
        change.append(out.mean(1, keepdim=True) - out)

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
) -> tuple[Float[Tensor, " model"], Float[Tensor, "model batch read d_vocab_out"]]:
    """The reader's induction score, and the model's output at the positions that are read."""
    kept: list[Tensor] = []
    real = batch.history.shape[1]

    def look(pattern: Float[Tensor, "model batch head query key"], hook: object) -> None:
        del hook
        rows = pattern[..., reader[1], batch.read, :real]
        kept.append(einsum(rows, matches.surprise[0], "m b read key, b read key -> m").double())

    name = f"blocks.{reader[0]}.attn.hook_pattern"
    with torch.no_grad():
        out = decoder.run_with_hooks(batch.tokens, fwd_hooks=[*hooks, (name, look)])
    return kept[0] / matches.queries[0].sum(), out[..., batch.read, :]


def trace(
    subject: Subject,
    readers: list[Head | None],
    exact: Float[np.ndarray, "batch read state"],
    simpler: Float[np.ndarray, "batch read state"],
) -> Paths:
    """Cut every earlier head from the keys of each model's induction head, and the feeder from all inputs.

    Args:
        subject: The models.
        readers: For each model the head that is fed, or None.
        exact: The predictor that the model's predictions are compared with, on the subject's batch.
        simpler: One for scale.
    """
    count = min(CUT_SEQUENCES, sequences_for(subject.batch))
    batch = subject.batch.head(count)
    matches = find_matches(batch, subject.source.n_states, window=subject.config.window, most=1)
    members, config = len(readers), subject.config
    paths = Paths(
        intact=np.full(members, np.nan),
        key_cut=np.full((members, config.n_layers, config.n_heads), np.nan),
        feeder=np.full((members, 2), -1),
        cut=np.full((members, len(INPUTS)), np.nan),
        kl_intact=np.full(members, np.nan),
        kl_cut=np.full((members, len(INPUTS)), np.nan),
        kl_error=np.full((members, len(INPUTS)), np.nan),
        kl_simpler=float(kl(exact[:count], simpler[:count]).mean()),
    )

    def nats(scores: Tensor) -> Float[np.ndarray, " batch"]:
        predicted = subject.objective.predict(scores[0].double()).numpy()
        return np.asarray(kl(exact[:count], predicted).mean(-1))

    for member, reader in enumerate(readers):
        if reader is None or reader[0] == 0:
            continue
        decoder = substack(subject.decoder, slice(member, member + 1))
        decoder.set_use_split_qkv_input(True)  # on the part alone
        score, out = _run(decoder, batch, matches, reader, [])
        paths.intact[member], clean = float(score), nats(out)
        paths.kl_intact[member] = clean.mean()
        for layer, head in np.ndindex(reader[0], config.n_heads):
            hooks = _hooks(decoder, (layer, head), reader, "K")
            paths.key_cut[member, layer, head] = float(_run(decoder, batch, matches, reader, hooks)[0])
        flat = int(np.nanargmin(paths.key_cut[member]))
        feeder = divmod(flat, config.n_heads)
        paths.feeder[member] = feeder
        for i, into in enumerate(INPUTS):
            score, out = _run(decoder, batch, matches, reader, _hooks(decoder, feeder, reader, into))
            change = nats(out) - clean
            paths.cut[member, i] = float(score)
            paths.kl_cut[member, i] = clean.mean() + change.mean()
            paths.kl_error[member, i] = change.std() / np.sqrt(max(1, count - 1))
    return paths
