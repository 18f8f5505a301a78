"""Recorded: attention, as sums over sequences, so that no pattern of the whole batch is ever held."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Arrays, Hook, PerLayer, Quantity, Recording, Scope, Totals
from mechmarkov.theory.kernel import FLOOR

# Below this share of their mean square, the variance of float32 scores is taken for rounding. Where large
# terms cancel, rounding itself has a share of 2e-15 in heads of 4 numbers, 1e-14 of 64, and 2.5e-14 of 128.
MIN_VARIANCE_SHARE = 1e-13
NEAR_LAGS = 8  # for which attention is kept at each position


@dataclass(frozen=True, eq=False)
class AttentionStats:
    """Means over the evaluation sequences, per model of the stack, layer and head.

    Masses and shares are probabilities. "Last" is the last prediction of a sequence, and its attention
    statistics are over the real tokens in its window: a query token's own mass is left out of `spread` and
    the shares.

    Attributes:
        lag_mass: Mean attention at each lag (1 is the parent; 0 a token that is not a state: a query's own,
            or the one that begins the sequence), over the predictions that reach that far back.
        previous_token: Mean attention on key t - 1.
        first_token: Mean attention on the first token, over predictions that know more than two tokens; NaN
            where none does.
        selector: How often the most attended real token is the parent.
        effective_tokens: Mean of exp(entropy of the attention of a prediction).
        spread: Mean over sequences of max S - min S over real tokens, for the last prediction.
        near_mass: Mean attention of each prediction on the tokens at lags 1, 2, …; 0 where there is none.
        last_mass: Mean attention of the last prediction on each position, from the first state on.
        position_share: Share of the variance of the last prediction's attention logits that position
            explains by itself; NaN where the logits are constant up to the rounding of float32.
        token_share: That of only the attended token.
        token_mean_variance: Variance across sequences of the attention-weighted mean token, summed over
            states.
    """

    lag_mass: Float[np.ndarray, "member layer head lag"]
    previous_token: Float[np.ndarray, "member layer head"]
    first_token: Float[np.ndarray, "member layer head"]
    selector: Float[np.ndarray, "member layer head"]
    effective_tokens: Float[np.ndarray, "member layer head"]
    spread: Float[np.ndarray, "member layer head"]
    near_mass: Float[np.ndarray, "member layer head position near_lag"]
    last_mass: Float[np.ndarray, "member layer head key"]
    position_share: Float[np.ndarray, "member layer head"]
    token_share: Float[np.ndarray, "member layer head"]
    token_mean_variance: Float[np.ndarray, "member layer head"]


class _AttentionSums(Recording[Arrays]):
    """Running sums of one layer, whose hooks' names begin with `at`."""

    def __init__(self, scope: Scope, at: str) -> None:
        self.batch, self.n_states, self.at = scope.batch, scope.n_states, at
        self.seen, self.last = self.batch.seen(scope.model.config.window), int(self.batch.read[-1])
        self.seen_keys = slice(self.seen.start + self.batch.first, self.seen.stop + self.batch.first)
        self.sums = Totals()

    def hooks(self, part: Batch, _: slice, /) -> list[Hook]:
        """Hooks on attention logits and attention."""
        return [
            (f"{self.at}.hook_attn_scores", lambda x, hook: self.add_scores(x, part)),
            (f"{self.at}.hook_pattern", lambda x, hook: self.add_pattern(x, part)),
        ]

    def add_scores(self, scores: Float[Tensor, "model batch head query key"], part: Batch) -> None:
        """Attention logits of a chunk of sequences."""
        # Shifted by each head's first logit: a common offset would cost the variance its digits.
        last = scores[..., self.last, self.seen_keys].double()
        if "shift" not in self.sums:
            self.sums["shift"] = last[:, :1, :, :1].clone()
        last = last - self.sums["shift"]
        token = torch.nn.functional.one_hot(part.history[:, self.seen], self.n_states).double()
        self.sums.add("square", last.square().sum((1, 3)))
        self.sums.add("by_position", last.sum(1))
        self.sums.add("by_token", einsum(last, token, "m b h key, b key state -> m h state"))
        self.sums.add("token_count", token.sum((0, 1)))

    def add_pattern(self, pattern: Float[Tensor, "model batch head query key"], part: Batch) -> None:
        """Attention of a chunk of sequences."""
        rows = pattern[..., self.batch.rows, :]
        self.sums.add("mean_pattern", rows.sum(1) if rows.shape[1] > 1 else rows[:, 0])  # a sum copies
        entropy = -rows.clamp_min(FLOOR).log_().mul_(rows).sum(-1)  # `entr` takes longer
        self.sums.add("effective", entropy.exp().mean(-1).sum(1))
        hit = _first_largest(rows[..., part.keys]) == part.known
        self.sums.add("selector", hit.double().mean(-1).sum(1))
        last = rows[..., -1, self.seen_keys]
        self.sums.add("spread", (last.amax(-1) - last.amin(-1)).sum(1))
        last = rows[..., -1, part.keys]
        token = torch.nn.functional.one_hot(part.history, self.n_states).to(last.dtype)
        mean_token = einsum(last, token, "m b h key, b key state -> m b h state").double()
        self.sums.add("token_mean", mean_token.sum(1))
        self.sums.add("token_mean_square", mean_token.square().sum((1, 3)))

    def lag_mass(self) -> Float[Tensor, "model head lag"]:
        """Mean attention at each lag over the predictions that reach that far back."""
        begins = self.batch.first
        whole = self.sums["mean_pattern"] / len(self.batch.tokens)
        mean = whole[..., begins:]
        read, n_keys = self.batch.read - begins, mean.shape[-1]
        shift = 1 - self.batch.parent_lag
        lag = read[:, None] - torch.arange(n_keys, device=read.device)[None, :] + shift
        out = mean.new_zeros(*mean.shape[:2], n_keys + 1)
        inside = lag >= shift  # keys behind or at the query
        index = lag.clamp_min(0).flatten()
        flat = rearrange(mean * inside, "m h query key -> m h (query key)")
        out.index_add_(2, index, flat)
        count = mean.new_zeros(n_keys + 1).index_add_(0, index, inside.double().flatten())
        by_lag = out / count.clamp_min(1)
        if begins:
            by_lag[..., 0] = whole[..., 0].mean(-1)
        return by_lag

    def near_mass(self, mean: Float[Tensor, "model head read key"]) -> Float[Tensor, "model head read lag"]:
        """Mean attention of each prediction on the tokens at the first lags."""
        lags = torch.arange(1, min(NEAR_LAGS, mean.shape[-1]) + 1, device=mean.device)
        last = self.batch.read.to(mean.device) - self.batch.first - self.batch.parent_lag
        key = last[:, None] + 1 - lags
        at = key.clamp_min(0).expand(*mean.shape[:2], -1, -1)
        return mean.gather(-1, at) * (key >= 0)

    def compute(self) -> Arrays:
        """The fields of `AttentionStats` for this layer, `[model, head, ...]`."""
        n, sums = len(self.batch.tokens), self.sums
        mean = sums["mean_pattern"][..., self.batch.first :] / n
        lag_mass = self.lag_mass()
        first = 2 - self.batch.parent_lag
        before = lag_mass[..., first : first + 1].sum(-1)  # 0 where the context is one token
        keys = self.seen.stop - self.seen.start
        total_mean = sums["by_position"].sum(-1) / (n * keys)
        total = sums["square"] / (n * keys) - total_mean.square()
        position = (sums["by_position"] / n).square().mean(-1) - total_mean.square()
        count = sums["token_count"].clamp_min(1)
        token = (sums["by_token"].square() / count).sum(-1) / (n * keys) - total_mean.square()
        scale = (sums["square"] / (n * keys)) + sums["shift"].squeeze((1, 3)).square()
        varies = total > MIN_VARIANCE_SHARE * scale
        nan = torch.full_like(total, torch.nan)
        token_mean = sums["token_mean"] / n
        fields = {
            "lag_mass": lag_mass,
            "previous_token": before,
            "first_token": mean[..., self.batch.known > 1, 0].mean(-1),
            "selector": sums["selector"] / n,
            "effective_tokens": sums["effective"] / n,
            "spread": sums["spread"] / n,
            "near_mass": self.near_mass(mean),
            "last_mass": mean[..., -1, :],
            "position_share": torch.where(varies, position / total, nan),
            "token_share": torch.where(varies, token / total, nan),
            "token_mean_variance": (sums["token_mean_square"] / n - token_mean.square().sum(-1)).clamp_min(0),
        }
        return {name: value.cpu().numpy() for name, value in fields.items()}


def _first_largest(x: Float[Tensor, "*row key"]) -> Int[Tensor, "*row"]:
    """Returns the place at which each row is largest, the first of several."""
    if x.device.type != "cpu":
        return x.argmax(-1)
    return torch.from_numpy(x.numpy().argmax(-1))  # torch takes eight times as long


def _start(scope: Scope) -> PerLayer[AttentionStats]:
    return PerLayer(scope.model, partial(_AttentionSums, scope), AttentionStats)


ATTENTION: Quantity[AttentionStats] = Quantity("attention", _start, reads_attention=True)
